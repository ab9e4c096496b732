"""Applying a plan: sweeps over the directory's partitions while everything else goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sarpstore._io import give_way
from sarpstore._kernel import ffi, pointer, reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from sarpstore._directory import Cursor, Directory
    from sarpstore._io import Turns
    from sarpstore._markpass.plan import Plan

__all__ = ["FreshMasks", "Swept", "sweep"]

# 8 MiB, touched only as far as it is used. Where something branches off in more than half a million windows during one
# pass, masks stay as they are until the next.
_FRESH_SLOTS: Final = 1 << 20


class FreshMasks:
    """Notes the mask bits that `directory` sets while it is in `with`: a pass must not clear what it has not seen."""

    def __init__(self, directory: Directory, slots: int = _FRESH_SLOTS) -> None:
        self._directory = directory
        self._space = reserve(slots * 8, "the masks set during a mark pass")
        self._c: Any = ffi.new("sarp_fresh_masks *")
        self._c.roots = pointer("uint64_t *", self._space)
        self._c.size = slots

    @property
    def full(self) -> bool:
        """There was no room: masks are not cleared any more."""
        return bool(self._c.full)

    def __enter__(self) -> Self:
        self._directory.note_masks(self._c)
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.note_masks(ffi.NULL)


@dataclass(frozen=True, slots=True)
class Swept:
    """Entries that went and that were cut; unreadable ones are among the dropped."""

    dropped: int
    cut: int
    unreadable: int


async def sweep(directory: Directory, plan: Plan, position: int, turns: Turns) -> Swept:
    """Apply the plan of the pass at `position`. Each step is right by itself: who is cut short begins another pass."""
    c = ffi.new("sarp_mark_plan *")
    c.verdicts, c.verdict_count = _array(plan.verdicts)
    c.masks, c.mask_count = _array(plan.masks)
    c.position = position
    directory.hold_growth(True)
    try:
        for step in directory.sweeps(c):
            await _all_partitions(directory, step, turns)
    finally:
        directory.hold_growth(False)
    return Swept(int(c.dropped), int(c.cut), int(c.unreadable))


async def _all_partitions(directory: Directory, step: Callable[[int], bool], turns: Turns) -> None:
    """In order. What splits meanwhile splits behind the cursor or ahead of it: see Checkpointer."""
    begin: Cursor | None = directory.begin_of(directory.first())
    while begin is not None:
        number = directory.at(begin)
        if step(number):
            begin = directory.end_of(number)
        await give_way(turns)


def _array(values: npt.NDArray[np.uint64]) -> tuple[Any, int]:
    return (pointer("uint64_t *", values) if len(values) else ffi.NULL), len(values)
