"""`sarpstore bench churn`: many times a store's capacity inserted and removed; what it takes of disk and memory."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

import sarpstore
from sarpstore_tools.bench.churning import ASK_EVERY, REMOVED_IDS, SLOW_MS, Churn
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.killed import bench_progress
from sarpstore_tools.bench.machine import event_loop, this_machine
from sarpstore_tools.bench.population import CAPACITY_MIN, HOLDERS, PROMPTS, Population, record_bytes_at
from sarpstore_tools.bench.sizes import one_size, short
from sarpstore_tools.bench.usage import SAMPLE_SECONDS, DiskUse, UsageWatch, disk_use

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

Routing = Literal["divergence", "sarp"]

BYTES_MAX_RATIO = 2.5
MEMORY_TARGET = 1.05
COMPACTED_TARGET = 1.25
MARKS = 20
"""The run's parts; what memory is at a quarter is the median of the twentieth that ends there."""
ASKED_AT_THE_END = 1000
LOG_FILE_BYTES = (1 << 20, 4 << 20)
BYTES_MAX_MIN = 16 * LOG_FILE_BYTES[0]
"""The least default bound: below it, the files of the log would be too few to choose from."""
CACHE_BYTES = (1 << 20, 64 << 20)


class Churned(msgspec.Struct, kw_only=True):
    """What a run found. `resident`: memory of the process in each twentieth; `at_the_end`: after `compact`."""

    churn: Churn
    stats: sarpstore.Stats
    most: DiskUse
    samples: int
    resident: list[int]
    at_the_end: DiskUse
    live_bytes: int
    seconds: float
    compact_seconds: float


