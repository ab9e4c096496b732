"""The bytes of chunk stores (format-spec/chunks.md): entries files, tables, strips' checksums. No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._chunks.policy import Extent
from sarpstore._errors import CorruptionError
from sarpstore._kernel import crc32c
from sarpstore._log.header import check_version

__all__ = [
    "ENTRIES_HEADER_BYTES",
    "REGION_BYTES_MAX",
    "Chunk",
    "RegionRow",
    "Table",
    "chunks_name",
    "decode_entries",
    "decode_entries_header",
    "encode_entries_header",
    "encode_entry",
    "entries_name",
    "is_own_temporary",
    "region_name",
    "strip_checksums",
]

REGION_SUFFIX: Final = ".region"
ENTRIES_SUFFIX: Final = ".entries"
CHUNKS_SUFFIX: Final = ".chunks"
ENTRIES_HEADER_BYTES: Final = fmt.PAGE
EXTENTS_MAX: Final = 255
REGION_BYTES_MAX: Final = 1 << 40
_NUMBERS_MAX: Final = 1 << 63
"""Above all sequences and lengths: what follows from one of them can be written."""

_MAGIC_ENTRIES: Final = b"\x89SAE\r\n\x1a\n"
_MAGIC_TABLE: Final = b"\x89SAK\r\n\x1a\n"
# magic, crc, major, minor, three feature masks, uuid, number
_HEAD: Final = struct.Struct("<8sIHHQQQ16sQ")
# length of the file, bytes of disk, bytes of a region, next sequence, next region; chunks, extents, regions, reserved
_TABLE_HEAD: Final = struct.Struct("<QQQQQIIIIQ")
_TABLE_AT: Final = 128
# crc, length, extents, strip, sequence, bytes, tokens, crc of the checksums, key
_ENTRY: Final = struct.Struct("<IHBBQQII32s")
_EXTENT: Final = struct.Struct("<QII")
ENTRY_BYTES_MAX: Final = _ENTRY.size + EXTENTS_MAX * _EXTENT.size
_REGION_DTYPE: Final = np.dtype([("number", "<u8"), ("entries", "<u8"), ("used", "<u8")])
_CHUNK_DTYPE: Final = np.dtype(
    [
        ("key", "V32"),
        ("sequence", "<u8"),
        ("bytes", "<u8"),
        ("tokens", "<u4"),
        ("crc", "<u4"),
        ("weight", "<f8"),
        ("first", "<u4"),
        ("extents", "u1"),
        ("strip", "u1"),
        ("reserved", "V10"),
    ]
)
_KEY_HEAD_DTYPE: Final = np.dtype({"names": ["head"], "formats": ["<u8"], "itemsize": _CHUNK_DTYPE.itemsize})
_EXTENT_DTYPE: Final = np.dtype([("region", "<u8"), ("page", "<u4"), ("pages", "<u4")])

assert (_HEAD.size, _HEAD.size + _TABLE_HEAD.size, _ENTRY.size, _EXTENT.size) == (64, 128, 64, 16)
assert (_REGION_DTYPE.itemsize, _CHUNK_DTYPE.itemsize, _EXTENT_DTYPE.itemsize) == (24, 80, 16)


def region_name(number: int) -> str:
    return f"{number:016x}{REGION_SUFFIX}"


def entries_name(number: int) -> str:
    return f"{number:016x}{ENTRIES_SUFFIX}"


def chunks_name(number: int) -> str:
    return f"{number:016x}{CHUNKS_SUFFIX}"


def is_own_temporary(name: str) -> bool:
    """Whether a name is that of a file of a chunk store that was not published."""
    return fmt.is_temporary(name, (CHUNKS_SUFFIX, ENTRIES_SUFFIX))


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is known of a stored payload: `bytes` with its checksums, of which there is one a strip of 2^`strip`."""

    key: bytes
    sequence: int
    bytes: int
    tokens: int
    crc: int
    strip: int
    extents: tuple[Extent, ...]


# --- payloads


