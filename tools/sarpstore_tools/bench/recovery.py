"""`sarpstore bench recovery`: from a killed process to the first right answer of the next, cold."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sarpstore_tools.bench.figures import (
    Figure,
    Report,
    finish,
    measured,
    measured_in_groups,
    report_options,
)
from sarpstore_tools.bench.folders import UnusableFolderError, store_option, work_folder
from sarpstore_tools.bench.killed import (
    KILL_AFTER_SECONDS,
    KILL_AGAIN_SECONDS,
    KilledStore,
    bench_progress,
    page_cache_lines,
)
from sarpstore_tools.bench.killing import BuildJob, Built, GoOnJob, Loaded, Opened
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.bench.sizes import several_sizes, short
from sarpstore_tools.bench.worker import WorkerError
from sarpstore_tools.specreader.folder import signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.progress import Progress

    from sarpstore_tools.bench.killing import Shape

ANSWER_TARGET_MS = 30.0
RATIO_TARGET = 1.5


class Recovered(msgspec.Struct, kw_only=True):
    """One store, killed several times: its figures (times in milliseconds), each kill in words, what was wrong."""

    figures: list[Figure]
    kills: str
    failures: list[str]
    answer_ms: float
    page_cache: list[tuple[str, int, int]]


class _Kill(msgspec.Struct, kw_only=True):
    """One kill, `after_seconds` of inserting: log bytes behind the checkpoint, and what the openings found."""

    after_seconds: float
    tail: int
    blocks: int
    openings: list[tuple[Opened, Loaded]]

    @property
    def answer_ms(self) -> float:
        """The median over the openings."""
        return statistics.median(opened.answer_ms for opened, _ in self.openings)


@click.command("recovery", short_help="From kill -9 to the first right answer.")
@click.option(
    "--blocks", callback=several_sizes, default="1e6,1e7", show_default=True, help="Sizes of the stores, in blocks."
)
@click.option("--shape", type=click.Choice(["plain", "branching", "both"]), default="both", show_default=True)
@click.option("--kills", type=click.IntRange(min=1), default=5, show_default=True, help="Kills of each store's writer.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Openings after each kill.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the blocks and of the kills' moments.",
)
@store_option
@report_options
@click.pass_context
def recovery_command(
    context: click.Context,
    blocks: list[int],
    shape: str,
    kills: int,
    repeats: int,
    seed: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Build stores, kill their writers (SIGKILL) while they insert, and time how soon another process answers.

    Milliseconds from calling open() to the first right answer, locations included, in a fresh process that has imported
    everything, the page cache of the store's files dropped. Every repeat opens the same files (hard links to them) and
    then loads all partitions. After the first kill, the log alone is opened too, without any checkpoint. Then another
    writer opens the store, goes on inserting, and is killed, until there were --kills; the medians are over the kills.
    """
    shapes: list[Shape] = ["plain", "branching"] if shape == "both" else [shape]  # type: ignore[list-item]
    figures: list[Figure] = []
    failures: list[str] = []
    moments: list[str] = []
    cache: list[tuple[str, int, int]] = []
    with work_folder(store) as folder, bench_progress() as progress:
        machine = this_machine(folder)
        for one in shapes:
            answers = []
            for size in blocks:
                try:
                    found = _Killed(folder, one, size, seed, progress, keep=store is not None).run(kills, repeats)
                except WorkerError as error:
                    raise UnusableFolderError(f"{one}, {size:,} blocks: {error}") from error
                figures += found.figures
                failures += found.failures
                moments.append(found.kills)
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
            "for every other kill, a fresh child opens the same store, goes on inserting, and gets SIGKILL "
            f"{KILL_AGAIN_SECONDS[0]} to {KILL_AGAIN_SECONDS[1]} s after its first insertion (seed {seed})"
        ),
        (
            "plain: sequences of 4,096 random blocks; branching: families of 512 blocks and 80 forks that leave an "
            "earlier one at a random block and add 20 to 60"
        ),
        (
            f"first answer: open() to the answer (up to 256 blocks, with locations, known), {repeats} fresh processes "
            "a kill that had imported everything; each has its own hard links to the files, which nothing changes"
        ),
        (
            f"times: the median over {kills} kills of the median over a kill's openings; the least and the greatest of "
            "all openings; log alone: after the first kill, no checkpoint"
        ),
        *moments,
        *page_cache_lines(cache),
    ]
    report = Report(command="bench recovery", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


def _ratio(shape: Shape, blocks: list[int], answers: list[float]) -> Figure:
    ratio = answers[-1] / answers[0]
    return Figure(
        name=f"{shape}: first answer, {short(blocks[-1])} / {short(blocks[0])}",
        unit="x",
        value=ratio,
        least=ratio,
        greatest=ratio,
        target=RATIO_TARGET,
        note="of the medians",
    )


class _Killed(KilledStore):
    """One store: built, its writers killed one after another, opened again and again after each kill."""

    def __init__(self, folder: Path, shape: Shape, blocks: int, seed: int, progress: Progress, *, keep: bool) -> None:
        super().__init__(folder, shape, blocks, seed, progress, options={})
        self._job = BuildJob(store=str(self.store), shape=shape, blocks=blocks, samples=str(self.samples), seed=seed)
        self._keep = keep

    def run(self, kills: int, repeats: int) -> Recovered:
        """Measure it all; afterwards the store is gone, unless it is to be kept."""
        built, after = self.build(self._job)
        task = self._progress.add_task(f"{self.name}: opening after kills", total=kills * repeats)
        done: list[_Kill] = []
        log_alone: list[tuple[Opened, Loaded]] = []
        for number in range(kills):
            if number:
                job = GoOnJob(store=self._job.store, shape=self._job.shape, seed=self._job.seed, round=number)
                after = self.go_on(job)
            before = signature(self.store)
            openings = []
            for repeat in range(repeats):
                openings.append(self.open(number, number * repeats + repeat))
                self._progress.advance(task)
            if not number:
                log_alone = [self.open(number, repeat, checkpoints=False) for repeat in range(repeats)]
            if signature(self.store) != before:
                self.fail(number, "the files changed: the repeats were none")
            done.append(self._checked(number, after, openings, [] if number else log_alone, done))
        if not self._keep:
            self.remove()
        figures = self._figures(built, done, log_alone)
        return Recovered(
            figures=figures,
            kills=self._kills(done),
            failures=self.failures,
            answer_ms=figures[1].value,
            page_cache=self.page_cache,
        )

    def _checked(
        self,
        number: int,
        after: float,
        openings: list[tuple[Opened, Loaded]],
        log_alone: list[tuple[Opened, Loaded]],
        earlier: list[_Kill],
    ) -> _Kill:
        """One kill; all of its openings must have found the same blocks, and no fewer than were there before."""
        states = {loaded.blocks for _, loaded in [*openings, *log_alone]}
        if len(states) > 1:
            self.fail(number, f"openings found different numbers of blocks: {sorted(states)}")
        if earlier and min(states) < earlier[-1].blocks:
            self.fail(number, f"{min(states):,} blocks found, {earlier[-1].blocks:,} after the kill before")
        return _Kill(
            after_seconds=after,
            tail=self.tail_bytes(min(opened.checkpoint_position for opened, _ in openings)),
            blocks=min(states),
            openings=openings,
        )

    def _figures(self, built: Built, kills: list[_Kill], log_alone: list[tuple[Opened, Loaded]]) -> list[Figure]:
        def timed(what: str, time_of: Callable[[Opened, Loaded], float], **rest: Any) -> Figure:
            groups = [[time_of(*opening) for opening in kill.openings] for kill in kills]
            return measured_in_groups(f"{self.name}: {what}", "ms", groups, **rest)

        unloaded = max(opened.unloaded for kill in kills for opened, _ in kill.openings)
        return [
            self._figure("build and sync", "blocks/s", [built.blocks / built.seconds], more_is_better=True),
            timed(
                "first answer",
                lambda opened, _: opened.answer_ms,
                target=ANSWER_TARGET_MS,
                note=f"{len(kills)} kills x {len(log_alone)} openings",
            ),
            timed("open() alone", lambda opened, _: opened.open_ms),
            self._figure("log to replay", "MB", [kill.tail / 1e6 for kill in kills], note="behind the checkpoint"),
            timed("all loaded", lambda _, loaded: loaded.load_ms, note=f"up to {unloaded:,} to go"),
            self._figure("blocks found", "", [kill.blocks for kill in kills], note=f"{built.blocks:,} synced"),
            self._figure("answer, log alone", "ms", [opened.answer_ms for opened, _ in log_alone]),
        ]

    def _kills(self, kills: list[_Kill]) -> str:
        """Each kill on its own, in one line for all of them."""
        each = [f"{kill.after_seconds:.3f} s, {kill.tail / 1e6:.2f} MB, {kill.answer_ms:.1f} ms" for kill in kills]
        return f"{self.name}: kills (moment, log to replay, first answer): {'; '.join(each)}"

    def _figure(self, what: str, unit: str, values: list[float], **rest: Any) -> Figure:
        return measured(f"{self.name}: {what}", unit, values, **rest)
