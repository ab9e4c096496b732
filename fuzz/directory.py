"""The kernel's directory, matching and insertion against the Python twin and a dict, for as many runs as are asked for.

    python -m fuzz.directory --runs 5000 [--seed N]

A run is some 30 operations: insert (opening, branching, superseding), query, end a commit, damage, enter equal keys,
replay any suffix, reopen from the log alone, take images bit by bit, reopen from images and the log's tail. After each
the directory is compared whole, and matches are compared in every way that the kernel offers. The first difference is
minimised and printed, and the exit status is 1. A seed gives the same runs again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed

_TESTS = Path(__file__).resolve().parent.parent / "tests" / "kernel"
sys.path.insert(0, str(_TESTS))

from kernel_machine import Machine  # noqa: E402 - found through the path above
from kernel_operations import Operation, Setup, all_runs  # noqa: E402 - found through the path above

_PROGRESS_RUNS = 250


class Fuzz:
    """Runs, counted; `last` is the latest, which after a failure is the smallest that fails."""

    def __init__(self, runs: int, seed: int) -> None:
        self.runs = runs
        self.seed = seed
        self.done = 0
        self.counts: Counter[str] = Counter()
        self.last: tuple[Setup, list[Operation]] | None = None
        self._failed = False
        self._began = time.monotonic()

    def execute(self) -> BaseException | None:
        """The failure, if there was one."""

        @hypothesis_seed(self.seed)
        @settings(
            max_examples=self.runs,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(all_runs(20, 40))
        def test(drawn: tuple[Setup, list[Operation]]) -> None:
            self._one(drawn)

        try:
            test()
        except Exception as error:  # whatever it is, it is a finding
            return error
        return None

    def _one(self, drawn: tuple[Setup, list[Operation]]) -> None:
        self.last = drawn
        setup, operations = drawn
        machine = Machine(setup)
        try:
            machine.run(operations)
        except Exception:
            if not self._failed:
                self._failed = True
                print(f"run {self.done + 1:,}: a difference; minimising", flush=True)
            raise
        if self._failed:
            return
        self.done += 1
        self.counts.update(machine.counts)
        if self.done % _PROGRESS_RUNS == 0:
            print(f"{self.done:,} runs, {time.monotonic() - self._began:.0f} s", flush=True)

    def report(self, error: BaseException | None) -> int:
        """Print how it ended; the exit status."""
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        print(f"{self.done:,} runs, {time.monotonic() - self._began:.0f} s, seed {self.seed}: {counts}")
        if error is None:
            print("no difference")
            return 0
        print(f"difference: {error!r}")
        if self.last is not None:
            print(self.last[0])
            for operation in self.last[1]:
                print(f"  {operation}")
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.directory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000, help="how many (default 5,000)")
    parser.add_argument("--seed", type=int, default=None, help="of the runs; without one a random one is taken")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    fuzz = Fuzz(arguments.runs, seed)
    return fuzz.report(fuzz.execute())


if __name__ == "__main__":
    sys.exit(main())
