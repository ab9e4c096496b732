"""Plots of a comparison, as PNG files: speed, latency, recovery over size, memory a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sarpstore_tools.bench.compare.model import Cell, Comparison, Spread

DPI = 120
BAR_GROUP_WIDTH = 0.85


class NoPlotsError(click.ClickException):
    """matplotlib is not installed."""

    exit_code = 2


def check_plots() -> None:
    """Raises NoPlotsError unless plots can be made: better before the measurements than after."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise NoPlotsError("--plots needs matplotlib: pip install 'sarpstore[bench]'") from error


def write_plots(found: Comparison, folder: Path) -> list[Path]:
    """Write those that there is something for; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if found.cells:
        written += [
            _bars(found, "requests_per_second", "requests/s", folder / "requests_per_second.png"),
            _bars(found, "match_us_mean", "mean match latency, µs (lines: p50 to p99)", folder / "match_latency.png"),
            _bars(found, "rss_bytes_a_block", "resident memory, B/block", folder / "memory_a_block.png"),
        ]
    if found.recovery:
        written.append(_recovery(found, folder / "recovery.png"))
    return written


def _figure(rows: int, width: float, height: float) -> tuple[Any, list[Any]]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, 1, figsize=(width, height * rows), squeeze=False)
    return figure, [row[0] for row in axes]


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path


def _colours(engines: list[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    palette = colormaps["tab20"]
    return {engine: palette(i % 20) for i, engine in enumerate(engines)}


def _bars(found: Comparison, name: str, label: str, path: Path) -> Path:
    """A row of bars a concurrency: groups are traces, bars are engines, on a logarithmic axis."""
    levels = sorted({cell.concurrency for cell in found.cells})
    traces = [workload.label for workload in found.workloads]
    engines = list(dict.fromkeys(cell.engine for cell in found.cells))
    colours = _colours(engines)
    figure, axes = _figure(len(levels), max(8.0, 2.2 * len(traces) + 4), 3.6)
    width = BAR_GROUP_WIDTH / max(1, len(engines))
    for axis, level in zip(axes, levels, strict=True):
        cells = {(cell.engine, cell.workload): cell for cell in found.cells if cell.concurrency == level}
        for i, engine in enumerate(engines):
            own = [(j, cells[engine, trace]) for j, trace in enumerate(traces) if (engine, trace) in cells]
            shown = [(j, cell) for j, cell in own if name in cell.figures and cell.figures[name].median > 0]
            places = [j + (i - len(engines) / 2 + 0.5) * width for j, _ in shown]
            heights = [cell.figures[name].median for _, cell in shown]
            axis.bar(
                places, heights, width, label=engine, color=colours[engine], yerr=_errors([c for _, c in shown], name)
            )
        axis.set_yscale("log")
        axis.set_xticks(range(len(traces)), traces)
        axis.set_ylabel(label)
        axis.set_title(f"{level} in flight", loc="left")
        axis.grid(visible=True, axis="y", alpha=0.3)
    axes[0].legend(fontsize="x-small", ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _save(figure, path)


def _errors(cells: list[Cell], name: str) -> list[list[float]]:
    """Below and above each bar: p50 and p99 for latency, else the least and the greatest of the repeats."""
    ends: Callable[[Cell], tuple[float, float]]
    if name == "match_us_mean":

        def ends(cell: Cell) -> tuple[float, float]:
            return cell.figures["match_us_p50"].median, cell.figures["match_us_p99"].median

    else:

        def ends(cell: Cell) -> tuple[float, float]:
            return cell.figures[name].least, cell.figures[name].greatest

    below = [max(0.0, cell.figures[name].median - ends(cell)[0]) for cell in cells]
    above = [max(0.0, ends(cell)[1] - cell.figures[name].median) for cell in cells]
    return [below, above]


def _recovery(found: Comparison, path: Path) -> Path:
    """First answers over sizes, both axes logarithmic; dashed: until all is loaded."""
    engines = list(dict.fromkeys(one.engine for one in found.recovery))
    colours = _colours(engines)
    figure, (axis,) = _figure(1, 8.0, 5.0)
    for engine in engines:
        own = sorted((one for one in found.recovery if one.engine == engine), key=lambda one: one.blocks)
        _line(axis, [(one.blocks, one.answer_ms) for one in own], colours[engine], label=engine)
        loaded = [(one.blocks, one.loaded_ms) for one in own if one.loaded_ms is not None]
        _line(axis, loaded, colours[engine], linestyle="--")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("blocks")
    axis.set_ylabel("ms from opening to the first right answer (dashed: all loaded)")
    axis.grid(visible=True, which="both", alpha=0.2)
    axis.legend(fontsize="x-small")
    return _save(figure, path)


def _line(axis: Any, points: list[tuple[int, Spread]], colour: Any, **style: Any) -> None:
    if points:
        sizes, times = zip(*points, strict=True)
        axis.plot(sizes, [time.median for time in times], marker="o", color=colour, **style)
