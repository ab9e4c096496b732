"""Opening a chunk store: lock, recover or make, and clean up what a crash left."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from sarpstore import _format as fmt
from sarpstore._chunks.encoding import (
    ENTRIES_HEADER_BYTES,
    REGION_BYTES_MAX,
    Table,
    decode_entries_header,
    entries_name,
    region_name,
)
from sarpstore._chunks.keys import delimiters_of
from sarpstore._chunks.layout import KVLayout
from sarpstore._chunks.recover import Found, find
from sarpstore._chunks.regions import RegionFiles
from sarpstore._chunks.store import Chunks
from sarpstore._clock import monotonic_ms
from sarpstore._errors import CorruptionError, MismatchError, NotAStoreError, OptionError
from sarpstore._files import CountedFolder, folder_at, read_whole, reads_direct, rounded
from sarpstore._io import Scheduler, choose_backend

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable

    from sarpstore._files import Folder

__all__ = ["ChunksOpening", "Opened", "open_chunks"]

_log = logging.getLogger("sarpstore")

REGION_BYTES: Final = 256 << 20
_REGION_BYTES_MIN: Final = 1 << 20
# Of the cap, for entries files, tables and statistics.
_METADATA_SHARE: Final = 64
_METADATA_MIN: Final = 1 << 20
# Of that, whatever is held: the folder, heads and last pages of three tables, `stats` and its successor; and of each
# region the header of its entries file, what is free in that file's last page, and a row in each table.
_FIXED_BYTES: Final = (1 + 3 * 2 + 4) * fmt.PAGE
_REGION_FIXED_BYTES: Final = 2 * fmt.PAGE + 3 * 24
_OPEN_AGAIN_MAX: Final = 8


@dataclass(slots=True)
class Opened:
    """What an open made of a folder."""

    folder: CountedFolder
    scheduler: Scheduler
    files: RegionFiles
    found: Found
    bytes_max: int
    regions_max: int
    metadata_bytes: int
    """Of the cap, what the entries of chunks, and their rows in tables, may take."""
    recovery_ms: float
    open_again: dict[int, int] = field(default_factory=dict)
    """Regions that have room left, and where it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOptions:
    """See `open_chunks`."""

    layout: KVLayout
    fingerprint: bytes
    delimiters: tuple[int, ...]
    bytes_max: int | None
    region_bytes: int | None
    create: bool
    io: Literal["auto", "uring", "threads"]
    direct_io: Literal["auto"] | bool
    queue_depth: int

    def __post_init__(self) -> None:
        if not isinstance(self.layout, KVLayout):
            raise OptionError(f"layout={self.layout!r}: must be a KVLayout")
        if not isinstance(self.fingerprint, bytes) or not self.fingerprint:
            raise OptionError("fingerprint: must be bytes that name the model's weights and tokenizer")
        for name in ("bytes_max", "region_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(f"{name}={value!r}: must be a number of bytes, or None")
        size = self.region_bytes
        if size is not None and (not _REGION_BYTES_MIN <= size <= REGION_BYTES_MAX or size % fmt.PAGE):
            least, most = _REGION_BYTES_MIN, REGION_BYTES_MAX
            raise OptionError(f"region_bytes={size:,}: must be a multiple of 4,096 from {least:,} to {most:,}")
        delimiters_of(self.delimiters)
        if self.direct_io not in ("auto", True, False):
            raise OptionError(f"direct_io={self.direct_io!r}: must be 'auto', True or False")


class ChunksOpening:
    """What `open_chunks` returns: to be awaited, or entered."""

    def __init__(self, path: str | os.PathLike[str] | Folder, options: ChunkOptions) -> None:
        self._path = path
        self._options = options
        self._chunks: Chunks | None = None

    def __await__(self) -> Generator[object, None, Chunks]:
        return self._open().__await__()

    async def __aenter__(self) -> Chunks:
        self._chunks = await self._open()
        return self._chunks

    async def __aexit__(self, *_: object) -> None:
        assert self._chunks is not None
        await self._chunks.close()

    async def _open(self) -> Chunks:
        began, options = monotonic_ms(), self._options
        folder = CountedFolder(folder_at(self._path, create=options.create))
        try:
            folder.lock()
            scheduler = Scheduler(choose_backend(options.io, options.queue_depth), queue_depth=options.queue_depth)
            try:
                opened = await scheduler.run(_recover, folder, scheduler, options)
            except BaseException:
                await scheduler.close()
                raise
        except BaseException:
            folder.close()
            raise
        opened.recovery_ms = monotonic_ms() - began
        return Chunks(opened, options.layout, options.fingerprint, options.delimiters)


def _recover(folder: CountedFolder, scheduler: Scheduler, options: ChunkOptions) -> Opened:
    sizes = folder.survey()
    found = find(folder, sizes)
    if found is None:
        found = _new(folder, options)
    table = found.table
    if not found.table_read:
        table.region_bytes = max(options.region_bytes or REGION_BYTES, table.region_bytes)
    elif options.region_bytes not in (None, table.region_bytes):
        raise MismatchError("region_bytes", table.region_bytes, options.region_bytes, folder.path)
    bytes_max = options.bytes_max or table.bytes_max
    metadata, regions_max = _shares(bytes_max, table.region_bytes)
    direct = reads_direct(folder, options.direct_io)
    files = RegionFiles(folder, table.uuid, found.entries, direct=direct)
    files.clean(found.remains, found.changed)
    for damage in found.damage:
        _log.warning("%s: %s", folder.path, damage)
    if not found.table_read or bytes_max != table.bytes_max or table.number == 0:
        _note_bounds(files, found, bytes_max)
    opened = Opened(folder, scheduler, files, found, bytes_max, regions_max, metadata, 0.0)
    for number in sorted(found.entries.keys() - found.closed, reverse=True)[:_OPEN_AGAIN_MAX]:
        size = rounded(sizes[region_name(number)])
        if size < table.region_bytes and _may_grow(folder, number, table.uuid):
            opened.open_again[number] = size
    return opened


def _may_grow(folder: Folder, number: int, uuid: bytes) -> bool:
    """Whether what is added to the region's entries will be read: not behind a damaged header."""
    name = entries_name(number)
    try:
        decode_entries_header(read_whole(folder, name, ENTRIES_HEADER_BYTES), name, number, uuid)
    except CorruptionError as error:
        _log.warning("%s: %s; nothing is added to that region", folder.path, error)
        return False
    return True


def _new(folder: CountedFolder, options: ChunkOptions) -> Found:
    if not options.create:
        raise NotAStoreError(f"{folder.path} holds no chunk store, and none is to be made")
    if options.bytes_max is None:
        raise OptionError("bytes_max: a chunk store that is made needs its bound")
    if fmt.numbered(folder.names(), fmt.LOG_SUFFIX):
        raise NotAStoreError(f"{folder.path} holds a store that is no chunk store")
    size = options.region_bytes or REGION_BYTES
    _shares(options.bytes_max, size)
    return Found(Table(secrets.token_bytes(16), 0, options.bytes_max, size, 1, 1), np.empty(0, np.bool_))


def _shares(bytes_max: int, region_bytes: int) -> tuple[int, int]:
    """(bytes for chunks' entries and rows, regions) under a cap. OptionError: it has no room for two regions."""
    metadata = max(_METADATA_MIN, bytes_max // _METADATA_SHARE)
    regions = (bytes_max - metadata) // region_bytes if region_bytes else 0
    if regions < 2:
        least = 2 * region_bytes + max(_METADATA_MIN, 2 * region_bytes // (_METADATA_SHARE - 1) + 1)
        raise OptionError(f"bytes_max={bytes_max:,}: two regions of {region_bytes:,} bytes take at least {least:,}")
    return metadata - _FIXED_BYTES - regions * _REGION_FIXED_BYTES, regions


def _note_bounds(files: RegionFiles, found: Found, bytes_max: int) -> None:
    """A table, so that the bounds stand somewhere: of a new store, of one whose tables are all damaged, a new bound."""
    found.table.number += 1
    found.table.bytes_max = bytes_max
    files.publish(found.table)


def open_chunks(
    path: str | os.PathLike[str] | Folder,
    *,
    layout: KVLayout,
    fingerprint: bytes,
    delimiters: Iterable[int],
    bytes_max: int | None = None,
    region_bytes: int | None = None,
    create: bool = True,
    io: Literal["auto", "uring", "threads"] = "auto",
    direct_io: Literal["auto"] | bool = "auto",
    queue_depth: int = 32,
) -> ChunksOpening:
    """Open the chunk store in the folder `path`, or make one there.

    Use `async with sarpstore.open_chunks(path, ...) as chunks` or `chunks = await sarpstore.open_chunks(path, ...)`.

    layout: The shape of the model's KV. It is part of every key: chunks of another layout are not found.
    fingerprint: Names the model's weights and tokenizer; part of every key, too.
    delimiters: Token ids; each ends a chunk.
    bytes_max: Hard bound of the folder's disk use. None: as the store has it.
    region_bytes: Space comes back by so much at once; chosen when the store is made. None: 256 MiB, or as the store
        has it.
    create: Whether a store may be made.
    io, direct_io, queue_depth: As those of `sarpstore.Options`.

    Raises OptionError for impossible options, NotAStoreError for a path that is none, LockedError where another process
    has it open, MismatchError or VersionError where the files say otherwise, CorruptionError where none of its tables
    and entries files can be read, StorageError where the system refuses.
    """
    return ChunksOpening(
        path,
        ChunkOptions(
            layout=layout,
            fingerprint=fingerprint,
            delimiters=tuple(delimiters),
            bytes_max=bytes_max,
            region_bytes=region_bytes,
            create=create,
            io=io,
            direct_io=direct_io,
            queue_depth=queue_depth,
        ),
    )
