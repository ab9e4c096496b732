"""Tables of the published counters of a store of either kind: all of them, and what follows from them.

What is published may be anything that JSON can say: what is no number where one is expected is shown as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from .specreader.structures import shown

if TYPE_CHECKING:
    from .specreader.structures import Statistics

Groups = tuple[tuple[str, tuple[str, ...]], ...]
Show = Callable[[float | None], str]
Value = Callable[[str], float | None]
NONE: Final = "-"

_BAD: Final = ("failed", "damaged_records", "damaged_payloads")
_POSITIONS: Final = frozenset({"synced_position", "checkpoint_position"})
_MEBIBYTE: Final = 1 << 20
_NUMBER_END: Final = 1 << 64


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
    """A counter that is a number; None where it is not published, or larger than any counter is."""
    value = values.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < _NUMBER_END:
        return None
    return value


@dataclass(frozen=True, slots=True)
class Meaning:
    """A row of what counters mean: overall and since the last sample. `bad`: somebody has to look at it."""

    what: str
    overall: str
    since: str = ""
    bad: bool = False


class Meanings:
    """Makes rows from one sample and, while watching, from what grew since the one before."""

    def __init__(self, values: dict[str, Any], growth: Growth | None) -> None:
        self.values = values
        self._growth = growth

    def now(self, name: str) -> float | None:
        """A counter."""
        return number(self.values, name)

    def grown(self, name: str) -> float | None:
        """How much it grew since the last sample."""
        return self._growth.of(name) if self._growth else None

    def rate(self, name: str) -> float | None:
        """The same a second."""
        return self._growth.rate(name) if self._growth else None

    def counted(self, what: str, name: str) -> Meaning:
        """A counter, and its rate."""
        return Meaning(what, count(self.now(name)), per_second(self.rate(name)), name in _BAD and bool(self.now(name)))

    def sized(self, what: str, name: str) -> Meaning:
        """A counter of bytes, and its rate."""
        return Meaning(what, size(self.now(name)), size(self.rate(name), "/s"))

    def share(self, what: str, part: str, whole: tuple[str, ...], show: Show) -> Meaning:
        """A counter over the sum of others."""
        since = show(share_of(self.grown, part, whole)) if self._growth else ""
        return Meaning(what, show(share_of(self.now, part, whole)), since)

    def disk_use(self) -> Meaning:
        """Bytes of all files, and of the bound."""
        used, most = self.now("disk_bytes"), self.now("bytes_max")
        text = NONE
        if used:
            text = (
                f"{mebibytes(used)} of {mebibytes(most)}, {used / most:.1%}"
                if most
                else f"{mebibytes(used)}, unbounded"
            )
        return Meaning("disk use", text, size(self.rate("disk_bytes"), "/s"))

    def goes_on(self, what: str) -> Meaning:
        """Whether anything is written."""
        failed = bool(self.values.get("failed"))
        return Meaning(what, "have stopped" if failed else "go on", bad=failed)


def counters_table(values: dict[str, Any], groups: Groups) -> Table:
    """Every counter that is published, known or not."""
    known = {name for _, names in groups for name in names}
    others = tuple(name for name in values if name not in known)
    table = Table(show_header=False, box=None, pad_edge=False)
    for group, names in (*groups, ("other", others)):
        label = group
        for name in names:
            if name in values:
                value = values[name]
                style = "bold red" if name in _BAD and bool(value) else ""
                text = Text(_shown(name, value), justify="right", style=style)
                table.add_row(Text(label, style="bold"), Text(printable(name)), text, Text(_sized(name, values)))
                label = ""
    return table


def meaning_table(rows: Iterable[Meaning], *, watched: bool) -> Table:
    """What follows from two or more counters, overall and, while watching, since the last sample."""
    table = Table(box=None, pad_edge=False, show_header=watched)
    table.add_column("")
    table.add_column("overall", justify="right")
    table.add_column("since the last", justify="right")
    for row in rows:
        overall = Text(row.overall, style="bold red" if row.bad else "")
        table.add_row(Text(printable(row.what), style="bold"), overall, Text(row.since))
    return table


def share_of(value_of: Value, part: str, whole: tuple[str, ...]) -> float | None:
    """A counter over the sum of others; None where one of them is missing or the sum is 0."""
    above, below = value_of(part), [value_of(name) for name in whole]
    if above is None or any(value is None for value in below):
        return None
    total = sum(filter(None, below))
    return above / total if total else None


def printable(text: object) -> str:
    """As it is, but for characters that a terminal would obey."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))


def mebibytes(value: float) -> str:
    """Bytes as people say them."""
    return f"{value / _MEBIBYTE:,.1f} MiB" if value < 1 << 30 else f"{value / (1 << 30):,.2f} GiB"


def count(value: float | None) -> str:
    """A number of things."""
    return NONE if value is None else f"{value:,.0f}"


def per_second(value: float | None) -> str:
    """A rate of things."""
    return "" if value is None else f"{value:,.1f}/s"


def signed(value: float | None) -> str:
    """A change."""
    return "" if value is None else f"{value:+,.0f}"


def size(value: float | None, unit: str = "") -> str:
    """Bytes, or a rate of them, in one unit."""
    if value is None:
        return "" if unit else NONE
    return f"{value / _MEBIBYTE:,.1f} MiB{unit}"


def decimal(value: float | None) -> str:
    """A ratio."""
    return NONE if value is None else f"{value:,.1f}"


def percent(value: float | None) -> str:
    """A share."""
    return NONE if value is None else f"{value:.1%}"


def _sized(name: str, values: dict[str, Any]) -> str:
    """Bytes as people say them, for what is large."""
    value = number(values, name)
    if value is None or (not name.startswith("bytes_") and not name.endswith("_bytes")):
        return ""
    return mebibytes(value) if value >= _MEBIBYTE else ""


def _shown(name: str, value: Any) -> str:
    if name == "failed":
        return "yes, see above" if value else NONE
    if name == "bytes_max" and value == 0:
        return "unbounded"
    if isinstance(value, bool) or value is None:
        return str(value)
    if name in _POSITIONS and isinstance(value, int) and 0 <= value < _NUMBER_END:
        return shown(value)
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else printable(value) or NONE
