"""Routing points, fingerprints and filters of segment records (postings.md, section 1), for whole arrays at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .faults import DamagedError
from .folder import read_at
from .keys import U64, directory_keys
from .log import Rows, holders, namespaces
from .structures import UNIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .accept import Log
    from .crc import Integers
    from .files import LogFile

OFFSETS: Final = (0, 8, 16, 24, 32, 40, 48, 63)
POINTS: Final = len(OFFSETS)
FLAG_EXPANDED: Final = 1
FLAG_REFINED: Final = 2

_LAST_FIXED: Final = 6
_LAST: Final = 7
_WINDOW: Final = 64
_REGIONS: Final = _WINDOW // 2
_IDS_AT: Final = 128
_SEGMENT_BYTES_MAX: Final = 4096
_READ_BYTES: Final = 1 << 22
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_S32: Final = np.uint64(32)

# Of a segment record, for each point: the key of the path's block there (0 if the record does not reach it), its
# filter, and the filter of the record's first `old_n` ids.
POINT_FACTS: Final = np.dtype(
    [("position", "<u8"), ("keys", "<u8", (POINTS,)), ("filters", "<u8", (POINTS,)), ("old_filters", "<u8", (POINTS,))]
)


def is_fixed(point: int) -> bool:
    return point % 2 == 0


def successor(point: int, flags: int) -> int | None:
    """The point of a list's successor (section 3); None if it has none."""
    if is_fixed(point) and flags & FLAG_REFINED:
        return point + 1
    if point in (_LAST_FIXED, _LAST):
        return None
    return point + 2 if is_fixed(point) else point + 1


def may_have(point: int, flags: int) -> bool:
    """Whether a list at that point can have that state: only one that has a successor, only a fixed point's refined."""
    if flags == FLAG_EXPANDED | FLAG_REFINED:
        return is_fixed(point)
    return flags == FLAG_EXPANDED and successor(point, flags) is not None


def point_facts(log: Log, segments: Rows) -> Rows:
    """A row of `POINT_FACTS` for each of the accepted segment records, in their order, which is that of position."""
    out = np.zeros(len(segments), dtype=POINT_FACTS)
    out["position"] = segments["position"]
    if log.header is None:
        return out
    for file, some in pieces(log, segments):
        _fill(out[some], segments[some], file, log.header.secret)
    return out


def pieces(log: Log, rows: Rows) -> Iterator[tuple[LogFile, slice]]:
    """Ranges of records, which ascend by position, that lie near enough to each other in a file to be read at once."""
    for file in log.files:
        low, high = _of_file(rows, file.number)
        for first, last in _near(rows["position"][low:high]):
            yield file, slice(low + first, low + last)


def _of_file(rows: Rows, number: int) -> tuple[int, int]:
    ends = np.array([number << 24, (number + 1) << 24], dtype=np.uint64)
    low, high = np.searchsorted(rows["position"], ends).tolist()
    return low, high


def _near(positions: U64) -> Iterator[tuple[int, int]]:
    """Ranges of indexes of records that lie near enough to each other."""
    first = 0
    while first < len(positions):
        end = positions[first] + np.uint64(_READ_BYTES // UNIT)
        last = int(np.searchsorted(positions, end))
        yield first, last
        first = last


def _fill(out: Rows, segments: Rows, file: LogFile, secret: tuple[int, int]) -> None:
    words, ids = id_words(file, segments)
    n, old_n = segments["n"].astype(np.int64), segments["old_n"].astype(np.int64)
    namespace, holder = namespaces(segments), holders(segments)
    for point, offset in enumerate(OFFSETS):
        reached = n > offset
        at = np.where(reached, ids + 2 * offset, ids)
        out["keys"][:, point] = directory_keys(secret, words[at], words[at + 1], namespace, holder) * reached
    marks = _fingerprints(words, ids, n, secret[1])
    out["filters"] = _filters(marks)
    out["old_filters"] = _filters(marks * (_region_ends() < old_n[:, None]))


def id_words(file: LogFile, segments: Rows) -> tuple[U64, Integers]:
    """The u64 of a piece of a file, and the indexes of the segment records' first ids in them."""
    places = (segments["position"] & np.uint64(0xFFFFFF)).astype(np.int64) * UNIT
    start, size = int(places[0]), int(places[-1] - places[0]) + _SEGMENT_BYTES_MAX
    try:
        data = read_at(file.descriptor, size, start)
    except DamagedError:
        data = b""  # reported where the file was walked
    words = np.frombuffer(data.ljust(size, b"\0"), dtype="<u8")
    return words, (places - start + _IDS_AT) // 8


def _region_ends() -> Integers:
    """The window offsets of the regions' last blocks."""
    return np.arange(1, _WINDOW, 2, dtype=np.int64)


def _fingerprints(words: U64, ids: Integers, n: Integers, s1: int) -> U64:
    """(records, 32): of each region of each record; 0 where the record ends before the region's second block."""
    reached = _region_ends() < n[:, None]
    at = ids[:, None] + 2 * np.where(reached, _region_ends(), 0)
    mixed = (words[at] ^ np.uint64(s1)) * _FACTOR
    marks = np.uint64(1) + ((mixed >> _S32) * np.uint64(255) >> _S32)
    return np.asarray(marks * reached, dtype=np.uint64)


def _filters(marks: U64) -> U64:
    """(records, 8): the fingerprints of eight regions from each point on, the first in the most significant byte."""
    out = np.zeros((len(marks), POINTS), dtype=np.uint64)
    for point, offset in enumerate(OFFSETS[:_LAST]):
        for region in range(offset // 2, min(offset // 2 + 8, _REGIONS)):
            out[:, point] |= marks[:, region] << np.uint64(56 - 8 * (region - offset // 2))
    return out


def _cut_masks() -> U64:
    """(8, 65): of each point the bytes of a filter that are left when a sequence is cut to so many blocks."""
    out = np.zeros((POINTS, _WINDOW + 1), dtype=np.uint64)
    for point, offset in enumerate(OFFSETS[:_LAST]):
        for n in range(_WINDOW + 1):
            whole = [0xFF if offset + 2 * at + 1 < n else 0 for at in range(8)]
            out[point, n] = int.from_bytes(bytes(whole), "big")
    return out


_CUT_MASKS: Final = _cut_masks()


def cut_filters(filters: U64, points: Integers, n: NDArray[np.uint8]) -> U64:
    """Filters at these points, as they are when their sequences are cut to n blocks."""
    return np.asarray(filters & _CUT_MASKS[points, np.minimum(n, _WINDOW)], dtype=np.uint64)
