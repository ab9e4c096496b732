"""Arbitrary requests, real backends and files, against plain bytes; errors and cancellation included."""

from __future__ import annotations

import asyncio
import errno
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from io_helpers import GatedFile, filled, key, memory_file, pattern, read_pages

from sarpstore._errors import OptionError, StorageError
from sarpstore._files import Fault, FaultyFolder, MemoryFolder, RealFolder
from sarpstore._io import Scheduler, ThreadBackend, UringBackend

PAGES = 24
CONTENT = b"".join(map(pattern, range(PAGES))) + b"the tail of the file"

page_lists = st.lists(st.tuples(st.integers(0, 1), st.integers(0, PAGES + 3)), max_size=40)
ranges = st.tuples(st.integers(0, 1), st.integers(0, len(CONTENT) + 5000), st.integers(0, 1 << 18))
requests = st.lists(st.tuples(st.one_of(page_lists, ranges), st.sampled_from([0, 1]), st.booleans()), max_size=20)
hypothesis_settings = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def check_request(scheduler, files, request, priority):
    if not isinstance(request, list):
        number, offset, length = request
        assert await scheduler.read(files[number], offset, length, priority) == CONTENT[offset : offset + length]
        return
    ticket = await scheduler.bring([key(page, slot) for slot, page in request], priority)
    try:
        errors = dict(ticket.errors())
        assert all(at & 255 >= PAGES for at, number in errors.items() if number == errno.ENODATA)
        for slot, page in request:
            at = key(page, slot)
            if page >= PAGES or at in errors:
                assert ticket.page(at) is None
                assert errors[at] in (errno.ENODATA, errno.EIO)
            else:
                assert ticket.page(at) == pattern(page)
        if errno.EIO in errors.values():
            raise StorageError("read", "b", errno.EIO)
    finally:
        ticket.release()


async def check_requests(scheduler, files, wanted, *, failing=False):
    for slot, file in enumerate(files):
        scheduler.attach(slot, file)
    tasks = [
        asyncio.ensure_future(check_request(scheduler, files, request, priority)) for request, priority, _ in wanted
    ]
    await asyncio.sleep(0)
    for task, (_, _, cancel) in zip(tasks, wanted, strict=True):
        if cancel:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result, (_, _, cancel) in zip(results, wanted, strict=True):
        expected = (
            StorageError if failing else type(None),
            type(None),
            asyncio.CancelledError if cancel else type(None),
        )
        assert isinstance(result, expected), result
    await scheduler.close()
    assert scheduler.in_flight == 0
    assert scheduler.in_flight_max <= scheduler.queue_depth
    assert (scheduler.table.c.pages_live, scheduler._kept, scheduler.table.files) == (0, {}, {})


@hypothesis_settings
@given(requests, st.integers(1, 9), st.integers(1, 20), st.booleans())
async def test_every_request_gets_its_bytes_from_threads(wanted, queue_depth, coalesce_pages, failing):
    folder = FaultyFolder(MemoryFolder())
    files = [filled(folder, name, PAGES) for name in "ab"]
    for file in files:
        file.write(PAGES * 4096, b"the tail of the file")
    if failing:
        folder.inject(Fault("read", name_prefix="b", after=2, times=5))
    scheduler = Scheduler(ThreadBackend(3), queue_depth=queue_depth, coalesce_pages=coalesce_pages)
    await check_requests(scheduler, files, wanted, failing=failing)
    assert scheduler.read_errors == folder.injected


@hypothesis_settings
@given(requests, st.integers(1, 9), st.integers(1, 20), st.booleans(), st.booleans())
async def test_every_request_gets_its_bytes_from_a_ring(wanted, queue_depth, coalesce_pages, direct, simplest):
    try:
        backend = UringBackend(queue_depth, simplest=simplest)
    except OptionError:
        return
    with tempfile.TemporaryDirectory() as path:
        folder = RealFolder(path)
        files = [filled(folder, name, PAGES) for name in "ab"]
        for file in files:
            file.write(PAGES * 4096, b"the tail of the file")
        scheduler = Scheduler(backend, queue_depth=queue_depth, coalesce_pages=coalesce_pages)
        if direct and folder.takes_direct():
            files = [folder.open_direct(name) for name in "ab"]
        await check_requests(scheduler, files, wanted)
        folder.close()


async def test_writes_syncs_and_reads_of_real_files(tmp_path):
    scheduler = Scheduler(ThreadBackend())
    folder = await scheduler.run(RealFolder, tmp_path)
    file = await scheduler.run(folder.create, "a.new")
    for page in range(PAGES):
        task = asyncio.ensure_future(scheduler.run(file.write, page * 4096, pattern(page)))
    await task
    await scheduler.run(file.sync)
    await scheduler.run(folder.rename, "a.new", "a")
    await scheduler.run(folder.sync)
    scheduler.attach(0, file)
    tasks = [read_pages(scheduler, [page, (page * 7) % PAGES]) for page in range(PAGES)]
    for page, (one, two) in enumerate(await asyncio.gather(*tasks)):
        assert (one, two) == (pattern(page), pattern((page * 7) % PAGES))
    await scheduler.run(file.close)
    await scheduler.close()
    folder.close()


async def test_direct_reads_see_what_was_just_written(tmp_path):
    folder = RealFolder(tmp_path)
    file = filled(folder, "a", 1)
    if not folder.takes_direct():
        return
    scheduler = Scheduler(ThreadBackend())
    scheduler.attach(0, folder.open_direct("a"))
    for page in range(1, 200):
        await scheduler.run(file.write, page * 4096, pattern(page))
        if page % 2:
            await scheduler.run(file.sync)
        assert await read_pages(scheduler, [page - 1, page]) == [pattern(page - 1), pattern(page)]
    await scheduler.close()


async def test_close_with_reads_in_flight_lets_them_finish():
    file = GatedFile(memory_file())
    scheduler = Scheduler(ThreadBackend(2))
    scheduler.attach(0, file)
    task = asyncio.ensure_future(read_pages(scheduler, [0, 10, 20]))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(scheduler.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    file.gate.set()
    await closing
    assert await task == [pattern(0), pattern(10), pattern(20)]
