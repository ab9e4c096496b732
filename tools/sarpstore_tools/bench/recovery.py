"""`sarpstore bench recovery`: from a killed process to the first right answer of the next, cold."""

from __future__ import annotations

import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import UnusableFolderError, store_option, work_folder
from sarpstore_tools.bench.killing import Building, BuildJob, Built, Loaded, Message, Opened, OpenJob, Reading, Ready
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.bench.sizes import several_sizes
from sarpstore_tools.bench.worker import Failed, Worker, WorkerError
from sarpstore_tools.recovery import drop_page_cache
from sarpstore_tools.specreader.folder import kind_of, log_name, signature
from sarpstore_tools.specreader.structures import place

if TYPE_CHECKING:
    from pathlib import Path

Shape = Literal["plain", "branching"]

MODULE = "sarpstore_tools.bench.killing"
KILL_AFTER_SECONDS = (0.02, 0.5)
"""The kill comes at a random moment in this interval after the sync."""

ANSWER_TARGET_MS = 30.0
RATIO_TARGET = 1.5


class Recovered(msgspec.Struct, kw_only=True):
    """One killed store: its figures (times in milliseconds), and what was wrong."""

    figures: list[Figure]
    failures: list[str]
    answer_ms: float
    page_cache: list[tuple[str, int, int]]


