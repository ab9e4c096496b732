"""What every directory of a store shares: which file a reference's slot stands for, and what its keys depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore._kernel import FEATURES, ffi, lib, pointer, reserve

if TYPE_CHECKING:
    from sarpstore._log.removals import Removals

__all__ = ["Base"]

_SLOTS: Final = int(lib.SARP_SLOTS)
_LEVELS: Final = 32
# What comes from images or the log begins on probation, as if it had been inserted at the open. A tick lowers what
# comes later as well; one step above the floor is the least, since a partition may be loaded in the middle of a sweep.
_RESTING: Final = 16
_RESTING_MIN: Final = 2


class Base:
    """The kernel's `sarp_base`. `routing` is the number in log headers, `features` the CPU's.

    Slots are counted as partitions are loaded and changed: the counts are complete once all are in memory.
    """

    def __init__(self, secret: bytes, routing: int, features: int = FEATURES, *, location_bytes: int = 14) -> None:
        self._slots_space = reserve(_SLOTS * 8, "the slot table")
        self.slot_files: npt.NDArray[np.uint64] = np.frombuffer(self._slots_space, "<u8")
        """File number by slot; 0: the slot is free."""
        self._index_space = reserve(lib.SARP_SLOT_INDEX * 4, "the slot table")
        self._live_space = reserve(_SLOTS * 8, "the slot table")
        self._entries_space = reserve(_SLOTS * 4, "the slot table")
        self.slot_live: npt.NDArray[np.uint64] = np.frombuffer(self._live_space, "<u8")
        """By slot, bytes of segment records that entries name."""
        self.slot_entries: npt.NDArray[np.uint32] = np.frombuffer(self._entries_space, "<u4")
        """By slot, entries that name it, of every list."""
        self.c: Any = ffi.new("sarp_base *")
        self.c.slot_files = pointer("uint64_t *", self._slots_space)
        self.c.slot_index = pointer("uint32_t *", self._index_space)
        self.c.slot_live = pointer("uint64_t *", self._live_space)
        self.c.slot_entries = pointer("uint32_t *", self._entries_space)
        self.c.location_bytes = location_bytes
        self.c.features = features
        self.c.routing = routing
        ffi.buffer(self.c.secret)[:] = secret

    def attach(self, removals: Removals) -> None:
        """From now on what these say is removed does not match."""
        self.removals: Removals | None = removals
        self.c.removals = removals.c

    @property
    def slot_count(self) -> int:
        """Slots below this one may be in use."""
        return int(self.c.slot_count)

    def add_slot(self, slot: int, file_number: int) -> None:
        """From now on the slot stands for this file."""
        lib.sarp_slot_set(self.c, slot, file_number)

    def drop_slot(self, slot: int) -> None:
        """From now on the slot stands for no file: what names it is a miss."""
        lib.sarp_slot_set(self.c, slot, 0)

    def files(self) -> dict[int, int]:
        """The slot of each file that has one."""
        files = self.slot_files[: self.slot_count].tolist()
        return {number: slot for slot, number in enumerate(files) if number}

    def keep_recency(self, location_bytes: int) -> None:
        """Before anything is entered: matches lift entries, so that eviction knows what is asked for."""
        self.c.location_bytes = location_bytes
        self.c.resting = _RESTING
        self.c.evicts = 1

    def tick(self) -> None:
        """Lower all levels by one, those of entries that are not in memory yet too."""
        self.c.clock = (self.c.clock + 1) % _LEVELS
        self.c.resting = max(_RESTING_MIN, self.c.resting - 1)

    def keys(self, ids: npt.NDArray[np.uint8], holder: int, name_space: int) -> npt.NDArray[np.uint64]:
        """The directory keys of block ids (count, 16)."""
        out = np.empty(len(ids), "<u8")
        if len(ids):
            source = pointer("uint8_t *", np.ascontiguousarray(ids))
            lib.sarp_directory_keys(self.c, source, len(ids), holder, name_space, pointer("uint64_t *", out))
        return out
