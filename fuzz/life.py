"""Whole lives of stores against a dict: insertions, removals, counts, compaction, crashes, as many as are asked for.

    python -m fuzz.life --runs 10000 [--steps 50] [--seed N] [--routing sarp] [--first K]

A run is one store, in memory, and some 50 steps: insert, match, remove, truncate, clear, steps started together, sync,
checkpoint, mark pass, compact, reopen with and without checkpoints, power cuts in the middle of any of these. A quarter
of the stores have a bound on their files that is met, so that records are evicted (`evicted` counts them, `refused` the
calls that found no room); some have times to live, of everything, of holders and of namespaces, and a clock that leaps.
The store's answers must be the model's, its locations too; where something may have been evicted or have expired, they
may be shorter, and the model follows. The first difference is made small and printed, and the exit status is 1. A seed
gives the same runs again; `--first` begins with a later one of them.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
import traceback
from collections import Counter
from random import Random

from life_machine import Difference, live
from life_steps import Setup, Step, plainer, random_setup, random_step
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sarpstore import _format as fmt


class Fuzz:
    """Runs, counted; each has a generator of its own, so that it can be lived again alone."""

    def __init__(self, seed: int, steps: int, routings: list[str]) -> None:
        self.seed = seed
        self.done = 0
        self.counts: Counter[str] = Counter()
        self._steps = steps
        self._routings = routings

    def draw(self, number: int) -> tuple[Setup, list[Step]]:
        """What run `number` is."""
        random = Random(f"{self.seed} {number}")
        setup = random_setup(random, self._routings[number % len(self._routings)])
        return setup, [random_step(random, setup.kinds) for _ in range(self._steps)]

    def live(self, setup: Setup, steps: list[Step]) -> Exception | None:
        """The difference that this life shows, or whatever else went wrong."""
        try:
            self.counts += live(setup, steps, self.seed)
        except Exception as error:  # whatever it is, it is a finding
            return error
        return None

    def smaller(self, setup: Setup, steps: list[Step]) -> list[Step]:
        """Steps that still fail when any one of them is left out no more; big pieces are tried first."""
        size = max(1, len(steps) // 2)
        while size:
            at = 0
            while at < len(steps):
                fewer = steps[:at] + steps[at + size :]
                if self.live(setup, fewer):
                    steps = fewer
                else:
                    at += size
            size //= 2
        return steps

    def plainer(self, setup: Setup, steps: list[Step]) -> list[Step]:
        """The same steps with the smallest numbers that still fail."""
        at = 0
        while at < len(steps):
            for step in plainer(steps[at]):
                fewer = [*steps[:at], step, *steps[at + 1 :]]
                if self.live(setup, fewer):
                    steps = fewer
                    break
            else:
                at += 1
        return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.life", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="how many (default 1,000)")
    parser.add_argument("--steps", type=int, default=50, help="of a run (default 50)")
    parser.add_argument("--seed", type=int, default=None, help="of the runs; without one a random one is taken")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run (default 0)")
    parser.add_argument("--routing", choices=fmt.ROUTINGS, default=None, help="of all stores (default: both in turn)")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL)
    fuzz = Fuzz(seed, arguments.steps, [arguments.routing] if arguments.routing else list(fmt.ROUTINGS))
    began = time.monotonic()
    failed = _run(fuzz, arguments.first, arguments.runs)
    seconds = time.monotonic() - began
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(fuzz.counts.items()))
    print(
        f"seed {seed}: {fuzz.done:,} runs, {seconds:.0f} s, {1e3 * seconds / max(1, fuzz.done):.1f} ms a run: {counts}"
    )
    if failed is None:
        print("differences 0")
        return 0
    _explain(fuzz, *failed)
    return 1


def _run(fuzz: Fuzz, first: int, runs: int) -> tuple[int, Exception] | None:
    """The number of the first run that fails, and what it shows."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for number in progress.track(range(first, first + runs), description=f"lives (seed {fuzz.seed})"):
            if error := fuzz.live(*fuzz.draw(number)):
                return number, error
            fuzz.done += 1
    return None


def _explain(fuzz: Fuzz, number: int, error: Exception) -> None:
    """Print what a failing run shows, make it small, and print it."""
    setup, steps = fuzz.draw(number)
    print(f"run {number}: a difference (again: --seed {fuzz.seed} --first {number} --runs 1); minimising", flush=True)
    _print(error)
    if not fuzz.live(setup, steps):
        print("it does not show again: it hangs on the moments at which threads run")
        return
    steps = fuzz.plainer(setup, fuzz.smaller(setup, steps))
    print(setup)
    for step in steps:
        print(f"  {step}")
    _print(fuzz.live(setup, steps) or error)


def _print(error: Exception) -> None:
    if isinstance(error, Difference):
        print(f"difference: {error}")
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    sys.exit(main())