def strip_checksums(key: bytes, data: memoryview, strip: int) -> npt.NDArray[np.uint32]:
    """The checksum of each strip of 2^`strip` bytes of a payload, the last one being shorter."""
    size = 1 << strip
    sums = [
        crc32c(data[at : at + size], crc32c(key + number.to_bytes(8, "little")))
        for number, at in enumerate(range(0, len(data), size))
    ]
    return np.array(sums, "<u4")


# --- entries files


def encode_entries_header(uuid: bytes, number: int) -> bytes:
    """The first page of an entries file."""
    head = _HEAD.pack(_MAGIC_ENTRIES, 0, fmt.MAJOR, fmt.MINOR, 0, 0, 0, uuid, number)
    return _sealed(bytearray(head.ljust(ENTRIES_HEADER_BYTES, b"\0")))


def decode_entries_header(data: bytes | memoryview, name: str, number: int, uuid: bytes | None) -> bytes:
    """The store's uuid that an entries file says. CorruptionError, VersionError."""
    return _open_head(data[:ENTRIES_HEADER_BYTES], name, _MAGIC_ENTRIES, number, uuid, ENTRIES_HEADER_BYTES)


def encode_entry(chunk: Chunk, uuid: bytes, region: int, offset: int) -> bytes:
    """The entry that stands at a byte offset of a region's entries file."""
    length = _ENTRY.size + _EXTENT.size * len(chunk.extents)
    fields = (chunk.sequence, chunk.bytes, chunk.tokens, chunk.crc, chunk.key)
    body = _ENTRY.pack(0, length, len(chunk.extents), chunk.strip, *fields) + _encode_extents(chunk.extents)
    crc = crc32c(body[4:], _place_seed(uuid, region, offset))
    return crc.to_bytes(4, "little") + body[4:]


def decode_entries(data: memoryview, uuid: bytes, region: int, offset: int) -> tuple[list[Chunk], int]:
    """The valid entries of the bytes that begin at `offset` of a region's entries file, and the offset behind them."""
    found, at = [], 0
    while at + _ENTRY.size <= len(data):
        crc, length, count, strip, sequence, size, tokens, sums, key = _ENTRY.unpack_from(data, at)
        body = data[at + 4 : at + length]
        if length != _ENTRY.size + _EXTENT.size * count or not count or at + length > len(data):
            break
        if crc32c(body, _place_seed(uuid, region, offset + at)) != crc:
            break
        extents = _decode_extents(np.frombuffer(data, _EXTENT_DTYPE, count, at + _ENTRY.size))
        if sequence >= _NUMBERS_MAX or any(not _can_be(extent) for extent in extents):
            break
        found.append(Chunk(key, sequence, size, tokens, sums, strip, extents))
        at += length
    return found, offset + at


def _can_be(extent: Extent) -> bool:
    return 0 < extent.region < fmt.FILE_NUMBER_END and 0 < extent.bytes <= REGION_BYTES_MAX - extent.offset


def _place_seed(uuid: bytes, region: int, offset: int) -> int:
    return crc32c(uuid + region.to_bytes(8, "little") + offset.to_bytes(8, "little"))


