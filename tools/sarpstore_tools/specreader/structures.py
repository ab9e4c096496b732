"""Parsers of log headers, checkpoint heads, partition images and the statistics file.

Each `parse_*` takes bytes and returns a value, or raises `DamagedError` that says what is wrong. Nothing is used before
its checksum has been verified.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from .crc import crc32c
from .faults import DamagedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE: Final = 4096
UNIT: Final = 64
MAJOR: Final = 1
LOG_START: Final = 2 * PAGE
LOG_BYTES_MAX: Final = (1 << 30) - PAGE
IMAGE_BYTES_MAX: Final = 1 << 16
KEY_BITS: Final = 48
REFERENCE_NONE: Final = (1 << 40) - 1
SLOT_NONE: Final = 65_535
FILE_NUMBER_END: Final = 1 << 40
FEATURE_REMOVALS: Final = 1  # bit 0 of the incompatible features: records may be removed, copied, their files retired

HASHES: Final = ("sha256", "mmh3")
ROUTINGS: Final = ("divergence", "sarp")
SARP: Final = 1

MAGIC_LOG: Final = b"\x89SAL\r\n\x1a\n"
MAGIC_HEAD: Final = b"\x89SAC\r\n\x1a\n"
MAGIC_IMAGE: Final = b"\x89SAI\r\n\x1a\n"
MAGIC_STATS: Final = b"\x89SAS\r\n\x1a\n"

_HEADER: Final = struct.Struct("<8sIHHQQQ16sQHHBBHQQQQQQII")
_HEAD: Final = struct.Struct("<8sIHHQQQ16sQQQQQQQQIIIIIB3xII")
_HEAD_BYTES: Final = 192
_IMAGE: Final = struct.Struct("<8sIHBB16sQQIIQ")
_STATS: Final = struct.Struct("<8sIHH16sIIQ")
_NUMPY_TYPE: Final = re.compile(r"[<>|][A-Za-z]\d{1,4}(\[\w+\])?")
_NAMESPACE: Final = struct.Struct("<QIHH")

SLOT: Final = np.dtype([("file", "<u8"), ("slot", "<u2"), ("reserved", "V6")])
PARTITION: Final = np.dtype(
    [
        ("prefix", "<u8"),
        ("images", "<u8"),
        ("page", "<u4"),
        ("entries", "<u4"),
        ("crc", "<u4"),
        ("blocks", "<u4"),
        ("depth", "u1"),
        ("reserved", "V7"),
    ]
)
ENTRY: Final = np.dtype([("word0", "<u8"), ("word1", "<u8")])
# Under `sarp` (postings.md, sections 2 and 5).
LIST_PARTITION: Final = np.dtype(
    [
        *(("prefix", "<u8"), ("filter", "<u8"), ("reference", "<u8"), ("images", "<u8"), ("page", "<u4")),
        *(("entries", "<u4"), ("crc", "<u4"), ("blocks", "<u4")),
    ]
)
POSTING: Final = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("filter", "<u8")])
# The tables of removals in a head.
MARKER: Final = np.dtype(
    [("id", "V16"), ("namespace", "<u8"), ("position", "<u8"), ("holder", "<u4"), ("reserved", "<u4")]
)
EPOCH: Final = np.dtype([("holder", "<u4"), ("reserved", "<u4"), ("position", "<u8")])
COUNTED: Final = np.dtype([("id", "V16"), ("namespace", "<u8"), ("holder", "<u4"), ("count", "<u4")])
MOMENT: Final = np.dtype([("position", "<u8"), ("time_ms", "<u8")])


def partition_type(routing: int) -> np.dtype[np.void]:
    """A partition's row in a head."""
    return LIST_PARTITION if routing == SARP else PARTITION


def entry_type(routing: int) -> np.dtype[np.void]:
    """An entry of an image."""
    return POSTING if routing == SARP else ENTRY


def image_entries_max(routing: int) -> int:
    """Entries that fit in 64 KiB behind an image's header."""
    return (IMAGE_BYTES_MAX - UNIT) // entry_type(routing).itemsize


def position(file: int, offset: int) -> int:
    """The position of a byte offset in a log file."""
    return file << 24 | offset // UNIT


def place(value: int) -> tuple[int, int]:
    """File number and byte offset that a position names."""
    return value >> 24, (value & 0xFFFFFF) * UNIT


def shown(value: int) -> str:
    """A position as people read it: the log file's name, without leading zeros, and the byte offset."""
    file, offset = place(value)
    return "none" if value == 0 else f"{file:x}.log:{offset}"


@dataclass(frozen=True, slots=True)
class Options:
    """What is the same in every log file of a store."""

    uuid: bytes
    block_tokens: int
    hash: int
    routing: int
    location_bytes: int
    secret: bytes
    locations: str


