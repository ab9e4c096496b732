"""Which slot a new log file takes (format-spec/README.md, section 2; recovery.md, section 1.7). No I/O.

A slot is a 16-bit name of a file in directory entries. New ones are given while there are any; then those of deleted
files, once nothing can take an entry of the old file for one of the new: no entry in memory names the slot, and
neither do the images of the two checkpoints that are kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sarpstore import _format as fmt
from sarpstore._errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sarpstore._log.base import Base

__all__ = ["Slots"]


class Slots:
    """The free slots of `base`, whose slots are those of the files that recovery found.

    `named` are slots that a kept checkpoint names: those of them that have no file are free later. `counted` says
    whether the base's counts of entries are complete.
    """

    def __init__(self, base: Base, named: Collection[int] = (), counted: Callable[[], bool] = lambda: True) -> None:
        self._base = base
        self._counted = counted
        empty = [slot for slot, number in enumerate(base.slot_files[: base.slot_count].tolist()) if not number]
        self._free = deque(slot for slot in empty if slot not in named)
        self._checkpoints = 0
        self._retired = deque((slot, self._checkpoints) for slot in empty if slot in named)
        """With the number of checkpoints that had been published when the file was deleted."""

    def check(self) -> None:
        """LimitError where `take` would raise it."""
        if self._base.slot_count > fmt.SLOT_MAX and not self._free:
            raise LimitError(
                f"all {fmt.SLOT_MAX + 1:,} log files that a store may have are there; it can still be read "
                "(read_only=True). Make a new store, with a larger log_file_bytes"
            )

    def take(self, file_number: int) -> int:
        """The slot that stands for this file from now on. LimitError if none is free."""
        self.check()
        new = self._base.slot_count
        slot = new if new <= fmt.SLOT_MAX else self._free.popleft()
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
