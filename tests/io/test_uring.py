"""The suite for io_uring, and what is special about it."""

from __future__ import annotations

import asyncio
import errno
import gc
import subprocess
import sys

import pytest
from backend_suite import BackendSuite
from io_helpers import filled, pattern, read_pages

from sarpstore._errors import OptionError
from sarpstore._files import RealFolder
from sarpstore._io import Scheduler, ThreadBackend, UringBackend, choose_backend
from sarpstore._kernel import ffi, lib

try:
    _probe = UringBackend(1)
    _probe.stop()
except OptionError as error:
    pytest.skip(f"no io_uring here: {error}", allow_module_level=True)


class TestUringBackend(BackendSuite):
    def make(self):
        return UringBackend(16)


class TestUringOfOldKernels(BackendSuite):
    def make(self):
        return UringBackend(16, simplest=True)


class TestUringWithoutRegistrations(BackendSuite):
    def make(self):
        backend = UringBackend(16)
        start = backend.start

        def start_without(loop, table, ended):
            start(loop, table, ended)
            backend.ring.files_fixed = backend.ring.fixed_bytes = 0

        backend.start = start_without
        return backend


@pytest.fixture
async def reading(tmp_path):
    """A scheduler on a ring, its ring, and a file of 200 pages under slot 0."""
    folder = RealFolder(tmp_path)
    backend = UringBackend(16)
    scheduler = Scheduler(backend, queue_depth=16)
    scheduler.attach(0, filled(folder, "a", 200))
    yield scheduler, backend.ring
    backend.ring.enter_error = 0
    await scheduler.close()
    folder.close()


@pytest.mark.parametrize("error", [errno.EINTR, errno.EAGAIN, errno.EBUSY])
async def test_a_kernel_that_is_busy_is_asked_again(reading, error):
    scheduler, ring = reading
    ring.enter_error = -error
    task = asyncio.ensure_future(read_pages(scheduler, range(0, 200, 3)))
    await asyncio.sleep(0.02)
    assert not task.done()
    assert 4 < ring.enters < 1000, "again and again, but not without a pause"
    ring.enter_error = 0
    async with asyncio.timeout(5):
        assert await task == [pattern(page) for page in range(0, 200, 3)]


async def test_a_ring_that_fails_fails_its_reads(reading):
    scheduler, ring = reading
    ring.enter_error = -errno.EBADFD
    async with asyncio.timeout(5):
        ticket = await scheduler.bring(range(0, 200, 3))
    assert sorted(ticket.errors()) == [(page, errno.EBADFD) for page in range(0, 200, 3)]
    ticket.release()
    ring.enter_error = 0
    assert await read_pages(scheduler, [7]) == [pattern(7)], "an error that may pass is not remembered"


async def test_the_reads_of_a_turn_are_one_system_call(reading):
    scheduler, ring = reading
    before = ring.enters
    tasks = [asyncio.ensure_future(read_pages(scheduler, [page * 10])) for page in range(16)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # The turn goes round again to see what has ended by then.
    assert scheduler.reads == 16
    assert ring.enters - before <= 4
    assert await asyncio.gather(*tasks) == [[pattern(page * 10)] for page in range(16)]


async def test_reads_outlive_a_scheduler_that_nobody_has_any_more(tmp_path):
    folder = RealFolder(tmp_path)
    scheduler = Scheduler(UringBackend(8), queue_depth=8)
    file = filled(folder, "a", 1000)
    scheduler.attach(0, file)
    task = asyncio.ensure_future(scheduler.read(file, 0, 1000 * 4096))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    del scheduler, task
    gc.collect()
    await asyncio.sleep(0.05)
    folder.close()


def test_impossible_rings_are_refused():
    ring = ffi.new("sarp_uring *")
    for entries in (0, 4097):
        assert lib.sarp_uring_open(ring, entries, 0) == -errno.EINVAL
        assert (ring.fd, ring.event_fd) == (-1, -1)
    lib.sarp_uring_close(ring)
    assert lib.sarp_uring_turn(ring, ffi.new("sarp_reads *"), 0) == -errno.EBADF


def test_rings_of_all_depths_leave_nothing_behind():
    import os

    before = sorted(os.listdir("/proc/self/fd"))
    for depth in (1, 2, 3, 100, 4096):
        backend = UringBackend(depth)
        assert backend.ring.entries >= depth
        backend.stop()
        backend.stop()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_choice():
    assert type(choose_backend("threads", 8)) is ThreadBackend
    for io in ("auto", "uring"):
        backend = choose_backend(io, 8)
        assert type(backend) is UringBackend
        backend.stop()


FORBIDDEN = """
import asyncio, ctypes, struct, sys
import sarpstore
# A seccomp filter as containers have it: io_uring_setup (425) is answered with the errno, all else is allowed.
errno = int(sys.argv[1])
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (6, 0, 0, 0x00050000 | errno), (6, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *each) for each in code)
buffer = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Filter(len(code), ctypes.addressof(buffer)))) == 0, ctypes.get_errno()

async def main():
    async with sarpstore.open(sys.argv[2]) as store:
        print(store.stats().io_backend)
        await store.namespace("x").insert([1] * 16, [(1, 2, 3, 4)])
    async with sarpstore.open(sys.argv[2]) as store:
        print((await store.namespace("x").match([1] * 16)).blocks)
    try:
        await sarpstore.open(sys.argv[2], io="uring")
    except sarpstore.OptionError as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(("number", "reason"), [(errno.EPERM, "forbids it"), (errno.ENOSYS, "do not offer it")])
def test_a_container_that_forbids_it_gets_threads(tmp_path, number, reason):
    command = [sys.executable, "-c", FORBIDDEN, str(number), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    backend, blocks, refusal = done.stdout.splitlines()
    assert (backend, blocks) == ("threads", "1")
    assert reason in refusal
