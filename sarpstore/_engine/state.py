"""One state of a store: what recovery found, and the parts that answer from it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._checkpoint import NamespaceEntry, PartitionLoader
from sarpstore._clock import monotonic_ms
from sarpstore._directory import DivergenceDirectory
from sarpstore._engine.files import OpenFiles
from sarpstore._engine.matcher import Matcher
from sarpstore._errors import NotAStoreError, ReadOnlyError
from sarpstore._files import Folder
from sarpstore._io import Scheduler, ThreadBackend
from sarpstore._kernel import CHANGE_DTYPE
from sarpstore._log.commits import COMMIT_PAGES_MAX
from sarpstore._log.gather import Gatherer, LogEnd
from sarpstore._log.header import Shape
from sarpstore._log.pages import Pages
from sarpstore._log.writer import LogWriter
from sarpstore._options import Options
from sarpstore._recovery import Recovered, read_log_changes, recover

__all__ = ["State", "open_state"]

_log = logging.getLogger("sarpstore")

_APPLY_SLICE: Final = 2048
_BUFFERS: Final = 3


@dataclass(slots=True)
class State:
    """The parts of an open store. `gatherer` and `log` are None in a read-only one."""

    folder: Folder
    scheduler: Scheduler
    shape: Shape
    found: Recovered
    directory: DivergenceDirectory
    pages: Pages
    files: OpenFiles
    loader: PartitionLoader
    matcher: Matcher
    namespaces: dict[int, NamespaceEntry]
    log_bytes: int
    recovery_ms: float
    _gatherer: Gatherer | None = None
    log: LogWriter | None = None

    @property
    def gatherer(self) -> Gatherer:
        if self._gatherer is None:
            raise ReadOnlyError(f"{self.folder.path} was opened with read_only=True")
        return self._gatherer

    @property
    def writer(self) -> LogWriter:
        if self.log is None:
            raise ReadOnlyError(f"{self.folder.path} was opened with read_only=True")
        return self.log

    @property
    def dead_bytes(self) -> int:
        return self._gatherer.dead_bytes if self._gatherer else 0

    @property
    def buffer_bytes(self) -> int:
        """Memory of commit buffers that have been touched, at most."""
        return _BUFFERS * COMMIT_PAGES_MAX * fmt.PAGE if self._gatherer else 0

    async def close(self) -> None:
        """Write what there is to write, then give everything up; raises what kept the log from being synced."""
        try:
            if self.log is not None:
                await self.log.close()
        finally:
            await self.close_files()
            self.folder.close()

    async def close_files(self) -> None:
        await self.files.close()
        await self.scheduler.close()


async def open_state(folder: Folder, options: Options) -> State:
    """Recover the store in `folder`, or make one where the options allow it."""
    began = monotonic_ms()
    scheduler = Scheduler(ThreadBackend(), queue_depth=options.queue_depth)
    try:
        found = await _find(folder, scheduler, options)
        state = await _state_of(folder, scheduler, options, found)
        if not options.read_only:
            _start_writing(state, options)
        state.recovery_ms = monotonic_ms() - began
        _report(state)
        return state
    except BaseException:
        await scheduler.close()
        raise


async def _find(folder: Folder, scheduler: Scheduler, options: Options) -> Recovered:
    def make_directory(shape: Shape) -> DivergenceDirectory:
        return DivergenceDirectory(shape.secret, options.directory_bytes_max)

    found = await recover(folder, scheduler, options, make_directory)
    if found is None:
        if options.read_only or not options.create:
            raise NotAStoreError(f"{folder.path} holds no store, and none is to be made")
        shape = Shape.new(options)
        found = Recovered(shape, make_directory(shape), None, np.empty(0, CHANGE_DTYPE), {}, LogEnd(), [], clean=True)
    return found


async def _state_of(folder: Folder, scheduler: Scheduler, options: Options, found: Recovered) -> State:
    directory = found.directory
    tail = found.changes
    if found.head is None:
        directory.start_empty()
        await _apply_in_slices(directory, tail)
        tail = tail[:0]
    else:
        directory.start_unloaded(found.head.partitions)
    places = found.head.partitions if found.head else np.empty(0, fmt.PARTITION_DTYPE)
    files = OpenFiles(folder, scheduler)
    pages = Pages(found.shape.uuid, found.shape.location_bytes, options.cache_bytes)

    async def rebuild() -> npt.NDArray[Any]:
        return await read_log_changes(folder, scheduler, found)

    loader = PartitionLoader(
        directory,
        scheduler,
        found.shape.uuid,
        places,
        tail,
        open_images=files.images,
        rebuild=rebuild,
        damaged=lambda error: matcher.report(error),
    )
    matcher = Matcher(directory, pages, loader, files, scheduler)
    matcher.other_damage = sum(damage.corruption for damage in found.damage)
    log_bytes = await scheduler.run(_log_bytes, folder)
    return State(
        folder,
        scheduler,
        found.shape,
        found,
        directory,
        pages,
        files,
        loader,
        matcher,
        found.namespaces,
        log_bytes,
        0.0,
    )


async def _apply_in_slices(directory: DivergenceDirectory, changes: npt.NDArray[Any]) -> None:
    for i in range(0, len(changes), _APPLY_SLICE):
        directory.apply(changes[i : i + _APPLY_SLICE])
        await asyncio.sleep(0)


def _log_bytes(folder: Folder) -> int:
    total = 0
    for number in fmt.numbered(folder.names(), fmt.LOG_SUFFIX):
        file = folder.open(fmt.log_name(number))
        try:
            total += file.size()
        finally:
            file.close()
    return total


def _start_writing(state: State, options: Options) -> None:
    found = state.found
    end = LogEnd(**{name: getattr(found.end, name) for name in LogEnd.__slots__})
    state._gatherer = Gatherer(
        state.shape, state.pages, state.directory.c, end, options.log_file_bytes, state.directory.add_slot
    )
    state.log = LogWriter(
        state.folder,
        state.scheduler,
        state._gatherer,
        recovered=found.end,
        unsynced_files=found.unsynced_files,
        durability=options.durability,
        sync_interval_ms=options.sync_interval_ms,
        create=found.end.file_number == 0,
    )


def _report(state: State) -> None:
    for damage in state.found.damage:
        level = logging.ERROR if damage.corruption else logging.WARNING
        _log.log(level, "%s at byte %d: %s", damage.file, damage.offset, damage.meaning)
