"""`sarpstore bench scale`: building, disk, memory, checkpoints and recovery at sizes far above the usual."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sarpstore_tools.bench.extrapolation import MEASURED_MIN, extrapolated
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import UnusableFolderError, store_option, work_folder
from sarpstore_tools.bench.killed import KILL_AFTER_SECONDS, KilledStore, bench_progress, page_cache_lines
from sarpstore_tools.bench.killing import BuildJob, Built, Loaded, Opened
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.bench.sizes import several_sizes, short
from sarpstore_tools.bench.usage import disk_use, free_bytes
from sarpstore_tools.bench.worker import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.progress import Progress

ANSWER_TARGET_MS = 30.0
ANSWER_RATIO_TARGET = 1.5
MAKING_TARGET = 33.0
"""The most that making the blocks may be of a build's time, in percent: at 50 the bench would measure itself."""

DISK_BYTES_A_BLOCK = 64.0
"""What a block is taken to need on the disk until a smaller store has been measured: 32 and as much for dead records,
checkpoints and summaries."""
ROOM_RESERVE = 1.1
"""Room that must be free, over what a store is expected to need."""

LOG_FILES_MAX = 1000
LOG_FILE_BYTES = (4 << 20, 1 << 30)
DIRECTORY_BYTES_A_BLOCK = 2
DIRECTORY_BYTES_MIN = 1 << 30

KILLS = {0: "halfway", 1: "at the end"}
"""When the writers are killed: behind the first half of the blocks, and behind all of them."""

ON_DISK_A_BLOCK = "on disk, a block"
FIRST_ANSWER = "first answer, at the end"
"""Figures that others are made of."""

NOT_ENOUGH = f"not measured, and not extrapolated either, which takes {MEASURED_MIN} sizes that were measured"


def options_for(blocks: int) -> dict[str, Any]:
    """Options with which a store of so many blocks is opened.

    A log file is a descriptor while it is read, one of 65,535 slots, and 16 bytes of the head that every open reads:
    so there should be few. But the file that is being written is replayed record by record after a kill, where sealed
    ones are replayed from their summaries: so it should be small. Hence the smallest power of two, from the default
    4 MiB on, with which the log has at most 1,000 files.

    The directory takes about half a byte a block; its bound only reserves addresses.
    """
    log_bytes, (file_bytes, most) = blocks * DISK_BYTES_A_BLOCK, LOG_FILE_BYTES
    while file_bytes < most and log_bytes / file_bytes > LOG_FILES_MAX:
        file_bytes *= 2
    return {
        "log_file_bytes": file_bytes,
        "directory_bytes_max": max(DIRECTORY_BYTES_MIN, DIRECTORY_BYTES_A_BLOCK * blocks),
    }


class Scaled(msgspec.Struct, kw_only=True):
    """One store: its figures by name, without its size in front; what was wrong, and how the page cache was dropped."""

    blocks: int
    figures: dict[str, Figure]
    failures: list[str]
    page_cache: list[tuple[str, int, int]]

    def value(self, name: str) -> float:
        """The figure of that name."""
        return self.figures[name].value


