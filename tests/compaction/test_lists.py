"""`sarp`: what compaction leaves of the log still makes the lists that are in memory, states included.

A checkpoint's head may be lost, or one image of many; then postings that no file tells of any more would be missing in
lists that others, by their states, rely on.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from compaction_helpers import compactor_of, options, paths_of, small_steps, start_of
from store_helpers import locations, memory_store, remove_checkpoints

from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

SMALL_LISTS = {"routing": "sarp", "refine_at": 2, "prune_at": 2}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_steps(monkeypatch)


async def lists(store):
    """(postings as (key, point, position), flags by key) of the whole directory."""
    state = store._core.state
    await state.loader.load_all()
    directory, postings, flags = state.directory, set(), {}
    for partition in range(len(directory.partitions)):
        image = np.frombuffer(directory.image(partition).tobytes(), fmt.POSTING_DTYPE)
        for word0, word1 in zip(image["word0"].tolist(), image["word1"].tolist(), strict=True):
            key, reference = word0 >> 16, word1 >> 24
            if not reference:
                flags[key] = word1
                continue
            file_number = int(directory.base.slot_files[reference >> fmt.UNIT_BITS])
            position = file_number << fmt.UNIT_BITS | (reference & ((1 << fmt.UNIT_BITS) - 1))
            postings.add((key, word0 >> 1 & 7, position))
    return postings, flags


async def same_from_the_log_alone(folder, store):
    await store.sync()
    postings, flags = await lists(store)
    image = folder.clone()
    remove_checkpoints(image)
    async with memory_store(image.reopen(), read_only=True, **options(**SMALL_LISTS)) as other:
        assert other.stats().damaged_records == 0
        replayed, their_flags = await lists(other)
    assert postings <= replayed
    held = {key for key, _, _ in postings}
    assert {k: f for k, f in their_flags.items() if k in held} == {k: f for k, f in flags.items() if k in held}
    return len(held & flags.keys())


@pytest.mark.parametrize("seed", range(4))
async def test_the_log_alone_makes_the_lists_that_are_in_memory(seed):
    rng, folder, states = random.Random(seed), MemoryFolder(), 0
    paths = paths_of(rng, 700)
    async with memory_store(folder.reopen(), **options(**SMALL_LISTS)) as store:
        compactor, namespace = compactor_of(store), store.namespace("m")
        for number, path in enumerate(paths):
            await namespace.insert(path, locations(len(path), number * 1000))
            if rng.random() < 0.2:
                old = rng.choice(paths[: number + 1])
                await namespace.truncate(old, blocks=rng.randrange(len(old)))
            if number % 50 == 49:
                await store.sync()
                await store.checkpoint()
                rows = await compactor.rows(start_of(store))
                for row in rng.sample(rows, len(rows) // 2):
                    await compactor.compact_file(row.number)
                states += await same_from_the_log_alone(folder, store)
        assert compactor.files_deleted > 10
    assert states > 50


async def test_what_compaction_carries_on_is_not_taken_for_dead():
    """Or a file of little else would be compacted for ever."""
    rng, folder = random.Random(5), MemoryFolder()
    async with memory_store(folder.reopen(), **options(**SMALL_LISTS)) as store:
        for number, path in enumerate(paths_of(rng, 300)):
            await store.namespace("m").insert(path, locations(len(path), number * 1000))
        await store.sync()
        await store.checkpoint()
        compactor = compactor_of(store)
        rows = {row.number: row for row in await compactor.rows(start_of(store))}
        for number in rows:
            await compactor.compact_file(number)
        assert sum(map(compactor._ledger.carried_bytes, range(max(rows) + 20))) > 0
        await store.sync()
        await store.checkpoint()
        for row in await compactor.rows(start_of(store)):
            assert row.live_bytes >= compactor._ledger.carried_bytes(row.number)
