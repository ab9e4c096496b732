"""Answering queries: one kernel call decides from memory, or says what is missing; that is brought, and it goes again.

    queries ──► kernel ──► answers
                  │  ▲
          missing ▼  │ pages held for the call, partitions loaded
             files, images

A decision is one synchronous step over the directory as it is at that moment, so nothing that happened while a read was
on its way can be overlooked, and there is no state to go back to. Cached data takes no turn of the event loop at all.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._clock import monotonic_ms
from sarpstore._errors import ClosedError, StorageError
from sarpstore._kernel import ffi, lib
from sarpstore._log.pages import file_page, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore._checkpoint import PartitionLoader
    from sarpstore._directory import Directory
    from sarpstore._engine.files import OpenFiles
    from sarpstore._io import Scheduler
    from sarpstore._log.pages import Pages

__all__ = ["Matcher", "Queries"]

_log = logging.getLogger("sarpstore")

_NEEDS_MAX: Final = 4096
# Blocks that one kernel call goes through before the event loop gets its turn: about half a millisecond. One query is
# never split.
_SLICE_BLOCKS: Final = 32_768
_DAMAGED_MAX: Final = 65_536
# Time after which a caller that never waits gives way.
_TURN_MS: Final = 1.0


class Queries:
    """A batch of queries in the kernel's form, with the buffers that they point into."""

    __slots__ = ("_keep", "blocks", "c", "count", "locations")

    def __init__(self, count: int) -> None:
        self.count = count
        self.c: Any = ffi.new("sarp_query[]", max(1, count))
        self.blocks: list[int] = []
        self.locations: list[npt.NDArray[Any] | None] = []
        self._keep: list[Any] = []

    def add(
        self, ids: npt.NDArray[np.uint8], name_space: int, holder: int, location_dtype: np.dtype[Any] | None
    ) -> None:
        """Add a query for ids (blocks, 16), with room for its locations if a dtype is given."""
        query = self.c[len(self.blocks)]
        blocks = len(ids)
        self.blocks.append(blocks)
        locations = None
        query.status = lib.SARP_NEED
        query.blocks = blocks
        query.holder = holder
        query.name_space = name_space
        if blocks:
            data = ffi.from_buffer("uint8_t[]", ids)
            self._keep.append(data)
            query.ids = data
        if location_dtype is not None:
            locations = np.empty(blocks, location_dtype)
            if blocks:
                data = ffi.from_buffer("uint8_t[]", locations)
                self._keep.append(data)
                query.locations = data
        self.locations.append(locations)

    def slices(self) -> list[tuple[int, int]]:
        """(first, count) of runs of queries that one kernel call may take."""
        out, first, blocks = [], 0, 0
        for i, count in enumerate(self.blocks):
            if blocks and blocks + count > _SLICE_BLOCKS:
                out.append((first, i - first))
                first, blocks = i, 0
            blocks += count
        out.append((first, self.count - first))
        return out


