"""The Store facade: lifecycle, batches, durability, statistics.

open ─► recover ─► State (directory, pages, files, loader) ─► Core: match, insert, estimate
                        │                        Background: load partitions, checkpoint, publish statistics
                        └► log writer (none in a read-only store)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore._blocks import as_tokens, tokens_in_turns
from sarpstore._engine.background import Background
from sarpstore._engine.core import Core, check_holder
from sarpstore._engine.namespace import Namespace
from sarpstore._engine.queries import GROUP_MAX
from sarpstore._engine.results import Match, Stats
from sarpstore._engine.state import State, open_state
from sarpstore._errors import InputError, NotAStoreError, ReadOnlyError
from sarpstore._files import Folder, folder_at
from sarpstore._options import Options, Progress, check_ttl
from sarpstore._recovery import holds_store

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable
    from typing import Self

__all__ = ["Opening", "Store", "open_store"]

# What a batch may hash, or take in, before the event loop gets its turn: about a millisecond.
_BLOCKS_PER_TURN: Final = 4096


class Store:
    """An open store. Made by `sarpstore.open`; belongs to the event loop and the process that opened it."""

    def __init__(self, state: State, options: Options) -> None:
        self._core = Core(state, options)
        self._background = background = Background(state, options, self.stats)
        self._core.maintenance = background.maintenance
        self._closed = False
        self._refreshing = asyncio.Lock()

    @property
    def path(self) -> str:
        return self._core.state.folder.path

    @property
    def block_tokens(self) -> int:
        """Tokens a block."""
        return self._core.state.shape.block_tokens

    @property
    def hash(self) -> str:
        """The hash of block ids: sha256 or mmh3."""
        return self._core.state.shape.hash

    @property
    def location_dtype(self) -> np.dtype[Any]:
        """The dtype of a location."""
        return self._core.state.shape.location_dtype

    def namespace(self, name: str = "", *, adapter: str = "", salt: bytes = b"") -> Namespace:
        """The namespace of that name, adapter and salt. Cheap; no I/O. With all empty, ids equal SGLang's page keys."""
        return Namespace(self._core, name, adapter, salt)

    async def match_many(
        self, queries: Iterable[tuple[Namespace, Any]], *, locations: bool = True, holder: int = 0
    ) -> list[Match]:
        """`match` for each (namespace, tokens), as one batch: the reads of all go out together."""
        self._core.check()
        # All inputs are checked before the first is hashed, and arrays copied before the first wait.
        given = [(self._own(namespace), _copied(tokens)) for namespace, tokens in _pairs(queries)]
        wanted = [(namespace, await tokens_in_turns(tokens)) for namespace, tokens in given]
        hashed = []
        blocks = 0
        for namespace, tokens in wanted:
            hashed.append(await namespace.hashed(tokens))
            blocks += len(hashed[-1].ids)
            if blocks >= _BLOCKS_PER_TURN:
                blocks = 0
                await asyncio.sleep(0)
        return await self._core.match(hashed, locations=locations, holder=holder)

    async def match_many_ids(
        self, queries: Iterable[tuple[Namespace, Any]], *, locations: bool = True, holder: int = 0
    ) -> list[Match]:
        """`match_ids` for each (namespace, ids), as one batch.

        Arrays of a batch of more than 128 queries must stay as they are until the call returns.
        """
        self._core.check()
        pairs = _pairs(queries)
        batch = [each for namespace, ids in pairs if (each := self._own(namespace).borrowed(ids))]
        if len(batch) == len(pairs):
            return await self._core.match(batch, locations=locations, holder=holder, borrowed=True)
        given = [(namespace, ids.copy() if isinstance(ids, np.ndarray) else ids) for namespace, ids in pairs]
        batch = []
        for namespace, ids in given:
            batch.append(await namespace.sequenced(ids))
            if len(batch) % GROUP_MAX == 0:
                await asyncio.sleep(0)
        return await self._core.match(batch, locations=locations, holder=holder)

    async def clear_holder(self, holder: int) -> None:
        """Remove everything that this holder has, in all namespaces. What it inserts from then on is new."""
        self._core.check_writable()
        await self._core.clear_holder(holder)

    def set_ttl(self, ttl_s: float | None, *, holder: int | None = None, namespace: Namespace | None = None) -> None:
        """Let what a holder or a namespace has, or everything, live `ttl_s` seconds; None: without end from now on.

        A sequence expires with its first block, so long after that was inserted (a second late at most, and later where
        the time before this process matters: it knows that from what was noted in the log). Where several apply, the
        shortest does. Not written in the store: to be set by each process that opens it.
        """
        self._core.check()
        check_ttl(ttl_s)
        if holder is not None and namespace is not None:
            raise InputError("set_ttl: of a holder or a namespace, not of both")
        scope = ("store", 0)
        if holder is not None:
            scope = ("holder", check_holder(holder))
        elif namespace is not None:
            scope = ("namespace", self._own(namespace).name_space)
        self._background.lifetimes.set(self._core.state, scope, ttl_s)

    async def sync(self) -> None:
        """On return, everything that was inserted or removed before the call survives any crash."""
        self._core.check_writable()
        await self._core.state.writer.sync()

    async def checkpoint(self) -> None:
        """Write a checkpoint now, so that a later open has no more log to read than what is inserted after it."""
        self._core.check_writable()
        await self._background.checkpoint()

    async def compact(self, progress: Progress | None = None) -> None:
        """Compact to the end: on return the log files hold little more than what is live.

        What has been removed, has expired or was superseded is dropped, and the rest moved together; matches and
        insertions go on meanwhile. `progress(done, total)` is told the bytes of the log files emptied, and of those
        that look worth it. Cancelling it leaves what was done so far.
        """
        self._core.check_writable()
        assert self._background.maintenance is not None
        await self._background.maintenance.compact(progress)

    async def refresh(self) -> None:
        """Move a read-only store forward to what its writer has committed. Matches in flight finish on the old one."""
        self._core.check()
        core = self._core
        if not core.options.read_only:
            raise ReadOnlyError(f"{self.path}: refresh() is for stores opened with read_only=True")
        async with self._refreshing:
            state = await open_state(core.state.folder, core.options)
            if core.closed:
                await state.close_files()
                core.check()
            state.carried = core.state.counters()
            old, core.state = core.state, state
            try:
                await self._background.replace(state)
            finally:
                old.retire()

    async def close(self) -> None:
        """Write and sync everything, checkpoint, and close. Closing again does nothing.

        Raises what kept it from syncing; the store is closed all the same.
        """
        if self._closed:
            return
        if not self._core.closed:
            self._core.check()
            self._core.closed = True
        try:
            try:
                if not self._core.state.closing:
                    await self._background.stop()
            finally:
                await self._core.state.close()
        except asyncio.CancelledError:
            raise  # a close that was cut short is gone on with by the next one
        except BaseException:
            self._closed = True
            raise
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stats(self) -> Stats:
        """Counters since the open, and sizes now."""
        core, state, background = self._core, self._core.state, self._background
        directory, log, counters = state.directory, state.log, state.counters()
        maintenance = background.maintenance
        log_bytes = state.log_bytes + (log.bytes_written if log else 0)
        log_bytes -= maintenance.compactor.bytes_deleted if maintenance else 0
        live_bytes = state.live_bytes
        return Stats(
            blocks=directory.blocks,
            segments=directory.entries,
            holders=len(state.removals.holders),
            markers=state.removals.markers,
            counts=state.removals.counts,
            removed=core.remover.removed,
            directory_bytes=directory.bytes,
            cache_bytes=state.pages.cache_bytes,
            resident_bytes=directory.bytes + state.pages.cache_bytes + state.buffer_bytes,
            reads=counters.reads,
            reads_coalesced=counters.reads_coalesced,
            reads_joined=counters.reads_joined,
            cache_hits=counters.cache_hits,
            records_read=core.records_read,
            matches=core.matches,
            matched_blocks=core.matched_blocks,
            inserts=core.inserts,
            inserted_blocks=core.inserted_blocks,
            log_bytes=log_bytes,
            dead_bytes=max(0, log_bytes - live_bytes) if live_bytes else 0,
            live_bytes=live_bytes,
            disk_bytes=state.space.used if state.space else log_bytes,
            bytes_max=core.options.bytes_max or 0,
            evicted=maintenance.evictor.blocks if maintenance else 0,
            mark_passes=maintenance.mark_passes if maintenance else 0,
            compacted_files=maintenance.compactor.files_deleted if maintenance else 0,
            copied_bytes=maintenance.compactor.bytes_copied if maintenance else 0,
            record_bytes=state.gatherer.new_bytes if log else 0,
            checkpoint_lag_bytes=background.checkpoint_lag_bytes,
            commits=log.commits if log else 0,
            written_bytes=(log.bytes_written if log else 0) + background.checkpoint_bytes,
            synced_position=log.synced_position if log else state.found.end.synced,
            checkpoint_position=background.checkpoint_position,
            checkpoints=background.checkpoints,
            unloaded_partitions=state.loader.unloaded,
            recovery_ms=state.recovery_ms,
            io_backend=state.scheduler.backend.name,
            direct_io=state.files.direct,
            loop_hold_ms_max=round(state.matcher.loop_hold_ms_max, 3),
            damaged_records=state.matcher.damaged,
            failed=str(log.failure) if log and log.failure else "",
        )

    def _own(self, namespace: object) -> Namespace:
        if not isinstance(namespace, Namespace) or not namespace.belongs_to(self._core):
            raise InputError(f"{namespace!r} is not a namespace of this store")
        return namespace


