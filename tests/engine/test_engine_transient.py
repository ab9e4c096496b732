"""Errors of the system that pass must not cost what was synced; and a store that runs out of slots says so."""

from __future__ import annotations

import contextlib
import errno

import numpy as np
import pytest

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import Fault, FaultyFolder, MemoryFolder

ROUTINGS_TOO = True

SEQUENCES = 130


def ids_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (64, 16), dtype=np.uint8)


async def build() -> MemoryFolder:
    """A store of several log files whose newest file was not sealed."""
    folder = MemoryFolder()
    store = await sarpstore.open(folder.reopen(), log_file_bytes=1 << 20, recovery_ms_target=600_000)
    rows = np.zeros(64, sarpstore.LOCATION)
    for number in range(SEQUENCES):
        await store.namespace("x").insert_ids(ids_of(number), rows)
        if number % 10 == 0:
            await store.sync()
    await store.sync()
    image = folder.clone()
    await store.close()
    return image


async def count(folder: MemoryFolder) -> int:
    async with sarpstore.open(folder, read_only=True) as store:
        x = store.namespace("x")
        return sum([(await x.match_ids(ids_of(number))).blocks == 64 for number in range(SEQUENCES)])


@pytest.mark.parametrize("operation", ["open", "read"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
async def test_an_error_that_passes_while_opening_loses_nothing(operation, code):
    built = await build()
    for after in range(40):
        folder = built.clone()
        faulty = FaultyFolder(folder.reopen(), [Fault(operation, after=after, errno=code, times=1)])
        with contextlib.suppress(sarpstore.StorageError):  # refused is as good as read at the second try
            async with sarpstore.open(faulty):
                pass
        assert await count(folder.reopen()) == SEQUENCES, f"call {after} failed"
        if not faulty.injected:
            break


async def insert_synced(store: sarpstore.Store, numbers: range) -> int:
    """Insert and sync one sequence after another; how many were acknowledged when the slots ran out."""
    for done, number in enumerate(numbers):
        try:
            await store.namespace("x").insert_ids(ids_of(number), np.zeros(64, sarpstore.LOCATION))
            await store.sync()
        except sarpstore.SarpError as error:
            assert "all 3 log files" in str(error)  # noqa: PT017 - each error of many calls
            return done
    raise AssertionError("the slots never ran out")


async def test_running_out_of_slots_is_one_clear_error_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(fmt, "SLOT_MAX", 2)
    folder = MemoryFolder()
    store = await sarpstore.open(folder.reopen(), log_file_bytes=1 << 20)
    done = await insert_synced(store, range(5000))
    assert done > 200
    for number in (0, done - 1):
        assert (await store.namespace("x").match_ids(ids_of(number))).blocks == 64
    assert await insert_synced(store, range(9000, 9010)) == 0
    with pytest.raises(sarpstore.SarpError):
        await store.close()
    async with sarpstore.open(folder.reopen(), read_only=True) as reader:
        for number in (0, done // 2, done - 1):
            assert (await reader.namespace("x").match_ids(ids_of(number))).blocks == 64
    with pytest.raises(sarpstore.LimitError, match="read_only=True"):
        await sarpstore.open(folder.reopen())


@pytest.mark.parametrize("name", ["000000ffffffffff.log", "ffffffffffffffff.log", "0000010000000000.images"])
async def test_files_with_impossible_numbers_are_not_ours_or_one_clear_error(name):
    folder = await build()
    folder.create(name).close()
    try:
        async with sarpstore.open(folder.reopen()) as store:
            await store.namespace("x").insert_ids(ids_of(7000), np.zeros(64, sarpstore.LOCATION))
    except sarpstore.LimitError as error:
        assert name in str(error)  # noqa: PT017 - either is right
    assert await count(folder.reopen()) == SEQUENCES
