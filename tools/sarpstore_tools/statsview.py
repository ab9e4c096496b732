"""What a store's published counters mean: rows for people, of one sample and of what grew since the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from .specreader.folder import kind_of
from .specreader.structures import shown

if TYPE_CHECKING:
    from pathlib import Path

    from .specreader.structures import Statistics

GROUPS: Final = (
    ("held", ("blocks", "segments", "holders", "markers", "counts", "removed")),
    ("memory", ("directory_bytes", "cache_bytes", "resident_bytes", "unloaded_partitions")),
    ("matching", ("matches", "matched_blocks", "inserts", "inserted_blocks")),
    (
        "reads",
        ("reads", "reads_coalesced", "reads_joined", "records_read", "cache_hits", "io_backend", "direct_io")
        + ("loop_hold_ms_max",),
    ),
    ("disk", ("disk_bytes", "bytes_max", "log_bytes", "live_bytes", "dead_bytes", "evicted")),
    ("written", ("written_bytes", "record_bytes", "commits", "synced_position")),
    ("compaction", ("mark_passes", "compacted_files", "copied_bytes")),
    ("checkpoint", ("checkpoints", "checkpoint_position", "checkpoint_lag_bytes", "recovery_ms")),
    ("state", ("damaged_records", "failed")),
)
"""All counters by what they speak of, in the order of the table."""

_POSITIONS: Final = frozenset({"synced_position", "checkpoint_position"})
_MEBIBYTE: Final = 1 << 20
_NONE: Final = "-"
_Shown = Callable[[float | None], str]
_Value = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class Growth:
    """Two samples of one writing process, so many seconds of its clock apart."""

    older: dict[str, Any]
    newer: dict[str, Any]
    seconds: float

    def of(self, name: str) -> float | None:
        """How much a counter has grown; None where it is not published."""
        before, after = number(self.older, name), number(self.newer, name)
        return None if before is None or after is None else after - before

    def rate(self, name: str) -> float | None:
        """The same a second."""
        grown = self.of(name)
        return None if grown is None else grown / self.seconds


def growth_between(older: Statistics, newer: Statistics) -> Growth | None:
    """What grew between two samples; None if the writer has changed, or they are one."""
    seconds = (newer.time_ms - older.time_ms) / 1000
    if seconds <= 0 or older.process != newer.process:
        return None
    return Growth(older.values, newer.values, seconds)


def number(values: dict[str, Any], name: str) -> float | None:
    """A counter that is a number; None where it is not published."""
    value = values.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def checkpoint_age(store: Path) -> float | None:
    """Seconds since the newest checkpoint's head was written; None where there is none."""
    newest = 0.0
    for path in store.iterdir():
        if kind_of(path.name) == "checkpoint":
            try:
                newest = max(newest, path.stat().st_mtime)
            except OSError:
                continue  # replaced by a newer one just now
    return time.time() - newest if newest else None


# --- all counters


def counters_table(values: dict[str, Any]) -> Table:
    """Every counter that is published, known or not."""
    known = {name for _, names in GROUPS for name in names}
    others = tuple(name for name in values if name not in known)
    table = Table(show_header=False, box=None, pad_edge=False)
    for group, names in (*GROUPS, ("other", others)):
        label = group
        for name in names:
            if name in values:
                value = values[name]
                text = Text(_shown(name, value), justify="right", style="bold red" if _is_bad(name, value) else "")
                table.add_row(Text(label, style="bold"), Text(name), text, Text(_sized(name, value)))
                label = ""
    return table


def _is_bad(name: str, value: Any) -> bool:
    return name in ("failed", "damaged_records") and bool(value)


def _sized(name: str, value: Any) -> str:
    """Bytes as people say them, for what is large."""
    if not name.startswith("bytes_") and not name.endswith("_bytes"):
        return ""
    return mebibytes(value) if isinstance(value, int) and value >= _MEBIBYTE else ""


def mebibytes(value: float) -> str:
    """Bytes as people say them."""
    return f"{value / _MEBIBYTE:,.1f} MiB" if value < 1 << 30 else f"{value / (1 << 30):,.2f} GiB"


def _shown(name: str, value: Any) -> str:
    if name == "failed":
        return "yes, see above" if value else _NONE
    if name == "bytes_max" and value == 0:
        return "unbounded"
    if isinstance(value, bool) or value is None:
        return str(value)
    if name in _POSITIONS and isinstance(value, int):
        return shown(value)
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value) or _NONE


# --- what follows from them


