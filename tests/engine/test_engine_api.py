"""The public contract of an open store: what each call takes and answers."""

import asyncio
import hashlib
from array import array

import mmh3
import numpy as np
import pytest
from store_helpers import addresses, locations, memory_store

import sarpstore
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True

TOKENS = list(range(1000, 1000 + 16 * 5 + 7))  # five whole blocks and a part of one

FORMS = {
    "list": list,
    "tuple": tuple,
    "range": lambda tokens: range(tokens[0], tokens[-1] + 1),
    "generator": lambda tokens: (token for token in tokens),
    "int32": lambda tokens: np.array(tokens, np.int32),
    "int64": lambda tokens: np.array(tokens, np.int64),
    "uint16": lambda tokens: np.array(tokens, np.uint16),
    "uint32": lambda tokens: np.array(tokens, np.uint32),
    "uint64": lambda tokens: np.array(tokens, np.uint64),
    "big-endian": lambda tokens: np.array(tokens, ">u4"),
    "strided": lambda tokens: np.repeat(np.array(tokens, np.uint32), 2)[::2],
    "read-only": lambda tokens: np.frombuffer(np.array(tokens, "<u4").tobytes(), "<u4"),
    "array": lambda tokens: array("I", tokens),
    "array of q": lambda tokens: array("q", tokens),
    "bytes": lambda tokens: np.array(tokens, "<u4").tobytes(),
    "bytearray": lambda tokens: bytearray(np.array(tokens, "<u4").tobytes()),
    "memoryview of bytes": lambda tokens: memoryview(np.array(tokens, "<u4").tobytes()),
    "memoryview of u32": lambda tokens: memoryview(np.array(tokens, np.uint32)),
    "memoryview of an array": lambda tokens: memoryview(array("I", tokens)),
    "strided memoryview of u32": lambda tokens: memoryview(np.repeat(np.array(tokens, np.uint32), 2))[::2],
}


@pytest.fixture
async def store():
    async with sarpstore.open(MemoryFolder()) as store:
        yield store


async def test_what_was_inserted_is_matched(store):
    llama = store.namespace("llama")
    rows = locations(5, 100)
    assert await llama.insert(TOKENS, rows) == 5
    match = await llama.match(TOKENS)
    assert (match.blocks, match.tokens) == (5, 80)
    assert match.ids.shape == (5, 16)
    assert match.ids.dtype == np.uint8
    assert np.array_equal(match.ids, llama.block_ids(TOKENS))
    assert match.locations.dtype == store.location_dtype == sarpstore.LOCATION
    assert np.array_equal(match.locations, rows)
    assert "5" in repr(match)


async def test_only_whole_leading_blocks_match(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS, locations(5))
    assert (await llama.match(TOKENS[:15])).blocks == 0
    assert (await llama.match(TOKENS[:16])).blocks == 1
    assert (await llama.match(TOKENS[:47])).blocks == 2
    assert (await llama.match([*TOKENS[:32], 7, *TOKENS[33:]])).blocks == 2
    assert (await llama.match([7, *TOKENS[1:]])).blocks == 0
    assert (await llama.match(TOKENS[16:])).blocks == 0


async def test_locations_are_given_only_where_asked_for(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS, locations(5))
    match = await llama.match(TOKENS, locations=False)
    assert match.blocks == 5
    assert len(match.ids) == 5
    with pytest.raises(AttributeError, match="locations=False"):
        _ = match.locations


async def test_blocks_that_are_held_keep_their_location(store):
    llama = store.namespace("llama")
    assert await llama.insert(TOKENS[:48], locations(3, 1)) == 3
    assert await llama.insert(TOKENS, locations(5, 50)) == 2
    assert await llama.insert(TOKENS, locations(5, 90)) == 0
    assert addresses((await llama.match(TOKENS)).locations) == [1, 2, 3, 53, 54]


@pytest.mark.parametrize("form", FORMS)
async def test_tokens_come_in_any_form(store, form):
    llama = store.namespace("llama")
    assert np.array_equal(llama.block_ids(FORMS[form](TOKENS)), llama.block_ids(TOKENS))
    assert await llama.insert(FORMS[form](TOKENS), locations(5)) == 5
    assert (await llama.match(TOKENS)).blocks == 5
    assert (await llama.match(FORMS[form](TOKENS))).blocks == 5
    assert llama.estimate(FORMS[form](TOKENS)) == (1, 5)


