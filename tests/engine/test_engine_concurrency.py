"""Many tasks at once, cancelled wherever they wait, and what happens while a write or a read is on its way."""

import asyncio
import contextlib
import random

import pytest
from store_helpers import WaitingFolder, addresses, locations, memory_store, small_files, until

import sarpstore
from sarpstore._files import FaultyFolder, MemoryFolder

ROUTINGS_TOO = True


async def test_what_gathers_while_a_commit_is_written_can_be_matched():
    folder = WaitingFolder()
    async with memory_store(folder) as store:
        x = store.namespace("x")
        await x.insert([1, 2, 3], locations(3))
        await store.sync()
        folder.writes.clear()
        await x.insert([4, 5], locations(2, 10))
        syncing = asyncio.create_task(store.sync())
        await asyncio.sleep(0.02)
        await x.insert([6, 7, 8], locations(3, 20))
        await x.insert([6, 7, 8, 9], locations(4, 30))
        assert addresses((await x.match([1, 2, 3])).locations) == [0, 1, 2]
        assert addresses((await x.match([4, 5])).locations) == [10, 11]
        assert addresses((await x.match([6, 7, 8, 9])).locations) == [20, 21, 22, 33]
        folder.writes.set()
        await syncing
        assert addresses((await x.match([6, 7, 8, 9])).locations) == [20, 21, 22, 33]
        assert store.stats().damaged_records == 0


@pytest.mark.parametrize("durability", ["always", "interval", "never"])
async def test_an_insertion_that_waits_while_the_store_closes(durability):
    """It is refused, or it is there afterwards; it neither hangs nor vanishes."""
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert([1, 2, 3], locations(3))
        await store.checkpoint()
    folder = WaitingFolder(inner.reopen())
    store = await memory_store(folder, cache_bytes=0, durability=durability)
    x = store.namespace("x")
    await until(lambda: store.stats().unloaded_partitions == 0)
    folder.reads.clear()
    insertion = asyncio.create_task(x.insert([1, 2, 3, 4], locations(4, 10)))
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.1)
    folder.reads.set()
    await asyncio.wait_for(closing, 5)
    done, _ = await asyncio.wait([insertion], timeout=2)
    assert done, "the insertion hangs"
    acknowledged = insertion.exception() is None
    assert acknowledged or isinstance(insertion.exception(), sarpstore.ClosedError)
    async with memory_store(inner.reopen()) as store:
        assert (await store.namespace("x").match([1, 2, 3, 4])).blocks >= (4 if acknowledged else 3)


async def test_an_insertion_while_the_closing_store_writes_its_last_page():
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert([1, 2, 3], locations(3))
        await store.checkpoint()
    folder = WaitingFolder(inner.reopen())
    store = await memory_store(folder, cache_bytes=0, durability="always")
    x = store.namespace("x")
    await until(lambda: store.stats().unloaded_partitions == 0)
    await x.insert([9], locations(1))
    folder.reads.clear()
    insertion = asyncio.create_task(x.insert([1, 2, 3, 4], locations(4, 10)))
    await asyncio.sleep(0.02)
    folder.writes.clear()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    folder.reads.set()
    await asyncio.sleep(0.05)
    folder.writes.set()
    await asyncio.wait_for(closing, 5)
    done, _ = await asyncio.wait([insertion], timeout=2)
    assert done, "the insertion hangs"
    acknowledged = insertion.exception() is None
    async with memory_store(inner.reopen()) as store:
        assert (await store.namespace("x").match([1, 2, 3, 4])).blocks >= (4 if acknowledged else 3)


async def test_a_match_that_waits_while_the_store_closes():
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert([1, 2, 3], locations(3))
        await store.checkpoint()
    folder = WaitingFolder(inner.reopen())
    store = await memory_store(folder, cache_bytes=0)
    await until(lambda: store.stats().unloaded_partitions == 0)
    folder.reads.clear()
    matching = asyncio.create_task(store.namespace("x").match([1, 2, 3]))
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.02)
    folder.reads.set()
    await asyncio.wait_for(closing, 5)
    with contextlib.suppress(sarpstore.ClosedError):
        assert (await asyncio.wait_for(matching, 2)).blocks == 3


async def test_closing_can_be_cancelled_without_losing_what_was_inserted():
    inner = MemoryFolder()
    folder = WaitingFolder(inner.reopen())
    store = await memory_store(folder, sync_interval_ms=60_000)
    await until(lambda: inner.names() != [])
    await store.namespace("x").insert([1, 2, 3], locations(3))
    folder.writes.clear()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.sleep(0.05)
    folder.writes.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await store.close()  # whoever closes again waits for the end
    async with memory_store(inner.reopen()) as store:
        assert (await store.namespace("x").match([1, 2, 3])).blocks == 3


