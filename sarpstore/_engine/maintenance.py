"""Work that keeps a store in bounds over months: mark passes, compaction, eviction.

    how full things are, what is asked for ──► the next piece of work ──► one at a time ──► whoever waits is told

One task does it all, a piece after another, since a pass, a compaction and an eviction must not meet; insertions,
removals, matches and checkpoints go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt
from sarpstore._compaction import AT_REST, FILE_BYTES, SETTLING, UNDER_PRESSURE, Compactor, few_removals, settled
from sarpstore._errors import ClosedError, FailedError, LimitError, SarpError
from sarpstore._eviction import Evictor
from sarpstore._markpass import MarkPass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sarpstore._directory import Evicted
    from sarpstore._engine.space import Pressure, Space
    from sarpstore._engine.state import State
    from sarpstore._options import Progress

__all__ = ["Maintenance"]

_log = logging.getLogger("sarpstore")

_CHECK_S: Final = 0.1
_RETRY_S: Final = 5.0
# Markers are in each checkpoint's head: a pass begins when new ones have this share of what is live, but for so many.
_MARKERS_SHARE: Final = 0.02
_MARKERS_MIN: Final = 4096
# A few removals wait for a pass until so long after the last, or so many times as long as that took.
_PASS_PAUSE_S: Final = 60.0
_PASS_PAUSES: Final = 20
# Compactions in a row that gain next to nothing, after which a `compact()` ends: what looks dead in them is what pages
# lose to records that do not fit, up to a fourth where all records are of one unfortunate length.
_FRUITLESS_MAX: Final = 3
_GAIN_MIN: Final = 0.05
# Of a bound on disk use, what needless markers may take in the heads for which room is kept, until they must retire.
_WEIGHT: Final = 1 / 32
# How often files are looked at whether one is worth compacting, and how fast one is read where nobody waits for it.
_LOOK_S: Final = 1.0
_RESTING_BYTES_PER_S: Final = 32 << 20


class Maintenance:
    """The work, what is due of it, and who waits for it.

    `checkpoint()` publishes a checkpoint, `drop_older()` removes the one before the newest, `start()` is where that
    one starts, and `deleting` is the lock under which they are written.
    """

    def __init__(
        self,
        state: State,
        checkpoint: Callable[[], Awaitable[None]],
        drop_older: Callable[[], Awaitable[None]],
        start: Callable[[], int],
        deleting: asyncio.Lock,
    ) -> None:
        self._state = state
        self._checkpoint = checkpoint
        self._drop_older = drop_older
        self._start = start
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: SarpError | None = None
        self._looked_at = 0.0
        self._markers_wanted = 0
        self._pass_after = asyncio.get_running_loop().time() + _PASS_PAUSE_S
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
        self.compactor = Compactor(
            state.folder,
            state.scheduler,
            state.directory,
            state.loader,
            state.pages,
            state.gatherer,
            state.writer,
            state.ledger,
            removals=state.removals,
            drop_file=state.files.drop_slot,
            deleting=deleting,
            report=state.matcher.report,
            room=None if state.space is None else self._room_for_copies,
            direct=state.files.direct,
            bytes_per_second=_RESTING_BYTES_PER_S,
        )
        self.evictor = Evictor(state.directory, state.scheduler.turns)
        self.mark_passes = 0
        """Mark passes that have ended."""
        self._compacting: set[asyncio.Task[None]] = set()
        self._closed = False
        if state.space is not None:
            state.space.wake = self._wanted.set
            state.space.maintained = True

    def _room_for_copies(self) -> int:
        assert self._state.space is not None
        return self._state.space.free_for_copies

    # --- for callers

    async def room(self, markers: int) -> None:
        """Return once so many markers can be made. Raises what keeps the work from being done that makes room."""
        removals = self._state.removals
        while markers > removals.room and removals.markers:
            if self._failure is not None:
                raise self._failure
            self._markers_wanted = markers
            self._wanted.set()
            await asyncio.shield(self._done)

    async def mark_pass(self) -> None:
        """Make the markers needless now, and retire them by a checkpoint."""
        async with self._one_at_a_time:
            await self._mark_pass()
            await self._checkpoint()

    async def compact(self, progress: Progress | None = None) -> None:
        """Compact until the log files hold little more than what is live. ClosedError where a close cuts it short."""
        work = asyncio.create_task(self._compact(progress), name="sarpstore compact")
        self._compacting.add(work)
        work.add_done_callback(self._compacting.discard)
        try:
            await work
        except asyncio.CancelledError:
            if self._closed and not self._cancelled():
                raise self._closed_error() from None
            raise

    @staticmethod
    def _cancelled() -> bool:
        """Whether the present task was cancelled, and not just what it waits for."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self._state.folder.path} is closed")

    async def _compact(self, progress: Progress | None) -> None:
        async with self._one_at_a_time:
            if self._state.removals.unsettled:
                await self._mark_pass()
            rate, self.compactor.bytes_per_second = self.compactor.bytes_per_second, None
            try:
                await self._settle(progress)
                await self._checkpoint()  # or the copies' files would not be among the rows
                if not few_removals(await self.compactor.rows(self._start())):
                    # They were written again while there was something left that they kill; now there is not.
                    await self._mark_pass()
                    await self._settle(progress)
            finally:
                self.compactor.bytes_per_second = rate
            # The next open need not go through the copies, and older images go.
            await self._checkpoint()
            await self._checkpoint()

    async def _settle(self, progress: Progress | None) -> None:
        compactor = self.compactor
        # The present file may be mostly dead, too; and only files before a checkpoint's start may go, which may be all
        # that there are: then it is in one that is begun for it.
        await self._state.writer.end_file()
        if not await compactor.is_due(self._state.gatherer.begin_position, SETTLING):
            return
        if self._state.space is None or self._state.space.free_for_copies >= FILE_BYTES:
            await self._state.writer.begin_file()
        await self._checkpoint()
        # Of the files that are there now each is compacted once: not what is written meanwhile, or it might never end.
        start = self._start()
        rows = await compactor.rows(start)
        total = sum(row.bytes for row in rows if row.dead_share >= SETTLING.dead_min)
        before = compactor.bytes_deleted
        fruitless = 0
        while not settled(rows, self._state.gatherer.file_bytes) and fruitless < _FRUITLESS_MAX:
            freed, deleted = compactor.bytes_freed, compactor.bytes_deleted
            if await compactor.compact_next(start, SETTLING) is None:
                return
            gained = compactor.bytes_freed - freed > _GAIN_MIN * (compactor.bytes_deleted - deleted)
            fruitless = 0 if gained else fruitless + 1
            if progress is not None:
                done = compactor.bytes_deleted - before
                progress(done, max(done, total))
            rows = await compactor.rows(start)

    # --- the task

    async def run(self) -> None:
        """Do what is due, for as long as the store lives. However it ends, whoever waits is told."""
        try:
            await self._state.loader.load_all()
            while True:
                if not await self._try_once():
                    await self._wait()
        except asyncio.CancelledError:
            self._end(self._closed_error())
            raise
        except FailedError as error:
            self._end(error)  # nothing is written any more, which is no news to anybody
        except Exception as error:
            self._end(error if isinstance(error, SarpError) else FailedError(self._state.folder.path, error))
            raise

    async def _try_once(self) -> bool:
        """Do one piece of work, if any is due; whether there may be more. After an error it is tried again later."""
        try:
            async with self._one_at_a_time:
                did = await self._work_once()
            self._failure = None
        except FailedError:
            raise
        except SarpError as error:
            _log.warning("maintenance: %s", error)
            self._failure = error
            did = False
            if self._state.space is not None:
                self._state.space.round_ended(freed=False)
            self._tell()
            await asyncio.sleep(_RETRY_S)
        self._tell()
        return did

    def _end(self, error: SarpError) -> None:
        """No room will be made any more."""
        self._failure = error
        if self._state.space is not None:
            self._state.space.end(error)
        self._tell()

    @property
    def _many_markers(self) -> int:
        """New markers at which a pass begins: a quarter of the bound, or fewer where they would weigh in the heads."""
        light = int(_MARKERS_SHARE * self._state.live_bytes) // fmt.MARKER_DTYPE.itemsize
        return min(self._state.removals.markers_max // 4, max(_MARKERS_MIN, light))

    @property
    def _new_markers(self) -> int:
        """Markers that no pass has looked at yet."""
        return self._state.removals.markers - self._state.retirement.waiting

    @property
    def _markers_weigh(self) -> bool:
        """Whether the markers that wait to retire take a good deal of what is kept free for checkpoints."""
        space = self._state.space
        return (
            space is not None and space.head_share(self._state.retirement.waiting * fmt.MARKER_DTYPE.itemsize) > _WEIGHT
        )

    @property
    def _short_of_markers(self) -> bool:
        """Whether markers that a pass has made needless have to retire now, and not with the next checkpoint."""
        removals = self._state.removals
        return bool(removals.markers) and (
            removals.markers >= removals.markers_max // 2 or self._markers_wanted > removals.room
        )

    async def finish(self) -> None:
        """End what must not stand half done in the store's last checkpoint. The task has been cancelled."""
        self._closed = True
        self._end(self._closed_error())
        for work in self._compacting:
            work.cancel()
        async with self._one_at_a_time:
            await self.evictor.finish()
            await self.compactor.finish()

    async def _wait(self) -> None:
        self._wanted.clear()
        try:
            async with asyncio.timeout(_CHECK_S):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _work_once(self) -> bool:
        """Do one piece of work; False if nothing is due."""
        if self._new_markers >= self._many_markers or self._short_of_markers:
            await self._mark_pass()
            return True
        if self._state.removals.unsettled and asyncio.get_running_loop().time() >= self._pass_after:
            await self._mark_pass()
            await self._checkpoint()
            return True
        if self._state.space is not None and await self._keep_within(self._state.space):
            return True
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= _LOOK_S:
            if await self.compactor.compact_next(self._start(), AT_REST) is not None:
                return True
            self._looked_at = now
        return False

    async def _keep_within(self, space: Space) -> bool:
        """Evict and compact where the disk's bound asks for it; whether anything was freed."""
        await self.evictor.age(self._state.gatherer.new_bytes, space.log_bytes_max)
        asked, pressure = space.wanted.is_set(), space.pressure(self._state.live_bytes)
        if not asked and not pressure.evict_bytes and not pressure.compact:
            return False
        freed = await self._relieve(space, pressure)
        space.round_ended(freed=freed)
        return freed

    async def _relieve(self, space: Space, pressure: Pressure) -> bool:
        if pressure.evict_bytes and (self._state.removals.cleared or self._new_markers >= self._many_markers // 2):
            # What is dead already need not be made room for by evicting what is not.
            await self._mark_pass()
            return True
        evicted = await self._evict(pressure.evict_bytes) if pressure.evict_bytes else None
        if pressure.compact or space.wanted.is_set():
            freed = self.compactor.bytes_freed
            if await self._compact_under_pressure() and self.compactor.bytes_freed > freed:
                return True
            if not evicted and space.wanted.is_set():
                # Everything is alive, and full to the brim, or in files so small that their ends are most of them: a
                # file's worth of it must go.
                evicted = await self._evict(self._state.gatherer.file_bytes)
        return evicted is not None and evicted.records > 0

    async def _evict(self, wanted: int) -> Evicted:
        evicted = await self.evictor.evict(wanted)
        await self._pass.drop_states()
        return evicted

    async def _compact_under_pressure(self) -> bool:
        """Empty the file that gives most; False if none gives anything."""
        rate, self.compactor.bytes_per_second = self.compactor.bytes_per_second, None
        try:
            return await self._compact_any()
        except LimitError:
            # There is not even room to compact: what the older checkpoint takes can be done without.
            await self._drop_older()
            return await self._compact_any()
        finally:
            self.compactor.bytes_per_second = rate

    async def _compact_any(self) -> bool:
        if await self.compactor.compact_next(self._start(), UNDER_PRESSURE) is not None:
            return True
        # Perhaps those that are worth it are not before the newest checkpoint's start.
        await self._checkpoint()
        return await self.compactor.compact_next(self._start(), UNDER_PRESSURE) is not None

    async def _mark_pass(self) -> None:
        """Make the markers needless; they retire when a checkpoint has been published that begins after this: the next
        one, or one at once where they stand in somebody's way.
        """
        removals = self._state.removals
        removals.cleared, markers = 0, removals.markers
        result = await self._pass.run()
        # What is removed in between waits for many markers, or for a while: a pass reads the whole log.
        pause = max(_PASS_PAUSE_S, _PASS_PAUSES * result.seconds)
        self._pass_after = asyncio.get_running_loop().time() + pause
        self._state.retirement.passed(result.position, markers)
        self._state.ledger.on_pass(result.position, result.intact_files)
        self.mark_passes += 1
        if self._short_of_markers or self._markers_weigh:
            self._markers_wanted = 0  # whoever needs more says so again
            await self._checkpoint()

    def _tell(self) -> None:
        """Wake whoever waits for room."""
        done, self._done = self._done, asyncio.get_running_loop().create_future()
        done.set_result(None)
