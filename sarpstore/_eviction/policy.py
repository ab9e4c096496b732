"""What goes: pure functions of how many bytes there are at each level of recency.

The levels are the kernel's: kernels/internal_recency.h says what they mean, and what of S3-FIFO is in them. A
threshold takes the coldest levels whole. Of the one that has to be split it takes what left its window deepest first,
since that stands on what it left; then whole windows from the newest files: on a path, what comes later stands on what
came before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["TICKS", "boundary_file", "boundary_level", "boundary_offset", "ticks_due"]

TICKS: Final = 16
"""Ticks while the capacity's worth of bytes is inserted: about as many as lead from probation to the floor."""


def ticks_due(written: int, capacity: int, ticked: int) -> int:
    """Ticks to be made, when insertions have written so many bytes in all and `ticked` ticks have been made."""
    return max(0, written * TICKS // max(1, capacity) - ticked)


def boundary_level(levels: Sequence[int], wanted: int) -> tuple[int, int]:
    """The level that has to be split to free `wanted` bytes, and how many of them it has to give.

    (the number of levels, 0) if all together have not more than that.
    """
    left = max(0, wanted)
    for level, held in enumerate(levels):
        if held > left:
            return level, left
        left -= held
    return len(levels), 0


def boundary_offset(by_offset: Sequence[int], wanted: int) -> tuple[int, int]:
    """The offset from which on all goes to free `wanted` bytes, and how many of them whole windows have to give.

    (as many as there are offsets, 0) for none.
    """
    lowest, left = len(by_offset), wanted
    for d in range(len(by_offset) - 1, 0, -1):
        if left <= 0:
            break
        if by_offset[d]:
            lowest, left = d, left - by_offset[d]
    return lowest, max(0, left)


def boundary_file(by_file: Mapping[int, int], wanted: int) -> int:
    """The file number from which on files give `wanted` bytes, the newest first; behind all files for none."""
    number, left = fmt.FILE_NUMBER_END, wanted
    for newest, held in sorted(by_file.items(), reverse=True):
        if left <= 0:
            break
        number, left = newest, left - held
    return number
