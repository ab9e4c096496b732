"""`sarpstore.published_stats`: what another process may read of a store that is open elsewhere."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import sarpstore


async def test_a_closed_stores_last_statistics_are_what_it_held(tmp_path):
    async with sarpstore.open(tmp_path) as store:
        await store.namespace("x").insert(np.arange(160), np.zeros(10, sarpstore.LOCATION))
        await store.sync()
        held = store.stats().blocks
    published = await sarpstore.published_stats(tmp_path)
    assert published.stats.blocks == held == 10
    assert published.stats.log_bytes > 0
    assert published.process == os.getpid()
    assert abs(published.published_ms / 1e3 - time.time()) < 60


async def test_nothing_published_and_damaged_statistics_are_one_clear_error_each(tmp_path):
    with pytest.raises(sarpstore.NotAStoreError, match="no writer has published"):
        await sarpstore.published_stats(tmp_path)
    async with sarpstore.open(tmp_path):
        pass
    path = tmp_path / "stats"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(sarpstore.CorruptionError, match="stats"):
            await sarpstore.published_stats(tmp_path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((sarpstore.CorruptionError, sarpstore.VersionError), match="stats"):
            await sarpstore.published_stats(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(sarpstore.StorageError, match=r"read of .*stats failed"):
        await sarpstore.published_stats(tmp_path)
