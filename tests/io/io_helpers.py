"""A backend that a test completes by hand, and a file that it can hold up."""

from __future__ import annotations

import asyncio
import functools
import threading

from sarpstore._files import MemoryFolder


@functools.cache
def pattern(page, page_bytes=4096):
    """Page content that no other page or shift of it has."""
    return b"".join(b"%08x" % (page * page_bytes + at) for at in range(0, page_bytes, 8))


def filled(folder, name, pages):
    file = folder.create(name)
    file.write(0, b"".join(map(pattern, range(pages))))
    return file


def memory_file(pages=64, name="a"):
    return filled(MemoryFolder(), name, pages)


async def turns(count=5):
    """Let the loop run everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


class ManualBackend:
    """Keeps what is submitted until the test says `finish`."""

    name = "manual"

    def __init__(self):
        self.batches = []
        self.pending = []
        self.calls = []
        self.stopped = 0

    def start(self, loop, completed):
        self._completed = completed

    def allocate(self, length):
        return memoryview(bytearray(length))

    def submit(self, reads):
        self.batches.append([(job.file.name, job.offset, sum(map(len, job.buffers))) for job in reads])
        self.pending += reads

    def call(self, job):
        self.calls.append(job)

    def stop(self):
        self.stopped += 1

    @property
    def submitted(self):
        return [read for batch in self.batches for read in batch]

    def finish(self, count=None, error=None):
        """Complete the first `count` pending reads (by default all of them), or fail them with `error`."""
        done, self.pending = self.pending[:count], self.pending[count:] if count is not None else []
        for job in done:
            if error is not None:
                job.error = error
            else:
                job.result = job.file.read_into(job.offset, *job.buffers)
        self._completed(done)

    def finish_calls(self):
        done, self.calls = self.calls, []
        for job in done:
            try:
                job.result = job.function(*job.args)
            except BaseException as error:
                job.error = error
        self._completed(done)


class GatedFile:
    """A file whose reads wait until `gate` is set; `entered` counts those that have begun."""

    def __init__(self, file):
        self._file = file
        self.name = file.name
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads = set()

    def read_into(self, offset, *buffers):
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.gate.wait(10), "the test never opened the gate"
        return self._file.read_into(offset, *buffers)