def options_for(bytes_max: int, routing: Routing) -> dict[str, Any]:
    """Log files of a 32nd of the bound and a cache of an eighth, the defaults at the most and without a bound.

    `exact` has the published method look at all that it could, so that what is held can be told from what is not.
    """
    options: dict[str, Any] = {"routing": routing, "exact": routing == "sarp"}
    if bytes_max:
        options |= {
            "bytes_max": bytes_max,
            "log_file_bytes": _between(bytes_max // 32, LOG_FILE_BYTES),
            "cache_bytes": _between(bytes_max // 8, CACHE_BYTES),
        }
    return options


def _between(value: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(value, bounds[1]))


@click.command("churn", short_help="Many times a store's capacity inserted and removed.")
@click.option("--capacity-blocks", callback=one_size, default="1e6", show_default=True, help="Blocks held at a time.")
@click.option("--turns", type=click.IntRange(min=1), default=20, show_default=True, help="Capacities to insert.")
@click.option(
    "--bytes-max",
    type=click.IntRange(min=0),
    help=f"Bound of the disk use; 0: none [default: {BYTES_MAX_RATIO} times the records held, at least 16 MiB].",
)
@click.option("--routing", type=click.Choice(["divergence", "sarp"]), default="divergence", show_default=True)
@click.option("--seed", type=click.IntRange(0, 1 << 16), default=0, show_default=True, help="Seed of the sessions.")
@store_option
@report_options
@click.pass_context
def churn_command(
    context: click.Context,
    capacity_blocks: int,
    turns: int,
    bytes_max: int | None,
    routing: Routing,
    seed: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Insert sessions and remove old ones, --turns times the capacity, and look at the store from outside meanwhile.

    Sessions share prompts and grow turn by turn. Past the capacity, old ones go: by remove_ids in batches, leaf first,
    by truncate, wholly or in part, and with clear_holder of a holder that dies and comes back. Disk use is what the
    file system says of all files of the folder, twenty times a second; memory is this process's, in which the store
    runs; what the bench itself remembers does not grow. In the end the store is compacted, opened again, and asked
    again.
    """
    if capacity_blocks < CAPACITY_MIN:
        raise click.UsageError(f"--capacity-blocks {capacity_blocks:,} is less than {CAPACITY_MIN:,}")
    records = record_bytes_at(capacity_blocks, seed)
    bound = max(BYTES_MAX_MIN, int(records * BYTES_MAX_RATIO)) if bytes_max is None else bytes_max
    options = options_for(bound, routing)
    name, factory = event_loop()
    churn = Churn(Population(seed), capacity_blocks)
    with (
        work_folder(store) as folder,
        bench_progress() as progress,
        asyncio.Runner(loop_factory=factory) as runner,
    ):
        machine = this_machine(folder)
        found = runner.run(_run(folder / "store", churn, turns * capacity_blocks, options, progress))
    figures = [*_work(found), *_disk(found, bound), *_memory(found), *_background(found), *_answers(found)]
    method = _method(name, capacity_blocks, turns, records, options)
    failures = churn.answers.failures
    if churn.answers.wrong > len(failures):
        failures.append(f"{churn.answers.wrong:,} wrong answers in all")
    report = Report(command="bench churn", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


async def _run(path: Path, churn: Churn, blocks: int, options: dict[str, Any], progress: Progress) -> Churned:
    watch = UsageWatch(path)
    async with sarpstore.open(path, **options) as store:
        churn.use(store)
        with watch.watching():
            began = time.monotonic()
            resident = await _turns(churn, blocks, watch, progress)
            seconds = time.monotonic() - began
            began = time.monotonic()
            await _compact(store, progress)
            compact_seconds = time.monotonic() - began
        at_the_end, live_bytes = disk_use(path), store.stats().live_bytes
        await churn.ask_all(ASKED_AT_THE_END)
        stats = store.stats()
    churn.evicted = stats.evicted > 0
    async with sarpstore.open(path, **options) as store:
        churn.use(store)
        await churn.ask_all(ASKED_AT_THE_END)
    return Churned(
        churn=churn,
        stats=stats,
        most=watch.most,
        samples=watch.samples,
        resident=resident,
        at_the_end=at_the_end,
        live_bytes=live_bytes,
        seconds=seconds,
        compact_seconds=compact_seconds,
    )


async def _turns(churn: Churn, blocks: int, watch: UsageWatch, progress: Progress) -> list[int]:
    """Insert so many blocks; the memory in each twentieth of it."""
    task = progress.add_task("churning", total=blocks)
    resident = []
    for mark in range(1, MARKS + 1):
        while churn.inserted < blocks * mark // MARKS:
            await churn.step()
            # As a server does between requests: background work is done by tasks of this loop.
            await asyncio.sleep(0)
            if churn.population.turn % ASK_EVERY == 0:
                progress.update(task, completed=churn.inserted)
        resident.append(watch.mark())
    return resident


async def _compact(store: sarpstore.Store, progress: Progress) -> None:
    task = progress.add_task("compacting", total=None)
    await store.compact(progress=lambda done, total: progress.update(task, completed=done, total=total))


def _one(name: str, unit: str, value: float, **rest: Any) -> Figure:
    return measured(name, unit, [value], **rest)


def _work(found: Churned) -> list[Figure]:
    churn, ms = found.churn, found.seconds * 1e3
    turned = (churn.inserted + churn.removed) / found.seconds
    figures = [
        _one("inserted", "blocks", churn.inserted, note=f"{churn.inserted / churn.capacity:.1f} times the capacity"),
        _one("removed", "blocks", churn.removed, note=f"{churn.cleared} holders cleared"),
        _one("inserted and removed", "blocks/s", turned, more_is_better=True, note=f"{found.seconds:,.1f} s"),
    ]
    for what, times in (("insert", churn.inserts), ("removal", churn.removals)):
        lost = f"{100 * times.slow_ms_total / ms:.2f} % of the time in those over {SLOW_MS:g} ms"
        figures += [
            _one(f"slowest {what}", "ms", times.slowest_ms, note=lost),
            _one(f"{what}, p99.9", "ms", times.quantile(0.999), note=f"{times.count:,} calls"),
        ]
    return figures


def _disk(found: Churned, bound: int) -> list[Figure]:
    target = bound / 1e6 if bound else None
    note = f"{found.samples:,} looks; the bound is bytes_max" if bound else f"{found.samples:,} looks; no bound"
    used, live = found.at_the_end, found.live_bytes
    return [
        _one("most disk use, allocated", "MB", found.most.allocated / 1e6, target=target, note=note),
        _one("most disk use, 4 KiB each", "MB", found.most.rounded / 1e6, target=target, note="sizes, rounded up"),
        _one(
            "compacted: disk use / live",
            "x",
            used.allocated / live if live else float("inf"),
            target=COMPACTED_TARGET,
            note=f"{used.allocated / 1e6:,.1f} MB, {live / 1e6:,.1f} live; compact(): {found.compact_seconds:.1f} s",
        ),
    ]


def _memory(found: Churned) -> list[Figure]:
    quarters = {25 * (i + 1): found.resident[MARKS * (i + 1) // 4 - 1] / 1e6 for i in range(4)}
    figures = [_one(f"memory at {percent} %", "MB", value) for percent, value in quarters.items()]
    ratio = max(quarters.values()) / min(quarters.values())
    return [*figures, _one("memory, greatest / least", "x", ratio, target=MEMORY_TARGET, note="of these four")]


def _background(found: Churned) -> list[Figure]:
    stats = found.stats
    amplification = stats.written_bytes / stats.record_bytes if stats.record_bytes else float("inf")
    written = f"{stats.written_bytes / 1e6:,.1f} MB for records of {stats.record_bytes / 1e6:,.1f}"
    return [
        _one("write amplification", "x", amplification, note=written),
        _one("mark passes", "", stats.mark_passes),
        _one("files compacted", "", stats.compacted_files, note=f"{stats.copied_bytes / 1e6:,.1f} MB copied"),
        _one("checkpoints", "", stats.checkpoints),
        _one("evicted", "blocks", stats.evicted),
        _one("damaged records", "", stats.damaged_records, target=0),
    ]


def _answers(found: Churned) -> list[Figure]:
    answers = found.churn.answers
    whole = 100 * answers.held_whole / max(answers.held, 1)
    return [
        _one("held, matched whole", "%", whole, note=f"{answers.held:,} asked; less than 100 where some were evicted"),
        _one("wrong answers", "", answers.wrong, target=0, note=f"{answers.removed:,} removed paths asked for"),
    ]


def _method(loop: str, capacity: int, turns: int, records: int, options: dict[str, Any]) -> list[str]:
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    return [
        (
            f"one process, one event loop ({loop}); {short(capacity)} blocks held (at least {records / 1e6:,.1f} MB of "
            f"records), {turns} times as many inserted; options: {said}"
        ),
        (
            f"sessions of {HOLDERS} holders behind {PROMPTS} prompts grow by 4 to 60 blocks a turn, up to 512; past "
            f"the capacity, old ones go: 60 % by remove_ids of {REMOVED_IDS} ids at a time, leaf first, 25 % by "
            "truncate, 15 % lose a part by truncate and go on; each capacity inserted, one holder is cleared"
        ),
        (
            f"disk use: all files of the folder each {1000 * SAMPLE_SECONDS:.0f} ms by stat(2), st_blocks x 512, and "
            "st_size rounded up to 4 KiB; the greatest of all looks, compaction included"
        ),
        (
            "memory: resident memory of the whole process (/proc/self/statm), Python and the bench included; at a "
            "quarter: the median of the looks in the twentieth of the run that ends there"
        ),
        (
            "write amplification: all bytes written, log with headers, marks and seals, copies and checkpoints, over "
            "those of the records that insertions made"
        ),
        (
            f"answers: each {ASK_EVERY} turns a held path, with its locations, and a removed one; in the end, and "
            f"after opening again, {ASKED_AT_THE_END:,} held ones and all remembered removed ones"
        ),
    ]
