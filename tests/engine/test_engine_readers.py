"""Read-only openers: snapshots of a store that is being written, which `refresh` moves forward."""

import asyncio

import pytest
from store_helpers import WaitingFolder, addresses, locations, memory_store, names_of, small_files, until

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True


async def test_a_snapshot_stands_still_until_it_is_refreshed():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        await x.insert([1, 2], locations(2))
        await store.sync()
        async with memory_store(folder.reopen(), read_only=True) as reader:
            y = reader.namespace("x")
            assert (await y.match([1, 2, 3])).blocks == 2
            await x.insert([1, 2, 3], locations(3, 10))
            await store.sync()
            assert (await y.match([1, 2, 3])).blocks == 2
            await reader.refresh()
            assert addresses((await y.match([1, 2, 3])).locations) == [0, 1, 12]
            assert y.estimate([1, 2, 3]) == (1, 3)
            assert reader.stats().damaged_records == 0


async def test_reading_changes_nothing(monkeypatch):
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert(range(300), locations(300))
    before = {name: bytes(content.now) for name, content in folder._disk.names.items()}
    async with memory_store(folder.reopen(), read_only=True) as reader:
        assert (await reader.namespace("x").match(range(300))).blocks == 300
        await reader.refresh()
        await asyncio.sleep(0.05)
    assert {name: bytes(content.now) for name, content in folder._disk.names.items()} == before


async def test_many_readers_while_one_writes(monkeypatch):
    size = small_files(monkeypatch)
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), log_file_bytes=size, sync_interval_ms=1) as store:
        x = store.namespace("x")
        await x.insert([0] * 70, locations(70))
        await store.sync()
        written = 1
        stop = asyncio.Event()

        async def write():
            nonlocal written
            for i in range(1, 150):
                await x.insert([i] * 70, locations(70, 100 * i))
                written += 1
                if i % 10 == 0:
                    await store.checkpoint()
                await asyncio.sleep(0.001)
            stop.set()

        async def read():
            async with memory_store(folder.reopen(), read_only=True, cache_bytes=0) as reader:
                y, seen = reader.namespace("x"), 0
                while not stop.is_set():
                    found = [(await y.match([i] * 70)).blocks for i in range(written)]
                    held = sum(blocks == 70 for blocks in found)
                    assert found == [70] * held + [0] * (len(found) - held)  # a prefix of the operations
                    assert held >= seen
                    seen = held
                    await reader.refresh()
                assert reader.stats().damaged_records == 0
                await store.sync()
                await reader.refresh()
                for i in range(150):
                    match = await y.match([i] * 70)
                    assert addresses(match.locations) == list(range(100 * i, 100 * i + 70))
                assert reader.stats().damaged_records == 0

        await asyncio.gather(write(), read(), read())


async def test_a_snapshot_answers_although_the_writer_has_removed_its_checkpoint():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        await x.insert(range(300), locations(300))
        await store.checkpoint()
        waiting = WaitingFolder(folder.reopen())
        reader = await memory_store(waiting, read_only=True, cache_bytes=0)
        waiting.reads.clear()
        matching = asyncio.create_task(reader.namespace("x").match(range(300)))
        first = names_of(folder, fmt.IMAGES_SUFFIX)
        for i in range(4):
            await x.insert([1000 + i], locations(1))
            await store.checkpoint()
        assert not set(first) & set(names_of(folder, fmt.IMAGES_SUFFIX))
        waiting.reads.set()
        assert (await matching).blocks == 300
        assert (await reader.namespace("x").match(range(300))).blocks == 300
        assert reader.stats().damaged_records == 0
        await reader.close()


async def test_matches_in_flight_finish_on_the_old_state():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert(range(300), locations(300))
        await store.checkpoint()
        waiting = WaitingFolder(folder.reopen())
        async with memory_store(waiting, read_only=True, cache_bytes=0) as reader:
            y = reader.namespace("x")
            await until(lambda: reader.stats().unloaded_partitions == 0)
            waiting.reads.clear()
            matches = [asyncio.create_task(y.match(range(300 - i))) for i in range(5)]
            await asyncio.sleep(0.02)
            refreshing = [asyncio.create_task(reader.refresh()) for _ in range(3)]
            await asyncio.sleep(0.02)
            waiting.reads.set()
            await asyncio.gather(*refreshing)
            assert [m.blocks for m in await asyncio.gather(*matches)] == [300, 299, 298, 297, 296]
            assert (await y.match(range(300))).blocks == 300


async def test_a_match_just_before_a_refresh_finishes_too():
    """Partition, then page: a second read is needed after the refresh has taken over."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert(range(300), locations(300))
        await store.checkpoint()
        async with memory_store(folder.reopen(), read_only=True, cache_bytes=0) as reader:
            y = reader.namespace("x")
            for _ in range(10):
                match, _ = await asyncio.gather(y.match(range(300)), reader.refresh())
                assert match.blocks == 300


async def test_counters_do_not_run_backwards_over_a_refresh():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert(range(300), locations(300))
        await store.checkpoint()
        async with memory_store(folder.reopen(), read_only=True, cache_bytes=0) as reader:
            for _ in range(3):
                assert (await reader.namespace("x").match(range(300))).blocks == 300
            before = reader.stats()
            await reader.refresh()
            after = reader.stats()
            for name in ("reads", "matches", "matched_blocks", "records_read", "cache_hits", "reads_coalesced"):
                assert getattr(after, name) >= getattr(before, name)


async def test_a_failed_refresh_leaves_the_snapshot(tmp_path):
    path = tmp_path / "store"
    async with sarpstore.open(path, block_tokens=1) as store:
        await store.namespace("x").insert([1, 2], locations(2))
    async with sarpstore.open(path, read_only=True) as reader:
        y = reader.namespace("x")
        assert (await y.match([1, 2])).blocks == 2
        for name in path.glob("*.log"):
            name.rename(name.with_suffix(".hidden"))
        with pytest.raises(sarpstore.SarpError):
            await reader.refresh()
        assert (await y.match([1, 2])).blocks == 2
        for name in path.glob("*.hidden"):
            name.rename(name.with_suffix(".log"))
        await reader.refresh()
        assert (await y.match([1, 2])).blocks == 2


async def test_a_read_only_folder_can_be_read(tmp_path):
    path = tmp_path / "store"
    async with sarpstore.open(path, block_tokens=1) as store:
        await store.namespace("x").insert([1, 2], locations(2))
    (path / "LOCK").unlink()
    path.chmod(0o500)
    try:
        async with sarpstore.open(path, read_only=True) as reader:
            assert (await reader.namespace("x").match([1, 2])).blocks == 2
        assert not (path / "LOCK").exists()
    finally:
        path.chmod(0o700)
