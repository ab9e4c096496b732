"""Which log file is compacted next. Pure functions over rows that say what each sealed file holds.

Compacting a file of which the share u is live reads it, writes u of it anew, and frees 1 - u. Greedy choice (the
lowest u) is the best for one step, but not for many: where few records are hot and many are cold, the cold files
linger just above the lowest u and hold their dead bytes for long, while hot ones are copied shortly before they would
have emptied by themselves. The log-structured file system's answer (M. Rosenblum, J. K. Ousterhout: The Design and
Implementation of a Log-Structured File System, 1992, section 3.5) weighs what is freed by how long it will stay so:

    benefit / cost = (1 - u) * age / (1 + u)

A KV-cache index is such a case: a session's last segment is superseded turn after turn, so young files empty fast,
while what has been evicted, removed or outgrown leaves scattered holes in old ones. Age here is in files: how many
younger ones there are. It counts to the square root, since the file system's age is of the data's last change and ours
is the file's, which compaction makes young again.

Three degrees of eagerness: at rest a file must be worth it (half of it dead: writing at most one byte to free one); a
store that is asked to compact (`SETTLING`) goes on until the disk holds little more than what is live; under pressure
(the bound on disk space) any gain will do, the largest first. What pages lose to records that do not fit, some 6 %,
looks dead and is not: below that no eagerness may go, or compaction would never end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["AT_REST", "SETTLED_SHARE", "SETTLING", "UNDER_PRESSURE", "Eagerness", "FileRow", "choose", "settled"]

SETTLED_SHARE: Final = 1.15
"""`compact()` is done when the sealed files hold at most this many times what is live in them."""
_REMOVALS_SHARE_MAX: Final = 0.05
"""Of all bytes, what remove records may take before the file that keeps them needed is compacted whatever its share."""


@dataclass(frozen=True, slots=True)
class Eagerness:
    """Files with a lower share of dead bytes than `dead_min`, or fewer than `gain_min` of them, are left alone."""

    dead_min: float
    gain_min: int
    by_age: bool = True
    """Cost and benefit decide; else the gain alone."""


AT_REST: Final = Eagerness(0.5, 64 << 10)
SETTLING: Final = Eagerness(0.12, 64 << 10)
UNDER_PRESSURE: Final = Eagerness(0.08, 64 << 10, by_age=False)


@dataclass(frozen=True, slots=True)
class FileRow:
    """One sealed file that may be deleted. Positions and numbers are the log's."""

    number: int
    bytes: int
    live_bytes: int
    """What its compaction would write: segment records that entries name, other records, and what a file costs."""
    removal_bytes: int = 0
    """Of these, remove records."""
    clean: int = 0
    """It has no record that a removal up to this position kills."""
    before: int | None = None
    """A file that must be deleted before this one: this one's header alone says where that one ends."""

    @property
    def dead_bytes(self) -> int:
        return max(0, self.bytes - self.live_bytes)

    @property
    def dead_share(self) -> float:
        return self.dead_bytes / self.bytes if self.bytes else 1.0


def choose(rows: Sequence[FileRow], eagerness: Eagerness, last_pass: int = 0) -> FileRow | None:
    """The file to compact next, None if none is worth it. `last_pass`: where the newest finished mark pass began."""
    by_number = {row.number: row for row in rows}
    able = [row for row in rows if _first(by_number, row) is not None]
    worth = [row for row in able if row.dead_share >= eagerness.dead_min and _gains(row, eagerness)]
    if worth:
        newest = max(row.number for row in rows)
        weigh = _benefit if eagerness.by_age else _gain
        chosen: FileRow | None = max(worth, key=lambda row: (weigh(row, newest), -row.number))
    else:
        chosen = _blocking(able, last_pass)
    return None if chosen is None else _first(by_number, chosen)


def _gains(row: FileRow, eagerness: Eagerness) -> bool:
    """Small files are worth a smaller gain."""
    return row.dead_bytes >= min(eagerness.gain_min, row.bytes // 8)


def settled(rows: Iterable[FileRow]) -> bool:
    """Whether the files hold little more than what is live."""
    rows = list(rows)
    return sum(row.bytes for row in rows) <= SETTLED_SHARE * sum(row.live_bytes for row in rows)


def _benefit(row: FileRow, newest: int) -> float:
    return row.dead_share * math.sqrt(newest - row.number + 1) / (2.0 - row.dead_share)


def _gain(row: FileRow, _: int) -> float:
    return row.dead_share


def _blocking(rows: Sequence[FileRow], last_pass: int) -> FileRow | None:
    """The file because of which removal records are kept, where they are many and compacting it lets them go."""
    if sum(row.removal_bytes for row in rows) <= _REMOVALS_SHARE_MAX * sum(row.bytes for row in rows):
        return None
    lowest = min(rows, key=lambda row: (row.clean, row.number))
    # Its copies will be clean up to the last pass; one that is so already gains nothing.
    return lowest if lowest.clean < last_pass else None


def _first(rows: Mapping[int, FileRow], chosen: FileRow) -> FileRow | None:
    """What must go before the chosen file, or itself; None if that may not be deleted now."""
    row: FileRow | None = chosen
    while row is not None and row.before is not None:
        row = rows.get(row.before)
    return row
