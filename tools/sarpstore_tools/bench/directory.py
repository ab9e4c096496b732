"""`sarpstore bench directory`: memory of the routing directory, at every size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import event_loop, this_machine
from sarpstore_tools.bench.shapes import SHAPES, Ids, locations_of, random_ids
from sarpstore_tools.bench.sizes import one_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY_BYTES = 16
STEP = 1.15
SAMPLES_A_STEP = 50
"""The slack is looked at this often between two sizes of the table: pages and partitions grow in steps."""

SLACK_TARGET = 1.3
BYTES_A_BLOCK_TARGET = 1.0
SHAPE_BLOCKS = 1_000_000
"""Blocks of the two shapes that bytes a block are measured on, unless --max-entries is less."""


class Slack(msgspec.Struct, frozen=True):
    """The directory's bytes over its entries' own, when it had so many."""

    slack: float
    entries: int


@click.command("directory", short_help="Memory of the routing directory, at every size.")
@click.option("--max-entries", callback=one_size, default="2e6", show_default=True, help="Entries to grow to.")
@click.option("--min-entries", callback=one_size, default="1e4", show_default=True, help="Smallest size that counts.")
@store_option
@report_options
@click.pass_context
def directory_command(
    context: click.Context, max_entries: int, min_entries: int, store: Path | None, json_file: Any, targets: bool
) -> None:
    """Measure the directory's slack and its bytes a block, by `stats()` while a store grows.

    slack: directory_bytes / (16 bytes x entries), while distinct runs of one block are inserted (an entry each), at all
    sizes from --min-entries on. bytes a block: directory_bytes / blocks, for runs of 64 blocks and for families of
    sequences that branch inside windows.
    """
    if min_entries > max_entries:
        raise click.UsageError(f"--max-entries {max_entries:,} is less than --min-entries {min_entries:,}")
    name, factory = event_loop()
    with work_folder(store) as folder, asyncio.Runner(loop_factory=factory) as runner:
        figures = runner.run(_slack(folder / "slack", min_entries, max_entries))
        blocks = min(SHAPE_BLOCKS, max_entries * 64)
        figures.append(runner.run(_bytes_a_block(folder / "runs", "runs of 64 blocks", blocks, _runs())))
        branching = SHAPES["branching"](np.random.default_rng(2))
        figures.append(runner.run(_bytes_a_block(folder / "branching", "branching families", blocks, branching)))
        machine = this_machine(folder)
    method = [
        (
            f"slack: stats() about {SAMPLES_A_STEP} times between two sizes of the table ({STEP}x apart), the greatest "
            f'of all from {min_entries:,} entries on counts; distinct runs of one block, durability "never", {name}'
        ),
        "bytes a block: directory_bytes over the store's own count of unique blocks, slack included",
    ]
    report = Report(command="bench directory", machine=machine, method=method, figures=figures)
    finish(context, report, json_file, targets=targets)


async def _slack(path: Path, min_entries: int, max_entries: int) -> list[Figure]:
    """The greatest slack of all, then of each step."""
    rng = np.random.default_rng(0)
    sizes = [min_entries]
    while sizes[-1] < max_entries:
        sizes.append(min(max_entries, max(sizes[-1] + 1, int(sizes[-1] * STEP))))
    found: list[tuple[Slack, list[Slack]]] = []
    async with sarpstore.open(path, durability="never") as store:
        namespace = store.namespace("bench")
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("growing the directory", total=max_entries)
            await _grow(namespace, rng, min_entries)
            for size in sizes:
                seen = [_slack_of(store)]
                while (entries := store.stats().segments) < size:
                    await _grow(namespace, rng, min(size - entries, max(1, size // (8 * SAMPLES_A_STEP))))
                    seen.append(_slack_of(store))
                found.append((seen[-1], seen))
                progress.update(task, completed=size)
    worst = max((one for _, seen in found for one in seen), key=lambda one: one.slack)
    greatest = Figure(
        name="greatest slack",
        unit="",
        value=worst.slack,
        least=worst.slack,
        greatest=worst.slack,
        target=SLACK_TARGET,
        note=f"at {worst.entries:,} entries",
    )
    return [greatest, *(_step(at, seen) for at, seen in found)]


def _step(at: Slack, seen: list[Slack]) -> Figure:
    slacks = [one.slack for one in seen]
    return Figure(
        name=f"slack at {at.entries:,}",
        unit="",
        value=at.slack,
        least=min(slacks),
        greatest=max(slacks),
        repeats=len(seen),
        note="spread: since the size before",
    )


async def _grow(namespace: sarpstore.Namespace, rng: np.random.Generator, entries: int) -> None:
    ids = random_ids(rng, entries)
    rows = locations_of(ids)
    for i in range(entries):
        await namespace.insert_ids(ids[i : i + 1], rows[i : i + 1])


def _slack_of(store: sarpstore.Store) -> Slack:
    stats = store.stats()
    return Slack(stats.directory_bytes / (ENTRY_BYTES * stats.segments), stats.segments)


def _runs() -> Iterator[Ids]:
    rng = np.random.default_rng(1)
    while True:
        yield random_ids(rng, 64)


async def _bytes_a_block(path: Path, what: str, blocks: int, sequences: Iterator[Ids]) -> Figure:
    async with sarpstore.open(path, durability="never") as store:
        namespace = store.namespace("bench")
        held = 0
        for ids in sequences:
            held += await namespace.insert_ids(ids, locations_of(ids))
            if held >= blocks:
                break
        stats = store.stats()
    value = stats.directory_bytes / stats.blocks
    return Figure(
        name=f"bytes a block, {what}",
        unit="B",
        value=value,
        least=value,
        greatest=value,
        target=BYTES_A_BLOCK_TARGET,
        note=f"{stats.blocks:,} blocks, {stats.segments:,} entries",
    )
