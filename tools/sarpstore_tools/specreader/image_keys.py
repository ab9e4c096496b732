"""Partitions, images and entries of a directory of keys: routing 0 (directory.md, checkpoint.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .checked import Checked, Difference, Problem, named_records, note_dead, other_n, report_entries
from .state import Directory, differences, excess, maskless, placed_entries
from .structures import KEY_BITS, REFERENCE_NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .accept import Log
    from .faults import Faults
    from .log import Rows
    from .removed import Removed
    from .structures import Image

_KEYS: Final = 1 << KEY_BITS


class KeyImages:
    """The rules of routing 0; `log` is what a checkpoint is compared with."""

    nameless = "placeholder"

    def __init__(self, log: Log) -> None:
        self._rows = log.rows

    def placed(self, entries: Rows, files_by_slot: NDArray[np.uint64]) -> Rows:
        return placed_entries(entries, files_by_slot)

    def blocks(self, rows: Rows) -> int:
        held = rows[rows["placeholder"] == 0]
        return int((held["n"].astype(np.int64) - held["d"]).sum())

    def cover(self, one: Checked, faults: Faults) -> None:
        """Partitions are disjoint and cover all keys, in ascending order."""
        expected = 0
        for index, row in enumerate(one.head.partitions):
            at = one.partition_at(index)
            prefix, depth = int(row["prefix"]), int(row["depth"])
            span = 1 << max(0, KEY_BITS - depth)
            if depth > KEY_BITS or prefix % span:
                faults.corruption(one.name, at, "partition", f"prefix {prefix:012x} does not have {depth} bits")
                return
            if prefix != expected:
                what = "overlaps" if prefix < expected else "leaves a gap behind"
                faults.corruption(one.name, at, "partition", f"partition {prefix:012x} {what} the one before it")
            expected = prefix + span
        if expected != _KEYS:
            at = one.partition_at(len(one.head.partitions))
            meaning = f"the partitions end at key {expected:012x}, not with the last"
            faults.corruption(one.name, at, "partition", meaning)

    def problems(self, one: Checked, index: int, image: Image, rows: Rows) -> list[Problem]:
        row = one.head.partitions[index]
        held = rows[rows["placeholder"] == 0]
        shift = np.uint64(KEY_BITS - min(image.depth, KEY_BITS))
        empty = np.uint64(REFERENCE_NONE << 24 | 1)
        blank = (image.entries["word1"] & ~np.uint64(31 << 1)) != empty
        same = (image.prefix, image.depth) == (int(row["prefix"]), int(row["depth"]))
        outside = (rows["key"] >> shift != image.prefix >> int(shift)).any()
        return [
            (same, "prefix", "prefix or depth is not the head's"),
            (not (rows["key"][1:] < rows["key"][:-1]).any(), "order", "entries are not in ascending order of key"),
            (not outside, "prefix", "entries outside of its prefix"),
            (not (held["d"] >= held["n"]).any(), "entry", "an entry whose d is not below n"),
            (not (held["mask"][held["d"] > 0]).any(), "entry", "an entry with a mask that is not a root entry"),
            (not (blank & (rows["placeholder"] == 1)).any(), "entry", "a placeholder that claims something"),
            (_distinct(held), "entry", "two entries with the same key and reference"),
        ]

    def check_entries(self, one: Checked, log: Log, removed: Removed, faults: Faults) -> None:
        segments = removed.segments
        indexes = np.nonzero(one.placed["placeholder"] == 0)[0]
        named = named_records(one.placed[indexes], segments)
        differs = np.zeros(len(indexes), dtype=np.bool_)
        if len(segments):
            records = segments[named.at]
            differs = np.any([records[name] != named.entries[name] for name in ("key", "d", "dp")], axis=0)
            differs |= other_n(named.entries, records, log)
        report_entries(one, log, indexes, named, differs, "key, n, d or dp", faults)
        note_dead(one, named, removed, faults)

    def _replayed(self, one: Checked) -> tuple[Directory, Directory]:
        log_alone, with_head = Directory(), Directory()
        log_alone.replay(self._rows)
        with_head.load(one.placed)
        with_head.replay(self._rows[self._rows["position"] >= np.uint64(one.head.start)])
        return log_alone, with_head

    def differences(self, one: Checked) -> Iterator[Difference]:
        yield from differences(*self._replayed(one))

    def excess(self, one: Checked, log: Log, removed: Removed) -> tuple[list[Difference], int]:
        log_alone, with_head = self._replayed(one)
        found, lacking = excess(log_alone, with_head)
        alive = removed.segments[removed.left > removed.segments["d"]]
        return [one for one in found if not log.is_gone(one[1] >> 24)] + list(maskless(with_head, alive)), lacking


def _distinct(held: Rows) -> bool:
    held = held[held["position"] >> np.uint64(24) != 0]  # a slot that stands for no file has no position
    pairs = np.stack([held["key"], held["position"]], axis=1)
    return len(np.unique(pairs, axis=0)) == len(pairs)
