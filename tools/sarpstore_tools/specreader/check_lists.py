"""What the accepted log says of posting lists (postings.md, sections 1 to 4), and what it adds up to."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .changes import ADD, DROP
from .lists import Lists
from .log import COMMIT, POSTINGS, SEGMENT, Rows, copies
from .points import OFFSETS, POINTS, cut_filters, may_have, successor
from .reporting import find, report
from .structures import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .accept import Log
    from .changes import Changes
    from .faults import Faults

_REACHED: Final = np.array([sum(1 << at for at, offset in enumerate(OFFSETS) if offset < n) for n in range(256)])
_LIST_FAULTS_MAX: Final = 100  # reported of one kind; one wrong flag concerns every record of a list
_FLAGS: Final = (1, 2, 3)


def check_lists(log: Log, changes: Changes | None, faults: Faults) -> None:
    """All checks of this module; `changes` are those of the log, None under another routing."""
    segments = log.rows[log.rows["type"] == SEGMENT]
    if log.header is None:
        return
    if changes is None:
        _other_routing(log, segments, faults)
        return
    _points(log, segments, faults)
    _placement(log, changes, faults)
    _changes(log, changes, faults)
    lists = Lists()
    lists.replay(changes.all)
    # What is removed leaves its lists without a word in the log (removal.md, section 6): then replay has it in lists
    # whose successors, states and superseding records do not know of it.
    for check in (_unposted,) if log.removals else (_unposted, _unfollowed, _states, _leftovers):
        for position, meaning in islice(check(lists, changes), _LIST_FAULTS_MAX):
            report(faults, _row(log, position), "list", meaning, warning=log.damaged or check is _leftovers)


def _row(log: Log, position: int) -> Any:
    """The accepted record at a position that is known to be one's."""
    return log.rows[int(np.searchsorted(log.rows["position"], np.uint64(position)))]


def _other_routing(log: Log, segments: Rows, faults: Faults) -> None:
    for row in log.rows[log.rows["type"] == POSTINGS]:
        report(faults, row, "postings", "a postings record, which only stores with routing sarp have")
    for row in segments[(segments["points"] != 0) | (segments["old_n"] != 0)]:
        report(faults, row, "points", "points or old n, which only stores with routing sarp have", warning=True)


def _points(log: Log, segments: Rows, faults: Faults) -> None:
    """What the segment records say of themselves, and of the n of those that they supersede."""
    n, old_n, points = segments["n"], segments["old_n"], segments["points"]
    old = find(segments, segments["supersedes"])
    differs = np.zeros(len(segments), dtype=np.bool_)
    if len(segments):
        before, same = segments["n"][old], copies(segments)
        cut = log.removals & (old_n < before) & (old_n > segments["d"])
        differs = (old >= 0) & (before != old_n) & ~cut & ~same
    rules = [
        (points & 1 == 0, "points", "it is not posted at point 0"),
        (points & ~_REACHED[n] != 0, "points", "it is posted at points behind its last block"),
        ((old_n == 0) != (segments["supersedes"] == 0), "old-n", "old n does not go with what it supersedes"),
        (old_n > n, "old-n", "old n is more than n"),
        (copies(segments) & (old_n != n), "old-n", "old n is not its own n, and it is a copy"),
        (differs, "old-n", "old n is not the n of the record that it supersedes"),
    ]
    for broken, code, meaning in rules:
        for row in segments[broken]:
            report(faults, row, code, meaning)


def _placement(log: Log, changes: Changes, faults: Faults) -> None:
    """A postings record stands in the commit of its insertion, between what was there before and what may override.

    One by which emptied lists lose their states may stand in any.
    """
    caused = changes.of_records[(changes.of_records["position"] != 0) | (changes.of_records["operation"] != DROP)]
    inserted = set(caused["place"].tolist())
    rows = log.rows[log.rows["type"] != COMMIT]
    rows = rows[np.argsort(rows["commit"], kind="stable")]
    for row in rows[rows["type"] == POSTINGS]:
        low, high = np.searchsorted(rows["commit"], [row["commit"], row["commit"] + np.uint64(1)]).tolist()
        own = rows[low:high]
        earlier = own["sequence"] < row["sequence"]
        before = own["position"] < row["position"]
        overrides = (own["type"] == SEGMENT) & (own["supersedes"] != 0) & ~earlier
        for other in own[earlier & ~before]:
            report(faults, row, "postings", f"record {int(other['sequence'])} was in the commit and stands behind it")
        for other in own[overrides & before]:
            meaning = f"record {int(other['sequence'])} supersedes another, came later, and stands before it"
            report(faults, row, "postings", meaning)
        if int(row["position"]) in inserted and not (earlier & (own["type"] == SEGMENT)).any():
            report(faults, row, "postings", "its commit has no insertion that could have caused it", log.damaged)


def _changes(log: Log, changes: Changes, faults: Faults) -> None:
    """The changes in postings records: their fields, and that they follow from their segment records."""
    rows = changes.of_records
    posting = rows["position"] != 0
    found = find(changes.segments, rows["position"])
    known = posting & (found >= 0)
    lost = posting & (found < 0) & ~log.are_gone(rows["position"])
    rules = [
        *_field_rules(rows, posting),
        *_state_rules(rows, ~posting),
        *((known & broken, meaning) for broken, meaning in _record_rules(changes, rows, found, log.removals)),
    ]
    for broken, meaning in rules:
        _report_changes(log, rows[broken], meaning, faults, warning=False)
    _report_changes(log, rows[lost], "names a place where no accepted segment record is", faults, warning=log.damaged)
    _report_changes(log, rows[rows["reserved"] != 0], "has reserved bytes that are not zero", faults, warning=True)


