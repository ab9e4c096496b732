"""After a failed write no more is written, each call says why, matches go on, and nothing acknowledged is lost."""

import asyncio
from errno import EDQUOT, EIO, ENOSPC

import pytest
from store_helpers import WaitingFolder, abandoned, addresses, locations, memory_store, names_of, until

import sarpstore
from sarpstore._files import Fault, FaultyFolder, MemoryFolder

ROUTINGS_TOO = True

LOG_FAULTS = {
    "write": ("write", "0000"),
    "sync": ("sync", "0000"),
    "create": ("create", "0000"),
    "rename": ("rename", "0000"),
    "sync of the folder": ("sync_folder", ""),
}


async def fails(call, errors):
    with pytest.raises(errors) as raised:
        await call()
    return raised.value


@pytest.mark.parametrize("errno", [ENOSPC, EIO, EDQUOT])
@pytest.mark.parametrize("where", LOG_FAULTS)
@pytest.mark.parametrize("durability", ["always", "interval", "never"])
async def test_a_failed_append_stops_writing_for_good(durability, where, errno):
    operation, prefix = LOG_FAULTS[where]
    kind = sarpstore.StorageError if errno == EIO else sarpstore.DiskFullError
    folder = FaultyFolder(MemoryFolder())
    async with memory_store(folder.inner.reopen()) as store:
        await store.namespace("x").insert([1, 2, 3], locations(3, 10))
    handle = FaultyFolder(folder.inner.reopen())
    store = await memory_store(handle, durability=durability, sync_interval_ms=1)
    x = store.namespace("x")
    if where in ("write", "sync"):
        await x.insert([4, 5], locations(2, 20))
        await store.sync()
    handle.inject(Fault(operation, prefix, errno=errno, times=None))
    insertion = x.insert([6, 7], locations(2, 30))
    if durability == "always":
        assert type(await fails(lambda: insertion, kind)) is kind
    else:
        await insertion
        if durability == "interval" or where == "write":
            await until(lambda: store.stats().failed)
        else:
            await fails(store.sync, (kind, sarpstore.FailedError))
    handle.heal()  # the disk has room again, or the cable is back: nothing is retried all the same
    for call in (lambda: x.insert([8], locations(1)), lambda: x.insert_ids([b"8" * 16], locations(1)), store.sync):
        error = await fails(call, sarpstore.FailedError)
        assert isinstance(error.cause, kind)
        assert error.cause.errno == errno
        assert str(error.cause) in str(error)
    await fails(store.checkpoint, sarpstore.FailedError)
    assert store.stats().failed
    assert addresses((await x.match([1, 2, 3, 9])).locations) == [10, 11, 12]
    assert (await x.match([6, 7])).blocks == 2  # what memory has can be read
    await fails(store.close, (kind, sarpstore.FailedError))
    await store.close()
    async with memory_store(folder.inner.reopen()) as again:
        x = again.namespace("x")
        assert addresses((await x.match([1, 2, 3])).locations) == [10, 11, 12]
        if where in ("write", "sync"):
            assert addresses((await x.match([4, 5])).locations) == [20, 21]
        assert (await x.match([6, 7])).blocks in (0, 2)
        await x.insert([8], locations(1, 40))
        await again.sync()
        assert again.stats().damaged_records == 0
    async with memory_store(folder.inner.reopen()) as again:
        assert addresses((await again.namespace("x").match([8])).locations) == [40]


@pytest.mark.parametrize("partial_bytes", [0, 512, 4096, 6000])
async def test_a_write_that_stops_half_way(partial_bytes):
    inner = MemoryFolder()
    async with abandoned(memory_store(FaultyFolder(inner.reopen()), durability="always")) as store:
        x = store.namespace("x")
        await x.insert(range(100), locations(100, 100))
        store._core.state.folder.inject(Fault("write", "0000", errno=ENOSPC, partial_bytes=partial_bytes))
        await fails(lambda: x.insert(range(1000, 1300), locations(300)), sarpstore.DiskFullError)
    async with memory_store(inner.reopen()) as store:
        x = store.namespace("x")
        assert addresses((await x.match(range(100))).locations) == list(range(100, 200))
        assert (await x.match(range(1000, 1300))).blocks == 0
        assert store.stats().damaged_records == 0
        await x.insert(range(1000, 1001), locations(1, 7))
        assert (await x.match(range(1000, 1300))).blocks == 1
        await x.insert([5000], locations(1, 7))
    async with memory_store(inner.crash(1, "lose")) as store:
        assert (await store.namespace("x").match([5000])).blocks == 1


async def test_everyone_who_waits_is_told():
    folder = FaultyFolder(MemoryFolder())
    async with abandoned(memory_store(folder, durability="always")) as store:
        x = store.namespace("x")
        await x.insert([0], locations(1))
        folder.inject(Fault("sync", "0000"))
        results = await asyncio.gather(
            *(x.insert([i, 0], locations(2)) for i in range(1, 20)), store.sync(), return_exceptions=True
        )
        assert all(isinstance(result, sarpstore.StorageError | sarpstore.FailedError) for result in results)


