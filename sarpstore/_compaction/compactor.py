"""Compaction's mechanism: a sealed log file, or some small ones, are emptied and deleted (format-spec/removal.md, 5).

    read a slice ──► kernel: live records move to the gathering commit, dead ones lose their entries
                       │ other records, by what is remembered
    retire-file record ▼ synced ──► slot freed, file closed, its pages forgotten, its name removed

Nothing is noted about how far it got: what was moved is dead in the old file, so one that was left half way, by a
crash, an error or a cancellation, is simply compacted again. A file is deleted only when everything that it had is
synced elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._compaction.again import Context, written_again
from sarpstore._compaction.policy import FILE_BYTES, Choice, FileRow, together
from sarpstore._compaction.survey import LogFiles, read_file_facts
from sarpstore._errors import CorruptionError, LimitError, SarpError, StorageError
from sarpstore._io import give_way
from sarpstore._kernel import ffi, lib
from sarpstore._log.commits import retire_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sarpstore._checkpoint import PartitionLoader
    from sarpstore._compaction.ledger import FileLedger
    from sarpstore._compaction.policy import Eagerness
    from sarpstore._directory import Directory
    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler
    from sarpstore._log.gather import Gatherer
    from sarpstore._log.pages import Pages
    from sarpstore._log.removals import Removals
    from sarpstore._log.writer import LogWriter

__all__ = ["Compactor"]

# A larger read keeps the device from the matches' pages for a millisecond and more.
_SLICE_BYTES: Final = 256 << 10
# Of one kernel call, which must hold the loop for less than a millisecond: a record costs some 3 µs, or 10 µs under
# `sarp`.
_RECORDS_AT_ONCE: Final = 64
_OTHERS_AT_ONCE: Final = 16
# Pages that a record takes at most, with its postings and its share of a summary; and what a step, the retirement, and
# the ends of a commit and a file take beside.
_RECORD_PAGES: Final = 3
_BESIDE_PAGES: Final = _OTHERS_AT_ONCE + 16
# Partitions that are swept in one turn of the loop: 64 KiB each.
_SWEPT_AT_ONCE: Final = 16
# Rows of files that are made, and that are compared, in one turn.
_ROWS_AT_ONCE: Final = 32
_CHOSEN_AT_ONCE: Final = 128
# Files whose headers are read in one call of a thread: some 0.05 ms each, for which it keeps the interpreter.
_SURVEYED_AT_ONCE: Final = 8
# Of a summary, for each entry of a record: under `sarp` a copy's postings have two changes each.
_SUMMARY_BYTES: Final = {"divergence": fmt.SUMMARY_DTYPE.itemsize, "sarp": 2 * fmt.SUMMARY_DTYPE.itemsize}
_BEHIND: Final = (fmt.RECORD_REMOVE, fmt.RECORD_CLEAR_HOLDER, fmt.RECORD_COUNT)


class Compactor:
    """Compacts the files of one store.

    `removals` says what is removed, if anything is. `drop_file(slot, file number)` closes a file once its reads have
    ended; `deleting` is the lock under which checkpoints are written; `report` gets what was lost to damage.
    `room()` is how many bytes may be written now; None: as many as it takes.
    `bytes_per_second` bounds what is read; None: as fast as the device and the loop allow. `direct`: files are read
    past the system's cache.
    """

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        directory: Directory,
        loader: PartitionLoader,
        pages: Pages,
        gatherer: Gatherer,
        log: LogWriter,
        ledger: FileLedger,
        *,
        removals: Removals | None,
        drop_file: Callable[[int, int], Awaitable[None]],
        deleting: asyncio.Lock,
        report: Callable[[BaseException], None],
        room: Callable[[], int] | None = None,
        direct: bool = False,
        bytes_per_second: float | None = None,
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._directory = directory
        self._loader = loader
        self._pages = pages
        self._gatherer = gatherer
        self._log = log
        self._ledger = ledger
        self._removals = removals
        self._drop_file = drop_file
        self._deleting = deleting
        self._report = report
        self._room = room
        self._open_file = folder.open_direct if direct else folder.open
        self.bytes_per_second = bytes_per_second
        self._files = LogFiles()
        self._surveyed = 0
        """Files below this one were complete when they were looked at."""
        self._unreadable: set[int] = set()
        """Files that could not be read: they stay as they are until the store is opened again."""
        self._doomed: dict[int, int] = {}
        """Slots of files, by number, that have been given up and are still to be removed."""
        self._stuck: set[int] = set()
        """Of these files, the ones of whose removal nobody can say whether a crash undoes it."""
        self._others = ffi.new("sarp_other_record[]", _OTHERS_AT_ONCE)
        self._lock = asyncio.Lock()
        self.files_deleted = 0
        self.bytes_deleted = 0
        """Bytes of the files deleted."""
        self.bytes_freed = 0
        """Bytes of the files deleted, less what was promised to what was written again."""
        self.bytes_copied = 0
        """Bytes of segment records written again."""

    # --- which

    async def rows(self, start: int) -> list[FileRow]:
        """The files that may be compacted, ascending, `start` being where the newest published checkpoint starts."""
        await self._loader.load_all()
        if self._loader.incomplete is not None:
            raise self._loader.incomplete
        await self._survey()
        base, before, rows = self._directory.base, self._files.before(), []
        slots, end = base.files(), min(fmt.position_file(start), self._surveyed)
        floor_without = self._ledger.floors(self._existing())
        for number in sorted(self._files.facts):
            if number < end and number in slots and number not in self._unreadable:
                rows.append(self._row(number, slots[number], before.get(number), floor_without(number)))
                if len(rows) % _ROWS_AT_ONCE == 0:
                    await give_way(self._scheduler.turns)
        return rows

    def _row(self, number: int, slot: int, before: int | None, floor: int) -> FileRow:
        removal_bytes = self._ledger.removal_bytes(number)
        if min(floor, self._ledger.last_pass) >= fmt.position(number + 1, 0):
            removal_bytes = 0  # none of them is needed any more
        base = self._directory.base
        # With what its copies would cost beside themselves: compaction must not go on for ever over that.
        summary = int(base.slot_entries[slot]) * _SUMMARY_BYTES[self._directory.routing]
        beside = removal_bytes + self._ledger.carried_bytes(number)
        live_bytes = int(base.slot_live[slot]) + beside + summary + FILE_BYTES
        clean = self._ledger.clean(number)
        return FileRow(number, self._files.facts[number].bytes, live_bytes, removal_bytes, clean, before)

    async def _survey(self) -> None:
        """Look at the files that have come since the last time, and again at those that were still being written."""
        complete, known = self._log.complete_below, self._files.facts
        existing = [number for number in self._directory.base.files() if number <= self._log.newest_file]
        new = [number for number in existing if number not in known or number >= self._surveyed]
        for first in range(0, len(new), _SURVEYED_AT_ONCE):
            some = new[first : first + _SURVEYED_AT_ONCE]
            known.update(await self._scheduler.run_background(read_file_facts, self._folder, some))
            await give_way(self._scheduler.turns)
        self._surveyed = complete

    def _existing(self) -> list[int]:
        """The files that are there, with those that are no longer read. A slot may stand for one that is not."""
        known, files = self._files.facts, self._directory.base.files()
        read = (number for number in files if number in known or number >= self._surveyed)
        return [*self._ledger.remains, *self._doomed, *read]

    # --- the work

    async def compact_next(self, start: int, eagerness: Eagerness) -> int | None:
        """Compact the file that is most worth it, or small ones together; bytes of the files deleted, or None where
        none is worth it.
        """
        async with self._lock:
            await self._finish_deletions()
            numbers = await self._next(start, eagerness)
            return await self._compact(numbers) if numbers else None

    async def is_due(self, start: int, eagerness: Eagerness) -> bool:
        """Whether any file is worth it, if the newest published checkpoint were to start at `start`."""
        async with self._lock:
            return bool(await self._next(start, eagerness))

    async def _next(self, start: int, eagerness: Eagerness) -> list[int]:
        rows = await self.rows(start)
        chosen = await self._choose(rows, eagerness)
        together_chosen = [] if chosen else together(rows, eagerness, self._gatherer.file_bytes)
        return [row.number for row in ([chosen] if chosen else together_chosen)]

    async def _choose(self, rows: list[FileRow], eagerness: Eagerness) -> FileRow | None:
        choice = Choice(eagerness, rows[-1].number if rows else 0, self._ledger.last_pass)
        for first in range(0, len(rows), _CHOSEN_AT_ONCE):
            choice.look(rows[first : first + _CHOSEN_AT_ONCE])
            await give_way(self._scheduler.turns)
        return choice.result()

    async def compact_file(self, number: int) -> int:
        """Compact one file, of `rows`; the bytes deleted."""
        async with self._lock:
            await self._finish_deletions()
            return await self._compact([number])

    async def _compact(self, numbers: list[int]) -> int:
        """Compact these, each as if the others stayed, and delete them together; the bytes deleted.

        Of the names that are removed together a crash may bring back any, so none may count on another's being gone.
        """
        self._log.check()
        ends = self._files.ends()
        damaged = [await self._empty(number, ends[number]) for number in numbers]
        size = sum(self._files.facts[number].bytes for number in numbers)
        # No checkpoint is of before and after: its head's slots are those that its images may name, and one that names
        # these files starts before the records that say that they are retired.
        async with self._deleting:
            await self._retire(numbers)
            for number, damage in zip(numbers, damaged, strict=True):
                await self._give_up(number, damage)
            await self._finish_deletions()
        return size

    async def _give_up(self, number: int, damaged: int) -> None:
        """Nothing names this file any more, of which all that could be read is elsewhere."""
        slot = self._directory.base.files()[number]
        lost = await self._sweep(slot)
        self._directory.base.drop_slot(slot)
        self._doomed[number] = slot
        if damaged or lost:
            meaning = f"{damaged} damaged records or runs of bytes; {lost} entries are dropped"
            self._report(CorruptionError(fmt.log_name(number), None, meaning))

    async def _empty(self, number: int, end: int) -> int:
        """Move what is live before `end` out of the file; how much damage there was."""
        slot = self._directory.base.files()[number]
        work = ffi.new("sarp_compaction *")
        work.file_number, work.slot = number, slot
        work.others, work.other_limit = self._others, _OTHERS_AT_ONCE
        context = self._context(number)
        work.oldest = context.oldest
        file = await self._scheduler.run_background(self._open_file, fmt.log_name(number))
        try:
            for offset in range(fmt.LOG_HEADER_BYTES, end, _SLICE_BYTES):
                await self._empty_slice(work, context, file, offset, min(_SLICE_BYTES, end - offset))
        except StorageError:
            if self._log.failure is None:
                self._unreadable.add(number)
            raise
        finally:
            self.bytes_copied += int(work.live_bytes)
            await self._scheduler.run_background(file.close)
        return int(work.damaged)

    async def _empty_slice(self, work: Any, context: Context, file: File, offset: int, length: int) -> None:
        began = asyncio.get_running_loop().time()
        data = await self._scheduler.read(file, offset, length)
        kept = ffi.from_buffer("uint8_t[]", data)
        work.pages, work.first_page, work.page_count = kept, offset // fmt.PAGE, len(data) // fmt.PAGE
        work.unit = offset // fmt.UNIT
        end = (work.first_page + work.page_count) * fmt.PAGE_UNITS
        while work.unit < end:
            await self._step(work, context, data, offset)
        if self.bytes_per_second is not None:
            due = began + length / self.bytes_per_second
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _step(self, work: Any, context: Context, data: memoryview, offset: int) -> None:
        """One kernel call, and what it asks for."""
        self._log.check()
        records = self._records_at_once()
        commit, promised = self._gatherer.buffer, self._log.promised_bytes
        copies, carried = work.live, work.carried_bytes
        status = self._directory.compact(commit.c, work, records)
        self.bytes_freed -= self._log.promised_bytes - promised
        if work.live > copies:
            # Nobody waits for copies: they are written when a commit is full, or with what is waited for. A commit of
            # its own for each step would cost pages that the next compaction would find dead.
            self._ledger.on_copy(commit.file_number)
        if work.carried_bytes > carried:
            self._ledger.on_carried(commit.file_number, int(work.carried_bytes - carried))
        if work.other_count:
            await self._write_again(work, context, data, offset)
        if status == lib.SARP_NO_ROOM:
            await self._log.make_room()
        elif status == lib.SARP_FULL:
            raise self._directory.full_error()
        elif status == lib.SARP_NEED:
            await self._loader.load([int(work.partition)])
        else:
            assert status == lib.SARP_OK, f"the kernel answered {status} to a compaction"
            await give_way(self._scheduler.turns)

    def _records_at_once(self) -> int:
        """Records that may be moved now, fewer where the disk is full; LimitError where none may.

        Compaction makes room, and has some reserved: it stops only where the bound would be passed.
        """
        if self._room is None:
            return _RECORDS_AT_ONCE
        records = min(_RECORDS_AT_ONCE, (self._room() // fmt.PAGE - _BESIDE_PAGES) // _RECORD_PAGES)
        if records < 1:
            raise LimitError(f"{self._folder.path}: bytes_max leaves no room to compact")
        return records

    async def _write_again(self, work: Any, context: Context, data: memoryview, offset: int) -> None:
        """Write those of the noted records again that are needed, which is decided anew after each wait."""
        for i in range(work.other_count):
            kind, at = int(self._others[i].type), int(self._others[i].unit) * fmt.UNIT - offset
            record = data[at : at + int.from_bytes(data[at + 8 : at + 10], "little")]
            while (again := written_again(record, kind, context)) and not self._append(again, kind):
                await self._log.make_room()
                self._log.check()

    def _context(self, number: int) -> Context:
        """What holds for the whole of a file's compaction: while it goes on, nothing comes to be needed less.

        What a removal kills may be among the copies that are still to be made, as long as no mark pass has looked.
        """
        left = [other for other in self._existing() if other != number]
        floor = min(self._ledger.floor(left), self._ledger.last_pass)
        return Context(self._removals, floor, left, number, self._files.previous(), self._ledger.may_be_named)

    def _append(self, record: bytes, kind: int, rule: int = lib.SARP_PLACE_BEST) -> bool:
        commit, promised = self._gatherer.buffer, self._log.promised_bytes
        placed = commit.append_removal(record) if kind in _BEHIND else commit.append(record, rule=rule)
        if placed:
            self.bytes_freed -= self._log.promised_bytes - promised
            self._log.gathered()
            if kind == fmt.RECORD_REMOVE:
                self._ledger.on_removal(commit.file_number, len(record))
        return bool(placed)

    async def _retire(self, numbers: list[int]) -> None:
        """Return once the copies and records that say so are synced."""
        self._log.check()
        for record in map(retire_record, numbers):
            while not self._append(record, fmt.RECORD_RETIRE_FILE, lib.SARP_PLACE_BEHIND):
                await self._log.make_room()
                self._log.check()
        await self._log.durable(self._gatherer.buffer.number)

    # --- deletion

    async def finish(self) -> None:
        """Remove what has been given up, before the store's last checkpoint; what can't be, goes at the next open."""
        async with self._lock:
            with contextlib.suppress(SarpError):
                await self._finish_deletions()

    async def _sweep(self, slot: int) -> int:
        """Drop the entries whose records could not be read, so that nothing names the slot; how many."""
        lost = partition = 0
        while self._directory.base.slot_entries[slot] and partition < len(self._directory.partitions):
            lost += self._directory.forget(partition, _SWEPT_AT_ONCE, slot)
            partition += _SWEPT_AT_ONCE
            await give_way(self._scheduler.turns)
        return lost

    async def _finish_deletions(self) -> None:
        """Remove the files that have been given up; what was cut short, or failed, is gone on with.

        They count as gone when a crash brings none of them back: what they need may be dropped then.
        """
        removed, failure = [], None
        for number, slot in [item for item in self._doomed.items() if item[0] not in self._stuck]:
            # Held pages, and those under way: whoever holds them has them, but nobody finds them by the slot.
            self._scheduler.forget(slot)
            await self._drop_file(slot, number)
            for _ in self._pages.forget(slot):
                await asyncio.sleep(0)
            try:
                await self._scheduler.run_background(_remove, self._folder, fmt.log_name(number))
                removed.append(number)
            except StorageError as error:
                failure = failure or error
        await self._sync_removals(removed)
        for number in removed:
            self._deleted(number, self._doomed.pop(number))
        if failure is not None:
            raise failure

    async def _sync_removals(self, removed: list[int]) -> None:
        """Sync the folder, if anything was removed; where that fails once it is not believed a second time."""
        try:
            if removed:
                await self._scheduler.run_background(self._folder.sync)
        except StorageError:
            self._stuck.update(removed)
            raise

    def _deleted(self, number: int, slot: int) -> None:
        self.files_deleted += 1
        facts = self._files.facts.pop(number, None)
        size = facts.bytes if facts else 0
        self.bytes_deleted += size
        self.bytes_freed += size
        self._ledger.on_deleted(number)
        self._gatherer.slots.retire(slot)


def _remove(folder: Folder, name: str) -> None:
    """Remove the name, unless an earlier try has."""
    if name in folder.names():
        folder.remove(name)