@pytest.mark.parametrize(
    "nothing",
    [[], (), b"", np.array([], np.uint32), np.empty(0, np.int64), array("I"), memoryview(b""), iter(())],
    ids=["list", "tuple", "bytes", "uint32", "int64", "array", "memoryview", "iterator"],
)
async def test_nothing_matches_nothing(store, nothing):
    llama = store.namespace("llama")
    assert await llama.insert(nothing, locations(0)) == 0
    match = await llama.match(nothing)
    assert (match.blocks, match.tokens, match.ids.shape, match.locations.shape) == (0, 0, (0, 16), (0,))


async def test_no_ids_match_nothing(store):
    llama = store.namespace("llama")
    for nothing in ([], np.empty((0, 16), np.uint8), np.empty((0, 8), np.uint8)):
        assert await llama.insert_ids(nothing, locations(0)) == 0
        assert (await llama.match_ids(nothing)).blocks == 0
    assert await store.match_many([]) == []
    assert await store.match_many_ids([]) == []


async def test_less_than_a_block_is_nothing(store):
    llama = store.namespace("llama")
    assert await llama.insert(TOKENS[:15], locations(0)) == 0
    assert (await llama.match(TOKENS[:15])).blocks == 0


async def test_locations_may_be_a_list_of_rows(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS[:32], [(7, 4096, 1, 0), (8, 4096, 1, 0)])
    assert (await llama.match(TOKENS)).locations.tolist() == [(7, 4096, 1, 0), (8, 4096, 1, 0)]


@pytest.mark.parametrize("block_tokens", [1, 3, 16, 256, 1024])
async def test_any_block_size(block_tokens):
    folder = MemoryFolder()
    tokens = np.arange(block_tokens * 70 + block_tokens - 1, dtype=np.uint32)
    async with sarpstore.open(folder.reopen(), block_tokens=block_tokens) as store:
        assert store.block_tokens == block_tokens
        assert await store.namespace("x").insert(tokens, locations(70)) == 70
    async with sarpstore.open(folder.reopen()) as store:
        match = await store.namespace("x").match(tokens)
        assert (match.blocks, match.tokens) == (70, 70 * block_tokens)
        assert addresses(match.locations) == list(range(70))


LOCATION_DTYPES = {
    "1 byte": [("tier", "u1")],
    "8 bytes": [("address", "<u8")],
    "mixed": [("pod", "S8"), ("weight", "<f4"), ("at", "<M8[s]"), ("hot", "?")],
    "46 bytes": [("address", "<u8"), ("rest", "V38")],
}


@pytest.mark.parametrize("name", LOCATION_DTYPES)
async def test_any_location_of_1_to_46_bytes(name):
    dtype = np.dtype(LOCATION_DTYPES[name])
    folder = MemoryFolder()
    rows = np.frombuffer(np.random.default_rng(1).bytes(dtype.itemsize * 200), dtype).copy()
    if "hot" in dtype.names:
        rows["hot"] = rows["hot"].view("u1") % 2 == 1
    async with memory_store(folder.reopen(), location_dtype=dtype) as store:
        assert store.location_dtype == dtype
        await store.namespace("x").insert(range(200), rows)
        assert (await store.namespace("x").match(range(200))).locations.tobytes() == rows.tobytes()
    async with memory_store(folder.reopen()) as store:
        match = await store.namespace("x").match(range(200))
        assert match.locations.dtype == dtype
        assert match.locations.tobytes() == rows.tobytes()


# --- ids


def chained(hash_name, root, tokens, block_tokens=16):
    """The documented chain, with nothing of ours."""
    digest = hashlib.sha256 if hash_name == "sha256" else None
    ids, state = [], root
    for start in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        data = state + np.array(tokens[start : start + block_tokens], "<u4").tobytes()
        state = digest(data).digest() if digest else mmh3.mmh3_x64_128_digest(data, 0)
        ids.append(state[:16])
    return ids


@pytest.mark.parametrize("hash_name", ["sha256", "mmh3"])
async def test_ids_are_the_documented_chain(hash_name):
    async with sarpstore.open(MemoryFolder(), hash=hash_name) as store:
        assert store.hash == hash_name
        empty = store.namespace()
        assert [row.tobytes() for row in empty.block_ids(TOKENS)] == chained(hash_name, b"", TOKENS)
        named = b"sarpstore namespace 1" + b"".join(
            len(part).to_bytes(4, "little") + part for part in ("llaméa".encode(), b"lora", b"\0salt")
        )
        root = hashlib.sha256(named).digest() if hash_name == "sha256" else mmh3.mmh3_x64_128_digest(named, 0)
        ids = store.namespace("llaméa", adapter="lora", salt=b"\0salt").block_ids(TOKENS)
        assert [row.tobytes() for row in ids] == chained(hash_name, root, TOKENS)


