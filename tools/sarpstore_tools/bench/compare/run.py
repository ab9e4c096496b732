"""One comparison, from traces to figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sarpstore_tools.bench.compare.cached import CACHED_ENGINES
from sarpstore_tools.bench.compare.cells import Runner, run_job
from sarpstore_tools.bench.compare.device import DEPTHS, device_limit
from sarpstore_tools.bench.compare.engine import DESCRIPTIONS, NotAvailableError
from sarpstore_tools.bench.compare.model import (
    Cached,
    CachedJob,
    CachedResult,
    Cell,
    Comparison,
    Device,
    Recovered,
    Spread,
    Workload,
)
from sarpstore_tools.bench.compare.recovery import RecoveryRun
from sarpstore_tools.bench.compare.rocks import ROCKS_ENGINES
from sarpstore_tools.bench.compare.workloads import prepare, shaped
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.traces import TraceError, TraceSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUERIES, QUERY_BLOCKS, ROUNDS = 64, 256, 20

NOT_RECOVERED = ("divergence-length",)
"""Engines of which another one has the same files."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compared."""

    traces: list[TraceSpec]
    shapes: list[str]
    engines: list[str]
    concurrency: list[int]
    repeats: int
    seconds_max: float
    budget_percent: float
    recovery_blocks: list[int]
    cached_blocks: int
    device: bool


def compare(plan: Plan, folder: Path, advance: Callable[[str, int, int], None]) -> Comparison:
    """Do it all in `folder`; `advance(what, done, total)` is told how it goes.

    Raises:
        TraceError: a trace cannot be read.
    """
    return _Run(plan, folder, advance).run()


