"""What of the log is accepted: a pure function of what was found (format-spec/recovery.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, lib

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
    said = [int(scan.commits["synced"].max()) for scan in scans if len(scan.commits)]
    synced = max([synced, *said])
    end = max([begin, *(min(synced, scan.end) for scan in scans if _reaches(scan, synced))])
    for scan in scans:
        commits = scan.commits
        below = commits["end"] <= synced
        if scan.sealed or below.any():
            commit = max(commit, int((commits if scan.sealed else commits[below])["number"].max()))
        if scan.sealed:
            end = max(end, scan.end)
            continue
        commits = commits[~below]
        in_order = (commits["flags"] & lib.SARP_COMMIT_COMPLETE > 0) & (
            commits["number"] == commit + 1 + np.arange(len(commits), dtype="<u8")
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
    parts = [scan.changes[scan.changes["position"] < end] for scan in scans]
    changes = np.concatenate(parts) if parts else np.empty(0, CHANGE_DTYPE)
    return Accepted(changes, end, commit, synced, [d for scan in scans for d in _damage(scan, synced)])


def _damage(scan: FileScan, synced: int) -> list[Damage]:
    name = fmt.log_name(fmt.position_file(scan.end))
    out = []
    for at in scan.damaged.tolist():
        corruption = at < synced
        meaning = "bytes that are no record" if corruption else "torn or damaged bytes behind the last accepted commit"
        out.append(Damage(name, fmt.position_offset(at), meaning, corruption))
    for row in scan.commits[(scan.commits["flags"] & lib.SARP_COMMIT_COMPLETE) == 0]:
        begin = int(row["begin"])
        corruption = begin < synced
        meaning = (
            "a commit that is not whole" if corruption else "a commit that is not whole, or does not follow the last"
        )
        out.append(Damage(name, fmt.position_offset(begin), meaning, corruption))
    if scan.tail < scan.end:
        corruption = scan.tail < synced
        meaning = "pages that no commit record ends" if corruption else "pages of a commit that was not finished"
        out.append(Damage(name, fmt.position_offset(scan.tail), meaning, corruption))
    return out