async def test_the_empty_namespace_has_the_page_keys_of_sglang(store):
    key, keys = None, []
    for start in range(0, 80, 16):  # sglang: sha256 over the prior page's digest and the page's tokens, 4 bytes LE each
        hasher = hashlib.sha256()
        if key is not None:
            hasher.update(bytes.fromhex(key))
        for token in TOKENS[start : start + 16]:
            hasher.update(token.to_bytes(4, "little"))
        key = hasher.hexdigest()
        keys.append(bytes.fromhex(key)[:16])
    everyone = store.namespace()
    await everyone.insert(TOKENS, locations(5))
    assert (await everyone.match_ids(keys)).blocks == 5


async def test_ids_of_the_stores_own_hash_and_tokens_are_the_same_blocks(store):
    llama = store.namespace("llama")
    await llama.insert_ids(llama.block_ids(TOKENS), locations(5, 10))
    match = await llama.match(TOKENS)
    assert addresses(match.locations) == [10, 11, 12, 13, 14]
    assert (await llama.match_ids([row.tobytes() for row in match.ids])).blocks == 5


def key_forms(width):
    rows = np.random.default_rng(width).integers(0, 256, (130, width), np.uint8)
    yield "array", rows
    yield "strided", np.repeat(rows, 2, axis=0)[::2]
    yield "bytes", [row.tobytes() for row in rows]
    yield "memoryviews", [memoryview(row.tobytes()) for row in rows]
    if width == 8:
        yield "ints", [int.from_bytes(row.tobytes(), "big") for row in rows]
        yield "signed ints", [int.from_bytes(row.tobytes(), "big", signed=True) for row in rows]
        yield "uint64", rows.view(">u8").reshape(-1).astype(np.uint64)
        yield "int64", rows.view(">i8").reshape(-1).astype(np.int64)


@pytest.mark.parametrize("width", [1, 8, 16, 20, 32, 64])
async def test_an_engines_keys_of_any_length_and_form(width):
    folder = MemoryFolder()
    forms = dict(key_forms(width))
    async with memory_store(folder.reopen()) as store:
        engine = store.namespace("engine")
        assert await engine.insert_ids(forms["array"], locations(130)) == 130
        for keys in forms.values():
            match = await engine.match_ids(keys)
            assert addresses(match.locations) == list(range(130))
            assert match.ids.shape == (130, 16)
            assert await engine.insert_ids(keys, locations(130, 500)) == 0
    async with memory_store(folder.reopen()) as store:
        for keys in forms.values():
            assert (await store.namespace("engine").match_ids(keys)).blocks == 130


@pytest.mark.parametrize("checkpoints", [True, False], ids=["with checkpoints", "log alone"])
async def test_a_namespace_has_one_id_scheme_for_good(checkpoints):
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("eight").insert_ids([1, 2, 3], locations(3))
        await store.namespace("own").insert([1, 2, 3], locations(3))
    if not checkpoints:
        for name in folder.names():
            if not name.endswith(".log"):
                folder.remove(name)
    async with memory_store(folder.reopen()) as store:
        eight, own = store.namespace("eight"), store.namespace("own")
        assert (await eight.match_ids([1, 2, 3])).blocks == 3
        assert (await own.match_ids(own.block_ids([1, 2, 3]))).blocks == 3
        thirty_two = np.zeros((2, 32), np.uint8)
        for call in (
            lambda: eight.match([1, 2, 3]),
            lambda: eight.insert([1, 2, 3], locations(3)),
            lambda: eight.match_ids(thirty_two),
            lambda: eight.insert_ids(thirty_two, locations(2)),
            lambda: own.match_ids([1, 2, 3]),
            lambda: own.insert_ids([1, 2, 3], locations(3)),
            lambda: store.match_many([(own, [1]), (eight, [1, 2])]),
            lambda: store.match_many_ids([(eight, [1]), (own, [1])]),
        ):
            with pytest.raises(sarpstore.NamespaceError, match=r"eight|own"):
                await call()
        assert store.namespace("eight", salt=b"other").estimate([1]) == (0, 0)


# --- namespaces and holders


