"""Many workloads, all their images, and what became of them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from life_process import quiet_process

from fuzz.crashes.check import check, check_damaged
from fuzz.crashes.chunk_check import check_chunks, check_damaged_chunks
from fuzz.crashes.chunks import ChunkHistory
from fuzz.crashes.damage import KINDS
from fuzz.crashes.history import History

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from life_process import Process

    from fuzz.crashes.chunks import ChunkWorkload
    from fuzz.crashes.damage import Damage
    from fuzz.crashes.history import Workload

__all__ = ["CHUNKS", "INDEX", "Campaign", "Finding", "smaller"]

_DAMAGED_SHARE: Final = 0.2
"""How many images are damaged, too, in a copy."""


class Subject(NamedTuple):
    """What loses its power: how a workload is lived, and how its images are checked."""

    live: Callable[[Any, Process, Random, int], Any]
    """The history of a workload in a process, not lived yet, with so many images at each change."""
    check: Callable[[Any, Any, Random], Awaitable[Any]]
    check_damaged: Callable[[Any, Any, str, Random], Awaitable[tuple[Damage, str] | None]]


INDEX: Final = Subject(
    lambda workload, process, random, images: History(workload, process.clock, process.log_file_bytes, random, images),
    check,
    check_damaged,
)
CHUNKS: Final = Subject(
    lambda workload, _, random, images: ChunkHistory(workload, random, images), check_chunks, check_damaged_chunks
)


@dataclass(slots=True)
class Finding:
    """A workload whose images do not show what they should."""

    number: int
    workload: Workload | ChunkWorkload
    error: Exception


@dataclass
class Campaign:
    """Counts of what was tried and what came of it."""

    seed: int
    subject: Subject = INDEX
    images_max: int = 2
    workloads: int = 0
    next_number: int = 0
    """Number of the workload behind the last that was tried."""
    stopped: bool = False
    """Whether somebody wants it to end, with the workload that is tried now."""
    images: Counter[str] = field(default_factory=Counter)
    """Crash images that were recovered, by what the power cut did."""
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that the medium refused, by operation."""
    interrupted: Counter[str] = field(default_factory=Counter)
    """Operations that were cut short, by what."""
    damaged: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Damaged images, by damage and outcome."""
    slowest_s: float = 0.0

    @property
    def recovered(self) -> int:
        return self.images.total() + self.damaged.total()

    def run(self, workloads: Iterable[tuple[int, Any]], done: Callable[[], bool]) -> Finding | None:
        """Try workloads until `done` says so; the first that fails."""
        for number, workload in workloads:
            error = self.try_one(number, workload)
            if error is not None:
                return Finding(number, workload, error)
            self.workloads += 1
            self.next_number = number + 1
            if self.stopped or done():
                return None
        return None

    def try_one(self, number: int, workload: Workload | ChunkWorkload) -> Exception | None:
        """What is wrong with a workload's images; None: nothing."""
        random = Random(f"{self.seed} {number}")
        try:
            with quiet_process(random) as process:
                history = self.subject.live(workload, process, random, self.images_max)
                process.runner.run(history.live())
                for _ in self._check_all(process.runner, history, random):
                    pass
        except Exception as error:  # whatever it is, it is a finding
            return error
        self.interrupted.update(history.interrupted)
        if history.injected and workload.fault is not None:
            self.refused[workload.fault.operation] += history.injected
        return None

    def _check_all(self, runner: asyncio.Runner, history: Any, random: Random) -> Iterator[None]:
        for image in history.images:
            if random.random() < _DAMAGED_SHARE:
                ended = runner.run(self.subject.check_damaged(history, image, random.choice(KINDS), random))
                if ended is not None:
                    damage, outcome = ended
                    self.damaged[damage.kind, outcome] += 1
            again = image
            while again is not None:
                began = time.perf_counter()
                following = runner.run(self.subject.check(history, again, random))
                self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
                self.images[again.mode if not again.depth else "during a recovery"] += 1
                again = following
                yield


def smaller(campaign: Campaign, finding: Finding) -> Finding:
    """The same with fewer steps, as long as any can be left out."""
    at = 0
    while at < len(finding.workload.steps):
        steps = finding.workload.steps[:at] + finding.workload.steps[at + 1 :]
        workload = replace(finding.workload, steps=steps)
        error = campaign.try_one(finding.number, workload)
        if error is None:
            at += 1
        else:
            finding = Finding(finding.number, workload, error)
    return finding
