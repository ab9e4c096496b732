"""Recovery: each engine is filled and, a second later, killed; how soon does a fresh process answer from cold files?

The clock runs in a process that has imported everything and read its question, from the start of opening to the first
right answer; the page cache was dropped before. Every repeat opens a copy of the same files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.bench.compare.cells import MODULE, Runner, result_of
from sarpstore_tools.bench.compare.engine import ENGINES
from sarpstore_tools.bench.compare.model import (
    Filled,
    FillJob,
    Message,
    Ready,
    Recovered,
    RecoverJob,
    RecoverResult,
    Spread,
)
from sarpstore_tools.bench.compare.requests import RequestWriter
from sarpstore_tools.bench.compare.workloads import budget_of
from sarpstore_tools.bench.shapes import UNKNOWN_BLOCKS, Ids, branching, random_ids
from sarpstore_tools.bench.worker import Worker, WorkerError
from sarpstore_tools.recovery import drop_page_cache

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_BLOCKS_MAX = 256
DEATH_SECONDS_MAX = 10.0


class RecoveryRun:
    """All engines at one size."""

    def __init__(self, folder: Path, blocks: int, budget_percent: float, runner: Runner) -> None:
        self._folder = folder
        self._blocks = blocks
        self._runner = runner
        self._requests = folder / f"fill-{blocks}.bin"
        self._probe = folder / f"probe-{blocks}.bin"
        self._budget_bytes = budget_of(blocks, budget_percent)

    def run(self, engines: list[str], repeats: int, advance: Callable[[str], None]) -> list[Recovered]:
        """Fill, kill and open each."""
        write_fill(self._requests, self._probe, self._blocks)
        found = []
        for engine in engines:
            advance(f"{engine}: killed at {self._blocks:,} blocks")
            what = f"recovery at {self._blocks:,} blocks"
            one = self._runner.attempt(engine, what, lambda e=engine: self._one(e, repeats))  # type: ignore[misc]
            if one is not None:
                found.append(one)
        for path in self._folder.glob(f"*-{self._blocks}.bin*"):
            path.unlink()
        return found

    def _one(self, engine: str, repeats: int) -> Recovered:
        store = self._folder / f"{engine}-{self._blocks}"
        opened = store.with_name(f"{store.name}-opened")
        runs: list[RecoverResult] = []
        cache = []
        try:
            self._fill(engine, store)
            for _ in range(repeats):
                _copy(store, opened)
                found, how = self._open(engine, opened)
                shutil.rmtree(opened)
                if found.wrong:
                    self._runner.failures.append(f"{engine}, recovery at {self._blocks:,} blocks: {found.wrong}")
                runs.append(found)
                cache.append(how)
        finally:
            for path in (store, opened):
                shutil.rmtree(path, ignore_errors=True)
                Path(f"{path}.json").unlink(missing_ok=True)
        loaded = [run.loaded_ms for run in runs if run.loaded_ms is not None]
        return Recovered(
            engine=engine,
            blocks=self._blocks,
            open_ms=Spread.of([run.open_ms for run in runs]),
            answer_ms=Spread.of([run.answer_ms for run in runs]),
            loaded_ms=Spread.of(loaded) if loaded else None,
            page_cache=max(cache),
        )

    def _fill(self, engine: str, store: Path) -> None:
        if engine not in ENGINES:
            self._runner.rocks.fill(engine, str(store), str(self._requests), self._budget_bytes)
            return
        job = FillJob(
            engine=engine,
            folder=str(store),
            requests=str(self._requests),
            blocks=self._blocks,
            budget_bytes=self._budget_bytes,
        )
        worker = Worker(MODULE, job, Message)
        try:
            filled = result_of(worker, Filled)
            worker.kill()
            _kill_all(filled.processes)
        finally:
            worker.stop()

    def _open(self, engine: str, store: Path) -> tuple[RecoverResult, str]:
        if engine not in ENGINES:
            how = _dropped(store)
            return self._runner.rocks.recover(engine, str(store), str(self._probe), self._budget_bytes), how
        job = RecoverJob(
            engine=engine,
            folder=str(store),
            probe=str(self._probe),
            blocks=self._blocks,
            budget_bytes=self._budget_bytes,
        )
        worker = Worker(MODULE, job, Message)
        try:
            result_of(worker, Ready)
            how = _dropped(store)
            worker.go_on()
            found = result_of(worker, RecoverResult)
            worker.process.wait(60)
        finally:
            worker.stop()
        return found, how


def write_fill(requests: Path, probe: Path, blocks: int) -> None:
    """A request file of sequences that branch, about `blocks` unique blocks of them, and one question about the middle.

    Families of 512 blocks and 80 forks of 20 to 60 (`shapes.branching`). The question has some blocks that are unknown.
    """
    rng = np.random.default_rng(5)
    held: set[bytes] = set()
    asked: Ids | None = None
    with RequestWriter(requests) as writer:
        for number, ids in enumerate(branching(rng)):
            keys = [row.tobytes() for row in ids]
            known = next((i for i, key in enumerate(keys) if key not in held), len(keys))
            held.update(keys[known:])
            # The history is what is held already, so that an engine may insert the rest alone.
            writer.add(number, known, known, ids, np.zeros(len(ids)))
            if asked is None and len(held) >= blocks // 2:
                asked = ids[:PROBE_BLOCKS_MAX]
            if len(held) >= blocks:
                break
    assert asked is not None
    question = np.concatenate([asked, random_ids(rng, UNKNOWN_BLOCKS)])
    with RequestWriter(probe) as writer:
        writer.add(0, len(question), len(asked), question, np.zeros(len(question)))


def _copy(store: Path, copy: Path) -> None:
    """The same files; holes stay holes."""
    done = subprocess.run(  # noqa: S603 (coreutils)
        ["cp", "-a", "--sparse=always", str(store), str(copy)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"cannot copy its files: {done.stderr.decode(errors='replace').strip()}")


def _dropped(store: Path) -> str:
    how, left, pages = drop_page_cache(store)
    return f"{how}; {left} of {pages} pages left"


def _kill_all(processes: list[int]) -> None:
    """SIGKILL to each, and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _lives(process: int) -> bool:
    try:
        state = (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
