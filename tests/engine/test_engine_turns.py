"""Long inputs leave the event loop its turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

TOKENS = 320_000
BLOCKS = TOKENS // 16


async def _turns_during(call: Awaitable[Any]) -> tuple[int, Any]:
    """Turns that another task gets until the call returns, and what it returns."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns
    try:
        result = await call
    finally:
        counter.cancel()
    return turns - before, result


async def test_lists_are_converted_in_turns(tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 1 << 17, TOKENS).tolist()
    rows = [(i, 1, 2, 3) for i in range(BLOCKS)]
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("m")
        turns, new = await _turns_during(namespace.insert(tokens, rows))
        assert new == BLOCKS
        assert turns >= TOKENS // 8192 + BLOCKS // 8192
        turns, match = await _turns_during(namespace.match(tokens))
        assert turns >= TOKENS // 8192
        assert match.blocks == BLOCKS
        assert match.locations["address"].tolist() == list(range(BLOCKS))
        assert (await namespace.match(np.array(tokens))).blocks == BLOCKS


@pytest.mark.parametrize("width", [8, 16, 20, 64])
async def test_lists_of_keys_are_converted_in_turns(tmp_path: Path, width: int) -> None:
    data = np.random.default_rng(width).integers(0, 256, (BLOCKS, width), np.uint8)
    keys = [row.tobytes() for row in data]
    rows = np.zeros(BLOCKS, sarpstore.LOCATION)
    rows["address"] = np.arange(BLOCKS)
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("engine")
        call = namespace.insert_ids(keys, rows)
        turns, new = await _turns_during(call)
        assert new == BLOCKS
        assert turns >= BLOCKS // 8192
        match = await namespace.match_ids(data)  # the array is the same keys
        assert match.blocks == BLOCKS
        np.testing.assert_array_equal(match.locations, rows)


async def test_an_array_beside_a_long_list_may_change_at_once(tmp_path: Path) -> None:
    keys = [i.to_bytes(16, "big") for i in range(BLOCKS)]
    rows = np.zeros(BLOCKS, sarpstore.LOCATION)
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("engine")
        call = asyncio.create_task(namespace.insert_ids(keys, rows))
        await asyncio.sleep(0)
        rows["address"] = 7
        await call
        assert not (await namespace.match_ids(keys)).locations["address"].any()


async def test_keys_of_two_lengths_are_refused_wherever_the_list_is_cut(tmp_path: Path) -> None:
    keys = [bytes(20)] * 8192 + [bytes(16)] * 10
    async with sarpstore.open(tmp_path / "store") as store:
        with pytest.raises(sarpstore.InputError, match="differ in length"):
            await store.namespace("engine").match_ids(keys)


async def test_a_bad_token_is_named_by_its_place_in_the_whole_list(tmp_path: Path) -> None:
    tokens = [1] * 20_000
    tokens[19_000] = -5
    async with sarpstore.open(tmp_path / "store") as store:
        with pytest.raises(sarpstore.InputError, match=r"tokens\[19000\] = -5"):
            await store.namespace("m").match(tokens)


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
async def test_a_long_match_leaves_the_loop_its_turns(tmp_path: Path, routing: str, cache_bytes: int) -> None:
    """300 windows: more than one kernel call goes through, with and without reads in between."""
    ids = np.random.default_rng(2).integers(0, 256, (BLOCKS, 16), np.uint8)
    rows = np.zeros(BLOCKS, sarpstore.LOCATION)
    rows["address"] = np.arange(BLOCKS)
    async with sarpstore.open(tmp_path / "store", routing=routing) as store:
        await store.namespace("m").insert_ids(ids, rows)
    async with sarpstore.open(tmp_path / "store", cache_bytes=cache_bytes) as store:
        namespace = store.namespace("m")
        for asked in (BLOCKS, 128 * 64, 129 * 64, 128 * 64 + 1, 256 * 64 + 63):
            turns, match = await _turns_during(namespace.match_ids(ids[:asked]))
            assert match.blocks == asked
            assert turns >= (asked - 64) // (128 * 64)
            np.testing.assert_array_equal(match.locations, rows[:asked])
        other = np.concatenate([ids[:15_000], ids[:3000]])  # leaves what is held in window 234
        match = await namespace.match_ids(other)
        assert match.blocks == 15_000
        np.testing.assert_array_equal(match.locations, rows[:15_000])
        batch = await store.match_many_ids([(namespace, ids), (namespace, ids[:70]), (namespace, other)])
        assert [each.blocks for each in batch] == [BLOCKS, 70, 15_000]
        for each in batch:
            np.testing.assert_array_equal(each.locations, rows[: each.blocks])


async def test_damage_far_down_a_long_match(tmp_path: Path) -> None:
    """What lies behind a damaged record is claimed as a length, and not with locations."""
    ids = np.random.default_rng(3).integers(0, 256, (BLOCKS, 16), np.uint8)
    async with sarpstore.open(tmp_path / "store") as store:
        await store.namespace("m").insert_ids(ids, np.zeros(BLOCKS, sarpstore.LOCATION))
    window = 40
    (log,) = (tmp_path / "store").glob("*.log")
    data = bytearray(log.read_bytes())
    at = data.index(ids[window * 64].tobytes())
    data[at] ^= 1
    log.write_bytes(data)
    async with sarpstore.open(tmp_path / "store") as store:
        namespace = store.namespace("m")
        match = await namespace.match_ids(ids)
        assert match.blocks == window * 64
        assert (await namespace.match_ids(ids, locations=False)).blocks == BLOCKS
        assert store.stats().damaged_records == 1
        # Inserting again mends it.
        assert await namespace.insert_ids(ids, np.zeros(BLOCKS, sarpstore.LOCATION)) > 0
        assert (await namespace.match_ids(ids)).blocks == BLOCKS


@pytest.mark.parametrize("who", ["match", "insertion"])
async def test_many_dead_candidates_are_taken_out_in_turns(who: str, tmp_path: Path) -> None:
    """Of the published method: what a removal shortened stands at a window's points until a match finds it there."""
    branches, blocks, common, removed = 300, 40, 20, 10
    rng = np.random.default_rng(5)
    stem = rng.integers(0, 256, (common, 16), np.uint8)
    rows = np.zeros(blocks, sarpstore.LOCATION)
    rows["address"] = np.arange(blocks)
    async with sarpstore.open(tmp_path / "store", routing="sarp") as store:
        namespace = store.namespace("m")
        paths = [np.vstack([stem, rng.integers(0, 256, (blocks - common, 16), np.uint8)]) for _ in range(branches)]
        for path in paths:
            await namespace.insert_ids(path, rows)
        await namespace.remove_ids(stem[removed : removed + 1])
        await store.sync()
        held = removed
        if who == "match":
            turns, _ = await _turns_during(namespace.match_ids(paths[0]))
        else:
            turns, new = await _turns_during(namespace.insert_ids(paths[0], rows))
            assert new == blocks - removed
            assert (await namespace.match_ids(paths[0])).blocks == blocks
            held = common
        assert turns > branches // 20
        for path in paths[50::50]:
            match = await namespace.match_ids(path)
            assert match.blocks == held
            assert match.locations["address"].tolist() == list(range(held))