@dataclass(frozen=True, slots=True)
class LogHeader:
    """A log file's header (log.md, section 1)."""

    major: int
    minor: int
    features: tuple[int, int, int]
    options: Options
    file: int
    slot: int
    previous_commit: int
    previous_end: int
    first_sequence: int
    created_ms: int

    @property
    def secret(self) -> tuple[int, int]:
        low, high = struct.unpack("<QQ", self.options.secret)
        return low, high

    @property
    def removals(self) -> bool:
        return has_removals(self.features)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as records and heads name it; `key_bytes` is its id scheme (log.md, section 2.3)."""

    namespace: int
    key_bytes: int
    name: bytes
    adapter: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """A checkpoint's head (checkpoint.md, section 1)."""

    major: int
    minor: int
    features: tuple[int, int, int]
    uuid: bytes
    number: int
    length: int
    start: int
    synced: int
    commit: int
    sequence: int
    entries: int
    blocks: int
    routing: int
    slots: NDArray[np.void]
    partitions: NDArray[np.void]
    namespaces: tuple[Namespace, ...]
    markers: NDArray[np.void]
    epochs: NDArray[np.void]
    counts: NDArray[np.void]
    moments: NDArray[np.void]

    @property
    def removals(self) -> bool:
        return has_removals(self.features)


@dataclass(frozen=True, slots=True)
class Image:
    """A partition's image (checkpoint.md, section 2); `filter` is 0 but under `sarp` (postings.md, section 5)."""

    crc: int
    depth: int
    uuid: bytes
    prefix: int
    number: int
    blocks: int
    filter: int
    entries: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the writer last published about itself (checkpoint.md, section 3)."""

    major: int
    minor: int
    uuid: bytes
    process: int
    time_ms: int
    values: dict[str, Any]


def check_sealed(data: bytes, magic: bytes, what: str) -> None:
    """Magic, and the CRC32C at offset 8 of all that follows it."""
    if len(data) < 16:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    if data[:8] != magic:
        raise DamagedError("magic", f"{what} does not begin with its magic")
    if crc32c(data[12:]) != int.from_bytes(data[8:12], "little"):
        raise DamagedError("checksum", f"{what} does not have its checksum")


def has_removals(features: tuple[int, int, int]) -> bool:
    """Whether a file's masks (compatible, read-only compatible, incompatible) have the bit of version 1.1."""
    return bool(features[2] & FEATURE_REMOVALS)


def check_understood(what: str, major: int, incompatible: int) -> None:
    if major != MAJOR:
        raise DamagedError("version", f"{what} is of major version {major}, this reader knows {MAJOR}")
    unknown = incompatible & ~FEATURE_REMOVALS
    if unknown:
        raise DamagedError("features", f"{what} needs unknown incompatible features {unknown:#x}")


def parse_header(data: bytes) -> LogHeader:
    """A log header from one page."""
    what = "log header"
    if len(data) < PAGE:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    check_sealed(data[:PAGE], MAGIC_LOG, what)
    field = _HEADER.unpack_from(data)
    check_understood(what, field[2], field[6])
    described = field[21]
    if described > PAGE - _HEADER.size:
        raise DamagedError("description", f"{what} says its location description has {described} bytes")
    try:
        locations = data[_HEADER.size : _HEADER.size + described].decode()
    except UnicodeDecodeError:
        raise DamagedError("description", "location description is not UTF-8") from None
    options = Options(field[7], field[10], field[11], field[12], field[13], data[96:112], locations)
    _check_options(options)
    if not 0 < field[8] < FILE_NUMBER_END or field[9] == SLOT_NONE:
        raise DamagedError("number", f"{what} names file {field[8]} and slot {field[9]}")
    return LogHeader(
        field[2], field[3], field[4:7], options, field[8], field[9], field[14], field[15], field[16], field[19]
    )


def _check_options(options: Options) -> None:
    if not 1 <= options.block_tokens <= 1024:
        raise DamagedError("options", f"{options.block_tokens} tokens a block")
    if options.hash >= len(HASHES) or options.routing >= len(ROUTINGS):
        raise DamagedError("options", f"unknown hash {options.hash} or routing {options.routing}")
    if not 1 <= options.location_bytes <= 46:
        raise DamagedError("options", f"{options.location_bytes} bytes a location")
    described = location_bytes(options.locations)
    if described != options.location_bytes:
        raise DamagedError("options", f"locations described with {described} bytes, not {options.location_bytes}")


def location_bytes(description: str) -> int:
    """Bytes that a location description (JSON pairs of name and numpy type) adds up to."""
    try:
        kinds = [_NUMPY_TYPE.fullmatch(kind) for _, kind in json.loads(description)]
        return sum(np.dtype(kind[0]).itemsize for kind in kinds if kind) if all(kinds) else 0
    except (ValueError, TypeError, RecursionError):
        raise DamagedError("description", "location description is not a list of names and types") from None


