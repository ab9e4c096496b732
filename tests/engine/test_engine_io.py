"""A store on each I/O backend, read directly or through the system's cache, with few files open and little memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from store_helpers import WaitingFolder

import sarpstore
from sarpstore._files import Fault, FaultyFolder, MemoryFolder, RealFolder
from sarpstore._io import UringBackend

try:
    UringBackend(1).stop()
    BACKENDS = ["threads", "uring"]
except sarpstore.OptionError:
    BACKENDS = ["threads"]


def windows(count, seed=0):
    data = np.random.default_rng(seed).bytes(16 * 64 * count)
    return np.frombuffer(data, np.uint8).reshape(count, 64, 16)


def rows_of(ids):
    return np.ascontiguousarray(ids[:, : sarpstore.LOCATION.itemsize]).view(sarpstore.LOCATION).reshape(-1)


async def filled(folder, ids, **options):
    async with sarpstore.open(folder, log_file_bytes=1 << 20, **options) as store:
        for each in ids:
            await store.namespace("x").insert_ids(each, rows_of(each))


async def check(store, ids, order):
    x = store.namespace("x")
    for start in range(0, len(order), 100):
        some = [ids[i] for i in order[start : start + 100]]
        for match, each in zip(await store.match_many_ids([(x, each) for each in some]), some, strict=True):
            assert match.blocks == 64
            assert np.array_equal(match.locations, rows_of(each))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("direct", [True, False, "auto"])
@pytest.mark.parametrize("io", BACKENDS)
async def test_every_backend_reads_what_was_written(tmp_path, io, direct):
    (tmp_path / "probe").write_bytes(bytes(4096))
    folder = RealFolder(tmp_path)
    takes = folder.takes_direct()
    folder.close()
    (tmp_path / "probe").unlink()
    if direct is True and not takes:
        pytest.skip("this file system has no direct reads")
    ids = windows(3000)
    options = {"io": io, "direct_io": direct, "cache_bytes": 64 << 10, "queue_depth": 16}
    order = np.random.default_rng(1).permutation(3000)
    await filled(tmp_path, ids, **options)
    async with sarpstore.open(tmp_path, **options) as store:
        stats = store.stats()
        assert (stats.io_backend, stats.direct_io) == (io, takes if direct == "auto" else direct)
        await asyncio.gather(check(store, ids, order), check(store, ids, order[::-1]))
        new = windows(100, seed=5)
        for each in new:  # read again while, and just after, they are written
            await store.namespace("x").insert_ids(each, rows_of(each))
            await check(store, new[:1], [0])
        await store.sync()
        await check(store, new, range(100))
        stats = store.stats()
        assert stats.damaged_records == 0
        assert stats.cache_bytes <= 64 << 10
        assert store._core.state.scheduler.table.c.pages_live == 0


@pytest.mark.parametrize("io", BACKENDS)
async def test_more_log_files_than_may_be_open(tmp_path, io, monkeypatch):
    monkeypatch.setattr("sarpstore._engine.state._files_max", lambda: 2)
    ids = windows(4000)
    await filled(tmp_path, ids)
    async with sarpstore.open(tmp_path, io=io, cache_bytes=0) as store:
        order = np.random.default_rng(2).permutation(4000)
        await asyncio.gather(*(check(store, ids, order[start::7]) for start in range(7)))
        assert len(store._core.state.files._logs) <= 2
        assert store.stats().damaged_records == 0


async def test_what_is_cached_takes_no_turn_of_the_backend(tmp_path):
    ids = windows(20)
    await filled(tmp_path, ids)
    async with sarpstore.open(tmp_path) as store:
        await check(store, ids, range(20))
        backend = store._core.state.scheduler.backend
        turns = []
        backend.turn = lambda: turns.append(1)
        x, matching = store.namespace("x"), store._core.state.matcher
        matching._turn_ms = float("inf")
        coroutine = store.match_many_ids([(x, each) for each in ids])
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        assert [match.blocks for match in ended.value.value] == [64] * 20
        assert turns == []


async def test_cancelled_matches_leave_no_page_behind():
    folder = WaitingFolder(part=".log")
    ids = windows(300)
    await filled(folder.inner.reopen(), ids)
    async with sarpstore.open(folder, cache_bytes=0) as store:
        await until(lambda: not store.stats().unloaded_partitions)
        folder.reads.clear()
        tasks = [asyncio.ensure_future(check(store, ids, range(n, 300, 3))) for n in range(3)]
        table = store._core.state.scheduler.table.c
        await until(lambda: table.pages_live > 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert table.pages_live > 0
        folder.reads.set()
        await check(store, ids, range(300))
        await until(lambda: table.pages_live == 0)


async def test_an_error_that_passes_is_the_callers_to_know():
    inner = MemoryFolder()
    ids = windows(50)
    await filled(inner.reopen(), ids)
    folder = FaultyFolder(inner)
    async with sarpstore.open(folder, cache_bytes=0) as store:
        await check(store, ids, range(10))
        folder.inject(Fault("read", errno=12, name_prefix="", times=None))
        with pytest.raises(sarpstore.StorageError, match=r"\.log failed: Cannot allocate memory"):
            await check(store, ids, range(50))
        folder.heal()
        await check(store, ids, range(50))
        assert store.stats().damaged_records == 0


async def test_a_log_file_is_open_for_reading_before_anybody_asks_for_it(tmp_path):
    ids = windows(600)
    async with sarpstore.open(tmp_path / "store", log_file_bytes=1 << 20) as store:
        for each in ids:
            await store.namespace("x").insert_ids(each, rows_of(each))
        await store.sync()
        state = store._core.state
        slots = [s for number, s in state.directory.base.files().items() if number <= state.writer.newest_file]
        assert len(slots) > 1
        await until(lambda: all(map(state.scheduler.attached, slots)))