async def test_namespaces_never_mix(store):
    tokens = TOKENS[:80]
    spaces = [
        store.namespace(),
        store.namespace("a"),
        store.namespace("b"),
        store.namespace("a", adapter="b"),
        store.namespace("ab"),
        store.namespace("a", salt=b"b"),
        store.namespace("a", adapter="", salt=b"c"),
        store.namespace("", adapter="a"),
        store.namespace("", salt=b"a"),
    ]
    assert len({space.block_ids(tokens).tobytes() for space in spaces}) == len(spaces)
    for i, space in enumerate(spaces):
        assert (await space.match(tokens)).blocks == 0
        assert await space.insert(tokens, locations(5, 100 * i)) == 5
    for i, space in enumerate(spaces):
        assert addresses((await space.match(tokens)).locations) == list(range(100 * i, 100 * i + 5))
    assert (await store.namespace("a").match(tokens)).locations["address"][0] == 100


async def test_the_same_ids_in_two_namespaces_do_not_mix(store):
    ids = np.random.default_rng(0).integers(0, 256, (100, 16), np.uint8)
    await store.namespace("a").insert_ids(ids, locations(100))
    assert (await store.namespace("b").match_ids(ids)).blocks == 0
    assert (await store.namespace("a", salt=b"x").match_ids(ids)).blocks == 0
    assert (await store.namespace("a").match_ids(ids)).blocks == 100


async def test_holders_never_mix(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS, locations(5, 10), holder=3)
    assert (await llama.match(TOKENS)).blocks == 0
    assert llama.estimate(TOKENS) == (0, 0)
    assert (await llama.match(TOKENS, holder=4)).blocks == 0
    assert (await llama.match(TOKENS, holder=3)).blocks == 5
    assert await llama.insert(TOKENS[:32], locations(2, 50), holder=2**32 - 1) == 2
    assert addresses((await llama.match(TOKENS, holder=2**32 - 1)).locations) == [50, 51]
    assert addresses((await llama.match(TOKENS, holder=np.uint32(3))).locations) == [10, 11, 12, 13, 14]
    assert [m.blocks for m in await store.match_many([(llama, TOKENS)], holder=3)] == [5]
    assert llama.estimate(TOKENS, holder=3)[1] == 5
    assert store.stats().holders == 2


# --- batches


async def test_a_batch_answers_as_single_calls_do(store):
    a, b = store.namespace("a"), store.namespace("b")
    await a.insert(TOKENS, locations(5, 10))
    await b.insert(TOKENS[:48], locations(3, 20))
    queries = [(a, TOKENS), (b, TOKENS), (a, []), (b, TOKENS[:20]), (a, TOKENS[1:]), (a, TOKENS)]
    batch = await store.match_many(queries)
    assert [m.blocks for m in batch] == [5, 3, 0, 1, 0, 5]
    assert [addresses(m.locations) for m in batch][:2] == [[10, 11, 12, 13, 14], [20, 21, 22]]
    with_ids = await store.match_many_ids([(space, space.block_ids(tokens)) for space, tokens in queries])
    assert [m.blocks for m in with_ids] == [5, 3, 0, 1, 0, 5]
    lengths = await store.match_many(iter(queries), locations=False)
    assert [m.blocks for m in lengths] == [5, 3, 0, 1, 0, 5]


async def test_the_reads_of_a_batch_go_out_together():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        for i in range(60):
            await store.namespace("x").insert([1000 * i + j for j in range(64)], locations(64, i * 64))
    async with memory_store(folder.reopen(), cache_bytes=0) as store:
        x = store.namespace("x")
        await x.match([5])
        before = store.stats().reads
        queries = [(x, [1000 * i + j for j in range(64)]) for i in range(60)]
        assert [m.blocks for m in await store.match_many(queries, locations=False)] == [64] * 60
        assert store.stats().reads - before <= 6  # 30 neighbouring pages


async def test_a_long_prompt(store):
    tokens = np.random.default_rng(0).integers(0, 1 << 32, 16 * 20_000, np.uint32)
    llama = store.namespace("llama")
    assert await llama.insert(tokens, locations(20_000)) == 20_000
    match = await llama.match(tokens)
    assert match.blocks == 20_000
    assert addresses(match.locations) == list(range(20_000))
    tokens[16 * 12_345] ^= 1
    assert (await llama.match(tokens)).blocks == 12_345
    assert llama.estimate(tokens)[0] <= 12_345 <= llama.estimate(tokens)[1]


# --- statistics and lifecycle


