"""Parsers of a chunk store's tables and entries files (chunks.md). Nothing is used before its checksum is verified."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .crc import crc32c
from .faults import DamagedError
from .structures import PAGE, check_sealed, check_understood

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC_ENTRIES: Final = b"\x89SAE\r\n\x1a\n"
MAGIC_TABLE: Final = b"\x89SAK\r\n\x1a\n"
STRIP: Final = 20
ENTRIES_START: Final = PAGE
ENTRY_STEP: Final = 16  # an entry's length is a multiple
ENTRY_BYTES_MAX: Final = 64 + 16 * 255

_FRONT: Final = struct.Struct("<8sIHHQQQ16sQ")
_TABLE: Final = struct.Struct("<QQQQQIII4x8x")
_TABLE_HEAD_BYTES: Final = 128
_ENTRY: Final = struct.Struct("<IHBBQQII32s")
_EXTENT: Final = struct.Struct("<QII")

REGION: Final = np.dtype([("number", "<u8"), ("entries", "<u8"), ("used", "<u8")])
CHUNK: Final = np.dtype(
    [
        *(("key", "V32"), ("sequence", "<u8"), ("bytes", "<u8"), ("tokens", "<u4"), ("crc", "<u4"), ("weight", "<f8")),
        *(("first", "<u4"), ("extents", "u1"), ("strip", "u1"), ("reserved", "V10")),
    ]
)
EXTENT: Final = np.dtype([("region", "<u8"), ("page", "<u4"), ("pages", "<u4")])


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole pages of a region."""

    region: int
    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What an entry, and a row of a table, says of a payload; `bytes` with the checksums of its strips."""

    key: bytes
    sequence: int
    bytes: int
    tokens: int
    crc: int
    strip: int
    extents: tuple[Extent, ...]

    @property
    def strips(self) -> int:
        """Each has so many bytes, and 4 of a checksum."""
        return -(-self.bytes // ((1 << self.strip) + 4))

    @property
    def body(self) -> int:
        """Bytes before the strips' checksums."""
        return self.bytes - 4 * self.strips


@dataclass(frozen=True, slots=True)
class Front:
    """The first 64 bytes of a table and of an entries file."""

    major: int
    minor: int
    features: tuple[int, int, int]
    uuid: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its head, and the rows as they stand there."""

    front: Front
    length: int
    bytes_max: int
    region_bytes: int
    next_sequence: int
    next_region: int
    regions: NDArray[np.void]
    chunks: NDArray[np.void]
    extents: NDArray[np.void]

    def regions_with(self, column: str) -> dict[int, int]:
        """What the table says of each region: `entries` or `used`."""
        return dict(zip(self.regions["number"].tolist(), self.regions[column].tolist(), strict=True))

    def chunk_at(self, row: int) -> int:
        """The byte where a chunk's row stands."""
        return _TABLE_HEAD_BYTES + self.regions.nbytes + CHUNK.itemsize * row

    def stored(self, row: int) -> Stored:
        """A row; its extents must be there."""
        key, sequence, size, tokens, crc, _, first, count, strip, _ = self.chunks[row].tolist()
        extents = tuple(Extent(*each) for each in self.extents[first : first + count].tolist())
        return Stored(key, sequence, size, tokens, crc, strip, extents)


def _parse_front(data: bytes, magic: bytes, what: str) -> Front:
    check_sealed(data, magic, what)
    field = _FRONT.unpack_from(data)
    check_understood(what, field[2], field[6])
    return Front(field[2], field[3], field[4:7], field[7], field[8])


def parse_entries_header(data: bytes) -> Front:
    """The header of an entries file from its first page."""
    if len(data) < ENTRIES_START:
        raise DamagedError("truncated", f"entries header is cut off: {len(data)} bytes")
    return _parse_front(data[:ENTRIES_START], MAGIC_ENTRIES, "entries header")


def parse_table(data: bytes) -> Table:
    """A table from its whole file; each of its chunks has extents, and they are there."""
    what = "table"
    if len(data) < _TABLE_HEAD_BYTES:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    front = _parse_front(data, MAGIC_TABLE, what)
    length, *numbers, chunks, extents, regions = _TABLE.unpack_from(data, _FRONT.size)
    if length != len(data):
        raise DamagedError("length", f"{what} says it has {length} bytes, the file has {len(data)}")
    at, rows = _TABLE_HEAD_BYTES, []
    sizes = ((REGION, regions), (CHUNK, chunks), (EXTENT, extents))
    end = at + sum(kind.itemsize * count for kind, count in sizes)
    if end != length:
        raise DamagedError("length", f"{what}'s rows end at {end}, not at {length}")
    for kind, count in sizes:
        rows.append(np.frombuffer(data, kind, count, at))
        at += kind.itemsize * count
    ends = rows[1]["first"].astype(np.int64) + rows[1]["extents"]
    if (ends > extents).any() or (rows[1]["extents"] == 0).any():
        raise DamagedError("extents", f"{what} has a chunk without extents, or with extents that are not there")
    return Table(front, length, *numbers, *rows)


def parse_entry(data: memoryview, uuid: bytes, region: int, offset: int) -> tuple[Stored, int] | None:
    """The valid entry at the beginning of `data`, which stands at `offset` of the region's entries file; its length."""
    if len(data) < _ENTRY.size:
        return None
    crc, length, count, strip, sequence, size, tokens, sums, key = _ENTRY.unpack_from(data)
    if not count or length != _ENTRY.size + _EXTENT.size * count or length > len(data):
        return None
    place = uuid + region.to_bytes(8, "little") + offset.to_bytes(8, "little")
    if crc32c(place + bytes(data[4:length])) != crc:
        return None
    extents = tuple(Extent(*each) for each in _EXTENT.iter_unpack(data[_ENTRY.size : length]))
    return Stored(key, sequence, size, tokens, sums, strip, extents), length


def strip_crc(key: bytes, number: int, data: bytes) -> int:
    """The checksum of a payload's strip."""
    return crc32c(key + number.to_bytes(8, "little") + data)
