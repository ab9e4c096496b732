"""Partitions read on first use.

After an open from a checkpoint no partition is in memory. Each is read when a call first needs it, or by and by in the
background; then what names files that are gone is dropped, and the operations of the log's tail that concern it, which
wait in a list, are applied. A partition whose image is damaged is rebuilt from the log.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._checkpoint.head import decode_image, image_length
from sarpstore._directory import LOADED, Cursor, Directory
from sarpstore._errors import CorruptionError, LimitError, StorageError
from sarpstore._io import BACKGROUND, MATCHING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from sarpstore._files import File
    from sarpstore._io import Scheduler

__all__ = ["ImagePlace", "PartitionLoader", "places_by_range", "steps_by_partition"]

ImagePlace = np.void
"""A row of a head's partition table: where a partition's image is, and what it holds."""

_AT_ONCE: Final = 16
_REBUILD_SLICE: Final = 8192


def steps_by_partition(
    directory: Directory, changes: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[Any]]:
    """The steps of changes grouped by partition, in order of place within each, and where each group begins."""
    partition, steps = directory.steps(changes)
    # Numbers of 16 bits numpy sorts by counting, several times as fast.
    narrow = partition.astype(np.uint16) if len(directory.partitions) <= 1 << 16 else partition
    order = np.argsort(narrow, kind="stable")
    starts = np.searchsorted(partition[order], np.arange(len(directory.partitions) + 1))
    return steps[order], starts


def places_by_range(directory: Directory, rows: npt.NDArray[Any]) -> dict[Cursor, ImagePlace]:
    """Rows of a head's partition table by their range."""
    return dict(zip(directory.row_ranges(rows), rows, strict=True))


class PartitionLoader:
    """Loads partitions of `directory` from `places` (their rows in the head) and applies the `tail` of the log.

    `grouped` is `steps_by_partition` of the tail. `open_images(number)` opens an .images file; `rebuild()` gives all
    segment changes of the log up to the tail's end; `damaged(error)` is told of damage found.
    """

    def __init__(
        self,
        directory: Directory,
        scheduler: Scheduler,
        uuid: bytes,
        places: npt.NDArray[Any],
        tail: npt.NDArray[Any],
        grouped: tuple[npt.NDArray[np.uint32], npt.NDArray[Any]],
        *,
        open_images: Callable[[int], Awaitable[File]],
        rebuild: Callable[[], Coroutine[Any, Any, npt.NDArray[Any]]],
        damaged: Callable[[BaseException], None],
    ) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._uuid = uuid
        self._open_images = open_images
        self._rebuild = rebuild
        self._report = damaged
        self._tail = tail
        self._steps, self._starts = grouped
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._rebuilding: asyncio.Task[npt.NDArray[Any]] | None = None
        self.places = places_by_range(directory, places)
        """Images that are as their partition is on disk, by range; a checkpoint may share them."""
        self.incomplete: LimitError | None = None
        """Why a partition in memory lacks part of the log's tail: no checkpoint may be written then."""
        self.unloaded = len(places)
        """Partitions that are not in memory yet."""
        base = directory.base
        self._gone = np.flatnonzero(base.slot_files[: base.slot_count] == 0).tolist()
        """Slots of files that were retired after the images were made."""

    def has_tail(self, partition: int) -> bool:
        """Whether operations of the log's tail wait for this partition."""
        return bool(self._starts[partition] < self._starts[partition + 1])

    async def load(self, partitions: Iterable[int], priority: int = MATCHING) -> None:
        """Return once these partitions are in memory."""
        flags = self._directory.partitions["flags"]
        wanted = {number for number in partitions if not flags[number] & LOADED}
        new = sorted(wanted - self._loading.keys())
        if new:
            task = asyncio.create_task(self._load(new, priority))
            self._loading.update(dict.fromkeys(new, task))
            task.add_done_callback(functools.partial(self._loaded, new))
        for task in {self._loading[number] for number in wanted}:
            await asyncio.shield(task)

    async def load_all(self) -> None:
        """Load what is not loaded, a few at a time; for the background."""
        numbers = np.flatnonzero(~self._directory.partitions["flags"] & LOADED).tolist()
        for i in range(0, len(numbers), _AT_ONCE):
            await self.load(numbers[i : i + _AT_ONCE], BACKGROUND)
            await asyncio.sleep(0)

    def _loaded(self, numbers: list[int], _: asyncio.Task[None]) -> None:
        for number in numbers:
            del self._loading[number]

    async def _load(self, numbers: list[int], priority: int) -> None:
        keys = [self._directory.row_range(self._directory.row(number)) for number in numbers]
        images = await self._read_images([self.places[key] for key in keys], priority)
        for i, (number, key, image) in enumerate(zip(numbers, keys, images, strict=True)):
            if i and i % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                if isinstance(image, BaseException):
                    raise image
                self._directory.load(number, decode_image(image, self._uuid, self._directory, self.places[key]))
            except (CorruptionError, StorageError, ValueError) as error:
                self._report(error)
                await self._load_from_log(number)
            else:
                # At once: a partition is whole from the moment on at which it counts as loaded.
                self._forget_gone(number)
                self._apply_tail(number)
            self.unloaded -= 1

    def _forget_gone(self, number: int) -> None:
        """Drop what names a file that is gone: evicted since the image was made, or moved, which the tail tells.

        What stands on it would count as held, and could not be located.
        """
        for slot in self._gone:
            if self._directory.base.slot_entries[slot]:
                self._directory.forget(number, 1, slot)

    def _apply_tail(self, number: int) -> None:
        try:
            self._directory.apply(self._tail, self._steps[self._starts[number] : self._starts[number + 1]])
        except LimitError as error:
            self.incomplete = error
            raise

    async def _read_images(self, places: list[ImagePlace], priority: int) -> list[memoryview | BaseException]:
        """The images' bytes, or why they can't be read; b"" for a partition without entries."""
        out: list[memoryview | BaseException] = [memoryview(b"")] * len(places)
        wanted, indexes = [], []
        for i, place in enumerate(places):
            if not place["entries"]:
                continue
            try:
                file = await self._open_images(int(place["images_number"]))
            except StorageError as error:
                out[i] = error
                continue
            wanted.append((file, int(place["page"]) * fmt.PAGE, image_length(self._directory, int(place["entries"]))))
            indexes.append(i)
        for i, data in zip(indexes, await self._scheduler.try_read_many(wanted, priority), strict=True):
            out[i] = data
        return out

    async def _load_from_log(self, number: int) -> None:
        """A damaged image costs time, nothing else: the log has it all."""
        if self._rebuilding is None or (self._rebuilding.done() and self._rebuilding.exception() is not None):
            self._rebuilding = asyncio.create_task(self._rebuild())
        changes = await asyncio.shield(self._rebuilding)
        parts = []
        for i in range(0, len(changes), _REBUILD_SLICE):
            part = changes[i : i + _REBUILD_SLICE]
            partition, steps = self._directory.steps(part)
            parts.append((part, np.ascontiguousarray(steps[partition == number])))
            await asyncio.sleep(0)
        # At once, as in _load.
        self._directory.load_empty(number)
        for part, steps in parts:
            self._directory.apply(part, steps)
