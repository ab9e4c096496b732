"""Power cuts, refusals and damage, by the ten thousand.

    python -m fuzz.crashes --images 200000 [--seed N] [--first K] [--runs N] [--routing sarp | --chunks]
    python -m fuzz.crashes --exhaustive 3
    python -m fuzz.crashes --profile ci | night [--chunks]

A run is a workload of a few operations on a simulated disk. At each of its writes, syncs and changes of a name the
power is cut in several ways; each image is recovered and asked for everything, cut once more during the recovery now
and then, opened twice, without its checkpoints, gone on with, or damaged. The first image that shows no allowed state
ends the run: its workload is made small and printed, and the exit status is 1. A seed gives the same runs again; one
that is interrupted ends its workload, and says what it has tried and where to go on.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import secrets
import signal
import sys
import time
import traceback
from random import Random
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fuzz.crashes.campaign import CHUNKS, INDEX, Campaign, Finding, smaller
from fuzz.crashes.chunks import random_chunk_workload
from fuzz.crashes.draw import all_workloads, random_workload
from fuzz.crashes.history import Difference
from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fuzz.crashes.chunks import ChunkWorkload
    from fuzz.crashes.history import Workload

    Drawn = Iterator[tuple[int, Workload | ChunkWorkload]]

PROFILES: Final = {"ci": (4_000, 20261130), "night": (1_000_000, None)}
"""Images, and the seed, where it is always the same."""
CHUNKS_SHARE: Final = 3
"""With --chunks a profile has so many times fewer images: there are fewer ways to change such a store."""
INTERRUPTED: Final = {"cancel": "task cancelled", "close": "store closed beside"}


def main() -> int:
    arguments = _parser().parse_args()
    images, seed = (arguments.images, None) if arguments.profile is None else PROFILES[arguments.profile]
    if arguments.profile is not None and arguments.chunks:
        images //= CHUNKS_SHARE
    seed = arguments.seed if arguments.seed is not None else secrets.randbits(32) if seed is None else seed
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL)
    campaign = Campaign(seed, CHUNKS if arguments.chunks else INDEX)
    routings = [arguments.routing] if arguments.routing else list(fmt.ROUTINGS)
    began = time.monotonic()
    if arguments.exhaustive and arguments.chunks:
        _parser().error("--exhaustive has workloads of indexes alone")
    elif arguments.exhaustive:
        workloads = _numbered(all_workloads(arguments.exhaustive), arguments.first)
        images = sys.maxsize
    elif arguments.chunks:
        workloads = _drawn(seed, arguments.first, lambda random, _: random_chunk_workload(random))
    else:
        workloads = _drawn(
            seed, arguments.first, lambda random, number: random_workload(random, routings[number % len(routings)])
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        # An exception in the middle of a workload would be taken for what the workload does.
        signal.signal(number, lambda *_: setattr(campaign, "stopped", True))
    finding = _run(campaign, workloads, images, arguments.runs, arguments.seconds)
    _report(campaign, time.monotonic() - began)
    if finding is None and campaign.stopped:
        print(f"interrupted; go on with --seed {seed} --first {campaign.next_number}" + _ways(arguments))
        return 130
    if finding is None:
        return 0
    _explain(campaign, finding, again=f"--seed {seed} --first {finding.number} --runs 1" + _ways(arguments))
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz.crashes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="how many are recovered (default 10,000)")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="of workloads at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to go on at most")
    parser.add_argument("--seed", type=int, default=None, help="of the runs; without one a random one is taken")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run (default 0)")
    parser.add_argument("--routing", choices=fmt.ROUTINGS, default=None, help="of all stores (default: both in turn)")
    parser.add_argument("--chunks", action="store_true", help="chunk stores, instead of indexes")
    parser.add_argument(
        "--exhaustive", type=int, default=0, metavar="OPERATIONS", help="all workloads of up to so many, instead"
    )
    parser.add_argument("--profile", choices=PROFILES, default=None, help="a known amount of work")
    return parser


def _ways(arguments: argparse.Namespace) -> str:
    exhaustive = f" --exhaustive {arguments.exhaustive}" if arguments.exhaustive else ""
    chunks = " --chunks" if arguments.chunks else ""
    return exhaustive + chunks + (f" --routing {arguments.routing}" if arguments.routing else "")


def _numbered(workloads: Iterator[Workload], first: int) -> Drawn:
    return ((number, workload) for number, workload in enumerate(workloads) if number >= first)


def _drawn(seed: int, first: int, draw: Callable[[Random, int], Workload | ChunkWorkload]) -> Drawn:
    for number in itertools.count(first):
        yield number, draw(Random(f"workload {seed} {number}"), number)


def _run(campaign: Campaign, workloads: Drawn, images: int, runs: int, seconds: float) -> Finding | None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    stop = time.monotonic() + seconds
    with Progress(*columns, console=Console(stderr=True)) as progress:
        total = images if images < sys.maxsize else None
        task = progress.add_task(f"images (seed {campaign.seed})", total=total)

        def done() -> bool:
            progress.update(task, completed=campaign.recovered)
            return campaign.recovered >= images or campaign.workloads >= runs or time.monotonic() >= stop

        return campaign.run(workloads, done)


def _report(campaign: Campaign, seconds: float) -> None:
    console = Console(width=110)
    table = Table(title=f"seed {campaign.seed}: {campaign.workloads:,} workloads, {campaign.recovered:,} images")
    for name in ("fault", "injected", "detected", "acknowledged data lost", "wrong answers"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for mode, count in sorted(campaign.images.items()):
        table.add_row("process killed" if mode == "kill" else f"power cut: {mode}", f"{count:,}", "", "0", "0")
    for operation, count in sorted(campaign.refused.items()):
        table.add_row(f"refused: {operation}", f"{count:,}", f"{count:,}", "0", "0")
    for how, count in sorted(campaign.interrupted.items()):
        table.add_row(f"cut short: {INTERRUPTED[how]}", f"{count:,}", "", "0", "0")
    for kind in dict.fromkeys(kind for kind, _ in sorted(campaign.damaged)):
        found = {outcome: count for (other, outcome), count in campaign.damaged.items() if other == kind}
        lost = sum(count for outcome, count in found.items() if outcome not in ("harmless", "reported, nothing lost"))
        reported = sum(count for outcome, count in found.items() if outcome.startswith(("reported", "refused")))
        table.add_row(f"damage: {kind}", f"{sum(found.values()):,}", f"{reported:,}", f"{lost:,} (damaged)", "0")
    console.print(table)
    outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(_outcomes(campaign).items()))
    console.print(f"damaged images: {outcomes or 'none'}")
    console.print(
        f"{seconds:.0f} s, {1e3 * seconds / max(1, campaign.recovered):.1f} ms an image; "
        f"longest recovery with its questions {campaign.slowest_s:.2f} s"
    )


def _outcomes(campaign: Campaign) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, outcome), count in campaign.damaged.items():
        found[outcome] = found.get(outcome, 0) + count
    return found


def _explain(campaign: Campaign, finding: Finding, again: str) -> None:
    print(f"run {finding.number}: a difference (again: {again}); making it small", flush=True)
    finding = smaller(campaign, finding)
    print(finding.workload)
    for step in finding.workload.steps:
        print(f"  {step}")
    if isinstance(finding.error, Difference):
        print(f"difference: {finding.error}")
    else:
        traceback.print_exception(finding.error)


if __name__ == "__main__":
    sys.exit(main())
