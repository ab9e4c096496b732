"""How work in the background shares the event loop with those who are waited for."""

from __future__ import annotations

import asyncio
import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turns", "give_way"]

# Others that took so long in one turn have work to do: an idle loop takes some 20 microseconds.
_BUSY_S: Final = 100e-6
# Between two looks whether they still have; asyncio's timers are good to a millisecond.
_PAUSE_S: Final = 500e-6
# A piece of work waits so long at most: under a load that leaves no gap the work still ends some day.
_WAIT_S_MAX: Final = 4e-3


# Between two pieces while the store is in use: what is left to do is spread, and most who come meet none of it.
_PACE_S: Final = 2e-3
# So long after the last call that waited for reads a store still is in use.
_IN_USE_S: Final = 0.05


class Turns:
    """What is known of who is waited for on one event loop."""

    def __init__(self) -> None:
        self.waited_for = 0
        """Calls that somebody waits for and that wait for reads: each needs some more turns when these have ended."""
        self.hurried = False
        """Whether somebody waits for the room that the background work makes: then nothing is spread."""
        self._waited_at = float("-inf")

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While a call that somebody waits for waits for reads."""
        self.waited_for += 1
        try:
            yield
        finally:
            self.waited_for -= 1
            self._waited_at = perf_counter()

    @property
    def in_use(self) -> bool:
        """Whether calls have waited for reads lately, and nobody waits for the background work."""
        return not self.hurried and perf_counter() - self._waited_at < _IN_USE_S


async def give_way(turns: Turns) -> None:
    """Between two pieces of background work, each well below a millisecond: let the others run until they are idle.

    A piece begins where the loop has nothing else to do and nobody waits for reads, so that few of those who are waited
    for wait for a piece, however many kinds of work are due at a time. Where that never is each kind gets a piece in
    some milliseconds. While the store is in use each kind gets one in two milliseconds at most, unless somebody waits
    for what it frees.
    """
    if turns.in_use:
        await asyncio.sleep(_PACE_S)
    began = perf_counter()
    while await _turn() > _BUSY_S or turns.waited_for:
        if perf_counter() - began > _WAIT_S_MAX:
            return
        await asyncio.sleep(_PAUSE_S)


async def _turn() -> float:
    """Seconds that one turn of the others takes."""
    began = perf_counter()
    await asyncio.sleep(0)
    return perf_counter() - began
