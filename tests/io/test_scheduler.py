"""Gathering, sharing, coalescing, bounding and ordering of reads, on a backend that the tests complete by hand."""

from __future__ import annotations

import asyncio
import errno

import pytest
from io_helpers import PAGE, key, make_scheduler, memory_file, pattern, read_pages, start, turns

from sarpstore._errors import ClosedError, LimitError, OptionError, StorageError
from sarpstore._io import BACKGROUND, MATCHING, Scheduler, Ticket
from sarpstore._kernel import ffi


def offsets(backend):
    return [offset // PAGE for _, offset, _ in backend.submitted]


async def finish_one_by_one(backend):
    await turns()
    while backend.pending:
        backend.finish(1)
        await turns()


async def test_pages_come_in_the_order_asked_for(scheduler, backend):
    wanted = [9, 2, 30, 3, 2, 0]
    task = start(read_pages(scheduler, wanted))
    await turns()
    backend.finish()
    assert await task == [pattern(page) for page in wanted]


async def test_nothing_asked_for_is_nothing_read(scheduler, backend, file):
    assert await read_pages(scheduler, []) == []
    assert bytes(await scheduler.read(file, 0, 0)) == b""
    assert await scheduler.try_read_many([]) == []
    assert backend.batches == []


async def test_the_wishes_of_one_turn_are_one_batch(scheduler, backend):
    tasks = [start(read_pages(scheduler, [page, page + 1])) for page in range(0, 60, 10)]
    await turns()
    assert len(backend.batches) == 1
    assert sorted(backend.batches[0]) == [("a", page * PAGE, 2 * PAGE) for page in range(0, 60, 10)]
    backend.finish()
    await asyncio.gather(*tasks)
    assert (scheduler.reads, scheduler.pages_read, scheduler.reads_coalesced) == (6, 12, 6)


async def test_a_page_is_read_once_for_all_who_want_it(scheduler, backend):
    early = [start(read_pages(scheduler, [5])) for _ in range(3)]
    await turns()
    late = start(read_pages(scheduler, [5, 7, 5]))
    await turns()
    assert len(backend.submitted) == 2
    backend.finish()
    assert await asyncio.gather(*early, late) == [[pattern(5)]] * 3 + [[pattern(5), pattern(7), pattern(5)]]
    assert (scheduler.reads, scheduler.pages_read) == (2, 2)
    again = start(read_pages(scheduler, [5]))
    await turns()
    assert len(backend.submitted) == 3, "once nobody holds it any more it is read anew: the scheduler is no cache"
    backend.finish()
    await again


async def test_a_page_that_is_held_is_there_at_once(scheduler, backend):
    reading = start(scheduler.bring([5, 6]))
    await turns()
    backend.finish()
    held = await reading
    assert await read_pages(scheduler, [6]) == [pattern(6)]
    assert len(backend.submitted) == 1
    held.release()
    held.release()
    assert scheduler.table.c.pages_live == 0


async def test_a_ticket_takes_more_and_more_pages(scheduler, backend):
    ticket = Ticket(scheduler)
    for pages in ([1, 2], [2, 3], [40]):
        assert ticket.want(ffi.new("uint64_t[]", pages), len(pages)) == 0
    waiting = start(ticket.wait())
    await turns()
    assert sorted(offsets(backend)) == [1, 40]
    backend.finish(1)
    await turns()
    assert not waiting.done()
    backend.finish()
    await waiting
    await ticket.wait()
    assert all(ticket.page(page) == pattern(page) for page in (1, 2, 3, 40))
    ticket.release()


async def test_pages_of_slots_without_a_file_are_given_back(scheduler, backend):
    ticket = Ticket(scheduler)
    keys = ffi.new("uint64_t[]", [key(1, 7), 3, key(2, 9), key(1, 7)])
    assert ticket.want(keys, 4) == 3
    assert ffi.unpack(keys, 3) == [key(1, 7), key(2, 9), key(1, 7)]
    with pytest.raises(ClosedError):
        await scheduler.bring([key(0, 9)])
    ticket.fail(key(1, 7), errno.ENOENT)
    waiting = start(ticket.wait())
    await turns()
    backend.finish()
    await waiting
    assert ticket.errors() == [(key(1, 7), errno.ENOENT)]
    assert ticket.page(key(1, 7)) is None
    ticket.release()


async def test_neighbours_are_one_read_up_to_the_bound(backend, file):
    scheduler = make_scheduler(backend, file, coalesce_pages=4)
    scheduler.attach(1, memory_file(name="b"))
    wanted = [6, 1, 0, 2, 3, 4, 10, key(5, 1)]
    task = start(read_pages(scheduler, wanted))
    await turns()
    expected = {("a", 0, 4 * PAGE), ("a", 4 * PAGE, PAGE), ("a", 6 * PAGE, PAGE), ("a", 10 * PAGE, PAGE)}
    assert set(backend.submitted) == expected | {("b", 5 * PAGE, PAGE)}
    assert scheduler.reads_coalesced == 3
    backend.finish()
    assert await task == [pattern(page & 0xFFFF) for page in wanted]


async def test_the_last_page_of_a_slot_and_the_first_of_the_next_are_two_reads(scheduler, backend):
    scheduler.attach(1, memory_file(name="b"))
    task = start(scheduler.bring([key(0, 1) - 1, key(0, 1)]))
    await turns()
    assert len(backend.submitted) == 2
    backend.finish()
    (await task).release()


async def test_reads_in_flight_are_bounded_and_the_rest_waits_in_order(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=3)
    tasks = []
    for page in range(0, 40, 4):
        tasks.append(start(read_pages(scheduler, [page])))
        await turns(2)
    assert offsets(backend) == [0, 4, 8]
    assert scheduler.in_flight == 3
    backend.finish(1)
    assert offsets(backend) == [0, 4, 8, 12]
    while backend.pending:
        assert len(backend.pending) <= 3
        backend.finish(2)
    await asyncio.gather(*tasks)
    assert offsets(backend) == list(range(0, 40, 4))
    assert (scheduler.in_flight, scheduler.in_flight_max) == (0, 3)


async def test_reads_that_wait_take_no_memory(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=2)
    task = start(read_pages(scheduler, range(0, 60, 2)))
    await turns()
    assert scheduler.table.c.frames_used == 2
    await finish_one_by_one(backend)
    await task


async def test_matching_goes_before_background(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=1)
    wishes = [(0, MATCHING), (2, BACKGROUND), (4, MATCHING), (6, BACKGROUND), (8, MATCHING)]
    tasks = []
    for page, priority in wishes:
        tasks.append(start(read_pages(scheduler, [page], priority)))
        await turns(2)
    await finish_one_by_one(backend)
    await asyncio.gather(*tasks)
    assert offsets(backend) == [0, 4, 8, 2, 6]


async def test_background_takes_a_small_share_of_the_places(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=16)
    background = start(scheduler.read(file, 0, 1 << 24))
    await turns()
    assert len(backend.pending) == 2
    matching = start(read_pages(scheduler, range(0, 60, 2)))
    await turns()
    assert len(backend.pending) == 16
    await finish_one_by_one(backend)
    await asyncio.gather(background, matching)


async def test_background_does_not_starve(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=1, coalesce_pages=1)
    tasks = [start(read_pages(scheduler, [page])) for page in range(60)]
    tasks += [start(read_pages(scheduler, [page], BACKGROUND)) for page in (61, 63)]
    await finish_one_by_one(backend)
    await asyncio.gather(*tasks)
    order = offsets(backend)
    assert (order.index(61), order.index(63)) == (16, 33)


async def test_a_match_takes_a_waiting_background_read_with_it(backend, file):
    scheduler = make_scheduler(backend, file, queue_depth=1)
    first = start(read_pages(scheduler, [0]))
    background = [start(read_pages(scheduler, [page, page + 1], BACKGROUND)) for page in (10, 20, 30)]
    await turns()
    match = start(read_pages(scheduler, [31]))
    await finish_one_by_one(backend)
    await asyncio.gather(first, match, *background)
    assert offsets(backend) == [0, 30, 10, 20]


async def test_an_error_fails_only_those_who_wait_for_the_page(scheduler, backend):
    good = start(read_pages(scheduler, [0]))
    bad = [start(read_pages(scheduler, [4])), start(read_pages(scheduler, [8, 4]))]
    await turns()
    assert offsets(backend) == [0, 4, 8]
    backend.finish(1)
    backend.finish(1, errno.EIO)
    backend.finish()
    assert await good == [pattern(0)]
    for task in bad:
        with pytest.raises(StorageError):
            await task
    assert scheduler.read_errors == 1
    again = start(read_pages(scheduler, [4]))
    await turns()
    backend.finish()
    assert await again == [pattern(4)], "an error is not remembered longer than it is held"


async def test_what_may_pass_is_tried_again_while_others_still_hold_the_error(scheduler, backend):
    failing = start(scheduler.bring([4]))
    await turns()
    backend.finish(error=errno.ENOMEM)
    failed = await failing
    assert failed.errors() == [(4, errno.ENOMEM)]
    again = start(read_pages(scheduler, [4]))
    await turns()
    backend.finish()
    assert await again == [pattern(4)]
    failed.release()
    assert scheduler.table.c.pages_live == 0


async def test_a_bad_page_does_not_cost_its_neighbours(scheduler, backend):
    tasks = [start(read_pages(scheduler, [page])) for page in range(3)]
    await turns()
    backend.finish(1, errno.EIO)
    assert backend.batches == [[("a", 0, 3 * PAGE)], [("a", page * PAGE, PAGE) for page in range(3)]]
    backend.finish(1)
    backend.finish(1, errno.EIO)
    backend.finish(1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], StorageError)
    assert [results[page][0] for page in (0, 2)] == [pattern(0), pattern(2)]
    assert (scheduler.read_errors, scheduler.pages_read) == (2, 2)


