"""How work in the background shares the event loop with those who are waited for."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

__all__ = ["Turns"]

# Others that took so long in one turn have work to do: an idle loop takes some 20 microseconds.
_BUSY_S: Final = 100e-6
# For each second of work the pause, while others are busy, and the longest piece of work that counts: what took longer
# was waiting itself.
_PAUSE_SHARE: Final = 3.0
_PIECE_S_MAX: Final = 500e-6


class Turns:
    """Turns of one piece of background work after another, each well below a millisecond.

    On an idle loop it goes on at once. Where others are busy it pauses for a few times as long as it worked: otherwise
    each turn of theirs would wait for one of ours, and a server at half its load would be saturated.
    """

    def __init__(self) -> None:
        self._resumed = perf_counter()

    async def give(self) -> None:
        """Let the others run."""
        worked = perf_counter()
        await asyncio.sleep(0)
        if perf_counter() - worked > _BUSY_S:
            await asyncio.sleep(min(worked - self._resumed, _PIECE_S_MAX) * _PAUSE_SHARE)
        self._resumed = perf_counter()
