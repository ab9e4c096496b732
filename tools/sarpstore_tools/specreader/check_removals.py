"""What removes, and what compaction leaves behind: remove, clear-holder, count and retire-file records (removal.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check_births import timed
from .log import CLEAR_HOLDER, COUNT, REMOVE, RETIRE_FILE, SEGMENT, TYPE_NAMES, Rows, copies, holders
from .reporting import bytes_of, find, report
from .structures import place, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .accept import Log
    from .faults import Faults

_OF_VERSION_1_1 = (REMOVE, CLEAR_HOLDER, RETIRE_FILE, COUNT)


def check_removals(log: Log, segments: Rows, faults: Faults) -> None:
    """All checks of this module; `segments` are the accepted segment records."""
    removals = log.rows[np.isin(log.rows["type"], (REMOVE, CLEAR_HOLDER))]
    _versions(log, faults)
    _effects(log, removals, faults)
    _placement(log, removals[removals["words"][:, 2] == removals["position"]], faults)
    _holders(log, segments, removals[removals["type"] == CLEAR_HOLDER], faults)
    _retired(log, faults)


def _versions(log: Log, faults: Faults) -> None:
    """The feature bit goes with the version, stays once a file has it, and with it alone come its records."""
    before = ""
    for file in log.files:
        if file.header is None:
            continue
        removals, minor = file.header.removals, file.header.minor
        if removals != (minor > 0):
            meaning = f"version 1.{minor} {'with' if removals else 'without'} the feature bit of version 1.1"
            faults.corruption(file.name, 32, "version", meaning)
        if before and not removals:
            faults.corruption(file.name, 32, "features", f"lacks the feature removals, which {before} has")
        before = file.name if removals else before
    old = log.rows[~timed(log, log.rows)]
    for row in old[np.isin(old["type"], _OF_VERSION_1_1)]:
        name = TYPE_NAMES[int(row["type"])]
        report(faults, row, "features", f"a {name} record in a file without the feature removals")
    for row in old[(old["type"] == SEGMENT) & copies(old)]:
        report(faults, row, "features", "a copy in a file without the feature removals")
    for row in log.rows[(log.rows["type"] != SEGMENT) & copies(log.rows)]:
        report(faults, row, "copy", f"a {TYPE_NAMES[int(row['type'])]} record that is flagged a copy")


def _effects(log: Log, removals: Rows, faults: Faults) -> None:
    """A removal took effect where its record stands, or where the record stood that compaction moved here."""
    effects = removals["words"][:, 2]
    introduces = (removals["type"] == CLEAR_HOLDER) & (effects == 0)
    moved = ~introduces & (effects != removals["position"])
    early = effects >> np.uint64(24) < removals["position"] >> np.uint64(24)
    for row in removals[moved & (~early | (effects == 0))]:
        meaning = f"takes effect at {shown(int(row['words'][2]))}: neither its own place nor one in an earlier file"
        report(faults, row, "effect", meaning)
    some = removals[moved & early & (effects != 0)]
    for row, at in zip(some, find(log.rows, some["words"][:, 2]).tolist(), strict=True):
        effect = int(row["words"][2])
        number = place(effect)[0]
        if at >= 0 and _says_the_same(log, log.rows[at], row):
            continue
        if at >= 0 or not (log.is_gone(number) or number in log.damaged_files):
            report(faults, row, "effect", f"was moved from {shown(effect)}, where no such record is")


def _says_the_same(log: Log, old: Any, new: Any) -> bool:
    kinds = old["type"] == new["type"] and (old["words"][:2] == new["words"][:2]).all()
    return bool(kinds) and bytes_of(log, old, 64, int(old["length"]) - 64) == bytes_of(
        log, new, 64, int(new["length"]) - 64
    )


def _placement(log: Log, removals: Rows, faults: Faults) -> None:
    """A removal stands behind all that was in its commit before it, and that was born before it."""
    rows = log.rows[np.isin(log.rows["commit"], removals["commit"])]
    rows = rows[np.argsort(rows["commit"], kind="stable")]
    for row in removals:
        low, high = np.searchsorted(rows["commit"], [row["commit"], row["commit"] + np.uint64(1)]).tolist()
        own = rows[low:high]
        earlier = own["sequence"] < row["sequence"]
        for other in own[earlier & (own["position"] > row["position"])]:
            meaning = f"record {int(other['sequence'])} was in the commit and stands behind it"
            report(faults, row, "removal", meaning)
        inserted = (own["type"] == SEGMENT) & ~copies(own)
        for other in own[inserted & earlier & (own["born"] > row["position"])]:
            report(faults, other, "born", f"born behind the removal at {shown(int(row['position']))}, which came later")


def _holders(log: Log, segments: Rows, clears: Rows, faults: Faults) -> None:
    """A holder is named before its first segment, unless that is of version 1.0."""
    names: dict[int, int] = {}
    for holder, sequence in zip(holders(clears).tolist(), clears["sequence"].tolist(), strict=True):
        names[holder] = min(sequence, names.get(holder, sequence))
    order = np.argsort(segments["sequence"], kind="stable")
    numbers, firsts = np.unique(holders(segments)[order], return_index=True)
    newer: NDArray[np.bool_] = timed(log, segments)[order]
    for holder, at in zip(numbers.tolist(), firsts.tolist(), strict=True):
        row = segments[order[at]]
        if not newer[at]:
            continue
        if holder not in names:
            report(faults, row, "holder", f"holder {holder} has no clear-holder record", warning=log.damaged)
        elif names[holder] > int(row["sequence"]) and not log.shortened:
            report(faults, row, "holder", f"stands before the clear-holder record that names holder {holder}")


def _retired(log: Log, faults: Faults) -> None:
    """A file is retired from a later one, and deleted only when the newest checkpoint starts behind it."""
    retired = log.rows[log.rows["type"] == RETIRE_FILE]
    numbers = retired["words"][:, 1]
    for row in retired[(numbers == 0) | (numbers >= retired["position"] >> np.uint64(24))]:
        report(faults, row, "retired", f"retires file {int(row['words'][1]):x}, which is not an earlier one")
    for row in retired:
        number = int(row["words"][1])
        if log.newest and log.is_gone(number) and number >= place(log.newest.start)[0]:
            meaning = f"file {number:x} was deleted, and no checkpoint is there that starts behind it"
            report(faults, row, "retired", meaning, warning=True)
