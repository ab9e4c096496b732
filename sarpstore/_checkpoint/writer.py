"""Writing checkpoints: fuzzy, incremental, published atomically (format-spec/checkpoint.md, recovery.md section 1).

A checkpoint notes where the log stands, then images one partition after another while everything goes on. An image may
therefore reflect records behind the start; replaying them again changes nothing. The head is published once the log
is synced up to the last record that an image may reflect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from sarpstore import _format as fmt
from sarpstore._checkpoint.head import CheckpointHead, encode_image
from sarpstore._checkpoint.loader import places_by_range
from sarpstore._directory import DIRTY, LOADED, Cursor, Directory
from sarpstore._errors import CorruptionError, LimitError, SarpError, StorageError
from sarpstore._files import read_whole
from sarpstore._io import give_way

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from sarpstore._checkpoint.loader import PartitionLoader
    from sarpstore._files import File, Folder, ReadableBuffer
    from sarpstore._io import Scheduler
    from sarpstore._log.gather import Gatherer
    from sarpstore._log.writer import LogWriter

__all__ = ["Checkpointer", "named_slots"]

_log = logging.getLogger("sarpstore")

# What is written and synced at a time: the pages that matches read wait on the device for as long as that takes. Beside
# 4 MB at once the slowest of a hundred took 5.7 ms, beside such pieces 0.8 ms.
_PIECE_BYTES: Final = 256 << 10
# Image files may hold this many times what the newest head names before everything is imaged anew.
_IMAGES_SHARE_MAX: Final = 3
_IMAGES_BYTES_MIN: Final = 1 << 20
# The event loop gets its turn after so many rows of the partition table.
_YIELD_ROWS: Final = 2


class DiskBound(Protocol):
    """What a bound of the disk's use has to say."""

    @property
    def fits_checkpoint(self) -> bool:
        """Whether a whole checkpoint fits in beside those that are there."""

    @property
    def may_share_images(self) -> bool:
        """Whether the images that are there may be shared."""

    def checkpoint_begins(self) -> None: ...

    def taking(self, length: int) -> AbstractContextManager[None]:
        """While so many bytes of it are written."""

    def checkpoint_ended(self) -> None: ...


@dataclass(slots=True)
class _Images:
    """The .images file being written: pages gathered in memory, handed on in pieces."""

    file: File
    gathered: bytearray
    written: int = 0

    @property
    def page(self) -> int:
        return (self.written + len(self.gathered)) // fmt.PAGE


