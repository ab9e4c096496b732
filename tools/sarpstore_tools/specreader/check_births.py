"""When segment records were born, and which are copies (log.md, section 2.1): what removal by time rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .log import COMMIT, Rows, copies, windows
from .reporting import block_ids, bytes_of, find, links, report
from .structures import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .accept import Log
    from .faults import Faults
    from .keys import U64

_ROOT_BORN: Final = "root-born"
_WINDOW: Final = 64


def check_births(log: Log, segments: Rows, faults: Faults) -> None:
    """All checks of this module, on the accepted segment records."""
    newer = timed(log, segments)
    copy = copies(segments)
    _first_version(segments[~newer], faults)
    _insertions(log, segments[newer & ~copy], faults)
    _copies(log, segments, newer & copy, faults)
    _roots(log, segments, newer, faults)


def timed(log: Log, rows: Rows) -> NDArray[np.bool_]:
    """Which of the records stand in files of version 1.1, and so know about removal."""
    files = [file.number for file in log.files if file.header and file.header.removals]
    return np.isin(rows["position"] >> np.uint64(24), np.array(files, dtype=np.uint64))


def root_births(segments: Rows) -> U64:
    """When the sequences' first blocks were born: 0 stands for `born`."""
    return np.where(segments["root_born"] == 0, segments["born"], segments["root_born"])


def _report_all(rules: list[tuple[Rows, str, str]], faults: Faults) -> None:
    for broken, code, meaning in rules:
        for row in broken:
            report(faults, row, code, meaning)


def _first_version(segments: Rows, faults: Faults) -> None:
    other = segments["born"] != segments["position"]
    _report_all([(segments[other], "born", "born is not the record's own position, in a file of version 1.0")], faults)


def _insertions(log: Log, segments: Rows, faults: Faults) -> None:
    """Born at the log's highest position at the insertion: no record that was in the commit before stands behind it."""
    whole = segments[~np.isin(segments["position"] >> np.uint64(24), np.array(sorted(log.damaged_files), np.uint64))]
    highest, ends = _commits_of(log, whole)
    early, late = whole["born"] < highest, whole["born"] >= ends
    zero = segments["root_born"] == 0
    rules = [
        (segments[segments["born"] < segments["position"]], "born", "born is before the record, which is no copy"),
        (whole[early & (whole["born"] >= whole["position"])], "born", "born is before a record that was there already"),
        (whole[late], "born", "born is not before the end of its commit"),
        (segments[zero], _ROOT_BORN, "root born is none, in a file of version 1.1"),
    ]
    _report_all(rules, faults)


def _commits_of(log: Log, segments: Rows) -> tuple[U64, U64]:
    """For each record: the highest position in its commit that had been given when it was written, its own included;
    and the position of the commit record, which comes last."""
    if not len(segments):
        return segments["position"], segments["position"]
    rows = log.rows[np.isin(log.rows["commit"], segments["commit"])]
    rows = rows[np.lexsort((rows["sequence"], rows["commit"]))]
    starts = np.flatnonzero(np.diff(rows["commit"], prepend=np.uint64(0)))
    highest = np.zeros(len(rows), dtype=np.uint64)
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        highest[low:high] = np.maximum.accumulate(rows["position"][low:high])
    order = np.argsort(rows["position"], kind="stable")
    at = order[find(rows[order], segments["position"])]
    commits = rows[rows["type"] == COMMIT]
    ends = np.searchsorted(commits["commit"], segments["commit"])
    return highest[at], commits["position"][ends]


def _copies(log: Log, segments: Rows, chosen: NDArray[np.bool_], faults: Faults) -> None:
    """A copy says what the record said that it stands for, of all its blocks or of the first ones."""
    some = segments[chosen]
    later_file = some["supersedes"] >> np.uint64(24) >= some["position"] >> np.uint64(24)
    rules = [
        (some[some["supersedes"] == 0], "copy", "it is a copy, and supersedes nothing"),
        (some[later_file & (some["supersedes"] != 0)], "copy", "it copies a record that is not of an earlier file"),
        (some[some["born"] >= some["position"]], "born", "it is a copy, and not born before it"),
    ]
    _report_all(rules, faults)
    found = find(segments, some["supersedes"])
    for row, at in zip(some[found >= 0], found[found >= 0].tolist(), strict=True):
        meaning = _not_copied(log, segments[at], row)
        if meaning:
            report(faults, row, "copy", f"it copies the record at {shown(int(row['supersedes']))}, {meaning}")


def _not_copied(log: Log, old: Any, new: Any) -> str:
    """What differs; empty if nothing does. What every superseding record must say alike is looked at elsewhere."""
    if old["born"] != new["born"]:
        return f"which was born at {shown(int(old['born']))}, not {shown(int(new['born']))}"
    if new["root_born"] not in (old["root_born"], old["root_born"] or old["born"]):
        return f"whose root was born at {shown(int(old['root_born']))}, not {shown(int(new['root_born']))}"
    if new["n"] > old["n"]:
        return f"which has fewer blocks ({int(old['n'])}, not {int(new['n'])})"
    if block_ids(log, new) != block_ids(log, old)[: int(new["n"])]:
        return "whose block ids are others"
    if _locations(log, new) != _locations(log, old)[: len(_locations(log, new))]:
        return "whose locations are others"
    return ""


def _locations(log: Log, row: Any) -> bytes:
    behind_ids = 128 + 16 * int(row["n"])
    return bytes_of(log, row, behind_ids, int(row["length"]) - behind_ids)


def _roots(log: Log, segments: Rows, newer: NDArray[np.bool_], faults: Faults) -> None:
    """The root was born with the first block of the sequence: what leads to it says when."""
    said = root_births(segments)
    begins = newer & (windows(segments) == 0) & (segments["d"] == 0) & (segments["supersedes"] == 0)
    rules = [
        (segments[newer & (said > segments["born"])], _ROOT_BORN, "its root was born after it"),
        (segments[begins & (said != segments["born"])], _ROOT_BORN, "it begins a sequence, whose root is not it"),
    ]
    _report_all(rules, faults)
    if not (log.shortened or log.damaged):
        _inherited(segments, said, newer & ~begins & ~copies(segments), faults)


def _inherited(segments: Rows, said: U64, chosen: NDArray[np.bool_], faults: Faults) -> None:
    """The root of a record is that of one that it superseded, left or follows, by key: there may be several."""
    roots: dict[tuple[int, ...], set[int]] = {}  # by (key, d), and by link of those with all of their window
    places: dict[int, int] = dict(zip(segments["position"].tolist(), said.tolist(), strict=True))
    whole = links(segments, "last", 1)
    columns = (segments[name].tolist() for name in ("key", "d", "n"))
    for root, link, key, d, n in zip(said.tolist(), whole, *columns, strict=True):
        roots.setdefault((key, d), set()).add(root)
        if n == _WINDOW:
            roots.setdefault(link, set()).add(root)
    for row, root, link in zip(
        segments[chosen], said[chosen].tolist(), links(segments[chosen], "words", 0), strict=True
    ):
        if row["supersedes"]:
            sources = {places.get(int(row["supersedes"]), root)}
        elif row["d"]:
            sources = roots.get((int(row["left_key"]), int(row["dp"])), {root})
        else:
            sources = roots.get(link, {root})
        if root not in sources:
            report(faults, row, _ROOT_BORN, f"its root was born at {shown(root)}, that of the record before it was not")
