"""The suite for the thread backend, and what is special about threads."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from backend_suite import BackendSuite
from io_helpers import GatedFile, memory_file, read_pages, turns

from sarpstore._errors import OptionError
from sarpstore._io import Scheduler, ThreadBackend
from sarpstore._io.threads import Completions


class TestThreadBackend(BackendSuite):
    def make(self):
        return ThreadBackend(read_threads=4)


class TestOneReadThread(BackendSuite):
    def make(self):
        return ThreadBackend(read_threads=1)


async def test_threads_start_with_their_work_and_end_with_the_backend():
    before = set(threading.enumerate())
    scheduler = Scheduler(ThreadBackend(read_threads=2), coalesce_pages=1)

    def names() -> list[str]:
        return sorted(thread.name for thread in set(threading.enumerate()) - before)

    assert names() == []
    await scheduler.run(len, [])
    assert names() == ["sarpstore-write"]
    await scheduler.run_background(len, [])
    file = GatedFile(memory_file())
    scheduler.attach(0, file)
    tasks = [asyncio.create_task(scheduler.bring([0]))]
    await turns()
    assert names() == ["sarpstore-background", "sarpstore-read-0", "sarpstore-write"]
    tasks += [asyncio.create_task(scheduler.bring([page])) for page in range(1, 6)]
    await turns()
    assert names() == ["sarpstore-background", "sarpstore-read-0", "sarpstore-read-1", "sarpstore-write"]
    started = set(threading.enumerate()) - before
    file.gate.set()
    await asyncio.gather(*tasks)
    await scheduler.close()
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


async def test_a_read_that_fails_in_an_unforeseen_way_is_an_error(caplog):
    class BrokenFile(GatedFile):
        def read_into(self, offset, *buffers):
            raise ZeroDivisionError

    scheduler = Scheduler(ThreadBackend())
    scheduler.attach(0, BrokenFile(memory_file()))
    ticket = await scheduler.bring([3])
    assert ticket.errors() == [(3, errno.ENOTRECOVERABLE)]
    assert "ZeroDivisionError" in caplog.text
    ticket.release()
    await scheduler.close()


async def test_reads_run_side_by_side_up_to_the_number_of_threads():
    file = GatedFile(memory_file())
    scheduler = Scheduler(ThreadBackend(read_threads=3), coalesce_pages=1)
    scheduler.attach(0, file)
    task = asyncio.create_task(read_pages(scheduler, range(6)))
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
    name = path = "stuck"
    direct = False
    def hold(self):
        return None
    def read_into(self, offset, *buffers):
        threading.Event().wait()

async def main():
    scheduler = Scheduler(ThreadBackend())
    scheduler.attach(0, StuckFile())
    read = asyncio.ensure_future(scheduler.bring([0]))
    call = asyncio.ensure_future(scheduler.run(threading.Event().wait))
    await asyncio.sleep(0.05)
    print("leaving", flush=True)

asyncio.run(main())
"""


def test_a_program_can_exit_while_the_device_hangs():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "leaving\n"
    assert done.stderr == ""
