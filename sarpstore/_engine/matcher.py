"""Answering queries: one kernel call decides from memory, or says what is missing; that is brought, and it goes again.

    queries ──► kernel ──► answers
                  │  ▲
          missing ▼  │ pages held for the call, partitions loaded
             files, images

A decision is one synchronous step over the directory as it is at that moment, so nothing that happened while a read was
on its way can be overlooked, and there is no state to go back to. Cached data takes no turn of the event loop at all.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore import _format as fmt
from sarpstore._clock import monotonic_ms
from sarpstore._errors import StorageError
from sarpstore._io import Ticket, together
from sarpstore._kernel import ffi, lib
from sarpstore._log.pages import file_page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from sarpstore._checkpoint import PartitionLoader
    from sarpstore._directory import Directory
    from sarpstore._engine.files import OpenFiles
    from sarpstore._engine.queries import Queries, Sequenced
    from sarpstore._io import Scheduler
    from sarpstore._log.pages import Pages

__all__ = ["Matcher"]

_log = logging.getLogger("sarpstore")

_NEEDS_MAX: Final = 4096
_DAMAGED_MAX: Final = 65_536
# Time after which a caller that never waits gives way.
_TURN_MS: Final = 1.0


class _Missing:
    """What one call lacks: pages, wanted by the ticket that holds them until the call ends, and partitions."""

    __slots__ = ("_scheduler", "partitions", "ticket", "unopened", "wants_pages")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.ticket: Ticket | None = None
        self.partitions: set[int] = set()
        self.unopened: list[int] = []
        """Keys of pages whose file is not open."""
        self.wants_pages = False

    @property
    def anything(self) -> bool:
        return self.wants_pages or bool(self.partitions)

    def note(self, needs: Any) -> None:
        """Ask for the pages that the kernel needs, and note the partitions."""
        if needs.page_count:
            self.want(needs.pages, needs.page_count)
        if needs.partition_count:
            self.partitions.update(ffi.unpack(needs.partitions, needs.partition_count))

    def want(self, keys: Any, count: int) -> None:
        self.wants_pages = True
        if self.ticket is None:
            self.ticket = Ticket(self._scheduler)
        unopened = self.ticket.want(keys, count)
        if unopened:
            self.unopened += ffi.unpack(keys, unopened)

    def release(self) -> None:
        if self.ticket is not None:
            self.ticket.release()


class Matcher:
    """Matches against one state of a store: a directory, the pages in memory, and the files behind them."""

    def __init__(
        self,
        directory: Directory,
        pages: Pages,
        loader: PartitionLoader,
        files: OpenFiles,
        scheduler: Scheduler,
    ) -> None:
        self.directory = directory
        self.pages = pages
        self.loader = loader
        self.files = files
        self._scheduler = scheduler
        self._query = ffi.new("sarp_query *")
        self._needs = ffi.new("sarp_needs *")
        self._needs_pages = ffi.new("uint64_t[]", _NEEDS_MAX)
        self._needs_partitions = ffi.new("uint32_t[]", _NEEDS_MAX)
        self._needs_damaged = ffi.new("uint64_t[]", _NEEDS_MAX)
        self._needs.pages, self._needs.page_limit = self._needs_pages, _NEEDS_MAX
        self._needs.partitions, self._needs.partition_limit = self._needs_partitions, _NEEDS_MAX
        self._needs.damaged, self._needs.damaged_limit = self._needs_damaged, _NEEDS_MAX
        self._damaged: set[int] = set()
        self._unreadable_pages: set[int] = set()
        self._turn_ms = 0.0
        self.other_damage = 0
        self.loop_hold_ms_max = 0.0

    @property
    def damaged(self) -> int:
        """Distinct records, images and runs of bytes found damaged."""
        return len(self._damaged) + self.other_damage

    async def match(self, queries: Queries) -> None:
        """Answer all queries of the batch. Reads of all of them go out together."""
        missing = _Missing(self._scheduler)
        slices = queries.slices()
        self._scheduler.turns.matched_ms = monotonic_ms()
        try:
            left = True
            while left:
                left = False
                for i, (first, count) in enumerate(slices):
                    if i:
                        await asyncio.sleep(0)
                    status = self._decide(functools.partial(self._match, queries, first, count))
                    left |= status == lib.SARP_NEED
                    missing.note(self._needs)
                if missing.anything:
                    await self._bring(missing)
                elif left:  # a long query: the kernel has gone through some windows of it
                    await asyncio.sleep(0)
        finally:
            missing.release()
        await self.give_way()

    def match_from_memory(
        self, sequenced: Sequenced, holder: int, location_dtype: np.dtype[Any] | None
    ) -> tuple[int, int, npt.NDArray[Any] | None] | None:
        """(blocks, records, locations) of one query, if it takes one kernel call and nothing is missing; else None.

        The way of a call on cached data, with nothing on it that the others need: it costs a third of a batch of one.
        """
        query, needs = self._query, self._needs
        locations = self._begin(sequenced, holder, location_dtype)
        began = self._scheduler.turns.matched_ms = monotonic_ms()
        if self.directory.match(self.pages.c, query, 1, needs) or needs.damaged_count:
            return None
        self.note_hold(began)
        return query.matched, query.records, locations

    def insert_from_memory(self, sequenced: Sequenced, holder: int, rows: npt.NDArray[Any], commit: Any) -> int | None:
        """Insert one sequence into a commit, in the same way: how many blocks were held, or None with nothing done."""
        query, needs = self._query, self._needs
        self._begin(sequenced, holder, None)
        began = monotonic_ms()
        status = self.directory.insert(self.pages.c, query, ffi.from_buffer("uint8_t[]", rows), commit, needs)
        self.note_hold(began)
        if needs.damaged_count:
            self._report_damaged(ffi.unpack(needs.damaged, needs.damaged_count))
        return int(query.matched) if status == lib.SARP_OK else None

    def _begin(
        self, sequenced: Sequenced, holder: int, location_dtype: np.dtype[Any] | None
    ) -> npt.NDArray[Any] | None:
        ids = sequenced.ids
        blocks = len(ids)
        locations, where = None, ffi.NULL
        if location_dtype is not None:
            locations = np.empty(blocks, location_dtype)
            where = ffi.from_buffer("uint8_t[]", locations)
        source = ffi.from_buffer("uint8_t[]", ids)
        lib.sarp_query_begin(self._query, self._needs, source, blocks, where, sequenced.key.name_space, holder)
        return locations

    @property
    def turn_is_due(self) -> bool:
        """Whether a caller that has not waited should `give_way`."""
        return monotonic_ms() - self._turn_ms > _TURN_MS

    async def decide(self, step: Callable[[Any], int]) -> int:
        """Run a step (a kernel call that is given the needs) until it needs nothing more; its last status."""
        missing = _Missing(self._scheduler)
        try:
            while (status := self._decide(step)) == lib.SARP_NEED:
                missing.note(self._needs)
                if missing.anything:
                    await self._bring(missing)
                else:  # the kernel has taken out some of many dead candidates
                    await asyncio.sleep(0)
        finally:
            missing.release()
        await self.give_way()
        return status

    def _match(self, queries: Queries, first: int, count: int, needs: Any) -> int:
        left = self.directory.match(self.pages.c, queries.c + first, count, needs)
        return int(lib.SARP_NEED) if left else int(lib.SARP_OK)

    def _decide(self, step: Callable[[Any], int]) -> int:
        needs = self._needs
        needs.page_count = needs.partition_count = needs.damaged_count = 0
        began = monotonic_ms()
        status = step(needs)
        self.note_hold(began)
        if needs.damaged_count:
            self._report_damaged(ffi.unpack(needs.damaged, needs.damaged_count))
        return status

    async def give_way(self) -> None:
        """Let the event loop run now and then: calls on cached data never wait, and callers may make them in a loop."""
        if self.turn_is_due:
            await asyncio.sleep(0)
            self._turn_ms = monotonic_ms()

    def note_hold(self, began_ms: float) -> None:
        """Count a step that began at `began_ms` and ends now against the longest hold of the loop."""
        held_ms = monotonic_ms() - began_ms
        if held_ms > self.loop_hold_ms_max:
            self.loop_hold_ms_max = held_ms

    async def _bring(self, missing: _Missing) -> None:
        """Return once what is missing is in memory. Pages that can't be read are held as such: damaged records."""
        with self._scheduler.turns.waiting():
            if missing.partitions and missing.wants_pages:
                await together(self.loader.load(missing.partitions), self._read(missing))
            elif missing.partitions:
                await self.loader.load(missing.partitions)
            else:
                await self._read(missing)
        missing.partitions.clear()
        missing.wants_pages = False

    async def _read(self, missing: _Missing) -> None:
        ticket = missing.ticket
        assert ticket is not None, "pages are wanted"
        # A file may be closed again, to make room for others, before its pages are asked for.
        while missing.unopened:
            keys, missing.unopened = missing.unopened, []
            for slot in {file_page(key)[0] for key in keys}:
                if not self.directory.base.slot_files[slot]:
                    continue  # deleted meanwhile: no entry names it any more, so this will not be asked for again
                pages = [key for key in keys if file_page(key)[0] == slot]
                try:
                    await self.files.open_slot(slot, int(self.directory.base.slot_files[slot]))
                except StorageError as error:
                    self._unreadable(pages, error)
                    for key in pages:
                        ticket.fail(key, error.errno or errno.EIO)
                else:
                    missing.want(ffi.new("uint64_t[]", pages), len(pages))
        await ticket.wait()
        for key, number in ticket.errors():
            if key not in self._unreadable_pages and number != errno.ENODATA:
                name = fmt.log_name(int(self.directory.base.slot_files[file_page(key)[0]]))
                self._unreadable([key], StorageError.of("read", f"{self.files.path}/{name}", number))

    def _unreadable(self, keys: Sequence[int], error: StorageError) -> None:
        """Log, once, pages that can't be read. What counts as damage is its records, as they are asked for.

        Only where the file is gone or the device can't read it: an error of the system's own (too many open files, no
        memory) passes, and is the caller's to know.
        """
        if error.errno not in (errno.EIO, errno.ENOENT):
            raise error
        new = [key for key in keys if key not in self._unreadable_pages]
        if new and len(self._unreadable_pages) < _DAMAGED_MAX:
            self._unreadable_pages.update(new)
            _log.error("%s", error)

    def _report_damaged(self, references: Sequence[int]) -> None:
        for reference in references:
            file_number = int(self.directory.base.slot_files[reference >> fmt.UNIT_BITS])
            offset = fmt.position_offset(reference)
            if self.count_damaged(fmt.position(file_number, offset)):
                _log.error("%s at byte %d: a damaged record; its blocks miss", fmt.log_name(file_number), offset)

    def count_damaged(self, position: int) -> bool:
        """Count damage at a place in the log, once; whether it is news."""
        if position in self._damaged or len(self._damaged) >= _DAMAGED_MAX:
            return False
        self._damaged.add(position)
        return True

    def report(self, error: BaseException) -> None:
        """Count and log damage that is not a record's."""
        self.other_damage += 1
        _log.error("%s", error)
