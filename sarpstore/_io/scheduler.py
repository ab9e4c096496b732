"""The read scheduler: what many tasks want in one turn of the loop becomes few reads, bounded in number.

A page that is wanted twice while it is on its way is read once; neighbouring pages of a file are one read;
what does not fit under the bound waits in order. Pages that matches wait for go before background work, which
gets a small share of the places and, so that it never starves, a turn after every sixteen of theirs.

A page must not change while it can be asked for (the log never writes a page over): whoever joins a read that
is already on its way sees the bytes as they were when it began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

from sarpstore._errors import ClosedError, OptionError, StorageError
from sarpstore._io.backend import Backend, CallJob, Job, ReadJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore._files import File

__all__ = ["BACKGROUND", "MATCHING", "Scheduler"]

MATCHING = 0
BACKGROUND = 1

_PIECE_BYTES = 1 << 20
_QUEUE_DEPTH_MAX = 4096
_COALESCE_PAGES_MAX = 1024  # as many buffers as one vectored read takes (IOV_MAX)
_BACKGROUND_SHARE = 8  # background reads take at most an eighth of the places
_PASSED_OVER_MAX = 16  # matching reads that may go before a waiting background read

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class _Waiter:
    """One call that waits for several results; a single future, set when the last one is in."""

    __slots__ = ("error", "future", "left", "results")

    def __init__(self, future: asyncio.Future[None], count: int) -> None:
        self.future = future
        self.left = count
        self.results: list[Any] = [None] * count
        self.error: BaseException | None = None

    def put(self, index: int, result: object, error: BaseException | None = None) -> None:
        self.results[index] = result if error is None else error
        self.error = self.error or error
        self.left -= 1
        if not self.left and not self.future.done():  # done already: the waiting task was cancelled
            self.future.set_result(None)


class _Read(ReadJob):
    """A read with its place in the queues."""

    __slots__ = ("issued", "priority")

    def __init__(self, file: File, offset: int, priority: int, buffers: Sequence[memoryview] = ()) -> None:
        super().__init__(file, offset, buffers)
        self.priority = priority
        self.issued = False


class _Page:
    """A page that somebody waits for, until it has been read."""

    __slots__ = ("file", "number", "priority", "read", "waiters")

    def __init__(self, file: File, number: int, priority: int) -> None:
        self.file = file
        self.number = number
        self.priority = priority
        self.read: _PageRead | None = None  # None until the turn's wishes are gathered
        self.waiters: list[tuple[_Waiter, int]] = []


class _PageRead(_Read):
    """A run of neighbouring pages. Its buffers are allocated when it is issued: waiting reads cost no pages."""

    __slots__ = ("pages",)

    def __init__(self, first: _Page, page_bytes: int) -> None:
        # int: a number out of an array would overflow its dtype here
        super().__init__(first.file, int(first.number) * page_bytes, first.priority)
        self.pages = [first]
        first.read = self

    def takes(self, page: _Page) -> bool:
        last = self.pages[-1]
        return page.number == last.number + 1 and page.file is last.file and page.priority == last.priority

    def add(self, page: _Page) -> None:
        self.pages.append(page)
        page.read = self


class _PieceRead(_Read):
    """A part of a larger read; its buffer is a part of the caller's."""

    __slots__ = ("index", "waiter")

    def __init__(self, file: File, offset: int, priority: int, buffer: memoryview, waiter: _Waiter, index: int) -> None:
        super().__init__(file, offset, priority, (buffer,))
        self.waiter = waiter
        self.index = index


class _Call(CallJob):
    __slots__ = ("future",)

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any], *, background: bool
    ) -> None:
        super().__init__(function, args, background=background)
        self.future = future


def _place(page: _Page) -> tuple[int, int, int]:
    return page.priority, id(page.file), page.number


