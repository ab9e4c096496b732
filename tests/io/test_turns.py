"""Background work's turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sarpstore._io import Turns, give_way, turns

if TYPE_CHECKING:
    from collections.abc import Callable


class Others:
    """Stands for the event loop: each turn of the others takes what `seconds(n)` says of the n-th."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self.now = 0.0
        self.turns = self.pauses = 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.pauses += 1
        else:
            self.now += self._seconds(self.turns)
            self.turns += 1


@pytest.fixture
def others(monkeypatch):
    def make(seconds: Callable[[int], float]) -> Others:
        made = Others(seconds)
        monkeypatch.setattr(turns, "perf_counter", lambda: made.now)
        monkeypatch.setattr(turns.asyncio, "sleep", made.sleep)
        return made

    return make


def beside_matches() -> Turns:
    made = Turns()
    made.matched_ms = float("inf")
    return made


async def test_beside_insertions_alone_it_takes_turns(others):
    loop = others(lambda _: 1e-3)
    await give_way(Turns())
    assert (loop.turns, loop.pauses) == (1, 0)


async def test_on_an_idle_loop_work_goes_on(others):
    loop = others(lambda _: 20e-6)
    await give_way(Turns())
    assert (loop.turns, loop.pauses) == (1, 0)


async def test_beside_busy_others_it_waits_for_a_gap(others):
    loop = others(lambda n: 5e-4 if n < 3 else 20e-6)
    await give_way(beside_matches())
    assert (loop.turns, loop.pauses) == (4, 1)


async def test_where_there_is_no_gap_it_waits_for_a_bounded_time(others):
    loop = others(lambda _: 1e-3)
    await give_way(beside_matches())
    assert turns._WAIT_S_MAX <= loop.now - turns._PAUSE_S < turns._WAIT_S_MAX + 3e-3


async def test_while_somebody_waits_for_reads_it_waits_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(turns, "_BUSY_S", 10.0)  # or a slow machine is taken for busy others
    mine, loop = Turns(), asyncio.get_running_loop()
    with mine.waiting():
        began = loop.time()
        await give_way(mine)
        assert loop.time() - began >= turns._WAIT_S_MAX * 0.9
    assert not mine._pieces


async def test_when_the_reads_of_all_have_ended_work_goes_on(monkeypatch):
    monkeypatch.setattr(turns, "_BUSY_S", 10.0)
    monkeypatch.setattr(turns, "_WAIT_S_MAX", 1e6)
    mine, ended = Turns(), [asyncio.Event(), asyncio.Event()]

    async def read(event: asyncio.Event) -> None:
        with mine.waiting():
            await event.wait()

    reading = [asyncio.create_task(read(event)) for event in ended]
    await asyncio.sleep(0)
    pieces = [asyncio.create_task(give_way(mine)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    ended[0].set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(piece.done() for piece in pieces)
    ended[1].set()
    await asyncio.gather(*pieces, *reading)
    assert not mine._pieces


async def test_who_is_cancelled_waits_no_more(monkeypatch):
    monkeypatch.setattr(turns, "_WAIT_S_MAX", 1e6)
    mine = Turns()
    with mine.waiting():
        piece = asyncio.create_task(give_way(mine))
        for _ in range(5):
            await asyncio.sleep(0)
        piece.cancel()
        with pytest.raises(asyncio.CancelledError):
            await piece
    assert not mine._pieces


def test_who_waits_is_counted_for_as_long_as_it_does():
    mine = Turns()
    with mine.waiting(), mine.waiting():
        assert mine.waited_for == 2
    assert mine.waited_for == 0
