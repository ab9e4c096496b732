"""Partitions, images and entries of a directory of posting lists: routing 1 (postings.md, sections 2 and 5)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .checked import Checked, Difference, Problem, named_records, note_dead, other_n, report_entries
from .lists import Lists, list_differences, list_excess, placed_postings
from .points import OFFSETS, cut_filters, may_have

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from .accept import Log
    from .changes import Changes
    from .faults import Faults
    from .log import Rows
    from .removed import Removed
    from .structures import Image

Place = tuple[int, int, int]
"""Key, filter and reference: what the directory is in order of."""


class ListImages:
    """The rules of routing 1; `changes` are those of the log, None if its routing is another."""

    nameless = "state"

    def __init__(self, changes: Changes | None) -> None:
        self._changes = changes

    def placed(self, entries: Rows, files_by_slot: NDArray[np.uint64]) -> Rows:
        return placed_postings(entries, files_by_slot)

    def blocks(self, rows: Rows) -> int:
        held = rows[(rows["state"] == 0) & (rows["point"] == 0)]
        return int((held["n"].astype(np.int64) - held["d"]).sum())

    def cover(self, one: Checked, faults: Faults) -> None:
        """Ranges ascend, and the first begins with the order."""
        lows = [_low(row) for row in one.head.partitions]
        if not lows or lows[0] != (0, 0, 0):
            meaning = "the first partition does not begin at (0, 0, 0)" if lows else "there is no partition"
            faults.corruption(one.name, one.partition_at(0), "partition", meaning)
        for index in range(1, len(lows)):
            if lows[index] <= lows[index - 1]:
                meaning = f"partition {_shown(lows[index])} does not begin behind the one before it"
                faults.corruption(one.name, one.partition_at(index), "partition", meaning)

    def problems(self, one: Checked, index: int, image: Image, rows: Rows) -> list[Problem]:
        partitions = one.head.partitions
        low = _low(partitions[index])
        end = _low(partitions[index + 1]) if index + 1 < len(partitions) else None
        places = list(zip(*(rows[name].tolist() for name in ("key", "filter", "reference")), strict=True))
        ordered = all(before < after for before, after in pairwise(places))
        inside = all(low <= place and (end is None or place < end) for place in places)
        state = rows["state"] == 1
        held, states = rows[~state], rows[state]
        claims = (states["n"] != 1) | (states["d"] != 0) | (states["filter"] != 0)
        pairs = zip(states["point"].tolist(), states["flags"].tolist(), strict=True)
        possible = all(may_have(point, flags) for point, flags in pairs)
        same = (image.prefix, image.depth, image.filter) == (low[0], 0, low[1])
        return [
            (same, "prefix", "prefix, depth or filter is not the head's"),
            (ordered, "order", "entries are not in ascending order of key, filter and reference"),
            (inside, "prefix", "entries outside of its range"),
            (not rows["odd"].any(), "entry", "an entry with bits that mean nothing"),
            (not (held["d"] >= held["n"]).any(), "entry", "a posting whose d is not below n"),
            (not (np.array(OFFSETS)[held["point"]] >= held["n"]).any(), "entry", "a posting with a point behind its n"),
            (not claims.any(), "entry", "a state that claims something"),
            (possible, "entry", "a state that no list at its point can have"),
        ]

    def check_entries(self, one: Checked, log: Log, removed: Removed, faults: Faults) -> None:
        assert self._changes
        segments, facts = self._changes.segments, self._changes.facts
        indexes = np.nonzero(one.placed["state"] == 0)[0]
        entries = one.placed[indexes]
        named = named_records(entries, segments)
        differs = np.zeros(len(indexes), dtype=np.bool_)
        if len(segments):
            own, each, points = facts[named.at], np.arange(len(entries)), entries["point"].astype(np.int64)
            filters = cut_filters(own["filters"][each, points], points, entries["n"])
            differs = (own["keys"][each, points] != entries["key"]) | (filters != entries["filter"])
            differs |= other_n(entries, segments[named.at], log) | (segments["d"][named.at] != entries["d"])
        report_entries(one, log, indexes, named, differs, "key, filter, n or d", faults)
        note_dead(one, named, removed, faults)

    def _replayed(self, one: Checked) -> tuple[Lists, Lists]:
        log_alone, with_head = Lists(), Lists()
        assert self._changes
        changes = self._changes.all
        log_alone.replay(changes)
        with_head.load(one.placed)
        with_head.replay(changes[changes["place"] >= np.uint64(one.head.start)])
        return log_alone, with_head

    def differences(self, one: Checked) -> Iterator[Difference]:
        yield from list_differences(*self._replayed(one))

    def excess(self, one: Checked, log: Log, removed: Removed) -> tuple[list[Difference], int]:  # noqa: ARG002
        found, lacking = list_excess(*self._replayed(one))
        if log.shortened:  # the records that made the states may be in files that were deleted
            found = [difference for difference in found if difference[1]]
        return [one for one in found if not (one[1] and log.is_gone(one[1] >> 24))], lacking


def _low(row: Any) -> Place:
    return int(row["prefix"]), int(row["filter"]), int(row["reference"])


def _shown(low: Place) -> str:
    return f"({low[0]:012x}, {low[1]:016x}, {low[2]:010x})"
