"""Eviction's mechanism: sweeps over the directory in slices, between which the event loop gets its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sarpstore._directory import Evicted, Recency, Threshold
from sarpstore._eviction.policy import boundary_file, boundary_level, boundary_offset, ticks_due
from sarpstore._io import give_way

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._directory import Cursor, Directory
    from sarpstore._io import Turns

__all__ = ["Evictor"]

# Partitions that a call goes through: some 0.05 ms each, where they are not in the CPU's caches.
_AT_ONCE: Final = 6
# So many ticks at once leave nothing of what was.
_TICKS_MAX: Final = 32


class Evictor:
    """Ages and evicts the entries of `directory`, which keeps recency (`Base.keep_recency`).

    One call at a time, and none beside a compaction or a mark pass. Entries that are not in memory age with the
    others; they are neither counted nor evicted.
    """

    def __init__(self, directory: Directory, turns: Turns) -> None:
        self._turns = turns
        self._directory = directory
        self._ticked = 0
        self._unfinished: tuple[Cursor, Threshold, Evicted] | None = None
        self.records = self.blocks = self.bytes = 0
        """What was evicted since the open."""

    async def age(self, written: int, capacity: int) -> None:
        """Make the ticks that are due, when insertions have written `written` bytes of records since the open.

        `capacity`: bytes of records that the store may hold.
        """
        due = ticks_due(written, capacity, self._ticked)
        self._ticked += due
        for _ in range(min(due, _TICKS_MAX)):
            await self._sweep(lambda begin: self._directory.age(begin, _AT_ONCE))
            self._directory.base.tick()

    async def evict(self, wanted: int) -> Evicted:
        """Take out the coldest entries whose records have `wanted` bytes together, about; what went."""
        await self.finish()
        threshold = await self._threshold(wanted)
        self._unfinished = self._directory.begin_of(self._directory.first()), threshold, Evicted()
        return await self.finish()

    async def _threshold(self, wanted: int) -> Threshold:
        level, rest = boundary_level((await self._count()).levels, wanted)
        count = await self._count(level) if rest else Recency(level)
        d, rest = boundary_offset(count.offsets, rest)
        if not rest:
            return Threshold(level, 0, d)
        return Threshold(level, boundary_file(count.by_file(self._directory.base.slot_files), rest))

    async def finish(self) -> Evicted:
        """Go on with an eviction that was cut short, if one was; what it took out in all."""
        if self._unfinished is None:
            return Evicted()
        begin, threshold, evicted = self._unfinished
        while (cursor := self._directory.evict(begin, _AT_ONCE, threshold, evicted)) is not None:
            begin = cursor
            self._unfinished = begin, threshold, evicted
            await give_way(self._turns)
        self._unfinished = None
        self.records += evicted.records
        self.blocks += evicted.blocks
        self.bytes += evicted.bytes
        return evicted

    async def _count(self, level: int | None = None) -> Recency:
        out = Recency(level)
        await self._sweep(lambda begin: self._directory.recency(begin, _AT_ONCE, out))
        return out

    async def _sweep(self, some: Callable[[Cursor], Cursor | None]) -> None:
        begin: Cursor | None = self._directory.begin_of(self._directory.first())
        while begin is not None:
            begin = some(begin)
            await give_way(self._turns)