class Checkpointer:
    """Writes checkpoints of `directory`. One at a time; `number` is the last one's."""

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        uuid: bytes,
        directory: Directory,
        loader: PartitionLoader,
        gatherer: Gatherer,
        log: LogWriter,
        *,
        number: int,
        describe: Callable[[CheckpointHead], None],
        add_markers: Callable[[CheckpointHead], Awaitable[None]],
        published: Callable[[CheckpointHead], Awaitable[None]],
        bound: DiskBound | None = None,
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._uuid = uuid
        self._directory = directory
        self._loader = loader
        self._gatherer = gatherer
        self._log = log
        self._describe = describe
        self._add_markers = add_markers
        self._published = published
        self._bound = bound
        self.lock = asyncio.Lock()
        """Held while a checkpoint is written: who deletes a log file holds it, so that no head is of both times."""
        self.number = number
        self.position = 0
        """Start of the last checkpoint that this object published."""
        self.bytes_written = 0
        self._kept: dict[int, frozenset[int]] = {}
        """Numbers of the heads that are there and valid, as far as that is known, with those of their .images files."""

    async def write(self) -> None:
        """Write and publish a checkpoint. After an error the previous one stands, and all is imaged next time."""
        async with self.lock:
            self._log.check()
            if self._loader.incomplete is not None:
                raise self._loader.incomplete
            if self._bound is None:
                await self._write()
                return
            await self._make_room(self._bound)
            self._bound.checkpoint_begins()
            try:
                await self._write()
            finally:
                self._bound.checkpoint_ended()

    async def drop_older(self) -> None:
        """Remove the older of the checkpoints that are kept: somebody needs its room."""
        async with self.lock:
            await self._remove_old(self.number, 1)

    async def _make_room(self, bound: DiskBound) -> None:
        """Drop the older checkpoint where the new one does not fit in beside it. The newest is never dropped."""
        if not bound.fits_checkpoint:
            await self._remove_old(self.number, 1)
        if not bound.fits_checkpoint:
            raise LimitError(f"{self._folder.path}: bytes_max leaves no room for a checkpoint")

    async def _write(self) -> None:
        # Never the same number twice: a head that failed half way may stand there, and name that .images file.
        number = self.number = self.number + 1
        start, commit, sequence = self._gatherer.place()
        head = CheckpointHead(
            self._uuid, number, start, 0, commit, sequence, fmt.ROUTINGS.index(self._directory.routing)
        )
        try:
            # All namespaces and removals that there are at the start; the tail brings later ones, if it survives.
            self._describe(head)
            await self._write_images(head)
            await self._add_markers(head)
            await self._log.sync()
            head.synced = max(start, self._log.synced_position)
            # A file that has nothing but its header begins behind what was synced before it.
            head.moments = head.moments[head.moments["position"] <= head.synced]
            head.slots = self._slots()
            data = await self._scheduler.run_background(head.encode)
            await self._publish(fmt.checkpoint_name(number), data)
        except BaseException:
            self._directory.mark_dirty_from(self._directory.begin_of(self._directory.first()))
            with contextlib.suppress(SarpError):
                await self._scheduler.run_background(_remove_failed, self._folder, number)
            raise
        self.position = start
        self._loader.places = places_by_range(self._directory, head.partitions)
        await self._published(head)
        try:
            self._kept[number] = _images_of(head)
            await self._remove_old(number, fmt.CHECKPOINTS_KEPT)
        except StorageError as error:
            _log.warning("older checkpoints were not removed: %s", error)

    async def _publish(self, name: str, data: memoryview) -> None:
        """Write a head under a temporary name, sync, rename, sync the folder.

        The folder is synced before, too: the head's name must not be there after a crash without its images' name.
        """
        temporary = name + fmt.TEMPORARY_SUFFIX
        file = await self._scheduler.run_background(_create, self._folder, temporary)
        try:
            await self._write_pieces(file, 0, data)
        finally:
            await self._scheduler.run_background(file.close)
        await self._scheduler.run_background(_rename_synced, self._folder, temporary, name)

    async def _write_pieces(self, file: File, offset: int, data: memoryview) -> None:
        """Write and sync, between pieces giving way to those who wait for the device."""
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            with self._taking(len(piece)):
                await self._scheduler.run_background(_write_synced, file, offset + at, piece)
            self.bytes_written += len(piece)
            await give_way(self._scheduler.turns)

    async def _remove_old(self, newest: int, keep: int) -> None:
        """Keep so many of the newest valid heads, and the .images files that they name."""
        known = dict(self._kept)
        self._kept = await self._scheduler.run_background(_remove_old, self._folder, newest, known, keep)

    def _slots(self) -> dict[int, int]:
        """The slots of the files that exist. Records may be gathering, or on their way, for one that does not yet."""
        files = self._directory.base.slot_files[: self._directory.base.slot_count].tolist()
        return {slot: number for slot, number in enumerate(files) if 0 < number <= self._log.newest_file}

    async def _write_images(self, head: CheckpointHead) -> None:
        """Image the partitions in the order of their ranges.

        What splits meanwhile splits behind the cursor or ahead of it, never over it: the range of an imaged partition
        is done, and the halves of one that is still ahead are imaged each.
        """
        rows = bytearray()
        share = await self._scheduler.run_background(self._may_share)
        if self._bound is not None:
            share = share and self._bound.may_share_images
        images: _Images | None = None
        begin: Cursor | None = self._directory.begin_of(self._directory.first())
        try:
            while begin is not None:
                number = self._directory.at(begin)
                if not self._directory.partitions[number]["flags"] & LOADED and self._loader.has_tail(number):
                    await self._loader.load([number])
                    continue
                row = self._shared(number, share)
                if row is None:
                    await self._loader.load([number])
                    name = fmt.images_name(head.number)
                    images = images or _Images(
                        await self._scheduler.run_background(_create, self._folder, name), bytearray()
                    )
                    row = self._image(number, head.number, images)
                rows += row.tobytes()
                begin = self._directory.end_of(number)
                if images is not None and len(images.gathered) >= _PIECE_BYTES:
                    await self._flush(images)
                elif len(rows) // row.itemsize % _YIELD_ROWS == 0:
                    await give_way(self._scheduler.turns)
            if images is not None:
                await self._flush(images)
        finally:
            if images is not None:
                await self._scheduler.run_background(images.file.close)
        head.partitions = np.frombuffer(rows, self._directory.row_dtype)

    def _shared(self, number: int, share: bool) -> Any | None:
        """The partition's present image, if it is still what the partition is."""
        if not share or self._directory.partitions[number]["flags"] & DIRTY:
            return None
        return self._loader.places.get(self._directory.row_range(self._directory.row(number)))

    def _image(self, number: int, checkpoint: int, images: _Images) -> Any:
        row = self._directory.row(number)
        self._directory.partitions["flags"][number] &= ~np.uint8(DIRTY)
        if row["entries"]:
            row["images_number"], row["page"] = checkpoint, images.page
            images.gathered += encode_image(self._directory, self._uuid, row, self._directory.image(number))
        return row

    async def _flush(self, images: _Images) -> None:
        data, images.gathered = memoryview(images.gathered), bytearray()
        await self._write_pieces(images.file, images.written, data)
        images.written += len(data)

    def _taking(self, length: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._bound is None else self._bound.taking(length)

    def _may_share(self) -> bool:
        """Whether the image files are small enough to share images in them (on the thread for writes)."""
        numbers = fmt.numbered(self._folder.names(), fmt.IMAGES_SUFFIX)
        held = sum(self._folder.size(fmt.images_name(number)) for number in numbers)
        whole = self._directory.entries_all * self._directory.entry_bytes
        return held <= _IMAGES_SHARE_MAX * max(whole, _IMAGES_BYTES_MIN)


def _create(folder: Folder, name: str) -> File:
    if name in folder.names():
        folder.remove(name)
    return folder.create(name)


def _write_synced(file: File, offset: int, data: ReadableBuffer) -> None:
    file.write(offset, data)
    file.sync()


def _rename_synced(folder: Folder, old: str, new: str) -> None:
    folder.sync()
    folder.rename(old, new)
    folder.sync()


def _remove_failed(folder: Folder, number: int) -> None:
    """Remove what there is of a checkpoint that failed: never a head's images before the head."""
    names, name, images = folder.names(), fmt.checkpoint_name(number), fmt.images_name(number)
    if name in names:
        folder.remove(name)
        folder.sync()
    for other in (images, name + fmt.TEMPORARY_SUFFIX):
        if other in names:
            folder.remove(other)


def _remove_old(
    folder: Folder, newest: int, known: Mapping[int, frozenset[int]], keep: int
) -> dict[int, frozenset[int]]:
    """Remove all but `keep` valid heads, and the .images files up to `newest` that none of these names; what is kept.

    The folder is synced in between: after a crash a head must not be there again without its images. Heads that are
    `known` are not read again: they may have megabytes of markers.
    """
    names = folder.names()
    kept: dict[int, frozenset[int]] = {}
    for number in reversed(fmt.numbered(names, fmt.CHECKPOINT_SUFFIX)):
        images = known.get(number)
        if images is None and len(kept) < keep and (head := _try_read_head(folder, number)) is not None:
            images = _images_of(head)
        if images is None or len(kept) == keep:
            folder.remove(fmt.checkpoint_name(number))
        else:
            kept[number] = images
    needed = frozenset[int]().union(*kept.values())
    numbers = fmt.numbered(names, fmt.IMAGES_SUFFIX)
    needless = [number for number in numbers if number not in needed and number <= newest]
    if needless:
        folder.sync()
    for number in needless:
        folder.remove(fmt.images_name(number))
    return kept


def _images_of(head: CheckpointHead) -> frozenset[int]:
    # Not np.unique, whose first call imports for 25 ms and more.
    numbers = np.sort(head.partitions["images_number"])
    return frozenset(numbers[np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]].tolist())


def named_slots(folder: Folder) -> set[int]:
    """The slots that any valid head in the folder names. Blocks: for a thread."""
    heads = (_try_read_head(folder, number) for number in fmt.numbered(folder.names(), fmt.CHECKPOINT_SUFFIX))
    return {slot for head in heads if head is not None for slot in head.slots}


def _try_read_head(folder: Folder, number: int) -> CheckpointHead | None:
    name = fmt.checkpoint_name(number)
    try:
        return CheckpointHead.decode(read_whole(folder, name), name, number)
    except CorruptionError:
        return None
