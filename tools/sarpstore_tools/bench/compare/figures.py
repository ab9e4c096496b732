"""Figures of a cell: what each is called, its unit, and how it comes from one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sarpstore_tools.bench.compare.model import Cell, CellResult, Spread

if TYPE_CHECKING:
    from collections.abc import Sequence

Value = Callable[[CellResult], float | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One figure: None where a run has no such thing."""

    unit: str
    value: Value


def _a_request(total: Callable[[CellResult], float | None]) -> Value:
    def value(run: CellResult) -> float | None:
        amount = total(run)
        return None if amount is None or not run.requests else amount / run.requests

    return value


def _a_block(total: Callable[[CellResult], float | None]) -> Value:
    def value(run: CellResult) -> float | None:
        amount = total(run)
        return None if amount is None or not run.blocks else amount / run.blocks

    return value


def _lost_percent(run: CellResult) -> float:
    return 100 * run.lost_blocks / max(1, run.matched_blocks + run.lost_blocks)


FIGURES: dict[str, Kind] = {
    "requests_per_second": Kind("requests/s", lambda run: run.requests / run.seconds if run.seconds else None),
    "match_us_mean": Kind("µs", lambda run: run.latency_us.mean),
    "match_us_p50": Kind("µs", lambda run: run.latency_us.p50),
    "match_us_p99": Kind("µs", lambda run: run.latency_us.p99),
    "match_us_p999": Kind("µs", lambda run: run.latency_us.p999),
    "reads_a_match": Kind("device reads/match", _a_request(lambda run: run.reads)),
    "cpu_us_a_request": Kind("µs/request", _a_request(lambda run: run.cpu_seconds * 1e6)),
    "rss_bytes_a_block": Kind("B/block", _a_block(lambda run: run.rss_bytes)),
    "anonymous_bytes_a_block": Kind("B/block", _a_block(lambda run: run.anonymous_bytes)),
    "directory_bytes_a_block": Kind("B/block", _a_block(lambda run: run.directory_bytes)),
    "resident_bytes_a_block": Kind("B/block", _a_block(lambda run: run.resident_bytes)),
    "folder_bytes_a_block": Kind("B/block", _a_block(lambda run: run.folder_bytes)),
    "written_bytes_a_block": Kind("B/block", _a_block(lambda run: run.written_bytes)),
    "lost_percent": Kind("% of tokens held", _lost_percent),
    "wrong": Kind("answers", lambda run: run.wrong),
}
"""What is measured of a cell. Reads include those that insertions needed: an insertion looks before it writes."""


def cell_of(engine: str, workload: str, concurrency: int, runs: Sequence[CellResult], requests: int) -> Cell:
    """The cell of repeated runs of a workload that has so many requests."""
    figures = {}
    for name, kind in FIGURES.items():
        values = [value for run in runs if (value := kind.value(run)) is not None]
        if len(values) == len(runs):
            figures[name] = Spread.of(values)
    return Cell(
        engine=engine,
        workload=workload,
        concurrency=concurrency,
        figures=figures,
        runs=list(runs),
        cut=any(run.requests < requests for run in runs),
    )
