"""Walks log files: pages to records, with every checksum and every rule on lengths verified (log.md, section 2).

A file is read in slices of whole pages, and all pages of a slice are walked in step, one record of each at a time, so
that numpy does the work. The result is one row of `FACTS` a record, and the damaged stretches.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .crc import DISTANCE, INITIAL, U8, U32, UNIT, Integers, PlaceSeed, advance, tail_crcs, unit_crcs
from .faults import DamagedError
from .folder import read_at
from .keys import U64, directory_keys
from .structures import LOG_BYTES_MAX, PAGE, LogHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

Rows = NDArray[np.void]

SEGMENT: Final = 1
REMOVE: Final = 2
CLEAR_HOLDER: Final = 3
NAMESPACE: Final = 4
COMMIT: Final = 5
RETIRE_FILE: Final = 6
SEAL: Final = 7
SUMMARY: Final = 8
CHUNK_PAYLOAD: Final = 9
POSTINGS: Final = 10
COUNT: Final = 11
TYPE_NAMES: Final = (
    *("free", "segment", "remove", "clear-holder", "namespace", "commit"),
    *("retire-file", "seal", "summary", "chunk payload", "postings", "count"),
)
FLAG_IGNORABLE: Final = 1
FLAG_COPY: Final = 2  # of segments: compaction moved the record that this one supersedes

SOUND: Final = 0
BAD_BODY: Final = 1
BAD_RULE: Final = 2
UNKNOWN_TYPE: Final = 3
PROBLEMS: Final = (
    "sound",
    "the record's body does not have its checksum",
    "n, d, dp, header units or length break the rules of the record's type",
    "unknown record type without the ignorable flag",
)

_SLICE_PAGES: Final = 1024
_PAGE_UNITS: Final = PAGE // UNIT

# What is kept of a record. `words` are the four u64 at offset 32, whatever they mean for the type. For segments: the
# keys of the blocks at offset d, 0 and (if d > 0) dp, and the last block's id; `points` and `old_n` are of `sarp`.
FACTS: Final = np.dtype(
    [
        *(("position", "<u8"), ("sequence", "<u8"), ("commit", "<u8"), ("words", "<u8", (4,))),
        *(("born", "<u8"), ("root_born", "<u8"), ("parent_key", "<u8"), ("supersedes", "<u8")),
        *(("key", "<u8"), ("root_key", "<u8"), ("left_key", "<u8"), ("last", "<u8", (2,))),
        *(("header_crc", "<u4"), ("length", "<u2"), ("type", "u1"), ("flags", "u1"), ("n", "u1"), ("d", "u1")),
        *(("dp", "u1"), ("units", "u1"), ("problem", "u1"), ("unclean", "u1"), ("points", "u1"), ("old_n", "u1")),
    ]
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a log file that is neither free nor a record; `offset` and `size` in bytes."""

    offset: int
    size: int
    code: str
    meaning: str


@dataclass(slots=True)
class Slice:
    """Walked pages: `data` begins at byte `offset` of the file; `rows` are in ascending order of place."""

    offset: int
    data: bytes
    rows: Rows
    damage: list[Damage]

    def record(self, row: Any) -> bytes:
        """A record's bytes, its whole length."""
        at = offset_of(row) - self.offset
        return self.data[at : at + int(row["length"])]


def offset_of(row: Any) -> int:
    """Byte offset of a record in its file."""
    return (int(row["position"]) & 0xFFFFFF) * UNIT


def holders(rows: Rows) -> U64:
    return np.asarray(rows["words"][:, 0] & np.uint64(0xFFFFFFFF), dtype=np.uint64)


def copies(rows: Rows) -> NDArray[np.bool_]:
    """Which segment records are copies."""
    return np.asarray(rows["flags"] & FLAG_COPY != 0, dtype=np.bool_)


def windows(rows: Rows) -> U64:
    return np.asarray(rows["words"][:, 0] >> np.uint64(32), dtype=np.uint64)


def namespaces(rows: Rows) -> U64:
    return np.asarray(rows["words"][:, 1], dtype=np.uint64)


