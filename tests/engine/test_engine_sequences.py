"""Short sequences of operations, each of which broke an earlier wording of the rules of removal and compaction."""

import asyncio

import pytest
from store_helpers import addresses, flip, locations, logs, memory_store, remove_checkpoints, segments, small_files

from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True

A = list(range(208))
"""Three windows, and 16 blocks of a fourth."""


async def found(store, path):
    """The addresses of what matches."""
    return addresses((await store.namespace("m").match(path)).locations)


async def insert(store, path, first=0, holder=0):
    return await store.namespace("m").insert(path, locations(len(path), first), holder=holder)


async def remove(store, path, *places):
    namespace = store.namespace("m")
    await namespace.remove_ids(namespace.block_ids(path)[list(places)])


async def mark_pass(store):
    await store._background.maintenance.mark_pass()


async def fill_with_dead(store, first):
    """Records that another holder had: enough for some files that are worth compacting."""
    for at in range(40):
        await insert(store, [first + at, *range(1000, 1120)], holder=1)
    await store.clear_holder(1)
    await store.sync()


async def check_reopened(folder, options, expected):
    """The same matches with the checkpoints that there are, and from the log alone."""
    for alone in (False, True):
        image = folder.crash(0, "lose")
        if alone:
            remove_checkpoints(image)
        async with memory_store(image, **options) as store:
            for path, held in expected:
                assert await found(store, path) == held
            assert store.stats().damaged_records == 0


async def test_what_is_inserted_after_a_removal_proves_no_older_window():
    """insert A, remove its first block, insert B that shares two windows, mark pass, match A."""
    folder, b = MemoryFolder(), [*A[:128], *range(500, 540)]
    async with memory_store(folder.reopen()) as store:
        await insert(store, A)
        await remove(store, A, 0)
        await insert(store, b, 1000)
        expected = [(A, [*range(1000, 1128)]), (b, [*range(1000, 1168)])]
        for path, held in expected:
            assert await found(store, path) == held
        await mark_pass(store)
        for path, held in expected:
            assert await found(store, path) == held
        await store.sync()
        await check_reopened(folder, {}, expected)


@pytest.mark.parametrize("turns", [0, 1, 3, 6, 12, 25])
async def test_a_mark_pass_in_the_middle_of_a_checkpoint_loses_no_removal(turns):
    """remove, checkpoint half done, pass, retire, finish, recover."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await insert(store, A)
        await store.checkpoint()
        await remove(store, A, 70)
        checkpoint = asyncio.create_task(store.checkpoint())
        for _ in range(turns):
            await asyncio.sleep(0)
        await mark_pass(store)
        await checkpoint
        assert store.stats().markers == 0
        await check_reopened(folder, {}, [(A, [*range(70)])])
        await store.checkpoint()
        await check_reopened(folder, {}, [(A, [*range(70)])])


@pytest.mark.parametrize("turns", range(0, 120, 8))
async def test_a_removal_in_the_middle_of_a_compaction_holds(monkeypatch, turns):
    """A removal between compaction's read of a record and its copy."""
    options = {"log_file_bytes": small_files(monkeypatch)}
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), **options) as store:
        await insert(store, A)
        await fill_with_dead(store, 2000)
        compaction = asyncio.create_task(store.compact())
        for _ in range(turns):
            await asyncio.sleep(0)
        await remove(store, A, 100)
        await compaction
        assert await found(store, A) == [*range(100)]
        await store.sync()
        await check_reopened(folder, options, [(A, [*range(100)])])
        await insert(store, A, 5000)
        assert await found(store, A) == [*range(100), *range(5100, 5208)]


@pytest.mark.parametrize("places", [(100, 50), (50, 100), (30, 3)])
async def test_of_two_markers_on_a_path_the_shallower_counts(places):
    """Two markers on one path, the older one deeper, and the other way round."""
    folder, least = MemoryFolder(), min(places)
    async with memory_store(folder.reopen()) as store:
        await insert(store, A)
        for place in places:
            await remove(store, A, place)
        assert await found(store, A) == [*range(least)]
        await insert(store, A[: least + 20], 3000)
        expected = [(A, [*range(least), *range(3000 + least, 3020 + least)])]
        assert await found(store, A) == expected[0][1]
        await mark_pass(store)
        assert await found(store, A) == expected[0][1]
        await check_reopened(folder, {}, expected)


async def test_a_truncation_and_a_longer_insertion_are_replayed_in_their_order():
    """A truncation, a re-insertion that supersedes, replay from the log alone."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await insert(store, A[:20])
        await insert(store, A[:40])
        await store.namespace("m").truncate(A, blocks=10)
        await insert(store, A[:15], 2000)
        await insert(store, A[:30], 3000)
        expected = [(A, [*range(10), *range(2010, 2015), *range(3015, 3030)])]
        assert await found(store, A) == expected[0][1]
        await store.sync()
        await check_reopened(folder, {}, expected)


async def test_a_damaged_owner_in_the_middle_of_a_window_with_the_next_window_there():
    folder, b = MemoryFolder(), [*A[:20], *range(500, 700)]
    async with memory_store(folder.reopen(), cache_bytes=0) as store:
        await insert(store, A)
        await store.sync()
        before = len(segments(folder, logs(folder)[0]))
        await insert(store, b, 1000)
    # The record that has block 20 of B: the first of the second insertion.
    flip(folder, logs(folder)[0], segments(folder, logs(folder)[0])[before] + 200)
    async with memory_store(folder.reopen(), cache_bytes=0) as store:
        expected = [*range(20), *range(1020, 1220)]
        held = await found(store, b)
        assert held == expected[: len(held)]
        assert await found(store, A) == [*range(208)]
        await insert(store, b, 1000)
        assert await found(store, b) == expected


async def test_a_root_is_compacted_twice_after_a_branch(monkeypatch):
    options = {"log_file_bytes": small_files(monkeypatch)}
    folder, b = MemoryFolder(), [*A[:20], *range(500, 620)]
    expected = [(A, [*range(208)]), (b, [*range(20), *range(1020, 1140)])]
    async with memory_store(folder.reopen(), **options) as store:
        await insert(store, A)
        await insert(store, b, 1000)
        first = logs(folder)[0]
        for again in range(2):
            await fill_with_dead(store, 2000 + 100 * again)
            await store.compact()
            for path, held in expected:
                assert await found(store, path) == held
            await check_reopened(folder, options, expected)
        assert first not in logs(folder)
