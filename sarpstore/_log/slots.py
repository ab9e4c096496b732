"""Which slot a new log file takes (format-spec/README.md, section 2; recovery.md, section 1.7). No I/O.

A slot is a 16-bit name of a file in directory entries. New ones are given while there are any; then those of deleted
files, once nothing can take an entry of the old file for one of the new: no entry in memory names the slot, and
neither do the images of the two checkpoints that are kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from sarpstore import _format as fmt
from sarpstore._errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sarpstore._log.base import Base

__all__ = ["Slots", "all_given"]


def all_given(newest_file: int) -> bool:
    """Whether every slot may have been given once, in a store whose newest log file is this one.

    Before that, slots ascend with file numbers, and none above the newest file's was ever given. Afterwards any slot
    without a file may be one that only the older checkpoint names.
    """
    return newest_file > fmt.SLOT_MAX


class Slots:
    """The free slots of `base`, whose slots are those of the files that recovery found.

    `named` are the slots that a kept checkpoint names, where all slots may have been given once: those of them that
    have no file are free later. None: only those of `base` have been given, and any of them may be named. `counted`
    says whether the base's counts of entries are complete.
    """

    def __init__(
        self, base: Base, named: Collection[int] | None = None, counted: Callable[[], bool] = lambda: True
    ) -> None:
        self._base = base
        self._counted = counted
        self._given = base.slot_count if named is None else fmt.SLOT_MAX + 1
        """Slots from this one on have never been given."""
        empty = np.flatnonzero(base.slot_files[: self._given] == 0)
        kept = np.ones(len(empty), bool) if named is None else np.isin(empty, list(named))
        self._free: deque[int] = deque(empty[~kept].tolist())
        self._checkpoints = 0
        self._retired: deque[tuple[int, int]] = deque((slot, self._checkpoints) for slot in empty[kept].tolist())
        """With the number of checkpoints that had been published when the file was deleted."""

    def check(self) -> None:
        """LimitError where `take` would raise it."""
        if self._given > fmt.SLOT_MAX and not self._free:
            raise LimitError(
                f"all {fmt.SLOT_MAX + 1:,} log files that a store may have are there; it can still be read "
                "(read_only=True). Make a new store, with a larger log_file_bytes"
            )

    def take(self, file_number: int) -> int:
        """The slot that stands for this file from now on. LimitError if none is free."""
        self.check()
        if self._given <= fmt.SLOT_MAX:
            slot = self._given
            self._given += 1
        else:
            slot = self._free.popleft()
        self._base.add_slot(slot, file_number)
        return slot

    def retire(self, slot: int) -> None:
        """The slot's file is deleted; nothing in memory names it. No checkpoint was being written meanwhile."""
        self._retired.append((slot, self._checkpoints))

    def published(self) -> None:
        """A checkpoint was published, whose images are of a time after all deletions that were told before."""
        self._checkpoints += 1
        if not self._counted():
            return
        waiting = [(slot, since) for slot, since in self._retired if not self._is_free(slot, since)]
        self._free += (slot for slot, since in self._retired if self._is_free(slot, since))
        self._retired = deque(waiting)

    def _is_free(self, slot: int, since: int) -> bool:
        return self._checkpoints - since >= fmt.CHECKPOINTS_KEPT and not self._base.slot_entries[slot]