def walk(descriptor: int, header: LogHeader, start: int, end: int) -> Iterator[Slice]:
    """Slices of the whole pages from byte `start` to `end` or to the file's end, in order.

    A slice that cannot be read is one damaged stretch.
    """
    end = min(end, os.fstat(descriptor).st_size, LOG_BYTES_MAX) // PAGE * PAGE
    walker = _Walker(header)
    for at in range(start, end, _SLICE_PAGES * PAGE):
        size = min(_SLICE_PAGES * PAGE, end - at)
        try:
            data = read_at(descriptor, size, at)
        except DamagedError as error:
            yield Slice(at, b"", np.zeros(0, dtype=FACTS), [Damage(at, size, error.code, error.meaning)])
            continue
        data = data[: len(data) // PAGE * PAGE]
        if data:
            yield walker.walk(data, at)
        if len(data) < size:
            return  # the file has become shorter


class _Walker:
    """Walks slices of one file."""

    def __init__(self, header: LogHeader) -> None:
        self._file = header.file
        self._seed = PlaceSeed(header.options.uuid, header.file)
        self._location_bytes = header.options.location_bytes
        self._secret = header.secret

    def walk(self, data: bytes, offset: int) -> Slice:
        units = np.frombuffer(data, dtype=np.uint8).reshape(-1, UNIT)
        crcs = unit_crcs(units)
        found, lost = self._find(units, crcs, offset)
        rows = self._facts(units, crcs, found, offset)
        return Slice(offset, data, rows, _stretches(lost, offset))

    def _find(self, units: U8, crcs: U32, offset: int) -> tuple[Integers, Integers]:
        """Unit indexes of valid record headers, and of the units that are damage; both ascending."""
        following = _following_used(units)
        pages = len(units) // _PAGE_UNITS
        at = np.zeros(pages, dtype=np.int64)
        active = np.arange(pages, dtype=np.int64)
        found, lost = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        while len(active):
            at[active] = following[active, at[active]]
            active = active[at[active] < _PAGE_UNITS]
            index = active * _PAGE_UNITS + at[active]
            valid, steps = self._headers(units, crcs, index, at[active], offset)
            found.append(index[valid])
            lost.append(index[~valid])
            at[active] += steps
        return np.sort(np.concatenate(found)), np.sort(np.concatenate(lost))

    def _headers(
        self, units: U8, crcs: U32, index: Integers, at: Integers, offset: int
    ) -> tuple[NDArray[np.bool_], Integers]:
        """Which of the units begin a record, and how many units on the walk goes."""
        heads = units[index]
        header_units = heads[:, 15].astype(np.int64)
        length = heads[:, 8].astype(np.int64) | heads[:, 9].astype(np.int64) << 8
        fits = (header_units >= 1) & (header_units <= 2) & (length >= header_units * UNIT)
        fits &= at * UNIT + length <= PAGE
        states = advance(60)(self._seed.states(offset + index * UNIT)) ^ _without_crc(heads, crcs[index])
        double = header_units == 2
        second = crcs[np.minimum(index + 1, len(units) - 1)]
        states = np.where(double, advance(UNIT)(states) ^ second, states) ^ np.uint32(INITIAL)
        valid = fits & (states == _u32(heads, 0)) & (heads[:, 10] != 0)
        return valid, np.where(valid, (length + UNIT - 1) // UNIT, 1)

    def _facts(self, units: U8, crcs: U32, index: Integers, offset: int) -> Rows:
        """Rows for the records whose headers begin at these units."""
        rows = np.zeros(len(index), dtype=FACTS)
        heads = np.ascontiguousarray(units[index])
        words = heads.view("<u8")
        rows["position"] = (self._file << 24) + offset // UNIT + index
        rows["sequence"], rows["commit"], rows["words"] = words[:, 2], words[:, 3], words[:, 4:8]
        rows["header_crc"] = _u32(heads, 0)
        rows["length"] = heads[:, 8:10].copy().view("<u2")[:, 0]
        for at, name in enumerate(("type", "flags", "n", "d", "dp", "units"), start=10):
            rows[name] = heads[:, at]
        bodies, rows["unclean"] = self._bodies(units, crcs, index, rows, offset)
        sound = bodies == _u32(heads, 4)
        lawful = _lawful(rows, self._location_bytes)
        unknown = (rows["type"] > COUNT) & (rows["flags"] & FLAG_IGNORABLE == 0)
        rows["problem"] = np.where(unknown, UNKNOWN_TYPE, np.where(~sound, BAD_BODY, np.where(lawful, SOUND, BAD_RULE)))
        self._segment_facts(units, index, rows)
        return rows

    def _bodies(self, units: U8, crcs: U32, index: Integers, rows: Rows, offset: int) -> tuple[U32, NDArray[np.bool_]]:
        """Body checksums as computed, and whether bytes behind the records' ends are not zero."""
        first = index + rows["units"]
        size = rows["length"].astype(np.int64) - rows["units"].astype(np.int64) * UNIT
        states = self._seed.states(offset + index * UNIT)
        whole = size // UNIT
        for at in range(int(whole.max(initial=0))):
            some = np.nonzero(whole > at)[0]
            states[some] = advance(UNIT)(states[some]) ^ crcs[first[some] + at]
        rest = size % UNIT
        tails = units[np.minimum(first + whole, len(units) - 1)]
        unclean = (tails * (np.arange(UNIT) >= rest[:, None])).any(axis=1) & (rest > 0)
        return tail_crcs(states, tails, rest) ^ np.uint32(INITIAL), unclean

    def _segment_facts(self, units: U8, index: Integers, rows: Rows) -> None:
        segments = np.nonzero((rows["type"] == SEGMENT) & (rows["problem"] == SOUND))[0]
        if not len(segments):
            return
        words = units.reshape(-1).view("<u8")
        chosen = rows[segments]
        base = index[segments] * 8
        chosen["born"], chosen["parent_key"] = words[base + 8], words[base + 9]
        chosen["supersedes"] = words[base + 10]
        chosen["points"] = words[base + 11] & np.uint64(0xFF)
        chosen["old_n"] = words[base + 11] >> np.uint64(8) & np.uint64(0xFF)
        chosen["root_born"] = words[base + 12]
        ids, n, d = base + 16, chosen["n"].astype(np.int64), chosen["d"].astype(np.int64)
        last = ids + 2 * (n - 1)
        chosen["last"][:, 0], chosen["last"][:, 1] = words[last], words[last + 1]
        namespace, holder = namespaces(chosen), holders(chosen)
        left = np.minimum(chosen["dp"], n - 1)
        for name, block in (("key", d), ("root_key", np.zeros_like(d)), ("left_key", left)):
            at = ids + 2 * block
            chosen[name] = directory_keys(self._secret, words[at], words[at + 1], namespace, holder)
        rows[segments] = chosen


def _u32(heads: U8, at: int) -> U32:
    return np.ascontiguousarray(heads[:, at : at + 4]).view("<u4")[:, 0]


def _following_used(units: U8) -> Integers:
    """(pages, 65): for each unit of a page, the first one from it on that is not all zero; 64 if none is."""
    used = units.view("<u8").any(axis=1).reshape(-1, _PAGE_UNITS)
    places = np.where(used, np.arange(_PAGE_UNITS), _PAGE_UNITS)
    following = np.full((len(places), _PAGE_UNITS + 1), _PAGE_UNITS, dtype=np.int64)
    following[:, :-1] = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    return following


def _without_crc(heads: U8, crcs: U32) -> U32:
    """CRCs of the units' bytes from 4 on: those of the whole units, less what the first four bytes added."""
    crcs = crcs.copy()
    for at in range(4):
        crcs ^= DISTANCE[UNIT - 1 - at].take(heads[:, at])
    return crcs


def _lawful(rows: Rows, location_bytes: int) -> NDArray[np.bool_]:
    """Whether header units, n, d, dp and length are what the type demands (log.md; recovery.md, section 3)."""
    kind = rows["type"]
    n, d, length = (rows[name].astype(np.int64) for name in ("n", "d", "length"))
    texts = rows["words"][:, 0]
    text_bytes = (texts >> np.uint64(32) & np.uint64(0xFFFF)).astype(np.int64) + (texts >> np.uint64(48)).astype(
        np.int64
    )
    scheme = (texts & np.uint64(0xFFFFFFFF)).astype(np.int64)
    segment = (n >= 1) & (n <= 64) & (d < n) & (rows["dp"] <= 63) & (length == 128 + n * (16 + location_bytes))
    lawful = (kind > COUNT) | (rows["units"] == np.where(kind == SEGMENT, 2, 1))
    rules = [
        (SEGMENT, segment),
        (REMOVE, (n >= 1) & (n <= 252) & (length == 64 + 16 * n)),
        (NAMESPACE, (length == 64 + text_bytes) & (scheme >= 1) & (scheme <= 64)),
        (SUMMARY, (n >= 1) & (n <= 126) & (length == 64 + 32 * n)),
        (POSTINGS, (n >= 1) & (n <= 126) & (length == 64 + 32 * n)),
        (COUNT, (n >= 1) & (n <= 168) & (length == 64 + 24 * n)),
    ]
    rules.extend((bare, length == 64) for bare in (CLEAR_HOLDER, COMMIT, RETIRE_FILE, SEAL))
    for name, rule in rules:
        lawful &= (kind != name) | rule
    return np.asarray(lawful, dtype=np.bool_)


def _stretches(lost: Integers, offset: int) -> list[Damage]:
    """Neighbouring damaged units as one stretch."""
    if not len(lost):
        return []
    breaks = np.nonzero(np.diff(lost) != 1)[0] + 1
    meaning = "neither free space nor a valid record header"
    return [
        Damage(offset + int(run[0]) * UNIT, len(run) * UNIT, "damaged-record", meaning)
        for run in np.split(lost, breaks)
    ]
