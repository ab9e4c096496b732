"""Gathering: which commit, file, slot and sequence number come next. No I/O.

Records gather in a commit buffer whose place in the log is already known, so they have their positions at once and can
be read from the buffer. Freezing ends the commit and goes on in another buffer; where the file is full, it also makes
the commit that seals it, and goes on in the next file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._errors import LimitError
from sarpstore._kernel import joined, lib
from sarpstore._log.commits import CommitBuffer, seal_record, summary_of, summary_record
from sarpstore._log.header import LogHeader, Shape
from sarpstore._log.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from sarpstore._log.base import Base
    from sarpstore._log.pages import Pages

__all__ = ["INSERT_WINDOWS_MAX", "Frozen", "Gatherer", "LogEnd", "Seal"]

INSERT_WINDOWS_MAX: Final = 128
"""Windows that one insertion step may write: every empty commit has room for them."""

# Gathering, waiting, being written.
_BUFFERS: Final = 3
_ROOM_MIN_PAGES: Final = INSERT_WINDOWS_MAX + 8
# Under `sarp` an insertion may make so many postings records, too, of a page each: the kernel plans no more.
_POSTINGS_PAGES_MAX: Final = 16
# Pages that go to the cache in one turn of the event loop: 1 MiB, some 0.3 ms.
_CACHED_AT_ONCE: Final = 256
# A segment takes at least 3 of a page's 64 units, so a page brings at most 21 summary entries, a sixth of a page. Under
# `sarp` a segment may bring 16: a third of a page is the rule, and a commit is full where its records bring more.
_SUMMARY_SHARE: Final = 6
_SUMMARY_SHARE_LISTED: Final = 3


@dataclass(slots=True)
class LogEnd:
    """Where the log stands: what recovery found, and what a writer goes on from."""

    commit: int = 0
    """Number of the last commit; 0: none."""
    position: int = 0
    """Behind that commit; 0: none."""
    synced: int = 0
    """Everything before this position is synced."""
    sequence: int = 1
    """Of the next record."""
    file_number: int = 0
    """The highest that there is; 0: none."""


@dataclass(slots=True)
class Seal:
    """The commit that ends a file: its place, and the summary that it will hold. Encoding it takes milliseconds."""

    shape: Shape
    base: Base
    file_number: int
    slot: int
    offset: int
    number: int
    sequence: int
    entries: npt.NDArray[Any]
    synced: int
    flags: int

    @property
    def summaries(self) -> int:
        return -(-len(self.entries) // fmt.SUMMARY_ENTRIES_MAX)

    @property
    def end_position(self) -> int:
        """Behind the summary pages and the page with the seal and the commit record."""
        return fmt.position(self.file_number, self.offset + (self.summaries + 1) * fmt.PAGE)

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.summaries + 2

    def encode(self) -> CommitBuffer:
        """The finished commit; touches nothing that is shared, so any thread may call it."""
        step, count = fmt.SUMMARY_ENTRIES_MAX, self.summaries
        seal = CommitBuffer(self.shape.uuid, self.shape.location_bytes, count + 3)
        seal.begin(self.file_number, self.slot, self.offset, self.number, self.sequence, count + 3)
        records = [summary_record(self.entries[i * step : (i + 1) * step]) for i in range(count)]
        records.append(seal_record(count, len(self.entries), seal.begin_position))
        for record in records:
            placed = seal.append(record, rule=lib.SARP_PLACE_FRESH)
            assert placed
        seal.finish(self.base, self.synced, self.flags)
        assert (seal.end_position, seal.next_sequence) == (self.end_position, self.next_sequence)
        return seal


@dataclass(slots=True)
class Frozen:
    """A commit to be written, with what must be written before and behind it."""

    buffer: CommitBuffer
    header: LogHeader | None
    """The file begins with this commit: its header goes first."""
    seal: Seal | None
    """The file ends with this commit."""
    written: bool = False
    released: bool = False


class Gatherer:
    """The gathering commit. `base` is told of each file as soon as records are placed in it."""

    def __init__(
        self,
        shape: Shape,
        pages: Pages,
        base: Base,
        end: LogEnd,
        log_file_bytes: int,
        slots: Slots | None = None,
    ) -> None:
        self.slots = Slots(base) if slots is None else slots
        """Where new files get their slots."""
        self._shape = shape
        self._pages = pages
        self._base = base
        self._end = end
        listed = shape.routing == "sarp"
        self._room_min = _ROOM_MIN_PAGES + (_POSTINGS_PAGES_MAX if listed else 0)
        self._summary_share = _SUMMARY_SHARE_LISTED if listed else _SUMMARY_SHARE
        self._file_pages = min(log_file_bytes, fmt.LOG_FILE_BYTES_MAX) // fmt.PAGE
        self._free = [CommitBuffer(shape.uuid, shape.location_bytes) for _ in range(_BUFFERS)]
        self._summary: list[npt.NDArray[Any]] = []
        self._summary_entries = 0
        self._header: LogHeader | None = None
        self._frozen_records = self._frozen_new_bytes = self._frozen_changes = 0
        self.buffer = self._begin_file()
        """Where records are added."""

    @property
    def records(self) -> int:
        return self.buffer.records

    @property
    def records_ever(self) -> int:
        """Records gathered since the start, written or not."""
        return self._frozen_records + self.buffer.records

    @property
    def changes_ever(self) -> int:
        """Changes that records gathered since the start make, one or more each."""
        return self._frozen_changes + int(self.buffer.c.changes)

    @property
    def new_bytes(self) -> int:
        """Bytes of segment records that insertions have written since the start."""
        return self._frozen_new_bytes + int(self.buffer.c.new_bytes)

    @property
    def file_is_new(self) -> bool:
        """Nothing has been gathered for the present file yet."""
        return not self.buffer.records and self.buffer.offset == fmt.LOG_HEADER_BYTES

    @property
    def file_is_unborn(self) -> bool:
        """The present file does not exist, and no frozen commit will make it."""
        return self._header is not None

    @property
    def begin_position(self) -> int:
        """Where the present file begins, whether it exists or not; every other log file ends before."""
        return fmt.position(self.buffer.file_number, 0)

    @property
    def file_bytes(self) -> int:
        """At which size a log file is sealed."""
        return self._file_pages * fmt.PAGE

    @property
    def can_freeze(self) -> bool:
        return bool(self._free)

    @property
    def newest_commit(self) -> int:
        """Number of the commit that has the newest record: the gathering one, or the last frozen one."""
        return self.buffer.number if self.buffer.records else self._end.commit

    @property
    def highest(self) -> int:
        """No record has a higher position than this, and every later one is born at it or above."""
        return int(self.buffer.c.highest) or self.buffer.begin_position - 1

    @property
    def promised_pages(self) -> int:
        """Pages that the gathering commit takes once it is written, with its file's header and seal."""
        buffer = self.buffer
        if not buffer.records and self._header is not None:
            return 0  # a file that gets no record is not made
        header = 0 if self._header is None else fmt.LOG_HEADER_BYTES // fmt.PAGE
        commit = buffer.pages + 1 if buffer.records else 0
        return header + commit + (self._summary_entries + int(buffer.c.changes)) // fmt.SUMMARY_ENTRIES_MAX + 2

    def part(self) -> int:
        """A position below which all records that there are were born, and none that comes from now on will be.

        While a commit gathers, records go into pages before its highest one where they fit, and are born with that:
        from now on only into its last page.
        """
        if not self.buffer.records:
            return self._end.position
        self.buffer.part()
        return self.highest + 1

    def take_header(self) -> LogHeader | None:
        """The header of the file that the gathering commit begins; it is handed out once, here or with that commit."""
        header, self._header = self._header, None
        return header

    def freeze(self, synced: int, flags: int = 0, *, end_file: bool = False) -> Frozen:
        """End the gathering commit; `synced` is what its commit record may say. Needs `can_freeze`.

        With `end_file` its file ends, too, full or not. LimitError, with nothing touched, if there is no slot for the
        file that would be next.
        """
        buffer = self.buffer
        room = self._room(buffer.offset + (buffer.pages + 1) * fmt.PAGE, int(buffer.c.changes))
        if end_file or room < self._room_min:
            _check_numbers(buffer.file_number + 1, self._end)
            self.slots.check()
        buffer.finish(self._base, synced, flags)
        self._pages.trim_range(buffer.first_key, buffer.pages)
        self._frozen_records += buffer.records
        self._frozen_new_bytes += int(buffer.c.new_bytes)
        self._frozen_changes += int(buffer.c.changes)
        self._summary.append(summary_of(buffer.changes))
        self._summary_entries += len(buffer.changes)
        self._note_end(buffer)
        frozen = Frozen(buffer, self._header, None)
        self._header = None
        offset = buffer.offset + buffer.pages * fmt.PAGE
        if end_file or self._room(offset) < self._room_min:
            frozen.seal = self._end_file(buffer.file_number, int(buffer.c.slot), offset, synced, 0)
            self._end.file_number = buffer.file_number
            self.buffer = self._begin_file()
        else:
            self.buffer = self._begin(buffer.file_number, int(buffer.c.slot), offset)
        return frozen

    def seal_last(self, synced: int) -> Seal:
        """The commit that ends the present file, whose gathering commit is empty, at an orderly close."""
        buffer = self.buffer
        assert not buffer.records
        return self._end_file(buffer.file_number, int(buffer.c.slot), buffer.offset, synced, fmt.COMMIT_CLOSED)

    def release(self, frozen: Frozen) -> Iterator[None]:
        """A frozen commit has been written: its pages can be read from the file now.

        They go to the cache, where a session's next turn looks for them; a few MB take a while, so it is cut in steps.
        Whoever was cut short in them begins again.
        """
        buffer = frozen.buffer
        if frozen.released:
            return
        for first in range(0, buffer.pages, _CACHED_AT_ONCE):
            if first:
                yield
            count = min(_CACHED_AT_ONCE, buffer.pages - first)
            self._pages.cache_insert(buffer.first_key + first, buffer.c.pages + first * fmt.PAGE, count)
        frozen.released = True
        self._pages.remove_range(buffer.first_key)
        self._free.append(buffer)

    def place(self) -> tuple[int, int, int]:
        """A commit boundary before everything that is gathering, the last commit's number, the next sequence number.

        While the gathering commit's file does not exist yet, that is the end of the one before.
        """
        unborn = self._header is not None and self._end.position
        return self._end.position if unborn else self.buffer.begin_position, self._end.commit, self._end.sequence

    def _note_end(self, buffer: CommitBuffer) -> None:
        self._end.commit = buffer.number
        self._end.position = buffer.end_position
        self._end.sequence = buffer.next_sequence

    def _begin_file(self) -> CommitBuffer:
        """The first commit of a new file. The file is made when that commit is written."""
        end = self._end
        file_number = end.file_number + 1
        _check_numbers(file_number, end)
        slot = self.slots.take(file_number)
        self._header = LogHeader.new(self._shape, file_number, slot, end.commit, end.position, end.sequence)
        return self._begin(file_number, slot, fmt.LOG_HEADER_BYTES)

    def _begin(self, file_number: int, slot: int, offset: int) -> CommitBuffer:
        buffer = self._free.pop()
        pages = self._room(offset)
        changes = pages // self._summary_share * fmt.SUMMARY_ENTRIES_MAX
        buffer.begin(file_number, slot, offset, self._end.commit + 1, self._end.sequence, pages, changes)
        self._pages.add_range(buffer.first_key, buffer.c.pages, buffer.page_limit)
        return buffer

    def _room(self, offset: int, entries: int = 0) -> int:
        """Pages that a commit at `offset` may have, so that the summary fits, with so many entries still to come."""
        entries += self._summary_entries
        left = self._file_pages - offset // fmt.PAGE - entries // fmt.SUMMARY_ENTRIES_MAX - 3
        return left * self._summary_share // (self._summary_share + 1)

    def _end_file(self, file_number: int, slot: int, offset: int, synced: int, flags: int) -> Seal:
        entries = joined(self._summary, fmt.SUMMARY_DTYPE)
        self._summary, self._summary_entries = [], 0
        number, sequence = self._end.commit + 1, self._end.sequence
        seal = Seal(self._shape, self._base, file_number, slot, offset, number, sequence, entries, synced, flags)
        self._end.commit = number
        self._end.position = seal.end_position
        self._end.sequence = seal.next_sequence
        return seal


def _check_numbers(file_number: int, end: LogEnd) -> None:
    if max(end.commit, end.sequence) >= fmt.COUNT_END:
        numbers = f"commit {end.commit}, sequence number {end.sequence - 1}"
        raise LimitError(f"no record can follow {numbers}; are all log files the store's?")
    if file_number >= fmt.FILE_NUMBER_END:
        raise LimitError(f"no log file can follow {fmt.log_name(file_number - 1)}; is that file really the store's?")