def parse_head(data: bytes) -> Head:
    """A checkpoint head from its whole file."""
    what = "checkpoint head"
    check_sealed(data, MAGIC_HEAD, what)
    if len(data) < _HEAD_BYTES:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    field = _HEAD.unpack_from(data)
    check_understood(what, field[2], field[6])
    if field[9] != len(data):
        raise DamagedError("length", f"{what} says it has {field[9]} bytes, the file has {len(data)}")
    partitions, slots, namespaces, markers, epochs, routing, counts, moments = field[16:24]
    if not has_removals(field[4:7]):
        counts = moments = 0  # reserved in version 1.0
    kind = partition_type(routing)
    at = _HEAD_BYTES
    if at + slots * SLOT.itemsize + partitions * kind.itemsize > len(data):
        raise DamagedError("length", f"{what} has no room for {slots} slots and {partitions} partitions")
    slot_rows = np.frombuffer(data, dtype=SLOT, count=slots, offset=at)
    at += slots * SLOT.itemsize
    partition_rows = np.frombuffer(data, dtype=kind, count=partitions, offset=at)
    at += partitions * kind.itemsize
    named, at = _head_namespaces(data, at, namespaces)
    sizes = ((MARKER, markers), (EPOCH, epochs), (COUNTED, counts), (MOMENT, moments))
    end = at + sum(row.itemsize * count for row, count in sizes)
    if end != len(data):
        raise DamagedError("length", f"{what}'s tables end at {end}, not at {len(data)}")
    tables: list[NDArray[np.void]] = []
    for row, count in sizes:
        tables.append(np.frombuffer(data, dtype=row, count=count, offset=at))
        at += row.itemsize * count
    return Head(
        *(field[2], field[3], field[4:7], field[7], field[8], field[9]),
        *(field[10], field[11], field[12], field[13], field[14], field[15], routing),
        *(slot_rows, partition_rows, named),
        *tables,
    )


def _head_namespaces(data: bytes, at: int, count: int) -> tuple[tuple[Namespace, ...], int]:
    named: list[Namespace] = []
    for _ in range(count):
        if at + _NAMESPACE.size > len(data):
            raise DamagedError("length", f"checkpoint head has no room for {count} namespaces")
        namespace, key_bytes, name, adapter = _NAMESPACE.unpack_from(data, at)
        texts = data[at + 16 : at + 16 + name + adapter]
        if len(texts) != name + adapter:
            raise DamagedError("length", f"checkpoint head has no room for {count} namespaces")
        named.append(Namespace(namespace, key_bytes, texts[:name], texts[name:]))
        at += 16 + (name + adapter + 7) // 8 * 8
    return tuple(named), at


def parse_image(data: bytes, routing: int = 0) -> Image:
    """A partition image from the bytes at its page; bytes behind its end are not looked at."""
    what = "partition image"
    if len(data) < UNIT:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    _, crc, entries, depth, _, uuid, prefix, number, blocks, _, low_filter = _IMAGE.unpack_from(data)
    kind = entry_type(routing)
    size = UNIT + kind.itemsize * entries
    if entries > image_entries_max(routing) or size > len(data):
        # The count may be what is damaged: the magic says more.
        check_sealed(data[:UNIT], MAGIC_IMAGE, what)
        raise DamagedError("length", f"{what} says it has {entries} entries, {len(data)} bytes are there")
    check_sealed(data[:size], MAGIC_IMAGE, what)
    if depth > KEY_BITS:
        raise DamagedError("depth", f"{what} says depth {depth}")
    rows = np.frombuffer(data, dtype=kind, count=entries, offset=UNIT)
    return Image(crc, depth, uuid, prefix, number, blocks, low_filter, rows)


def parse_statistics(data: bytes) -> Statistics:
    """The statistics file from its whole bytes."""
    what = "statistics file"
    if len(data) < _STATS.size:
        raise DamagedError("truncated", f"{what} is cut off: {len(data)} bytes")
    check_sealed(data, MAGIC_STATS, what)
    _, _, major, minor, uuid, process, length, time_ms = _STATS.unpack_from(data)
    check_understood(what, major, 0)
    if _STATS.size + length != len(data):
        raise DamagedError("length", f"{what} says {length} bytes of JSON, {len(data) - _STATS.size} are there")
    try:
        values = msgspec.json.decode(data[_STATS.size :])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise DamagedError("json", f"{what} does not hold JSON") from None
    if not isinstance(values, dict):
        raise DamagedError("json", f"{what} holds JSON that is not an object")
    return Statistics(major, minor, uuid, process, time_ms, values)
