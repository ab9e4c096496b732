"""Tokens out of nothing: the same ones on every machine and in every version of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sarpstore_tools.traces.model import Tokens

VOCABULARY = 32_000
"""Made-up tokens are below this: Llama-2's vocabulary."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 finalizer of each value (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def token_run(key: int, length: int) -> Tokens:
    """`length` tokens below `VOCABULARY` that depend on `key` (any integer of 64 bits) alone."""
    start = splitmix64(np.array([key % (1 << 64)], dtype=np.uint64))
    positions: npt.NDArray[np.uint64] = np.arange(length, dtype=np.uint64)
    mixed = splitmix64(np.add(start, positions, dtype=np.uint64))
    return (mixed % np.uint64(VOCABULARY)).astype(np.uint32)
