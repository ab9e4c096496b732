"""Background work: loading partitions, checkpoints when they are due, the statistics file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._checkpoint import Checkpointer, checkpoint_due, replay_ms, slowness
from sarpstore._clock import monotonic_ms
from sarpstore._engine.lifetimes import Lifetimes
from sarpstore._engine.maintenance import Maintenance
from sarpstore._errors import FailedError, SarpError
from sarpstore._log.published import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sarpstore._engine.results import Stats
    from sarpstore._engine.state import State
    from sarpstore._files import Folder
    from sarpstore._options import Options

__all__ = ["Background"]

_log = logging.getLogger("sarpstore")

_CHECK_S: Final = 0.05
_START_AFTER_S: Final = 0.05
_EXPIRE_S: Final = 0.1
_RETRY_S: Final = 10.0


class Background:
    """Tasks that live as long as the store. An error in one is logged; the store goes on without that work."""

    def __init__(self, state: State, options: Options, stats: Callable[[], Stats]) -> None:
        self._state = state
        self._options = options
        self._publisher = Publisher(state.scheduler, state.folder, state.shape.uuid, stats)
        self._checkpointer = None if state.log is None else self._make_checkpointer(state)
        # A tail of nothing but marks and a seal needs no checkpoint.
        self._tail_bytes = state.found.tail_bytes if len(state.found.changes) else 0
        self._replay_bytes, self._replay_changes = state.found.replayed_bytes, len(state.found.changes)
        self._written = self._sealed = self._records = self._changes = 0
        """The log's counters at the last checkpoint."""
        self._slowness = slowness(self._replay_bytes, self._replay_changes, state.recovery_ms)
        self._checkpoint_ms = monotonic_ms()
        self.checkpoints = 0
        """Checkpoints published."""
        self._log_counted = False
        self.lifetimes = Lifetimes(options.ttl_s)
        # What expired before this process began must not come back until its first look at the clock.
        self.lifetimes.expire(state)
        self.maintenance = None
        if self._checkpointer is not None:
            deleting = self._checkpointer.lock
            self.maintenance = Maintenance(
                state, self.checkpoint, self._checkpointer.drop_older, lambda: self.checkpoint_position, deleting
            )
        self._tasks = self._reading_tasks(state)
        if self.maintenance is not None:
            self._tasks.append(self._start(self._checkpoint_when_due, "checkpoints"))
            self._tasks.append(self._publisher.start())
            self._tasks.append(self._start(self.maintenance.run, "maintenance"))

    def _make_checkpointer(self, state: State) -> Checkpointer:
        return Checkpointer(
            state.folder,
            state.scheduler,
            state.shape.uuid,
            state.directory,
            state.loader,
            state.gatherer,
            state.writer,
            number=_last_number(state.folder),
            describe=state.describe,
            add_markers=state.add_markers,
            published=state.published,
            bound=state.space,
        )

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> asyncio.Task[None]:
        async def guarded() -> None:
            # The first answers after an open have the device, and the loop, to themselves.
            await asyncio.sleep(_START_AFTER_S)
            try:
                await work()
            except Exception:
                _log.exception("sarpstore %s stopped", what)

        return asyncio.create_task(guarded(), name=f"sarpstore {what}")

    def _reading_tasks(self, state: State) -> list[asyncio.Task[None]]:
        return [
            self._start(state.loader.load_all, "loader"),
            self._start(self._count_log_bytes, "count of log bytes"),
            self._start(self._let_expire, "times to live"),
        ]

    async def _let_expire(self) -> None:
        while True:
            self.lifetimes.tick(self._state)
            await asyncio.sleep(_EXPIRE_S)

    async def _count_log_bytes(self) -> None:
        state = self._state
        files = state.found.end.file_number
        state.log_bytes = await state.scheduler.run_background(_log_bytes, state.folder, files)
        self._log_counted = True  # once: what is deleted later is taken off

    @property
    def checkpoint_bytes(self) -> int:
        return self._checkpointer.bytes_written if self._checkpointer else 0

    @property
    def checkpoint_lag_bytes(self) -> int:
        """Bytes of log behind the last checkpoint's start."""
        return 0 if self._state.log is None else self._log_bytes_since()

    @property
    def checkpoint_position(self) -> int:
        """Where the replay after a crash would start."""
        if self._checkpointer and self._checkpointer.position:
            return self._checkpointer.position
        return self._state.found.head.start if self._state.found.head else 0

    async def checkpoint(self) -> None:
        """Write a checkpoint now."""
        assert self._checkpointer is not None
        writer = self._state.writer
        gatherer = self._state.gatherer
        now = writer.bytes_written, writer.seal_bytes, gatherer.records_ever, gatherer.changes_ever
        self._checkpoint_ms = monotonic_ms()
        await self._checkpointer.write()
        self._state.gatherer.slots.published()
        self._state.ledger.on_checkpoint()
        self._written, self._sealed, self._records, self._changes = now
        self._tail_bytes = self._replay_bytes = self._replay_changes = 0
        self.checkpoints += 1

    async def replace(self, state: State) -> None:
        """Go on with another state of a read-only store."""
        old, self._state = self._tasks, state
        for task in old:
            task.cancel()
        self.lifetimes.expire(state)
        self._tasks = self._reading_tasks(state)
        await asyncio.wait(old)

    async def stop(self) -> None:
        """End all work; checkpoint once more if there is anything new, so that the next open replays nothing."""
        await self._cancel()
        writer = self._state.log
        if writer is None or writer.failure is not None:
            return
        if self.maintenance is not None:
            await self.maintenance.finish()
        if self._tail_bytes or self._state.gatherer.records_ever > self._records:
            try:
                await writer.sync()  # or what is gathering now would stand behind the checkpoint's start
                await self.checkpoint()
            except SarpError as error:
                # The log has everything; the next open reads more of it.
                _log.warning("no checkpoint at close: %s", error)
        if not self._log_counted:
            with contextlib.suppress(SarpError):
                await self._count_log_bytes()
        await self._publisher.publish()

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def _log_bytes_since(self) -> int:
        """Bytes of log behind the last checkpoint's start."""
        return self._tail_bytes + self._state.writer.bytes_written - self._written

    def _replay_ms_since(self) -> float:
        """What an open would take to go through them: the open file, and summaries of those that are sealed."""
        writer = self._state.writer
        open_file = min(writer.file_bytes, writer.bytes_written - self._written)
        read = self._replay_bytes + open_file + writer.seal_bytes - self._sealed
        changes = self._replay_changes + self._state.gatherer.changes_ever - self._changes
        return self._slowness * replay_ms(read, changes)

    async def _checkpoint_when_due(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            target = self._options.recovery_ms_target
            directory_bytes = self._state.directory.bytes + self._state.head_bytes()
            log_bytes, expected_ms = self._log_bytes_since(), self._replay_ms_since()
            since_ms = monotonic_ms() - self._checkpoint_ms
            if not checkpoint_due(log_bytes, expected_ms, directory_bytes, target, since_ms):
                continue
            try:
                await self.checkpoint()
            except FailedError:
                return  # nothing is written any more; the caller is told at every insertion
            except SarpError as error:
                _log.warning("a checkpoint failed, the last one stands: %s", error)
                await asyncio.sleep(_RETRY_S)


def _last_number(folder: Folder) -> int:
    """The highest number that a checkpoint or images file has had: numbers are not used again."""
    names = folder.names()
    return max([0, *fmt.numbered(names, fmt.CHECKPOINT_SUFFIX), *fmt.numbered(names, fmt.IMAGES_SUFFIX)])


def _log_bytes(folder: Folder, newest: int) -> int:
    """Bytes of the log files up to that number: what is newer, the writer counts."""
    numbers = fmt.numbered(folder.names(), fmt.LOG_SUFFIX)
    return sum(folder.size(fmt.log_name(number)) for number in numbers if number <= newest)
