"""One state of a store: what recovery found, and the parts that answer from it."""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._checkpoint import CheckpointHead, NamespaceEntry, PartitionLoader, named_slots, steps_by_partition
from sarpstore._chunks.recover import holds_chunks
from sarpstore._clock import monotonic_ms
from sarpstore._compaction import FileLedger
from sarpstore._directory import Directory, DivergenceDirectory, PostingsDirectory
from sarpstore._engine.files import OpenFiles
from sarpstore._engine.matcher import Matcher
from sarpstore._engine.moments import MOMENTS_MAX, Moments
from sarpstore._engine.space import Space
from sarpstore._errors import CorruptionError, NotAStoreError, ReadOnlyError, StorageError
from sarpstore._files import CountedFolder, reads_direct
from sarpstore._io import Scheduler, choose_backend, give_way, together
from sarpstore._kernel import CHANGE_DTYPE
from sarpstore._log.commits import COMMIT_PAGES_MAX
from sarpstore._log.gather import Gatherer, LogEnd
from sarpstore._log.header import Shape
from sarpstore._log.pages import Pages
from sarpstore._log.removals import Removals
from sarpstore._log.slots import Slots, all_given
from sarpstore._log.writer import LogWriter
from sarpstore._markpass import Retirement
from sarpstore._recovery import Facts, Recovered, read_header, read_log_changes, recover

if TYPE_CHECKING:
    from sarpstore._files import Folder
    from sarpstore._options import Options

__all__ = ["State", "open_state"]

_log = logging.getLogger("sarpstore")

_APPLY_SLICE: Final = 1024
_BUFFERS: Final = 3
_SNAPSHOT_TRIES: Final = 5
_FILES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Carried:
    """Counters of the states before this one: they go on over a refresh."""

    reads: int = 0
    reads_coalesced: int = 0
    reads_joined: int = 0
    cache_hits: int = 0


