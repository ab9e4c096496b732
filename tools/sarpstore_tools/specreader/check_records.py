"""What accepted records say about each other and about their files (log.md, sections 1, 2 and 4)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .check_births import check_births
from .check_lists import check_lists
from .check_removals import check_removals
from .check_summary import check_summary
from .faults import DamagedError, Faults
from .folder import read_at
from .log import COMMIT, NAMESPACE, SEAL, SUMMARY, Rows, copies, namespaces, offset_of, windows
from .reporting import block_ids, bytes_of, find, links, report
from .structures import PAGE, Namespace, place, position, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .accept import Log
    from .changes import Changes
    from .files import LogFile
    from .removed import Removed

_SUMMARY_ENTRY_BYTES: Final = 32
_SUMMARY_HEADER: Final = 64
_WINDOW: Final = 64
MARK: Final = 1
CLOSED: Final = 2


def check_records(log: Log, changes: Changes | None, removed: Removed, faults: Faults) -> None:
    """All checks of the log's records; `changes` are those of posting lists, None but under `sarp`."""
    _sequences(log, faults)
    segments = removed.segments
    _plain_rules(segments, faults)
    _supersedes(log, removed, faults)
    check_births(log, segments, faults)
    check_removals(log, segments, faults)
    if not log.shortened:
        _chains(segments, faults)
    # The search of `sarp` may miss what is held; it is inserted again (postings.md, section 2). So is what was removed.
    if not (log.damaged or log.removals) and changes is None:
        _introduced_once(segments, faults)
    _namespaces(log, segments, faults)
    _synced_ends(log, faults)
    check_lists(log, changes, faults)
    for file in log.files:
        _seals(log, file, changes, faults)


def _sequences(log: Log, faults: Faults) -> None:
    """Sequence numbers are given once, from 1, ascend from commit to commit, and begin where the file's header says."""
    order = np.argsort(log.rows["sequence"], kind="stable")
    ordered = log.rows[order]
    numbers = ordered["sequence"]
    for at in np.nonzero(numbers[1:] == numbers[:-1])[0].tolist():
        other = shown(int(ordered[at]["position"]))
        report(faults, ordered[at + 1], "sequence", f"the record at {other} has the same sequence number")
    for file in log.files:
        if file.header is None:
            continue
        rows = log.rows_of(file.number)
        for row in rows[rows["sequence"] < max(1, file.header.first_sequence)]:
            first = file.header.first_sequence
            report(faults, row, "sequence", f"the file's header says that its first record is {first}")
        if len(rows) and file.number not in log.damaged_files:
            _without_gaps(rows, file.header.first_sequence, faults)
    _ascending(log, faults)


def _without_gaps(rows: Rows, first: int, faults: Faults) -> None:
    """Only a crash leaves gaps, and after a crash a new file begins: within a file there are none."""
    ordered = rows[np.argsort(rows["sequence"], kind="stable")]
    expected = np.concatenate([np.array([first], dtype=np.uint64), ordered["sequence"][:-1] + np.uint64(1)])
    for at in np.nonzero(ordered["sequence"] > expected)[0][:1].tolist():
        meaning = f"the record before it in this file would be {int(ordered[at]['sequence']) - 1}; there is none"
        report(faults, ordered[at], "sequence", meaning)


def _ascending(log: Log, faults: Faults) -> None:
    """No record has a lower number than one of an earlier commit."""
    rows = log.rows
    if not len(rows):
        return
    file = rows["position"] >> np.uint64(24)
    starts = np.nonzero(np.diff(rows["commit"], prepend=np.uint64(0)).astype(bool) | (np.diff(file, prepend=0) != 0))[0]
    highest = np.maximum.accumulate(np.maximum.reduceat(rows["sequence"], starts))
    lowest = np.minimum.reduceat(rows["sequence"], starts)
    for at in np.nonzero(lowest[1:] < highest[:-1])[0].tolist():
        row = rows[starts[at + 1]]
        meaning = f"commit {int(row['commit'])} has numbers from {int(lowest[at + 1])} on, an earlier one up to"
        report(faults, row, "sequence", f"{meaning} {int(highest[at])}")


def _plain_rules(segments: Rows, faults: Faults) -> None:
    """Rules that a record can be held to alone."""
    window = windows(segments)
    no_prefix = (segments["words"][:, 2] == 0) & (segments["words"][:, 3] == 0)
    first = window == 0
    rules = [
        (first & ~no_prefix, "prefix", "window 0 with a prefix id"),
        (first & (segments["parent_key"] != 0), "parent", "window 0 with a parent key"),
        (first & (segments["d"] == 0) & (segments["dp"] != 0), "dp", "dp is not 0 at the beginning of window 0"),
        ((segments["d"] > 0) & (segments["dp"] >= segments["d"]), "dp", "dp is not before d"),
        (segments["parent_key"] >> np.uint64(48) != 0, "parent", "the parent key has more than 48 bits"),
    ]
    for broken, code, meaning in rules:
        for row in segments[broken]:
            report(faults, row, code, meaning)


