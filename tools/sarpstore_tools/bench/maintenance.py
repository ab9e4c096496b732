"""`sarpstore bench maintenance`: how much slower matches are while the store compacts, checkpoints and forgets."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.killed import bench_progress
from sarpstore_tools.bench.loop import HOLD_TARGET_MS, Holds
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.bench.maintaining import (
    CHECKED_SHARE,
    CHECKPOINT_EVERY_S,
    KINDS,
    LONG_SHARE,
    MAINTAINING,
    REST,
    WHEN,
    WRITING,
    Load,
)
from sarpstore_tools.bench.sizes import one_size, short

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

    from sarpstore_tools.bench.maintaining import Phase

RATIO_TARGET = 2.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
JUDGED = "p99"
RECORD_BYTES_A_BLOCK = 32
CACHE_SHARE = 8
CACHE_BYTES_MIN = 1 << 20
LOG_FILES = 32
LOG_FILE_BYTES = (1 << 20, 4 << 20)
BACKLOG_TARGET_MS = 50.0
"""The most that a phase at rest may leave unanswered, in milliseconds of arrivals: with more, the machine does not keep
up with the load at all, and what is compared is how long the queues have grown."""
CALIBRATION_S_MAX = 3.0
CALIBRATION_SHARE = 0.25
CALIBRATIONS = 2


class _How(NamedTuple):
    """Phases of each kind, their length, the share of a core that the loop has to use at rest; blocks a second that are
    replaced while writing and maintaining, and blocks before the latter.
    """

    rounds: int
    seconds: float
    share: float
    rewritten: int
    garbage: int


@click.command("maintenance", short_help="Match latency at rest and beside compaction, passes and checkpoints.")
@click.option("--blocks", callback=one_size, default="2e6", show_default=True, help="Blocks held.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Phases of each kind.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Length of a phase.")
@click.option(
    "--load",
    "load_percent",
    type=click.FloatRange(1, 100),
    default=50.0,
    show_default=True,
    help="Arrivals: what makes the event loop's thread use so many percent of a core at rest, about.",
)
@click.option(
    "--rewritten",
    type=click.IntRange(min=1),
    default=5000,
    show_default=True,
    help="Blocks a second that are removed, and others inserted, while writing and maintaining.",
)
@click.option(
    "--garbage",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    help="Blocks, in percent, that are replaced before each phase with maintenance, for it to have work.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of ids and questions.")
@store_option
@report_options
@click.pass_context
def maintenance_command(
    context: click.Context,
    blocks: int,
    rounds: int,
    seconds: float,
    load_percent: float,
    rewritten: int,
    garbage: int,
    seed: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Compare match latencies at rest and while compaction, mark passes and checkpoints run, in alternating phases.

    A store eight times as large as its cache holds sequences of one window and of 16. Matches of both arrive at a fixed
    rate, however long those before take, so that waiting counts. At rest nothing else is done. While writing, sequences
    are removed and others inserted. Before maintenance many are, which is what there is to compact and to forget. Then
    compact() is called again and again, a checkpoint is written each half second, and sequences go on being replaced.
    Afterwards the store is left alone until nothing runs any more.
    """
    options = options_for(blocks)
    load, holds = Load(blocks, seed), Holds()
    # asyncio's own loop: of that the length of every callback can be measured from outside.
    with (
        work_folder(store) as folder,
        bench_progress() as progress,
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        machine = this_machine(folder)
        runner.run(_fill(folder / "store", load, options))
        gc.collect()
        gc.freeze()  # what the bench made must not be looked through by the collector while it is measured
        with holds.measuring():
            how = _How(rounds, seconds, load_percent / 100, rewritten, blocks * garbage // 100)
            rate, phases = runner.run(_measure(folder / "store", load, options, holds, how, progress))
        gc.unfreeze()
    figures = [
        measured("arrivals", "matches/s", [rate]),
        *_core_shares(phases),
        _backlog(phases, rate),
        *_latencies(phases),
        *_holds(phases),
        *_maintenance(phases),
    ]
    method = _method(blocks, how, options, phases)
    held = sorted((hold for phase in phases for hold in phase.holds_over), reverse=True)
    method += [f"held {ms:.2f} ms: {what}" for ms, what in held[:5]]
    report = Report(
        command="bench maintenance", machine=machine, method=method, figures=figures, failures=load.failures
    )
    finish(context, report, json_file, targets=targets)


def options_for(blocks: int) -> dict[str, Any]:
    """A cache of an eighth of the records; log files of a 32nd, 1 to 4 MiB, so that compaction can choose."""
    records = RECORD_BYTES_A_BLOCK * blocks
    return {
        "cache_bytes": max(CACHE_BYTES_MIN, records // CACHE_SHARE),
        "log_file_bytes": max(LOG_FILE_BYTES[0], min(records // LOG_FILES, LOG_FILE_BYTES[1])),
    }


async def _fill(path: Path, load: Load, options: dict[str, Any]) -> None:
    async with sarpstore.open(path, **options) as store:
        load.use(store)
        await load.fill()


async def _measure(
    path: Path,
    load: Load,
    options: dict[str, Any],
    holds: Holds,
    how: _How,
    progress: Progress,
) -> tuple[float, list[Phase]]:
    """Arrivals a second, and all phases."""
    phases = []
    async with sarpstore.open(path, **options) as store:
        load.use(store)
        while store.stats().unloaded_partitions:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        rate = await _rate(load, holds, how)
        task = progress.add_task("at rest, writing, maintaining", total=len(WHEN) * how.rounds)
        for _ in range(how.rounds):
            for when in WHEN:
                if when == MAINTAINING:
                    await load.replace(how.garbage)
                phases.append(await load.phase(rate, how.seconds, holds, when, how.rewritten))
                progress.advance(task)
    return rate, phases


async def _rate(load: Load, holds: Holds, how: _How) -> float:
    """Arrivals a second with which the loop's thread is busy for its share of the time: one match at a time costs more
    than the many that a closed loop asks at once, so that half of its rate would be far more than half of the load.
    """
    seconds = min(how.seconds, CALIBRATION_S_MAX)
    rate = CALIBRATION_SHARE * await load.closed_loop(seconds)
    for _ in range(CALIBRATIONS):
        rate *= how.share / (await load.phase(rate, seconds, holds)).core_share
    return rate


def _of(phases: list[Phase], when: str) -> list[Phase]:
    return [phase for phase in phases if phase.when == when]


def _latencies(phases: list[Phase]) -> list[Figure]:
    """Each kind's quantiles over all phases of each kind, and the ratios of p99 while maintaining."""
    figures = []
    for kind in KINDS:
        for name, share in QUANTILES.items():
            found = {when: [_quantile([phase], kind, share) for phase in _of(phases, when)] for when in WHEN}
            pooled = {when: _quantile(_of(phases, when), kind, share) for when in WHEN}
            figures += [_spread(f"{kind}, {name} {when}", "ms", pooled[when], found[when]) for when in WHEN]
            if name == JUDGED:
                figures.append(_ratio(f"{kind}, {name}, ratio", pooled, found, REST, target=RATIO_TARGET))
                figures.append(_ratio(f"{kind}, {name}, ratio to {WRITING}", pooled, found, WRITING))
    return figures


def _ratio(name: str, pooled: dict[str, float], found: dict[str, list[float]], to: str, **more: Any) -> Figure:
    ratios = [loaded / other for other, loaded in zip(found[to], found[MAINTAINING], strict=True)]
    note = "over all phases; the spread is of the rounds"
    return _spread(name, "x", pooled[MAINTAINING] / pooled[to], ratios, note=note, **more)


def _core_shares(phases: list[Phase]) -> list[Figure]:
    """How busy the loop's thread was."""
    found = {when: [100 * phase.core_share for phase in _of(phases, when)] for when in WHEN}
    return [measured(f"core used by the loop, {when}", "%", shares) for when, shares in found.items()]


def _backlog(phases: list[Phase], rate: float) -> Figure:
    """What was left unanswered at the end of phases at rest: whether the machine keeps up at all."""
    left = [phase.unanswered / rate * 1e3 for phase in _of(phases, REST)]
    note = "of arrivals; if more, the ratios say nothing"
    return _spread("unanswered at rest", "ms", max(left), left, target=BACKLOG_TARGET_MS, note=note)


def _quantile(phases: list[Phase], kind: str, share: float) -> float:
    return float(np.quantile(np.concatenate([phase.ms[kind] for phase in phases]), share))


def _spread(name: str, unit: str, value: float, values: list[float], **rest: Any) -> Figure:
    """A figure over all phases, with the least and the greatest of single ones."""
    return Figure(
        name=name, unit=unit, value=value, least=min(values), greatest=max(values), repeats=len(values), **rest
    )


def _holds(phases: list[Phase]) -> list[Figure]:
    figures = []
    for when in WHEN:
        longest = [phase.longest_hold_ms for phase in _of(phases, when)]
        over = sum(len(phase.holds_over) for phase in _of(phases, when))
        note = f"{over} over {HOLD_TARGET_MS:g} ms"
        figures.append(_spread(f"longest hold {when}", "ms", max(longest), longest, target=HOLD_TARGET_MS, note=note))
    return figures


def _maintenance(phases: list[Phase]) -> list[Figure]:
    """How often it really ran: without any, the ratios would say nothing."""
    did = {name: sum(phase.maintenance[name] for phase in _of(phases, MAINTAINING)) for name in phases[0].maintenance}
    copied = f"{did['copied_bytes'] / 1e6:,.1f} MB copied"
    undue = sum(sum(phase.maintenance.values()) for phase in _of(phases, REST))
    return [
        measured("checkpoints", "", [did["checkpoints"]], target=1, more_is_better=True, note="while maintaining"),
        measured("mark passes", "", [did["mark_passes"]], target=1, more_is_better=True, note="while maintaining"),
        measured("files compacted", "", [did["compacted_files"]], target=1, more_is_better=True, note=copied),
        measured("maintenance at rest", "", [undue], target=0, note="checkpoints, passes, files and bytes copied"),
    ]


def _method(blocks: int, how: _How, options: dict[str, Any], phases: list[Phase]) -> list[str]:
    reads, hits = sum(phase.reads for phase in phases), sum(phase.cache_hits for phase in phases)
    return [
        (
            f"{short(blocks)} blocks, half in sequences of 64 blocks, half in those of 1,024; cache of "
            f"{options['cache_bytes'] / (1 << 20):,.1f} MiB: {100 * hits / max(hits + reads, 1):.0f} % of the pages "
            f"came from it; log files of {options['log_file_bytes'] / (1 << 20):,.1f} MiB"
        ),
        (
            f"{how.rounds} rounds of phases of {how.seconds:g} s; matches with locations by match_ids, "
            f"{100 * LONG_SHARE:.0f} % of them of 16 windows; latency: from when a match was due to its answer; the "
            f"rate is set before: the loop's thread uses {100 * how.share:.0f} % of a core at rest, about"
        ),
        (
            f"writing: {how.rewritten:,} blocks a second are replaced by remove_ids and insert_ids; maintaining: too, "
            f"and {how.garbage:,} blocks were replaced before, checkpoint() each {CHECKPOINT_EVERY_S:g} s, compact() "
            "again and again; afterwards, until nothing has run for half a second, nothing is measured"
        ),
        (
            "longest hold: wall time of any callback of asyncio's own loop, the bench's included, less the time "
            "that its thread had no core (see bench loop)"
        ),
        f"answers: the length of each, ids and locations of one in {1 / CHECKED_SHARE:.0f}",
    ]
