"""Dynamo's RadixTree beside this store with everything in memory: batches of matches of known sequences of ids.

Both are fed in their native form, made beforehand: ours one `match_many_ids` a batch, for lengths and for locations;
Dynamo one `find_matches` a query, which is all that its Python class has. Memory a block is the growth of the resident
set while the store was filled, inserted sequences included only where the engine keeps them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import sarpstore
from sarpstore_tools.bench.compare.engine import NotAvailableError
from sarpstore_tools.bench.compare.measure import resources, settle
from sarpstore_tools.bench.compare.model import CachedJob, CachedResult
from sarpstore_tools.bench.shapes import locations_of, random_ids, wrong_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.bench.shapes import Ids

CACHED_ENGINES = ("divergence", "divergence-length", "dynamo")

CACHE_BYTES_A_BLOCK = 40
"""A full segment takes 32 bytes a block, and pages are not quite full."""

SEQUENCE_BLOCKS = 4096
RESERVE_BYTES = 64 << 20


def sequences(blocks: int) -> Iterator[Ids]:
    """Random sequences of 4,096 blocks that share nothing, from a seed; the last is cut."""
    rng = np.random.default_rng(7)
    for begin in range(0, blocks, SEQUENCE_BLOCKS):
        yield random_ids(rng, SEQUENCE_BLOCKS)[: blocks - begin]


def queries_of(job: CachedJob) -> list[Ids]:
    """The first `query_blocks` blocks of as many sequences, one after the other where there are too few."""
    rng = np.random.default_rng(8)
    count = job.blocks // SEQUENCE_BLOCKS
    if not count:
        raise NotAvailableError(f"fewer than {SEQUENCE_BLOCKS} blocks")
    wanted = rng.integers(0, count, job.queries).tolist()
    heads = {i: ids[: job.query_blocks].copy() for i, ids in enumerate(sequences(job.blocks)) if i in set(wanted)}
    return [heads[i] for i in wanted]


async def run_cached(job: CachedJob) -> CachedResult:
    """Fill, then match batch after batch."""
    queries = queries_of(job)
    if job.engine == "dynamo":
        return _dynamo(job, queries)
    return await _ours(job, queries, locations=job.engine == "divergence")


async def _ours(job: CachedJob, queries: list[Ids], *, locations: bool) -> CachedResult:
    settle()
    before = resources()
    cache_bytes = CACHE_BYTES_A_BLOCK * job.blocks + RESERVE_BYTES
    async with sarpstore.open(Path(job.folder), cache_bytes=cache_bytes) as store:
        namespace = store.namespace("bench")
        for ids in sequences(job.blocks):
            await namespace.insert_ids(ids, locations_of(ids))
        await store.sync()
        # Every page is read once, so that it is cached.
        for ids in sequences(job.blocks):
            await namespace.match_ids(ids)
        settle()
        rss = resources().rss_bytes - before.rss_bytes
        batch: list[tuple[Any, Ids]] = [(namespace, ids) for ids in queries]
        for match, ids in zip(await store.match_many_ids(batch), queries, strict=True):
            assert not wrong_answer(match, ids, len(ids), len(ids))
        reads, rates, wrong = store.stats().reads, [], 0
        for _ in range(job.repeats):
            began = time.perf_counter()
            for _ in range(job.rounds):
                matches = await store.match_many_ids(batch, locations=locations)
            rates.append(job.rounds * len(queries) / (time.perf_counter() - began))
            wrong += sum(match.blocks != job.query_blocks for match in matches)
        stats = store.stats()
    if stats.reads != reads:
        raise NotAvailableError("not everything was cached")
    return CachedResult(
        rates=rates,
        blocks=stats.blocks,
        rss_bytes=rss,
        directory_bytes=stats.directory_bytes,
        resident_bytes=stats.resident_bytes,
        wrong=wrong,
    )


def _dynamo(job: CachedJob, queries: list[Ids]) -> CachedResult:
    try:
        from sarpstore_tools.bench.compare import dynamo
    except ImportError as error:
        raise NotAvailableError(f"not installed here: {error}") from error
    batch = [dynamo.hashes_of(ids) for ids in queries]
    tree = dynamo.new_tree()
    tree.find_matches(batch[0])
    settle()
    before = resources()
    for number, ids in enumerate(sequences(job.blocks)):
        tree.apply_event(dynamo.WORKER, dynamo.stored_event(number, None, dynamo.hashes_of(ids)))
    settle()
    rss = resources().rss_bytes - before.rss_bytes
    rates, wrong = [], 0
    for _ in range(job.repeats):
        began = time.perf_counter()
        for _ in range(job.rounds):
            found = [tree.find_matches(hashes) for hashes in batch]
        rates.append(job.rounds * len(batch) / (time.perf_counter() - began))
        wrong += sum(max(each.scores.values(), default=0) != job.query_blocks for each in found)
    return CachedResult(rates=rates, blocks=job.blocks, rss_bytes=rss, wrong=wrong)
