"""Figures with their targets: one table for people, one JSON object for programs, and the exit status."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore_tools.bench.machine import Machine

WIDTH_MIN = 120
"""Columns that the table needs; a narrower output that is no terminal gets them all the same."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure: the median of `repeats` measurements, the least and the greatest of them, in `unit`.

    Measurements may be of several groups (`measured_in_groups`): then it is the median of the groups' medians.
    `target` is the most that it may be, or the least where `more_is_better`; None: it is only shown. `ratio` compares
    the median with a reference that was measured in the same run (`method` says which), so that figures of two machines
    can be compared.
    """

    name: str
    unit: str
    value: float
    least: float
    greatest: float
    repeats: int = 1
    target: float | None = None
    more_is_better: bool = False
    ratio: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the target is met, or there is none."""
        if self.target is None:
            return True
        return self.value >= self.target if self.more_is_better else self.value <= self.target


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of one command. `failures` are wrong answers and the like, which no option excuses."""

    command: str
    machine: Machine
    method: list[str]
    figures: list[Figure]
    failures: list[str] = []

    def as_json(self) -> bytes:
        """One JSON object: everything that is shown."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        for figure, plain in zip(self.figures, built["figures"], strict=True):
            plain["passed"] = figure.passed
        built["passed"] = not self.failures and all(figure.passed for figure in self.figures)
        return msgspec.json.format(msgspec.json.encode(built)) + b"\n"


def measured(name: str, unit: str, values: Sequence[float], **rest: Any) -> Figure:
    """The figure of repeated measurements."""
    return Figure(
        name=name,
        unit=unit,
        value=statistics.median(values),
        least=min(values),
        greatest=max(values),
        repeats=len(values),
        **rest,
    )


def counted(name: str, value: float, **rest: Any) -> Figure:
    """The figure of something that was counted once."""
    return Figure(name=name, unit="", value=value, least=value, greatest=value, **rest)


def measured_in_groups(name: str, unit: str, groups: Sequence[Sequence[float]], **rest: Any) -> Figure:
    """The figure of several groups of repeated measurements: the median of their medians."""
    values = [value for group in groups for value in group]
    return Figure(
        name=name,
        unit=unit,
        value=statistics.median(statistics.median(group) for group in groups),
        least=min(values),
        greatest=max(values),
        repeats=len(values),
        **rest,
    )


json_option = click.option("--json", "json_file", type=click.File("wb"), help="Also write everything to FILE as JSON.")


def report_options(command: Callable[..., None]) -> Callable[..., None]:
    """--json FILE and --no-targets, for `finish`."""
    targets = click.option(
        "--targets/--no-targets", default=True, help="Whether a missed target makes the exit status 1 [default: yes]."
    )
    return json_option(targets(command))


def finish(context: click.Context, report: Report, json_file: Any, *, targets: bool = True) -> None:
    """Show the report, write the JSON, and end the command with its exit status."""
    show(report)
    if json_file is not None:
        json_file.write(report.as_json())
    missed = targets and not all(figure.passed for figure in report.figures)
    context.exit(1 if missed or report.failures else 0)


def show(report: Report) -> None:
    """Machine, figures, method, and what went wrong."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    for line in report.machine.lines():
        console.print(escape(line), highlight=False)
    console.print(_table(report))
    for line in report.method:
        # One line each for grep; a terminal's are cut at words.
        console.print(f"- {escape(line)}", highlight=False, soft_wrap=not console.is_terminal)
    for line in report.failures:
        console.print(f"[bold red]✗ {escape(line)}[/]", highlight=False)


def _table(report: Report) -> Table:
    table = Table(title=report.command, title_justify="left", title_style="bold")
    compared = any(figure.ratio is not None for figure in report.figures)
    # A figure's name and its values stay on one line, for people and for grep: only notes wrap.
    table.add_column("figure", no_wrap=True)
    for column in ("median", "least … greatest", "target", "", *(["ratio"] if compared else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("note")
    for figure in report.figures:
        spread = f"{number(figure.least)} … {number(figure.greatest)}" if figure.repeats > 1 else ""
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
        table.add_row(
            escape(figure.name),
            f"{number(figure.value)} {figure.unit}".strip(),
            spread,
            _target(figure),
            _mark(figure),
            *([ratio] if compared else []),
            escape(figure.note),
        )
    return table


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.more_is_better else '≤'} {number(figure.target)}"


def _mark(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return "[bold green]✓[/]" if figure.passed else "[bold red]✗[/]"


def number(value: float) -> str:
    """With as many digits as say something."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"
