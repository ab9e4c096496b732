"""Every impossible argument is one clear error that names it, and changes nothing."""

import asyncio
import multiprocessing
import os
import threading

import numpy as np
import pytest
from store_helpers import locations, memory_store

import sarpstore
from sarpstore._files import MemoryFolder

BAD_TOKENS = {
    "negative": [3, -1],
    "negative int8": np.array([-1], np.int8),
    "2**32": [1, 2**32],
    "2**64": [2**64],
    "2**63 and -1": [2**63, -1],
    "uint64 too large": np.array([2**40], np.uint64),
    "floats": [1.0, 2.0],
    "float32": np.zeros(4, np.float32),
    "a float among ints": [1, 2.5],
    "booleans": [True, False],
    "a bool array": np.zeros(4, bool),
    "a string": "hello",
    "strings": ["1", "2"],
    "a string among ints": [1, "2"],
    "None": None,
    "None among ints": [1, None],
    "one int": 5,
    "two dimensions": [[1, 2], [3, 4]],
    "a 2-D array": np.zeros((2, 2), np.uint32),
    "a 0-D array": np.array(5, np.uint32),
    "ragged": [[1], [2, 3]],
    "a set": {1, 2},
    "a dict": {1: 2},
    "objects": np.array([1, None], object),
    "datetimes": np.zeros(2, "M8[s]"),
    "locations": locations(2),
    "7 bytes": b"1234567",
    "5 bytes in a bytearray": bytearray(5),
}

BAD_IDS = {
    "different lengths": [b"12345678", b"1234567"],
    "no bytes": [b"", b""],
    "65 bytes": [b"x" * 65],
    "a 0-byte array": np.zeros((2, 0), np.uint8),
    "a 65-byte array": np.zeros((2, 65), np.uint8),
    "one dimension of bytes": np.zeros(32, np.uint8),
    "three dimensions": np.zeros((2, 8, 2), np.uint8),
    "32-bit ints": np.zeros(2, np.int32),
    "floats": np.zeros((2, 16)),
    "float ids": [1.5],
    "65-bit ints": [2**64],
    "too negative": [-(2**63) - 1],
    "booleans": [True, False],
    "bytes and ints": [b"12345678", 5],
    "strings": ["12345678"],
    "a string": "1234",
    "bytes as a whole": b"1234",
    "None": None,
    "one int": 5,
    "Nones": [None],
}

BAD_LOCATIONS = {  # for two blocks
    "one too few": locations(1),
    "one too many": locations(3),
    "none": locations(0),
    "two dimensions": np.zeros((2, 1), sarpstore.LOCATION),
    "floats": np.zeros(2),
    "bytes": bytes(28),
    "another dtype": np.zeros(2, [("address", "<u8"), ("length", "<u4")]),
    "other names": np.zeros(2, [("a", "<u8"), ("b", "<u4"), ("c", "u1"), ("d", "u1")]),
    "None": None,
    "an int": 5,
    "plain ints": [1, 2],
    "short rows": [(1, 2, 3), (1, 2, 3)],
    "long rows": [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5)],
    "a tier of 300": [(1, 2, 300, 0), (1, 2, 3, 0)],
    "a negative address": [(-1, 2, 3, 0), (1, 2, 3, 0)],
    "text": [("x", 2, 3, 0), (1, 2, 3, 0)],
}


@pytest.fixture
async def store():
    async with memory_store() as store:
        yield store


async def refused(call, error=sarpstore.InputError, match=None):
    with pytest.raises(error, match=match) as raised:
        await call()
    assert isinstance(raised.value, sarpstore.SarpError)
    assert str(raised.value)


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_bad_tokens(store, name):
    x, tokens = store.namespace("x"), BAD_TOKENS[name]
    await refused(lambda: x.match(tokens), match="tokens")
    await refused(lambda: x.insert(tokens, locations(2)), match="tokens")
    await refused(lambda: store.match_many([(x, [1]), (x, tokens)]), match="tokens")
    with pytest.raises(sarpstore.InputError, match="tokens"):
        x.estimate(tokens)
    with pytest.raises(sarpstore.InputError, match="tokens"):
        x.block_ids(tokens)
    assert store.stats().blocks == 0


async def test_the_offending_token_is_named(store):
    await refused(lambda: store.namespace("x").match([1, 2, 2**32, -1]), match=r"tokens\[2\] = 4294967296")