@dataclass(slots=True)
class State:
    """The parts of an open store. `gatherer` and `log` are None in a read-only one."""

    folder: Folder
    scheduler: Scheduler
    shape: Shape
    found: Recovered
    directory: Directory
    pages: Pages
    files: OpenFiles
    loader: PartitionLoader
    matcher: Matcher
    namespaces: dict[int, NamespaceEntry]
    removals: Removals
    moments: Moments
    retirement: Retirement
    recovery_ms: float
    gathering: Gatherer | None = None
    log: LogWriter | None = None
    log_bytes: int = 0
    """Bytes of the log files that were there at the open; counted in the background."""
    carried: Carried = field(default_factory=lambda: Carried())
    users: int = 0
    """Calls that are answered from this state now."""
    ledger: FileLedger = field(default_factory=lambda: FileLedger())
    """Up to which removal each log file is clean."""
    closing: bool = False
    """`close` has begun: nothing more is written by others."""
    space: Space | None = None
    """Room on the disk; None: not bounded."""
    _namespaces_counted: int = 0
    _namespace_bytes: int = 0
    _retired: bool = False
    _log_closed: bool = False
    _closing: asyncio.Task[None] | None = None

    @property
    def gatherer(self) -> Gatherer:
        if self.gathering is None:
            raise ReadOnlyError(f"{self.folder.path} was opened with read_only=True")
        return self.gathering

    @property
    def writer(self) -> LogWriter:
        if self.log is None:
            raise ReadOnlyError(f"{self.folder.path} was opened with read_only=True")
        return self.log

    @property
    def live_bytes(self) -> int:
        """Bytes of records that entries name; 0 until all partitions are in memory."""
        base = self.directory.base
        return 0 if self.loader.unloaded else int(base.slot_live[: base.slot_count].sum())

    @property
    def buffer_bytes(self) -> int:
        """Memory of commit buffers that have been touched, at most."""
        return _BUFFERS * COMMIT_PAGES_MAX * fmt.PAGE if self.gathering else 0

    def describe(self, head: CheckpointHead) -> None:
        """Note in a checkpoint's head what is known as it begins, beside the directory and the markers."""
        removals = self.removals
        head.namespaces = list(self.namespaces.values())
        # What a mark pass has made needless is needless for whoever begins with the images that follow.
        head.passed = self.retirement.due
        head.epochs, head.counts = removals.epoch_rows(), removals.count_rows()
        head.moments = self.moments.rows()

    async def add_markers(self, head: CheckpointHead) -> None:
        """Note the markers in a head whose images are made, and perhaps some that come meanwhile.

        Not before: an image that is damaged is made anew from the log, which brings back what markers kill that had
        retired, and those markers with it. Checkpoints come one at a time, so that no markers retire meanwhile.
        """
        removals = self.removals
        rows, count = np.empty(removals.markers, fmt.MARKER_DTYPE), 0
        for part in removals.marker_parts():
            kept = part[part["position"] > head.passed]
            rows[count : count + len(kept)] = kept
            count += len(kept)
            await give_way(self.scheduler.turns)
        head.markers = rows[:count]

    async def published(self, head: CheckpointHead) -> None:
        """A checkpoint is published: what it has made needless goes."""
        await self.retirement.retire(head.passed)

    def head_bytes(self) -> int:
        """Bytes of a checkpoint's head, if one began now."""
        directory, removals = self.directory, self.removals
        if len(self.namespaces) != self._namespaces_counted:
            self._namespaces_counted = len(self.namespaces)
            names = (len(each.name.encode()) + len(each.adapter.encode()) for each in self.namespaces.values())
            self._namespace_bytes = sum(names) + len(self.namespaces) * (fmt.CHECKPOINT_NAMESPACE.size + 8)
        return (
            fmt.CHECKPOINT_HEAD.size
            + directory.base.slot_count * fmt.SLOT_DTYPE.itemsize
            + len(directory.partitions) * directory.row_dtype.itemsize
            + self._namespace_bytes
            + removals.markers * fmt.MARKER_DTYPE.itemsize
            + len(removals.holders) * fmt.EPOCH_DTYPE.itemsize
            + removals.counts * fmt.COUNT_DTYPE.itemsize
            + MOMENTS_MAX * fmt.MOMENT_DTYPE.itemsize
        )

    def counters(self) -> Carried:
        """The counters so far, those of earlier states included."""
        scheduler, before = self.scheduler, self.carried
        return Carried(
            before.reads + scheduler.reads,
            before.reads_coalesced + scheduler.reads_coalesced,
            before.reads_joined + scheduler.reads_joined,
            before.cache_hits + self.pages.cache_hits,
        )

    def retire(self) -> None:
        """Another state has taken over: close this one's files when the last call that uses it has ended."""
        self._retired = True
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if self._retired and not self.users and self._closing is None:
            self._closing = asyncio.create_task(self.close_files())

    async def close(self) -> None:
        """Write what there is to write, then give everything up; raises what kept the log from being synced."""
        self.closing = True
        try:
            if self.log is not None and not self._log_closed:
                await self.log.close()
                self._log_closed = True
        finally:
            await self.close_files()
            self.folder.close()

    async def close_files(self) -> None:
        await self.files.close()
        await self.scheduler.close()


async def open_state(folder: Folder, options: Options) -> State:
    """Recover the store in `folder`, or make one where the options allow it."""
    began = monotonic_ms()
    if options.bytes_max is not None and not options.read_only:
        folder = CountedFolder(folder)
    backend = choose_backend(options.io, options.queue_depth)
    try:
        scheduler = Scheduler(backend, queue_depth=options.queue_depth)
    except BaseException:
        backend.stop()
        raise
    try:
        state = await _open(folder, scheduler, options)
    except BaseException:
        await scheduler.close()
        raise
    state.recovery_ms = monotonic_ms() - began
    _report(state)
    return state


async def _open(folder: Folder, scheduler: Scheduler, options: Options) -> State:
    for tries_left in range(_SNAPSHOT_TRIES, -1, -1):
        # Side by side: the one asks the file system, the other reads.
        found, direct = await together(_find(folder, scheduler, options), _takes_direct(folder, scheduler, options))
        state = await _state_of(folder, scheduler, options, found, direct=direct)
        try:
            if not options.read_only:
                await scheduler.run(_remove_remains, folder, found)
                if isinstance(folder, CountedFolder):
                    await scheduler.run(folder.survey)
                await _begin_writing(state, options)
            elif not await _pinned(state) and tries_left:
                await state.files.close()
                continue
        except BaseException:
            await state.files.close()
            raise
        return state
    raise AssertionError("unreachable")


