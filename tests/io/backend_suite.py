"""What every backend must do; a subclass says how to make one."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

import pytest
from io_helpers import filled, pattern

from sarpstore._errors import ClosedError, StorageError
from sarpstore._files import Fault, FaultyFolder, RealFolder
from sarpstore._io import Backend, CallJob, ReadJob


class Collected:
    """The completed jobs, in order, with a way to wait for a number of them."""

    def __init__(self):
        self.jobs = []
        self.threads = set()
        self._event = asyncio.Event()

    def __call__(self, jobs):
        self.threads.add(threading.current_thread())
        self.jobs += jobs
        self._event.set()

    async def wait(self, count):
        async with asyncio.timeout(10):
            while len(self.jobs) < count:
                self._event.clear()
                await self._event.wait()


class BackendSuite(ABC):
    @abstractmethod
    def make(self) -> Backend:
        """A new backend."""

    @pytest.fixture
    async def completed(self):
        return Collected()

    @pytest.fixture
    async def backend(self, completed):
        backend = self.make()
        backend.start(asyncio.get_running_loop(), completed)
        yield backend
        backend.stop()

    @pytest.fixture
    def folder(self, tmp_path):
        folder = RealFolder(tmp_path)
        yield folder
        folder.close()

    def read_job(self, backend, file, page, pages=1):
        return ReadJob(file, page * 4096, [backend.allocate(4096) for _ in range(pages)])

    async def test_reads_fill_their_buffers(self, backend, completed, folder):
        file = filled(folder, "a", 100)
        jobs = [self.read_job(backend, file, page, pages=1 + page % 3) for page in range(0, 90, 7)]
        backend.submit(jobs[:5])
        backend.submit(jobs[5:])
        await completed.wait(len(jobs))
        assert sorted(map(id, completed.jobs)) == sorted(map(id, jobs))
        for job in jobs:
            assert job.error is None
            assert job.result == 4096 * len(job.buffers)
            first = job.offset // 4096
            assert [bytes(buffer) for buffer in job.buffers] == [pattern(first + n) for n in range(len(job.buffers))]

    async def test_many_more_reads_than_it_can_do_at_once(self, backend, completed, folder):
        file = filled(folder, "a", 16)
        jobs = [self.read_job(backend, file, number % 16) for number in range(500)]
        backend.submit(jobs)
        await completed.wait(len(jobs))
        assert all(bytes(job.buffers[0]) == pattern(number % 16) for number, job in enumerate(jobs))
        assert len(completed.jobs) == len(jobs)

    async def test_completions_come_on_the_loop(self, backend, completed, folder):
        file = filled(folder, "a", 1)
        backend.submit([self.read_job(backend, file, 0)])
        backend.call(CallJob(int, ()))
        await completed.wait(2)
        assert completed.threads == {threading.current_thread()}

    async def test_a_read_at_the_end_of_file_is_short(self, backend, completed, folder):
        file = filled(folder, "a", 2)
        file.write(8192, b"tail")
        jobs = [
            self.read_job(backend, file, 1, pages=3),
            self.read_job(backend, file, 2),
            self.read_job(backend, file, 3),
        ]
        backend.submit(jobs)
        await completed.wait(3)
        assert [job.result for job in jobs] == [4100, 4, 0]
        assert jobs[1].buffers[0][:4] == b"tail"

    async def test_an_error_is_its_own_jobs(self, backend, completed, folder):
        faulty = FaultyFolder(folder, [Fault("read", name_prefix="bad", times=None)])
        good, bad = filled(faulty, "good", 1), filled(faulty, "bad", 1)
        jobs = [self.read_job(backend, file, 0) for file in (good, bad, good)]
        backend.submit(jobs)
        await completed.wait(3)
        assert [type(job.error) for job in jobs] == [type(None), StorageError, type(None)]

    async def test_a_closed_file_is_an_error_of_the_job(self, backend, completed, folder):
        file = filled(folder, "a", 1)
        job = self.read_job(backend, file, 0)
        file.close()
        backend.submit([job])
        await completed.wait(1)
        assert isinstance(job.error, ClosedError)

    async def test_calls_run_one_after_another_in_order(self, backend, completed):
        seen = []
        jobs = [CallJob(seen.append, (number,)) for number in range(200)]
        for job in jobs:
            backend.call(job)
        await completed.wait(len(jobs))
        assert seen == list(range(200))
        assert completed.jobs == jobs

    async def test_a_call_has_a_result_or_an_error(self, backend, completed):
        good, bad = CallJob(divmod, (7, 2)), CallJob(divmod, (7, 0))
        backend.call(good)
        backend.call(bad)
        await completed.wait(2)
        assert good.result == (3, 1)
        assert isinstance(bad.error, ZeroDivisionError)

    async def test_a_slow_call_holds_up_no_read(self, backend, completed, folder):
        file = filled(folder, "a", 4)
        gate = threading.Event()
        slow = CallJob(gate.wait, (10,))
        backend.call(slow)
        backend.submit([self.read_job(backend, file, page) for page in range(4)])
        await completed.wait(4)
        assert slow not in completed.jobs
        gate.set()
        await completed.wait(5)
        assert slow.result is True

    async def test_stopping_twice_is_stopping(self, backend):
        backend.stop()
        backend.stop()

    def test_allocated_buffers_are_writable_bytes(self):
        buffer = self.make().allocate(8192)
        assert (len(buffer), buffer.itemsize, buffer.readonly, buffer.contiguous) == (8192, 1, False, True)