class Matcher:
    """Matches against one state of a store: a directory, the pages in memory, and the files behind them."""

    def __init__(
        self,
        directory: Directory,
        pages: Pages,
        loader: PartitionLoader,
        files: OpenFiles,
        scheduler: Scheduler,
    ) -> None:
        self.directory = directory
        self.pages = pages
        self.loader = loader
        self.files = files
        self._scheduler = scheduler
        self._needs = ffi.new("sarp_needs *")
        self._needs_pages = ffi.new("uint64_t[]", _NEEDS_MAX)
        self._needs_partitions = ffi.new("uint32_t[]", _NEEDS_MAX)
        self._needs_damaged = ffi.new("uint64_t[]", _NEEDS_MAX)
        self._needs.pages, self._needs.page_limit = self._needs_pages, _NEEDS_MAX
        self._needs.partitions, self._needs.partition_limit = self._needs_partitions, _NEEDS_MAX
        self._needs.damaged, self._needs.damaged_limit = self._needs_damaged, _NEEDS_MAX
        self._damaged: set[int] = set()
        self._unreadable_pages: set[int] = set()
        self._turn_ms = 0.0
        self.other_damage = 0
        self.loop_hold_ms_max = 0.0

    @property
    def damaged(self) -> int:
        """Distinct records, images and runs of bytes found damaged."""
        return len(self._damaged) + self.other_damage

    async def match(self, queries: Queries) -> None:
        """Answer all queries of the batch. Reads of all of them go out together."""
        held: dict[int, memoryview | None] = {}
        slices = queries.slices()
        while True:
            pages: set[int] = set()
            partitions: set[int] = set()
            for i, (first, count) in enumerate(slices):
                if i:
                    await asyncio.sleep(0)
                self._decide(functools.partial(self._match, queries, first, count), held)
                self._collect(pages, partitions)
            if not pages and not partitions:
                break
            await self._bring(pages, partitions, held)
        await self._give_way()

    async def decide(self, step: Callable[[Any], int]) -> int:
        """Run a step (a kernel call that is given the needs) until it needs nothing more; its last status."""
        held: dict[int, memoryview | None] = {}
        while True:
            status = self._decide(step, held)
            if status != lib.SARP_NEED:
                await self._give_way()
                return status
            pages: set[int] = set()
            partitions: set[int] = set()
            self._collect(pages, partitions)
            await self._bring(pages, partitions, held)

    def _match(self, queries: Queries, first: int, count: int, needs: Any) -> int:
        left = self.directory.match(self.pages.c, queries.c + first, count, needs)
        return int(lib.SARP_NEED) if left else int(lib.SARP_OK)

    def _decide(self, step: Callable[[Any], int], held: dict[int, memoryview | None]) -> int:
        needs = self._needs
        needs.page_count = needs.partition_count = needs.damaged_count = 0
        began = monotonic_ms()
        if held:
            with self.pages.hold(held):
                status = step(needs)
        else:
            status = step(needs)
        self.note_hold(began)
        if needs.damaged_count:
            self._report_damaged(ffi.unpack(needs.damaged, needs.damaged_count))
        return status

    async def _give_way(self) -> None:
        """Let the event loop run now and then: calls on cached data never wait, and callers may make them in a loop."""
        if monotonic_ms() - self._turn_ms > _TURN_MS:
            await asyncio.sleep(0)
            self._turn_ms = monotonic_ms()

    def note_hold(self, began_ms: float) -> None:
        """Count a step that began at `began_ms` and ends now against the longest hold of the loop."""
        self.loop_hold_ms_max = max(self.loop_hold_ms_max, monotonic_ms() - began_ms)

    def _collect(self, pages: set[int], partitions: set[int]) -> None:
        needs = self._needs
        if needs.page_count:
            pages.update(ffi.unpack(needs.pages, needs.page_count))
        if needs.partition_count:
            partitions.update(ffi.unpack(needs.partitions, needs.partition_count))

    async def _bring(self, pages: set[int], partitions: set[int], held: dict[int, memoryview | None]) -> None:
        if pages and partitions:
            await asyncio.gather(self.loader.load(partitions), self._read(pages, held))
        elif partitions:
            await self.loader.load(partitions)
        else:
            await self._read(pages, held)

    async def _read(self, keys: set[int], held: dict[int, memoryview | None]) -> None:
        """Read log pages into `held` and the cache. One that can't be read is held as None: its records are damaged."""
        left = keys
        while left:
            left = await self._try_read(left, held)

    async def _try_read(self, keys: set[int], held: dict[int, memoryview | None]) -> set[int]:
        """As `_read`; the keys whose file was closed meanwhile to make room for others: they must be tried again."""
        again: set[int] = set()
        wanted, places = [], []
        for key in keys:
            slot, page = file_page(key)
            try:
                wanted.append((await self.files.log(int(self.directory.base.slot_files[slot])), page))
                places.append(key)
            except StorageError as error:
                self._unreadable(key, error)
                held[key] = None
        for key, view in zip(places, await self._scheduler.try_read_pages(wanted), strict=True):
            if isinstance(view, ClosedError) and not self.files.closed:
                again.add(key)
                continue
            if isinstance(view, BaseException):
                if not isinstance(view, StorageError):
                    raise view
                self._unreadable(key, view)
                held[key] = None
                continue
            page_view = whole(view)
            held[key] = page_view
            if page_view is not None:
                self.pages.cache_insert(key, ffi.from_buffer("uint8_t[]", page_view))
        return again

    def _unreadable(self, key: int, error: StorageError) -> None:
        """Log, once, a page that can't be read. What counts as damage is its records, as they are asked for.

        Only where the file is gone or the device can't read it: an error of the system's own (too many open files, no
        memory) passes, and is the caller's to know.
        """
        if error.errno not in (errno.EIO, errno.ENOENT):
            raise error
        if key not in self._unreadable_pages and len(self._unreadable_pages) < _DAMAGED_MAX:
            self._unreadable_pages.add(key)
            _log.error("%s", error)

    def _report_damaged(self, references: Sequence[int]) -> None:
        for reference in references:
            file_number = int(self.directory.base.slot_files[reference >> fmt.UNIT_BITS])
            offset = fmt.position_offset(reference)
            if self.count_damaged(fmt.position(file_number, offset)):
                _log.error("%s at byte %d: a damaged record; its blocks miss", fmt.log_name(file_number), offset)

    def count_damaged(self, position: int) -> bool:
        """Count damage at a place in the log, once; whether it is news."""
        if position in self._damaged or len(self._damaged) >= _DAMAGED_MAX:
            return False
        self._damaged.add(position)
        return True

    def report(self, error: BaseException) -> None:
        """Count and log damage that is not a record's."""
        self.other_damage += 1
        _log.error("%s", error)
