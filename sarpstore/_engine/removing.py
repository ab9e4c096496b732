"""Removing, clearing holders, and counting announcements: what is written, and remembered, in one step each.

Nothing is searched for. A removal is a record in the log and a marker in memory (format-spec/removal.md); matching
does the rest. What is waited for is room: in the gathering commit, on the disk, among the markers. The step that
follows reads what is remembered, decides, writes and remembers without a wait in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import ffi, lib
from sarpstore._log.commits import CommitBuffer, clear_record, count_record, remove_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sarpstore._engine.queries import Sequenced
    from sarpstore._engine.state import State

__all__ = ["Remover"]

Result = TypeVar("Result")

_ID: Final = Struct(f"{fmt.ID_BYTES}s")
# Ids of one step: what a count record holds, and a remove record does, too.
_STEP_IDS: Final = fmt.COUNT_ENTRIES_MAX
_COUNT_MAX: Final = 0xFFFF_FFFF


class Remover:
    """Removals of an open store. `room(markers)` returns once a removal that makes so many can be taken."""

    def __init__(self, state: State, room: Callable[[int], Awaitable[None]]) -> None:
        self._state = state
        self._room = room
        self.removed = 0
        """Blocks for which a marker was made."""

    async def remove(self, sequenced: Sequenced, holder: int) -> int:
        """Remove these blocks and all that follows them; how many: of a counted one only the last removal does."""
        name_space = sequenced.key.name_space
        removed = 0
        # Room for all that there may be at once would never come while others remove, too.
        step = min(_STEP_IDS, self._state.removals.markers_max // 2)
        for first in range(0, len(sequenced.ids), step):
            if first:
                await asyncio.sleep(0)
            if not self._is_known(name_space, holder):
                break
            ids = np.ascontiguousarray(sequenced.ids[first : first + step])
            removed += await self._at_once(2, len(ids), partial(self._lower, ids, name_space, holder))
        return removed

    async def remove_path(self, sequenced: Sequenced, blocks: int, holder: int) -> None:
        """Remove a path's blocks from number `blocks` on, however often they were announced."""
        name_space = sequenced.key.name_space
        if blocks < len(sequenced.ids) and self._is_known(name_space, holder):
            ids = np.ascontiguousarray(sequenced.ids[blocks : blocks + 1])
            await self._at_once(1, 1, partial(self._mark, ids, name_space, holder))

    async def clear(self, holder: int) -> None:
        """Remove everything of a holder: one record, whatever it holds."""
        if holder in self._state.removals.holders:
            await self._at_once(1, 0, partial(self._clear, holder))

    def records_to_count(self, blocks: int, *, counted: bool) -> int:
        """Records that `count` writes at most of so many blocks that are inserted."""
        return -(-blocks // _STEP_IDS) if counted or self._state.removals.counts else 0

    def count(self, ids: npt.NDArray[np.uint8], held: int, name_space: int, holder: int, *, counted: bool) -> None:
        """Note that blocks were inserted, of which the first `held` were there, in one step with their insertion.

        Held ones count one more if `counted`; new ones 1, whatever was remembered of them. There is room for
        `records_to_count` records.
        """
        for first in range(0, len(ids), _STEP_IDS):
            part = np.ascontiguousarray(ids[first : first + _STEP_IDS])
            before = min(max(held - first, 0), len(part))
            if (counted and before) or self._state.removals.counts:
                self._raise(part, before, counted, name_space, holder)

    def _is_known(self, name_space: int, holder: int) -> bool:
        """Whether anything was ever inserted there: if not, there is nothing to remove."""
        return name_space in self._state.namespaces and holder in self._state.removals.holders

    async def _at_once(self, records: int, markers: int, step: Callable[[], Result]) -> Result:
        """Run a step that adds so many records and markers, once there is room for them."""
        state = self._state
        while True:
            await self._room(markers)
            state.writer.check()
            if state.gatherer.buffer.has_room(records):
                return step()
            await state.writer.make_room()

    # --- steps

    @property
    def _commit(self) -> CommitBuffer:
        return self._state.gatherer.buffer

    def _lower(self, ids: npt.NDArray[np.uint8], name_space: int, holder: int) -> int:
        """Make markers for those that count 1, and let the others count less."""
        counts = self._state.removals.get_counts(ids, holder, name_space)
        if not counts.any():
            return self._mark(ids, name_space, holder)
        times = Counter(map(bytes, ids))
        known = dict(zip(map(bytes, ids), counts.tolist(), strict=True))
        left = {block: max(known[block], 1) - removed for block, removed in times.items()}
        self._write_counts({block: count for block, count in left.items() if count > 0}, name_space, holder)
        gone = b"".join(block for block, count in left.items() if count <= 0)
        return self._mark(np.frombuffer(gone, np.uint8).reshape(-1, fmt.ID_BYTES), name_space, holder) if gone else 0

    def _mark(self, ids: npt.NDArray[np.uint8], name_space: int, holder: int) -> int:
        """Write a remove record and remember its markers."""
        record = remove_record(holder, name_space, ids.tobytes())
        position = self._commit.append_removal(record)
        assert position, "there was room"
        self._state.writer.gathered()
        self._state.ledger.on_removal(fmt.position_file(position), len(record))
        source = ffi.from_buffer("uint8_t[]", ids)
        self._state.removals.mark(source, len(ids), holder, name_space, position)
        removed = len(set(_ID.iter_unpack(ids.data.cast("B"))))
        self.removed += removed
        return removed

    def _clear(self, holder: int) -> None:
        position = self._commit.append_removal(clear_record(holder))
        assert position, "there was room"
        self._state.writer.gathered()
        self._state.removals.clear(holder, position)

    def _raise(self, ids: npt.NDArray[np.uint8], held: int, counted: bool, name_space: int, holder: int) -> None:
        counts = self._state.removals.get_counts(ids, holder, name_space).tolist()
        after = [min(max(count, 1) + 1, _COUNT_MAX) if counted else count for count in counts[:held]]
        after += [0] * (len(counts) - held)
        changed = {bytes(ids[i]): count for i, count in enumerate(after) if count != counts[i]}
        self._write_counts(changed, name_space, holder)

    def _write_counts(self, counts: dict[bytes, int], name_space: int, holder: int) -> None:
        """Write counts down and remember them."""
        if not counts:
            return
        entries = np.zeros(len(counts), fmt.COUNT_ENTRY_DTYPE)
        entries["id"] = np.frombuffer(b"".join(counts), "|V16")
        entries["count"] = list(counts.values())
        # Replay takes counts in order of position, so a later one stands behind.
        placed = self._commit.append(count_record(holder, name_space, entries), rule=lib.SARP_PLACE_BEHIND)
        assert placed, "there was room"
        self._state.writer.gathered()
        self._state.removals.set_counts(entries, holder, name_space)
