"""Calls of blocking functions, and what close waits for and refuses."""

from __future__ import annotations

import asyncio

import pytest
from io_helpers import make_scheduler, read_pages, start, turns

from sarpstore._errors import ClosedError


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
    scheduler = make_scheduler(backend, file, queue_depth=2)
    tasks = [
        start(read_pages(scheduler, range(0, 8, 2))),
        start(scheduler.read(file, 0, 10)),
        start(scheduler.run(divmod, 7, 2)),
    ]
    cancelled = start(read_pages(scheduler, [40]))
    await turns(1)
    cancelled.cancel()
    closing = [start(scheduler.close()), start(scheduler.close())]
    await turns()
    for refused in (scheduler.bring([0]), scheduler.read(file, 0, 10), scheduler.run(divmod, 7, 2)):
        with pytest.raises(ClosedError):
            await refused
    with pytest.raises(ClosedError):
        scheduler.attach(1, file)
    while backend.pending:
        assert backend.stopped == 0
        backend.finish(1)
        await turns()
    assert not any(task.done() for task in closing)
    backend.finish_calls()
    await asyncio.gather(*tasks, *closing)
    assert backend.stopped == 2
    assert scheduler.table.files == {}
    await scheduler.close()


async def test_a_cancelled_close_can_be_repeated(scheduler, backend):
    task = start(read_pages(scheduler, [0]))
    await turns()
    closing = start(scheduler.close())
    await turns()
    closing.cancel()
    await turns()
    backend.finish()
    await scheduler.close()
    assert len(await task) == 1
    assert backend.stopped == 1
