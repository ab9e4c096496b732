"""Cuts a file's pages into commits and what is left of some (recovery.md, section 2)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .crc import crc32c
from .log import COMMIT, SOUND, Damage, Rows
from .structures import LOG_START, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Run:
    """Pages from byte `start` to `end` with the file's rows `low` to `high`: a commit, or what is left of some.

    `number` is 0, and `commit_at` -1, for remnants; `commit_at` is the row of the commit record. `problem` is empty for
    a commit that is complete, but for its number. `alone` is false if pages before it belong to no commit: with them it
    is not complete either, but they are reported by themselves.
    """

    start: int
    end: int
    low: int
    high: int
    number: int
    commit_at: int
    problem: str
    alone: bool = True


def find_runs(rows: Rows, damage: list[Damage], end: int) -> list[Run]:
    """Cuts a file's pages into commits, each ended by a valid commit record, and single pages of remnants."""
    return list(_Cutter(rows, damage).runs(end))


def cut_at(runs: list[Run], offset: int, rows: Rows, damage: list[Damage]) -> list[Run]:
    """The runs, of which none goes over the byte `offset`, where a checkpoint says that a commit begins.

    Only an incomplete run can: damage has made it out of commits on both sides. A scan that starts at the checkpoint
    sees nothing of the pages before it.
    """
    out: list[Run] = []
    for run in runs:
        if run.problem and run.commit_at >= 0 and run.start < offset < run.end and offset % PAGE == 0:
            out.extend(_Cutter(rows, damage).halves(run, offset))
        elif run.start == offset and not run.alone:
            out.append(replace(run, alone=True))
        else:
            out.append(run)
    return out


class _Cutter:
    """Columns of a file's rows as plain lists: commits are small, and many."""

    def __init__(self, rows: Rows, damage: list[Damage]) -> None:
        self._commit_rows: list[int] = np.nonzero((rows["type"] == COMMIT) & (rows["problem"] == SOUND))[0].tolist()
        self._places: Any = (rows["position"] & np.uint64(0xFFFFFF)).astype(np.int64) * 64
        self._commit: list[int] = rows["commit"].tolist()
        self._problem: list[int] = rows["problem"].tolist()
        words = rows["words"]
        self._pages: list[int] = (words[:, 0] & np.uint64(0xFFFFFFFF)).tolist()
        self._records: list[int] = (words[:, 0] >> np.uint64(32)).tolist()
        self._checksum: list[int] = (words[:, 1] & np.uint64(0xFFFFFFFF)).tolist()
        self._crcs: bytes = rows["header_crc"].astype("<u4").tobytes()
        self._damage_ends = [stretch.offset + stretch.size for stretch in damage]
        self._damage_starts = [stretch.offset for stretch in damage]

    def runs(self, end: int) -> Iterator[Run]:
        boundary = LOG_START
        for at in self._commit_rows:
            page_end = (int(self._places[at]) // PAGE + 1) * PAGE
            if page_end <= boundary:
                continue  # a second commit record on one page: the first one's run reports it
            start = max(page_end - self._pages[at] * PAGE, boundary)
            if start >= page_end:
                start = boundary
            yield from self._remnants(boundary, start)
            yield self._commit_run(start, page_end, at, alone=start == boundary)
            boundary = page_end
        yield from self._remnants(boundary, end)

    def halves(self, run: Run, offset: int) -> Iterator[Run]:
        """A commit's run cut in two: what is before `offset`, and the commit from there on."""
        yield from self._remnants(run.start, offset)
        yield self._commit_run(offset, run.end, run.commit_at, alone=True)

    def _remnants(self, start: int, end: int) -> Iterator[Run]:
        for page in range(start, end, PAGE):
            low, high = np.searchsorted(self._places, [page, page + PAGE]).tolist()
            yield Run(page, page + PAGE, low, high, 0, -1, "no valid commit record ends these pages")

    def _commit_run(self, start: int, end: int, at: int, alone: bool) -> Run:
        low, high = np.searchsorted(self._places, [start, end]).tolist()
        problem = self._problem_of(low, high, at, (end - start) // PAGE)
        if not problem and self._is_damaged(start, end):
            problem = f"commit {self._commit[at]} has bytes that are neither free nor a record"
        return Run(start, end, low, high, self._commit[at], at, problem, alone)

    def _is_damaged(self, start: int, end: int) -> bool:
        at = bisect_left(self._damage_ends, start + 1)
        return at < len(self._damage_starts) and self._damage_starts[at] < end

    def _problem_of(self, low: int, high: int, at: int, pages: int) -> str:
        """Why the records `low` to `high` are not the complete commit that the commit record `at` ends."""
        number = self._commit[at]
        if pages != self._pages[at]:
            return f"commit {number} has {pages} pages, its record says {self._pages[at]}"
        if at != high - 1:
            return f"records follow the record of commit {number} on its page"
        if any(self._problem[low:high]):
            return f"commit {number} has damaged records"
        if self._commit[low:high].count(number) != high - low:
            return f"commit {number} holds records of other commits"
        if high - low - 1 != self._records[at]:
            return f"commit {number} has {high - low - 1} records, its record says {self._records[at]}"
        if crc32c(self._crcs[4 * low : 4 * at]) != self._checksum[at]:
            return f"commit {number} does not have its checksum"
        return ""