class _Run:
    def __init__(self, plan: Plan, folder: Path, advance: Callable[[str, int, int], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._advance = advance
        self._runner = Runner(plan.engines)
        self._left_out: dict[str, str] = {}
        self._step = 0
        self._steps = self._count_steps()

    def _count_steps(self) -> int:
        plan = self._plan
        cells = len(plan.traces) * len(plan.shapes) * len(plan.concurrency) * plan.repeats * len(plan.engines)
        recoveries = len(plan.recovery_blocks) * len(self._recovered_engines())
        return cells + recoveries + len(self._cached_engines()) + (len(DEPTHS) if plan.device else 0)

    def _tell(self, what: str) -> None:
        self._advance(what, self._step, self._steps)
        self._step += 1

    def run(self) -> Comparison:
        """The device first, while nothing else was written; then workload after workload, recovery, all in memory."""
        machine = this_machine(self._folder)
        device = self._device()
        workloads: list[Workload] = []
        cells: list[Cell] = []
        for spec in self._plan.traces:
            for shape in self._plan.shapes:
                self._workload(spec, shape, workloads, cells)
        recovery = [one for blocks in self._plan.recovery_blocks for one in self._recover(blocks)]
        cached = [one for engine in self._cached_engines() if (one := self._cache(engine)) is not None]
        return Comparison(
            machine=machine,
            method=self._method(workloads),
            engines=self._plan.engines,
            left_out=self._runner.left_out | self._left_out,
            workloads=workloads,
            cells=cells,
            recovery=recovery,
            cached=cached,
            device=device,
            failures=self._runner.failures,
        )

    def _workload(self, spec: TraceSpec, shape: str, workloads: list[Workload], cells: list[Cell]) -> None:
        plan = self._plan
        named = shaped(spec, shape)
        place = self._folder / f"requests-{len(workloads)}.bin"
        scratch = self._folder / f"hashing-{len(workloads)}"
        total = self._steps

        def reading(done: int, _: int | None) -> None:
            self._advance(f"{named.label}: reading, {done:,} requests", self._step, total)

        try:
            workload = prepare(named, place, scratch, plan.budget_percent, reading)
        except TraceError as error:
            if shape == "plain":
                raise
            # Some traces have no answers to strip.
            self._left_out[f"trace {named.label}"] = str(error)
            return
        workloads.append(workload)
        for level in plan.concurrency:
            cells += self._runner.cells(
                self._folder,
                workload,
                place,
                concurrency=level,
                repeats=plan.repeats,
                seconds_max=plan.seconds_max,
                advance=self._tell,
            )
        for path in (place, place.with_name(f"{place.name}.ordinals")):
            path.unlink()

    def _recovered_engines(self) -> list[str]:
        return [engine for engine in self._runner.engines if engine not in NOT_RECOVERED]

    def _recover(self, blocks: int) -> list[Recovered]:
        run = RecoveryRun(self._folder, blocks, self._plan.budget_percent, self._runner)
        return run.run(self._recovered_engines(), self._plan.repeats, self._tell)

    def _cached_engines(self) -> list[str]:
        if not self._plan.cached_blocks:
            return []
        return [engine for engine in CACHED_ENGINES if engine in self._runner.engines]

    def _cache(self, engine: str) -> Cached | None:
        self._tell(f"{engine}: {self._plan.cached_blocks:,} blocks in memory")
        job = CachedJob(
            engine=engine,
            folder=str(self._folder / f"cached-{engine}"),
            blocks=self._plan.cached_blocks,
            queries=QUERIES,
            query_blocks=QUERY_BLOCKS,
            rounds=ROUNDS,
            repeats=max(3, self._plan.repeats),
        )
        found = self._runner.attempt(engine, "everything in memory", lambda: run_job(job, CachedResult))
        if found is None:
            return None
        if found.wrong:
            self._runner.failures.append(f"{engine}, everything in memory: {found.wrong} answers were wrong")

        def a_block(amount: int | None) -> float | None:
            return None if amount is None else amount / found.blocks

        return Cached(
            engine=engine,
            blocks=found.blocks,
            matches_per_second=Spread.of(found.rates),
            rss_bytes_a_block=found.rss_bytes / found.blocks,
            directory_bytes_a_block=a_block(found.directory_bytes),
            resident_bytes_a_block=a_block(found.resident_bytes),
        )

    def _device(self) -> list[Device]:
        found = []
        for depth in DEPTHS if self._plan.device else ():
            self._tell(f"the device's limit at queue depth {depth}")
            try:
                found.append(device_limit(self._folder, depth))
            except NotAvailableError as error:
                self._left_out["device limit"] = str(error)
                break
        (self._folder / "fio").unlink(missing_ok=True)
        return found

    def _method(self, workloads: list[Workload]) -> list[str]:
        plan = self._plan
        described = {**DESCRIPTIONS, **ROCKS_ENGINES}
        notes = list(dict.fromkeys(note for workload in workloads for note in workload.notes))
        return [
            (
                f"{plan.repeats} runs a cell, each in a process of its own, engines by turns; at most "
                f"{plan.seconds_max:g} s a run; requests start in the order of the trace, sessions round-robin"
            ),
            (
                "timed: match and insertion; not timed: hashing, bringing ids into the engine's native form, comparing "
                "locations (the clock stops, what runs in the kernel or in other threads goes on)"
            ),
            (
                "Python engines run on one event loop; dict, dynamo and lmdb answer without waiting, so more requests "
                "in flight only follow each other; peers insert what did not match, sarpstore is given whole sequences"
            ),
            (
                "match latency: of the call with one request in flight; with more from when the request is issued, the "
                "wait for the event loop included"
            ),
            (
                f"memory of SSD engines: {plan.budget_percent:g} % of unique blocks x 30 bytes, at least 64 KiB: "
                "RocksDB's block cache, memtables and filters; sarpstore's directory and page cache (1 byte a block is "
                "kept for the directory, 2.5 for sarp); LMDB's page cache and the memory of dict, dynamo and redis are "
                "not bounded"
            ),
            (
                "durability: sarpstore syncs 50 ms after an insertion at the latest; redis each second; lmdb, dict and "
                "dynamo never; a kill of the process alone loses nothing of lmdb and redis"
            ),
            (
                "recovery: sequences that branch, one SIGKILL after everything was made durable; dict and dynamo are "
                "read from files that were written before the kill; sarpstore wrote what checkpoints it thought due; "
                f"{plan.repeats} openings of copies of the same files; imports are not timed"
            ),
            *(f"{name}: {described[name]}" for name in plan.engines),
            *notes,
        ]
