"""Cancelled tasks: what the end of `asyncio.run`, and impatient callers, do to a store must not hang or lose it."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

import sarpstore
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True

DURABILITIES = ("interval", "always", "never")


def rows(count: int) -> np.ndarray:
    return np.zeros(count, sarpstore.LOCATION)


async def matched(folder: MemoryFolder, count: int) -> list[int]:
    async with sarpstore.open(folder, read_only=True) as store:
        x = store.namespace("x")
        return [(await x.match([number] * 16 * 5)).blocks for number in range(count)]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_the_end_of_asyncio_run_closes_a_store_that_a_task_has_open(durability):
    folder = MemoryFolder()
    done = 0

    async def use(started: asyncio.Event) -> None:
        nonlocal done
        async with sarpstore.open(folder.reopen(), durability=durability) as store:
            while True:
                await store.namespace("x").insert([done] * 16 * 5, rows(5))
                done += 1
                if done == 20:
                    started.set()
                await asyncio.sleep(0)

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(use(started))
        await started.wait()
        assert not task.done()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert asyncio.run(matched(folder.reopen(), done)) == [5] * done


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_store_goes_on_when_all_other_tasks_are_cancelled(durability):
    folder = MemoryFolder()
    store = await sarpstore.open(folder.reopen(), durability=durability)
    x = store.namespace("x")
    for number in range(30):
        await x.insert([number] * 16 * 5, rows(5))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if number % 7 == 0:
            await asyncio.wait_for(store.sync(), 10)
        if number % 11 == 0:
            await asyncio.wait_for(store.checkpoint(), 10)
    await asyncio.wait_for(store.close(), 10)
    assert await matched(folder.reopen(), 30) == [5] * 30


async def test_a_close_that_was_cut_short_is_gone_on_with():
    for steps in range(12):
        folder = MemoryFolder()
        store = await sarpstore.open(folder.reopen())
        await store.namespace("x").insert([0] * 16 * 5, rows(5))
        closing = asyncio.create_task(store.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await asyncio.wait_for(store.close(), 10)
        assert await matched(folder.reopen(), 1) == [5]
        async with sarpstore.open(folder.reopen()):
            pass


async def test_few_descriptors_cost_no_answer(tmp_path, monkeypatch):
    from sarpstore._engine import state

    async with sarpstore.open(tmp_path, log_file_bytes=1 << 20, cache_bytes=0) as store:
        x = store.namespace("x")
        ids = np.random.default_rng(0).integers(0, 256, (1500, 64, 16), dtype=np.uint8)
        for each in ids:
            await x.insert_ids(each, rows(64))
    monkeypatch.setattr(state, "_files_max", lambda: 2)
    for read_only in (False, True):
        async with sarpstore.open(tmp_path, cache_bytes=0, read_only=read_only) as store:
            x = store.namespace("x")
            together = await store.match_many_ids([(x, each) for each in ids[::5]])
            assert {match.blocks for match in together} == {64}
            alone = await asyncio.gather(*(x.match_ids(each) for each in ids[::7]))
            assert {match.blocks for match in alone} == {64}
            assert store.stats().damaged_records == 0
