"""Log pages in memory: the bounded cache, commits still in their buffers, and pages that a call has just read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._io import ReadTable
from sarpstore._kernel import FEATURES, ffi, lib, pointer, reserve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["RANGES_MAX", "Pages"]

RANGES_MAX: Final = 8
"""Commits that are gathering, waiting to be written or being written, at most."""

# Frames of the cache that are looked at in one turn of the event loop.
_FORGOTTEN_AT_ONCE: Final = 1 << 17


class Pages:
    """What the kernel's matching reads records from. A page's key is `slot << 18 | page number`."""

    def __init__(self, uuid: bytes, location_bytes: int, cache_bytes: int, features: int = FEATURES) -> None:
        self._uuid = ffi.new("uint8_t[16]", uuid)
        self._cache_memory = self._make_cache(cache_bytes)
        self._ranges = ffi.new("sarp_page_range[]", RANGES_MAX)
        self.c: Any = ffi.new("sarp_pages *")
        self.c.cache = self.cache
        self.c.ranges = self._ranges
        self.c.uuid = self._uuid
        self.c.location_bytes = location_bytes
        self.c.features = features

    def _make_cache(self, cache_bytes: int) -> list[Any]:
        frames = cache_bytes // fmt.PAGE
        table = 1 << max(1, (frames * 2 - 1).bit_length()) if frames else 1
        memory = [reserve(size, "cache_bytes") for size in (frames * fmt.PAGE, frames * 8, frames, table * 4)]
        self.cache: Any = ffi.new("sarp_cache *")
        self.cache.frames = pointer("uint8_t *", memory[0])
        self.cache.keys = pointer("uint64_t *", memory[1])
        self.cache.referenced = pointer("uint8_t *", memory[2])
        self.cache.table = pointer("uint32_t *", memory[3])
        self.cache.table_size = table
        self.cache.capacity = frames
        return memory

    @property
    def cache_bytes(self) -> int:
        """Bytes of pages cached now."""
        return int(self.cache.used) * fmt.PAGE

    @property
    def cache_hits(self) -> int:
        return int(self.cache.hits)

    def add_range(self, first_key: int, data: Any, pages: int) -> None:
        """Show `pages` pages at `data` (a C pointer) until `remove_range`."""
        entry = self._ranges[self.c.range_count]
        entry.first_key = first_key
        entry.data = data
        entry.pages = pages
        self.c.range_count += 1

    def trim_range(self, first_key: int, pages: int) -> None:
        """The range is over at `pages` pages: what follows in the file belongs to another."""
        for i in range(self.c.range_count):
            if self._ranges[i].first_key == first_key:
                self._ranges[i].pages = pages

    def remove_range(self, first_key: int) -> None:
        for i in range(self.c.range_count):
            if self._ranges[i].first_key == first_key:
                self._ranges[i] = self._ranges[self.c.range_count - 1]
                self.c.range_count -= 1
                return

    def cache_insert(self, first_key: int, data: Any, pages: int = 1) -> None:
        """Keep neighbouring whole pages (at a C pointer) in the cache."""
        lib.sarp_cache_insert(self.cache, first_key, data, pages)

    def forget(self, slot: int) -> Iterator[None]:
        """Drop a slot's pages from the cache, in steps of less than a millisecond."""
        for first in range(0, int(self.cache.used), _FORGOTTEN_AT_ONCE):
            lib.sarp_cache_forget(self.cache, slot, first, _FORGOTTEN_AT_ONCE)
            yield

    def serve(self, table: ReadTable) -> None:
        """Show the pages that are held in a table of reads, and cache those that are read from now on."""
        self._table = table
        self.c.reads = table.c
        table.c.cache = self.cache

    def hold(self, held: Mapping[int, memoryview | None]) -> Held:
        """Show these pages, None for one that cannot be read, while the result is in `with`."""
        return Held(self, held)


class Held:
    """Pages that are shown to the kernel as if they had been read."""

    __slots__ = ("_before", "_buffers", "_held", "_pages", "_ticket")

    def __init__(self, pages: Pages, held: Mapping[int, memoryview | None]) -> None:
        self._pages = pages
        self._held = held
        self._buffers: list[Any] = []

    def __enter__(self) -> None:
        self._before = self._pages.c.reads
        table = ReadTable(pages=max(1, len(self._held)))
        self._ticket = lib.sarp_reads_ticket(table.c)
        for key, page in self._held.items():
            data = ffi.NULL if page is None else ffi.from_buffer("uint8_t[]", page)
            self._buffers.append(data)
            lib.sarp_reads_put(table.c, self._ticket, key, data, 0)
        self._buffers.append(table)
        self._pages.c.reads = table.c

    def __exit__(self, *_: object) -> None:
        self._pages.c.reads = self._before
        self._buffers.clear()


def file_page(key: int) -> tuple[int, int]:
    """(slot, page number in the file) of a page key."""
    return key >> 18, key & ((1 << 18) - 1)
