"""The Store: lifecycle, and the calls that DESIGN.md section 4 promises.

open ─► recover ─► State (directory, pages, files, loader) ─► match, insert, estimate
                        │                   background: load partitions, checkpoint, publish statistics
                        └► log writer (none in a read-only store)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore._blocks import BlockHasher, as_ids, as_locations, as_tokens, canonical_root
from sarpstore._checkpoint import NamespaceEntry
from sarpstore._engine.background import Background
from sarpstore._engine.matcher import Queries
from sarpstore._engine.results import Match, Stats
from sarpstore._engine.state import State, open_state
from sarpstore._errors import ClosedError, ForkedError, InputError, NamespaceError, ReadOnlyError, WrongLoopError
from sarpstore._files import Folder, RealFolder
from sarpstore._kernel import ffi, lib, pointer
from sarpstore._log.commits import namespace_record
from sarpstore._log.gather import INSERT_WINDOWS_MAX
from sarpstore._options import Options

__all__ = ["Namespace", "Opening", "Store", "open_store"]

_HOLDER_MAX: Final = 0xFFFF_FFFF
_INSERT_BLOCKS_MAX: Final = INSERT_WINDOWS_MAX * 64
_NATIVE_KEY_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 1024


class Namespace:
    """What must never mix with others: model, tokenizer, dtype, adapter, tenant. Made by `Store.namespace`.

    Tokens are anything that `numpy` reads as integers, or little-endian u32 bytes; only whole blocks count. Ids are
    (blocks, 16) uint8, or keys of another length as an engine has them. All calls speak of one `holder`.
    """

    __slots__ = ("_root", "_store", "adapter", "name", "name_space")

    def __init__(self, store: Store, name: str, adapter: str, salt: bytes) -> None:
        if not isinstance(name, str) or not isinstance(adapter, str) or not isinstance(salt, bytes):
            raise InputError("namespace: name and adapter are str, salt is bytes")
        for label, text in (("name", name), ("adapter", adapter)):
            try:
                length = len(text.encode())
            except UnicodeEncodeError as error:
                raise InputError(f"namespace: {label} is not valid Unicode ({error})") from None
            if length > _NAME_BYTES_MAX:
                raise InputError(f"namespace: {label} has {length:,} bytes; at most {_NAME_BYTES_MAX:,}")
        self._store = store
        self.name = name
        self.adapter = adapter
        self._root = canonical_root(store.hash, name, adapter, salt)
        self.name_space = int.from_bytes(self._root[:8], "little")
        """64 bits of the namespace's root, as records carry them."""

    async def match(self, tokens: Any, *, locations: bool = True, holder: int = 0) -> Match:
        """How many of the tokens' leading blocks are held, with their ids and, unless told otherwise, locations.

        InputError for tokens that are none; UsageError for a store that can't be called from here.
        """
        self._store._check_call()
        ids = await self._hash(as_tokens(tokens))
        return await self._store._match_one(self, ids, _NATIVE_KEY_BYTES, locations, holder)

    async def match_ids(self, ids: Any, *, locations: bool = True, holder: int = 0) -> Match:
        """The same for block ids that the caller has: each must name the whole prefix that ends with its block."""
        self._store._check_call()
        keys, key_bytes = as_ids(ids)
        return await self._store._match_one(self, keys, key_bytes, locations, holder)

    async def insert(self, tokens: Any, locations: Any, *, holder: int = 0) -> int:
        """Hold the tokens' whole blocks; `locations` has a row for each. Returns how many blocks are new.

        Blocks that are held already keep the location that they have. When the call returns, the insertion can be
        matched; how durable it is then, `durability` says. LimitError past `directory_bytes_max`; FailedError after a
        failed write.
        """
        self._store._check_writable()
        values = as_tokens(tokens)
        rows = as_locations(locations, self._store.location_dtype, len(values) // self._store.block_tokens)
        return await self._store._insert(self, await self._hash(values), _NATIVE_KEY_BYTES, rows, holder)

    async def insert_ids(self, ids: Any, locations: Any, *, holder: int = 0) -> int:
        """The same for block ids that the caller has."""
        self._store._check_writable()
        keys, key_bytes = as_ids(ids)
        rows = as_locations(locations, self._store.location_dtype, len(keys))
        return await self._store._insert(self, keys, key_bytes, rows, holder)

    def estimate(self, tokens: Any, *, holder: int = 0) -> tuple[int, int]:
        """(at least, at most) blocks that match, from memory alone: no I/O. Right as long as no record is damaged."""
        self._store._check_call()
        ids = self._store._hasher.hash(self._root, as_tokens(tokens))
        return self._store._estimate(self, ids, holder)

    def block_ids(self, tokens: Any) -> npt.NDArray[np.uint8]:
        """The ids (blocks, 16) of the tokens' whole blocks."""
        return self._store._hasher.hash(self._root, as_tokens(tokens))

    async def _hash(self, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        hasher = self._store._hasher
        if hasher.fits_one_slice(tokens):
            return hasher.hash(self._root, tokens)
        return await hasher.hash_in_slices(self._root, tokens)

    def __repr__(self) -> str:
        return f"Namespace({self.name!r}, adapter={self.adapter!r})"


class Store:
    """An open store. Made by `sarpstore.open`; belongs to the event loop and the process that opened it."""

    def __init__(self, state: State, options: Options) -> None:
        self._state = state
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._hasher = BlockHasher(state.shape.hash, state.shape.block_tokens)
        self._closed = False
        self._matches = self._matched_blocks = self._records_read = 0
        self._inserts = self._inserted_blocks = 0
        self._holders: set[int] = set()
        self._background = Background(state, options, self.stats)

    # --- shape

    @property
    def path(self) -> str:
        return self._state.folder.path

    @property
    def block_tokens(self) -> int:
        """Tokens a block."""
        return self._state.shape.block_tokens

    @property
    def hash(self) -> str:
        return self._state.shape.hash

    @property
    def location_dtype(self) -> np.dtype[Any]:
        return self._state.shape.location_dtype

    def namespace(self, name: str = "", *, adapter: str = "", salt: bytes = b"") -> Namespace:
        """The namespace of that name, adapter and salt. Cheap; no I/O. With all empty, ids equal SGLang's page keys."""
        return Namespace(self, name, adapter, salt)

    # --- batches

    async def match_many(
        self, queries: Iterable[tuple[Namespace, Any]], *, locations: bool = True, holder: int = 0
    ) -> list[Match]:
        """`match` for each (namespace, tokens), as one batch: the reads of all go out together."""
        self._check_call()
        hashed = [(ns, await ns._hash(as_tokens(tokens)), _NATIVE_KEY_BYTES) for ns, tokens in queries]
        return await self._match_batch(hashed, locations, holder)

    async def match_many_ids(
        self, queries: Iterable[tuple[Namespace, Any]], *, locations: bool = True, holder: int = 0
    ) -> list[Match]:
        """`match_ids` for each (namespace, ids), as one batch."""
        self._check_call()
        return await self._match_batch([(ns, *as_ids(ids)) for ns, ids in queries], locations, holder)

    # --- durability

    async def sync(self) -> None:
        """On return, everything that was inserted before the call survives any crash."""
        self._check_writable()
        await self._state.writer.sync()

    async def checkpoint(self) -> None:
        """Write a checkpoint now, so that a later open has no more log to read than what is inserted after it."""
        self._check_writable()
        await self._background.checkpoint()

    async def refresh(self) -> None:
        """Move a read-only store forward to what the writer has committed since. Matches in flight finish on the old state."""
        self._check_call()
        if not self._options.read_only:
            raise ReadOnlyError(
                f"{self.path}: refresh() is for stores opened with read_only=True; this one is always current"
            )
        state = await open_state(self._state.folder, self._options)
        old, self._state = self._state, state
        await self._background.replace(state)
        await old.close_files()

    async def close(self) -> None:
        """Write and sync everything, checkpoint, and close. Closing again does nothing.

        Raises what kept it from syncing; the store is closed all the same.
        """
        if self._closed:
            return
        self._check_call()
        self._closed = True
        try:
            await self._background.stop()
        finally:
            await self._state.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stats(self) -> Stats:
        """Counters since the open, and sizes now."""
        state = self._state
        directory, scheduler, matcher = state.directory, state.scheduler, state.matcher
        cache_bytes = state.pages.cache_bytes
        writer = state.log
        return Stats(
            blocks=directory.blocks,
            segments=directory.entries,
            holders=len(self._holders),
            directory_bytes=directory.bytes,
            cache_bytes=cache_bytes,
            resident_bytes=directory.bytes + cache_bytes + state.buffer_bytes,
            reads=scheduler.reads,
            reads_coalesced=scheduler.reads_coalesced,
            reads_joined=scheduler.reads_joined,
            cache_hits=state.pages.cache_hits,
            records_read=self._records_read,
            matches=self._matches,
            matched_blocks=self._matched_blocks,
            inserts=self._inserts,
            inserted_blocks=self._inserted_blocks,
            log_bytes=state.log_bytes + (writer.bytes_written if writer else 0),
            dead_bytes=state.dead_bytes,
            commits=writer.commits if writer else 0,
            written_bytes=(writer.bytes_written if writer else 0) + self._background.checkpoint_bytes,
            synced_position=writer.synced_position if writer else state.found.end.synced,
            checkpoint_position=self._background.checkpoint_position,
            checkpoints=self._background.checkpoints,
            unloaded_partitions=state.loader.unloaded,
            recovery_ms=state.recovery_ms,
            io_backend=scheduler.backend.name,
            loop_hold_ms_max=round(matcher.loop_hold_ms_max, 3),
            damaged_records=matcher.damaged,
            failed=str(writer.failure) if writer and writer.failure else "",
        )

    # --- matching

    async def _match_one(
        self, namespace: Namespace, ids: npt.NDArray[np.uint8], key_bytes: int, locations: bool, holder: int
    ) -> Match:
        return (await self._match_batch([(namespace, ids, key_bytes)], locations, holder))[0]

    async def _match_batch(
        self, batch: Sequence[tuple[Namespace, npt.NDArray[np.uint8], int]], locations: bool, holder: int
    ) -> list[Match]:
        _check_holder(holder)
        queries = Queries(len(batch))
        dtype = self.location_dtype if locations else None
        for namespace, ids, key_bytes in batch:
            self._check_namespace(namespace, key_bytes)
            queries.add(ids, namespace.name_space, holder, dtype)
        await self._state.matcher.match(queries)
        out = []
        for i, (_, ids, _) in enumerate(batch):
            answer = queries.c[i]
            self._matched_blocks += answer.matched
            self._records_read += answer.records
            out.append(Match(answer.matched, ids, queries.locations[i], self.block_tokens))
        self._matches += len(batch)
        return out

    def _estimate(self, namespace: Namespace, ids: npt.NDArray[np.uint8], holder: int) -> tuple[int, int]:
        _check_holder(holder)
        queries = Queries(1)
        queries.add(ids, namespace.name_space, holder, None)
        bounds = ffi.new("uint32_t[2]")
        lib.sarp_estimate(self._state.directory.c, queries.c, bounds, bounds + 1)
        return bounds[0], bounds[1]

    # --- inserting

    async def _insert(
        self, namespace: Namespace, ids: npt.NDArray[np.uint8], key_bytes: int, rows: npt.NDArray[Any], holder: int
    ) -> int:
        _check_holder(holder)
        self._check_namespace(namespace, key_bytes)
        state = self._state
        queries = Queries(1)
        queries.add(ids, namespace.name_space, holder, None)
        new = 0
        if len(ids):
            new = await self._insert_in_parts(namespace, queries, key_bytes, rows)
        self._inserts += 1
        self._inserted_blocks += new
        self._holders.add(holder)
        if self._options.durability == "always":
            # What was held already may be in a commit that is not synced yet: the call answers for it too.
            await state.writer.durable(state.gatherer.newest_commit)
        return new

    async def _insert_in_parts(
        self, namespace: Namespace, queries: Queries, key_bytes: int, rows: npt.NDArray[Any]
    ) -> int:
        """Insert so much at a time as a commit is sure to hold; what is in is a prefix at every moment."""
        query = queries.c + 0
        total, new = len(rows), 0
        source = pointer("uint8_t *", rows)
        limit = min(total, _INSERT_BLOCKS_MAX)
        while True:
            query.blocks = limit
            held = await self._insert_step(namespace, query, key_bytes, source)
            if held is None:
                # Less was held than the last part left behind (damage): begin again from there.
                limit = min(total, query.matched + _INSERT_BLOCKS_MAX)
                continue
            new += limit - held
            if limit == total:
                return new
            limit = min(total, limit + _INSERT_BLOCKS_MAX)

    async def _insert_step(self, namespace: Namespace, query: Any, key_bytes: int, rows: Any) -> int | None:
        """Insert query.blocks blocks; how many of them were held. None if no commit has room for them at once."""
        state = self._state

        def step(needs: Any) -> int:
            # Chosen anew at every try: another commit may gather by now.
            commit = state.gatherer.buffer
            before = commit.records
            if not self._name_space_written(namespace, key_bytes, commit):
                return int(lib.SARP_NO_ROOM)
            status = int(lib.sarp_insert(state.directory.c, state.pages.c, query, rows, commit.c, needs))
            if commit.records > before:
                state.writer.gathered()
            return status

        while True:
            state.writer.check()
            status = await state.matcher.decide(step)
            if status == lib.SARP_OK:
                return int(query.matched)
            if status == lib.SARP_FULL:
                raise state.directory.full_error()
            if status != lib.SARP_NO_ROOM:
                raise AssertionError(f"the kernel answered {status} to an insertion")
            if not state.gatherer.records:
                return None
            await state.writer.make_room()

    def _name_space_written(self, namespace: Namespace, key_bytes: int, commit: Any) -> bool:
        """Put the namespace's record before its first segment; False if the commit has no room for it."""
        known = self._state.namespaces
        if namespace.name_space in known:
            return True
        if not commit.append(namespace_record(key_bytes, namespace.name, namespace.adapter, namespace.name_space)):
            return False
        known[namespace.name_space] = NamespaceEntry(namespace.name_space, key_bytes, namespace.name, namespace.adapter)
        return True

    # --- checks

    def _check_namespace(self, namespace: Namespace, key_bytes: int) -> None:
        """NamespaceError if the namespace's ids are of another scheme. `key_bytes` 0: there are none."""
        if namespace._store is not self:
            raise InputError(f"{namespace!r} was made by another store")
        known = self._state.namespaces.get(namespace.name_space)
        if known is None or not key_bytes:
            return
        if known.key_bytes != key_bytes:
            raise NamespaceError(
                f"{namespace!r} holds ids made from keys of {known.key_bytes} bytes; these have {key_bytes}"
            )
        if (known.name, known.adapter) != (namespace.name, namespace.adapter):
            raise NamespaceError(f"{namespace!r} has the same 64 bits as namespace {known.name!r}: choose another salt")

    def _check_call(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path} is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"{self.path} was opened by process {self._pid}; open it again in the child process")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None  # stats and estimates may be asked for from outside the loop's callbacks
        if loop is not None and loop is not self._loop:
            raise WrongLoopError(f"{self.path} was opened by another event loop")

    def _check_writable(self) -> None:
        self._check_call()
        if self._options.read_only:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        self._state.writer.check()


def _check_holder(holder: int) -> None:
    if not isinstance(holder, int | np.integer) or isinstance(holder, bool) or not 0 <= holder <= _HOLDER_MAX:
        raise InputError(f"holder={holder!r}: an integer from 0 to 2**32 - 1")


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
        folder = self._path
        if isinstance(folder, str | os.PathLike):
            make = options.create and not options.read_only
            folder = await asyncio.to_thread(RealFolder.open_or_create, os.fspath(folder), create=make)
        try:
            if not options.read_only:
                folder.lock()
            state = await open_state(folder, options)
        except BaseException:
            folder.close()
            raise
        return Store(state, options)


def open_store(path: str | os.PathLike[str] | Folder, **options: Any) -> Opening:
    """Open the store in the folder `path`, or make one there.

    Use `async with sarpstore.open(path) as store` or `store = await sarpstore.open(path)`. The options are those of
    `sarpstore.Options`. `path` may also be a `Folder` of the file layer.

    Raises OptionError for impossible options, NotAStoreError for a path that is none, LockedError where another
    process writes, MismatchError or VersionError where the files say otherwise, StorageError where the system refuses.
    """
    return Opening(path, Options.of(options))
