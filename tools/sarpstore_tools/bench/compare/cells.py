"""Running cells: every engine on every workload at every concurrency, again and again, a fresh process each time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from sarpstore_tools.bench.compare.engine import ENGINES, NotAvailableError
from sarpstore_tools.bench.compare.figures import cell_of
from sarpstore_tools.bench.compare.model import Cell, CellJob, CellResult, LeftOut, Message, Workload
from sarpstore_tools.bench.compare.rocks import RocksProgram
from sarpstore_tools.bench.worker import Worker, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T", bound=msgspec.Struct)

MODULE = "sarpstore_tools.bench.compare.worker"
OWN = ("divergence", "divergence-length", "sarp")
"""Engines whose failure fails the command; a peer that fails is left out."""


def result_of(worker: Worker, kind: type[T]) -> T:
    """The next message of a worker, which is to be of that kind.

    Raises:
        NotAvailableError: the engine cannot run here.
        WorkerError: it failed.
    """
    message = worker.receive(msgspec.Struct)
    if isinstance(message, LeftOut):
        raise NotAvailableError(message.reason)
    assert isinstance(message, kind), message
    return message


def run_job(job: msgspec.Struct, kind: type[T]) -> T:
    """Do a job in a process of its own, and take its one result. Raises as `result_of`."""
    worker = Worker(MODULE, job, Message)
    try:
        found = result_of(worker, kind)
        worker.process.wait(60)
    finally:
        worker.stop()
    return found


class Runner:
    """Runs engines, and remembers which of them cannot and what was wrong."""

    def __init__(self, engines: list[str]) -> None:
        self._engines = engines
        self.rocks = RocksProgram()
        self.left_out: dict[str, str] = {}
        self.failures: list[str] = []

    @property
    def engines(self) -> list[str]:
        """Those that can run, as far as is known."""
        return [name for name in self._engines if name not in self.left_out]

    def attempt(self, engine: str, what: str, call: Callable[[], T]) -> T | None:
        """What `call` gives; None if it cannot: from then on the engine is left out."""
        try:
            return call()
        except NotAvailableError as error:
            self.left_out[engine] = str(error)
        except WorkerError as error:
            self.left_out[engine] = f"failed in {what}: {error}"
            if engine in OWN:
                self.failures.append(f"{engine}, {what}: {error}")
        return None

    def cells(
        self,
        folder: Path,
        workload: Workload,
        requests: Path,
        *,
        concurrency: int,
        repeats: int,
        seconds_max: float,
        advance: Callable[[str], None],
    ) -> list[Cell]:
        """All engines at one concurrency. The repeats of one engine are spread over the whole time."""
        runs: dict[str, list[CellResult]] = {name: [] for name in self.engines}
        for repeat in range(repeats):
            for engine in list(self.engines):
                advance(f"{workload.label}: {engine}, {concurrency} in flight")
                place = folder / f"{engine}-{repeat}"
                job = CellJob(
                    engine=engine,
                    folder=str(place),
                    requests=str(requests),
                    concurrency=concurrency,
                    budget_bytes=workload.budget_bytes,
                    seconds_max=seconds_max,
                )
                what = f"{workload.label}, {concurrency} in flight"
                found = self.attempt(engine, what, lambda job=job: self._run(job, workload))  # type: ignore[misc]
                for leftover in folder.glob(f"{place.name}*"):
                    _remove(leftover)
                if found is not None:
                    runs[engine].append(found)
                    self._judge(engine, what, found)
        return [
            cell_of(name, workload.label, concurrency, done, workload.requests) for name, done in runs.items() if done
        ]

    def _run(self, job: CellJob, workload: Workload) -> CellResult:
        if job.engine in ENGINES:
            return run_job(job, CellResult)
        return self.rocks.run(job, workload.requests, workload.blocks)

    def _judge(self, engine: str, what: str, found: CellResult) -> None:
        if found.wrong:
            detail = "; ".join(found.mismatches)
            text = f"{engine}, {what}: {found.wrong:,} of {found.requests:,} answers were wrong ({detail})"
            if text not in self.failures:
                self.failures.append(text)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
