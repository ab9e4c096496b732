"""Gathering, sharing, coalescing, bounding and ordering of reads, on a backend that the tests complete by hand."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref

import pytest
from io_helpers import ManualBackend, memory_file, pattern, turns

from sarpstore._errors import ClosedError, OptionError, StorageError
from sarpstore._files import MemoryFolder
from sarpstore._io import BACKGROUND, MATCHING, Scheduler

PAGE = 4096


@pytest.fixture
def backend():
    return ManualBackend()


@pytest.fixture
def file():
    return memory_file()


@pytest.fixture
async def scheduler(backend):
    return Scheduler(backend)


def start(coroutine):
    return asyncio.ensure_future(coroutine)


def broken():
    return StorageError("read", "a", errno.EIO)


async def test_pages_come_in_the_order_asked_for(scheduler, backend, file):
    wanted = [9, 2, 30, 3, 2, 0]
    task = start(scheduler.read_pages([(file, page) for page in wanted]))
    await turns()
    backend.finish()
    pages = await task
    assert [bytes(page) for page in pages] == [pattern(page) for page in wanted]
    assert all(page.readonly and len(page) == PAGE for page in pages)


async def test_nothing_wanted_is_nothing_read(scheduler, backend):
    assert await scheduler.read_pages([]) == []
    assert bytes(await scheduler.read(memory_file(), 0, 0)) == b""
    assert backend.batches == []


async def test_one_turn_of_the_loop_is_one_submission(scheduler, backend, file):
    tasks = [start(scheduler.read_pages([(file, page), (file, page + 1)])) for page in range(0, 60, 10)]
    await turns()
    assert len(backend.batches) == 1
    assert backend.submitted == [("a", page * PAGE, 2 * PAGE) for page in range(0, 60, 10)]
    backend.finish()
    await asyncio.gather(*tasks)
    assert (scheduler.reads, scheduler.pages_read, scheduler.reads_coalesced) == (6, 12, 6)


async def test_a_page_on_its_way_is_not_read_again(scheduler, backend, file):
    early = [start(scheduler.read_pages([(file, 5)])) for _ in range(3)]
    await turns()
    late = start(scheduler.read_pages([(file, 5), (file, 7), (file, 5)]))
    await turns()
    assert backend.submitted == [("a", 5 * PAGE, PAGE), ("a", 7 * PAGE, PAGE)]
    backend.finish()
    first, *others = [page for pages in await asyncio.gather(*early, late) for page in pages]
    assert sum(page == first for page in others) == 4
    assert (scheduler.reads, scheduler.pages_read, scheduler.reads_joined) == (2, 2, 4)
    again = start(scheduler.read_pages([(file, 5)]))
    await turns()
    assert len(backend.submitted) == 3, "once it has come it is read anew: the scheduler is no cache"
    backend.finish()
    await again


async def test_the_same_page_of_another_file_object_is_another_page(scheduler, backend):
    folder = MemoryFolder()
    folder.create("a").write(0, pattern(0))
    task = start(scheduler.read_pages([(folder.open("a"), 0), (folder.open("a"), 0)]))
    await turns()
    assert len(backend.submitted) == 2
    backend.finish()
    await task


async def test_neighbours_are_one_read_up_to_the_bound(backend, file):
    scheduler = Scheduler(backend, coalesce_pages=4)
    other = memory_file(name="b")
    wanted = [(file, page) for page in (6, 1, 0, 2, 3, 4, 10)] + [(other, 5)]
    task = start(scheduler.read_pages(wanted))
    await turns()
    expected = {("a", 0, 4 * PAGE), ("a", 4 * PAGE, PAGE), ("a", 6 * PAGE, PAGE), ("a", 10 * PAGE, PAGE)}
    assert set(backend.submitted) == expected | {("b", 5 * PAGE, PAGE)}
    assert scheduler.reads_coalesced == 3
    backend.finish()
    assert [bytes(page) for page in await task] == [pattern(page) for _, page in wanted]


async def test_neighbouring_numbers_in_two_files_are_two_reads(scheduler, backend, file):
    other = memory_file(name="b")
    for wanted in ([(file, 3), (other, 4)], [(file, 4), (other, 3)]):  # whichever of the files is sorted first
        task = start(scheduler.read_pages(wanted))
        await turns()
        assert len(backend.pending) == 2
        backend.finish()
        await task


async def test_reads_in_flight_are_bounded_and_the_rest_waits_in_order(backend, file):
    scheduler = Scheduler(backend, queue_depth=3)
    tasks = []
    for page in range(0, 40, 4):
        tasks.append(start(scheduler.read_pages([(file, page)])))
        await turns(2)
    assert [offset // PAGE for _, offset, _ in backend.submitted] == [0, 4, 8]
    assert scheduler.in_flight == 3
    backend.finish(1)
    assert [offset // PAGE for _, offset, _ in backend.submitted] == [0, 4, 8, 12]
    while backend.pending:
        assert len(backend.pending) <= 3
        backend.finish(2)
    await asyncio.gather(*tasks)
    assert [offset // PAGE for _, offset, _ in backend.submitted] == list(range(0, 40, 4))
    assert (scheduler.in_flight, scheduler.in_flight_max) == (0, 3)


async def test_buffers_are_allocated_only_for_reads_in_flight(backend, file):
    allocated = []
    allocate = backend.allocate
    backend.allocate = lambda length: allocated.append(length) or allocate(length)
    scheduler = Scheduler(backend, queue_depth=2)
    task = start(scheduler.read_pages([(file, page) for page in range(0, 20, 2)]))
    await turns()
    assert len(allocated) == 2
    while backend.pending:
        backend.finish()
    await task


async def test_matching_goes_before_background(backend, file):
    scheduler = Scheduler(backend, queue_depth=1)
    wishes = [(0, BACKGROUND), (2, BACKGROUND), (4, MATCHING), (6, BACKGROUND), (8, MATCHING)]
    tasks = []
    for page, priority in wishes:
        tasks.append(start(scheduler.read_pages([(file, page)], priority)))
        await turns(2)
    while backend.pending:
        backend.finish(1)
    await asyncio.gather(*tasks)
    assert [offset // PAGE for _, offset, _ in backend.submitted] == [0, 4, 8, 2, 6]


async def test_background_takes_a_small_share_of_the_places(backend, file):
    scheduler = Scheduler(backend, queue_depth=16)
    background = start(scheduler.read(file, 0, 1 << 24))
    await turns()
    assert len(backend.pending) == 2
    matching = start(scheduler.read_pages([(file, page) for page in range(0, 60, 2)]))
    await turns()
    assert len(backend.pending) == 16
    while backend.pending:
        backend.finish(1)
    await asyncio.gather(background, matching)


async def test_background_does_not_starve(backend, file):
    scheduler = Scheduler(backend, queue_depth=1, coalesce_pages=1)
    tasks = [start(scheduler.read_pages([(file, page)])) for page in range(60)]
    tasks += [start(scheduler.read_pages([(file, page)], BACKGROUND)) for page in (61, 63)]
    await turns()
    while backend.pending:
        backend.finish(1)
    await asyncio.gather(*tasks)
    order = [offset // PAGE for _, offset, _ in backend.submitted]
    assert (order.index(61), order.index(63)) == (16, 33)


async def test_a_match_takes_a_waiting_background_read_with_it(backend, file):
    scheduler = Scheduler(backend, queue_depth=1)
    first = start(scheduler.read_pages([(file, 0)]))
    background = [start(scheduler.read_pages([(file, page), (file, page + 1)], BACKGROUND)) for page in (10, 20, 30)]
    await turns()
    match = start(scheduler.read_pages([(file, 31)]))
    await turns()
    while backend.pending:
        backend.finish(1)
    await asyncio.gather(first, match, *background)
    assert [offset // PAGE for _, offset, _ in backend.submitted] == [0, 30, 10, 20]


async def test_an_error_fails_only_those_who_wait_for_the_page(scheduler, backend, file):
    good, bad = (
        start(scheduler.read_pages([(file, 0)])),
        [
            start(scheduler.read_pages([(file, 4)])),
            start(scheduler.read_pages([(file, 8), (file, 4)])),
        ],
    )
    await turns()
    assert [offset // PAGE for _, offset, _ in backend.submitted] == [0, 4, 8]
    backend.finish(1)
    backend.finish(1, broken())
    backend.finish()
    assert bytes((await good)[0]) == pattern(0)
    for task in bad:
        with pytest.raises(StorageError):
            await task
    assert scheduler.read_errors == 1
    again = start(scheduler.read_pages([(file, 4)]))
    await turns()
    backend.finish()
    assert bytes((await again)[0]) == pattern(4), "an error is not remembered"


async def test_a_bad_page_does_not_cost_its_neighbours(scheduler, backend, file):
    tasks = [start(scheduler.read_pages([(file, page)])) for page in range(3)]
    await turns()
    backend.finish(1, broken())
    assert backend.batches == [[("a", 0, 3 * PAGE)], [("a", page * PAGE, PAGE) for page in range(3)]]
    backend.finish(1)
    backend.finish(1, broken())
    backend.finish(1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], StorageError)
    assert [bytes(results[page][0]) for page in (0, 2)] == [pattern(0), pattern(2)]
    assert (scheduler.read_errors, scheduler.pages_read) == (2, 2)


async def test_errors_can_come_with_the_pages(scheduler, backend, file):
    task = start(scheduler.try_read_pages([(file, 0), (file, 4)]))
    await turns()
    error = broken()
    backend.finish(1, error)
    backend.finish()
    first, second = await task
    assert first is error
    assert bytes(second) == pattern(4)


async def test_cancelling_one_waiter_leaves_the_read_to_the_others(scheduler, backend, file):
    cancelled = start(scheduler.read_pages([(file, 1), (file, 2)]))
    other = start(scheduler.read_pages([(file, 2)]))
    await turns()
    cancelled.cancel()
    await turns()
    assert cancelled.cancelled()
    late = start(scheduler.read_pages([(file, 1)]))
    await turns()
    assert len(backend.submitted) == 1
    backend.finish()
    assert bytes((await other)[0]) == pattern(2)
    assert bytes((await late)[0]) == pattern(1)


def trace_buffers(backend):
    """Weak references to all buffers that the backend allocates from now on."""
    buffers = []

    class Traced(bytearray):
        pass

    def allocate(length):
        buffer = Traced(length)
        buffers.append(weakref.ref(buffer))
        return memoryview(buffer)

    backend.allocate = allocate
    return buffers


async def test_a_page_is_freed_with_its_last_view(scheduler, backend, file):
    buffers = trace_buffers(backend)
    task = start(scheduler.read_pages([(file, 1), (file, 2)]))
    await turns()
    gc.disable()
    try:
        backend.finish()
        pages = await task
        del task
        await turns()
        assert [buffer() is not None for buffer in buffers] == [True, True]
        pages.pop()
        assert [buffer() is not None for buffer in buffers] == [True, False]
        pages.pop()
        assert [buffer() is not None for buffer in buffers] == [False, False]
    finally:
        gc.enable()


async def test_a_cancelled_reads_buffer_lives_until_the_read_has_ended(scheduler, backend, file):
    buffers = trace_buffers(backend)
    tasks = [start(scheduler.read_pages([(file, 1)])), start(scheduler.read(file, 0, 100, MATCHING))]
    await turns()
    while tasks:
        tasks.pop().cancel()
    await turns()
    gc.collect()
    assert [buffer() is not None for buffer in buffers] == [True, True]
    backend.finish()
    await turns()
    gc.collect()
    assert [buffer() is not None for buffer in buffers] == [False, False]


async def test_cancelling_before_the_turn_ends_still_reads_for_the_others(scheduler, backend, file):
    cancelled = start(scheduler.read_pages([(file, 1)]))
    other = start(scheduler.read_pages([(file, 1)]))
    await asyncio.sleep(0)
    cancelled.cancel()
    await turns()
    backend.finish()
    assert bytes((await other)[0]) == pattern(1)


async def test_pages_at_the_end_of_the_file_are_short(scheduler, backend):
    file = memory_file(pages=2)
    file.write(2 * PAGE, b"tail")
    task = start(scheduler.read_pages([(file, page) for page in (1, 2, 3, 9)]))
    await turns()
    backend.finish()
    assert [bytes(page) for page in await task] == [pattern(1), b"tail", b"", b""]


async def test_a_large_read_is_cut_in_pieces_of_one_mebibyte(backend):
    scheduler = Scheduler(backend, queue_depth=64)
    file = memory_file(pages=1024)
    content = b"".join(map(pattern, range(1024)))
    task = start(scheduler.read(file, 100, (3 << 20) + 7))
    await turns()
    assert backend.submitted == [("a", 100 + (n << 20), 1 << 20) for n in range(3)] + [("a", 100 + (3 << 20), 7)]
    backend.finish()
    result = await task
    assert result.readonly
    assert result == content[100 : 107 + (3 << 20)]


@pytest.mark.parametrize("offset", [0, 1, 4095, 1 << 20, (1 << 22) - 1, 1 << 22, 1 << 23])
async def test_a_large_read_ends_with_the_file(scheduler, backend, offset):
    file = memory_file(pages=1024)
    task = start(scheduler.read(file, offset, 1 << 23))
    await turns()
    while backend.pending:
        backend.finish()
    assert len(await task) == max(0, (1 << 22) - offset)


async def test_a_large_read_has_no_gap_where_the_file_grows_meanwhile(scheduler, backend):
    file = memory_file(pages=300)
    task = start(scheduler.read(file, 0, 4 << 20, MATCHING))
    await turns()
    backend.finish(2)
    file.write(0, bytes(4 << 20))
    backend.finish()
    assert len(await task) == 300 * PAGE


async def test_a_large_read_with_a_bad_piece_fails(scheduler, backend, file):
    task = start(scheduler.read(file, 0, 3 << 20, MATCHING))
    await turns()
    backend.finish(1)
    backend.finish(1, broken())
    backend.finish()
    with pytest.raises(StorageError):
        await task


async def test_a_call_returns_or_raises(scheduler, backend):
    def stop():
        raise StopIteration(5)

    tasks = [start(scheduler.run(divmod, 7, 2)), start(scheduler.run(divmod, 7, 0)), start(scheduler.run(stop))]
    await turns()
    backend.finish_calls()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] == (3, 1)
    assert [type(error) for error in results[1:]] == [ZeroDivisionError, RuntimeError]


async def test_cancelling_a_call_does_not_stop_it(scheduler, backend):
    seen = []
    task = start(scheduler.run(seen.append, 1))
    await turns()
    task.cancel()
    await turns()
    backend.finish_calls()
    assert seen == [1]


async def test_close_waits_for_all_that_was_asked_for(backend, file):
    scheduler = Scheduler(backend, queue_depth=2)
    tasks = [
        start(scheduler.read_pages([(file, page) for page in range(0, 8, 2)])),
        start(scheduler.read(file, 0, 10)),
        start(scheduler.run(divmod, 7, 2)),
    ]
    cancelled = start(scheduler.read_pages([(file, 40)]))
    await turns(1)
    cancelled.cancel()
    closing = [start(scheduler.close()), start(scheduler.close())]
    await turns()
    with pytest.raises(ClosedError):
        await scheduler.read_pages([(file, 0)])
    with pytest.raises(ClosedError):
        await scheduler.read(file, 0, 10)
    with pytest.raises(ClosedError):
        await scheduler.run(divmod, 7, 2)
    while backend.pending:
        assert backend.stopped == 0
        backend.finish(1)
        await turns()
    assert not any(task.done() for task in closing)
    backend.finish_calls()
    await asyncio.gather(*tasks, *closing)
    assert backend.stopped == 2
    await scheduler.close()


async def test_a_cancelled_close_can_be_repeated(scheduler, backend, file):
    task = start(scheduler.read_pages([(file, 0)]))
    await turns()
    closing = start(scheduler.close())
    await turns()
    closing.cancel()
    await turns()
    backend.finish()
    await scheduler.close()
    assert len(await task) == 1
    assert backend.stopped == 1


@pytest.mark.parametrize(
    ("option", "value"), [("queue_depth", 0), ("queue_depth", 4097), ("coalesce_pages", 0), ("coalesce_pages", 1025)]
)
async def test_bounds_of_the_options(backend, option, value):
    with pytest.raises(OptionError, match=f"{option} is {value}; it must be from 1 to"):
        Scheduler(backend, **{option: value})
