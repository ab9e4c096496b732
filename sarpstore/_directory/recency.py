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
    """What goes: what is below `level`, and of what is at it, what left its window at a higher offset than `d`.

    Of what did so at `d`, or of whole windows for 0, what is in log files from `file_number` on. Under `sarp` all count
    as whole windows.
    """

    level: int
    file_number: int
    d: int = 0

    @property
    def c(self) -> Any:
        """`sarp_threshold *`."""
        return ffi.new("sarp_threshold *", {"level": self.level, "file_number": self.file_number, "d": self.d})


class Recency:
    """Bytes of live records by level; of those at one `level`, by the offset at which they left their window, and of
    those that left it at none by slot of their file, too.
    """

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

    @property
    def offsets(self) -> list[int]:
        """Bytes at the level that was asked for, by d."""
        return list(self.c.offsets)

    def by_file(self, slot_files: npt.NDArray[np.uint64]) -> dict[int, int]:
        """Bytes at the level that was asked for, of d = 0, by the number of their file."""
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
