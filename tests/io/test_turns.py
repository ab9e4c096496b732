"""Background work's turns of the event loop."""

from __future__ import annotations

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
        self.turns = 0
        self.pauses = 0

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


async def test_on_an_idle_loop_work_goes_on(others):
    loop = others(lambda _: 20e-6)
    await give_way(Turns())
    assert (loop.turns, loop.pauses) == (1, 0)


async def test_beside_busy_others_it_waits_for_a_gap(others):
    loop = others(lambda n: 5e-4 if n < 3 else 20e-6)
    await give_way(Turns())
    assert (loop.turns, loop.pauses) == (4, 3)


async def test_where_there_is_no_gap_it_waits_for_a_bounded_time(others):
    loop = others(lambda _: 1e-3)
    await give_way(Turns())
    assert turns._WAIT_S_MAX <= loop.now < turns._WAIT_S_MAX + 2 * (1e-3 + turns._PAUSE_S)


async def test_while_somebody_waits_for_reads_it_waits_for_a_bounded_time(others):
    loop, mine = others(lambda _: 20e-6), Turns()
    mine.waited_for = 1
    await give_way(mine)
    assert turns._WAIT_S_MAX <= loop.now < turns._WAIT_S_MAX + 2 * (20e-6 + turns._PAUSE_S)


async def test_when_the_reads_have_ended_it_goes_on(others):
    mine = Turns()

    def seconds(n: int) -> float:
        mine.waited_for = n < 2
        return 20e-6

    loop = others(seconds)
    await give_way(mine)
    assert loop.pauses == 2


def test_who_waits_is_counted_for_as_long_as_it_does():
    mine = Turns()
    with mine.waiting(), mine.waiting():
        assert mine.waited_for == 2
    assert mine.waited_for == 0
