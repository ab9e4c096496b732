"""How work in the background shares the event loop with those who are waited for."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

__all__ = ["give_way"]

# Others that took so long in one turn have work to do: an idle loop takes some 20 microseconds.
_BUSY_S: Final = 100e-6
# Between two looks whether they still have; asyncio's timers are good to a millisecond.
_PAUSE_S: Final = 500e-6
# A piece of work waits so long at most: under a load that leaves no gap the work still ends some day.
_WAIT_S_MAX: Final = 4e-3


async def give_way() -> None:
    """Between two pieces of background work, each well below a millisecond: let the others run until they are idle.

    A piece begins where the loop has nothing else to do, so that what arrives next waits for one piece at most, however
    many kinds of work are due at a time. A loop that is never idle gives each of them a piece in four milliseconds.
    """
    began = perf_counter()
    while await _turn() > _BUSY_S and perf_counter() - began < _WAIT_S_MAX:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_PAUSE_S)


async def _turn() -> float:
    """Seconds that one turn of the others takes."""
    began = perf_counter()
    await asyncio.sleep(0)
    return perf_counter() - began
