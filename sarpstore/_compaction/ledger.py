"""Up to which removal each log file is clean, and what its removal records weigh (format-spec/removal.md, section 5).
Pure.

A file is clean up to s if it has no record that a removal up to s kills. While it has no copies that is its own
beginning: all that it holds was born in it. A copy was born earlier, and what killed it may be known of earlier
windows only, which compaction does not read: so a file with copies is clean up to the mark pass that ended before the
first of them was made. A pass also finds files all of whose segment records are live.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["FileLedger"]


class FileLedger:
    """`found` are the numbers of the files that were there at the open: nothing is known of them. So are `remains`,
    which nobody reads any more, and which could not be removed.
    """

    def __init__(self, found: Iterable[int] = (), remains: Iterable[int] = ()) -> None:
        self.remains = frozenset(remains)
        self._clean = dict.fromkeys([*found, *self.remains], 0)
        self._copied = set(self._clean)
        """Files that have copies, or may have."""
        self._removal_bytes: dict[int, int] = {}
        self._carried_bytes: dict[int, int] = {}
        self._checkpoints = 0
        self._deleted: dict[int, int] = {}
        """Of files deleted since the open, how many checkpoints had been published before."""
        self.last_pass = 0
        """Where the newest mark pass that has ended began."""

    def on_copy(self, number: int) -> None:
        """A copy was placed in this file."""
        if number not in self._copied:
            self._copied.add(number)
            self._clean[number] = min(self.clean(number), self.last_pass)

    def on_removal(self, number: int, length: int) -> None:
        """A remove record of so many bytes was placed in this file."""
        self._removal_bytes[number] = self._removal_bytes.get(number, 0) + length

    def on_carried(self, number: int, length: int) -> None:
        """So many bytes of postings records were carried on into this file."""
        self._carried_bytes[number] = self._carried_bytes.get(number, 0) + length

    def on_pass(self, position: int, fully_live: Iterable[int] = ()) -> None:
        """A mark pass that began at `position` has ended; after it all segment records of these files were live."""
        self.last_pass = max(self.last_pass, position)
        for number in fully_live:
            self._clean[number] = max(self.clean(number), position)

    def on_deleted(self, number: int) -> None:
        """The file is gone."""
        self._clean.pop(number, None)
        self._removal_bytes.pop(number, None)
        self._carried_bytes.pop(number, None)
        self._copied.discard(number)
        self._deleted[number] = self._checkpoints

    def on_checkpoint(self) -> None:
        """A checkpoint was published, which began after all deletions that were told before."""
        self._checkpoints += 1
        named = {n: since for n, since in self._deleted.items() if self._checkpoints - since < fmt.CHECKPOINTS_KEPT}
        self._deleted = named

    def may_be_named(self, number: int) -> bool:
        """Whether a kept checkpoint may name this file, which is deleted: those from before the open may name any."""
        return self._checkpoints < fmt.CHECKPOINTS_KEPT or number in self._deleted

    def clean(self, number: int) -> int:
        """The position up to which the file is clean."""
        return self._clean.get(number, fmt.position(number, 0))

    def removal_bytes(self, number: int) -> int:
        """Bytes of remove records that are known to be in the file."""
        return self._removal_bytes.get(number, 0)

    def carried_bytes(self, number: int) -> int:
        """Bytes of postings records that are known to have been carried on into the file."""
        return self._carried_bytes.get(number, 0)

    def floors(self, files: Iterable[int]) -> Callable[[int], int]:
        """What `floor` is without one of these files, for each of them: one look at all, not one for each."""
        least = heapq.nsmallest(2, ((self.clean(number), number) for number in files))

        def without(number: int) -> int:
            return next((clean for clean, other in least if other != number), 0)

        return without

    def floor(self, files: Collection[int]) -> int:
        """Removals up to here kill nothing that is in these files, which are all that will be left."""
        return min(map(self.clean, files), default=0)
