"""CRC32C in plain Python and numpy (README.md of the specification, section 3).

A CRC is linear over GF(2). So the CRC of a 64-byte unit from state zero is the xor of one table entry a byte, which
numpy looks up for all units of a file at once; units are then joined with the operator "advance over 64 zero bytes".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
Integers = NDArray[np.int64]

UNIT: Final = 64
INITIAL: Final = 0xFFFFFFFF
_POLYNOMIAL_REFLECTED: Final = 0x82F63B78
_SHORT: Final = 256  # bytes; below, a plain loop is faster than numpy's overhead


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL_REFLECTED if state & 1 else 0)
        table.append(state)
    return table


_TABLE: Final = _byte_table()


class Advance:
    """The linear operator that takes CRC states over a fixed number of zero bytes."""

    def __init__(self, tables: U32) -> None:
        self._tables = tables

    def __call__(self, states: U32) -> U32:
        t = self._tables
        low = t[0].take(states & 0xFF) ^ t[1].take(states >> 8 & 0xFF)
        return np.asarray(low ^ t[2].take(states >> 16 & 0xFF) ^ t[3].take(states >> 24), dtype=np.uint32)

    def then(self, other: Advance) -> Advance:
        return Advance(other(self._tables))


def _advance_one() -> Advance:
    tables = np.zeros((4, 256), dtype=np.uint32)
    tables[0] = _TABLE
    for place in range(1, 4):
        tables[place] = np.arange(256, dtype=np.uint32) << (8 * (place - 1))
    return Advance(tables)


@lru_cache(maxsize=256)
def advance(count: int) -> Advance:
    """The operator for `count` >= 1 zero bytes."""
    if count == 1:
        return _advance_one()
    half = advance(count // 2)
    doubled = half.then(half)
    return doubled.then(advance(1)) if count % 2 else doubled


def _distance_tables() -> U32:
    """Row e: what a byte adds to the CRC when e more bytes follow it."""
    rows = [np.array(_TABLE, dtype=np.uint32)]
    for _ in range(UNIT - 1):
        rows.append(advance(1)(rows[-1]))
    return np.stack(rows)


DISTANCE: Final = _distance_tables()


def unit_crcs(units: U8) -> U32:
    """The CRCs of (count, 64) bytes a row, from state zero and without the final xor."""
    columns = np.ascontiguousarray(units.T)
    total = np.zeros(len(units), dtype=np.uint32)
    for at in range(UNIT):
        total ^= DISTANCE[UNIT - 1 - at].take(columns[at])
    return total


def extend(state: int, data: bytes) -> int:
    """A state (no final xor) taken over the bytes, one by one."""
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 0xFF]
    return state


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC32C of the bytes."""
    if len(data) < _SHORT:
        return extend(INITIAL, bytes(data)) ^ INITIAL
    padding = -len(data) % UNIT
    buffer = np.zeros(padding + len(data), dtype=np.uint8)
    buffer[padding:] = np.frombuffer(data, dtype=np.uint8)
    # Leading zeros leave state zero as it is; the initial value is the same as flipping the first four bytes.
    buffer[padding : padding + 4] ^= 0xFF
    crcs = unit_crcs(buffer.reshape(-1, UNIT))
    span = UNIT
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, dtype=np.uint32), crcs])
        crcs = advance(span)(crcs[0::2]) ^ crcs[1::2]
        span *= 2
    return int(crcs[0]) ^ INITIAL


class PlaceSeed:
    """States of records' checksums after their seed: store uuid, file number and the offsets in the file."""

    def __init__(self, uuid: bytes, file_number: int) -> None:
        self._state = extend(INITIAL, uuid + file_number.to_bytes(8, "little"))

    def states(self, offsets: Integers) -> U32:
        base = int(advance(8)(np.array([self._state], dtype=np.uint32))[0])
        total = np.full(len(offsets), base, dtype=np.uint32)
        for at in range(4):  # offsets are below 2^30
            total ^= DISTANCE[7 - at].take(offsets >> (8 * at) & 0xFF)
        return total


def tail_crcs(states: U32, tails: U8, lengths: Integers) -> U32:
    """States taken over the first `lengths` (0 to 63) bytes of each row of `tails` (count, 64)."""
    out = states.copy()
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.nonzero(lengths == length)[0]
        out[rows] = advance(length)(states[rows])
    for at in range(int(lengths.max(initial=0))):
        rows = np.nonzero(lengths > at)[0]
        out[rows] ^= DISTANCE[lengths[rows] - 1 - at, tails[rows, at]]
    return out
