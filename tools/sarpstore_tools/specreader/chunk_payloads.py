"""Reads payloads from their extents and compares their strips with their checksums (chunks.md, section 1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .chunk_structures import strip_crc
from .crc import crc32c
from .faults import DamagedError
from .folder import open_regular, read_at, region_name
from .structures import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .chunk_structures import Stored


def payload_problems(folder: Path, stored: Stored) -> Iterator[tuple[str, int, str]]:
    """(file, offset, meaning) of what is not as it was when the payload was put."""
    body, size = stored.body, 1 << stored.strip
    try:
        sums = _read(folder, stored, body, stored.bytes)
        if crc32c(sums) != stored.crc:
            yield *_place(stored, body), "the strips' checksums do not have their checksum"
            return
        for number, begin in enumerate(range(0, body, size)):
            data = _read(folder, stored, begin, min(begin + size, body))
            if strip_crc(stored.key, number, data) != int.from_bytes(sums[4 * number : 4 * number + 4], "little"):
                yield *_place(stored, begin), f"strip {number} of {stored.strips} does not have its checksum"
    except DamagedError as error:
        yield *_place(stored, 0), error.meaning


def _pieces(stored: Stored, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(region, offset there, bytes) of a part of a payload."""
    at = 0
    for extent in stored.extents:
        first, last = max(begin, at), min(end, at + extent.pages * PAGE)
        if first < last:
            yield extent.region, extent.page * PAGE + first - at, last - first
        at += extent.pages * PAGE


def _place(stored: Stored, at: int) -> tuple[str, int]:
    region, offset, _ = next(_pieces(stored, at, at + 1))
    return region_name(region), offset


def _read(folder: Path, stored: Stored, begin: int, end: int) -> bytes:
    parts = []
    for region, offset, count in _pieces(stored, begin, end):
        descriptor = open_regular(folder / region_name(region))
        try:
            parts.append(read_at(descriptor, count, offset))
        finally:
            os.close(descriptor)
        if len(parts[-1]) < count:
            raise DamagedError("truncated", f"{region_name(region)} ends before the payload")
    return b"".join(parts)