@pytest.mark.parametrize("name", BAD_IDS)
async def test_bad_ids(store, name):
    x, ids = store.namespace("x"), BAD_IDS[name]
    await refused(lambda: x.match_ids(ids), match="ids")
    await refused(lambda: x.insert_ids(ids, locations(2)), match="ids")
    await refused(lambda: store.match_many_ids([(x, [1]), (x, ids)]), match="ids")
    assert store.stats().blocks == 0


@pytest.mark.parametrize("name", BAD_LOCATIONS)
async def test_bad_locations(store, name):
    x, rows = store.namespace("x"), BAD_LOCATIONS[name]
    await refused(lambda: x.insert([1, 2], rows), match="locations")
    await refused(lambda: x.insert_ids([b"1" * 16, b"2" * 16], rows), match="locations")
    assert (store.stats().blocks, (await x.match([1, 2])).blocks) == (0, 0)


@pytest.mark.parametrize("holder", [-1, 2**32, 1.0, "0", None, True], ids=repr)
async def test_bad_holders(store, holder):
    x = store.namespace("x")
    for call in (
        lambda: x.match([1], holder=holder),
        lambda: x.match_ids([1], holder=holder),
        lambda: x.insert([1], locations(1), holder=holder),
        lambda: x.insert_ids([1], locations(1), holder=holder),
        lambda: store.match_many([(x, [1])], holder=holder),
        lambda: store.match_many_ids([(x, [1])], holder=holder),
    ):
        await refused(call, match="holder")
    with pytest.raises(sarpstore.InputError, match="holder"):
        x.estimate([1], holder=holder)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": 5},
        {"name": None},
        {"name": b"x"},
        {"name": "x", "adapter": None},
        {"name": "x", "salt": "text"},
        {"name": "x", "salt": None},
        {"name": "x" * 1025},
        {"name": "x", "adapter": "é" * 513},
        {"name": "\ud800"},
    ],
    ids=repr,
)
async def test_bad_namespaces(store, arguments):
    with pytest.raises(sarpstore.InputError, match="namespace"):
        store.namespace(**arguments)


async def test_the_longest_namespace(store):
    longest = store.namespace("n" * 1024, adapter="a" * 1024, salt=b"s" * 100_000)
    assert await longest.insert([1, 2], locations(2)) == 2
    assert (await longest.match([1, 2])).blocks == 2


async def test_a_namespace_of_another_store(store):
    async with memory_store() as other:
        stranger = other.namespace("x")
        await refused(lambda: store.match_many([(stranger, [1])]), match="namespace")
        await refused(lambda: store.match_many_ids([(stranger, [1])]), match="namespace")


@pytest.mark.parametrize("queries", [None, 5, [1], [(1, 2, 3)], [([1], "x")], ["ab"]], ids=repr)
async def test_bad_batches(store, queries):
    await refused(lambda: store.match_many(queries))
    await refused(lambda: store.match_many_ids(queries))


