"""The suite for the thread backend, and what is special about threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from backend_suite import BackendSuite
from io_helpers import GatedFile, memory_file

from sarpstore._errors import OptionError
from sarpstore._io import ReadJob, Scheduler, ThreadBackend
from sarpstore._io.backend import CallJob
from sarpstore._io.threads import Completions


class TestThreadBackend(BackendSuite):
    def make(self):
        return ThreadBackend(read_threads=4)


class TestOneReadThread(BackendSuite):
    def make(self):
        return ThreadBackend(read_threads=1)


async def test_threads_start_with_their_work_and_end_with_the_backend():
    backend = ThreadBackend(read_threads=2)
    before = set(threading.enumerate())
    ended = []
    all_ended = asyncio.Event()

    def completed(jobs: list) -> None:
        ended.extend(jobs)
        if len(ended) == 8:
            all_ended.set()

    backend.start(asyncio.get_running_loop(), completed)

    def names() -> list[str]:
        return sorted(thread.name for thread in set(threading.enumerate()) - before)

    assert names() == []
    backend.call(CallJob(len, ([],)))
    assert names() == ["sarpstore-write"]
    backend.call(CallJob(len, ([],), background=True))
    file = GatedFile(memory_file())
    backend.submit([ReadJob(file, 0, [backend.allocate(4096)])])
    assert names() == ["sarpstore-background", "sarpstore-read-0", "sarpstore-write"]
    backend.submit([ReadJob(file, 0, [backend.allocate(4096)]) for _ in range(5)])
    assert names() == ["sarpstore-background", "sarpstore-read-0", "sarpstore-read-1", "sarpstore-write"]
    started = set(threading.enumerate()) - before
    file.gate.set()
    await all_ended.wait()
    backend.stop()
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_the_number_of_threads_is_bounded(count):
    with pytest.raises(OptionError, match=f"read_threads is {count}; it must be from 1 to 64"):
        ThreadBackend(count)


def test_a_group_of_completions_wakes_the_loop_once():
    class Loop:
        wakes: ClassVar[list] = []

        def call_soon_threadsafe(self, callback):
            self.wakes.append(callback)

    groups = []
    completions = Completions(Loop(), groups.append)
    for group in ([1, 2, 3], [4], [5, 6]):
        for job in group:
            completions.put(job)
        assert len(Loop.wakes) == 1
        Loop.wakes.pop()()
        assert groups.pop() == group


async def test_all_that_ends_while_the_loop_is_busy_is_one_wake_up():
    file = GatedFile(memory_file())
    groups = []
    backend = ThreadBackend(read_threads=4)
    backend.start(asyncio.get_running_loop(), lambda jobs: groups.append(len(jobs)))
    backend.submit([ReadJob(file, 0, [backend.allocate(4096)]) for _ in range(50)])
    file.gate.set()
    for _ in range(50):
        assert file.entered.acquire(timeout=10)
    backend.stop()  # joins the threads: all have ended, and the loop has not run meanwhile
    assert groups == []
    await asyncio.sleep(0.01)
    assert groups == [50]


async def test_reads_run_side_by_side_up_to_the_number_of_threads():
    file = GatedFile(memory_file())
    scheduler = Scheduler(ThreadBackend(read_threads=3), coalesce_pages=1)
    task = asyncio.create_task(scheduler.read_pages([(file, page) for page in range(6)]))
    await asyncio.sleep(0.01)
    for _ in range(3):
        assert file.entered.acquire(timeout=10)
    assert not file.entered.acquire(timeout=0.05)
    file.gate.set()
    assert len(await task) == 6
    assert len(file.threads) == 3
    await scheduler.close()


STUCK = """
import asyncio, threading
from sarpstore._io import Scheduler, ThreadBackend

class StuckFile:
    name = "stuck"
    def read_into(self, offset, *buffers):
        threading.Event().wait()

async def main():
    scheduler = Scheduler(ThreadBackend())
    read = asyncio.ensure_future(scheduler.read_pages([(StuckFile(), 0)]))
    call = asyncio.ensure_future(scheduler.run(threading.Event().wait))
    await asyncio.sleep(0.05)
    print("leaving", flush=True)

asyncio.run(main())
"""


def test_a_program_can_exit_while_the_device_hangs():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "leaving\n"
    assert done.stderr == ""
