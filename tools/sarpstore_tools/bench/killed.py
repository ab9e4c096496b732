"""A store whose writers are killed, seen from their parent: built, opened cold again and again, and checked."""

from __future__ import annotations

import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sarpstore_tools.bench.killing import (
    SAMPLES,
    Building,
    BuildJob,
    Built,
    GoingOn,
    GoOnJob,
    Loaded,
    Message,
    Opened,
    OpenJob,
    Reading,
    Ready,
)
from sarpstore_tools.bench.sizes import short
from sarpstore_tools.bench.worker import Failed, Worker, WorkerError
from sarpstore_tools.recovery import drop_page_cache
from sarpstore_tools.specreader.folder import kind_of, log_name
from sarpstore_tools.specreader.structures import place

if TYPE_CHECKING:
    from pathlib import Path

    from sarpstore_tools.bench.killing import Shape

MODULE = "sarpstore_tools.bench.killing"
KILL_AFTER_SECONDS = (0.02, 0.5)
"""The first kill comes at a random moment in this interval after the sync."""
KILL_AGAIN_SECONDS = (0.1, 0.6)
"""Every other kill comes at a random moment in this interval after the first insertion into the store opened again."""


def bench_progress() -> Progress:
    """A bar with percents and time, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


def page_cache_lines(drops: list[tuple[str, int, int]]) -> list[str]:
    """How it was dropped, and the one of all times when most was left."""
    if not drops:
        return []
    ways = sorted({how for how, _, _ in drops})
    _, left, pages = max(drops, key=lambda drop: drop[1])
    return [f"page cache before every opening: dropped by {', '.join(ways)}; at most {left} of {pages} pages were left"]


class KilledStore:
    """One store in a folder, its samples beside it, and what was wrong with it. `options` are those of every open."""

    def __init__(
        self, folder: Path, shape: Shape, blocks: int, seed: int, progress: Progress, options: dict[str, Any]
    ) -> None:
        self.name = f"{shape} {short(blocks)}"
        self.store = folder / f"{shape}-{blocks}"
        self.samples = folder / f"{shape}-{blocks}.npz"
        self.options = options
        self.failures: list[str] = []
        self.page_cache: list[tuple[str, int, int]] = []
        self._random = random.Random(f"{seed} {shape} {blocks}")  # noqa: S311 (no secret)
        self._progress = progress

    def fail(self, number: int, text: str) -> None:
        """Note what was wrong after kill `number`."""
        self.failures.append(f"{self.name}, kill {number + 1}: {text}")

    def remove(self) -> None:
        """Remove the store and its samples."""
        shutil.rmtree(self.store)
        self.samples.unlink()

    def build(self, job: BuildJob) -> tuple[Built, float]:
        """Let a writer insert, and kill it, that many seconds after the sync."""
        task = self._progress.add_task(f"{self.name}: building", total=job.blocks)
        worker = Worker(MODULE, job, Message)
        try:
            for message in worker.messages():
                if isinstance(message, Building):
                    self._progress.update(task, completed=message.blocks)
                elif isinstance(message, Failed):
                    raise WorkerError(message.reason)
                elif isinstance(message, Built):
                    self._progress.update(task, completed=job.blocks)
                    return message, self.kill(worker, KILL_AFTER_SECONDS)
        finally:
            worker.stop()
        raise WorkerError(f"the building process ended by itself with status {worker.process.wait()}")

    def go_on(self, job: GoOnJob) -> float:
        """Let another writer open the store and insert, and kill it, that many seconds after its first insertion."""
        worker = Worker(MODULE, job, Message)
        try:
            worker.receive(GoingOn)
            return self.kill(worker, KILL_AGAIN_SECONDS)
        finally:
            worker.stop()

    def kill(self, worker: Worker, interval: tuple[float, float]) -> float:
        """Kill a writer at a random moment in an interval from now."""
        after = self._random.uniform(*interval)
        time.sleep(after)
        if worker.process.poll() is not None:
            raise WorkerError(f"an inserting process ended by itself with status {worker.process.returncode}")
        worker.kill()
        return after

    def open(self, number: int, sample: int, *, checkpoints: bool = True) -> tuple[Opened, Loaded]:
        """Open a clone cold in a fresh process, which is killed after that; what is wrong is of kill `number`."""
        clone = self.store.with_name(f"{self.store.name}-opened")
        _clone(self.store, clone, checkpoints=checkpoints)
        job = OpenJob(
            store=str(clone),
            samples=str(self.samples),
            sample=sample,
            progress=not checkpoints,
            options=self.options,
        )
        worker = Worker(MODULE, job, Message)
        try:
            worker.receive(Ready)
            self.page_cache.append(drop_page_cache(clone))
            worker.go_on()
            opened = self._opened(worker, progress=not checkpoints)
            loaded = worker.receive(Loaded)
        finally:
            worker.stop()
            shutil.rmtree(clone)
        wrong = [opened.wrong, *loaded.wrong]
        for text in filter(None, wrong):
            self.fail(number, f"{'' if checkpoints else 'log alone, '}query {sample % SAMPLES + 1}: {text}")
        return opened, loaded

    def _opened(self, worker: Worker, *, progress: bool) -> Opened:
        if not progress:
            return worker.receive(Opened)
        task = self._progress.add_task(f"{self.name}: opening without a checkpoint", total=None)
        for message in worker.messages():
            if isinstance(message, Reading):
                self._progress.update(task, completed=message.done, total=message.total)
            elif isinstance(message, Failed):
                raise WorkerError(message.reason)
            elif isinstance(message, Opened):
                return message
        raise WorkerError(f"the opening process ended by itself with status {worker.process.wait()}")

    def tail_bytes(self, position: int) -> int:
        """Bytes of the log files behind a position (all of them if it is 0: there was no checkpoint)."""
        number, offset = place(position)
        size = 0
        for path in self.store.glob("*.log"):
            if path.name > log_name(number):
                size += path.stat().st_size
            elif path.name == log_name(number):
                size += max(0, path.stat().st_size - offset)
        return size


def _clone(store: Path, clone: Path, *, checkpoints: bool) -> None:
    """The same files under other names, by hard links: none of them is ever changed, only new ones are made."""
    clone.mkdir()
    for path in store.iterdir():
        if kind_of(path.name) in (("log", "checkpoint", "images") if checkpoints else ("log",)):
            os.link(path, clone / path.name)