async def _begin_writing(state: State, options: Options) -> None:
    _start_writing(state, options, await _free_slots(state))
    try:
        await state.writer.started()
    except BaseException:
        await state.writer.abandon()
        raise


async def _free_slots(state: State) -> Slots:
    base, loader = state.directory.base, state.loader
    # Which slots the kept checkpoints name is worth reading both of them only in need.
    needed = all_given(state.found.end.file_number)
    named = await state.scheduler.run(named_slots, state.folder) if needed else None
    return Slots(base, named, lambda: not loader.unloaded and loader.incomplete is None)


async def _pinned(state: State) -> bool:
    """Open the .images files, whose names a writer removes with older checkpoints; whether they were there.

    If not, the writer may have published another checkpoint meanwhile, and removed what the older one named. If they
    stay away, they are damage: the log has everything. Log files stay.
    """
    if state.found.head is None:
        return True
    try:
        # Not numpy.unique: it would import numpy.ma, 20 ms, at a process's first open.
        for number in sorted(set(state.found.head.partitions["images_number"].tolist()) - {0}):
            await state.files.pinned_images(number)
    except StorageError:
        return False
    return True


def _remove_remains(folder: Folder, found: Recovered) -> None:
    """Remove what a crash left unpublished, and log files that were retired before the checkpoint.

    Of these nothing is read any more, but for a reader of the whole log, which would take them for a part of it. Those
    that can't be removed, or be known for the store's own, stay in `found.retired_before`.
    """
    for name in folder.names():
        if fmt.is_own_temporary(name):
            folder.remove(name)
    retired, found.retired_before = found.retired_before, []
    for number in retired:
        if not _removed(folder, fmt.log_name(number), found):
            found.retired_before.append(number)
    if len(retired) > len(found.retired_before):
        try:
            folder.sync()
        except StorageError as error:
            _log.warning("log files that were removed may come back: %s", error)
            found.retired_before = retired


def _removed(folder: Folder, name: str, found: Recovered) -> bool:
    try:
        if read_header(folder, name).shape != found.shape:
            return False
        folder.remove(name)
    except (CorruptionError, StorageError) as error:
        _log.warning("%s was retired before the last checkpoint, and is left where it is: %s", name, error)
        return False
    _log.info("removed %s, which was retired before the last checkpoint", name)
    return True


async def _takes_direct(folder: Folder, scheduler: Scheduler, options: Options) -> bool:
    """Whether log and image files are read directly; OptionError where they must and can't be."""
    if options.direct_io is False:
        return False
    return await scheduler.run_background(reads_direct, folder, options.direct_io)