def _copied(tokens: Any) -> Any:
    """Tokens that may change as soon as the call waits, converted and copied; lists, which must not, as they are."""
    return tokens if isinstance(tokens, list | tuple) else as_tokens(tokens).copy()


def _pairs(queries: Iterable[tuple[Namespace, Any]]) -> list[tuple[Namespace, Any]]:
    try:
        return [(namespace, what) for namespace, what in queries]
    except (TypeError, ValueError) as error:
        raise InputError(f"queries: a sequence of (namespace, tokens or ids) is needed ({error})") from None


class Opening:
    """What `open` returns: `await` it, or use it with `async with`, which also closes the store."""

    __slots__ = ("_options", "_path", "_store")

    def __init__(self, path: str | os.PathLike[str] | Folder, options: Options) -> None:
        self._path = path
        self._options = options
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        assert self._store is not None
        await self._store.close()

    async def _open(self) -> Store:
        options = self._options
        make = options.create and not options.read_only
        # A few system calls: not worth a thread, which the scheduler does not have yet.
        folder = folder_at(self._path, create=make)
        try:
            if not make:
                _check_holds_store(folder)
            if not options.read_only:
                folder.lock()
            state = await open_state(folder, options)
        except BaseException:
            folder.close()
            raise
        return Store(state, options)


def _check_holds_store(folder: Folder) -> None:
    """NotAStoreError if not. Asked before the lock is taken, which would leave its file behind."""
    if not holds_store(folder.names()):
        raise NotAStoreError(f"{folder.path} holds no store, and none is to be made")


def open_store(path: str | os.PathLike[str] | Folder, **options: Any) -> Opening:
    """Open the store in the folder `path`, or make one there.

    Use `async with sarpstore.open(path) as store` or `store = await sarpstore.open(path)`. The options are those of
    `sarpstore.Options`. `path` may also be a `Folder` of the file layer.

    Raises OptionError for impossible options, NotAStoreError for a path that is none, LockedError where another
    process writes, MismatchError or VersionError where the files say otherwise, StorageError where the system refuses.
    """
    return Opening(path, Options.of(options))
