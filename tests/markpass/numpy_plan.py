"""What a mark pass decides, with numpy: what the kernel's plan is held against."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import lib
from sarpstore._markpass.plan import Plan

U64s = npt.NDArray[np.uint64]

_MASK_BITS: Final = np.uint64(16)
_LENGTH_BITS: Final = np.uint64(8)
_SLOT_BITS: Final = np.uint64(fmt.UNIT_BITS)
_MASK_GROUP: Final = 4  # offsets that share a mask bit


def numpy_plan(rows: npt.NDArray[Any], removals: U64s, position: int) -> Plan:
    """As `make_plan`; `removals` stay as they are."""
    left = decide(rows, np.unique(removals), position)
    return Plan(_verdicts(rows, left), _masks(rows, left), _intact(rows, left))


def decide(rows: npt.NDArray[Any], removals: U64s, position: int) -> npt.NDArray[np.uint8]:
    """Of each row's entry the blocks that stay. `removals` ascends."""
    left = np.zeros(len(rows), np.uint8)
    order = np.argsort(rows["window"], kind="stable")
    windows = rows["window"][order]
    begins = np.flatnonzero(np.diff(windows, prepend=windows[:1])).tolist() if len(rows) else []
    before, parents = -1, _NO_PARENTS
    for begin, end in pairwise([0, *begins, len(rows)]):
        if begin == end:
            continue
        members, window = order[begin:end], int(windows[begin])
        if window != before + 1:
            parents = _NO_PARENTS
        left[members], parents = _decide_window(rows, members, window, parents, removals, position)
        before = window
    return left


class _Parents(NamedTuple):
    """Whole entries of one window that stay, by the tag of their last block."""

    tags: U64s
    """Ascending, each once."""
    ages: npt.NDArray[np.int64]
    """Removals that the oldest of them outlived or followed: those up to its `born`."""

    @classmethod
    def of(cls, tags: U64s, ages: npt.NDArray[np.int64]) -> _Parents:
        order = np.lexsort((ages, tags))
        tags, ages = tags[order], ages[order]
        first = np.ones(len(tags), bool)
        first[1:] = tags[1:] != tags[:-1]
        return cls(tags[first], ages[first])

    def have(self, prefixes: U64s, ages: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether there is a parent for each record: no removal came between the record's birth and the parent's."""
        if not len(self.tags):
            return np.zeros(len(prefixes), bool)
        at = np.minimum(np.searchsorted(self.tags, prefixes), len(self.tags) - 1)
        found: npt.NDArray[np.bool_] = (self.tags[at] == prefixes) & (self.ages[at] <= ages)
        return found


_NO_PARENTS: Final = _Parents(np.empty(0, np.uint64), np.empty(0, np.int64))


def _decide_window(
    rows: npt.NDArray[Any],
    members: npt.NDArray[np.intp],
    window: int,
    parents: _Parents,
    removals: U64s,
    position: int,
) -> tuple[npt.NDArray[np.uint8], _Parents]:
    """Blocks that stay of each of a window's rows, and who are parents to the next window's."""
    born = rows["born"][members]
    # What was inserted since the pass began was proved against every removal up to it.
    newer = born >= np.uint64(position)
    n = rows["n"][members]
    left = np.where(newer, n, np.minimum(n, rows["cut"][members]))
    ages = np.searchsorted(removals, born, side="right")
    alive = left > rows["d"][members]
    if window:
        alive &= parents.have(rows["prefix"][members], ages)
    left[~(alive | newer)] = 0
    whole = left == fmt.WINDOW
    return left, _Parents.of(rows["last"][members[whole]], ages[whole])


def _verdicts(rows: npt.NDArray[Any], left: npt.NDArray[np.uint8]) -> U64s:
    verdicts: U64s = rows["reference"] << _LENGTH_BITS
    verdicts |= left
    verdicts.sort()
    return verdicts


def _masks(rows: npt.NDArray[Any], left: npt.NDArray[np.uint8]) -> U64s:
    branches = np.flatnonzero((left > 0) & (rows["d"] > 0))
    bits = np.left_shift(np.uint64(1), (rows["d"][branches] // _MASK_GROUP).astype(np.uint64))
    masks: U64s = rows["root_key"][branches] << _MASK_BITS | bits
    masks.sort()
    if not len(masks):
        return masks
    first = np.flatnonzero(np.diff(masks >> _MASK_BITS)) + 1
    return np.bitwise_or.reduceat(masks, np.concatenate([[0], first]))


def _intact(rows: npt.NDArray[Any], left: npt.NDArray[np.uint8]) -> U64s:
    chosen = (left == rows["n"]) & (rows["whole"] > 0)
    slots = (rows["reference"][chosen] >> _SLOT_BITS).astype(np.int64)
    return np.bincount(slots, minlength=lib.SARP_SLOTS).astype(np.uint64)
