"""The directory of posting lists as plain dicts: replay (postings.md, section 4), and entries as stored (section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .changes import ADD
from .structures import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .log import Rows

# Entries with their references turned into positions; of a state the position is 0, and its flags are in `flags`.
# `odd` has the bits of words 0 and 1 that must be zero.
PLACED: Final = np.dtype(
    [
        *(("key", "<u8"), ("filter", "<u8"), ("reference", "<u8"), ("position", "<u8"), ("odd", "<u8")),
        *(("n", "u1"), ("d", "u1"), ("point", "u1"), ("recency", "u1"), ("flags", "u1"), ("state", "u1")),
    ]
)
_STATE_FLAGS: Final = 3

Element = tuple[int, int]
"""Filter and position of a posting."""

Said = tuple[int, int, int]
"""n, d and point of a posting."""


class Lists:
    """Postings by key, and states by key: point and flags."""

    def __init__(self) -> None:
        self.postings: dict[int, dict[Element, Said]] = {}
        self.states: dict[int, tuple[int, int]] = {}

    def load(self, placed: Rows) -> None:
        """Adds the entries of an image."""
        names = ("key", "filter", "position", "n", "d", "point", "flags", "state")
        for key, one, at, n, d, point, flags, state in zip(*(placed[name].tolist() for name in names), strict=True):
            if state:
                self._state(key, point, flags, add=True)
            else:
                self._posting(key, (one, at), (n, d, point), add=True)

    def replay(self, changes: Rows) -> None:
        """Applies changes in the given order, which must be that of their places."""
        names = ("key", "filter", "position", "n", "d", "point", "operation")
        for key, one, at, n, d, point, operation in zip(*(changes[name].tolist() for name in names), strict=True):
            if at:
                self._posting(key, (one, at), (n, d, point), operation == ADD)
            else:
                self._state(key, point, one, operation == ADD)

    def _posting(self, key: int, element: Element, said: Said, add: bool) -> None:
        if add:
            self.postings.setdefault(key, {}).setdefault(element, said)
        elif element in (found := self.postings.get(key, {})):
            del found[element]
            if not found:
                del self.postings[key]

    def _state(self, key: int, point: int, flags: int, add: bool) -> None:
        before = self.states.get(key, (point, 0))
        after = before[1] | flags if add else before[1] & ~flags
        if after:
            self.states[key] = (before[0], after)
        else:
            self.states.pop(key, None)

    def entries(self) -> Iterator[tuple[int, int, int, Said]]:
        """Key, filter, position, and n, d and point of every posting."""
        for key, found in self.postings.items():
            for (one, at), said in found.items():
                yield key, one, at, said

    @property
    def blocks(self) -> int:
        """Blocks held: the sum of n - d over the postings with point 0."""
        return sum(n - d for _, _, _, (n, d, point) in self.entries() if point == 0)

    @property
    def count(self) -> int:
        """Entries: postings and states."""
        return len(self.states) + sum(map(len, self.postings.values()))


def placed_postings(entries: Rows, files_by_slot: NDArray[np.uint64]) -> Rows:
    """Stored entries taken apart; `files_by_slot` has the file number of each of 65,536 slots, 0 for none."""
    word0, word1 = entries["word0"], entries["word1"]
    out = np.zeros(len(entries), dtype=PLACED)
    reference = word1 >> np.uint64(24)
    state = reference == 0
    out["key"], out["filter"], out["reference"], out["state"] = (
        word0 >> np.uint64(16),
        entries["filter"],
        reference,
        state,
    )
    files = files_by_slot[(reference >> np.uint64(24)).astype(np.int64)]
    out["position"] = np.where(state, 0, files << np.uint64(24) | reference & np.uint64(0xFFFFFF))
    out["n"] = (word0 >> np.uint64(10) & np.uint64(63)) + np.uint64(1)
    out["d"], out["point"] = word0 >> np.uint64(4) & np.uint64(63), word0 >> np.uint64(1) & np.uint64(7)
    low = word1 & np.uint64(0xFFFFFF)
    out["flags"] = np.where(state, low & np.uint64(_STATE_FLAGS), 0)
    out["recency"] = np.where(state, 0, low >> np.uint64(1) & np.uint64(31))
    blank = np.where(state, low & ~np.uint64(_STATE_FLAGS), low & ~np.uint64(31 << 1))
    out["odd"] = word0 & np.uint64(1) | blank
    return out


def list_differences(log_alone: Lists, with_head: Lists) -> Iterator[tuple[int, int, str]]:
    """Where two directories differ: (key, position, meaning)."""
    for key in log_alone.postings.keys() | with_head.postings.keys():
        ours, theirs = log_alone.postings.get(key, {}), with_head.postings.get(key, {})
        for element in ours.keys() - theirs.keys():
            yield key, element[1], f"the log has {_said(element, ours[element])}: not in the checkpoint"
        for element in theirs.keys() - ours.keys():
            yield key, element[1], f"the checkpoint has {_said(element, theirs[element])}: not in the log"
        for element in ours.keys() & theirs.keys():
            if ours[element] != theirs[element]:
                meaning = f"the log has {_said(element, ours[element])}, the checkpoint"
                yield key, element[1], f"{meaning} {_said(element, theirs[element])}"
    for key in log_alone.states.keys() | with_head.states.keys():
        states = log_alone.states.get(key, (0, 0)), with_head.states.get(key, (0, 0))
        if states[0] != states[1]:
            said = [f"point {point}, flags {flags}" if flags else "none" for point, flags in states]
            yield key, 0, f"the log has the state {said[0]}, the checkpoint {said[1]}"


def list_excess(log_alone: Lists, with_head: Lists) -> tuple[list[tuple[int, int, str]], int]:
    """What the second directory has and the first has not, or not with so many blocks; and how many postings it lacks.

    A posting is known by its key, record and point here: one that a removal has cut has another filter.
    """
    ours, theirs = _by_place(log_alone), _by_place(with_head)
    found = [
        (key, position, f"the checkpoint has n {n}, d {d}, point {point}: not in the log")
        for (key, position, point), (n, d) in theirs.items()
        if n > ours.get((key, position, point), (0, d))[0] or d != ours[key, position, point][1]
    ]
    for key, (point, flags) in with_head.states.items():
        before = log_alone.states.get(key, (point, 0))
        if before[0] != point or flags & ~before[1]:
            found.append((key, 0, f"the checkpoint has the state point {point}, flags {flags}: not in the log"))
    return found, len(ours.keys() - theirs.keys())


def _by_place(lists: Lists) -> dict[tuple[int, int, int], tuple[int, int]]:
    """n and d by key, position and point; of two that differ in what was cut, the longer."""
    out: dict[tuple[int, int, int], tuple[int, int]] = {}
    for key, _, position, (n, d, point) in lists.entries():
        out[key, position, point] = max((n, d), out.get((key, position, point), (0, 0)))
    return out


def _said(element: Element, said: Said) -> str:
    return f"n {said[0]}, d {said[1]}, point {said[2]}, filter {element[0]:016x} of {shown(element[1])}"
