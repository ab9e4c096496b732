"""Work that keeps a store in bounds over months: mark passes, compaction, eviction.

    how full things are, what is asked for ──► the next piece of work ──► one at a time ──► whoever waits is told

One task does it all, a piece after another, since a pass, a compaction and an eviction must not meet; insertions,
removals, matches and checkpoints go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sarpstore._errors import FailedError, SarpError
from sarpstore._markpass import MarkPass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sarpstore._engine.state import State

__all__ = ["Maintenance"]

_log = logging.getLogger("sarpstore")

_CHECK_S: Final = 0.1
_RETRY_S: Final = 5.0
# A mark pass begins when this share of the markers is taken: what is left serves while it runs.
_PASS_AT: Final = 0.5


class Maintenance:
    """The work, what is due of it, and who waits for it. `checkpoint()` publishes a checkpoint."""

    def __init__(self, state: State, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._state = state
        self._checkpoint = checkpoint
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: SarpError | None = None
        self._pass = MarkPass(
            state.folder,
            state.scheduler,
            state.shape,
            state.directory,
            state.removals,
            state.gatherer,
            state.writer,
            load_all=state.loader.load_all,
            direct=state.files.direct,
        )
        self.mark_passes = 0
        """Mark passes that have ended."""

    # --- for callers

    async def room(self, records: int, markers: int) -> None:
        """Return once so many markers can be made; FailedError where the work that makes room can't be done."""
        removals = self._state.removals
        while markers > removals.room and removals.markers:
            if self._failure is not None:
                raise self._failure
            self._wanted.set()
            await asyncio.shield(self._done)

    # --- the task

    async def run(self) -> None:
        """Do what is due, for as long as the store lives."""
        await self._state.loader.load_all()
        while True:
            try:
                did = await self._work_once()
                self._failure = None
            except FailedError as error:
                self._failure = error
                self._tell()
                return  # nothing is written any more; whoever calls is told
            except SarpError as error:
                _log.warning("maintenance: %s", error)
                self._failure = error
                did = False
                await asyncio.sleep(_RETRY_S)
            self._tell()
            if not did:
                await self._wait()

    async def _wait(self) -> None:
        self._wanted.clear()
        try:
            async with asyncio.timeout(_CHECK_S):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _work_once(self) -> bool:
        """Do one piece of work; False if nothing is due."""
        removals = self._state.removals
        if removals.markers > _PASS_AT * removals.markers_max or (self._wanted.is_set() and removals.markers):
            await self.mark_pass()
            return True
        return False

    async def mark_pass(self) -> None:
        """Make the markers needless, and retire them by a checkpoint."""
        async with self._one_at_a_time:
            result = await self._pass.run()
            self._state.retirement.passed(result.position)
            await self._checkpoint()
            self.mark_passes += 1

    def _tell(self) -> None:
        """Wake whoever waits for room."""
        done, self._done = self._done, asyncio.get_running_loop().create_future()
        done.set_result(None)