async def test_statistics_say_what_happened(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS, locations(5))
    await llama.insert(TOKENS, locations(5))
    await llama.match(TOKENS)
    await store.match_many([(llama, TOKENS), (llama, [])])
    await store.sync()
    stats = store.stats()
    assert (stats.blocks, stats.segments, stats.holders) == (5, 1, 1)
    assert (stats.inserts, stats.inserted_blocks, stats.matches, stats.matched_blocks) == (2, 5, 3, 10)
    assert stats.synced_position > 0
    assert stats.log_bytes >= 3 * 4096
    assert stats.directory_bytes > 0
    assert stats.resident_bytes >= stats.directory_bytes + stats.cache_bytes
    assert stats.damaged_records == 0
    assert stats.failed == ""
    assert stats.io_backend in ("uring", "threads")
    await store.checkpoint()
    assert store.stats().checkpoints == 1
    assert store.stats().checkpoint_position > 0


async def test_a_store_survives_closing():
    folder = MemoryFolder()
    store = await sarpstore.open(folder.reopen())
    await store.namespace("x").insert(TOKENS, locations(5, 3))
    await store.close()
    await store.close()
    async with sarpstore.open(folder.reopen(), create=False) as store:
        assert addresses((await store.namespace("x").match(TOKENS)).locations) == [3, 4, 5, 6, 7]


async def test_a_closed_store_says_so():
    store = await sarpstore.open(MemoryFolder())
    x = store.namespace("x")
    await store.close()
    for call in (
        lambda: x.match(TOKENS),
        lambda: x.match_ids([1]),
        lambda: x.insert(TOKENS, locations(5)),
        lambda: x.insert_ids([1], locations(1)),
        lambda: store.match_many([]),
        lambda: store.match_many_ids([]),
        store.sync,
        store.checkpoint,
        store.refresh,
    ):
        with pytest.raises(sarpstore.ClosedError, match="closed"):
            await call()
    with pytest.raises(sarpstore.ClosedError):
        x.estimate(TOKENS)
    assert store.stats().blocks == 0


async def test_opening_and_closing_without_a_write_leaves_a_store():
    folder = MemoryFolder()
    for _ in range(3):
        async with sarpstore.open(folder.reopen(), hash="mmh3"):
            pass
    assert len([name for name in folder.names() if name.endswith(".log")]) == 1
    async with sarpstore.open(folder.reopen(), create=False) as store:
        assert store.hash == "mmh3"


async def test_a_store_can_be_read_as_soon_as_it_is_open():
    folder = MemoryFolder()
    async with sarpstore.open(folder.reopen()), sarpstore.open(folder.reopen(), read_only=True) as reader:
        assert (await reader.namespace("x").match(TOKENS)).blocks == 0


async def test_match_results_do_not_change_afterwards(store):
    llama = store.namespace("llama")
    await llama.insert(TOKENS, locations(5, 10))
    ids = llama.block_ids(TOKENS)
    match = await llama.match_ids(ids)
    kept_ids, kept = match.ids.tobytes(), match.locations.tobytes()
    ids[:] = 0
    await llama.insert([*TOKENS[:64], *range(64)], locations(8, 90))
    await store.match_many([(llama, TOKENS)])
    assert (match.ids.tobytes(), match.locations.tobytes()) == (kept_ids, kept)


async def test_a_callers_buffers_may_change_once_a_call_has_returned(store):
    llama = store.namespace("llama")
    rows, tokens = locations(5, 10), np.array(TOKENS, np.uint32)
    await llama.insert(tokens, rows)
    rows["address"] = 0
    tokens[:] = 0
    assert addresses((await llama.match(TOKENS)).locations) == [10, 11, 12, 13, 14]


async def test_estimates_are_bounds(store):
    llama = store.namespace("llama")
    rng = np.random.default_rng(3)
    base = rng.integers(0, 3, 16 * 150, np.uint32)
    for cut in (16 * 150, 16 * 64, 16 * 70, 16 * 10, 0):
        tokens = np.concatenate([base[:cut], rng.integers(3, 9, 16 * 40, np.uint32)])
        await llama.insert(tokens, locations(len(tokens) // 16))
        for query in (tokens, base, tokens[: 16 * 20], np.concatenate([tokens, base])):
            at_least, at_most = llama.estimate(query)
            assert at_least <= (await llama.match(query)).blocks <= at_most


async def test_many_calls_at_once(store):
    llama = store.namespace("llama")
    tokens = [[i, *TOKENS[1:]] for i in range(50)]
    new = await asyncio.gather(*(llama.insert(t, locations(5, 10 * i)) for i, t in enumerate(tokens)))
    assert new == [5] * 50
    matches = await asyncio.gather(*(llama.match(t) for t in tokens))
    assert [addresses(m.locations)[0] for m in matches] == [10 * i for i in range(50)]
