"""The read scheduler: what many tasks want in one turn of the loop becomes few reads, bounded in number.

    tickets ──► table of reads (the kernel's reads.h) ──► backend ──► device
       ▲                     │
       └── one wake-up each ─┘

A log page that is wanted twice while it is on its way, or while somebody still holds it, is read once; neighbouring
pages of a file are one read; what does not fit under the bound waits in order. Pages that matches wait for go before
background work, which gets a small share of the places and, so that it never starves, a turn after every sixteen of
theirs. All of that is the table's business: here is nothing that is done page by page.

A page must not change while it can be asked for (the log never writes a page over): whoever joins a read that
is already on its way sees the bytes as they were when it began.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

from sarpstore import _format as fmt
from sarpstore._errors import ClosedError, ForkedError, LimitError, OptionError, StorageError
from sarpstore._io.backend import Backend, CallJob
from sarpstore._io.pieces import Pieces
from sarpstore._io.table import PAGES_HELD_MAX, ReadTable
from sarpstore._io.turns import Turns
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore._files import File

__all__ = ["BACKGROUND", "MATCHING", "Scheduler", "Ticket"]

MATCHING: Final = 0
BACKGROUND: Final = 1

_QUEUE_DEPTH_MAX: Final = 4096
_COALESCE_PAGES_MAX: Final = 1024  # as many buffers as one vectored read takes (IOV_MAX)

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class _Call(CallJob):
    __slots__ = ("future",)

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any], *, background: bool
    ) -> None:
        super().__init__(function, args, background=background)
        self.future = future


class Ticket:
    """Log pages that one caller wants, which stay where they were read to until `release`.

    A page's key is `slot << 18 | page number in the file`; its slot's file must be attached. For one task.
    """

    __slots__ = ("_number", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._number = scheduler.take_ticket()

    def want(self, keys: Any, count: int, priority: int = MATCHING) -> int:
        """Want these pages too (a C array of uint64, in which a page may stand twice).

        Returns how many of the keys are of slots without a file: these are at the array's front now, and must be wanted
        again once their files are attached. LimitError where too many pages are held at once.
        """
        return self._scheduler.want(self._number, keys, count, priority)

    async def wait(self) -> None:
        """Return once all pages wanted so far have been read, or could not be. Cancelling stops no read."""
        await self._scheduler.wait(self._number)

    def errors(self) -> list[tuple[int, int]]:
        """(key, errno) of pages that could not be read; ENODATA where the file ends within the page."""
        return self._scheduler.errors(self._number)

    def fail(self, key: int, error: int) -> None:
        """A page that can't be read, since its file can't be opened, as if a read had ended with this errno."""
        self._scheduler.put(self._number, key, ffi.NULL, error)

    def page(self, key: int) -> memoryview | None:
        """The page's bytes, valid until `release`; None where it isn't there."""
        data = ffi.new("uint8_t **")
        if not lib.sarp_reads_find(self._scheduler.table.c, key, data) or data[0] == ffi.NULL:
            return None
        return memoryview(ffi.buffer(data[0], fmt.PAGE)).toreadonly()

    def release(self) -> None:
        """Give the pages up, at the latest when their reads have ended. Releasing again does nothing."""
        number, self._number = self._number, 0
        if number:
            self._scheduler.release(number)


class Scheduler:
    """Reads and calls for one event loop, the running one, carried out by `backend`, which it starts and stops.

    `queue_depth` (1 to 4096) bounds the reads in flight, `coalesce_pages` (1 to 1024) the pages of one read,
    `pages_held_max` the pages that are wanted or held at once.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        queue_depth: int = 128,
        coalesce_pages: int = 16,
        pages_held_max: int = PAGES_HELD_MAX,
    ) -> None:
        if not 1 <= queue_depth <= _QUEUE_DEPTH_MAX:
            raise OptionError(f"queue_depth is {queue_depth}; it must be from 1 to {_QUEUE_DEPTH_MAX}")
        if not 1 <= coalesce_pages <= _COALESCE_PAGES_MAX:
            raise OptionError(f"coalesce_pages is {coalesce_pages}; it must be from 1 to {_COALESCE_PAGES_MAX}")
        self.backend = backend
        self.queue_depth = queue_depth
        self.coalesce_pages = coalesce_pages
        self.table = ReadTable(queue_depth=queue_depth, coalesce_pages=coalesce_pages, pages=pages_held_max)
        self._c = self.table.c
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._unopened = ffi.new("uint32_t *")
        self._turn_due = False
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._released: set[int] = set()  # tickets given up while reads of theirs are under way
        self._kept: dict[int, Any] = {}  # memory that reads of a ticket write into
        self._slots: dict[int, int] = {}  # number in the table of each slot's file
        self._closing: dict[int, asyncio.Future[None] | None] = {}  # files that wait for their last read
        self._calls = 0
        self.turns = Turns()
        """Who is waited for on this loop."""
        self._drained: asyncio.Future[None] | None = None
        backend.start(self._loop, self.table, self._ended)

    # --- counters

    @property
    def reads(self) -> int:
        """Reads issued to the backend."""
        return int(self._c.reads)

    @property
    def pages_read(self) -> int:
        """Pages that were read, each counted once however many waited for it."""
        return int(self._c.pages_read)

    @property
    def reads_coalesced(self) -> int:
        """Pages that came along in a neighbour's read."""
        return int(self._c.coalesced)

    @property
    def reads_joined(self) -> int:
        """Pages asked for that were already on their way, or there."""
        return int(self._c.joined)

    @property
    def read_errors(self) -> int:
        """Reads that failed."""
        return int(self._c.errors)

    @property
    def in_flight(self) -> int:
        """Reads in flight now."""
        return int(self._c.in_flight[MATCHING] + self._c.in_flight[BACKGROUND])

    @property
    def in_flight_max(self) -> int:
        """The most reads that were in flight at once."""
        return int(self._c.in_flight_max)

    # --- log files by slot

    def attach(self, slot: int, file: File) -> None:
        """Pages of this slot are read from this file from now on; ClosedError if it is closed, LimitError for too many.

        What was read of the slot's former file, if there was one, is no longer found.
        """
        self._check_open()
        number = self.table.open(file)
        if slot in self._slots:
            self._close_file(self._slots.pop(slot))
            lib.sarp_reads_forget(self._c, slot)
        status = lib.sarp_reads_bind(self._c, slot, number)
        assert status == lib.SARP_OK, f"no slot {slot}"
        self._slots[slot] = number
        self.backend.opened(number)

    async def detach(self, slot: int) -> None:
        """Return once nothing is read from the slot's file any more. Pages that are held stay."""
        number = self._slots.pop(slot, 0)
        if number and self._close_file(number):
            future = self._closing[number] = self._loop.create_future()
            await future

    def forget(self, slot: int) -> None:
        """Pages of the slot that are held, or under way, are found by nobody any more, and are not cached."""
        lib.sarp_reads_forget(self._c, slot)

    def attached(self, slot: int) -> bool:
        """Whether pages of the slot can be wanted."""
        return slot in self._slots

    def least_used(self) -> int | None:
        """The slot of whose file the last page was wanted longest ago; None where there is none."""
        files = self._c.files
        return min(self._slots, key=lambda slot: files[self._slots[slot]].used_at, default=None)

    def _close_file(self, number: int) -> bool:
        """No new reads of the file; whether some are left."""
        if lib.sarp_reads_close(self._c, number) > 0:
            self._closing[number] = None
            return True
        self._free_file(number)
        return False

    def _free_file(self, number: int) -> None:
        self.backend.closed(number)
        self.table.free(number)

    def _free_files(self) -> None:
        for number in [number for number in self._closing if not self._c.files[number].users]:
            future = self._closing.pop(number)
            self._free_file(number)
            if future is not None and not future.done():
                future.set_result(None)

    # --- tickets

    def take_ticket(self) -> int:
        """For `Ticket`."""
        self._check_open()
        number = int(lib.sarp_reads_ticket(self._c))
        if not number:
            raise LimitError("too many calls wait for reads at once")
        return number

    def want(self, ticket: int, keys: Any, count: int, priority: int) -> int:
        """For `Ticket`."""
        status = lib.sarp_reads_want(self._c, ticket, keys, count, priority, self._unopened)
        self._schedule_turn()
        if status == lib.SARP_FULL:
            pages = int(self._c.limits.page_limit)
            raise LimitError(f"more than {pages:,} pages would be held at once: match less at a time")
        assert status == lib.SARP_OK, "keys are of 16 bits of slot and 18 of page"
        return int(self._unopened[0])

    async def wait(self, ticket: int) -> None:
        """For `Ticket`."""
        if lib.sarp_reads_wait(self._c, ticket):
            future = self._waiting[ticket] = self._loop.create_future()
            await future

    def errors(self, ticket: int) -> list[tuple[int, int]]:
        """For `Ticket`."""
        if not self._c.tickets[ticket].errors:
            return []
        limit = int(self._c.tickets[ticket].errors)
        keys, errors = ffi.new("uint64_t[]", limit), ffi.new("int32_t[]", limit)
        count = lib.sarp_reads_errors(self._c, ticket, keys, errors, limit)
        return list(zip(ffi.unpack(keys, count), ffi.unpack(errors, count), strict=True))

    def put(self, ticket: int, key: int, data: Any, error: int) -> None:
        """For `Ticket`."""
        if lib.sarp_reads_put(self._c, ticket, key, data, error) != lib.SARP_OK:
            raise LimitError("too many pages are held at once")

    def release(self, ticket: int) -> None:
        """For `Ticket`."""
        if lib.sarp_reads_wait(self._c, ticket):
            self._released.add(ticket)
            return
        lib.sarp_reads_release(self._c, ticket)
        self._kept.pop(ticket, None)

    async def bring(self, keys: Sequence[int], priority: int = MATCHING) -> Ticket:
        """The pages, held by a ticket that the caller releases. Their slots' files must be attached."""
        ticket = Ticket(self)
        try:
            unopened = ticket.want(ffi.new("uint64_t[]", list(keys)), len(keys), priority)
            await ticket.wait()
        except BaseException:
            ticket.release()
            raise
        if unopened:
            ticket.release()
            raise ClosedError("the log file of a page is not open")
        return ticket

    # --- larger reads

    async def read(self, file: File, offset: int, length: int, priority: int = BACKGROUND) -> memoryview:
        """`length` bytes from `offset` on, or fewer where the file ends, as a read-only view.

        Pieces of at most 1 MiB are read side by side. Nothing is shared with other calls. StorageError where a piece
        cannot be read, ClosedError for a closed file. Cancelling does not stop the reads.
        """
        [found] = await self._read_ranges([(file, offset, length)], priority)
        if isinstance(found, BaseException):
            raise found
        return found

    async def try_read_many(
        self, wanted: Sequence[tuple[File, int, int]], priority: int = BACKGROUND
    ) -> list[memoryview | BaseException]:
        """`(file, offset, length)` ranges, in the order asked for, each as `read` gives it, or its error."""
        return await self._read_ranges(wanted, priority)

    async def _read_ranges(
        self, wanted: Sequence[tuple[File, int, int]], priority: int
    ) -> list[memoryview | BaseException]:
        ticket = self.take_ticket()
        files: dict[int, int] = {}
        try:
            # What the reads write into outlives this call, should it be cancelled.
            ranges = self._kept[ticket] = []
            for file, offset, length in wanted:
                self._start_range(ranges, ticket, files, file, offset, length, priority)
            self._schedule_turn()
            await self.wait(ticket)
            return [each.result(self._c) if isinstance(each, Pieces) else each for each in ranges]
        finally:
            for number in files.values():
                self._close_file(number)
            self.release(ticket)

    def _start_range(
        self,
        ranges: list[Pieces | BaseException],
        ticket: int,
        files: dict[int, int],
        file: File,
        offset: int,
        length: int,
        priority: int,
    ) -> None:
        try:
            number = files.get(id(file))
            if number is None:
                number = files[id(file)] = self.table.open(file)
            pieces = Pieces(file, offset, length)
        except (ClosedError, StorageError) as error:
            ranges.append(error)
            return
        ranges.append(pieces)
        for at, data, size in pieces.parts():
            page = lib.sarp_reads_piece(self._c, ticket, number, at, data, size, priority)
            if not page:
                raise LimitError("too many reads wait at once")
            pieces.pages.append(page)

    # --- calls

    async def run(self, function: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """Call the function on the one thread for writes, syncs and renames, after all earlier ones have ended.

        Cancelling does not stop it, not even before it has begun: it runs to its end, its error is dropped, and so is
        its result; files that it opened are closed. Where an error must not go unseen (a failed sync), the function
        has to note it itself.
        """
        return cast("_Result", await self._taken(self._call(function, args, background=False)))

    async def run_background(self, function: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """The same on another thread: what is called here neither waits for `run`'s calls nor makes them wait."""
        return cast("_Result", await self._taken(self._call(function, args, background=True)))

    @staticmethod
    async def _taken(future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled in the turn in which the result came; before it, `_finish_call` sees to it.
            if future.done() and not future.cancelled() and future.exception() is None:
                _close_unwanted(future.result())
            raise

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], *, background: bool) -> asyncio.Future[Any]:
        self._check_open()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls += 1
        self.backend.call(_Call(function, args, future, background=background))
        return future

    async def close(self) -> None:
        """Take nothing more, wait for everything in flight, and stop the backend. Closing again is the same."""
        self._check_process()
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._check_drained()
        await asyncio.shield(self._drained)
        for slot in list(self._slots):
            self._close_file(self._slots.pop(slot))
        self.backend.stop()

    # --- turns

    def _schedule_turn(self) -> None:
        """Everything that is asked for in one turn of the loop goes out together."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.backend.turn()
        self._ended(())

    def _ended(self, calls: Sequence[CallJob]) -> None:
        for call in calls:
            assert isinstance(call, _Call)
            self._finish_call(call)
        count = self._c.done_count
        if count:
            numbers = ffi.unpack(self._c.done, count)
            self._c.done_count = 0
            for number in numbers:
                future = self._waiting.pop(number, None)
                if number in self._released:
                    self._released.remove(number)
                    self.release(number)
                elif future is not None and not future.done():  # done already: the waiting task was cancelled
                    future.set_result(None)
        if self._closing:
            self._free_files()
        if self._drained is not None:
            self._check_drained()

    def _finish_call(self, call: _Call) -> None:
        self._calls -= 1
        if call.future.done():  # cancelled: nobody takes what the call returns
            _close_unwanted(call.result)
            return
        if isinstance(call.error, StopIteration):  # which a future refuses
            call.future.set_exception(RuntimeError(f"the call raised {call.error!r}"))
        elif call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"this I/O scheduler belongs to process {self._pid}; open the store again in this one")

    def _check_open(self) -> None:
        self._check_process()
        if self._drained is not None:
            raise ClosedError("the I/O scheduler is closed")

    def _check_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and not (self.table.outstanding or self._calls):
            self._drained.set_result(None)


def _close_unwanted(result: object) -> None:
    """Close the file, or the files, that a call opened for somebody who is gone."""
    for each in result if isinstance(result, list) else (result,):
        close = getattr(each, "close", None)
        if close is not None:
            close()