def _files_max() -> int:
    """Descriptors to keep open: a share of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MAX if soft == resource.RLIM_INFINITY else max(8, min(_FILES_MAX, soft // 4))


async def _find(folder: Folder, scheduler: Scheduler, options: Options) -> Recovered:
    def make_directory(shape: Shape) -> Directory:
        directory = _make_directory(shape, options)
        if options.bytes_max is not None and not options.read_only:
            directory.base.keep_recency(shape.location_bytes)
        return directory

    found = await recover(folder, scheduler, options, make_directory)
    if found is None:
        if options.read_only or not options.create:
            raise NotAStoreError(f"{folder.path} holds no store, and none is to be made")
        if holds_chunks(folder.names()):
            raise NotAStoreError(f"{folder.path} holds a chunk store, which sarpstore.open_chunks opens")
        shape = Shape.new(options)
        facts = Facts(Removals(options.markers_max, options.counts_max, options.holders_max))
        found = Recovered(shape, make_directory(shape), None, np.empty(0, CHANGE_DTYPE), facts, LogEnd(), [])
        found.directory.base.attach(facts.removals)
    return found


def _make_directory(shape: Shape, options: Options) -> Directory:
    if shape.routing == "divergence":
        return DivergenceDirectory(shape.secret, options.directory_bytes_max, location_bytes=shape.location_bytes)
    return PostingsDirectory(
        shape.secret,
        options.directory_bytes_max,
        read_cap=options.read_cap,
        refine_at=options.refine_at,
        prune_at=options.prune_at,
        exact=options.exact,
        location_bytes=shape.location_bytes,
    )


async def _state_of(folder: Folder, scheduler: Scheduler, options: Options, found: Recovered, *, direct: bool) -> State:
    directory = found.directory
    tail = found.changes
    if found.head is None:
        directory.start_empty()
        await _apply_in_slices(directory, tail)
        tail = tail[:0]
    else:
        try:
            directory.start_unloaded(found.head.partitions)
        except ValueError as error:
            name = fmt.checkpoint_name(found.head.number)
            raise CorruptionError(
                name, fmt.CHECKPOINT_HEAD.size, f"its partitions make no directory ({error})"
            ) from None
    places = found.head.partitions if found.head else np.empty(0, directory.row_dtype)
    # Nobody else has the directory yet, so a long tail can be sorted off the loop.
    long_tail = len(tail) > _APPLY_SLICE
    grouped = (
        await scheduler.run(steps_by_partition, directory, tail) if long_tail else steps_by_partition(directory, tail)
    )
    files = OpenFiles(folder, scheduler, _files_max(), direct=direct)
    pages = Pages(found.shape.uuid, found.shape.location_bytes, options.cache_bytes)
    pages.serve(scheduler.table)

    async def rebuild() -> npt.NDArray[Any]:
        return await read_log_changes(folder, scheduler, found)

    loader = PartitionLoader(
        directory,
        scheduler,
        found.shape.uuid,
        places,
        tail,
        grouped,
        open_images=files.images,
        rebuild=rebuild,
        damaged=lambda error: matcher.report(error),
    )
    matcher = Matcher(directory, pages, loader, files, scheduler)
    for damage in found.damage:
        if damage.corruption and damage.position:
            matcher.count_damaged(damage.position)
        elif damage.corruption:
            matcher.other_damage += 1
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
        found.facts.namespaces,
        found.facts.removals,
        _moments_of(found),
        Retirement(found.facts.removals, scheduler.turns),
        0.0,
    )


def _moments_of(found: Recovered) -> Moments:
    """Those of the head, and when the files behind its start were made: all before a file was written before that."""
    moments = Moments(found.head.moments if found.head else None)
    for header in found.headers:
        moments.add(fmt.position(header.file_number, 0), header.created_ms)
    return moments


async def _apply_in_slices(directory: Directory, changes: npt.NDArray[Any]) -> None:
    for i in range(0, len(changes), _APPLY_SLICE):
        directory.apply(changes[i : i + _APPLY_SLICE])
        await asyncio.sleep(0)


def _start_writing(state: State, options: Options, slots: Slots) -> None:
    found = state.found
    end = LogEnd(**{name: getattr(found.end, name) for name in LogEnd.__slots__})
    state.ledger = FileLedger(state.directory.base.files(), found.retired_before)
    state.gathering = gatherer = Gatherer(
        state.shape, state.pages, state.directory.base, end, options.log_file_bytes, slots
    )
    state.log = LogWriter(
        state.folder,
        state.scheduler,
        gatherer,
        recovered=found.end,
        unsynced_files=found.unsynced_files,
        durability=options.durability,
        sync_interval_ms=options.sync_interval_ms,
        create=found.end.file_number == 0,
    )
    state.log.began = lambda header: state.files.open_soon(header.slot, header.file_number)
    if isinstance(state.folder, CountedFolder):
        assert options.bytes_max is not None
        state.space = Space(
            state.folder,
            state.directory,
            gatherer,
            state.log,
            bytes_max=options.bytes_max,
            log_file_bytes=options.log_file_bytes,
            head_bytes=state.head_bytes,
        )


def _report(state: State) -> None:
    for damage in state.found.damage:
        level = logging.ERROR if damage.corruption else logging.WARNING
        _log.log(level, "%s at byte %d: %s", damage.file, damage.offset, damage.meaning)