Rules = list[tuple["NDArray[np.bool_]", str]]


def _field_rules(rows: Rows, posting: NDArray[np.bool_]) -> Rules:
    offsets = np.array(OFFSETS)[rows["point"]]
    return [
        ((rows["operation"] != ADD) & (rows["operation"] != DROP), "is neither an add nor a drop"),
        (rows["odd"] != 0, "has a bit in word 0 that means nothing"),
        (posting & (rows["d"] >= rows["n"]), "has a d that is not below n"),
        (posting & (offsets >= rows["n"]), "has a point behind its last block"),
        (posting & (rows["position"] >= rows["place"]), "names a record that is not before it"),
    ]


def _state_rules(rows: Rows, state: NDArray[np.bool_]) -> Rules:
    return [
        (state & ((rows["n"] != 1) | (rows["d"] != 0)), "is of a state and has an n or d"),
        (state & _impossible(rows["point"], rows["filter"]), "has flags that no list at its point can have"),
    ]


def _impossible(points: NDArray[np.uint8], flags: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Flags, of those that change, that no list at the point can have, or none."""
    lawful = {
        (at, part)
        for at in range(POINTS)
        for whole in _FLAGS
        if may_have(at, whole)
        for part in _FLAGS
        if part & whole == part
    }
    pairs = zip(points.tolist(), flags.tolist(), strict=True)
    return np.array([pair not in lawful for pair in pairs], dtype=np.bool_)


def _record_rules(changes: Changes, rows: Rows, found: NDArray[np.int64], removals: bool) -> Rules:
    """Only what is known of an accepted record counts: elsewhere `found` is -1, and what this says means nothing.

    What a removal has cut has a lower n, and a filter that ends with it.
    """
    if not len(changes.segments):
        return []
    records, facts, points = changes.segments[found], changes.facts[found], rows["point"].astype(np.int64)
    each = np.arange(len(rows))
    other_n = records["n"] < rows["n"] if removals else records["n"] != rows["n"]
    filters = cut_filters(facts["filters"][each, points], points, rows["n"])
    return [
        (other_n | (records["d"] != rows["d"]), "has not the n and d of its record"),
        (facts["keys"][each, points] != rows["key"], "has not the key that follows from its record's ids"),
        (filters != rows["filter"], "has not the filter that follows from its record's ids"),
    ]


def _report_changes(log: Log, rows: Rows, meaning: str, faults: Faults, warning: bool) -> None:
    for row in rows:
        what = (
            f"change {int(row['order'])}, of {shown(int(row['position']))}" if row["position"] else "a state's change"
        )
        report(faults, _row(log, int(row["place"])), "change", f"{what}, {meaning}", warning=warning)


def _unposted(lists: Lists, changes: Changes) -> Iterator[tuple[int, str]]:
    """A record is posted at point 0 always, until another supersedes it."""
    segments = changes.segments
    current = ~np.isin(segments["position"], segments["supersedes"])
    keys, filters = changes.facts["keys"][current, 0].tolist(), changes.facts["filters"][current, 0].tolist()
    for position, key, one in zip(segments["position"][current].tolist(), keys, filters, strict=True):
        if (one, position) not in lists.postings.get(key, {}):
            yield position, "is not in the list of its point 0"


def _unfollowed(lists: Lists, changes: Changes) -> Iterator[tuple[int, str]]:
    """Every record of an expanded list that reaches its successor is in the successor's list."""
    index = {position: at for at, position in enumerate(changes.segments["position"].tolist())}
    for key, _, position, (n, _, point) in lists.entries():
        flags = lists.states.get(key, (point, 0))[1]
        follows = successor(point, flags) if flags else None
        if follows is None or n <= OFFSETS[follows] or position not in index:
            continue
        facts = changes.facts[index[position]]
        element = int(facts["filters"][follows]), position
        if element not in lists.postings.get(int(facts["keys"][follows]), {}):
            meaning = f"is in the list {key:012x} of point {point}, but not in that of its successor, point {follows}"
            yield position, meaning


def _states(lists: Lists, changes: Changes) -> Iterator[tuple[int, str]]:
    """A state is that of a list with postings of its point, and one that such a list can have."""
    said = changes.of_records[changes.of_records["position"] == 0]
    places = dict(zip(said["key"].tolist(), said["place"].tolist(), strict=True))
    for key, (point, flags) in lists.states.items():
        if not any(posting[2] == point for posting in lists.postings.get(key, {}).values()):
            yield places[key], f"the list {key:012x} has a state of point {point}, and no posting of that point"
        if not may_have(point, flags):
            yield places[key], f"the list {key:012x} of point {point} cannot have the flags {flags}"


def _leftovers(lists: Lists, changes: Changes) -> Iterator[tuple[int, str]]:
    """Postings of superseded records, which none of their successors' points took away."""
    superseded = set(changes.segments["supersedes"].tolist())
    accepted = set(changes.segments["position"].tolist())
    for key, _, position, (_, _, point) in lists.entries():
        if position in superseded and position in accepted:
            yield position, f"is superseded, and still in the list {key:012x} of point {point}"
