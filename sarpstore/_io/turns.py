"""How work in the background shares the event loop with those who are waited for."""

from __future__ import annotations

import asyncio
import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, Final

from sarpstore._clock import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turns", "give_way"]

# Beside others each kind of work has a piece in so long at most: two kinds at full speed cost them a third of the loop.
_PAUSE_S: Final = 4e-3
# Others that took so long in one turn have work to do: an idle loop takes some 20 microseconds.
_BUSY_S: Final = 100e-6
# Then a piece waits for a gap for so long at most: under a load that leaves no gap the work still ends some day.
_WAIT_S_MAX: Final = 4e-3
# If nobody has matched for so long, what the loop is busy with is insertions.
_LATELY_MS: Final = 20.0


class Turns:
    """What is known of who is waited for on one event loop."""

    def __init__(self) -> None:
        self.waited_for = 0
        """Calls that somebody waits for and that wait for reads: each needs some more turns when these have ended."""
        self.matched_ms = 0.0
        """When the last match began, on the monotonic clock."""
        self._pieces: set[asyncio.Future[None]] = set()
        """Of work in the background that waits until there are none."""

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While a call that somebody waits for waits for reads."""
        self.waited_for += 1
        try:
            yield
        finally:
            self.waited_for -= 1
            if not self.waited_for:
                for piece in self._pieces:
                    _end(piece)

    @property
    def anybody_asks(self) -> bool:
        """Whether a call waits for reads, or something was matched a moment ago."""
        return self.waited_for > 0 or monotonic_ms() - self.matched_ms < _LATELY_MS

    async def nobody_waits(self, seconds: float) -> None:
        """Return when no call waits for reads, or after so long."""
        loop = asyncio.get_running_loop()
        piece = loop.create_future()
        timer = loop.call_later(seconds, _end, piece)
        self._pieces.add(piece)
        try:
            await piece
        finally:
            self._pieces.remove(piece)
            timer.cancel()


def _end(piece: asyncio.Future[None]) -> None:
    if not piece.done():
        piece.set_result(None)


async def give_way(turns: Turns) -> None:
    """Between two pieces of background work, each well below a millisecond: let the others run until they are idle.

    On an idle loop the work goes on at once, and beside insertions alone it takes turns with them: what a checkpoint
    falls behind a fast load is log to replay. Beside matches it pauses, and a piece begins where the loop has nothing
    else to do and nobody waits for reads, so that few of those who are waited for wait for a piece, however many kinds
    of work are due at a time. Where that never is each kind gets a piece in eight milliseconds. Who waits is told, and
    does not look again and again: that took a tenth of a busy loop's time.
    """
    if (await _turn() <= _BUSY_S and not turns.waited_for) or not turns.anybody_asks:
        return
    await asyncio.sleep(_PAUSE_S)
    until = perf_counter() + _WAIT_S_MAX
    while await _turn() > _BUSY_S or turns.waited_for:
        left = until - perf_counter()
        if left <= 0:
            return
        if turns.waited_for:
            await turns.nobody_waits(left)


async def _turn() -> float:
    """Seconds that one turn of the others takes."""
    began = perf_counter()
    await asyncio.sleep(0)
    return perf_counter() - began
