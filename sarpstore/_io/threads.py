"""The backend that works everywhere: threads for reads, one more for the log's writes, one for background calls."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from sarpstore._errors import ClosedError, OptionError, StorageError
from sarpstore._io.backend import CallJob
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from sarpstore._io.table import ReadTable

__all__ = ["CallThread", "Completions", "ThreadBackend"]

_log = logging.getLogger("sarpstore")

_READ_THREADS_MAX = 64


class ReadJob:
    """A run of the table; `result` becomes the bytes read, or a negative errno."""

    __slots__ = ("error", "result", "run", "table")

    def __init__(self, table: ReadTable, run: int) -> None:
        self.table = table
        self.run = run
        self.result = 0
        self.error: BaseException | None = None


Job = CallJob | ReadJob


class Completions:
    """Hands ended jobs from threads to the loop, with one wake-up for all that end before the loop gets to them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, completed: Callable[[Sequence[Job]], None]) -> None:
        self._loop = loop
        self._completed = completed
        self._jobs: deque[Job] = deque()
        self._woken = False

    def put(self, job: Job) -> None:
        """From any thread. Two that find `_woken` false at once wake the loop twice, which is harmless."""
        self._jobs.append(job)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Cleared before the jobs are taken: one that is put after the last pop then wakes the loop again.
        self._woken = False
        jobs = []
        with contextlib.suppress(IndexError):
            while True:
                jobs.append(self._jobs.popleft())
        if jobs:
            self._completed(jobs)


class _Threads:
    """Daemon threads that take jobs from one queue, each started when there is work for it.

    None in the queue ends one of them.
    """

    def __init__(self, names: Sequence[str], work: Callable[[Job], None], completions: Completions) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._work = work
        self._completions = completions
        self._names = names
        self._threads: list[threading.Thread] = []

    def put(self, job: Job, outstanding: int = 1) -> None:
        """Queue a job; `outstanding` jobs, this one included, have not ended yet."""
        if len(self._threads) < min(outstanding, len(self._names)):
            # A daemon: a program that exits without closing its store must not wait for a slow device.
            thread = threading.Thread(target=self._run, name=self._names[len(self._threads)], daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(job)

    def stop(self) -> None:
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._work(job)
            except BaseException as error:
                job.error = error
            self._completions.put(job)
            del job  # or an idle thread would keep the last buffers alive


def _read(job: Job) -> None:
    assert isinstance(job, ReadJob)
    c = job.table.c
    if c.files[c.runs[job.run].file].fd >= 0:
        job.result = lib.sarp_reads_pread(c, job.run)
        return
    file, offset, buffers = job.table.run_buffers(job.run)
    try:
        job.result = file.read_into(offset, *buffers)
    except StorageError as error:
        job.result = -(error.errno or errno.EIO)
    except ClosedError:
        job.result = -errno.EBADF
    except BaseException:
        _log.exception("a read of %s failed in an unforeseen way", file.path)
        job.result = -errno.ENOTRECOVERABLE


def _call(job: Job) -> None:
    assert isinstance(job, CallJob)
    job.result = job.function(*job.args)


class CallThread(_Threads):
    """One thread that runs calls in order, so that a sync never delays a read; every backend has two."""

    def __init__(self, name: str, completions: Completions) -> None:
        super().__init__([f"sarpstore-{name}"], _call, completions)


class ThreadBackend:
    """A `Backend` on threads, `read_threads` (1 to 64) of which read; the device sees so many reads at once."""

    def __init__(self, read_threads: int = 8) -> None:
        if not 1 <= read_threads <= _READ_THREADS_MAX:
            raise OptionError(f"read_threads is {read_threads}; it must be from 1 to {_READ_THREADS_MAX}")
        self._read_threads = read_threads
        self._outstanding = 0
        self._readers: _Threads | None = None
        self._writer: CallThread | None = None
        self._background: CallThread | None = None

    @property
    def name(self) -> str:
        return "threads"

    def start(
        self, loop: asyncio.AbstractEventLoop, table: ReadTable, ended: Callable[[Sequence[CallJob]], None]
    ) -> None:
        assert self._readers is None, "a backend is started once"
        self._table = table
        self._ended = ended
        self._next = self.turn
        completions = Completions(loop, self._completed)
        names = [f"sarpstore-read-{number}" for number in range(self._read_threads)]
        self._readers = _Threads(names, _read, completions)
        self._writer = CallThread("write", completions)
        self._background = CallThread("background", completions)

    def serve(self, following: Callable[[], None]) -> None:
        """Read only what is handed over, for another backend, whose turn `following` is when some of it has ended."""
        self._next = following

    def turn(self) -> None:
        if lib.sarp_reads_hand(self._table.c):
            self.take_handed()

    def take_handed(self) -> None:
        """Read the runs that were handed over by the table."""
        assert self._readers is not None, "not started"
        table = self._table
        runs = ffi.unpack(table.c.handed, table.c.handed_count)
        table.c.handed_count = 0
        for run in runs:
            self._outstanding += 1
            self._readers.put(ReadJob(table, run), self._outstanding)

    def opened(self, file: int) -> None:
        pass

    def closed(self, file: int) -> None:
        pass

    def call(self, job: CallJob) -> None:
        thread = self._background if job.background else self._writer
        assert thread is not None, "not started"
        thread.put(job)

    def stop(self) -> None:
        for threads in (self._readers, self._writer, self._background):
            if threads is not None:
                threads.stop()

    def _completed(self, jobs: Sequence[Job]) -> None:
        calls = []
        for job in jobs:
            if isinstance(job, CallJob):
                calls.append(job)
            else:
                self._outstanding -= 1
                self._table.complete(job.run, job.result)
        if len(calls) < len(jobs):
            self._next()
        self._ended(calls)