class Scheduler:
    """Reads and calls for one event loop, the running one, carried out by `backend`, which it starts and stops.

    `queue_depth` (1 to 4096) bounds the reads in flight, `coalesce_pages` (1 to 1024) the pages of one read.
    """

    def __init__(
        self, backend: Backend, *, queue_depth: int = 128, coalesce_pages: int = 16, page_bytes: int = 4096
    ) -> None:
        if not 1 <= queue_depth <= _QUEUE_DEPTH_MAX:
            raise OptionError(f"queue_depth is {queue_depth}; it must be from 1 to {_QUEUE_DEPTH_MAX}")
        if not 1 <= coalesce_pages <= _COALESCE_PAGES_MAX:
            raise OptionError(f"coalesce_pages is {coalesce_pages}; it must be from 1 to {_COALESCE_PAGES_MAX}")
        self.backend = backend
        self.queue_depth = queue_depth
        self.coalesce_pages = coalesce_pages
        self.page_bytes = page_bytes
        self.reads = 0
        """Reads issued to the backend."""
        self.pages_read = 0
        """Pages that were read, each counted once however many waited for it."""
        self.reads_coalesced = 0
        """Pages that came along in a neighbour's read."""
        self.reads_joined = 0
        """Pages asked for that were already on their way."""
        self.read_errors = 0
        """Reads that failed."""
        self.in_flight_max = 0
        """The most reads that were in flight at once."""
        self._loop = asyncio.get_running_loop()
        self._pages: dict[tuple[File, int], _Page] = {}  # every page that is gathered, waiting or in flight
        self._fresh: list[_Page] = []
        self._gather_due = False
        self._queues: tuple[deque[_Read], deque[_Read]] = (deque(), deque())
        self._in_flight = [0, 0]
        self._background_max = max(1, queue_depth // _BACKGROUND_SHARE)
        self._passed_over = 0
        self._pieces = 0
        self._calls = 0
        self._drained: asyncio.Future[None] | None = None
        backend.start(self._loop, self._completed)

    @property
    def in_flight(self) -> int:
        """Reads in flight now."""
        return self._in_flight[MATCHING] + self._in_flight[BACKGROUND]

    async def read_pages(self, wanted: Sequence[tuple[File, int]], priority: int = MATCHING) -> list[memoryview]:
        """The pages `(file, page number)`, in the order asked for, each a read-only view of its own buffer.

        A view is shorter than a page where the file ends. Raises StorageError where a page cannot be read, once
        the others are in, and ClosedError for a closed file. Cancelling leaves the reads to whoever else waits.
        """
        waiter = await self._read_pages(wanted, priority)
        if waiter.error is not None:
            raise waiter.error
        return waiter.results

    async def try_read_pages(
        self, wanted: Sequence[tuple[File, int]], priority: int = MATCHING
    ) -> list[memoryview | BaseException]:
        """As `read_pages`, but a page that cannot be read is its error in the list: the others are not lost."""
        return (await self._read_pages(wanted, priority)).results

    async def read(self, file: File, offset: int, length: int, priority: int = BACKGROUND) -> memoryview:
        """`length` bytes from `offset` on, or fewer where the file ends, as a read-only view; errors as `read_pages`.

        Pieces of at most 1 MiB are read side by side. Nothing is shared with other calls.
        """
        self._check_open()
        if length <= 0:
            return memoryview(b"")
        buffer = self.backend.allocate(length)
        starts = range(0, length, _PIECE_BYTES)
        waiter = _Waiter(self._loop.create_future(), len(starts))
        for index, start in enumerate(starts):
            piece = buffer[start : start + _PIECE_BYTES]
            self._queues[priority].append(_PieceRead(file, offset + start, priority, piece, waiter, index))
        self._pieces += len(starts)
        self._schedule_gather()
        await waiter.future
        if waiter.error is not None:
            raise waiter.error
        return buffer[: _length_before_end(waiter.results)].toreadonly()

    async def try_read_many(
        self, wanted: Sequence[tuple[File, int, int]], priority: int = BACKGROUND
    ) -> list[memoryview | BaseException]:
        """`(file, offset, length)` ranges of at most 1 MiB each, in the order asked for, each as a read-only view.

        A view is shorter where the file ends; a range that cannot be read is its error. Nothing is shared.
        """
        self._check_open()
        waiter = _Waiter(self._loop.create_future(), len(wanted))
        buffers = [self.backend.allocate(length) for _, _, length in wanted]
        for index, (file, offset, length) in enumerate(wanted):
            assert 0 < length <= _PIECE_BYTES
            self._queues[priority].append(_PieceRead(file, offset, priority, buffers[index], waiter, index))
        self._pieces += len(wanted)
        if wanted:
            self._schedule_gather()
            await waiter.future
        return [
            result if isinstance(result, BaseException) else buffer[:result].toreadonly()
            for result, buffer in zip(waiter.results, buffers, strict=True)
        ]

    async def run(self, function: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """Call the function on the one thread for writes, syncs and renames, after all earlier ones have ended.

        Cancelling does not stop it, not even before it has begun: it runs to its end, and its result or error is
        dropped. Where an error must not go unseen (a failed sync), the function has to note it itself.
        """
        return cast("_Result", await self._call(function, args, background=False))

    async def run_background(self, function: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """The same on another thread: what is called here neither waits for `run`'s calls nor makes them wait."""
        return cast("_Result", await self._call(function, args, background=True))

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], *, background: bool) -> asyncio.Future[Any]:
        self._check_open()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls += 1
        self.backend.call(_Call(function, args, future, background=background))
        return future

    async def close(self) -> None:
        """Take nothing more, wait for everything in flight, and stop the backend. Closing again is the same."""
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._check_drained()
        await asyncio.shield(self._drained)
        self.backend.stop()

    async def _read_pages(self, wanted: Sequence[tuple[File, int]], priority: int) -> _Waiter:
        self._check_open()
        waiter = _Waiter(self._loop.create_future(), len(wanted))
        if not wanted:
            return waiter
        pages = self._pages
        for index, key in enumerate(wanted):
            page = pages.get(key)
            if page is None:
                page = pages[key] = _Page(*key, priority)
                self._fresh.append(page)
            else:
                self.reads_joined += 1
                if priority < page.priority:
                    self._promote(page, priority)
            page.waiters.append((waiter, index))
        if self._fresh:
            self._schedule_gather()
        await waiter.future
        return waiter

    def _promote(self, page: _Page, priority: int) -> None:
        """Let a background page that a match now waits for go first, with the rest of its run."""
        page.priority = priority
        read = page.read
        if read is not None and not read.issued and priority < read.priority:
            read.priority = priority
            self._queues[priority].append(read)  # it stays in the other queue too, which skips it once it is issued

    def _schedule_gather(self) -> None:
        if not self._gather_due:
            self._gather_due = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Make runs of what this turn's tasks asked for, queue them, and issue what fits."""
        self._gather_due = False
        fresh, self._fresh = self._fresh, []
        if len(fresh) > 1:
            fresh.sort(key=_place)
        run: _PageRead | None = None
        for page in fresh:
            if run is not None and len(run.pages) < self.coalesce_pages and run.takes(page):
                run.add(page)
                self.reads_coalesced += 1
            else:
                run = _PageRead(page, self.page_bytes)
                self._queues[run.priority].append(run)
        self._issue()

    def _issue(self) -> None:
        batch: list[_Read] = []
        in_flight = self.in_flight
        while in_flight < self.queue_depth and (read := self._next()) is not None:
            read.issued = True
            if isinstance(read, _PageRead):
                allocate = self.backend.allocate
                read.buffers = [allocate(self.page_bytes) for _ in read.pages]
            self._in_flight[read.priority] += 1
            in_flight += 1
            batch.append(read)
        if batch:
            self.reads += len(batch)
            self.in_flight_max = max(self.in_flight_max, in_flight)
            self.backend.submit(batch)

    def _next(self) -> _Read | None:
        """Take the read whose turn it is out of the queues; None where none may go now."""
        matching, background = self._queues
        for queue in self._queues:
            while queue and queue[0].issued:
                queue.popleft()
        background_may_go = bool(background) and self._in_flight[BACKGROUND] < self._background_max
        if matching and not (background_may_go and self._passed_over >= _PASSED_OVER_MAX):
            self._passed_over += background_may_go
            return matching.popleft()
        if background_may_go:
            self._passed_over = 0
            return background.popleft()
        return None

    def _completed(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if isinstance(job, _Call):
                self._finish_call(job)
                continue
            assert isinstance(job, _Read)
            self._in_flight[job.priority] -= 1
            self.read_errors += job.error is not None
            if isinstance(job, _PageRead):
                self._finish_pages(job)
            elif isinstance(job, _PieceRead):
                self._pieces -= 1
                job.waiter.put(job.index, job.result, job.error)
        self._issue()
        self._check_drained()

    def _finish_pages(self, read: _PageRead) -> None:
        if len(read.pages) > 1 and isinstance(read.error, StorageError):
            self._read_singly(read)
            return
        left = read.result
        self.pages_read += 0 if read.error else len(read.pages)
        for page, buffer in zip(read.pages, read.buffers, strict=True):
            view = (buffer if left >= self.page_bytes else buffer[: max(0, left)]).toreadonly()
            left -= self.page_bytes
            del self._pages[page.file, page.number]
            for waiter, index in page.waiters:
                waiter.put(index, view, read.error)
        read.pages, read.buffers = [], ()  # pages and read refer to each other: buffers would wait for the collector

    def _read_singly(self, read: _PageRead) -> None:
        """Read the pages of a failed run one by one: a bad page must not cost its neighbours."""
        for page in reversed(read.pages):
            self._queues[page.priority].appendleft(_PageRead(page, self.page_bytes))

    def _finish_call(self, call: _Call) -> None:
        self._calls -= 1
        if call.future.done():
            return
        if isinstance(call.error, StopIteration):  # which a future refuses
            call.future.set_exception(RuntimeError(f"the call raised {call.error!r}"))
        elif call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)

    def _check_open(self) -> None:
        if self._drained is not None:
            raise ClosedError("the I/O scheduler is closed")

    def _check_drained(self) -> None:
        if self._drained is None or self._drained.done():
            return
        if not (self._pages or self._pieces or self._calls):
            self._drained.set_result(None)


def _length_before_end(counts: list[int]) -> int:
    """How many bytes were read without a gap: pieces after the first short one do not count."""
    length = 0
    for count in counts:
        length += count
        if count < _PIECE_BYTES:
            break
    return length
