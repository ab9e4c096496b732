"""What `compact()` leaves of a store whose life was insertions and removals."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import AsyncExitStack

import pytest
from compaction_helpers import answers, options, reopened, small_steps, start_of
from store_helpers import locations, logs, memory_store, remove_checkpoints

from sarpstore._compaction import few_removals, settled
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_steps(monkeypatch)


async def test_few_remove_records_are_left_and_nothing_comes_back():
    """They are copied while files are left in which they kill something; when those are gone, they are dropped."""
    rng, folder, asked = random.Random(7), MemoryFolder(), []
    async with memory_store(folder.reopen(), **options()) as store:
        namespace = store.namespace("m")
        for number in range(250):
            path = [number, *(rng.randrange(3) for _ in range(rng.randrange(20, 130)))]
            asked.append((0, path))
            await namespace.insert(path, locations(len(path), number * 1000))
            if rng.random() < 0.7:
                ids = namespace.block_ids(rng.choice(asked)[1])
                for at in range(len(ids) - 1, len(ids) // 3, -8):
                    await namespace.remove_ids(ids[max(0, at - 8) : at])
        before = await answers(store, asked)
        assert 0 < sum(len(found) < len(path) for found, (_, path) in zip(before, asked, strict=True)) < len(asked)
        await store.compact()
        compactor = store._background.maintenance.compactor
        rows = await compactor.rows(start_of(store))
        assert few_removals(rows)
        assert settled(rows, store._core.state.gatherer.file_bytes)
        assert await answers(store, asked) == before
    assert await reopened(folder.clone(), asked) == before
    remove_checkpoints(folder)
    assert await reopened(folder.clone(), asked) == before


def log_bytes(folder: MemoryFolder) -> int:
    return sum(folder.size(name) for name in logs(folder))


@pytest.mark.parametrize("again", [False, True], ids=["the process that wrote it", "a later one"])
async def test_the_only_file_there_is_may_go(again):
    """No checkpoint can start behind it before the next file is there."""
    folder, held = MemoryFolder(), range(300, 310)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(memory_store(folder.reopen(), **options(log_file_bytes=8 << 20)))
        for number in range(310):
            await store.namespace("m").insert([number, *range(63)], locations(64, number))
        for number in range(300):
            await store.namespace("m").truncate([number, *range(63)], blocks=0)
        if again:
            await stack.aclose()
            store = await stack.enter_async_context(memory_store(folder.reopen(), **options(log_file_bytes=8 << 20)))
        await store.sync()
        before = log_bytes(folder)
        await store.compact()
        assert log_bytes(folder) < before // 4
        for number in range(310):
            match = await store.namespace("m").match([number, *range(63)])
            assert match.blocks == (64 if number in held else 0)


async def test_what_is_wholly_live_is_not_written_again():
    """A file that has just been ended is not taken for one that was cut short, behind which others wait."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), **options(log_file_bytes=1 << 20)) as store:
        namespace, compactor = store.namespace("m"), store._background.maintenance.compactor
        for number in range(400):
            await namespace.insert([number, *range(63)], locations(64, number))
        await store.compact()
        for again in range(4):
            for number in range(1000 * again, 1000 * again + 60):
                await namespace.insert([1_000_000 + number, *range(63)], locations(64, number))
                await namespace.truncate([1_000_000 + number, *range(63)], blocks=0)
            await store.compact()
            assert compactor.bytes_copied == 0
            assert store.stats().log_bytes == log_bytes(folder) < 1 << 20


async def test_where_nothing_is_worth_it_no_file_is_made():
    folder = MemoryFolder()
    for _ in range(3):
        async with memory_store(folder.reopen(), **options()) as store:
            await store.compact()
    assert not logs(folder)[1:]
    async with memory_store(folder.reopen(), **options()) as store:
        await store.namespace("m").insert(range(640), locations(640))
    before = logs(folder)
    for _ in range(3):
        async with memory_store(folder.reopen(), **options()) as store:
            await store.compact()
    assert logs(folder) == before


async def test_what_is_written_meanwhile_is_not_taken_up(monkeypatch):
    """Removals and checkpoints go on: it takes the files that were there when it began, or it might never end."""
    rng = random.Random(8)
    async with memory_store(MemoryFolder(), **options()) as store:
        namespace = store.namespace("m")
        paths = [[number, *(rng.randrange(3) for _ in range(63))] for number in range(300)]
        for number, path in enumerate(paths):
            await namespace.insert(path, locations(64, number * 1000))

        async def replace() -> None:
            while True:
                number = rng.randrange(len(paths))
                for at in range(56, -1, -8):
                    await namespace.remove_ids(namespace.block_ids(paths[number])[at : at + 8])
                paths[number][1:] = [rng.randrange(3) for _ in range(63)]
                await namespace.insert(paths[number], locations(64, number * 1000))
                await store.checkpoint()

        starts: list[int] = []
        maintenance = store._background.maintenance
        settle, compact_next = maintenance._settle, maintenance.compactor.compact_next

        async def one_start(progress):
            starts.clear()
            await settle(progress)
            assert len(set(starts)) <= 1

        async def noted(start, eagerness):
            starts.append(start)
            return await compact_next(start, eagerness)

        monkeypatch.setattr(maintenance, "_settle", one_start)
        monkeypatch.setattr(maintenance.compactor, "compact_next", noted)
        for _ in range(150):
            await namespace.truncate(rng.choice(paths), blocks=0)
        replacing = asyncio.create_task(replace())
        await asyncio.wait_for(store.compact(), 60)
        replacing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replacing