async def test_a_new_store_on_a_full_disk():
    folder = FaultyFolder(MemoryFolder(), [Fault("create", errno=ENOSPC, times=None)])

    async def use():
        async with memory_store(folder) as store:
            await store.namespace("x").insert([1], locations(1))
            await store.sync()

    await fails(use, (sarpstore.DiskFullError, sarpstore.FailedError))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
async def test_a_failed_checkpoint_harms_nothing(operation):
    folder = FaultyFolder(MemoryFolder())
    async with memory_store(folder) as store:
        x = store.namespace("x")
        await x.insert(range(200), locations(200))
        await store.checkpoint()
        await x.insert(range(500, 700), locations(200, 500))
        await store.sync()
        folder.inject(Fault(operation, "0000000000000002", errno=ENOSPC, times=None))
        await fails(store.checkpoint, sarpstore.DiskFullError)
        assert names_of(folder, ".checkpoint.tmp") == []  # they would add up on a full disk: each has its own name
        folder.heal()
        assert not store.stats().failed
        await x.insert(range(800, 900), locations(100, 800))
        await store.checkpoint()
        assert (await x.match(range(500, 700))).blocks == 200
    async with memory_store(folder.inner.reopen()) as store:
        x = store.namespace("x")
        assert addresses((await x.match(range(500, 700))).locations) == list(range(500, 700))
        assert addresses((await x.match(range(800, 900))).locations) == list(range(800, 900))
        assert store.stats().damaged_records == 0
    assert names_of(folder.inner.reopen(), ".tmp") == []


async def check_first_checkpoint(folder):
    """Of two checkpoints the second is gone, and what is there of the first is whole."""
    assert names_of(folder, ".checkpoint") == ["0000000000000001.checkpoint"]
    assert names_of(folder, ".images") == ["0000000000000001.images"]
    async with abandoned(memory_store(folder)) as store:
        assert (await store.namespace("x").match(range(200))).blocks == 200
        assert (await store.namespace("x").match(range(500, 700))).blocks == 200
        assert store.stats().damaged_records == 0


async def two_insertions(store):
    x = store.namespace("x")
    await x.insert(range(200), locations(200))
    await store.checkpoint()
    await x.insert(range(500, 700), locations(200, 500))
    await store.sync()


async def test_a_checkpoint_that_fails_when_it_has_its_name_loses_it_again():
    """Its images go, and a head without them is worse than none: the next open would read the whole log."""
    folder = FaultyFolder(MemoryFolder())
    async with abandoned(memory_store(folder)) as store:
        await two_insertions(store)
        folder.inject(Fault("sync_folder", errno=ENOSPC))
        await fails(store.checkpoint, sarpstore.DiskFullError)
        await check_first_checkpoint(folder.inner.crash(0, "keep"))


async def test_a_checkpoint_that_is_cancelled_as_it_gets_its_name_loses_it_again():
    folder = WaitingFolder(part=".checkpoint.tmp")
    async with abandoned(memory_store(folder)) as store:
        await two_insertions(store)
        folder.writes.clear()
        task = asyncio.create_task(store.checkpoint())
        await until(lambda: "0000000000000002.checkpoint.tmp" in folder.names())
        task.cancel()
        await asyncio.sleep(0)
        folder.writes.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await check_first_checkpoint(folder.inner.crash(0, "keep"))


async def test_statistics_that_cannot_be_published_harm_nothing():
    folder = FaultyFolder(MemoryFolder(), [Fault("create", "stats", errno=ENOSPC, times=None)])
    async with memory_store(folder) as store:
        await store.namespace("x").insert([1], locations(1))
        await store.sync()
        assert (await store.namespace("x").match([1])).blocks == 1


async def test_a_record_that_cannot_be_read_misses_until_it_can():
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert([1, 2, 3], locations(3))
        await store.checkpoint()
    folder = FaultyFolder(inner.reopen())
    async with memory_store(folder, cache_bytes=0) as store:
        x = store.namespace("x")
        assert (await x.match([1, 2, 3])).blocks == 3
        folder.inject(Fault("read", "0000", times=None))
        for _ in range(5):
            assert (await x.match([1, 2, 3])).blocks == 0
        assert 1 <= store.stats().damaged_records <= 2  # one record, however often it is asked for
        folder.heal()
        assert (await x.match([1, 2, 3])).blocks == 3


@pytest.mark.parametrize("after", range(1, 4))
async def test_one_page_that_cannot_be_read_at_open_costs_no_more_than_itself(after):
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        for i in range(40):
            await store.namespace("x").insert([i] * 64, locations(64, 64 * i))
    for name in names_of(inner, ".checkpoint"):
        inner.remove(name)
    folder = FaultyFolder(inner.reopen(), [Fault("read", "0000", after=after, times=1)])
    async with memory_store(folder, read_only=True) as store:
        matched = [(await store.namespace("x").match([i] * 64)).blocks for i in range(40)]
        assert set(matched) <= {0, 64}
        # A read that succeeds when it is tried again costs nothing; one that does not is damage, and counted.
        assert set(matched) == {64} or store.stats().damaged_records > 0