def _encode_extents(extents: tuple[Extent, ...]) -> bytes:
    return b"".join(_EXTENT.pack(e.region, e.offset // fmt.PAGE, e.bytes // fmt.PAGE) for e in extents)


def _decode_extents(rows: npt.NDArray[Any]) -> tuple[Extent, ...]:
    return tuple(Extent(region, page * fmt.PAGE, pages * fmt.PAGE) for region, page, pages in rows.tolist())


# --- tables


@dataclass(frozen=True, slots=True)
class RegionRow:
    """A region that a table knows: how far its entries file is in the table, and how much of it is in use, in bytes."""

    number: int
    entries: int
    used: int


@dataclass(slots=True)
class Table:
    """All that was held at one moment. Chunks stay encoded until they are asked for: there may be very many."""

    uuid: bytes
    number: int
    bytes_max: int
    region_bytes: int
    next_sequence: int
    next_region: int
    regions: list[RegionRow] = field(default_factory=list)
    rows: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, _CHUNK_DTYPE))
    extents: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, _EXTENT_DTYPE))

    def keys(self, rows: npt.NDArray[np.intp]) -> list[bytes]:
        """The keys of these rows."""
        keys: list[bytes] = self.rows["key"][rows].tolist()
        return keys

    def key_heads(self) -> npt.NDArray[np.uint64]:
        """The first 8 bytes of each row's key, little-endian, on their own."""
        return self.rows.view(_KEY_HEAD_DTYPE)["head"].copy()

    def chunk(self, row: int) -> Chunk:
        """One of them."""
        key, sequence, size, tokens, crc, _, first, count, strip, _ = self.rows[row].tolist()
        return Chunk(key, sequence, size, tokens, crc, strip, _decode_extents(self.extents[first : first + count]))

    def weight(self, row: int) -> float:
        """How often it was asked for, decayed."""
        return float(self.rows["weight"][row])

    def note_regions(self, entries: dict[int, int], used: dict[int, int]) -> None:
        """Hold these regions: lengths of their entries files, and bytes in use."""
        self.regions = [RegionRow(number, entries[number], used.get(number, 0)) for number in sorted(entries)]

    def fill(self, last: Table, rows: list[tuple[int, float]], late: list[tuple[Chunk, float]]) -> None:
        """Hold these: rows of the last table, and chunks that were put behind it; the weight of each."""
        rows.sort()
        late.sort(key=lambda each: each[0].sequence)
        kept = last.rows[np.array([row for row, _ in rows], np.intp)]
        kept["weight"] = [weight for _, weight in rows]
        taken = np.repeat(kept["first"].astype(np.intp), kept["extents"])
        ends = np.cumsum(kept["extents"], dtype=np.intp)
        taken += np.arange(len(taken)) - np.repeat(ends - kept["extents"], kept["extents"])
        new, new_extents = _late_rows(late)
        self.rows = np.concatenate([kept, new])
        self.extents = np.concatenate([last.extents[taken], new_extents])
        self.rows["first"] = np.cumsum(self.rows["extents"], dtype=np.int64) - self.rows["extents"]

    def encode(self) -> bytes:
        """The file."""
        regions = np.array([(r.number, r.entries, r.used) for r in self.regions], _REGION_DTYPE)
        parts = [part.tobytes() for part in (regions, self.rows, self.extents)]
        length = _TABLE_AT + sum(map(len, parts))
        head = _HEAD.pack(_MAGIC_TABLE, 0, fmt.MAJOR, fmt.MINOR, 0, 0, 0, self.uuid, self.number)
        bounds = (length, self.bytes_max, self.region_bytes, self.next_sequence, self.next_region)
        head += _TABLE_HEAD.pack(*bounds, len(self.rows), len(self.extents), len(regions), 0, 0)
        return _sealed(bytearray(b"".join([head, *parts])))

    @classmethod
    def decode(cls, data: bytes | memoryview, name: str, number: int) -> Table:
        """CorruptionError, VersionError."""
        if len(data) < _TABLE_AT:
            raise CorruptionError(name, len(data), "the table is cut short")
        uuid = _open_head(data, name, _MAGIC_TABLE, number, None, len(data))
        length, *bounds, chunks, extents, regions, _, _ = _TABLE_HEAD.unpack_from(data, _HEAD.size)
        sizes = (regions * _REGION_DTYPE.itemsize, chunks * _CHUNK_DTYPE.itemsize, extents * _EXTENT_DTYPE.itemsize)
        if length != len(data) or length != _TABLE_AT + sum(sizes):
            raise CorruptionError(name, 64, "the table's lengths contradict each other")
        table = cls(uuid, number, *bounds)
        known = np.frombuffer(data, _REGION_DTYPE, regions, _TABLE_AT)
        table.regions = [RegionRow(*row) for row in known.tolist()]
        table.rows = np.frombuffer(data, _CHUNK_DTYPE, chunks, _TABLE_AT + sizes[0])
        table.extents = np.frombuffer(data, _EXTENT_DTYPE, extents, _TABLE_AT + sizes[0] + sizes[1])
        ends = table.rows["first"].astype(np.int64) + table.rows["extents"]
        if (ends > extents).any() or (table.rows["extents"] == 0).any():
            raise CorruptionError(name, _TABLE_AT, "a chunk of the table names extents that are not there")
        table._check_numbers(name)
        return table

    def _check_numbers(self, name: str) -> None:
        """CorruptionError where a number can't be: so that all that follow from these can be written."""
        counts = (self.bytes_max, self.next_sequence)
        if max(counts) >= _NUMBERS_MAX or not 0 < self.next_region <= fmt.FILE_NUMBER_END:
            raise CorruptionError(name, 72, f"numbers {counts} and next region {self.next_region} can't be")
        if not 0 < self.region_bytes <= REGION_BYTES_MAX or self.region_bytes % fmt.PAGE:
            raise CorruptionError(name, 80, f"regions can't have {self.region_bytes} bytes")
        before = 0
        for row in self.regions:
            lengths_fit = row.used <= self.region_bytes and row.entries < _NUMBERS_MAX
            if not lengths_fit or not before < row.number < self.next_region:
                raise CorruptionError(name, _TABLE_AT, f"{row} can't stand behind region {before}")
            before = row.number
        ends = (self.extents["page"].astype(np.int64) + self.extents["pages"]) * fmt.PAGE
        if (self.extents["region"] >= self.next_region).any() or (ends > self.region_bytes).any():
            raise CorruptionError(name, _TABLE_AT, "an extent of the table is in no region")
        if not (np.isfinite(self.rows["weight"]) & (self.rows["weight"] >= 0)).all():
            raise CorruptionError(name, _TABLE_AT, "a chunk of the table has no weight")
        if (self.rows["sequence"] >= self.next_sequence).any():
            raise CorruptionError(name, _TABLE_AT, "a chunk of the table has a sequence that is to come")


