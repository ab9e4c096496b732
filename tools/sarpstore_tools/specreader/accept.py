"""Which commits of the log are accepted, which are corrupt, torn or void (recovery.md, section 2)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from .folder import log_name
from .log import FACTS, PROBLEMS, RETIRE_FILE, SOUND, TYPE_NAMES, UNKNOWN_TYPE, Damage, Rows, offset_of, walk
from .runs import Run, cut_at, find_runs
from .structures import LOG_START, PAGE, Head, LogHeader, place, position, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .faults import Faults
    from .files import LogFile
    from .keys import U64

UNKNOWN: Final = -1  # the number of the last commit where damage has taken its record


@dataclass
class Log:
    """The accepted log. `rows` are its records in order of position; `boundaries` maps the end of each accepted
    commit, and the beginning of each file, to the number of the last commit before, or to `UNKNOWN`; `synced` is
    recovery.md's S. `damaged_files` are those with damage that was accepted around; `broken` says where (positions).
    `removals` says that the store has that feature: something may have been removed, and files deleted."""

    files: list[LogFile]
    rows: Rows
    boundaries: dict[int, int]
    synced: int
    end: int
    bytes_checked: int = 0
    damaged: bool = False
    damaged_files: frozenset[int] = field(default_factory=frozenset)
    broken: tuple[tuple[int, int], ...] = ()
    retired: frozenset[int] = field(default_factory=frozenset)
    removals: bool = False
    newest: Head | None = None
    _by_number: dict[int, LogFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_number.update({file.number: file for file in self.files})

    @property
    def header(self) -> LogHeader | None:
        return next((file.header for file in self.files if file.header), None)

    def file(self, number: int) -> LogFile | None:
        return self._by_number.get(number)

    def is_gone(self, number: int) -> bool:
        """Whether a file that is not there may have been deleted in order (recovery.md, section 2); number 0 is that of
        a slot which stands for no file."""
        if number in self._by_number:
            return False
        return number in self.retired or (self.removals and number not in self._needed)

    @cached_property
    def _needed(self) -> frozenset[int]:
        """The files that the log or its newest checkpoint cannot do without, but for those that were retired."""
        named = {place(file.header.previous_end)[0] for file in self.files if file.header}
        if self.newest is not None:
            start = place(self.newest.start)[0]
            named = {number for number in named if number >= start} | set(self.newest.slots["file"].tolist())
        return frozenset(named | {place(self.synced)[0]}) - {0}

    def are_gone(self, positions: U64) -> NDArray[np.bool_]:
        """For which of these positions the file may have been deleted in order."""
        numbers, which = np.unique(positions >> np.uint64(24), return_inverse=True)
        gone = np.array([self.is_gone(number) for number in numbers.tolist()], dtype=np.bool_)
        return np.asarray(gone[which], dtype=np.bool_)

    @property
    def shortened(self) -> bool:
        """Whether files have been deleted in order, so that the log does not say all that it once said."""
        befores = [file.header.previous_end for file in self.files if file.header]
        return any(before and self.is_gone(place(before)[0]) for before in befores)

    def rows_of(self, number: int) -> Rows:
        low, high = np.searchsorted(
            self.rows["position"], np.array([number << 24, (number + 1 << 24) - 1], dtype=np.uint64)
        )
        return self.rows[low:high]

    def may_be_boundary(self, at: int) -> bool:
        """Whether a commit ends at that position, or may have ended there before damage came over it."""
        file = self.file(place(at)[0])
        unknown = file is None or file.header is None or any(low < at < high for low, high in self.broken)
        return at in self.boundaries or unknown


@dataclass(slots=True)
class _Walked:
    file: LogFile
    header: LogHeader
    rows: Rows
    damage: deque[Damage]
    runs: list[Run]


def accept(files: list[LogFile], heads: list[Head], faults: Faults) -> Log:
    """Walks all files and decides; `heads` are the valid checkpoint heads, in ascending order."""
    newest = heads[-1] if heads else None
    walked = [_walked(file, file.header, newest, faults) for file in files if file.header]
    synced = max((head.synced for head in heads), default=0)
    for one in walked:
        synced = max(synced, one.header.previous_end, _commits_synced(one, faults))
    removals = any(one.header.removals for one in walked) or any(head.removals for head in heads)
    return _Acceptance(files, walked, synced, newest, removals, faults).log()


def _walked(file: LogFile, header: LogHeader, newest: Head | None, faults: Faults) -> _Walked:
    slices = list(walk(file.descriptor, header, LOG_START, file.end))
    rows = np.concatenate([np.zeros(0, dtype=FACTS), *(piece.rows for piece in slices)])
    damage = [stretch for piece in slices for stretch in piece.damage]
    for row in rows[rows["problem"] == UNKNOWN_TYPE]:
        meaning = f"type {int(row['type'])}, unknown and not ignorable: this reader must refuse the store"
        faults.corruption(file.name, offset_of(row), "unknown-type", meaning)
    runs = find_runs(rows, damage, min(file.end, file.size // PAGE * PAGE))
    if newest and place(newest.start)[0] == file.number:
        runs = cut_at(runs, place(newest.start)[1], rows, damage)
    return _Walked(file, header, rows, deque(damage), runs)


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


class _Acceptance:
    """Goes through the runs in order.

    `_last` is the number of the last commit record, valid and where it may be: what the next complete commit follows.
    `_unsure` says that damage, which was reported, may have taken commit records since.
    """

    def __init__(
        self,
        files: list[LogFile],
        walked: list[_Walked],
        synced: int,
        newest: Head | None,
        removals: bool,
        faults: Faults,
    ) -> None:
        self._files = files
        self._walked = walked
        self._synced = synced
        self._newest = newest
        self._removals = removals
        self._faults = faults
        self._last = walked[0].header.previous_commit if walked else 0
        self._unsure = False
        self._torn = False
        self._past_start = False
        self._damaged: set[int] = set()
        self._broken: list[tuple[int, int]] = []
        self._pending: tuple[str, str, int, int] | None = None  # remnants not reported yet: file, code, start, end
        self._taken: list[Rows] = [np.zeros(0, dtype=FACTS)]
        self._boundaries: dict[int, int] = {}
        self._end = 0
        self._usable = {one.file.number: one for one in walked}

    def log(self) -> Log:
        for file in self._files:
            one = self._usable.get(file.number)
            if one is None:
                self._unsure = True
                self._damaged.add(file.number)
                continue
            self._follow(one.header)
            self._boundaries[position(file.number, LOG_START)] = UNKNOWN if self._unsure else self._last
            self._take_file(one)
        rows = np.concatenate(self._taken)
        retired = frozenset(rows["words"][rows["type"] == RETIRE_FILE][:, 1].tolist())
        log = Log(self._files, rows, self._boundaries, self._synced, self._end, retired=retired)
        log.removals, log.newest = self._removals, self._newest
        log.bytes_checked = sum(min(one.file.end, one.file.size) for one in self._walked)
        self._check_presence(log)
        log.damaged, log.damaged_files, log.broken = (
            bool(self._damaged),
            frozenset(self._damaged),
            tuple(self._broken),
        )
        return log

    def _follow(self, header: LogHeader) -> None:
        """What the file before says of the last commit; where that file was deleted, this one's header does."""
        before = place(header.previous_end)[0]
        if self._removals and before and all(before != file.number for file in self._files):
            self._last, self._unsure = header.previous_commit, False
        else:
            self._unsure |= 0 < before not in self._usable

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
            self._corrupt(file, file.size, "hole", f"the file ends here, but its log goes on to {file.end}")
            self._broken.append((position(file.number, accepted_end), file.end_position))
            self._boundaries[file.end_position] = UNKNOWN
            self._unsure = True
        elif file.bounded and file.size > file.end:
            rest = file.size - file.end
            self._faults.void(file.name, file.end, f"{rest} bytes are void: a later header ends the log here")
        elif not file.bounded and file.size > accepted_end:
            rest = file.size - accepted_end
            meaning = f"{rest} bytes behind the last accepted commit are not there yet, or torn"
            self._faults.torn(file.name, accepted_end, meaning)

    def _take(self, one: _Walked, run: Run) -> bool:
        """Whether the whole run, or all that is valid in it, is accepted."""
        number = one.file.number
        begin, end = position(number, run.start), position(number, run.end)
        if self._newest and not self._past_start and begin >= self._newest.start:
            self._past_start = True
            self._last = self._newest.commit if self._unsure else self._last
        below = end <= self._synced
        complete = not run.problem and run.alone and run.number == self._last + 1
        if complete and (below or not self._torn):
            self._flush()
            self._report_damage(one, run, end)
            self._accept(one, run, end)
            self._unsure = False
            return True
        if begin >= self._synced or self._torn:
            self._torn = True
            return False
        self._damaged.add(number)
        self._broken.append((begin, min(end, self._synced)))
        self._report_damage(one, run, self._synced)
        self._report_run(one, run)
        self._unsure |= run.commit_at < 0
        if below:
            self._accept(one, run, end)
        else:
            # Damage made one run out of commits on both sides of S.
            self._torn = True
            self._accept(one, run, self._synced)
        return below

    def _accept(self, one: _Walked, run: Run, end: int) -> None:
        """All sound records of the run before the position `end`."""
        rows = one.rows[run.low : run.high]
        self._taken.append(rows[(rows["problem"] == SOUND) & (rows["position"] < np.uint64(end))])
        self._end = end
        if run.commit_at >= 0 and int(one.rows[run.commit_at]["position"]) < end:
            self._last = run.number
            self._boundaries[end] = run.number
        else:
            self._boundaries[end] = UNKNOWN

    def _report_run(self, one: _Walked, run: Run) -> None:
        """What is corrupt about a run that is not, as a whole, the next commit."""
        if not run.number:
            self._remnant(one.file.name, run)
            return
        self._flush()
        if not run.problem and self._unsure and run.number > self._last:
            return  # commits before it are lost: that was reported
        meaning = run.problem or f"commit {run.number} follows commit {self._last}"
        self._faults.corruption(one.file.name, run.start, "commit", f"below the synced position: {meaning}")

    def _remnant(self, name: str, run: Run) -> None:
        """Gathers neighbouring pages of the same kind, so that a long hole is one fault."""
        code = "hole" if run.low == run.high else "commit"
        end = min(run.end, place(self._synced)[1]) if name == log_name(place(self._synced)[0]) else run.end
        if self._pending and self._pending[:2] == (name, code) and self._pending[3] == run.start:
            self._pending = (name, code, self._pending[2], end)
        else:
            self._flush()
            self._pending = (name, code, run.start, end)

    def _flush(self) -> None:
        if self._pending:
            name, code, start, end = self._pending
            what = "no records" if code == "hole" else "no complete commit"
            meaning = f"below the synced position: {what} from here to {end}"
            self._faults.corruption(name, start, code, meaning)
        self._pending = None

    def _report_damage(self, one: _Walked, run: Run, end: int) -> None:
        """Damaged stretches and records of the run before the position `end`; each is reported once."""
        last = min(run.end, place(end)[1]) if place(end)[0] == one.file.number else run.end
        while one.damage and one.damage[0].offset < last:  # in order, like the runs
            stretch = one.damage.popleft()
            if stretch.offset + stretch.size > run.start:
                self._corrupt(one.file, stretch.offset, stretch.code, f"{stretch.size} bytes: {stretch.meaning}")
        rows = one.rows[run.low : run.high]
        flawed = (rows["problem"] != SOUND) | (rows["unclean"] != 0)
        for row in rows[flawed & (rows["problem"] != UNKNOWN_TYPE) & (rows["position"] < np.uint64(end))]:
            kind = int(row["type"])
            what = TYPE_NAMES[kind] if kind < len(TYPE_NAMES) else f"type {kind}"
            if row["problem"] != SOUND:
                meaning = f"{what} record {int(row['sequence'])}: {PROBLEMS[int(row['problem'])]}"
                self._corrupt(one.file, offset_of(row), "damaged-record", meaning)
            else:
                meaning = f"{what} record {int(row['sequence'])}: bytes between its end and the next unit are not zero"
                self._faults.warning(one.file.name, offset_of(row) + int(row["length"]), "padding", meaning)

    def _check_previous(self, one: _Walked) -> None:
        """The commit that a header names as the last before it must end where the header says."""
        header = one.header
        end, number = header.previous_end, self._boundaries.get(header.previous_end)
        if end == 0 and header.previous_commit:
            meaning = f"names commit {header.previous_commit}, but no end of it"
            self._faults.corruption(one.file.name, 80, "previous-commit", meaning)
        if end == 0 or place(end)[0] not in self._usable or number == UNKNOWN:
            return
        if number != header.previous_commit:
            meaning = f"names commit {header.previous_commit}, ending at {shown(end)}; none does"
            self._faults.corruption(one.file.name, 72, "previous-commit", meaning)

    def _check_presence(self, log: Log) -> None:
        """Files that the log needs and that are neither there nor deleted; the synced position must be reached."""
        present = {file.number for file in self._files}
        for one in self._walked:
            needed = place(one.header.previous_end)[0]
            if needed and needed not in present and not log.is_gone(needed):
                present.add(needed)
                self._missing(needed, f"{one.file.name} says that the log goes on from here")
        number, offset = place(self._synced)
        if number and number not in present and not log.is_gone(number):
            self._missing(number, "the log was synced into it")
        elif self._walked and number == self._walked[-1].file.number and self._synced > self._end:
            meaning = f"the log ends here, it was synced up to {offset}"
            self._corrupt(self._walked[-1].file, place(self._end)[1], "hole", meaning)

    def _missing(self, number: int, meaning: str) -> None:
        self._damaged.add(number)
        self._faults.corruption(log_name(number), 0, "missing", f"file is missing and was not retired: {meaning}")

    def _corrupt(self, file: LogFile, offset: int, code: str, meaning: str) -> None:
        self._damaged.add(file.number)
        self._faults.corruption(file.name, offset, code, meaning)