def _supersedes(log: Log, removed: Removed, faults: Faults) -> None:
    """A record that replaces another stands behind it, has its d and begins with its ids, but for what was cut off."""
    segments = removed.segments
    newer = segments[segments["supersedes"] != 0]
    found = find(segments, newer["supersedes"])
    for row, at in zip(newer, found.tolist(), strict=True):
        target = int(row["supersedes"])
        if target >= int(row["position"]):
            report(faults, row, "supersedes", f"supersedes {shown(target)}, which is not before it")
        elif at < 0:
            if not log.is_gone(place(target)[0]):
                meaning = f"supersedes {shown(target)}, where no accepted segment record is"
                report(faults, row, "supersedes", meaning, warning=log.damaged)
        else:
            meaning = _cannot_replace(log, removed, segments[at], row)
            if not meaning and segments[at]["sequence"] >= row["sequence"]:
                meaning = "whose sequence number is not lower"
            if meaning:
                report(faults, row, "supersedes", f"supersedes {shown(target)}, {meaning}")


def _cannot_replace(log: Log, removed: Removed, old: Any, new: Any) -> str:
    """Why `new` cannot replace `old`; empty if it can."""
    if old["d"] != new["d"]:
        return f"whose d is {int(old['d'])}, not {int(new['d'])}"
    if (old["words"] != new["words"]).any():
        return "which is of another holder, window, namespace or prefix"
    if copies(new):
        return ""  # its blocks are looked at where copies are
    ours, theirs = block_ids(log, old), block_ids(log, new)
    common = next((at for at, one in enumerate(ours) if theirs[at : at + 1] != [one]), len(ours))
    if common == len(ours) or removed.may_have_cut(old, ours, common, new):
        return ""
    if old["n"] > new["n"]:
        return f"which has more blocks ({int(old['n'])}, not {int(new['n'])})"
    return "whose block ids are not a prefix of its own"


def _chains(segments: Rows, faults: Faults) -> None:
    """Windows hang together: prefix ids, parent keys, and the owner that a diverging record left."""
    whole = segments[segments["n"] == _WINDOW]
    ends: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for link, key, d in zip(links(whole, "last", 1), whole["key"].tolist(), whole["d"].tolist(), strict=True):
        ends.setdefault(link, set()).add((key, d))
    later = segments[windows(segments) > 0]
    for row, link in zip(later, links(later, "words", 0), strict=True):
        owners = ends.get(link)
        if owners is None:
            report(
                faults, row, "orphan", "no whole record of the previous window ends with its prefix id", warning=True
            )
        elif not any(_is_parent(row, key, d) for key, d in owners):
            report(faults, row, "parent", "parent key or dp is not that of the previous window's owner", warning=True)
    left = segments[segments["d"] > 0]
    known = segments["key"] << np.uint64(6) | segments["d"]
    for row in left[~np.isin(left["left_key"] << np.uint64(6) | left["dp"], known)]:
        report(faults, row, "owner", "no record owns the block at dp, which this one says it left", warning=True)


def _introduced_once(segments: Rows, faults: Faults) -> None:
    """A block is introduced once on its path; again only if a damaged record was taken for a miss, or superseded."""
    current = segments[~np.isin(segments["position"], segments["supersedes"])]
    ordered = current[np.argsort(current["key"], kind="stable")]
    before, after = ordered[:-1], ordered[1:]
    same = (before["words"] == after["words"]).all(axis=1)
    for name in ("key", "root_key", "d"):
        same &= before[name] == after[name]
    for at in np.nonzero(same)[0].tolist():
        meaning = f"introduces the same block as the record at {shown(int(before[at]['position']))}"
        report(faults, after[at], "duplicate", meaning, warning=True)


def _is_parent(row: Any, key: int, d: int) -> bool:
    return bool(row["parent_key"] == key and (row["d"] > 0 or row["dp"] == d))


def parse_namespace(record: bytes) -> Namespace:
    """A namespace record's content; its lengths have been verified."""
    key_bytes, name, adapter, number = struct.unpack_from("<IHHQ", record, 32)
    return Namespace(number, key_bytes, record[64 : 64 + name], record[64 + name : 64 + name + adapter])


def named_namespaces(log: Log) -> Iterator[tuple[Any, Namespace]]:
    """The accepted namespace records, in order of position, with what they say."""
    for row in log.rows[log.rows["type"] == NAMESPACE]:
        data = bytes_of(log, row, 0, int(row["length"]))
        if len(data) == int(row["length"]):
            yield row, parse_namespace(data)


