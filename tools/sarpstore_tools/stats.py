"""`sarpstore stats`: what the writing process last published about itself (checkpoint.md, section 3)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from . import chunkview, statsview
from .specreader.faults import DamagedError
from .specreader.folder import read_whole
from .specreader.store import is_alive
from .specreader.structures import Statistics, parse_statistics
from .statstables import Growth, counters_table, growth_between, meaning_table, printable

if TYPE_CHECKING:
    from rich.table import Table

_OVERDUE_SECONDS: Final = 5.0  # a writer publishes each second


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object (with --watch: one a sample).")
@click.option("--watch", is_flag=True, help="Show what they mean, with rates, anew until interrupted.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.05), help="Seconds between samples."
)
def stats(store: Path, as_json: bool, watch: bool, interval: float) -> None:
    """Show the statistics that the process writing STORE, an index or a chunk store, publishes each second.

    Exit status: 0, or 2 if there are none.
    """
    sample = _read(store)
    if as_json:
        _json(store, sample, watch, interval)
    elif watch:
        _watch(store, _flattened(sample), interval)
    else:
        Console().print(_view(store, _flattened(sample)))


def _read(store: Path) -> Statistics:
    try:
        return parse_statistics(read_whole(store / "stats"))
    except DamagedError as error:
        meaning = "no statistics: no writer has published any" if error.code == "missing" else error.meaning
        click.echo(f"sarpstore stats: {store / 'stats'}: {meaning}", err=True)
        raise SystemExit(2) from None


def _read_again(store: Path, before: Statistics) -> Statistics:
    """While watching, a file that is gone or half there for a moment is no reason to stop."""
    try:
        return parse_statistics(read_whole(store / "stats"))
    except DamagedError:
        return before


def _flattened(sample: Statistics) -> Statistics:
    """For the tables: each counter beside the others."""
    return replace(sample, values=chunkview.flattened(sample.values))


def _age_seconds(sample: Statistics) -> float:
    return time.time() - sample.time_ms / 1000


def _json(store: Path, sample: Statistics, watch: bool, interval: float) -> None:
    while True:
        alive = is_alive(sample.process)
        about = {"process": sample.process, "alive": alive, "time_ms": sample.time_ms, "age_s": _age_seconds(sample)}
        click.echo(msgspec.json.encode({**sample.values, "published": about}).decode())
        if not watch:
            return
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return
        sample = _read_again(store, sample)


def _watch(store: Path, sample: Statistics, interval: float) -> None:
    growth: Growth | None = None
    # On a terminal that is too low for it, rich would cut the table's end.
    with Live(_live(store, sample, growth), auto_refresh=False, vertical_overflow="visible") as live:
        try:
            while True:
                time.sleep(interval)
                newer = _flattened(_read_again(store, sample))
                if newer.time_ms != sample.time_ms:
                    growth, sample = growth_between(sample, newer), newer
                live.update(_live(store, sample, growth), refresh=True)
        except KeyboardInterrupt:
            return


def _view(store: Path, sample: Statistics) -> Group:
    """All counters, and what they mean."""
    groups = chunkview.GROUPS if chunkview.is_of_chunks(sample.values) else statsview.GROUPS
    counters = counters_table(sample.values, groups)
    return Group(*_title(store, sample), counters, Text(), _meanings(store, sample, None))


def _live(store: Path, sample: Statistics, growth: Growth | None) -> Group:
    """What they mean, and what changes."""
    return Group(*_title(store, sample), _meanings(store, sample, growth))


def _meanings(store: Path, sample: Statistics, growth: Growth | None) -> Table:
    if chunkview.is_of_chunks(sample.values):
        rows = chunkview.meanings(sample.values, growth)
    else:
        rows = statsview.meanings(sample.values, growth, statsview.checkpoint_age(store))
    return meaning_table(rows, watched=growth is not None)


def _title(store: Path, sample: Statistics) -> list[Text]:
    """Whose statistics these are, how old, and whether writes have stopped."""
    age, alive = _age_seconds(sample), is_alive(sample.process)
    lines = [Text(str(store), style="bold", no_wrap=True, overflow="ignore")]
    if not alive:
        gone = f"WRITER GONE: process {sample.process} is gone; its last words, published {age:.1f} s ago:"
        lines.append(Text(gone, style="bold yellow"))
    elif age > _OVERDUE_SECONDS:
        late = f"writing process {sample.process} is running, but published {age:.1f} s ago: one second is due"
        lines.append(Text(late, style="yellow"))
    else:
        lines.append(Text(f"writing process {sample.process} is running; published {age:.1f} s ago", style="green"))
    failed = sample.values.get("failed")
    if failed:
        lines.append(Text(f"WRITES HAVE STOPPED: {printable(failed)}", style="bold red"))
    return lines
