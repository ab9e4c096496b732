"""`sarpstore chunks crashtest`: kill a process in the middle of puts again and again, and check what survives."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, counted, finish, json_option
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import Machine, event_loop, this_machine
from sarpstore_tools.bench.worker import Worker
from sarpstore_tools.chunks.crashcheck import Checked, ChunkOracle, DiskWatch
from sarpstore_tools.chunks.crashing import BYTES_MAX, Began, ChunkCrashJob, Differs, Message, Stored
from sarpstore_tools.killpoints import CHUNK_POINTS, KillPoint, any_point
from sarpstore_tools.listening import (
    Listener,
    failures_of,
    kills_figure,
    points_figure,
    recovery_figures,
    stopped_early,
)

if TYPE_CHECKING:
    from pathlib import Path

MODULE: Final = "sarpstore_tools.chunks.crashing"
POINT_SECONDS_MAX: Final = 2.0
"""A process that has not come to its point by then is killed where it is."""

# Where a kill is aimed at: (its share, seconds after that began, at least and at most).
AIMS: Final[dict[str, tuple[float, float, float]]] = {
    "putting": (0.7, 0.02, 0.8),
    "opening": (0.15, 0.0, 0.03),
    "closing": (0.15, 0.0, 0.02),
}
_CLOSE_AFTER: Final = (0.05, 0.5)


class Round(msgspec.Struct, kw_only=True):
    """What one kill left. `broken`: the process ended or hung by itself, or the store does not open."""

    where: str
    point: KillPoint | None
    stored: int
    differed: int
    disk_bytes: int
    checked: Checked
    broken: bool
    messages: list[str] = []


@click.command("crashtest", short_help="Kill a process in the middle of puts and check what survives.")
@click.option("--kills", type=click.IntRange(min=1), default=50, show_default=True, help="Times to kill it.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of chunks and moments (default: a new one, shown).")
@click.option("--points", is_flag=True, help="It kills itself at named points, of its system calls.")
@click.option(
    "--seconds-max", type=click.FloatRange(min=0, min_open=True), help="Start no round after so many seconds."
)
@store_option
@json_option
@click.pass_context
def crashtest_command(
    context: click.Context,
    kills: int,
    seed: int | None,
    points: bool,
    seconds_max: float | None,
    store: Path | None,
    json_file: Any,
) -> None:
    """Kill (SIGKILL) a process that puts chunks, open the store that it leaves, and check it; again and again.

    The store is small, so that regions go all the time. After each kill every chunk whose put had returned must be
    there, unless a region that it stood in is gone; whatever is there must be what was put, its keys rotated for where
    it is asked for; the engine must find what a reader of the specification finds; `sarpstore verify` must find the
    files clean; and the files never take more than the bound, which is looked at all the time.

    With --points it is not killed at a random moment, but kills itself before, within or after some call that creates,
    writes, syncs, renames or removes a region, an entries file or a table, or syncs the folder.

    Exit status: 0 if nothing was lost, wrong or faulty, 1 otherwise, 2 if the test could not be done.
    """
    seed = secrets.randbits(32) if seed is None else seed
    deadline = time.monotonic() + (seconds_max or float("inf"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with work_folder(store) as folder, Progress(*columns, console=Console(stderr=True)) as progress:
        machine = this_machine(folder)
        task = progress.add_task(f"kills (seed {seed})", total=kills)
        test = ChunkCrashTest(folder / "store", seed, points=points)
        while len(test.rounds) < kills and time.monotonic() < deadline and not test.is_over:
            test.round()
            progress.update(task, completed=len(test.rounds))
    finish(context, _report(machine, test, kills), json_file)


class ChunkCrashTest:
    """One store through all rounds."""

    def __init__(self, store: Path, seed: int, *, points: bool) -> None:
        self.seed = seed
        self.points = points
        self.rounds: list[Round] = []
        self.is_over = False
        self._store = store
        self._opened = False
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._oracle = ChunkOracle(seed)

    def round(self) -> None:
        """Kill once, and check."""
        aim = self._random.choices(list(AIMS), [share for share, _, _ in AIMS.values()])[0]
        job = ChunkCrashJob(
            store=str(self._store),
            seed=self.seed,
            round=len(self.rounds),
            close_after=self._random.uniform(*_CLOSE_AFTER) if aim == "closing" else None,
            point=any_point(self._random, CHUNK_POINTS) if self.points else None,
        )
        self._store.mkdir(exist_ok=True)
        watch = DiskWatch(self._store)
        listener = Listener(Worker(MODULE, job, Message))
        if self.points:
            listener.await_death("putting", POINT_SECONDS_MAX)
        else:
            listener.kill_after(aim, self._random.uniform(*AIMS[aim][1:]))
        watch.stop()
        for message in listener.heard:
            if isinstance(message, Began):
                self._oracle.began(message.document)
            elif isinstance(message, Stored):
                self._oracle.stored(message)
        self.rounds.append(self._checked(listener, watch, job.point if listener.killed_itself else None))

    def _checked(self, listener: Listener, watch: DiskWatch, point: KillPoint | None) -> Round:
        checked, broken = Checked(), listener.failed
        try:
            if self._exists(listener):
                checked = self._check()
        except sarpstore.SarpError as error:
            broken = f"the store does not open: {type(error).__name__}: {error}"
        self.is_over = bool(broken)
        return Round(
            where=listener.where,
            point=point,
            stored=sum(isinstance(message, Stored) for message in listener.heard),
            differed=sum(isinstance(message, Differs) for message in listener.heard),
            disk_bytes=watch.highest,
            checked=checked,
            broken=bool(broken),
            messages=[text for text in (broken, *checked.messages) if text],
        )

    def _check(self) -> Checked:
        """Half of the time of a copy: then the next round's process finds what this one's kill left."""
        place = self._store
        if self._random.random() < 0.5:
            place = self._store.with_name("copy")
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self._store, place)
        with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
            return runner.run(self._oracle.check(place))

    def _exists(self, listener: Listener) -> bool:
        """Whether there must be a store: until one has been opened, a kill may come before it is made."""
        self._opened = self._opened or listener.where not in ("starting", "opening")
        return self._opened or any(self._store.glob("*.chunks"))


def _report(machine: Machine, test: ChunkCrashTest, kills: int) -> Report:
    rounds = test.rounds
    checks = [one.checked for one in rounds]
    asked = f"{sum(one.asked for one in checks):,} chunks asked for, {sum(one.held for one in checks):,} loaded"
    highest = max(one.disk_bytes for one in rounds)
    figures = [
        kills_figure(rounds),
        *([points_figure(rounds)] if test.points else []),
        counted("acknowledged puts", sum(one.stored for one in rounds)),
        counted("of these gone with a region", sum(one.gone for one in checks), note="evicted"),
        counted("lost chunks", sum(one.lost for one in checks), target=0.0, note=asked),
        counted("wrong payloads or answers", sum(one.wrong for one in checks), target=0.0, note=asked),
        counted("wrong payloads beside the puts", sum(one.differed for one in rounds), target=0.0),
        counted("damaged payloads", sum(one.damaged for one in checks), target=0.0, note="a kill damages none"),
        counted("verify faults", sum(one.faults for one in checks), target=0.0, note="after every kill"),
        Figure(name="disk, at most", unit="of the bound", value=highest / BYTES_MAX, least=0, greatest=1, target=1.0),
        counted("failures to open or to put", sum(one.broken for one in rounds), target=0.0),
    ]
    figures += recovery_figures([one.recovery_ms for one in checks], "open to the first plan")
    return Report(
        command=f"chunks crashtest, seed {test.seed}",
        machine=machine,
        method=_method(test, kills),
        figures=figures,
        failures=failures_of(rounds),
    )


def _method(test: ChunkCrashTest, kills: int) -> list[str]:
    least, most = AIMS["putting"][1:]
    moments = f"{least:g} to {most:g} s after putting began, or aimed at an open or a close"
    if test.points:
        moments = "by itself, before, within or after a system call that changes its files"
    copies = "half of the checks are of a copy: then the next process recovers by itself"
    method = [
        f"seed {test.seed}; SIGKILL, {moments}; one store of {BYTES_MAX >> 20} MiB through all rounds",
        f"all documents are asked for, and 20 that are never put; {copies}",
    ]
    if len(test.rounds) < kills and not test.is_over:
        method.append(stopped_early(len(test.rounds), kills))
    return method