def _late_rows(late: list[tuple[Chunk, float]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows and extents of chunks that no table has yet."""
    chunks = [chunk for chunk, _ in late]
    rows = np.zeros(len(chunks), _CHUNK_DTYPE)
    rows["key"] = np.frombuffer(b"".join(chunk.key for chunk in chunks), "V32")
    for name in ("sequence", "bytes", "tokens", "crc", "strip"):
        rows[name] = [getattr(chunk, name) for chunk in chunks]
    rows["weight"] = [weight for _, weight in late]
    rows["extents"] = [len(chunk.extents) for chunk in chunks]
    encoded = b"".join(_encode_extents(chunk.extents) for chunk in chunks)
    return rows, np.frombuffer(encoded, _EXTENT_DTYPE)


# --- heads


def _sealed(data: bytearray) -> bytes:
    data[fmt.CRC_AT : fmt.CRC_FROM] = crc32c(memoryview(data)[fmt.CRC_FROM :]).to_bytes(4, "little")
    return bytes(data)


def _open_head(
    data: bytes | memoryview, name: str, magic: bytes, number: int, uuid: bytes | None, length: int
) -> bytes:
    if len(data) < length:
        raise CorruptionError(name, len(data), "the file is cut short")
    if data[:8] != magic:
        raise CorruptionError(name, 0, "the file does not begin with the magic of its kind")
    if crc32c(memoryview(data)[fmt.CRC_FROM : length]) != int.from_bytes(data[fmt.CRC_AT : fmt.CRC_FROM], "little"):
        raise CorruptionError(name, 0, "the checksum does not hold")
    fields = _HEAD.unpack_from(data)
    check_version(name, fields[2], (fields[4], fields[5], fields[6]))
    if fields[8] != number:
        raise CorruptionError(name, 56, f"the file says number {fields[8]}")
    if uuid is not None and fields[7] != uuid:
        raise CorruptionError(name, 40, "the file belongs to another store")
    return bytes(fields[7])
