"""`sarpstore bench core`: hashing, inserting and matching on one core."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any, Literal

import click
import mmh3
import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import event_loop, this_machine
from sarpstore_tools.bench.shapes import Ids, locations_of, random_ids, wrong_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCK_TOKENS = 16
WINDOW_BLOCKS = 64
QUERIES = 64
QUERY_BLOCKS = 256
MATCH_ROUNDS = 20
"""Batches of 64 queries in one measurement of matching."""

HASH_TARGETS_NS: dict[Literal["sha256", "mmh3"], float] = {"sha256": 150.0, "mmh3": 25.0}
INSERT_TARGET = 1e6
MATCH_TARGET_US = 20.0

HASH_REFERENCE_BYTES = {"sha256": 128, "mmh3": 80}
"""Bytes of one long input that cost what a block costs: SHA-256 pads digest and tokens (96 bytes) to two of its blocks;
mmh3 takes 16 and 64 bytes as they are."""

REFERENCES: dict[str, Callable[[bytes], Any]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "mmh3": lambda data: mmh3.mmh3_x64_128_digest(data, 0),
}


@click.command("core", short_help="Hashing, inserting and matching on one core.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements a figure.")
@click.option(
    "--blocks", type=click.IntRange(min=64), default=1_000_000, show_default=True, help="Blocks to insert and to hash."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Keep all threads on one core.")
@store_option
@report_options
@click.pass_context
def core_command(
    context: click.Context, repeats: int, blocks: int, pin: bool, store: Path | None, json_file: Any, targets: bool
) -> None:
    """Time what one core does, through the public API, in one process with one event loop.

    hash: `namespace.block_ids` over one long input, nanoseconds a block. insert: `insert_ids` of runs of 64 random
    blocks, one awaited after the other, then `sync()`, all timed, durability "interval". match: `match_many_ids` of 64
    queries of 256 blocks whose pages are cached, microseconds a query; every answer is checked outside the timing.
    """
    name, factory = event_loop()
    with work_folder(store) as folder, asyncio.Runner(loop_factory=factory) as runner, contextlib.ExitStack() as pinned:
        machine = this_machine(folder)
        where = pinned.enter_context(one_core(pin))
        references = _references(repeats, blocks)
        figures = list(references.values())
        memcpy_gbs = references["memcpy"].value
        figures += [
            runner.run(_hashing(folder, hash_name, repeats, blocks, references[hash_name].value))
            for hash_name in HASH_TARGETS_NS
        ]
        figures.append(runner.run(_inserting(folder, repeats, blocks, memcpy_gbs)))
        figures += runner.run(_matching(folder, repeats, memcpy_gbs))
    sha_ni = "with SHA-NI" if "sha_ni" in machine.features else "WITHOUT SHA-NI, which this machine lacks"
    method = [
        f"one event loop ({name}) in one thread; {where}; {repeats} measurements a figure, medians are shown",
        (
            f"hash: block_ids over {BLOCK_TOKENS * blocks:,} tokens in one call; ratio to the hash's usual library on "
            f"one long input of as many hashed bytes, in the same run; sha256 {sha_ni}"
        ),
        (
            f"insert: {blocks // WINDOW_BLOCKS:,} insert_ids of {WINDOW_BLOCKS} random blocks into a new store, one "
            'after the other, durability "interval", and the final sync(); ratio to memcpy of ids and locations'
        ),
        (
            f"match: {MATCH_ROUNDS} match_many_ids of {QUERIES} queries of {QUERY_BLOCKS} blocks a measurement; ratio "
            "to memcpy of the queries' ids"
        ),
    ]
    report = Report(command="bench core", machine=machine, method=method, figures=figures)
    finish(context, report, json_file, targets=targets)


@contextlib.contextmanager
def one_core(pin: bool) -> Iterator[str]:
    """Keep this process and the threads it starts on one core, if `pin`; says where they run."""
    allowed = os.sched_getaffinity(0)
    if not pin:
        yield f"its I/O threads may use any of {len(allowed)} cores"
        return
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    try:
        yield f"all threads pinned to core {core}"
    finally:
        os.sched_setaffinity(0, allowed)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _references(repeats: int, blocks: int) -> dict[str, Figure]:
    """memcpy in GB/s over 64 MiB, and each hash's own library in nanoseconds for a block's share of one long input."""
    source = np.ones(64 << 20, np.uint8)
    target = np.zeros_like(source)
    rates = [len(source) / _seconds(lambda: np.copyto(target, source)) / 1e9 for _ in range(repeats)]
    made = {"memcpy": measured("reference: memcpy", "GB/s", rates, more_is_better=True, note="64 MiB")}
    for name, digest in REFERENCES.items():
        data = bytes(blocks * HASH_REFERENCE_BYTES[name])
        spans = [_seconds(lambda d=digest, data=data: d(data)) / blocks * 1e9 for _ in range(repeats)]  # type: ignore[misc]
        note = f"{HASH_REFERENCE_BYTES[name]} bytes of one long input, by {'hashlib' if name == 'sha256' else 'mmh3'}"
        made[name] = measured(f"reference: {name}", "ns", spans, note=note)
    return made


async def _hashing(
    folder: Path, name: Literal["sha256", "mmh3"], repeats: int, blocks: int, reference_ns: float
) -> Figure:
    tokens = np.random.default_rng(0).integers(0, 1 << 17, BLOCK_TOKENS * blocks, np.uint32)
    async with sarpstore.open(folder / f"hash-{name}", hash=name, block_tokens=BLOCK_TOKENS) as store:
        namespace = store.namespace("bench")
        namespace.block_ids(tokens[: 1 << 16])
        spans = [_seconds(lambda: namespace.block_ids(tokens)) / blocks * 1e9 for _ in range(repeats)]
    figure = measured(f"hash {name}", "ns/block", spans, target=HASH_TARGETS_NS[name])
    return _with_ratio(figure, figure.value / reference_ns)


def _with_ratio(figure: Figure, ratio: float) -> Figure:
    return msgspec.structs.replace(figure, ratio=ratio)


async def _inserting(folder: Path, repeats: int, blocks: int, memcpy_gbs: float) -> Figure:
    runs = blocks // WINDOW_BLOCKS
    ids = random_ids(np.random.default_rng(1), WINDOW_BLOCKS * runs)
    rows = locations_of(ids)
    parts = [(ids[i : i + WINDOW_BLOCKS], rows[i : i + WINDOW_BLOCKS]) for i in range(0, len(ids), WINDOW_BLOCKS)]
    rates = []
    for repeat in range(repeats):
        async with sarpstore.open(folder / f"insert-{repeat}", durability="interval") as store:
            namespace = store.namespace("bench")
            began = time.perf_counter()
            for run_ids, run_rows in parts:
                await namespace.insert_ids(run_ids, run_rows)
            await store.sync()
            rates.append(len(ids) / (time.perf_counter() - began))
            assert store.stats().blocks == len(ids)
    figure = measured("insert, runs of 64", "blocks/s", rates, target=INSERT_TARGET, more_is_better=True)
    memcpy_seconds = (ids.itemsize * 16 + rows.itemsize) / (memcpy_gbs * 1e9)
    return _with_ratio(figure, 1 / figure.value / memcpy_seconds)


async def _matching(folder: Path, repeats: int, memcpy_gbs: float) -> list[Figure]:
    rng = np.random.default_rng(2)
    figures = []
    async with sarpstore.open(folder / "match") as store:
        namespace = store.namespace("bench")
        queries: list[tuple[Any, Ids]] = [(namespace, random_ids(rng, QUERY_BLOCKS)) for _ in range(QUERIES)]
        for _, ids in queries:
            await namespace.insert_ids(ids, locations_of(ids))
        await store.sync()
        for match, (_, ids) in zip(await store.match_many_ids(queries), queries, strict=True):
            wrong = wrong_answer(match, ids, QUERY_BLOCKS, QUERY_BLOCKS)
            assert not wrong, wrong
        for locations in (True, False):
            spans = []
            reads = store.stats().reads
            for _ in range(repeats):
                began = time.perf_counter()
                for _ in range(MATCH_ROUNDS):
                    matches = await store.match_many_ids(queries, locations=locations)
                spans.append((time.perf_counter() - began) / (MATCH_ROUNDS * QUERIES) * 1e6)
                assert all(match.blocks == QUERY_BLOCKS for match in matches)
            assert store.stats().reads == reads, "not everything was cached"
            what = "with locations" if locations else "length only"
            figure = measured(f"match, 64 x 256 blocks, {what}", "µs/query", spans, target=MATCH_TARGET_US)
            memcpy_us = QUERY_BLOCKS * 16 / (memcpy_gbs * 1e3)
            figures.append(_with_ratio(figure, figure.value / memcpy_us))
    return figures
