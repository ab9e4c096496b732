"""`sarpstore stats`: what the writing process last published about itself (checkpoint.md, section 3)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .specreader.faults import DamagedError
from .specreader.folder import read_whole
from .specreader.store import is_alive
from .specreader.structures import Statistics, parse_statistics, shown

_GROUPS: Final = (
    ("held", ("blocks", "segments", "holders")),
    ("memory", ("directory_bytes", "cache_bytes", "resident_bytes", "unloaded_partitions")),
    ("matching", ("matches", "matched_blocks", "inserts", "inserted_blocks")),
    (
        "reads",
        ("reads", "reads_coalesced", "reads_joined", "records_read", "cache_hits", "io_backend", "loop_hold_ms_max"),
    ),
    ("log", ("log_bytes", "dead_bytes", "written_bytes", "commits", "synced_position", "checkpoint_position")),
    ("state", ("checkpoints", "recovery_ms", "damaged_records", "failed")),
)
_POSITIONS: Final = frozenset({"synced_position", "checkpoint_position"})
_MEBIBYTE: Final = 1 << 20
_OVERDUE_SECONDS: Final = 5.0  # a writer publishes each second


@dataclass(frozen=True, slots=True)
class Rates:
    """Differences of two samples, per second of the writer's clock; None where a value is not published."""

    matches: float | None
    hit_rate: float | None
    reads: float | None
    log_bytes: float | None


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object (with --watch: one a sample).")
@click.option("--watch", is_flag=True, help="Show anew until interrupted, with rates.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.05), help="Seconds between samples."
)
def stats(store: Path, as_json: bool, watch: bool, interval: float) -> None:
    """Show the statistics that the process writing STORE publishes each second.

    Exit status: 0, or 2 if there are none.
    """
    sample = _read(store)
    if as_json:
        _json(store, sample, watch, interval)
    elif watch:
        _watch(store, sample, interval)
    else:
        Console().print(_view(store, sample, None))


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
    rates: Rates | None = None
    # On a terminal that is too low for it, rich would cut the table's end, where the rates are.
    with Live(_view(store, sample, rates), auto_refresh=False, vertical_overflow="visible") as live:
        try:
            while True:
                time.sleep(interval)
                newer = _read_again(store, sample)
                if newer.time_ms != sample.time_ms:
                    rates, sample = rates_between(sample, newer), newer
                live.update(_view(store, sample, rates), refresh=True)
        except KeyboardInterrupt:
            return


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def rates_between(older: Statistics, newer: Statistics) -> Rates:
    """Rates of two samples of one writing process; all None if the writer has changed."""
    seconds = (newer.time_ms - older.time_ms) / 1000
    if seconds <= 0 or older.process != newer.process:
        return Rates(None, None, None, None)

    def grown(name: str) -> float | None:
        before, after = _number(older.values, name), _number(newer.values, name)
        return None if before is None or after is None else after - before

    def rate(name: str) -> float | None:
        growth = grown(name)
        return None if growth is None else growth / seconds

    hits, misses = grown("cache_hits"), grown("reads")
    looked = (hits or 0) + (misses or 0)
    hit_rate = hits / looked if hits is not None and misses is not None and looked > 0 else None
    return Rates(rate("matches"), hit_rate, rate("reads"), rate("log_bytes"))


def _view(store: Path, sample: Statistics, rates: Rates | None) -> Group:
    parts: list[Text | Table] = _title(store, sample)
    known = {name for _, names in _GROUPS for name in names}
    others = tuple(name for name in sample.values if name not in known)
    table = Table(show_header=False, box=None, pad_edge=False)
    for group, names in (*_GROUPS, ("other", others)):
        label = group
        for name in names:
            if name in sample.values:
                value = sample.values[name]
                text = Text(_shown(name, value), justify="right", style="bold red" if _is_bad(name, value) else "")
                table.add_row(Text(label, style="bold"), Text(name), text, Text(_sized(name, value)))
                label = ""
    parts.append(table)
    parts.append(_derived(sample, rates))
    return Group(*parts)


def _title(store: Path, sample: Statistics) -> list[Text | Table]:
    """Whose statistics these are, how old, and whether writes have stopped."""
    age, alive = _age_seconds(sample), is_alive(sample.process)
    lines: list[Text | Table] = [Text(str(store), style="bold", no_wrap=True, overflow="ignore")]
    if not alive:
        lines.append(Text(f"writing process {sample.process} is gone; its last words, published {age:.1f} s ago:"))
    elif age > _OVERDUE_SECONDS:
        late = f"writing process {sample.process} is running, but published {age:.1f} s ago: one second is due"
        lines.append(Text(late, style="yellow"))
    else:
        lines.append(Text(f"writing process {sample.process} is running; published {age:.1f} s ago", style="green"))
    failed = sample.values.get("failed")
    if failed:
        lines.append(Text(f"WRITES HAVE STOPPED: {failed}", style="bold red"))
    return lines


def _derived(sample: Statistics, rates: Rates | None) -> Table:
    """Rates (while watching) and what follows from two values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [("checkpoint lag", _lag(sample.values))]
    if rates:
        growth = None if rates.log_bytes is None else rates.log_bytes / _MEBIBYTE
        rows += [
            ("matches/s", _rate(rates.matches, "")),
            ("cache hit rate", "-" if rates.hit_rate is None else f"{rates.hit_rate:.1%}"),
            ("reads/s", _rate(rates.reads, "")),
            ("log growth", _rate(growth, " MiB/s")),
        ]
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value, justify="right"))
    return table


def _rate(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.1f}{unit}"


def _lag(values: dict[str, Any]) -> str:
    """How much log, in bytes, a recovery would replay: exact within one file, else how many files."""
    synced, checkpoint = values.get("synced_position"), values.get("checkpoint_position")
    if not isinstance(synced, int) or not isinstance(checkpoint, int):
        return "-"
    files = (synced >> 24) - (checkpoint >> 24)
    if files == 0:
        return f"{max(0, synced - checkpoint) * 64:,} bytes"
    return f"{files} files" if checkpoint else "no checkpoint"


def _is_bad(name: str, value: Any) -> bool:
    return name in ("failed", "damaged_records") and bool(value)


def _sized(name: str, value: Any) -> str:
    """Bytes as people say them, for what is large."""
    if not name.endswith("_bytes") or not isinstance(value, int) or value < _MEBIBYTE:
        return ""
    return f"{value / _MEBIBYTE:,.1f} MiB" if value < 1 << 30 else f"{value / (1 << 30):,.2f} GiB"


def _shown(name: str, value: Any) -> str:
    if name == "failed":
        return "yes, see above" if value else "-"
    if isinstance(value, bool) or value is None:
        return str(value)
    if name in _POSITIONS and isinstance(value, int):
        return shown(value)
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value) or "-"
