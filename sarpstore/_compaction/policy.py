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

Small files (a process that lives shortly leaves one of a few pages) are little but what a file costs, so none of them
is worth a new one; many together are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "AT_REST",
    "FILE_BYTES",
    "SETTLED_SHARE",
    "SETTLING",
    "UNDER_PRESSURE",
    "Choice",
    "Eagerness",
    "FileRow",
    "choose",
    "few_removals",
    "settled",
    "together",
]

FILE_BYTES: Final = fmt.LOG_HEADER_BYTES + 4 * fmt.PAGE
"""What a file costs: its header, its seal, and the ends of its first and last commits."""

SETTLED_SHARE: Final = 1.1
"""`compact()` is done when the sealed files hold at most this many times what is live in them."""


@dataclass(frozen=True, slots=True)
class Eagerness:
    """Files with a lower share of dead bytes than `dead_min`, or fewer than `gain_min` of them, are left alone."""

    dead_min: float
    gain_min: int
    by_age: bool = True
    """Cost and benefit decide; else the gain alone."""
    removals_max: float = 0.05
    """Of all bytes, what remove records may take before the file that keeps them needed goes whatever its share."""
    together_min: int = 4
    """So many small files are worth being made one of."""


# A store that forgets all the time has a tenth of remove records, which go with the oldest files by themselves.
AT_REST: Final = Eagerness(0.5, 64 << 10, removals_max=0.2, together_min=8)
SETTLING: Final = Eagerness(0.1, 64 << 10, removals_max=0.03)
UNDER_PRESSURE: Final = Eagerness(0.08, 64 << 10, by_age=False, together_min=2)
# A file is small up to this share of what one is sealed at.
_SMALL_SHARE: Final = 1 / 4
# So many at a time: meanwhile no checkpoint is written.
_TOGETHER_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class FileRow:
    """One sealed file that may be deleted. Positions and numbers are the log's."""

    number: int
    bytes: int
    live_bytes: int
    """What its compaction would write: segment records that entries name, other records, and `FILE_BYTES`."""
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
    def copy_bytes(self) -> int:
        """What its compaction would add to a file that is there anyway."""
        return max(0, self.live_bytes - FILE_BYTES)

    @property
    def dead_share(self) -> float:
        return self.dead_bytes / self.bytes if self.bytes else 1.0


class Choice:
    """The file to compact next, of rows that are looked at some at a time, in ascending order: thousands take a while.

    `newest`: the highest number of all; `last_pass`: where the newest finished mark pass began.
    """

    def __init__(self, eagerness: Eagerness, newest: int, last_pass: int = 0) -> None:
        self._eagerness = eagerness
        self._newest = newest
        self._last_pass = last_pass
        self._firsts: dict[int, FileRow | None] = {}
        """By number: what must go before a file, or itself; None if that may not be deleted now."""
        self._best: tuple[float, int] | None = None
        self._lowest: FileRow | None = None
        """Of those that may be deleted, because of which removal records are kept."""
        self._bytes = self._removal_bytes = 0

    def look(self, rows: Iterable[FileRow]) -> None:
        """Take these into account."""
        weigh = _benefit if self._eagerness.by_age else _gain
        for row in rows:
            first = self._firsts[row.number] = row if row.before is None else self._firsts.get(row.before)
            if first is None:
                continue
            self._bytes += row.bytes
            self._removal_bytes += row.removal_bytes
            if self._lowest is None or row.clean < self._lowest.clean:
                self._lowest = row
            if row.dead_share >= self._eagerness.dead_min and _gains(row, self._eagerness):
                worth = weigh(row, self._newest), -row.number
                self._best = worth if self._best is None else max(self._best, worth)

    def result(self) -> FileRow | None:
        """None if no file is worth it, or none that is may be deleted now."""
        if self._best is not None:
            return self._firsts[-self._best[1]]
        if self._lowest is None or self._removal_bytes <= self._eagerness.removals_max * self._bytes:
            return None
        # Its copies will be clean up to the last pass; one that is so already gains nothing.
        return self._firsts[self._lowest.number] if self._lowest.clean < self._last_pass else None


def choose(rows: Sequence[FileRow], eagerness: Eagerness, last_pass: int = 0) -> FileRow | None:
    """The file to compact next, of all of these."""
    choice = Choice(eagerness, max((row.number for row in rows), default=0), last_pass)
    choice.look(sorted(rows, key=lambda row: row.number))
    return choice.result()


def together(rows: Iterable[FileRow], eagerness: Eagerness, file_bytes: int) -> list[FileRow]:
    """Small files, ascending, that are worth being compacted together: their copies fill half a file at most.

    None of them needs another to be deleted before it: of several names that are removed, a crash may bring back any.
    """
    chosen: list[FileRow] = []
    size = copies = 0
    for row in sorted(rows, key=lambda row: row.number):
        small = row.before is None and row.bytes <= _SMALL_SHARE * file_bytes
        if small and copies + row.copy_bytes <= file_bytes // 2 and len(chosen) < _TOGETHER_MAX:
            chosen.append(row)
            size, copies = size + row.bytes, copies + row.copy_bytes
    worth = len(chosen) >= eagerness.together_min and size >= 2 * (copies + FILE_BYTES)
    return chosen if worth else []


def _gains(row: FileRow, eagerness: Eagerness) -> bool:
    """Small files are worth a smaller gain."""
    return row.dead_bytes >= min(eagerness.gain_min, row.bytes // 8)


def settled(rows: Iterable[FileRow], file_bytes: int) -> bool:
    """Whether the files hold little more than what is live, few of it remove records, and are not many small ones."""
    rows = list(rows)
    little = sum(row.bytes for row in rows) <= SETTLED_SHARE * sum(row.live_bytes for row in rows)
    return little and few_removals(rows) and not together(rows, SETTLING, file_bytes)


def few_removals(rows: Iterable[FileRow]) -> bool:
    """Whether few of what the files hold are remove records that are needed."""
    rows = list(rows)
    return sum(row.removal_bytes for row in rows) <= SETTLING.removals_max * sum(row.bytes for row in rows)


def _benefit(row: FileRow, newest: int) -> float:
    return row.dead_share * math.sqrt(newest - row.number + 1) / (2.0 - row.dead_share)


def _gain(row: FileRow, _: int) -> float:
    return row.dead_share
