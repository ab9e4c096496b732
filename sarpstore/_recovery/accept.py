"""What of the log is accepted: a pure function of what was found (format-spec/recovery.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, joined, lib

if TYPE_CHECKING:
    from sarpstore._log.scan import FileScan

__all__ = ["Accepted", "Damage", "accept"]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it should be. `corruption`: below the synced position, which no crash explains."""

    file: str
    offset: int
    meaning: str
    corruption: bool
    position: int = 0
    """Its place in the log; 0: it is not in the log."""


@dataclass(slots=True)
class Accepted:
    """The accepted records, in order of position, and where they end."""

    changes: npt.NDArray[Any]
    end: int
    """Position behind the last accepted commit; what follows is void."""
    commit: int
    """Number of the last accepted commit."""
    synced: int
    """S: everything before this position was synced."""
    damage: list[Damage]


def accept(scans: list[FileScan], *, begin: int, commit: int, synced: int) -> Accepted:
    """Accept what the scans found, files in ascending order.

    `begin`: where the first scan began; `commit`: the number of the last commit before it; `synced`: what heads and
    later file headers say. Up to S every valid record is accepted, behind it complete commits in unbroken order.
    """
    # A commit record can only speak of what stands before its own commit.
    said = [scan.commits["synced"][scan.commits["synced"] <= scan.commits["begin"]] for scan in scans]
    synced = max([synced, *(int(each.max()) for each in said if len(each))])
    end = max([begin, *(min(synced, scan.end) for scan in scans if _reaches(scan, synced))])
    for scan in scans:
        # Behind a file that is gone the header alone says what the last commit before this file was.
        commits, commit = scan.commits, max(commit, scan.previous_commit)
        below = commits["end"] <= synced
        if scan.sealed or below.any():
            commit = max(commit, int((commits if scan.sealed else commits[below])["number"].max()))
        if scan.sealed:
            end = max(end, scan.end)
            continue
        commits = commits[~below]
        in_order = (commits["flags"] & lib.SARP_COMMIT_COMPLETE > 0) & (
            commits["number"] == np.uint64((commit + 1) % (1 << 64)) + np.arange(len(commits), dtype="<u8")
        )
        count = len(commits) if in_order.all() else int(np.argmin(in_order))
        if count:
            commit, end = int(commits["number"][count - 1]), int(commits["end"][count - 1])
        if count < len(commits):
            break
    return _result(scans, end, commit, synced)


def _reaches(scan: FileScan, synced: int) -> bool:
    """Whether the synced position lies in or behind the scanned part of this file."""
    return fmt.position(fmt.position_file(scan.end), 0) < synced


def _result(scans: list[FileScan], end: int, commit: int, synced: int) -> Accepted:
    parts = [scan.changes[: int(np.searchsorted(scan.changes["position"], np.uint64(end)))] for scan in scans]
    changes = joined(parts, CHANGE_DTYPE)
    return Accepted(changes, end, commit, synced, [d for scan in scans for d in _damage(scan, synced)])


def _damage(scan: FileScan, synced: int) -> list[Damage]:
    """What was found, each thing once: a commit that is not whole because of damage in it is not told apart from it."""
    places: dict[int, tuple[str, str]] = dict.fromkeys(
        scan.damaged.tolist(), ("bytes that are no record", "torn or damaged bytes")
    )
    for row in scan.commits[(scan.commits["flags"] & lib.SARP_COMMIT_COMPLETE) == 0]:
        begin = int(row["begin"])
        if not ((scan.damaged >= begin) & (scan.damaged < row["end"])).any():
            places[begin] = ("a commit that is not whole", "a commit that is not whole, or does not follow the last")
    if scan.tail < scan.end and not (scan.damaged >= scan.tail).any():
        places[scan.tail] = ("pages that no commit record ends", "pages of a commit that was not finished")
    name = fmt.log_name(fmt.position_file(scan.end))
    return [
        Damage(name, fmt.position_offset(at), below if at < synced else above, at < synced, at)
        for at, (below, above) in sorted(places.items())
    ]
