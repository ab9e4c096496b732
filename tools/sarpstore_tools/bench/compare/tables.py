"""The tables of a comparison. Every number in them was measured; "over ours" is a ratio of two in the same table."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sarpstore_tools.bench.compare.model import OURS, Cell, Comparison, Spread
from sarpstore_tools.bench.figures import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

WIDTH = 186


def tables(found: Comparison) -> list[RenderableType]:
    """All that there is: a table a trace, the summary of ratios, recovery, cached, device, and what was left out."""
    made: list[RenderableType] = []
    for workload in found.workloads:
        cells = [cell for cell in found.cells if cell.workload == workload.label]
        title = (
            f"{workload.label}: {workload.requests:,} requests of {workload.sessions:,} sessions, "
            f"{workload.blocks:,} unique blocks, memory budget {workload.budget_bytes / 1e6:.2f} MB"
        )
        made.append(_workload(title, cells))
    if found.cells:
        made.append(_explained())
        made.append(_ratios(found.cells))
    rest = (_recovery(found), _cached(found), _device(found), _left_out(found))
    return made + [table for table in rest if table is not None]


def ratio(cell: Cell, ours: Cell | None, figure: str) -> float | None:
    """A figure of a cell over ours, by medians."""
    if ours is None or figure not in cell.figures or figure not in ours.figures:
        return None
    reference = ours.figures[figure].median
    return cell.figures[figure].median / reference if reference else None


def ours_of(cells: Iterable[Cell], workload: str, concurrency: int) -> Cell | None:
    """Our cell of a workload and a concurrency."""
    same = (c for c in cells if (c.engine, c.workload, c.concurrency) == (OURS, workload, concurrency))
    return next(same, None)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


COLUMNS = (
    "in\nflight",
    "\nrequests/s",
    "over\nours",
    "match, mean\nµs",
    "over\nours",
    "p50/p99/p99.9\nµs",
    "reads\na match",
    "CPU µs\na request",
    "memory\nB/block",
    "directory\nB/block",
    "on disk\nB/block",
    "written\nB/block",
    "lost\n%",
    "\nwrong",
)


def _workload(title: str, cells: list[Cell]) -> RenderableType:
    table = _table(title, COLUMNS)
    before = None
    for cell in cells:
        if before not in (None, cell.concurrency):
            table.add_section()
        before = cell.concurrency
        ours = ours_of(cells, cell.workload, cell.concurrency)
        table.add_row(escape(cell.engine), *_cells(cell, ours), style="bold" if cell.engine == OURS else "")
    return table


def _cells(cell: Cell, ours: Cell | None) -> list[str]:
    figures = cell.figures
    wrong = max((run.wrong for run in cell.runs), default=0)
    tail = "/".join(_median(figures.get(f"match_us_{name}"), 0) for name in ("p50", "p99", "p999"))
    return [
        str(cell.concurrency),
        _spread(figures.get("requests_per_second")) + (" cut" if cell.cut else ""),
        _times(ratio(cell, ours, "requests_per_second")),
        _spread(figures.get("match_us_mean")),
        _times(ratio(cell, ours, "match_us_mean")),
        tail,
        _median(figures.get("reads_a_match")),
        _median(figures.get("cpu_us_a_request"), 0),
        _median(figures.get("rss_bytes_a_block"), 1),
        _median(figures.get("directory_bytes_a_block")),
        _median(figures.get("folder_bytes_a_block"), 1),
        _median(figures.get("written_bytes_a_block"), 1),
        _median(figures.get("lost_percent"), 3),
        f"[bold red]{wrong:,}[/]" if wrong else "0",
    ]


def _explained() -> RenderableType:
    return Text(
        "Medians of the repeats, ± half of what lies between the least and the greatest. A request is a match of the "
        "history and an insertion of the extended sequence. Reads: 4 KiB pages or blocks that the engine read from "
        "the device, for the insertions as well. Memory: growth of the resident set over the unique blocks, from "
        "before opening, fixed costs included. Lost: tokens that were held and not found. Wrong: answers outside what "
        "an exact oracle allows. Cut: stopped by the time limit, when histories were still shorter.\n",
        style="italic",
    )


def _ratios(cells: list[Cell]) -> RenderableType:
    levels = sorted({cell.concurrency for cell in cells})
    columns = [f"{what}\n{level} in flight" for what in ("requests/s", "match latency") for level in levels]
    table = _table("Over ours, geometric means over all traces", columns)
    for engine in dict.fromkeys(cell.engine for cell in cells):
        row = []
        for figure in ("requests_per_second", "match_us_mean"):
            for level in levels:
                own = [cell for cell in cells if (cell.engine, cell.concurrency) == (engine, level)]
                found = [ratio(cell, ours_of(cells, cell.workload, level), figure) for cell in own]
                known = [value for value in found if value]
                row.append(_times(statistics.geometric_mean(known) if known else None))
        table.add_row(escape(engine), *row, style="bold" if engine == OURS else "")
    return table


def _recovery(found: Comparison) -> RenderableType | None:
    if not found.recovery:
        return None
    sizes = sorted({one.blocks for one in found.recovery})
    names = ("first answer", "all loaded")
    table = _table(
        "Recovery after SIGKILL a second after the last insertion, cold, in ms from the start of opening",
        [f"{n}\n{s:,}" for s in sizes for n in names],
    )
    for engine in dict.fromkeys(one.engine for one in found.recovery):
        by_size = {one.blocks: one for one in found.recovery if one.engine == engine}
        row = []
        for size in sizes:
            one = by_size.get(size)
            row += [_spread(one.answer_ms if one else None), _spread(one.loaded_ms if one else None)]
        table.add_row(escape(engine), *row, style="bold" if engine == OURS else "")
    cache = "; ".join(sorted({f"{one.engine}: {one.page_cache}" for one in found.recovery}))
    return Group(table, Text(f"Page cache before opening: {cache}.\n", style="italic"))


def _cached(found: Comparison) -> RenderableType | None:
    if not found.cached:
        return None
    columns = ("blocks", "matches/s", "memory\nB/block", "directory\nB/block", "directory, cache, buffers\nB/block")
    table = _table("Everything in memory: batches of 64 matches of 256 blocks", columns)
    for one in found.cached:
        table.add_row(
            escape(one.engine),
            f"{one.blocks:,}",
            _spread(one.matches_per_second),
            f"{one.rss_bytes_a_block:.1f}",
            _optional(one.directory_bytes_a_block),
            _optional(one.resident_bytes_a_block),
        )
    return table


def _device(found: Comparison) -> RenderableType | None:
    if not found.device:
        return None
    table = Table(title="The device's own limit: random reads of 4 KiB", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("queue depth", "reads/s", "p50 µs", "p99 µs", "by"):
        table.add_column(column, justify="right")
    for one in found.device:
        table.add_row(str(one.depth), number(one.reads_per_second), number(one.p50_us), number(one.p99_us), one.how)
    return table


def _left_out(found: Comparison) -> RenderableType | None:
    if not found.left_out:
        return None
    table = Table(title="Left out", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("engine", no_wrap=True)
    table.add_column("why")
    for engine, reason in found.left_out.items():
        table.add_row(escape(engine), escape(reason))
    return table


def _spread(value: Spread | None) -> str:
    if value is None:
        return "-"
    half = (value.greatest - value.least) / 2
    return f"{number(value.median)} ±{number(half)}" if half else number(value.median)


def _median(value: Spread | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value.median:,.{digits}f}"


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else number(value)