@pytest.mark.parametrize("durability", ["always", "interval"])
@pytest.mark.parametrize("seed", range(3))
async def test_tasks_that_insert_and_match_overlapping_paths_and_are_cancelled(monkeypatch, durability, seed):
    generator = random.Random(seed)
    options = {
        "durability": durability,
        "log_file_bytes": small_files(monkeypatch),
        "cache_bytes": generator.choice([0, 1 << 16]),
        "sync_interval_ms": generator.choice([1, 20]),
    }
    inner = MemoryFolder()
    trunk = [generator.randrange(3) for _ in range(300)]
    acknowledged = []  # (path, what was matched for it right after)

    def path():
        cut = generator.choice([0, 10, 63, 64, 65, 128, 200, 300])
        return tuple(trunk[:cut] + [generator.randrange(2) for _ in range(generator.choice([0, 3, 64, 150]))])

    async with memory_store(inner.reopen(), **options) as store:
        x = store.namespace("x")
        first = {}  # block -> location: once seen it never changes

        def note(tokens, found):
            for i, address in enumerate(found):
                assert first.setdefault(tokens[: i + 1], address) == address

        async def work(number):
            await asyncio.sleep(generator.random() * 0.01)
            tokens = path()
            await x.insert(tokens, locations(len(tokens), 1000 * number))
            match = await x.match(tokens)
            assert match.blocks == len(tokens)
            note(tokens, addresses(match.locations))
            acknowledged.append(tokens)
            other = path()
            match, *_ = await store.match_many([(x, other), (x, tokens)])
            note(other, addresses(match.locations))
            if generator.random() < 0.1:
                await store.sync()
            if generator.random() < 0.05:
                await store.checkpoint()

        tasks = [asyncio.create_task(work(i)) for i in range(1, 150)]
        while pending := [task for task in tasks if not task.done()]:
            await asyncio.sleep(0.002)
            generator.choice(pending).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
        assert errors == []
        assert len(acknowledged) > 5
        for tokens in acknowledged:
            match = await x.match(tokens)
            assert match.blocks == len(tokens)
            note(tokens, addresses(match.locations))
        blocks = store.stats().blocks
        assert store.stats().damaged_records == 0
    async with memory_store(inner.reopen(), **options) as store:
        x = store.namespace("x")
        for tokens in acknowledged:
            match = await x.match(tokens)
            assert match.blocks == len(tokens)
            note(tokens, addresses(match.locations))
        assert store.stats().blocks == blocks
        assert store.stats().damaged_records == 0


async def test_inserting_the_same_path_at_once_gives_one_owner():
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert(range(70), locations(70))
        await store.checkpoint()
    folder = WaitingFolder(inner.reopen())
    async with memory_store(folder, cache_bytes=0) as store:
        x = store.namespace("x")
        await until(lambda: store.stats().unloaded_partitions == 0)
        folder.reads.clear()
        tasks = [
            asyncio.create_task(x.insert(range(70 + 10 * i), locations(70 + 10 * i, 1000 * i))) for i in range(1, 9)
        ]
        await asyncio.sleep(0.02)
        folder.reads.set()
        new = await asyncio.gather(*tasks)
        assert sum(new) == 80
        assert addresses((await x.match(range(150))).locations)[:70] == list(range(70))
        assert (await x.match(range(150))).blocks == 150
        assert store.stats().blocks == 150


async def test_matches_wanting_the_same_page_share_a_read():
    inner = MemoryFolder()
    async with memory_store(inner.reopen()) as store:
        await store.namespace("x").insert(range(64), locations(64))
        await store.checkpoint()
    async with memory_store(inner.reopen(), cache_bytes=0) as store:
        x = store.namespace("x")
        await until(lambda: store.stats().unloaded_partitions == 0)
        before = store.stats().reads
        matches = await asyncio.gather(*(x.match(range(64)) for _ in range(50)))
        assert {m.blocks for m in matches} == {64}
        assert store.stats().reads - before == 1


async def test_those_who_wait_for_durability_share_a_sync():
    folder = FaultyFolder(MemoryFolder())
    async with memory_store(folder, durability="always") as store:
        x = store.namespace("x")
        await x.insert([0], locations(1))
        before = folder.calls["sync"], store.stats().commits

        async def session(number):
            for i in range(10):
                await x.insert([number, i], locations(2))

        await asyncio.gather(*(session(i) for i in range(1, 21)))
        syncs, commits = folder.calls["sync"] - before[0], store.stats().commits - before[1]
        assert commits <= 40
        assert syncs <= commits + 2


async def test_an_idle_store_that_never_syncs_by_itself_does_not_grow():
    async with memory_store(durability="never", sync_interval_ms=1) as store:
        await store.namespace("x").insert([1], locations(1))
        await store.sync()
        await asyncio.sleep(0.03)
        before = store.stats().log_bytes
        for _ in range(10):
            await store.sync()
            await asyncio.sleep(0.005)
        assert store.stats().log_bytes - before <= 4096


async def test_a_checkpoint_while_everything_changes():
    inner = MemoryFolder()
    async with memory_store(inner.reopen(), sync_interval_ms=1) as store:
        x = store.namespace("x")
        paths = []

        async def insert():
            for i in range(300):
                path = [i % 7, i % 5, *range(60 + i % 9), i]
                await x.insert(path, locations(len(path), 1000 * i))
                paths.append(path)
                await asyncio.sleep(0)

        async def checkpoint():
            for _ in range(6):
                await store.checkpoint()

        await asyncio.gather(insert(), checkpoint(), checkpoint())
        await store.sync()
        crashed = inner.crash(5, "keep")
        answers = [addresses((await x.match(path)).locations) for path in paths]
    async with memory_store(crashed) as store:
        x = store.namespace("x")
        assert [addresses((await x.match(path)).locations) for path in paths] == answers
        assert store.stats().damaged_records == 0
