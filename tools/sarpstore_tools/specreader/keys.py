"""Directory keys (directory.md, section 1), for whole arrays at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

KEY_BITS: Final = 48
_HOLDER_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_LOW: Final = np.uint64(0xFFFFFFFF)
_S32: Final = np.uint64(32)
_S33: Final = np.uint64(33)
_S16: Final = np.uint64(16)


def _fold_product(a: U64, b: U64) -> U64:
    """Low xor high half of the 128-bit products."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _S32, b & _LOW, b >> _S32
    low = a_low * b_low
    middle_1 = a_high * b_low + (low >> _S32)
    middle_2 = a_low * b_high + (middle_1 & _LOW)
    high = a_high * b_high + (middle_1 >> _S32) + (middle_2 >> _S32)
    return np.asarray((a * b) ^ high, dtype=np.uint64)


def directory_keys(secret: tuple[int, int], id_low: U64, id_high: U64, namespace: U64, holder: U64) -> U64:
    """48-bit keys of block ids, given as their two u64 halves, under namespaces and holders."""
    a = id_low ^ np.uint64(secret[0]) ^ namespace
    b = id_high ^ np.uint64(secret[1]) ^ holder * _HOLDER_FACTOR
    mixed = _fold_product(a, b)
    mixed = (mixed ^ mixed >> _S33) * _MIX_1
    mixed = (mixed ^ mixed >> _S33) * _MIX_2
    return np.asarray((mixed ^ mixed >> _S33) >> _S16, dtype=np.uint64)
