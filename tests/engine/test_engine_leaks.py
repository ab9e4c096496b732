"""Nothing stays open, whenever an open, refresh or close is cancelled; and arrays are the caller's again at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

ROUNDS = 60


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _ids(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 16), np.uint8)


async def _filled(path: Path) -> None:
    async with sarpstore.open(path) as store:
        namespace = store.namespace("m")
        for seed in range(20):
            await namespace.insert_ids(_ids(200, seed), np.zeros(200, sarpstore.LOCATION))


async def _cut_short(call: Coroutine[Any, Any, Any], turns: int) -> Any:
    """What the call returns, or None if it was cancelled after so many turns of the loop."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None


async def _opened(path: Path, **options: Any) -> sarpstore.Store:
    return await sarpstore.open(path, **options)


@pytest.mark.parametrize("io", ["auto", "threads"])
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_cancelled_open_leaves_nothing_open(tmp_path: Path, io: str, read_only: bool) -> None:
    await _filled(tmp_path / "store")
    rng = random.Random(io + str(read_only))
    before = _open_descriptors()
    for _ in range(ROUNDS):
        store = await _cut_short(_opened(tmp_path / "store", io=io, read_only=read_only), rng.randrange(1, 400))
        if store is not None:
            await store.close()
    await asyncio.sleep(0.05)
    assert _open_descriptors() <= before


async def test_a_cancelled_refresh_gives_up_the_old_state(tmp_path: Path) -> None:
    await _filled(tmp_path / "store")
    rng = random.Random(3)
    async with sarpstore.open(tmp_path / "store", read_only=True) as store:
        for _ in range(ROUNDS):
            await _cut_short(store.refresh(), rng.randrange(1, 200))
        assert (await store.namespace("m").match_ids(_ids(200, 7))).blocks == 200
        await store.refresh()
        await asyncio.sleep(0.05)
        assert _open_descriptors() < 60
    await asyncio.sleep(0.05)


async def test_a_cancelled_close_is_gone_on_with(tmp_path: Path) -> None:
    rng = random.Random(5)
    before = _open_descriptors()
    for round_number in range(ROUNDS):
        store = await sarpstore.open(tmp_path / "store")
        namespace = store.namespace("m")
        await namespace.insert_ids(_ids(70, round_number), np.zeros(70, sarpstore.LOCATION))
        matching = asyncio.create_task(namespace.match_ids(_ids(70, max(0, round_number - 30))))
        await _cut_short(store.close(), rng.randrange(1, 60))
        await store.close()
        with contextlib.suppress(sarpstore.SarpError):
            await matching
    await asyncio.sleep(0.05)
    assert _open_descriptors() <= before
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("m")
        held = [(await namespace.match_ids(_ids(70, n))).blocks for n in range(ROUNDS)]
        assert held == [70] * ROUNDS


async def test_a_refresh_waits_for_a_batch_that_has_begun(tmp_path: Path) -> None:
    await _filled(tmp_path / "store")
    async with sarpstore.open(tmp_path / "store", read_only=True, cache_bytes=0) as store:
        namespace = store.namespace("m")
        queries = [(namespace, _ids(200, n % 20)) for n in range(600)]
        for _ in range(5):
            matching = asyncio.create_task(store.match_many_ids(queries))
            await asyncio.sleep(0)
            await store.refresh()
            assert {match.blocks for match in await matching} == {200}


async def test_arrays_in_any_order_of_memory(tmp_path: Path) -> None:
    await _filled(tmp_path / "store")
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("m")
        for arranged in (np.asfortranarray, lambda ids: np.repeat(ids, 2, axis=0)[::2], lambda ids: ids[::-1][::-1]):
            queries = [(namespace, arranged(_ids(200, n))) for n in range(6)]
            for match, (_, ids) in zip(await store.match_many_ids(queries), queries, strict=True):
                assert match.blocks == 200
                np.testing.assert_array_equal(match.ids, ids)
            assert (await namespace.match_ids(queries[0][1])).blocks == 200


async def test_an_array_behind_a_long_list_may_change_at_once(tmp_path: Path) -> None:
    await _filled(tmp_path / "store")
    tokens = np.arange(320, dtype=np.uint32)
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("m")
        await namespace.insert(tokens, np.zeros(20, sarpstore.LOCATION))
        array, ids = tokens.copy(), _ids(200, 3)
        both = [
            asyncio.create_task(store.match_many([(namespace, [1] * 50_000), (namespace, array)])),
            asyncio.create_task(store.match_many_ids([(namespace, [bytes(16)] * 50_000), (namespace, ids)])),
        ]
        await asyncio.sleep(0)
        array[:] = 7
        ids[:] = 7
        assert [[match.blocks for match in matches] for matches in await asyncio.gather(*both)] == [[0, 20], [0, 200]]