@click.command("recovery", short_help="From kill -9 to the first right answer.")
@click.option(
    "--blocks", callback=several_sizes, default="1e6,1e7", show_default=True, help="Sizes of the stores, in blocks."
)
@click.option("--shape", type=click.Choice(["plain", "branching", "both"]), default="both", show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Openings of each store.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the blocks and of the kill's moment.")
@store_option
@report_options
@click.pass_context
def recovery_command(
    context: click.Context,
    blocks: list[int],
    shape: str,
    repeats: int,
    seed: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Build stores, kill their writer (SIGKILL) while it inserts, and time how soon another process answers.

    Milliseconds from calling open() to the first right answer, locations included, in a fresh process that has imported
    everything, the page cache of the store's files dropped. Every repeat opens the same files (hard links to them) and
    then loads all partitions. At last every checkpoint is left out, and the log alone is opened.
    """
    shapes: list[Shape] = ["plain", "branching"] if shape == "both" else [shape]  # type: ignore[list-item]
    figures: list[Figure] = []
    failures: list[str] = []
    cache: list[tuple[str, int, int]] = []
    with work_folder(store) as folder, _progress() as progress:
        machine = this_machine(folder)
        for one in shapes:
            answers = []
            for size in blocks:
                try:
                    found = _Killed(folder, one, size, seed, progress, keep=store is not None).run(repeats)
                except WorkerError as error:
                    raise UnusableFolderError(f"{one}, {size:,} blocks: {error}") from error
                figures += found.figures
                failures += found.failures
                cache += found.page_cache
                answers.append(found.answer_ms)
            if len(blocks) > 1:
                figures.append(_ratio(one, blocks, answers))
    method = [
        (
            "a child process inserts through the public API, syncs, and gets SIGKILL at a random moment "
            f"{KILL_AFTER_SECONDS[0]} to {KILL_AFTER_SECONDS[1]} s later while it goes on inserting"
        ),
        (
            "plain: sequences of 4,096 random blocks; branching: families of 512 blocks and 80 forks that leave an "
            "earlier one at a random block and add 20 to 60"
        ),
        (
            f"first answer: open() to the answer (up to 256 blocks, with locations, known), {repeats} fresh processes "
            "that had imported everything; each has its own hard links to the files, which nothing changes"
        ),
        *_page_cache(cache),
    ]
    report = Report(command="bench recovery", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


def _page_cache(drops: list[tuple[str, int, int]]) -> list[str]:
    """How it was dropped, and the one of all times when most was left."""
    if not drops:
        return []
    ways = sorted({how for how, _, _ in drops})
    _, left, pages = max(drops, key=lambda drop: drop[1])
    return [f"page cache before every opening: dropped by {', '.join(ways)}; at most {left} of {pages} pages were left"]


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


def _ratio(shape: Shape, blocks: list[int], answers: list[float]) -> Figure:
    ratio = answers[-1] / answers[0]
    return Figure(
        name=f"{shape}: first answer at {blocks[-1]:,} over {blocks[0]:,}",
        unit="x",
        value=ratio,
        least=ratio,
        greatest=ratio,
        target=RATIO_TARGET,
        note="of the medians",
    )


class _Killed:
    """One store: built, its writer killed, opened again and again."""

    def __init__(self, folder: Path, shape: Shape, blocks: int, seed: int, progress: Progress, *, keep: bool) -> None:
        self._name = f"{shape}, {blocks:,}"
        self._store = folder / f"{shape}-{blocks}"
        self._samples = folder / f"{shape}-{blocks}.npz"
        self._job = BuildJob(store=str(self._store), shape=shape, blocks=blocks, samples=str(self._samples), seed=seed)
        self._random = random.Random(f"{seed} {shape} {blocks}")  # noqa: S311 (no secret)
        self._progress = progress
        self._keep = keep
        self._failures: list[str] = []
        self._page_cache: list[tuple[str, int, int]] = []

    def run(self, repeats: int) -> Recovered:
        """Measure it all; afterwards the store is gone, unless it is to be kept."""
        built = self._build()
        before = signature(self._store)
        openings = [self._open(repeat) for repeat in range(repeats)]
        rebuilt = [self._open(repeat, checkpoints=False) for repeat in range(repeats)]
        if signature(self._store) != before:
            self._failures.append(f"{self._name}: the files changed: the repeats were none")
        states = {loaded.blocks for _, loaded in [*openings, *rebuilt]}
        if len(states) > 1:
            self._failures.append(f"{self._name}: openings found different numbers of blocks: {sorted(states)}")
        tail = self._tail_bytes(min(opened.checkpoint_position for opened, _ in openings))
        if not self._keep:
            shutil.rmtree(self._store)
            self._samples.unlink()
        figures = [
            self._figure("build and sync", "blocks/s", [built.blocks / built.seconds], more_is_better=True),
            self._figure(
                "first answer",
                "ms",
                [opened.answer_ms for opened, _ in openings],
                target=ANSWER_TARGET_MS,
                note=f"{max(states):,} blocks found, {built.blocks:,} synced",
            ),
            self._figure("open() alone", "ms", [opened.open_ms for opened, _ in openings]),
            self._figure("log behind the checkpoint", "MB", [tail / 1e6], note="replayed"),
            self._figure(
                "all partitions loaded",
                "ms",
                [loaded.load_ms for _, loaded in openings],
                note=f"{openings[0][0].unloaded:,} not yet at the first answer",
            ),
            self._figure("first answer, no checkpoint", "ms", [opened.answer_ms for opened, _ in rebuilt]),
        ]
        return Recovered(
            figures=figures, failures=self._failures, answer_ms=figures[1].value, page_cache=self._page_cache
        )

    def _figure(self, what: str, unit: str, values: list[float], **rest: Any) -> Figure:
        return measured(f"{self._name}: {what}", unit, values, **rest)

    def _build(self) -> Built:
        task = self._progress.add_task(f"{self._name}: building", total=self._job.blocks)
        worker = Worker(MODULE, self._job, Message)
        try:
            for message in worker.messages():
                if isinstance(message, Building):
                    self._progress.update(task, completed=message.blocks)
                elif isinstance(message, Failed):
                    raise WorkerError(message.reason)
                elif isinstance(message, Built):
                    self._progress.update(task, completed=self._job.blocks)
                    time.sleep(self._random.uniform(*KILL_AFTER_SECONDS))
                    if worker.process.poll() is not None:
                        break
                    return message
        finally:
            worker.stop()
        raise WorkerError(f"the building process ended by itself with status {worker.process.returncode}")

    def _open(self, number: int, *, checkpoints: bool = True) -> tuple[Opened, Loaded]:
        """Open a clone cold in a fresh process, which is killed after that."""
        clone = self._store.with_name(f"{self._store.name}-opened")
        _clone(self._store, clone, checkpoints=checkpoints)
        job = OpenJob(store=str(clone), samples=str(self._samples), sample=number, progress=not checkpoints)
        worker = Worker(MODULE, job, Message)
        try:
            worker.receive(Ready)
            self._page_cache.append(drop_page_cache(clone))
            worker.go_on()
            opened = self._opened(worker, progress=not checkpoints)
            loaded = worker.receive(Loaded)
        finally:
            worker.stop()
            shutil.rmtree(clone)
        wrong = [opened.wrong, *loaded.wrong]
        self._failures += [f"{self._name}, opening {number + 1}: {text}" for text in wrong if text]
        return opened, loaded

    def _opened(self, worker: Worker, *, progress: bool) -> Opened:
        if not progress:
            return worker.receive(Opened)
        task = self._progress.add_task(f"{self._name}: opening without a checkpoint", total=None)
        for message in worker.messages():
            if isinstance(message, Reading):
                self._progress.update(task, completed=message.done, total=message.total)
            elif isinstance(message, Failed):
                raise WorkerError(message.reason)
            elif isinstance(message, Opened):
                return message
        raise WorkerError(f"the opening process ended by itself with status {worker.process.wait()}")

    def _tail_bytes(self, position: int) -> int:
        """Bytes of the log files behind a position (all of them if it is 0: there was no checkpoint)."""
        number, offset = place(position)
        size = 0
        for path in self._store.glob("*.log"):
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