@click.command("scale", short_help="Building, disk, memory and recovery at 10^7 to 10^9 blocks.")
@click.option(
    "--blocks", callback=several_sizes, default="1e6,1e7,1e8", show_default=True, help="Sizes of the stores, in blocks."
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Openings after each kill.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of blocks and kills' moments.")
@store_option
@report_options
@click.pass_context
def scale_command(
    context: click.Context,
    blocks: list[int],
    repeats: int,
    seed: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Build stores of sessions that share prompts, kill their writers (SIGKILL) halfway and at the end, and open them.

    Each store is built by a child process through `insert_ids`, half of it, killed while it goes on inserting; another
    builds the rest, writes a checkpoint, and is killed in its turn. After each kill, fresh processes that have imported
    everything open the same files cold and time their first right answer. A size that the disk has no room for is not
    tried: its figures are extrapolated from the three largest that were measured, and are called so.
    """
    failures: list[str] = []
    done: list[Scaled] = []
    refused: dict[int, str] = {}
    with work_folder(store) as folder, bench_progress() as progress:
        machine = this_machine(folder)
        for size in blocks:
            if reason := no_room(size, done, free_bytes(folder)):
                refused[size] = reason
                continue
            try:
                done.append(_ScaledStore(folder, size, seed, progress).run(repeats, keep=store is not None))
            except WorkerError as error:
                raise UnusableFolderError(f"{size:,} blocks: {error}") from error
    if not done:
        raise UnusableFolderError("; ".join(refused.values()))
    figures = [figure for one in done for figure in _named(one.figures.values(), short(one.blocks))]
    figures += _ratios(done)
    method = _method(repeats, blocks, seed)
    for size, reason in refused.items():
        guessed = _extrapolated(size, done)
        figures += guessed
        method.append(f"{reason}: {'EXTRAPOLATED, not measured' if guessed else NOT_ENOUGH}")
    method += page_cache_lines([drop for one in done for drop in one.page_cache])
    failures += [text for one in done for text in one.failures]
    report = Report(command="bench scale", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


def _method(repeats: int, blocks: list[int], seed: int) -> list[str]:
    options = ", ".join(
        f"{short(size)}: {options_for(size)['log_file_bytes'] >> 20} MiB, {options_for(size)['directory_bytes_max']:,}"
        for size in blocks
    )
    return [
        (
            "sessions: 16 to 256 blocks of one of 64 shared prompts, then 4 to 2,048 of their own in one to four "
            f"turns; each turn inserts the whole history by insert_ids; random 16-byte ids (seed {seed})"
        ),
        (
            "build: from calling open() to the end of sync(), both halves together, and the slower and the faster "
            "half; driver: the share of that time in which the bench made ids and locations"
        ),
        (
            "kills: SIGKILL "
            f"{KILL_AFTER_SECONDS[0]} to {KILL_AFTER_SECONDS[1]} s after the sync (and, at the end, the checkpoint), "
            "while the process goes on inserting"
        ),
        (
            f"first answer: open() to the right answer (up to 256 blocks, with locations, known), {repeats} fresh "
            "processes a kill that had imported everything; each has its own hard links to the files"
        ),
        (
            "memory: resident memory of the whole process (Python and numpy are some 50 MB of it); on disk: st_blocks "
            "of all files after the last kill, checkpoints included; checkpoint: the time that checkpoint() takes"
        ),
        (
            f"log_file_bytes and directory_bytes_max, {options}; files: the smallest power of two from 4 MiB on with "
            f"which {DISK_BYTES_A_BLOCK:.0f} bytes a block are at most {LOG_FILES_MAX:,} files (each is a descriptor, "
            "a slot of 65,535 and 16 bytes of the head; but what is not sealed is replayed record by record)"
        ),
    ]


def no_room(blocks: int, done: list[Scaled], free: int) -> str:
    """Why there is no room for a store of so many blocks; empty: there is."""
    measured_bytes = max((one.value(ON_DISK_A_BLOCK) for one in done), default=DISK_BYTES_A_BLOCK)
    needed = blocks * measured_bytes * ROOM_RESERVE
    if needed <= free:
        return ""
    return f"{short(blocks)} blocks need {needed / 1e9:,.1f} GB on the disk, {free / 1e9:,.1f} GB are free"


class _ScaledStore(KilledStore):
    """One store: built and killed twice, opened again and again after each kill."""

    def __init__(self, folder: Path, blocks: int, seed: int, progress: Progress) -> None:
        super().__init__(folder, "sessions", blocks, seed, progress, options_for(blocks))
        self._blocks = blocks
        self._seed = seed

    def run(self, repeats: int, *, keep: bool) -> Scaled:
        """Measure it all; afterwards the store is gone, unless it is to be kept."""
        built: list[Built] = []
        openings: list[list[tuple[Opened, Loaded]]] = []
        tails: list[int] = []
        for number in KILLS:
            built.append(self.build(self._job(number))[0])
            openings.append([self.open(number, repeat) for repeat in range(repeats)])
            tails.append(self.tail_bytes(min(opened.checkpoint_position for opened, _ in openings[-1])))
            self._check(number, built[-1], openings[-1])
        found = openings[-1][0][1].blocks
        used, log = disk_use(self.store).allocated, self.tail_bytes(0)
        if not keep:
            self.remove()
        figures = [
            *self._figures_built(built),
            _one("on disk", "MB", used / 1e6, note=f"{found:,} blocks"),
            _one(ON_DISK_A_BLOCK, "B", used / found, note="all files"),
            _one("log, a block", "B", log / found, note="with dead records"),
            *self._figures_opened(openings, tails),
        ]
        named = {figure.name: figure for figure in figures}
        return Scaled(blocks=self._blocks, figures=named, failures=self.failures, page_cache=self.page_cache)

    def _job(self, number: int) -> BuildJob:
        return BuildJob(
            store=str(self.store),
            shape="sessions",
            blocks=self._blocks * (number + 1) // len(KILLS),
            samples=str(self.samples),
            seed=self._seed,
            round=number,
            checkpoint=number == len(KILLS) - 1,
            options=self.options,
        )

    def _check(self, number: int, built: Built, openings: list[tuple[Opened, Loaded]]) -> None:
        """All openings after a kill must have found the same blocks, and no fewer than were synced before it."""
        found = {loaded.blocks for _, loaded in openings}
        if len(found) > 1:
            self.fail(number, f"openings found different numbers of blocks: {sorted(found)}")
        if min(found) < built.blocks:
            self.fail(number, f"{min(found):,} blocks found, {built.blocks:,} were synced")

    def _figures_built(self, built: list[Built]) -> list[Figure]:
        last = built[-1]
        seconds, making, inserted = (sum(map(attrgetter(name), built)) for name in ("seconds", "making", "inserted"))
        rates = [one.inserted / one.seconds for one in built]
        return [
            Figure(
                name="build",
                unit="blocks/s",
                value=inserted / seconds,
                least=min(rates),
                greatest=max(rates),
                repeats=len(built),
                more_is_better=True,
                note=f"{seconds:,.1f} s in all",
            ),
            _one("build, without the driver", "blocks/s", inserted / (seconds - making), more_is_better=True),
            _one("driver's share of it", "%", 100 * making / seconds, target=MAKING_TARGET),
            _one("checkpoint", "ms", last.checkpoint_ms, note="a full one, at the end"),
            _one("directory, a block", "B", last.directory_bytes / last.blocks),
            _one("memory of the writer", "MB", last.resident / 1e6),
        ]

    def _figures_opened(self, openings: list[list[tuple[Opened, Loaded]]], tails: list[int]) -> list[Figure]:
        figures = []
        for number, when in KILLS.items():

            def timed(what: str, value_of: Callable[[Opened, Loaded], float], unit: str = "ms", **rest: Any) -> None:
                values = [value_of(*opening) for opening in openings[number]]  # noqa: B023 - called at once
                figures.append(measured(f"{what}, {when}", unit, values, **rest))  # noqa: B023

            note = f"{tails[number] / 1e6:,.1f} MB to replay"
            timed("first answer", lambda opened, _: opened.answer_ms, target=ANSWER_TARGET_MS, note=note)
            timed("open() alone", lambda opened, _: opened.open_ms)
            timed("all loaded", lambda _, loaded: loaded.load_ms)
            timed("memory at the answer", lambda opened, _: opened.resident / 1e6, "MB")
            timed("memory, all loaded", lambda _, loaded: loaded.resident / 1e6, "MB")
        return figures


def _one(name: str, unit: str, value: float, **rest: Any) -> Figure:
    return measured(name, unit, [value], **rest)


def _named(figures: Any, size: str) -> list[Figure]:
    return [msgspec.structs.replace(figure, name=f"{size}: {figure.name}") for figure in figures]


def _ratios(done: list[Scaled]) -> list[Figure]:
    """How much later the first answer comes at the largest size than at the smallest."""
    if len(done) < 2:
        return []
    ratio = done[-1].value(FIRST_ANSWER) / done[0].value(FIRST_ANSWER)
    name = f"{FIRST_ANSWER}, {short(done[-1].blocks)} / {short(done[0].blocks)}"
    return [_one(name, "x", ratio, target=ANSWER_RATIO_TARGET, note="of the medians")]


def _extrapolated(size: int, done: list[Scaled]) -> list[Figure]:
    """All figures of a size that was not measured; none where too few were."""
    if len(done) < MEASURED_MIN:
        return []
    used = done[-MEASURED_MIN:]
    sizes = [one.blocks for one in used]
    note = f"EXTRAPOLATED from {', '.join(map(short, sizes))}"
    return [
        _one(f"{short(size)} (not measured): {name}", figure.unit, guess, note=note)
        for name, figure in used[-1].figures.items()
        if (guess := extrapolated(sizes, [one.value(name) for one in used], size)) is not None
    ]
