"""The bytes of `format-spec/`, version 1.1, for the Python side.

`kernels/format.h` is the C side. Nothing else defines a byte. Every structure is a `struct.Struct`; offsets are
those of the specification's diagrams.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np

MAJOR: Final = 1
MINOR: Final = 1
INCOMPATIBLE_REMOVALS: Final = 1
INCOMPATIBLE_KNOWN: Final = INCOMPATIBLE_REMOVALS
READ_ONLY_COMPATIBLE_KNOWN: Final = 0

UNIT: Final = 64
PAGE: Final = 4096
PAGE_UNITS: Final = PAGE // UNIT
WINDOW: Final = 64
ID_BYTES: Final = 16
LOG_HEADER_BYTES: Final = 2 * PAGE
LOG_FILE_BYTES_MAX: Final = (1 << 30) - PAGE
LOCATION_BYTES_MAX: Final = 46
BLOCK_TOKENS_MAX: Final = 1024
SLOT_MAX: Final = 65_534
FILE_NUMBER_END: Final = 1 << 40
COUNT_END: Final = 1 << 62
"""No commit or sequence number gets there: one that has is not the store's."""
REFERENCE_NONE: Final = (1 << 40) - 1
UNIT_BITS: Final = 24

HASHES: Final = ("sha256", "mmh3")
ROUTINGS: Final = ("divergence", "sarp")

MAGIC_LOG: Final = b"\x89SAL\r\n\x1a\n"
MAGIC_CHECKPOINT: Final = b"\x89SAC\r\n\x1a\n"
MAGIC_IMAGE: Final = b"\x89SAI\r\n\x1a\n"
MAGIC_STATS: Final = b"\x89SAS\r\n\x1a\n"

LOCK_NAME: Final = "LOCK"
STATS_NAME: Final = "stats"
TEMPORARY_SUFFIX: Final = ".tmp"
LOG_SUFFIX: Final = ".log"
IMAGES_SUFFIX: Final = ".images"
CHECKPOINTS_KEPT: Final = 2
CHECKPOINT_SUFFIX: Final = ".checkpoint"

# The checksum field of a log header, head, image or statistics file stands at 8 and covers what follows it.
CRC_AT: Final = 8
CRC_FROM: Final = 12

RECORD_SEGMENT: Final = 1
RECORD_REMOVE: Final = 2
RECORD_CLEAR_HOLDER: Final = 3
RECORD_NAMESPACE: Final = 4
RECORD_COMMIT: Final = 5
RECORD_RETIRE_FILE: Final = 6
RECORD_SEAL: Final = 7
RECORD_SUMMARY: Final = 8
RECORD_CHUNK_PAYLOAD: Final = 9
RECORD_POSTINGS: Final = 10
RECORD_COUNT: Final = 11
FLAG_IGNORABLE: Final = 1
FLAG_COPY: Final = 2
COMMIT_MARK: Final = 1
COMMIT_CLOSED: Final = 2

SEGMENT_HEADER_BYTES: Final = 128
SUMMARY_HEADER_BYTES: Final = 64
REMOVE_IDS_MAX: Final = 252
COUNT_ENTRIES_MAX: Final = 168
SUMMARY_ENTRIES_MAX: Final = 126

# magic, crc, major, minor, three feature masks, uuid, file number, slot, block tokens, hash, routing, location bytes,
# previous commit, previous end, first sequence, secret, created, reserved, description length
LOG_HEADER: Final = struct.Struct("<8sIHHQQQ16sQHHBBHQQQ16sQII")
LOG_DESCRIPTION_AT: Final = LOG_HEADER.size

# header crc, body crc, length, type, flags, n, d, dp, header units, sequence, commit
RECORD: Final = struct.Struct("<IIHBBBBBBQQ")
# key bytes, name length, adapter length, namespace, reserved
NAMESPACE_FIELDS: Final = struct.Struct("<IHHQ16x")
NAMESPACE_HEADER_BYTES: Final = 64
# holder, namespace, effect, reserved
REMOVAL_FIELDS: Final = struct.Struct("<I4xQQ8x")
# reserved, file number, reserved
RETIRE_FIELDS: Final = struct.Struct("<8xQ16x")
# pages, records, checksum, flags, synced, reserved
COMMIT_FIELDS: Final = struct.Struct("<IIIIQ8x")
# summary records, entries, first summary position, reserved
SEAL_FIELDS: Final = struct.Struct("<IIQ16x")

# magic, crc, major, minor, features, uuid, number, length, start, synced, commit, sequence, entries, blocks,
# partitions, slots, namespaces, markers, epochs, routing, counts, moments
CHECKPOINT_HEAD: Final = struct.Struct("<8sIHHQQQ16sQQQQQQQQIIIIIB3xII40x")
CHECKPOINT_NAMESPACE: Final = struct.Struct("<QIHH")

IMAGE_HEADER: Final = struct.Struct("<8sIHBB16sQQIIQ")  # magic, crc, entries, depth, 0, uuid, prefix, number, blocks
IMAGE_ENTRIES_MAX: Final = 4092
IMAGE_POSTINGS_MAX: Final = 2728

# magic, crc, major, minor, uuid, process id, JSON length, time in ms
STATS_HEADER: Final = struct.Struct("<8sIHH16sIIQ")

