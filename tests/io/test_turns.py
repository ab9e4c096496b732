"""Background work's turns of the event loop."""

from __future__ import annotations

import asyncio
import time

from sarpstore._io import Turns, turns


async def pauses(monkeypatch, busy_s: float) -> list[float]:
    """What `give` sleeps for after a piece of work, while another task takes so long each turn."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if busy_s:
            time.sleep(busy_s)  # noqa: ASYNC251 - another task's callback that holds the loop
        await real(0)

    monkeypatch.setattr(turns.asyncio, "sleep", sleep)
    mine = Turns()
    time.sleep(0.02)  # noqa: ASYNC251 - longer than any piece of work that counts
    await mine.give()
    return slept


async def test_on_an_idle_loop_work_goes_on(monkeypatch):
    monkeypatch.setattr(turns, "_BUSY_S", 10.0)
    assert await pauses(monkeypatch, 0.0) == [0]


async def test_beside_busy_others_it_pauses_for_a_bounded_time(monkeypatch):
    slept = await pauses(monkeypatch, 0.001)
    assert slept == [0, turns._PIECE_S_MAX * turns._PAUSE_SHARE]
