"""What eviction's sweeps count and are told: the kernel's structures (kernels/evict.h)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sarpstore._kernel import ffi, lib, pointer

__all__ = ["LEVELS", "Evicted", "Recency", "Threshold"]

LEVELS: Final = int(lib.SARP_LEVELS)
"""Levels of recency, from 0; the highest has what was just asked for."""

_SLOTS: Final = 1 << 16


class Threshold(NamedTuple):
    """What goes: what is below `level`, and of what is at it what is in log files from `file_number` on."""

    level: int
    file_number: int

    @property
    def c(self) -> Any:
        """`sarp_threshold *`."""
        return ffi.new("sarp_threshold *", {"level": self.level, "file_number": self.file_number})


class Recency:
    """Bytes of live records by level; of those at one `level`, by slot of their file, too."""

    def __init__(self, level: int | None = None) -> None:
        self.c: Any = ffi.new("sarp_recency *")
        self._slots = np.zeros(0 if level is None else _SLOTS, "<u8")
        if level is not None:
            self.c.level = level
            self.c.slots = pointer("uint64_t *", self._slots)

    @property
    def levels(self) -> list[int]:
        """Bytes at each level."""
        return list(self.c.levels)

    def by_file(self, slot_files: npt.NDArray[np.uint64]) -> dict[int, int]:
        """Bytes at the level that was asked for, by the number of their file."""
        slots = np.flatnonzero(self._slots)
        return dict(zip(slot_files[slots].tolist(), self._slots[slots].tolist(), strict=True))


class Evicted:
    """What went: records, the blocks that they introduced, and their bytes."""

    def __init__(self) -> None:
        self.c: Any = ffi.new("sarp_evicted *")

    @property
    def records(self) -> int:
        return int(self.c.records)

    @property
    def blocks(self) -> int:
        return int(self.c.blocks)

    @property
    def bytes(self) -> int:
        """Whole units."""
        return int(self.c.bytes)
