"""`sarpstore bench reads`: random page reads through the scheduler and matches, beside what the device can do."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import shutil
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import event_loop, this_machine
from sarpstore_tools.bench.shapes import Ids, locations_of, random_ids, wrong_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PAGE = 4096
WINDOW_BLOCKS = 64
PART_WINDOWS = 256
"""Windows that one insertion adds; each of them alone is a query's."""
DEPTHS = {32: 85.0, 128: 90.0}
"""Queue depths, and the share of the device's reads that is to be reached at each, in percent."""
MATCH_TARGET = 85.0
CPU_TARGET = 60.0
TICKETS, TICKET_PAGES = 32, 16
"""Calls that wait for pages at the same time, and pages of each: more than any depth, so that the device decides."""
BATCHES, BATCH_QUERIES = 6, 128
CHOSEN = 1 << 20
"""Page numbers that are chosen before a measurement begins."""
SAMPLE = 16_384
"""Windows whose ids are kept in memory to ask for."""


class Span(NamedTuple):
    """One measurement: reads a second, and CPU time as a share of one core in percent."""

    rate: float
    cpu: float


@click.command("reads", short_help="Random reads, beside what the device can do.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements a figure.")
@click.option("--seconds", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Of one measurement.")
@click.option("--megabytes", type=click.IntRange(min=4), default=2000, show_default=True, help="Size of the store.")
@store_option
@report_options
@click.pass_context
def reads_command(
    context: click.Context,
    repeats: int,
    seconds: float,
    megabytes: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Read random pages of a store that nothing of is cached, as fast as it goes.

    device: fio reads the same files. scheduler: pages by their numbers, at queue depths 32 and 128. match:
    `match_many_ids` of 128 queries of one window, several such calls at a time. The three take turns, so that each is
    compared with what the device did at that moment.
    """
    name, factory = event_loop()
    with work_folder(store) as folder, asyncio.Runner(loop_factory=factory) as runner:
        machine = this_machine(folder)
        runs = _Runs(folder / "store", seconds)
        failures: list[str] = []
        try:
            runner.run(runs.fill(megabytes))
            figures = [figure for depth in DEPTHS for figure in runner.run(_compare(runs, depth, repeats))]
            figures += runner.run(_compare_matches(runs, repeats))
        except WrongAnswerError as error:
            figures, failures = [], [str(error)]
    method = [
        f"event loop {name}; {repeats} measurements of {seconds:g} s a figure, taking turns with the device's; medians",
        f"store of {megabytes:,} MB in files of 1 GiB; I/O by {runs.backend}; reads are direct: {runs.direct}",
        "device: fio, random reads of 4 KiB from the store's files, io_uring with registered files and buffers"
        if runs.fio
        else "device: fio is not installed, so nothing could be compared and there are no targets",
        "ratios are the medians of each measurement's ratio to the device's of the same turn",
        (
            f"scheduler: {TICKETS} calls at a time that each wait for {TICKET_PAGES} pages; "
            "CPU: user and system time of all threads, 100 % is one core"
        ),
        (
            f"match: {BATCHES} match_many_ids at a time, each of {BATCH_QUERIES} queries of {WINDOW_BLOCKS} blocks "
            "that all match, with locations; cache of 1 MiB"
        ),
    ]
    report = Report(command="bench reads", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


class WrongAnswerError(Exception):
    """A match did not find what was inserted."""


class _Runs:
    """A store, and the three kinds of measurements of it."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.fio = shutil.which("fio")
        self.queries: list[Ids] = []
        self.backend = ""
        self.direct = False
        self._rng = np.random.default_rng(7)

    @property
    def options(self) -> dict[str, Any]:
        return {"cache_bytes": 1 << 20, "log_file_bytes": 1 << 30}

    async def fill(self, megabytes: int) -> None:
        """Insert windows that share nothing, two a page, and keep a sample of them."""
        windows = megabytes * 1_000_000 // (PAGE // 2)
        keep = min(1.0, SAMPLE / windows)
        async with sarpstore.open(self.path, durability="never", **self.options) as store:
            namespace = store.namespace("bench")
            for first in range(0, windows, PART_WINDOWS):
                count = min(PART_WINDOWS, windows - first)
                ids = random_ids(self._rng, WINDOW_BLOCKS * count)
                rows = locations_of(ids)
                for at in range(0, len(ids), WINDOW_BLOCKS):
                    await namespace.insert_ids(ids[at : at + WINDOW_BLOCKS], rows[at : at + WINDOW_BLOCKS])
                    if self._rng.random() < keep:
                        self.queries.append(ids[at : at + WINDOW_BLOCKS].copy())
            await store.checkpoint()
            stats = store.stats()
            self.backend, self.direct = stats.io_backend, stats.direct_io

    def device(self, depth: int) -> Span | None:
        """What fio reads from the store's files; None without fio."""
        if self.fio is None:
            return None
        files = ":".join(str(path) for path in sorted(self.path.glob("*.log")) if path.stat().st_size > 1 << 20)
        command = [
            *(self.fio, "--name=reads", f"--filename={files}", "--readonly", "--rw=randread", "--bs=4k", "--direct=1"),
            *("--ioengine=io_uring", "--fixedbufs", "--registerfiles", "--norandommap", f"--iodepth={depth}"),
            *("--time_based", f"--runtime={max(1, round(self.seconds))}", "--output-format=json"),
        ]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        with contextlib.suppress(ValueError, KeyError, IndexError):
            job = json.loads(done.stdout)["jobs"][0]
            if job["read"]["iops"]:
                return Span(job["read"]["iops"], job["usr_cpu"] + job["sys_cpu"])
        self.fio = None
        return None

    async def scheduler(self, depth: int) -> Span:
        """Pages by number through the read scheduler, which lies below the public API: hence the import by name."""
        io, files = importlib.import_module("sarpstore._io"), importlib.import_module("sarpstore._files")
        folder = files.RealFolder(self.path)
        scheduler = io.Scheduler(io.choose_backend("auto", depth), queue_depth=depth)
        opened, counts = [], []
        for slot, path in enumerate(sorted(self.path.glob("*.log"))):
            opened.append(folder.open_direct(path.name) if self.direct else folder.open(path.name))
            scheduler.attach(slot, opened[-1])
            counts.append(path.stat().st_size // PAGE)
        pages = np.concatenate([np.arange(count, dtype=np.uint64) + (slot << 18) for slot, count in enumerate(counts)])
        chosen, at = self._rng.choice(pages, CHOSEN).tolist(), 0

        async def call() -> int:
            nonlocal at
            at = (at + TICKET_PAGES) % (len(chosen) - TICKET_PAGES)
            ticket = await scheduler.bring(chosen[at : at + TICKET_PAGES])
            ticket.release()
            return TICKET_PAGES

        try:
            return await self._measure(call, TICKETS)
        finally:
            await scheduler.close()
            for file in opened:
                file.close()
            folder.close()

    async def match(self, depth: int) -> Span:
        """Reads by match_many_ids, every answer checked by its length and some of them throughout."""
        async with sarpstore.open(self.path, read_only=True, queue_depth=depth, **self.options) as store:
            namespace = store.namespace("bench")
            while store.stats().unloaded_partitions:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            pool = [(namespace, ids) for ids in self.queries]

            async def call() -> int:
                chosen = [pool[i] for i in self._rng.integers(0, len(pool), BATCH_QUERIES).tolist()]
                found = await store.match_many_ids(chosen)
                if any(match.blocks != WINDOW_BLOCKS for match in found):
                    raise WrongAnswerError("a window that was inserted did not match whole")
                if wrong := wrong_answer(found[0], chosen[0][1], WINDOW_BLOCKS, WINDOW_BLOCKS):
                    raise WrongAnswerError(wrong)
                return BATCH_QUERIES

            return await self._measure(call, BATCHES)

    async def _measure(self, call: Callable[[], Awaitable[int]], tasks: int) -> Span:
        """`tasks` of these calls at a time until the time is over; the rate of what they return."""
        stop = time.perf_counter() + self.seconds
        total = 0

        async def work() -> None:
            nonlocal total
            while time.perf_counter() < stop:
                count = await call()  # not added at once: `total` would be what it was before the wait
                total += count

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(tasks)))
        wall = time.perf_counter() - began
        return Span(total / wall, 100 * (time.process_time() - cpu) / wall)


async def _in_turns(
    runs: _Runs, depth: int, repeats: int, ours: Callable[[int], Awaitable[Span]]
) -> tuple[list[Span], list[Span]]:
    """(the device's, ours), each ours beside a device's that was measured just before or just after it."""
    device, own = [], []
    for _ in range(repeats):
        before = await asyncio.to_thread(runs.device, depth)
        own.append(await ours(depth))
        after = await asyncio.to_thread(runs.device, depth)
        if before and after:
            device.append(Span((before.rate + after.rate) / 2, (before.cpu + after.cpu) / 2))
    return device, own


def _figures(what: str, device: list[Span], own: list[Span], least: float, *, cpu_target: float | None) -> list[Figure]:
    figures = [measured(what, "reads/s", [span.rate for span in own], more_is_better=True)]
    if len(device) == len(own):
        shares = [100 * mine.rate / its.rate for mine, its in zip(own, device, strict=True)]
        figures.append(measured(f"{what}, of the device", "%", shares, target=least, more_is_better=True))
    note = f"{_cpu_us(own):.2f} µs of CPU time a read"
    cpu = measured(f"{what}, CPU", "% of a core", [span.cpu for span in own], target=cpu_target, note=note)
    return [*figures, cpu]


def _cpu_us(spans: list[Span]) -> float:
    return statistics.median(1e4 * span.cpu / span.rate for span in spans)


async def _compare(runs: _Runs, depth: int, repeats: int) -> list[Figure]:
    device, own = await _in_turns(runs, depth, repeats, runs.scheduler)
    figures = _device_figures(device, f"device, depth {depth}")
    target = CPU_TARGET if depth == max(DEPTHS) else None
    return figures + _figures(f"scheduler, depth {depth}", device, own, DEPTHS[depth], cpu_target=target)


async def _compare_matches(runs: _Runs, repeats: int) -> list[Figure]:
    device, own = await _in_turns(runs, max(DEPTHS), repeats, runs.match)
    figures = _device_figures(device, "device, beside matches")
    return figures + _figures("match, one window", device, own, MATCH_TARGET, cpu_target=None)


def _device_figures(device: list[Span], name: str) -> list[Figure]:
    if not device:
        return []
    note = f"{_cpu_us(device):.2f} µs of CPU time a read"
    return [measured(name, "reads/s", [span.rate for span in device], more_is_better=True, note=note)]