BAD_OPTIONS = {
    "unknown": {"colour": "red"},
    "block_tokens": {"block_tokens": 0},
    "block_tokens 1025": {"block_tokens": 1025},
    "block_tokens float": {"block_tokens": 16.0},
    "block_tokens True": {"block_tokens": True},
    "hash": {"hash": "md5"},
    "routing": {"routing": "magic"},
    "durability": {"durability": "sometimes"},
    "sync_interval_ms": {"sync_interval_ms": 0},
    "sync_interval_ms float": {"sync_interval_ms": 1.5},
    "log_file_bytes": {"log_file_bytes": (1 << 20) - 1},
    "log_file_bytes 1 GiB and more": {"log_file_bytes": (1 << 30) + 1},
    "cache_bytes": {"cache_bytes": -1},
    "directory_bytes_max": {"directory_bytes_max": 0},
    "bytes_max": {"bytes_max": 1 << 20},
    "recovery_ms_target": {"recovery_ms_target": 0},
    "io unknown": {"io": "magic"},
    "direct_io text": {"direct_io": "yes"},
    "queue_depth": {"queue_depth": 0},
    "create": {"create": 1},
    "read_only": {"read_only": None},
    "read_cap": {"read_cap": 2, "prune_at": 3},
    "progress": {"progress": 5},
    "location plain": {"location_dtype": np.uint64},
    "location text": {"location_dtype": "nonsense"},
    "location aligned": {"location_dtype": np.dtype([("a", "u1"), ("b", "<u8")], align=True)},
    "location nested": {"location_dtype": [("a", [("b", "u1")])]},
    "location array": {"location_dtype": [("a", "u1", (4,))]},
    "location object": {"location_dtype": [("a", "O")]},
    "location 47 bytes": {"location_dtype": [("a", "V47")]},
    "location 0 bytes": {"location_dtype": []},
    "location name": {"location_dtype": [("é", "u1")]},
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
async def test_bad_options(name):
    folder = MemoryFolder()
    with pytest.raises(sarpstore.OptionError, match=next(iter(BAD_OPTIONS[name]))):
        await sarpstore.open(folder, **BAD_OPTIONS[name])
    assert folder.reopen().names() == []


async def test_direct_io_where_there_is_none():
    folder = MemoryFolder()
    with pytest.raises(sarpstore.OptionError, match="direct_io=True: the file system of"):
        await sarpstore.open(folder, direct_io=True)


async def test_writes_to_a_read_only_store():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert([1, 2], locations(2))
    async with memory_store(folder.reopen(), read_only=True) as store:
        x = store.namespace("x")
        for call in (
            lambda: x.insert([1], locations(1)),
            lambda: x.insert_ids([1], locations(1)),
            store.sync,
            store.checkpoint,
        ):
            await refused(call, sarpstore.ReadOnlyError, "read_only")
        assert (await x.match([1, 2])).blocks == 2


async def test_refreshing_a_store_that_writes(store):
    await refused(store.refresh, sarpstore.UsageError, "read_only")


async def test_another_loop(store):
    x = store.namespace("x")
    errors = []

    def elsewhere():
        async def call():
            for function in (
                lambda: x.match([1]),
                lambda: x.insert([1], locations(1)),
                store.sync,
                store.close,
                lambda: store.match_many([]),
            ):
                try:
                    await function()
                except sarpstore.WrongLoopError as error:
                    errors.append(str(error))
            try:
                x.estimate([1])
            except sarpstore.WrongLoopError as error:
                errors.append(str(error))

        asyncio.run(call())

    await asyncio.to_thread(elsewhere)
    assert len(errors) == 6
    assert all("event loop" in error for error in errors)


async def test_another_thread_without_a_loop(store):
    """The directory's only lock is the loop's turn: an estimate from another thread would read torn state."""
    x = store.namespace("x")
    raised = []

    def elsewhere():
        try:
            x.estimate([1])
        except sarpstore.SarpError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [type(error) for error in raised] == [sarpstore.WrongLoopError]


async def test_a_forked_child(tmp_path):
    async with sarpstore.open(tmp_path / "store", block_tokens=1) as store:
        x = store.namespace("x")
        await x.insert([1, 2], locations(2))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            says = []
            for call in (lambda: x.estimate([1]), lambda: x.match([1]).send(None), lambda: store.close().send(None)):
                try:
                    call()
                except sarpstore.ForkedError:
                    says.append("forked")
                except BaseException as error:
                    says.append(repr(error))
            os.write(write, " ".join(says).encode())
            os._exit(0)
        os.close(write)
        await asyncio.to_thread(os.waitpid, child, 0)
        with os.fdopen(read) as pipe:
            assert pipe.read() == "forked forked forked"
        assert (await x.match([1, 2])).blocks == 2
        await x.insert([3], locations(1))
    async with sarpstore.open(tmp_path / "store") as store:
        assert (await store.namespace("x").match([3])).blocks == 1
    assert multiprocessing.active_children() == []


async def test_a_refused_call_leaves_no_trace():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await refused(lambda: store.namespace("x").insert_ids([1, 2], locations(1)))
        await store.namespace("x").insert([1, 2], locations(2))  # the other scheme is still free
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([1, 2])).blocks == 2


async def test_the_directorys_bound(monkeypatch):
    monkeypatch.setitem(sarpstore._options._RANGES, "directory_bytes_max", (1 << 18, 1 << 40))
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), directory_bytes_max=1 << 18) as store:
        x = store.namespace("x")
        held = []

        async def fill():
            for i in range(100_000):
                await x.insert([i, 0], locations(2, 2 * i))
                held.append(i)

        await refused(fill, sarpstore.LimitError, "directory_bytes_max")
        assert len(held) > 3_000
        assert store.stats().directory_bytes <= 1.1 * (1 << 18)
        assert (await x.match([held[0], 0])).blocks == 2
        assert (await x.match([held[-1], 0])).blocks == 2
        await store.sync()
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([held[-1], 0])).blocks == 2


async def test_a_small_directory_takes_a_long_prompt():
    async with memory_store(directory_bytes_max=1 << 20) as store:
        assert await store.namespace("x").insert(range(20_000), locations(20_000)) == 20_000