@pytest.mark.parametrize("bytes_max", [1, 100, 4095, 4096, 4097, 10_000])
async def test_reads_that_come_in_parts_are_gone_on_with(scheduler, backend, file, bytes_max):
    task = start(read_pages(scheduler, range(5)))
    larger = start(scheduler.read(file, 7, 9000, MATCHING))
    await turns()
    count = 0
    while backend.pending:
        backend.finish(bytes_max=bytes_max)
        count += 1
    assert await task == [pattern(page) for page in range(5)]
    assert await larger == b"".join(map(pattern, range(5)))[7:9007]
    assert count == -(-5 * PAGE // bytes_max)
    assert scheduler.reads == 2


@pytest.mark.parametrize("error", [errno.EINTR, errno.EAGAIN])
async def test_interrupted_reads_are_repeated(scheduler, backend, error):
    task = start(read_pages(scheduler, [3]))
    await turns()
    for _ in range(20):
        backend.finish(error=error)
    backend.finish()
    assert await task == [pattern(3)]
    task = start(read_pages(scheduler, [3]))
    await turns()
    tries = 0
    while backend.pending:
        backend.finish(error=error)
        tries += 1
    with pytest.raises(StorageError):
        await task
    assert tries == 64, "but not for ever"


async def test_cancelling_one_waiter_leaves_the_read_to_the_others(scheduler, backend):
    cancelled = start(read_pages(scheduler, [1, 2]))
    other = start(read_pages(scheduler, [2]))
    await turns()
    cancelled.cancel()
    await turns()
    assert cancelled.cancelled()
    late = start(read_pages(scheduler, [1]))
    await turns()
    assert len(backend.submitted) == 1
    backend.finish()
    assert await other == [pattern(2)]
    assert await late == [pattern(1)]
    assert scheduler.table.c.pages_live == 0


async def test_a_cancelled_reads_memory_stays_until_the_read_has_ended(scheduler, backend, file):
    tasks = [start(read_pages(scheduler, [1])), start(scheduler.read(file, 0, 100, MATCHING))]
    await turns()
    while tasks:
        tasks.pop().cancel()
    await turns()
    assert len(scheduler._kept) == 1
    assert scheduler.table.c.pages_live == 2
    backend.finish()
    await turns()
    assert scheduler._kept == {}
    assert scheduler.table.c.pages_live == 0


async def test_cancelling_before_the_turn_ends_still_reads_for_the_others(scheduler, backend):
    cancelled = start(read_pages(scheduler, [1]))
    other = start(read_pages(scheduler, [1]))
    await asyncio.sleep(0)
    cancelled.cancel()
    await turns()
    backend.finish()
    assert await other == [pattern(1)]


async def test_cancelling_just_when_the_pages_are_there(scheduler, backend):
    task = start(read_pages(scheduler, [1]))
    await turns()
    backend.finish()
    task.cancel()
    await turns()
    assert task.cancelled()
    assert scheduler.table.c.pages_live == 0


async def test_more_pages_than_may_be_held_are_refused(backend, file):
    scheduler = make_scheduler(backend, file, pages_held_max=8)
    with pytest.raises(LimitError, match="more than 8 pages"):
        await scheduler.bring(range(9))
    await turns()
    with pytest.raises(LimitError):  # what was wanted before the refusal is still on its way
        await scheduler.bring([20])
    backend.finish()
    await turns()
    task = start(read_pages(scheduler, range(8)))
    await turns()
    backend.finish()
    assert await task == [pattern(page) for page in range(8)]


async def test_a_file_is_given_up_when_its_last_read_has_ended(scheduler, backend, file):
    tasks = [start(read_pages(scheduler, [page])) for page in (1, 40)]
    await turns()
    detaching = start(scheduler.detach(0))
    await turns()
    assert not scheduler.attached(0)
    backend.finish(1)
    await turns()
    assert not detaching.done()
    assert len(scheduler.table.files) == 1
    backend.finish(1)
    await detaching
    assert (scheduler.table.files, backend.files) == ({}, [])
    await asyncio.gather(*tasks)
    await scheduler.detach(0)
    scheduler.attach(0, file)
    assert len(scheduler.table.files) == 1


async def test_the_slot_used_longest_ago(scheduler, backend):
    for slot in range(1, 4):
        scheduler.attach(slot, memory_file(name=f"f{slot}"))
    assert scheduler.least_used() == 0
    tasks = [start(scheduler.bring([key(3, slot)])) for slot in (0, 2, 1)]
    await turns()
    assert scheduler.least_used() == 3
    backend.finish()
    for task in tasks:
        (await task).release()
    for expected in (3, 0, 2, 1, None):
        slot = scheduler.least_used()
        assert slot == expected
        if slot is not None:
            await scheduler.detach(slot)


@pytest.mark.parametrize(
    ("option", "value"), [("queue_depth", 0), ("queue_depth", 4097), ("coalesce_pages", 0), ("coalesce_pages", 1025)]
)
async def test_bounds_of_the_options(backend, option, value):
    with pytest.raises(OptionError, match=f"{option} is {value}; it must be from 1 to"):
        Scheduler(backend, **{option: value})
