"""What every backend must do; a subclass says how to make one."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import warnings
from abc import ABC, abstractmethod

import pytest
from io_helpers import GatedFile, filled, key, memory_file, pattern, read_pages

from sarpstore._errors import ClosedError, ForkedError, StorageError
from sarpstore._files import Fault, FaultyFolder, MemoryFolder, RealFile, RealFolder
from sarpstore._io import BACKGROUND, Backend, Scheduler


class BackendSuite(ABC):
    @abstractmethod
    def make(self) -> Backend:
        """A new backend."""

    @pytest.fixture
    async def scheduler(self):
        scheduler = Scheduler(self.make(), queue_depth=16)
        yield scheduler
        async with asyncio.timeout(10):
            await scheduler.close()

    @pytest.fixture
    def folder(self, tmp_path):
        folder = RealFolder(tmp_path)
        yield folder
        folder.close()

    async def test_pages_come_as_they_are_in_the_file(self, scheduler, folder):
        scheduler.attach(3, filled(folder, "a", 100))
        pages = [page for page in range(90) if page % 7 < 3]
        found = await read_pages(scheduler, [key(page, 3) for page in pages])
        assert found == [pattern(page) for page in pages]
        assert scheduler.reads == 13

    async def test_many_more_reads_than_may_be_in_flight(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 1000))
        wanted = [[(task * 37 + n * 2) % 1000 for n in range(20)] for task in range(100)]
        found = await asyncio.gather(*(read_pages(scheduler, pages) for pages in wanted))
        assert found == [[pattern(page) for page in pages] for pages in wanted]
        assert scheduler.in_flight_max <= 16
        assert scheduler.in_flight == 0

    async def test_pages_of_a_run_and_alone_beyond_the_registered_frames(self, folder):
        scheduler = Scheduler(self.make(), queue_depth=4)
        scheduler.attach(0, filled(folder, "a", 400))
        held = [await scheduler.bring(range(start, start + 60, 2)) for start in range(0, 300, 60)]
        assert await read_pages(scheduler, range(300, 400)) == [pattern(page) for page in range(300, 400)]
        for number, ticket in enumerate(held):
            assert all(ticket.page(page) == pattern(page) for page in range(60 * number, 60 * number + 60, 2))
            ticket.release()
        await scheduler.close()

    async def test_a_larger_read(self, scheduler, folder):
        file = filled(folder, "a", 1000)
        content = b"".join(map(pattern, range(1000)))
        for offset, length in ((0, 1000 * 4096), (1, 3), (4095, 1 << 20), (12345, (2 << 20) + 1), (1 << 20, 1 << 30)):
            assert await scheduler.read(file, offset, length) == content[offset : offset + length]
        found = await scheduler.try_read_many([(file, page * 4096, 4096) for page in (3, 900, 1000)])
        assert [bytes(each) for each in found] == [pattern(3), pattern(900), b""]

    async def test_a_page_that_the_file_ends_in_is_an_error_of_its_own(self, scheduler, folder):
        file = filled(folder, "a", 2)
        file.write(8192, b"tail")
        scheduler.attach(0, file)
        ticket = await scheduler.bring(range(5))
        assert sorted(ticket.errors()) == [(page, errno.ENODATA) for page in (2, 3, 4)]
        assert ticket.page(1) == pattern(1)
        assert ticket.page(2) is None
        ticket.release()
        assert await scheduler.read(file, 4096, 100_000) == pattern(1) + b"tail"

    async def test_an_error_is_its_own_files(self, scheduler, folder):
        faulty = FaultyFolder(folder, [Fault("read", name_prefix="bad", times=None)])
        scheduler.attach(0, filled(faulty, "good", 1))
        scheduler.attach(1, filled(faulty, "bad", 1))
        scheduler.attach(2, filled(folder, "fine", 1))
        ticket = await scheduler.bring([key(0, 0), key(0, 1), key(0, 2)])
        assert ticket.errors() == [(key(0, 1), errno.EIO)]
        ticket.release()

    async def test_errors_of_the_system(self, scheduler, tmp_path):
        file = RealFile(os.open(tmp_path, os.O_RDONLY), str(tmp_path / "folder"), "folder")
        scheduler.attach(0, file)
        ticket = await scheduler.bring([0, 1, 9])
        assert sorted(ticket.errors()) == [(page, errno.EISDIR) for page in (0, 1, 9)]
        ticket.release()
        with pytest.raises(StorageError, match=r"read of .*folder failed: Is a directory"):
            await scheduler.read(file, 0, 100)
        file.close()

    async def test_a_closed_file_is_an_error_of_the_call(self, scheduler, folder):
        file = filled(folder, "a", 1)
        good = filled(folder, "b", 1)
        file.close()
        with pytest.raises(ClosedError):
            scheduler.attach(0, file)
        with pytest.raises(ClosedError):
            await scheduler.read(file, 0, 10)
        found = await scheduler.try_read_many([(file, 0, 10), (good, 0, 10)])
        assert isinstance(found[0], ClosedError)
        assert found[1] == pattern(0)[:10]

    async def test_a_file_that_is_closed_while_it_is_read_is_read_to_the_end(self, scheduler, folder):
        file = filled(folder, "a", 600)
        fd = file.fileno()
        scheduler.attach(0, file)
        reading = asyncio.ensure_future(read_pages(scheduler, range(0, 600, 3)))
        await asyncio.sleep(0)
        detaching = asyncio.ensure_future(scheduler.detach(0))
        file.close()
        other = filled(folder, "b", 1)
        assert other.fileno() != fd, "its number is not free as long as it is read"
        assert await reading == [pattern(page) for page in range(0, 600, 3)]
        await detaching
        assert not scheduler.attached(0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    async def test_a_slot_that_gets_another_file(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 40))
        held = await scheduler.bring([1])
        reading = asyncio.ensure_future(read_pages(scheduler, range(2, 40)))
        await asyncio.sleep(0)
        other = folder.create("b")
        other.write(0, bytes(40 * 4096))
        scheduler.attach(0, other)
        assert await read_pages(scheduler, range(40)) == [bytes(4096)] * 40
        reading.cancel()  # its pages are no longer found by their keys
        held.release()

    async def test_a_cancelled_waiter_leaves_reads_and_memory_as_they_are(self, scheduler, folder):
        file = filled(folder, "a", 900)
        scheduler.attach(0, file)
        for turn in range(30):
            tasks = [asyncio.ensure_future(read_pages(scheduler, range(n, 900, 17))) for n in range(5)]
            tasks.append(asyncio.ensure_future(scheduler.read(file, 5, 900 * 4096)))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for task in tasks[::2] + tasks[-1:]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert found[1] == [pattern(page) for page in range(1, 900, 17)]
        async with asyncio.timeout(10):
            while scheduler.table.outstanding or scheduler._released:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        assert scheduler.table.c.pages_live == 0
        assert scheduler._kept == {}

    async def test_close_waits_for_what_is_in_flight(self, folder):
        scheduler = Scheduler(self.make(), queue_depth=2)
        file = filled(folder, "a", 500)
        scheduler.attach(0, file)
        gated = GatedFile(memory_file())
        scheduler.attach(1, gated)
        tasks = [
            asyncio.ensure_future(read_pages(scheduler, range(0, 500, 2))),
            asyncio.ensure_future(scheduler.read(file, 0, 3 << 20)),
            asyncio.ensure_future(read_pages(scheduler, [key(5, 1)])),
        ]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(scheduler.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gated.gate.set()
        await closing
        pages, data, gated_pages = await asyncio.gather(*tasks)
        assert pages == [pattern(page) for page in range(0, 500, 2)]
        assert data == b"".join(map(pattern, range(500)))[: 3 << 20]
        assert gated_pages == [pattern(5)]
        assert scheduler.table.files == {}

    async def test_files_of_memory_and_of_the_system_side_by_side(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 300))
        scheduler.attach(1, filled(MemoryFolder(), "b", 300))
        wanted = [key(page, page % 2) for page in range(300)]
        assert await read_pages(scheduler, wanted) == [pattern(page) for page in range(300)]

    async def test_background_work_and_matching_together(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 700))
        work = [asyncio.ensure_future(read_pages(scheduler, range(n, 700, 11), BACKGROUND)) for n in range(11)]
        match = asyncio.ensure_future(read_pages(scheduler, range(0, 700, 5)))
        assert await match == [pattern(page) for page in range(0, 700, 5)]
        for n, found in enumerate(await asyncio.gather(*work)):
            assert found == [pattern(page) for page in range(n, 700, 11)]

    async def test_calls_run_one_after_another_in_order(self, scheduler):
        seen = []
        await asyncio.gather(*(scheduler.run(seen.append, number) for number in range(200)))
        assert seen == list(range(200))

    async def test_a_call_has_a_result_or_an_error(self, scheduler):
        assert await scheduler.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await scheduler.run_background(divmod, 7, 0)

    async def test_a_slow_call_holds_up_no_read(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 4))
        gate = threading.Event()
        slow = asyncio.ensure_future(scheduler.run(gate.wait, 10))
        assert await read_pages(scheduler, range(4)) == [pattern(page) for page in range(4)]
        assert not slow.done()
        gate.set()
        assert await slow

    async def test_reading_on_after_a_pause(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 50))
        for page in range(50):
            async with asyncio.timeout(5):
                assert await read_pages(scheduler, [page]) == [pattern(page)]
            if page % 10 == 0:
                await asyncio.sleep(0.01)

    async def test_a_forked_process_is_told(self, scheduler, folder):
        scheduler.attach(0, filled(folder, "a", 50))
        reading = asyncio.ensure_future(read_pages(scheduler, range(0, 50, 2)))
        await asyncio.sleep(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are running: the child does little
            child = os.fork()
        if child == 0:
            status = 1
            try:
                scheduler.take_ticket()
            except ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
        assert await reading == [pattern(page) for page in range(0, 50, 2)]

    async def test_stopping_twice_is_stopping(self, scheduler):
        await scheduler.close()
        scheduler.backend.stop()

    async def test_direct_reads(self, scheduler, folder):
        filled(folder, "probe", 1)
        if not folder.takes_direct():
            pytest.skip("this file system has no direct reads")
        filled(folder, "a", 600).write(600 * 4096, b"tail")
        file = folder.open_direct("a")
        assert file.direct
        content = b"".join(map(pattern, range(600))) + b"tail"
        scheduler.attach(0, file)
        assert await read_pages(scheduler, range(600)) == [pattern(page) for page in range(600)]
        ticket = await scheduler.bring([599, 600, 601])
        assert sorted(ticket.errors()) == [(600, errno.ENODATA), (601, errno.ENODATA)]
        ticket.release()
        for offset, length in (
            (0, 10),
            (5, 8192),
            (599 * 4096, 9000),
            (600 * 4096 + 2, 99),
            (601 * 4096, 5),
            (3, 4 << 20),
        ):
            assert await scheduler.read(file, offset, length) == content[offset : offset + length], (offset, length)
        file.close()
