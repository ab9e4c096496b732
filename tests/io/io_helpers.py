"""A backend that a test completes by hand, a scheduler on it, and a file that the test can hold up."""

from __future__ import annotations

import asyncio
import functools
import threading

from sarpstore._errors import StorageError
from sarpstore._files import MemoryFolder
from sarpstore._io import Scheduler
from sarpstore._kernel import ffi, lib

PAGE = 4096


@functools.cache
def pattern(page, page_bytes=PAGE):
    """Page content that no other page or shift of it has."""
    return b"".join(b"%08x" % (page * page_bytes + at) for at in range(0, page_bytes, 8))


def filled(folder, name, pages):
    file = folder.create(name)
    file.write(0, b"".join(map(pattern, range(pages))))
    return file


def memory_file(pages=64, name="a"):
    return filled(MemoryFolder(), name, pages)


def make_scheduler(backend, file, **options):
    """A scheduler with the file under slot 0."""
    scheduler = Scheduler(backend, **options)
    scheduler.attach(0, file)
    return scheduler


def start(coroutine):
    return asyncio.ensure_future(coroutine)


async def turns(count=5):
    """Let the loop run everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


def key(page, slot=0):
    return slot << 18 | page


async def read_pages(scheduler, wanted, priority=0):
    """The bytes of log pages: numbers in slot 0's file, or keys; the first error is raised."""
    ticket = await scheduler.bring(wanted, priority)
    try:
        for at, error in ticket.errors():
            raise StorageError("read", f"page {at}", error)
        return [bytes(ticket.page(page)) for page in wanted]
    finally:
        ticket.release()


class ManualBackend:
    """Keeps what it is to do until the test says `finish`."""

    name = "manual"

    def __init__(self):
        self.batches = []
        self.pending = []
        self.calls = []
        self.stopped = 0
        self.files = []

    def start(self, loop, table, ended):
        self.table = table
        self._ended = ended

    def turn(self):
        c = self.table.c
        if lib.sarp_reads_hand(c):
            runs = ffi.unpack(c.handed, c.handed_count)
            c.handed_count = 0
            batch = [(run, *self.table.run_buffers(run)) for run in runs]
            self.batches.append([(file.name, offset, sum(map(len, buffers))) for _, file, offset, buffers in batch])
            self.pending += batch

    def opened(self, file):
        self.files.append(file)

    def closed(self, file):
        if file in self.files:
            self.files.remove(file)

    def call(self, job):
        self.calls.append(job)

    def stop(self):
        self.stopped += 1

    @property
    def submitted(self):
        return [read for batch in self.batches for read in batch]

    def finish(self, count=None, error=0, bytes_max=None):
        """Complete the first `count` pending reads (by default all of them), in part, or with an errno."""
        done, self.pending = self.pending[:count], self.pending[count:] if count is not None else []
        for run, file, offset, buffers in done:
            if error:
                self.table.complete(run, -error)
                continue
            got = file.read_into(offset, *buffers)
            self.table.complete(run, got if bytes_max is None else min(got, bytes_max))
        self.turn()
        self._ended(())

    def finish_calls(self):
        done, self.calls = self.calls, []
        for job in done:
            try:
                job.result = job.function(*job.args)
            except BaseException as error:
                job.error = error
        self._ended(done)


class GatedFile:
    """A file whose reads wait until `gate` is set; `entered` counts those that have begun."""

    def __init__(self, file):
        self._file = file
        self.name = self.path = file.name
        self.direct = False
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads = set()

    def hold(self):
        return None

    def release(self):
        pass

    def read_into(self, offset, *buffers):
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.gate.wait(10), "the test never opened the gate"
        return self._file.read_into(offset, *buffers)
