"""What the kernel holds, as plain values that can be compared: records, entries, queries, and the dict's view."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, ffi, lib
from sarpstore._kernel.twin_directory import Segment, SegmentChange, TwinDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from sarpstore._directory import DivergenceDirectory
    from sarpstore._log.pages import Pages

SECRET = bytes(range(16))
UUID = bytes(range(16, 32))
LAYOUTS = ((0,), (3,) * 8, (1, 2, 4, 4, 4, 4))  # depths of the partitions, in order of prefix
DIRECTORY_BYTES = 1 << 20
_SEGMENT = struct.Struct("<IIQ16sQQQ40x")  # holder, window, namespace, prefix id, born, parent key, supersedes
_LIMIT = 256


def ids_array(ids: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, fmt.ID_BYTES)


def change_of(change: SegmentChange) -> tuple[int, ...]:
    return (change.key, change.root_key, change.position, change.supersedes, change.n, change.d, change.dp)


def changes_array(changes: Sequence[SegmentChange]) -> npt.NDArray[Any]:
    """The kernel's form of changes."""
    out = np.zeros(len(changes), CHANGE_DTYPE)
    for row, change in zip(out, changes, strict=True):
        for name in ("key", "root_key", "position", "supersedes", "n", "d", "dp"):
            row[name] = getattr(change, name)
        row["type"] = fmt.RECORD_SEGMENT
    return out


def changes_list(changes: npt.NDArray[Any]) -> list[tuple[int, ...]]:
    names = ("key", "root_key", "position", "supersedes", "n", "d", "dp")
    return list(zip(*(changes[name].tolist() for name in names), strict=True))


def parse_segment(record: bytes | memoryview, position: int, location_bytes: int) -> Segment:
    """A segment record, read by the format's pages alone."""
    n, d, dp = record[12:15]
    holder, window, namespace, prefix_id, born, parent_key, supersedes = _SEGMENT.unpack_from(record, 32)
    # The highest position that there was: records of a commit go where they fit.
    assert born >= position
    assert born >> 24 == position >> 24
    ids = tuple(bytes(record[128 + 16 * i : 144 + 16 * i]) for i in range(n))
    first = 128 + 16 * n
    locations = tuple(bytes(record[first + location_bytes * i : first + location_bytes * (i + 1)]) for i in range(n))
    return Segment(position, holder, window, namespace, prefix_id, ids, locations, d, dp, parent_key, supersedes)


Rows = dict[int, tuple[list[tuple[int, int, int, int, int]], list[int]]]
"""By key: (mask, position, n, d, dp) of each entry, the latest entered first, and the masks of placeholders."""


def kernel_rows(directory: DivergenceDirectory, partitions: Sequence[int]) -> Rows:
    rows: Rows = {}
    files = directory.base.slot_files[: directory.base.slot_count].tolist()
    fields = ("prefix", "depth", "entries")
    shapes = list(zip(*(directory.partitions[name].tolist() for name in fields), strict=True))
    for number in partitions:
        prefix, depth, count = shapes[number]
        if not count:
            continue
        entries = directory.image(number).tolist()
        assert len(entries) == count
        previous = prefix
        for word0, word1 in entries:
            key = word0 >> 16
            assert key >= previous
            previous = key
            found, placeholders = rows.setdefault(key, ([], []))
            if word1 & 1:
                assert word1 >> 6 == fmt.REFERENCE_NONE << 18
                placeholders.append(word0 & 0xFFFF)
                continue
            position = files[word1 >> 48] << 24 | word1 >> 24 & 0xFFFFFF
            found.append((word0 & 0xFFFF, position, (word1 >> 18 & 63) + 1, word1 >> 12 & 63, word1 >> 6 & 63))
        assert previous < prefix + (1 << 48 - depth)
    return rows


def twin_rows(directory: TwinDirectory, among: Callable[[int], bool] = lambda _: True) -> Rows:
    rows: Rows = {}
    for key, entries in directory._entries.items():
        if entries and among(key):
            found = [(e.mask, e.position, e.n, e.d, e.dp) for e in reversed(entries) if e.position is not None]
            rows[key] = found, [e.mask for e in entries if e.position is None]
    return rows


def unordered(rows: Rows) -> dict[int, tuple[list[Any], int]]:
    """Rows without the order of equal keys, and placeholders' masks as one."""
    out = {}
    for key, (found, placeholders) in rows.items():
        mask = 0
        for each in placeholders:
            mask |= each
        out[key] = sorted(found), mask
    return out


def clear_cache(pages: Pages) -> None:
    cache = pages.cache
    cache.used = cache.hand = 0
    ffi.buffer(cache.table, cache.table_size * 4)[:] = bytes(cache.table_size * 4)


class Needs:
    """`sarp_needs` and the memory behind it."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self.c = ffi.new("sarp_needs *")
        self._memory = ffi.new("uint64_t[]", limit), ffi.new("uint32_t[]", limit), ffi.new("uint64_t[]", limit)
        self.c.pages, self.c.partitions, self.c.damaged = self._memory
        self.c.page_limit = self.c.partition_limit = self.c.damaged_limit = limit

    def clear(self) -> None:
        self.c.page_count = self.c.partition_count = self.c.damaged_count = 0

    @property
    def pages(self) -> list[int]:
        return ffi.unpack(self.c.pages, self.c.page_count) if self.c.page_count else []

    @property
    def partitions(self) -> list[int]:
        return ffi.unpack(self.c.partitions, self.c.partition_count) if self.c.partition_count else []

    @property
    def damaged(self) -> list[int]:
        return ffi.unpack(self.c.damaged, self.c.damaged_count) if self.c.damaged_count else []


class KernelQueries:
    """One path asked several times in one call: for its length alone, and with locations."""

    def __init__(
        self, ids: Sequence[bytes], holder: int, namespace: int, location_bytes: int, with_locations: Sequence[bool]
    ) -> None:
        self.c = ffi.new("sarp_query[]", len(with_locations))
        self._ids = ffi.new("uint8_t[]", b"".join(ids) or b"\0")
        self._location_bytes = location_bytes
        self._locations = []
        for query, wanted in zip(self.c, with_locations, strict=True):
            query.ids, query.blocks, query.holder, query.name_space = self._ids, len(ids), holder, namespace
            query.status = lib.SARP_NEED
            if wanted:
                # Exactly what is asked for, so that a sanitizer sees one byte too many.
                self._locations.append(ffi.new("uint8_t[]", max(1, len(ids) * location_bytes)))
                query.locations = self._locations[-1]

    def locations(self, index: int) -> list[bytes]:
        """The first `matched` locations of a query that has them."""
        query, size = self.c[index], self._location_bytes
        data = bytes(ffi.buffer(query.locations, query.matched * size)) if query.matched else b""
        return [data[i : i + size] for i in range(0, len(data), size)]


class Oracle:
    """The blocks held and every location that they were given, by holder, namespace and id."""

    def __init__(self) -> None:
        self.locations: dict[tuple[int, int, bytes], list[bytes]] = {}

    def insert(self, ids: Sequence[bytes], locations: Sequence[bytes], holder: int, namespace: int) -> None:
        for block_id, location in zip(ids, locations, strict=True):
            self.locations.setdefault((holder, namespace, block_id), []).append(location)

    def match(self, ids: Sequence[bytes], holder: int, namespace: int) -> list[list[bytes]]:
        found = []
        for block_id in ids:
            given = self.locations.get((holder, namespace, block_id))
            if given is None:
                break
            found.append(given)
        return found
