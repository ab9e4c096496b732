"""The directory as plain dicts: how records change it (directory.md, section 3), and entries as stored (section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .log import SEGMENT, Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

NO_POSITION: Final = 0

# Entries with their references turned into positions.
PLACED: Final = np.dtype(
    [
        *(("key", "<u8"), ("position", "<u8"), ("mask", "<u4"), ("n", "u1"), ("d", "u1"), ("dp", "u1")),
        *(("recency", "u1"), ("placeholder", "u1")),
    ]
)


@dataclass(slots=True)
class Entry:
    """A directory entry that is not a placeholder; `mask` only means something where d is 0."""

    position: int
    n: int
    d: int
    dp: int
    mask: int


class Directory:
    """Entries by key, and the masks of placeholders by key."""

    def __init__(self) -> None:
        self.entries: dict[int, list[Entry]] = {}
        self.placeholders: dict[int, int] = {}

    def load(self, placed: Rows) -> None:
        """Adds the entries of an image."""
        columns = (placed[name].tolist() for name in ("key", "position", "n", "d", "dp", "mask", "placeholder"))
        for key, position, n, d, dp, mask, placeholder in zip(*columns, strict=True):
            if placeholder:
                self.placeholders[key] = self.placeholders.get(key, 0) | mask
            else:
                self.entries.setdefault(key, []).append(Entry(position, n, d, dp, mask))

    def replay(self, rows: Rows) -> None:
        """Applies segment records in the given order, which must be that of their positions."""
        rows = rows[rows["type"] == SEGMENT]
        names = ("position", "key", "root_key", "supersedes", "n", "d", "dp")
        for record in zip(*(rows[name].tolist() for name in names), strict=True):
            self.apply(*record)

    def apply(self, position: int, key: int, root_key: int, supersedes: int, n: int, d: int, dp: int) -> None:
        """The two steps of directory.md, section 3."""
        bucket = self.entries.setdefault(key, [])
        at_own = any(entry.position == position for entry in bucket)
        old = [entry for entry in bucket if entry.position == supersedes] if supersedes != NO_POSITION else []
        if at_own:
            for entry in old:
                self._remove(key, bucket, entry)
        elif old:
            old[0].position, old[0].n, old[0].dp = position, n, dp
        else:
            mask = self._root_mask(key, bucket) if d == 0 else 0
            bucket.append(Entry(position, n, d, dp, mask))
        if d > 0:
            self._diverges(root_key, 1 << d // 4)

    def _root_mask(self, key: int, bucket: list[Entry]) -> int:
        """What all root entries with the key say together; placeholders among them go."""
        mask = self.placeholders.pop(key, 0)
        for entry in bucket:
            mask |= entry.mask if entry.d == 0 else 0
        return mask

    def _diverges(self, root_key: int, bit: int) -> None:
        roots = [entry for entry in self.entries.get(root_key, ()) if entry.d == 0]
        for entry in roots:
            entry.mask |= bit
        if not roots:
            self.placeholders[root_key] = self.placeholders.get(root_key, 0) | bit

    def _remove(self, key: int, bucket: list[Entry], entry: Entry) -> None:
        bucket.remove(entry)
        if entry.d == 0 and entry.mask:
            heir = next((other for other in bucket if other.d == 0), None)
            if heir:
                heir.mask |= entry.mask
            else:
                self.placeholders[key] = self.placeholders.get(key, 0) | entry.mask

    @property
    def blocks(self) -> int:
        """Blocks held: the sum of n - d."""
        return sum(entry.n - entry.d for bucket in self.entries.values() for entry in bucket)


def placed_entries(entries: Rows, files_by_slot: NDArray[np.uint64]) -> Rows:
    """Stored entries taken apart; `files_by_slot` has the file number of each of 65,536 slots, 0 for none."""
    word0, word1 = entries["word0"], entries["word1"]
    out = np.zeros(len(entries), dtype=PLACED)
    out["key"], out["mask"] = word0 >> np.uint64(16), word0 & np.uint64(0xFFFF)
    reference = word1 >> np.uint64(24)
    files = files_by_slot[(reference >> np.uint64(24)).astype(np.int64)]
    out["position"] = files << np.uint64(24) | reference & np.uint64(0xFFFFFF)
    out["n"] = (word1 >> np.uint64(18) & np.uint64(63)) + np.uint64(1)
    for name, shift, mask in (("d", 12, 63), ("dp", 6, 63), ("recency", 1, 31), ("placeholder", 0, 1)):
        out[name] = word1 >> np.uint64(shift) & np.uint64(mask)
    return out


def differences(log_alone: Directory, with_head: Directory) -> Iterable[tuple[int, int, str]]:
    """Where two directories differ: (key, position, meaning). Masks with_head may have more bits, never fewer."""
    for key in log_alone.entries.keys() | with_head.entries.keys():
        ours = {_identity(entry): entry for entry in log_alone.entries.get(key, ())}
        theirs = {_identity(entry): entry for entry in with_head.entries.get(key, ())}
        for identity in ours.keys() - theirs.keys():
            yield (
                key,
                identity[0],
                f"the log has n {identity[1]}, d {identity[2]}, dp {identity[3]}: not in the checkpoint",
            )
        for identity in theirs.keys() - ours.keys():
            yield (
                key,
                identity[0],
                f"the checkpoint has n {identity[1]}, d {identity[2]}, dp {identity[3]}: not in the log",
            )
        for identity in ours.keys() & theirs.keys():
            missing = ours[identity].mask & ~theirs[identity].mask
            if identity[2] == 0 and missing:
                yield key, identity[0], f"mask bits {missing:#x} are missing in the checkpoint"
    yield from _missing_placeholders(log_alone, with_head)


def excess(log_alone: Directory, with_head: Directory) -> tuple[list[tuple[int, int, str]], int]:
    """Entries of the second directory that the first has not, or not with so many blocks; and how many it lacks."""
    ours, theirs = _by_place(log_alone), _by_place(with_head)
    found = []
    for (key, position), entry in theirs.items():
        whole = ours.get((key, position))
        if whole is None or entry.n > whole.n or (entry.d, entry.dp) != (whole.d, whole.dp):
            meaning = f"the checkpoint has n {entry.n}, d {entry.d}, dp {entry.dp}: not in the log"
            found.append((key, position, meaning))
    return found, len(ours.keys() - theirs.keys())


def _by_place(directory: Directory) -> dict[tuple[int, int], Entry]:
    return {(key, entry.position): entry for key, bucket in directory.entries.items() for entry in bucket}


def maskless(directory: Directory, segments: Rows) -> Iterator[tuple[int, int, str]]:
    """Entries, of these records, that no mask of their window's root says to be there."""
    root_keys = dict(zip(segments["position"].tolist(), segments["root_key"].tolist(), strict=True))
    for (key, position), entry in _by_place(directory).items():
        root = root_keys.get(position)
        if entry.d == 0 or root is None:
            continue
        mask = directory.placeholders.get(root, 0)
        for other in directory.entries.get(root, ()):
            mask |= other.mask if other.d == 0 else 0
        if not mask >> entry.d // 4 & 1:
            yield (
                key,
                position,
                f"mask bit {entry.d // 4} of its window's root {root:012x} is missing in the checkpoint",
            )


def _missing_placeholders(log_alone: Directory, with_head: Directory) -> Iterable[tuple[int, int, str]]:
    for key, mask in log_alone.placeholders.items():
        there = with_head.placeholders.get(key, 0)
        for entry in with_head.entries.get(key, ()):
            there |= entry.mask if entry.d == 0 else 0
        if mask & ~there:
            yield key, 0, f"placeholder mask bits {mask & ~there:#x} are missing in the checkpoint"


def _identity(entry: Any) -> tuple[int, int, int, int]:
    return entry.position, entry.n, entry.d, entry.dp
