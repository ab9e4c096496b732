"""Which commits of the log are accepted, which are corrupt, torn or void (recovery.md, section 2)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .crc import crc32c
from .folder import log_name
from .log import COMMIT, FACTS, PROBLEMS, RETIRE_FILE, SOUND, TYPE_NAMES, Damage, Rows, offset_of, walk
from .structures import LOG_START, PAGE, LogHeader, place, position, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .faults import Faults
    from .files import LogFile

MARK: Final = 1


@dataclass(slots=True)
class Run:
    """Pages from byte `start` to `end` with the file's rows `low` to `high`: a commit, or what is left of some.

    `number` is 0, and `commit_at` -1, for remnants; `commit_at` is the row of the commit record. `problem` is empty for
    a complete commit.
    """

    start: int
    end: int
    low: int
    high: int
    number: int
    commit_at: int
    problem: str


@dataclass(slots=True)
class Log:
    """The accepted log. `rows` are its records in order of position; `boundaries` maps the end of each accepted
    commit, and the beginning of each file, to the number of the last commit before; `synced` is recovery.md's S."""

    files: list[LogFile]
    rows: Rows
    boundaries: dict[int, int]
    synced: int
    end: int
    bytes_checked: int = 0
    damaged: bool = False
    retired: frozenset[int] = field(default_factory=frozenset)
    _by_number: dict[int, LogFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_number.update({file.number: file for file in self.files})

    @property
    def header(self) -> LogHeader | None:
        return next((file.header for file in self.files if file.header), None)

    def file(self, number: int) -> LogFile | None:
        return self._by_number.get(number)

    def rows_of(self, number: int) -> Rows:
        low, high = np.searchsorted(
            self.rows["position"], np.array([number << 24, (number + 1) << 24], dtype=np.uint64)
        )
        return self.rows[low:high]


@dataclass(slots=True)
class _Walked:
    file: LogFile
    header: LogHeader
    rows: Rows
    damage: deque[Damage]
    runs: list[Run]


def accept(files: list[LogFile], heads_synced: int, faults: Faults) -> Log:
    """Walks all files and decides; `heads_synced` is the largest `synced` of the valid checkpoint heads."""
    walked = [_walked(file, file.header) for file in files if file.header]
    synced = heads_synced
    for one in walked:
        synced = max(synced, one.header.previous_end, _commits_synced(one, faults))
    return _Acceptance(files, walked, synced, faults).log()


def _walked(file: LogFile, header: LogHeader) -> _Walked:
    slices = list(walk(file.descriptor, header, LOG_START, file.end))
    rows = np.concatenate([np.zeros(0, dtype=FACTS), *(piece.rows for piece in slices)])
    damage = deque(stretch for piece in slices for stretch in piece.damage)
    return _Walked(file, header, rows, damage, list(_runs(rows, min(file.end, file.size // PAGE * PAGE))))


def _commits_synced(one: _Walked, faults: Faults) -> int:
    """The largest `synced` of the file's commit records; one that names its own commit or more is a fault."""
    largest = 0
    for run in one.runs:
        if run.commit_at < 0:
            continue
        synced = int(one.rows[run.commit_at]["words"][2])
        if synced <= position(one.file.number, run.start):
            largest = max(largest, synced)
        else:
            offset = offset_of(one.rows[run.commit_at]) + 48
            meaning = f"commit {run.number} says that the log was synced up to {shown(synced)}, which is behind it"
            faults.corruption(one.file.name, offset, "synced", meaning)
    return largest


def _runs(rows: Rows, end: int) -> Iterator[Run]:
    """Cuts a file's pages into commits, each ended by a valid commit record, and single pages of remnants."""
    places = (rows["position"] & np.uint64(0xFFFFFF)).astype(np.int64) * 64
    commit_rows = np.nonzero((rows["type"] == COMMIT) & (rows["problem"] == SOUND))[0].tolist()
    columns = _Columns(rows)
    boundary = LOG_START
    for at in commit_rows:
        page_end = (int(places[at]) // PAGE + 1) * PAGE
        if page_end <= boundary:
            continue  # a second commit record on one page: the first one's run reports it
        start = max(page_end - columns.pages[at] * PAGE, boundary)
        yield from _remnants(places, boundary, start)
        low, high = np.searchsorted(places, [start, page_end]).tolist()
        problem = columns.problem_of(low, high, at, (page_end - start) // PAGE)
        yield Run(start, page_end, low, at + 1 if not problem else high, columns.commit[at], at, problem)
        boundary = page_end
    yield from _remnants(places, boundary, end)


def _remnants(places: Any, start: int, end: int) -> Iterator[Run]:
    for page in range(start, end, PAGE):
        low, high = np.searchsorted(places, [page, page + PAGE]).tolist()
        yield Run(page, page + PAGE, low, high, 0, -1, "no valid commit record ends these pages")


class _Columns:
    """Columns of a file's rows as plain lists: commits are small, and many."""

    def __init__(self, rows: Rows) -> None:
        self.commit: list[int] = rows["commit"].tolist()
        self._problem: list[int] = rows["problem"].tolist()
        words = rows["words"]
        self.pages: list[int] = (words[:, 0] & np.uint64(0xFFFFFFFF)).tolist()
        self._records: list[int] = (words[:, 0] >> np.uint64(32)).tolist()
        self._checksum: list[int] = (words[:, 1] & np.uint64(0xFFFFFFFF)).tolist()
        self._flags: list[int] = (words[:, 1] >> np.uint64(32)).tolist()
        self._crcs: bytes = rows["header_crc"].astype("<u4").tobytes()

    def problem_of(self, low: int, high: int, at: int, pages: int) -> str:
        """Why the records `low` to `high` are not the complete commit that the commit record `at` ends."""
        number = self.commit[at]
        if pages != self.pages[at]:
            return f"commit {number} has {pages} pages, its record says {self.pages[at]}"
        if at != high - 1:
            return f"records follow the record of commit {number} on its page"
        if any(self._problem[low:high]):
            return f"commit {number} has damaged records"
        if self.commit[low:high].count(number) != high - low:
            return f"commit {number} holds records of other commits"
        if high - low - 1 != self._records[at]:
            return f"commit {number} has {high - low - 1} records, its record says {self._records[at]}"
        if crc32c(self._crcs[4 * low : 4 * at]) != self._checksum[at]:
            return f"commit {number} does not have its checksum"
        if self._flags[at] & MARK and self._records[at]:
            return f"commit {number} is flagged a mark and has records"
        return ""


class _Acceptance:
    """Goes through the runs in order."""

    def __init__(self, files: list[LogFile], walked: list[_Walked], synced: int, faults: Faults) -> None:
        self._files = files
        self._walked = walked
        self._synced = synced
        self._faults = faults
        self._last = walked[0].header.previous_commit if walked else 0
        self._lost = False  # commits are missing that were reported: the next number may be any higher one
        self._torn = False
        self._damaged = False
        self._pending: tuple[str, str, int, int] | None = None  # remnants not reported yet: file, code, start, end
        self._taken: list[Rows] = [np.zeros(0, dtype=FACTS)]
        self._boundaries: dict[int, int] = {}
        self._end = 0
        self._usable = {one.file.number: one for one in walked}

    def log(self) -> Log:
        for file in self._files:
            one = self._usable.get(file.number)
            if one is None:
                self._lost = self._damaged = True
                continue
            self._boundaries[position(file.number, LOG_START)] = self._last
            self._take_file(one)
        rows = np.concatenate(self._taken)
        retired = frozenset(rows["words"][rows["type"] == RETIRE_FILE][:, 1].tolist())
        log = Log(self._files, rows, self._boundaries, self._synced, self._end, retired=retired)
        log.bytes_checked = sum(min(one.file.end, one.file.size) for one in self._walked)
        self._check_presence(retired)
        log.damaged = self._damaged
        return log

    def _take_file(self, one: _Walked) -> None:
        file = one.file
        if self._end == 0:
            self._end = position(file.number, LOG_START)
        else:
            self._check_previous(one)
        accepted_end = LOG_START
        for run in one.runs:
            if self._take(one, run):
                accepted_end = run.end
        self._flush()
        if file.bounded and file.end > max(file.size, LOG_START):
            self._corrupt(file.name, file.size, "hole", f"the file ends here, but its log goes on to {file.end}")
        elif file.bounded and file.size > file.end:
            rest = file.size - file.end
            self._faults.void(file.name, file.end, f"{rest} bytes are void: a later header ends the log here")
        elif not file.bounded and file.size > accepted_end:
            rest = file.size - accepted_end
            meaning = f"{rest} bytes behind the last complete commit are not there yet, or torn"
            self._faults.torn(file.name, accepted_end, meaning)

    def _take(self, one: _Walked, run: Run) -> bool:
        """Whether the run, or what is valid in it, is accepted."""
        below = position(one.file.number, run.end) <= self._synced
        follows = run.number == self._last + 1 or (self._lost and run.number > self._last)
        if not run.problem and follows and not (self._torn and not below):
            self._flush()
            self._report_damage(one, run)
            self._accept(one, run, run.number)
            self._lost = False
            return True
        if not below:
            self._torn = True
            return False
        self._damaged = True
        self._report_damage(one, run)
        if run.number:
            self._flush()
            meaning = run.problem or f"commit {run.number} follows commit {self._last}"
            self._faults.corruption(one.file.name, run.start, "commit", f"below the synced position: {meaning}")
        else:
            self._remnant(one.file.name, run)
        self._lost = True
        self._accept(one, run, max(self._last, run.number))
        return True

    def _accept(self, one: _Walked, run: Run, number: int) -> None:
        rows = one.rows[run.low : run.high]
        self._taken.append(rows[rows["problem"] == SOUND])
        self._last = number
        self._end = position(one.file.number, run.end)
        self._boundaries[self._end] = number

    def _remnant(self, name: str, run: Run) -> None:
        """Gathers neighbouring pages of the same kind, so that a long hole is one fault."""
        code = "hole" if run.low == run.high else "commit"
        if self._pending and self._pending[:2] == (name, code) and self._pending[3] == run.start:
            self._pending = (name, code, self._pending[2], run.end)
        else:
            self._flush()
            self._pending = (name, code, run.start, run.end)

    def _flush(self) -> None:
        if self._pending:
            name, code, start, end = self._pending
            what = "no records" if code == "hole" else "no complete commit"
            meaning = f"below the synced position: {what} in {(end - start) // PAGE} pages"
            self._faults.corruption(name, start, code, meaning)
        self._pending = None

    def _report_damage(self, one: _Walked, run: Run) -> None:
        while one.damage and one.damage[0].offset < run.end:  # in order, like the runs
            stretch = one.damage.popleft()
            if stretch.offset + stretch.size > run.start:
                self._corrupt(one.file.name, stretch.offset, stretch.code, f"{stretch.size} bytes: {stretch.meaning}")
        rows = one.rows[run.low : run.high]
        for row in rows[(rows["problem"] != SOUND) | (rows["unclean"] != 0)]:
            kind = int(row["type"])
            what = TYPE_NAMES[kind] if kind < len(TYPE_NAMES) else f"type {kind}"
            if row["problem"] != SOUND:
                meaning = f"{what} record {int(row['sequence'])}: {PROBLEMS[int(row['problem'])]}"
                self._corrupt(one.file.name, offset_of(row), "damaged-record", meaning)
            else:
                meaning = f"{what} record {int(row['sequence'])}: bytes between its end and the next unit are not zero"
                self._faults.warning(one.file.name, offset_of(row) + int(row["length"]), "padding", meaning)

    def _check_previous(self, one: _Walked) -> None:
        """The commit that a header names as the last before it must end where the header says."""
        header = one.header
        if header.previous_end == 0 or place(header.previous_end)[0] not in self._usable:
            return
        number = self._boundaries.get(header.previous_end)
        if number != header.previous_commit:
            meaning = f"names commit {header.previous_commit}, ending at {shown(header.previous_end)}; none does"
            self._faults.corruption(one.file.name, 72, "previous-commit", meaning)

    def _check_presence(self, retired: frozenset[int]) -> None:
        """Files that the log needs and that are neither there nor retired; the synced position must be reached."""
        present = {file.number for file in self._files}
        for one in self._walked:
            needed = place(one.header.previous_end)[0]
            if needed and needed not in present | retired:
                present.add(needed)
                meaning = f"{one.file.name} says that the log goes on from here"
                self._corrupt(log_name(needed), 0, "missing", f"file is missing and was not retired: {meaning}")
        number, offset = place(self._synced)
        if number and number not in present | retired:
            meaning = "file is missing and was not retired: the log was synced into it"
            self._corrupt(log_name(number), 0, "missing", meaning)
        elif self._walked and number == self._walked[-1].file.number and self._synced > self._end:
            meaning = f"the log ends here, it was synced up to {offset}"
            self._corrupt(log_name(number), place(self._end)[1], "hole", meaning)

    def _corrupt(self, file: str, offset: int, code: str, meaning: str) -> None:
        self._damaged = True
        self._faults.corruption(file, offset, code, meaning)