SLOT_DTYPE: Final = np.dtype([("file_number", "<u8"), ("slot", "<u2"), ("reserved0", "<u2"), ("reserved1", "<u4")])
MARKER_DTYPE: Final = np.dtype(
    [("id", "|V16"), ("name_space", "<u8"), ("position", "<u8"), ("holder", "<u4"), ("reserved", "<u4")]
)
EPOCH_DTYPE: Final = np.dtype([("holder", "<u4"), ("reserved", "<u4"), ("position", "<u8")])
COUNT_DTYPE: Final = np.dtype([("id", "|V16"), ("name_space", "<u8"), ("holder", "<u4"), ("count", "<u4")])
COUNT_ENTRY_DTYPE: Final = np.dtype([("id", "|V16"), ("count", "<u4"), ("forgotten", "<u4")])
POSTINGS_ENTRY_DTYPE: Final = np.dtype(
    [("word0", "<u8"), ("position", "<u8"), ("filter", "<u8"), ("operation", "u1"), ("reserved", "V7")]
)
MOMENT_DTYPE: Final = np.dtype([("position", "<u8"), ("time_ms", "<u8")])
PARTITION_DTYPE: Final = np.dtype(
    [
        ("prefix", "<u8"),
        ("images_number", "<u8"),
        ("page", "<u4"),
        ("entries", "<u4"),
        ("crc", "<u4"),
        ("blocks", "<u4"),
        ("depth", "|u1"),
        ("reserved", "|u1", (7,)),
    ]
)
ENTRY_DTYPE: Final = np.dtype([("word0", "<u8"), ("word1", "<u8")])
POSTING_PARTITION_DTYPE: Final = np.dtype(
    [
        ("key", "<u8"),
        ("filter", "<u8"),
        ("reference", "<u8"),
        ("images_number", "<u8"),
        ("page", "<u4"),
        ("entries", "<u4"),
        ("crc", "<u4"),
        ("blocks", "<u4"),
    ]
)
POSTING_DTYPE: Final = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("filter", "<u8")])
ROW_DTYPES: Final = {"divergence": PARTITION_DTYPE, "sarp": POSTING_PARTITION_DTYPE}
"""A partition's row in a checkpoint's head, by routing."""
ENTRY_DTYPES: Final = {"divergence": ENTRY_DTYPE, "sarp": POSTING_DTYPE}
"""An entry of an image, by routing."""
SUMMARY_DTYPE: Final = np.dtype(
    [("word0", "<u8"), ("word1", "<u8"), ("supersedes", "<u8"), ("units", "<u4"), ("reserved", "<u4")]
)

assert LOG_HEADER.size == 128
assert RECORD.size == 32
assert CHECKPOINT_HEAD.size == 192
assert IMAGE_HEADER.size == 64
assert STATS_HEADER.size == 48
assert SLOT_DTYPE.itemsize == 16
assert RECORD.size + REMOVAL_FIELDS.size == RECORD.size + RETIRE_FIELDS.size == 64
assert (MARKER_DTYPE.itemsize, EPOCH_DTYPE.itemsize, COUNT_DTYPE.itemsize) == (40, 16, 32)
assert (COUNT_ENTRY_DTYPE.itemsize, MOMENT_DTYPE.itemsize) == (24, 16)
assert POSTINGS_ENTRY_DTYPE.itemsize == 32
assert PARTITION_DTYPE.itemsize == 40
assert POSTING_PARTITION_DTYPE.itemsize == 48
assert SUMMARY_DTYPE.itemsize == 32


def position(file_number: int, offset: int) -> int:
    """The position of a byte offset (a multiple of 64) in a log file."""
    return file_number << UNIT_BITS | offset // UNIT


def position_file(value: int) -> int:
    return value >> UNIT_BITS


def position_offset(value: int) -> int:
    """The byte offset within its file that a position, or a reference, names."""
    return (value & ((1 << UNIT_BITS) - 1)) * UNIT


def log_name(file_number: int) -> str:
    return f"{file_number:016x}{LOG_SUFFIX}"


def images_name(number: int) -> str:
    return f"{number:016x}{IMAGES_SUFFIX}"


def checkpoint_name(number: int) -> str:
    return f"{number:016x}{CHECKPOINT_SUFFIX}"


_is_number: Final = re.compile("[0-9a-f]{16}").fullmatch


def numbered(names: list[str], suffix: str) -> list[int]:
    """The numbers of the folder's files with that suffix, ascending; names that are not ours are passed over."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    numbers = (int(stem, 16) for stem in stems if _is_number(stem))
    return sorted(number for number in numbers if 0 < number < FILE_NUMBER_END)


def is_temporary(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a name is that of a numbered file with one of these suffixes, or of statistics, not published."""
    stem = name.removesuffix(TEMPORARY_SUFFIX)
    return stem != name and (stem == STATS_NAME or any(numbered([stem], suffix) for suffix in suffixes))


def is_own_temporary(name: str) -> bool:
    """Whether a name is that of a file of an index that was not published."""
    return is_temporary(name, (LOG_SUFFIX, IMAGES_SUFFIX, CHECKPOINT_SUFFIX))
