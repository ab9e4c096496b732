"""What is measured and how it is passed on: jobs of the worker processes, their results, and the whole comparison."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from sarpstore_tools.bench.machine import Machine  # noqa: TC001 (msgspec asks for it)

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "divergence"
"""The engine that all others are compared with."""

LOCATION_BYTES = 14
BLOCK_BYTES = 16 + LOCATION_BYTES
"""A block uncompressed: id and location."""


class Latency(msgspec.Struct, frozen=True):
    """Microseconds of the matches of one run."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0


class CellJob(msgspec.Struct, tag=True, kw_only=True):
    """Play a request file into a new store of an engine; the first `warm_up` requests go to another one before that."""

    engine: str
    folder: str
    requests: str
    concurrency: int
    budget_bytes: int
    seconds_max: float
    warm_up: int = 50


class FillJob(msgspec.Struct, tag=True, kw_only=True):
    """Insert all sequences of a request file, make them durable as the engine would, say so, and wait to be killed."""

    engine: str
    folder: str
    requests: str
    blocks: int
    budget_bytes: int


class RecoverJob(msgspec.Struct, tag=True, kw_only=True):
    """Wait with everything imported; when told, open what `FillJob` left and ask the one request of `probe`."""

    engine: str
    folder: str
    probe: str
    blocks: int
    budget_bytes: int


class CachedJob(msgspec.Struct, tag=True, kw_only=True):
    """Hold `blocks` blocks in memory, and match batches of `queries` sequences of `query_blocks` blocks."""

    engine: str
    folder: str
    blocks: int
    queries: int
    query_blocks: int
    rounds: int
    repeats: int


class CellResult(msgspec.Struct, tag=True, kw_only=True):
    """One run of one engine. Bytes, seconds and microseconds; `requests` were done of those that the file has.

    `reads` are reads that went to the device (None: the engine has none, or does not tell). `rss_bytes` is the growth
    of the resident set from before opening to the end, `anonymous_bytes` the part of it that no file backs.
    `lost_blocks` were surely held when they were asked for, and not found. `wrong` must be 0.
    """

    requests: int
    seconds: float
    latency_us: Latency
    cpu_seconds: float
    rss_bytes: int
    written_bytes: int
    folder_bytes: int
    blocks: int
    wrong: int
    matched_blocks: int
    history_blocks: int
    lost_blocks: int
    reads: int | None = None
    anonymous_bytes: int | None = None
    directory_bytes: int | None = None
    resident_bytes: int | None = None
    flight_max: int | None = None
    mismatches: list[str] = []
    note: str = ""


class Ready(msgspec.Struct, tag=True):
    """Everything is imported and the probe is read."""


class Filled(msgspec.Struct, tag=True):
    """So many blocks are held and durable. `processes` are to be killed with this one."""

    blocks: int
    seconds: float
    processes: list[int] = []


class RecoverResult(msgspec.Struct, tag=True, kw_only=True):
    """Milliseconds from the start of opening: until open, until the first right answer, until all is loaded.

    `loaded_ms` is None where the engine loads nothing in the background. `wrong`: what was wrong; empty: nothing.
    """

    open_ms: float
    answer_ms: float
    loaded_ms: float | None
    wrong: str = ""


class CachedResult(msgspec.Struct, tag=True, kw_only=True):
    """Batches of matches with everything in memory: one rate a repeat, in matches a second; memory in bytes."""

    rates: list[float]
    blocks: int
    rss_bytes: int
    directory_bytes: int | None = None
    resident_bytes: int | None = None
    wrong: int = 0


class LeftOut(msgspec.Struct, tag=True):
    """The engine cannot run here, and why."""

    reason: str


Message = CellResult | Ready | Filled | RecoverResult | CachedResult | LeftOut


class Spread(msgspec.Struct, frozen=True):
    """The median of repeated measurements, the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One trace in one shape, as a request file; `blocks` are its unique blocks, `budget_bytes` what engines get."""

    label: str
    requests: int
    sessions: int
    blocks: int
    budget_bytes: int
    notes: list[str] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, one workload, one concurrency: every figure over the repeats, by the names in `figures.FIGURES`.

    `cut`: stopped by the time limit before the last request, so it did less of the trace than others.
    """

    engine: str
    workload: str
    concurrency: int
    figures: dict[str, Spread]
    runs: list[CellResult]
    cut: bool = False


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """One engine killed at `blocks` blocks; milliseconds from opening, page cache dropped before."""

    engine: str
    blocks: int
    open_ms: Spread
    answer_ms: Spread
    loaded_ms: Spread | None
    page_cache: str


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """One engine with everything in memory; bytes a block held."""

    engine: str
    blocks: int
    matches_per_second: Spread
    rss_bytes_a_block: float
    directory_bytes_a_block: float | None
    resident_bytes_a_block: float | None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device's own limit: random reads of 4 KiB a second at a queue depth, and their latencies (µs)."""

    depth: int
    reads_per_second: float
    p50_us: float
    p99_us: float
    how: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of one `sarpstore bench compare`. `failures` are wrong answers, which no option excuses."""

    command: str = "bench compare"
    machine: Machine
    method: list[str]
    engines: list[str]
    left_out: dict[str, str]
    workloads: list[Workload]
    cells: list[Cell]
    recovery: list[Recovered]
    cached: list[Cached]
    device: list[Device]
    failures: list[str]

    def as_json(self) -> bytes:
        """One JSON object: everything that is shown, and every run."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"