def _namespaces(log: Log, segments: Rows, faults: Faults) -> None:
    """A namespace, the empty one too, is named before its first segment, by UTF-8 text, and always the same."""
    known: dict[int, tuple[int, Namespace]] = {}
    for row, named in named_namespaces(log):
        before = known.setdefault(named.namespace, (int(row["sequence"]), named))
        if before[1] != named:
            report(faults, row, "namespace", f"namespace {named.namespace:016x} was named differently before")
        try:
            (named.name + b"\0" + named.adapter).decode()
        except UnicodeDecodeError:
            report(faults, row, "namespace", f"the name of namespace {named.namespace:016x} is not UTF-8")
    order = np.argsort(segments["sequence"], kind="stable")
    numbers, firsts = np.unique(namespaces(segments)[order], return_index=True)
    for number, at in zip(numbers.tolist(), firsts.tolist(), strict=True):
        row = segments[order[at]]
        if number not in known:
            report(faults, row, "namespace", f"namespace {number:016x} has no record", warning=log.damaged)
            continue
        if known[number][0] > int(row["sequence"]) and not log.shortened:
            report(faults, row, "namespace", f"stands before the record of its namespace {number:016x}")


def _seals(log: Log, file: LogFile, changes: Changes | None, faults: Faults) -> None:
    """A sealing commit is the file's last, and its summary says of every record what the record says itself."""
    rows = log.rows_of(file.number)
    seals = rows[rows["type"] == SEAL]
    _commit_flags(rows, seals, faults)
    whole = file.number not in log.damaged_files
    for row in rows[rows["type"] == SUMMARY]:
        if whole and not (seals["commit"] == row["commit"]).any():
            report(faults, row, "summary", "a summary record without a seal in its commit")
    for seal in seals:
        try:
            said = _seal(file, rows, seal, whole)
            if said is not None:
                stands_for = rows[(rows["commit"] != seal["commit"]) & (rows["type"] != COMMIT)]
                check_summary(said, stands_for, seal, whole, changes, faults)
        except DamagedError as error:
            report(faults, seal, error.code, error.meaning)


def _commit_flags(rows: Rows, seals: Rows, faults: Faults) -> None:
    """A mark has no records; only a sealing commit closes the store."""
    commits = rows[rows["type"] == COMMIT]
    flags = commits["words"][:, 1] >> np.uint64(32)
    records = commits["words"][:, 0] >> np.uint64(32)
    marked, closed = flags & np.uint64(MARK) != 0, flags & np.uint64(CLOSED) != 0
    for row in commits[marked & (records > 0)]:
        report(faults, row, "commit-flags", f"commit {int(row['commit'])} is flagged a mark and has records")
    for row in commits[closed & ~np.isin(commits["commit"], seals["commit"])]:
        meaning = f"commit {int(row['commit'])} is flagged to close the store, but seals nothing"
        report(faults, row, "commit-flags", meaning)


def _synced_ends(log: Log, faults: Faults) -> None:
    """What commit records call synced ends with a commit."""
    commits = log.rows[log.rows["type"] == COMMIT]
    for row in commits[np.unique(commits["words"][:, 2], return_index=True)[1]]:
        synced = int(row["words"][2])
        if synced and not log.may_be_boundary(synced) and synced < int(row["position"]):
            report(faults, row, "synced", f"says that the log was synced up to {shown(synced)}, where no commit ends")


def _seal(file: LogFile, rows: Rows, seal: Any, whole: bool) -> bytes | None:
    """The bytes of a seal's summary entries, or None if damage has taken some; what is wrong with it raises."""
    own = rows[rows["commit"] == seal["commit"]]
    summaries = own[own["type"] == SUMMARY]
    count, entries = int(seal["words"][0]) & 0xFFFFFFFF, int(seal["words"][0]) >> 32
    if not whole and not (own["type"] == COMMIT).any():
        return None  # damage has taken the commit record: that was reported
    if len(own) != len(summaries) + 2 or not (own["type"] == COMMIT).any():
        raise DamagedError("seal", "its commit does not hold summaries, the seal and the commit record alone")
    if count != len(summaries) or entries != int(summaries["n"].sum(dtype=np.int64)):
        raise DamagedError("seal", f"names {count} summary records and {entries} entries, which are not there")
    end = offset_of(seal) + PAGE
    if offset_of(seal) % PAGE or (rows["position"] >= position(file.number, min(end, 1 << 30))).any():
        raise DamagedError("seal", "is not the first record of the file's last page")
    first = end - PAGE * (count + 1)
    places = [offset_of(row) for row in summaries]
    if places != [first + PAGE * at for at in range(count)]:
        raise DamagedError("seal", "the summary records are not one a page, directly before it")
    if int(seal["words"][1]) != position(file.number, first):
        raise DamagedError("seal", f"names {shown(int(seal['words'][1]))} as its commit's first page")
    said = [
        read_at(file.descriptor, _SUMMARY_ENTRY_BYTES * int(row["n"]), offset_of(row) + _SUMMARY_HEADER)
        for row in summaries
    ]
    entries_bytes = b"".join(said)
    return entries_bytes if len(entries_bytes) == _SUMMARY_ENTRY_BYTES * entries else None