def meaning_table(values: dict[str, Any], growth: Growth | None, age: float | None) -> Table:
    """What follows from two or more counters, overall and, while watching, since the last sample."""
    table = Table(box=None, pad_edge=False, show_header=growth is not None)
    table.add_column("")
    table.add_column("overall", justify="right")
    table.add_column("since the last", justify="right")
    for what, overall, since in _meanings(values, growth, age):
        bad = what in ("damaged records", "writes") and overall not in ("0", _NONE, "go on")
        table.add_row(Text(what, style="bold"), Text(overall, style="bold red" if bad else ""), Text(since))
    return table


def _meanings(values: dict[str, Any], growth: Growth | None, age: float | None) -> list[tuple[str, str, str]]:
    grown: _Value = growth.of if growth else lambda _: None
    rate: _Value = growth.rate if growth else lambda _: None

    def counted(what: str, name: str) -> tuple[str, str, str]:
        return what, _count(number(values, name)), _rate(rate(name))

    def sized(what: str, name: str) -> tuple[str, str, str]:
        return what, _bytes(number(values, name)), _bytes(rate(name), "/s")

    def share(
        what: str, part: str, whole: tuple[str, ...], show: Callable[[float | None], str]
    ) -> tuple[str, str, str]:
        overall = show(_share(lambda name: number(values, name), part, whole))
        return what, overall, show(_share(grown, part, whole)) if growth else ""

    return [
        counted("matches", "matches"),
        share("blocks a match", "matched_blocks", ("matches",), _decimal),
        share("cache hit rate", "cache_hits", ("cache_hits", "reads"), _percent),
        counted("cache hits", "cache_hits"),
        counted("reads", "reads"),
        counted("reads coalesced", "reads_coalesced"),
        counted("reads joined", "reads_joined"),
        counted("inserts", "inserts"),
        counted("blocks inserted", "inserted_blocks"),
        counted("blocks removed", "removed"),
        counted("blocks evicted", "evicted"),
        ("markers", _count(number(values, "markers")), _signed(grown("markers"))),
        counted("mark passes", "mark_passes"),
        ("disk use", _disk_use(values), _bytes(rate("disk_bytes"), "/s")),
        ("live / dead", _live_and_dead(values), ""),
        sized("log", "log_bytes"),
        counted("files compacted", "compacted_files"),
        sized("copied by compaction", "copied_bytes"),
        ("checkpoint lag", _lag(values), ""),
        ("checkpoint age", _NONE if age is None else f"{age:,.1f} s", ""),
        counted("damaged records", "damaged_records"),
        ("writes", "have stopped" if values.get("failed") else "go on", ""),
    ]


def _share(value_of: _Value, part: str, whole: tuple[str, ...]) -> float | None:
    """A counter over the sum of others; None where one of them is missing or the sum is 0."""
    above, below = value_of(part), [value_of(name) for name in whole]
    if above is None or any(value is None for value in below):
        return None
    total = sum(filter(None, below))
    return above / total if total else None


def _disk_use(values: dict[str, Any]) -> str:
    used, most = number(values, "disk_bytes"), number(values, "bytes_max")
    if not used:
        return _NONE
    return f"{mebibytes(used)} of {mebibytes(most)}, {used / most:.1%}" if most else f"{mebibytes(used)}, unbounded"


def _live_and_dead(values: dict[str, Any]) -> str:
    live, dead = number(values, "live_bytes"), number(values, "dead_bytes")
    if live is None or dead is None or not live + dead:
        return _NONE
    return f"{live / (live + dead):.1%} / {dead / (live + dead):.1%}"


def _lag(values: dict[str, Any]) -> str:
    """How much log stands behind the last checkpoint; of an older writer, how much of it as far as positions tell."""
    lag = number(values, "checkpoint_lag_bytes")
    if lag is not None:
        return f"{lag:,.0f} bytes"
    synced, checkpoint = values.get("synced_position"), values.get("checkpoint_position")
    if not isinstance(synced, int) or not isinstance(checkpoint, int):
        return _NONE
    files = (synced >> 24) - (checkpoint >> 24)
    if files == 0:
        return f"{max(0, synced - checkpoint) * 64:,} bytes"
    return f"{files} files" if checkpoint else "no checkpoint"


def _count(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}/s"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+,.0f}"


def _bytes(value: float | None, unit: str = "") -> str:
    if value is None:
        return "" if unit else _NONE
    return f"{value / _MEBIBYTE:,.1f} MiB{unit}"


def _decimal(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"
