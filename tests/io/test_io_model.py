"""Arbitrary requests, real threads and files, against plain bytes; errors and cancellation included."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from io_helpers import GatedFile, filled, memory_file, pattern

from sarpstore._errors import StorageError
from sarpstore._files import Fault, FaultyFolder, MemoryFolder, RealFolder
from sarpstore._io import Scheduler, ThreadBackend

PAGES = 24
CONTENT = b"".join(map(pattern, range(PAGES))) + b"the tail of the file"

page_lists = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, PAGES + 3)), max_size=40)
ranges = st.tuples(st.sampled_from("ab"), st.integers(0, len(CONTENT) + 5000), st.integers(0, 1 << 18))
requests = st.lists(st.tuples(st.one_of(page_lists, ranges), st.sampled_from([0, 1]), st.booleans()), max_size=20)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests, st.integers(1, 9), st.integers(1, 20), st.booleans())
async def test_every_request_gets_its_bytes(wanted, queue_depth, coalesce_pages, failing):
    folder = FaultyFolder(MemoryFolder())
    files = {name: filled(folder, name, PAGES) for name in "ab"}
    for file in files.values():
        file.write(PAGES * 4096, b"the tail of the file")
    if failing:
        folder.inject(Fault("read", name_prefix="b", after=2, times=5))
    scheduler = Scheduler(ThreadBackend(3), queue_depth=queue_depth, coalesce_pages=coalesce_pages)

    async def one(request, priority):
        if isinstance(request, list):
            found = await scheduler.read_pages([(files[name], page) for name, page in request], priority)
            assert [bytes(page) for page in found] == [CONTENT[p * 4096 : (p + 1) * 4096] for _, p in request]
        else:
            name, offset, length = request
            assert await scheduler.read(files[name], offset, length, priority) == CONTENT[offset : offset + length]

    tasks = [asyncio.ensure_future(one(request, priority)) for request, priority, _ in wanted]
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
    assert scheduler.in_flight_max <= queue_depth
    assert scheduler._pages == {}
    assert scheduler.read_errors == folder.injected


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
    tasks = [scheduler.read_pages([(file, page), (file, (page * 7) % PAGES)]) for page in range(PAGES)]
    for page, (one, two) in enumerate(await asyncio.gather(*tasks)):
        assert (bytes(one), bytes(two)) == (pattern(page), pattern((page * 7) % PAGES))
    await scheduler.run(file.close)
    await scheduler.close()
    folder.close()


async def test_close_with_reads_in_flight_lets_them_finish():
    file = GatedFile(memory_file())
    scheduler = Scheduler(ThreadBackend(2))
    task = asyncio.ensure_future(scheduler.read_pages([(file, 0), (file, 10), (file, 20)]))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(scheduler.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    file.gate.set()
    await closing
    assert [bytes(page) for page in await task] == [pattern(0), pattern(10), pattern(20)]
