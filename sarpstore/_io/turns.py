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


class Turns:
    """What is known of who is waited for on one event loop."""

    def __init__(self) -> None:
        self.waited_for = 0
        """Calls that somebody waits for and that wait for reads: each needs some more turns when these have ended."""

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While a call that somebody waits for waits for reads."""
        self.waited_for += 1
        try:
            yield
        finally:
            self.waited_for -= 1


async def give_way(turns: Turns) -> None:
    """Between two pieces of background work, each well below a millisecond: let the others run until they are idle.

    A piece begins where the loop has nothing else to do and nobody waits for reads, so that few of those who are waited
    for wait for a piece, however many kinds of work are due at a time. Where that never is each kind gets a piece in
    four milliseconds.
    """
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
