"""Log records and summary entries made by hand: any field may say anything, and the checksums hold."""

from __future__ import annotations

import struct
from typing import Any

from sarpstore import _format as fmt
from sarpstore._kernel import crc32c

FIELDS = {
    "length": (8, "<H"),
    "type": (10, "B"),
    "flags": (11, "B"),
    "n": (12, "B"),
    "d": (13, "B"),
    "dp": (14, "B"),
    "header_units": (15, "B"),
    "sequence": (16, "<Q"),
    "commit": (24, "<Q"),
    "holder": (32, "<I"),
    "window": (36, "<I"),
    "namespace": (40, "<Q"),
    "parent_key": (72, "<Q"),
    "supersedes": (80, "<Q"),
    "pages": (32, "<I"),
    "records": (36, "<I"),
    "checksum": (40, "<I"),
}
"""Where a field stands, and its form."""


def put(page: bytearray, at: int, **fields: int) -> None:
    """Write fields of the record at `at`; what would stand behind the page's end is left out."""
    for name, value in fields.items():
        offset, form = FIELDS[name]
        if at + offset + struct.calcsize(form) > len(page):
            continue
        struct.pack_into(form, page, at + offset, value)


def get(page: Any, at: int, name: str) -> int:
    offset, form = FIELDS[name]
    return int(struct.unpack_from(form, page, at + offset)[0])


def seal(page: bytearray, at: int, uuid: bytes, position: int) -> None:
    """Make both checksums of the record at `at` hold, as far as its length and header units make sense."""
    room = len(page) - at
    header = min(max(64, get(page, at, "header_units") * 64), room)
    length = min(max(get(page, at, "length"), header), room)
    place = crc32c(uuid + struct.pack("<QQ", fmt.position_file(position), fmt.position_offset(position)))
    struct.pack_into("<I", page, at + 4, crc32c(page[at + header : at + length], place))
    struct.pack_into("<I", page, at, crc32c(page[at + 4 : at + header], place))


def starts(page: Any) -> list[int]:
    """Where the records of an undamaged page begin."""
    out, at = [], 0
    while at < len(page):
        length = get(page, at, "length")
        if length:
            out.append(at)
        at += max(1, -(-length // fmt.UNIT)) * fmt.UNIT
    return out


SUMMARY_FIELDS = {"key": 5, "n": 9, "d": 3, "root_key": 6, "dp": 2, "type": 1, "supersedes": 0, "units": 200}
"""An entry that a writer could have made."""


def summary_entry(**fields: int) -> bytes:
    f = SUMMARY_FIELDS | fields
    word0 = f["key"] | f["n"] << 48 | f["d"] << 56
    return struct.pack("<QQQII", word0, f["root_key"] | f["dp"] << 48 | f["type"] << 56, f["supersedes"], f["units"], 0)
