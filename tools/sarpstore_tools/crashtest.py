"""`sarpstore crashtest`: kill a writer again and again, and check what survives."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, counted, finish, json_option
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import Machine, event_loop, this_machine
from sarpstore_tools.bench.worker import Worker
from sarpstore_tools.churncheck import ChurnOracle
from sarpstore_tools.churning import TREES, Churned
from sarpstore_tools.crashcheck import NOT_CHECKED, Checked, Oracle, verify_faults
from sarpstore_tools.crashing import Acknowledged, Began, CrashJob, Message, Where
from sarpstore_tools.killpoints import KillPoint, any_point
from sarpstore_tools.listening import (
    Listener,
    failures_of,
    kills_figure,
    points_figure,
    recovery_figures,
    stopped_early,
)
from sarpstore_tools.powercut import FILE_SYSTEMS, CutDisk, NoPowerCutError, cut_disk

MODULE = "sarpstore_tools.crashing"
OLD_TREES_CHECKED = 100
"""Trees of earlier rounds that are asked for again after each kill; after the last, all are."""

# Where a kill is aimed at: (its share, seconds after that began, at least and at most).
AIMS: dict[Where, tuple[float, float, float]] = {
    "inserting": (0.55, 0.02, 0.5),
    "opening": (0.15, 0.0, 0.03),
    "checkpointing": (0.2, 0.0, 0.01),
    "closing": (0.1, 0.0, 0.02),
}


POINT_SECONDS_MAX = 2.0
"""A process that has not come to its point by then is killed where it is."""

# With removals it is history that matters, of one small store: many short rounds.
REMOVALS_SECONDS_SHARE = 0.4
REMOVALS_VERIFIED_EVERY = 10


class Round(msgspec.Struct, kw_only=True):
    """What one kill left. `broken`: the process ended or hung by itself, or the store does not open."""

    where: str
    point: KillPoint | None
    insertions: int
    blocks: int
    checked: Checked
    faults: int
    broken: bool
    messages: list[str] = []


@click.command("crashtest", short_help="Kill a writer again and again and check what survives.")
@click.option("--kills", type=click.IntRange(min=1), default=50, show_default=True, help="Times to kill the writer.")
@click.option("--durability", type=click.Choice(["always", "interval", "never"]), default="always", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of blocks and moments (default: a new one, shown).")
@click.option("--removals", is_flag=True, help="Remove, too: short rounds, on a few small trees.")
@click.option("--points", is_flag=True, help="The writer kills itself at named points, of its system calls.")
@click.option(
    "--power-cuts",
    type=click.Choice(list(FILE_SYSTEMS)),
    help="Cut the power, too: the store is on a file system of this type, in a file. Needs root.",
)
@click.option(
    "--seconds-max", type=click.FloatRange(min=0, min_open=True), help="Start no round after so many seconds."
)
@store_option
@json_option
@click.pass_context
def crashtest(
    context: click.Context,
    kills: int,
    durability: Literal["always", "interval", "never"],
    seed: int | None,
    removals: bool,
    points: bool,
    power_cuts: str | None,
    seconds_max: float | None,
    store: Path | None,
    json_file: Any,
) -> None:
    """Kill (SIGKILL) a process that inserts, open the store that it leaves, and check it; again and again, one store.

    After each kill everything that was acknowledged must match with its locations, and nothing that was never inserted
    may. An insertion counts as acknowledged when its await returned under durability "always", or when a later sync()
    returned. `sarpstore verify` must find the files clean.

    With --removals the process also removes blocks, clears holders and compacts, each of its tasks with a holder of its
    own. After each kill every holder must have exactly what some number of its operations made, in their order, and at
    least those that were acknowledged: nothing that was removed comes back.

    With --points it is not killed at a random moment, but kills itself before, within or after some call that creates,
    writes, syncs, renames or removes a log file, images or a checkpoint, or syncs the folder.

    With --power-cuts its file system is shut down just before, as by a power cut, and mounted again: what was not
    synced is gone. What had reached the disk stays; that a disk loses its own cache is not tried.

    Exit status: 0 if nothing was lost, wrong or faulty, 1 otherwise, 2 if the test could not be done.
    """
    seed = secrets.randbits(32) if seed is None else seed
    deadline = time.monotonic() + (seconds_max or float("inf"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(work_folder(store))
        disk = _disk(stack, folder, power_cuts)
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        machine = this_machine(folder)
        task = progress.add_task(f"kills (seed {seed})", total=kills)
        place = str((disk.folder if disk else folder) / "store")
        test = _CrashTest(place, durability, seed, removals=removals, points=points, disk=disk)
        while len(test.rounds) < kills and time.monotonic() < deadline and not test.is_over:
            test.round(is_last=len(test.rounds) + 1 == kills)
            progress.update(task, completed=len(test.rounds))
    finish(context, _report(machine, test, kills), json_file)


def _disk(stack: contextlib.ExitStack, folder: Path, file_system: str | None) -> CutDisk | None:
    """The disk whose power is cut, if any is."""
    if file_system is None:
        return None
    try:
        return stack.enter_context(cut_disk(folder, file_system))
    except NoPowerCutError as error:
        raise CannotCutError(str(error)) from None


class CannotCutError(click.ClickException):
    """There is no disk here whose power could be cut."""

    exit_code = 2


class _CrashTest:
    """One store through all rounds."""

    def __init__(
        self,
        store: str,
        durability: Literal["always", "interval", "never"],
        seed: int,
        *,
        removals: bool,
        points: bool,
        disk: CutDisk | None,
    ) -> None:
        self.disk = disk
        self.removals = removals
        self.points = points
        self.seed = seed
        self.durability = durability
        self.rounds: list[Round] = []
        self.is_over = False
        self._opened = False
        self._store = store
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._oracle: Oracle | ChurnOracle = ChurnOracle(seed) if removals else Oracle(seed)

    def round(self, *, is_last: bool) -> None:
        """Kill once, and check."""
        before = self._oracle.trees
        aim = self._random.choices(list(AIMS), [share for share, _, _ in AIMS.values()])[0]
        share = REMOVALS_SECONDS_SHARE if self.removals else 1.0
        job = CrashJob(
            store=self._store,
            durability=self.durability,
            seed=self.seed,
            round=len(self.rounds),
            first_tree=max(before, default=-1) + 1,
            close_after=self._random.uniform(0.02, 0.3) * share if aim == "closing" else None,
            removals=self.removals,
            point=any_point(self._random) if self.points else None,
            power_cut=self.disk is not None,
        )
        listener = Listener(Worker(MODULE, job, Message | Churned), self.disk)
        if self.points:
            listener.await_death("inserting", POINT_SECONDS_MAX)
        else:
            listener.kill_after(aim, self._random.uniform(*AIMS[aim][1:]) * share)
        heard = _Heard(listener)
        touched = set()
        for op in heard.ops.values():
            self._oracle.began(op)
            touched.add(op.tree)
        for number in heard.acknowledged:
            self._oracle.acknowledged(heard.ops[number])
        old = self._oracle.trees
        if not is_last:
            old = self._random.sample(before, min(len(before), OLD_TREES_CHECKED))
        verified = is_last or not self.removals or len(self.rounds) % REMOVALS_VERIFIED_EVERY == 0
        point = job.point if listener.killed_itself else None
        self.rounds.append(self._check(listener, heard, point, sorted({*touched, *old}), verified=verified))

    def _check(
        self, listener: Listener, heard: _Heard, point: KillPoint | None, trees: list[int], *, verified: bool
    ) -> Round:
        # A reader leaves the files as they are: then the next round's writer finds what this one's kill left.
        read_only = self._random.random() < 0.5
        checked, faults, fault = Checked(), 0, ""
        broken = listener.failed
        try:
            if self._exists(listener):
                with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
                    checked = runner.run(self._oracle.check(self._store, trees, read_only=read_only))
                faults, fault = verify_faults(self._store) if verified else (0, "")
        except sarpstore.SarpError as error:
            broken = f"the store does not open: {type(error).__name__}: {error}"
        self.is_over = bool(broken)
        return Round(
            where=listener.where,
            point=point,
            insertions=len(heard.acknowledged),
            blocks=sum(_inserted(heard.ops[number]) for number in heard.acknowledged),
            checked=checked,
            faults=faults,
            broken=bool(broken),
            messages=[text for text in (broken, fault, *checked.messages) if text],
        )

    def _exists(self, listener: Listener) -> bool:
        """Whether there must be a store: until one has been opened, a kill may come before it is made."""
        self._opened = self._opened or listener.where not in ("starting", "opening")
        return self._opened or any(Path(self._store).glob("*.log"))


class _Heard:
    """What the process had begun, and what of it was acknowledged."""

    def __init__(self, listener: Listener) -> None:
        self.ops: dict[int, Any] = {}
        self.acknowledged: list[int] = []
        for number, message in enumerate(listener.heard):
            if isinstance(message, Began | Churned):
                self.ops[message.op] = message
            elif isinstance(message, Acknowledged) and number < listener.heard_before:
                self.acknowledged += message.ops


def _inserted(op: Began | Churned) -> int:
    """Blocks of an insertion; of another operation none."""
    if isinstance(op, Began):
        return op.blocks
    return op.blocks[0] if op.kind == "insert" else 0


def _report(machine: Machine, test: _CrashTest, kills: int) -> Report:
    rounds = test.rounds
    queries = f"{sum(one.checked.queries for one in rounds):,} queries"
    broken = sum(one.broken for one in rounds)
    operations = "operations" if test.removals else "insertions"
    figures = [
        kills_figure(rounds),
        counted(f"acknowledged {operations}", sum(one.insertions for one in rounds)),
        counted("acknowledged blocks", sum(one.blocks for one in rounds), note="of all insertions together"),
        counted("lost blocks", sum(one.checked.lost_blocks for one in rounds), target=0.0, note=queries),
        *([points_figure(rounds)] if test.points else []),
        *_returned(test),
        counted("wrong answers", sum(one.checked.wrong for one in rounds), target=0.0, note=queries),
        counted("damaged records", sum(one.checked.damaged for one in rounds), target=0.0, note="a kill damages none"),
        _verify(test),
        counted("failures to open or to write", broken, target=0.0),
    ]
    figures += recovery_figures([one.checked.recovery_ms for one in rounds], "open() to the first answer")
    method = _method(test)
    if len(rounds) < kills and not test.is_over:
        method.append(stopped_early(len(rounds), kills))
    return Report(
        command=f"crashtest, seed {test.seed}",
        machine=machine,
        method=method,
        figures=figures,
        failures=failures_of(rounds),
    )


def _returned(test: _CrashTest) -> list[Figure]:
    """What was removed and came back."""
    if not test.removals:
        return []
    blocks = sum(one.checked.returned_blocks for one in test.rounds)
    return [
        counted("removed blocks that came back", blocks, target=0.0, note="or that are behind one that was removed")
    ]


def _verify(test: _CrashTest) -> Figure:
    unchecked = sum(one.faults == NOT_CHECKED for one in test.rounds)
    if unchecked:
        return counted("verify: rounds NOT CHECKED", unchecked, target=0.0, note="there is no sarpstore verify")
    note = f"after one kill of {REMOVALS_VERIFIED_EVERY}, and the last" if test.removals else "after every kill"
    return counted("verify faults", sum(one.faults for one in test.rounds), target=0.0, note=note)


def _method(test: _CrashTest) -> list[str]:
    least, most = AIMS["inserting"][1:]
    share = REMOVALS_SECONDS_SHARE if test.removals else 1.0
    asked = (
        "every sequence of a round, and 100 trees of earlier ones (after the last kill: all), with more blocks "
        "than were ever inserted"
    )
    if test.removals:
        asked = (
            f"every sequence of all {len(TREES)} trees; what matches of a holder's must be what some number of its "
            "operations made, at least the acknowledged ones"
        )
    moments = (
        f"{least * share:g} to {most * share:g} s after inserting began, or aimed at an open, a checkpoint or a close"
    )
    if test.points:
        moments = "by itself, before, within or after a system call that changes its files"
    how = "SIGKILL" if test.disk is None else "power cut (its file system shut down), then SIGKILL"
    return [
        f"seed {test.seed}; durability {test.durability}; {how}, {moments}; one store through all rounds",
        f"{asked}; half of the checks open read-only, so that the next writer recovers by itself",
    ]
