"""What changes a chunk store: payloads put, regions that go for them, tables of all that is held.

payload ─► policy ─┬─► a region goes; what is worth it waits to be placed anew
                   └─► payload and entry are written and synced ─► held
                                         now and then: all that is held ─► table

One of these is carried out at a time, on threads. A failed write or sync stops them for good; what is held can still be
loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sarpstore._chunks.encoding import Chunk, Table
from sarpstore._chunks.loads import read_payload
from sarpstore._chunks.payload import Packed, is_whole, pack, payload_bytes
from sarpstore._chunks.policy import ChunkPolicy, Evicted, Placed
from sarpstore._errors import ClosedError, FailedError, StorageError
from sarpstore._files import rounded

if TYPE_CHECKING:
    import numpy.typing as npt

    from sarpstore._chunks.held import Held
    from sarpstore._chunks.layout import KVLayout
    from sarpstore._chunks.opening import Opened

__all__ = ["Puts"]

# Rows that are indexed, chunks that the policy is told of, and weights that are asked for, without a pause: well below
# a millisecond each.
_INDEXED_AT_ONCE: Final = 1_000
_RESTORED_AT_ONCE: Final = 64
_WEIGHED_AT_ONCE: Final = 1_000
# A table is due when what stands behind the last one is long to read, and much against its own size.
_ENTRIES_DUE: Final = 2_000
_ENTRIES_DUE_ANYWAY: Final = 8_000
_TABLE_SHARE: Final = 1 / 40
_ROW_BYTES: Final = 96


@dataclass(slots=True)
class PutCounts:
    """Since the open."""

    puts: int = 0
    refused: int = 0
    """Not admitted."""
    evicted: int = 0
    """Chunks whose region went, those that were put anew left out."""
    damaged: int = 0
    """Payloads that were to be written again and could not be read, or were damaged."""


class Puts:
    """The writing part of one store. `restore` comes first: until it is done puts wait."""

    def __init__(self, opened: Opened, layout: KVLayout, held: Held) -> None:
        self._opened = opened
        self._layout = layout
        self._held = held
        self._scheduler, self._files = opened.scheduler, opened.files
        self._table = opened.found.table
        self.policy = ChunkPolicy(opened.regions_max, self._table.region_bytes, next_region=self._table.next_region)
        self.counts = PutCounts()
        self._looked: list[bytes] | None = []
        """Lookups that the policy is still to be told of; None once it knows what is held."""
        self._one_at_a_time = asyncio.Lock()
        self._sequence, self._behind_table = self._table.next_sequence, len(opened.found.late)
        self._put_since_table = 0
        self._closed = False
        self.failure: BaseException | None = None
        self._restoring = asyncio.create_task(self._restore(), name="sarpstore chunk policy")

    @property
    def table_lag(self) -> int:
        """Entries that the newest table does not have."""
        return self._behind_table

    async def restored(self) -> None:
        """The policy knows what is held. Raises what kept it from that."""
        await asyncio.shield(self._restoring)

    # --- lookups

    def look(self, key: bytes) -> None:
        """A lookup, of what is held or not."""
        if self._looked is None:
            self.policy.look(key)
        else:
            self._looked.append(key)

    def drop(self, key: bytes, why: str) -> None:
        """The chunk is not held any more."""
        self._held.drop(key, why)
        if key in self.policy:  # perhaps not told yet
            self.policy.drop(key)

    # --- puts

    def check(self) -> None:
        """FailedError: puts have stopped."""
        if self.failure is not None:
            raise FailedError(self._opened.folder.path, self.failure) from self.failure

    async def put(self, key: bytes, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
        """Whether it is held, and on the disk; if not, it was not admitted."""
        await self.restored()
        async with self._one_at_a_time:
            self.check()
            if self._closed:
                raise ClosedError(f"{self._opened.folder.path} is closed")
            if key in self._held:
                return True
            size = rounded(payload_bytes(self._layout, keys.shape[2]))
            if not self._has_metadata_room() or not self.policy.admits(key, size):
                self.counts.refused += 1
                self._held.note(key, "not admitted")
                return False
            packed = await self._scheduler.run(pack, self._layout, keys, values, key)
            try:
                await self._carry_out(key, packed, keys.shape[2])
            except BaseException as error:
                self.failure = error
                raise
            self.counts.puts += 1
            return True

    def _has_metadata_room(self) -> bool:
        """Whether the entries and tables of one chunk more, two tables and a temporary one, keep to their share."""
        return (len(self._held) + 1) * 4 * _ROW_BYTES <= self._opened.metadata_bytes

    async def _carry_out(self, key: bytes, packed: Packed, tokens: int) -> None:
        again: dict[bytes, tuple[Packed, int]] = {key: (packed, tokens)}
        for step in self.policy.put(key, len(packed.data)):
            if isinstance(step, Evicted):
                again.update(await self._evict(step))
            elif step.key in again:
                await self._write(step, *again.pop(step.key))
            else:
                self.policy.drop(step.key)  # it was damaged
        await self._scheduler.run(self._files.close_writers, self.policy.opened)
        if self._table_is_due():
            await self._publish()

    async def _evict(self, step: Evicted) -> dict[bytes, tuple[Packed, int]]:
        """The region goes; the payloads that will be written again, as they were read."""
        kept: dict[bytes, tuple[Packed, int]] = {}
        for key in step.again:
            if (found := await self._read_again(key)) is not None:
                kept[key] = found
        for key in step.keys:
            self._held.drop(key, "evicted")
        self.counts.evicted += len(step.keys) - len(kept)
        await self._scheduler.run(self._files.remove, step.region)
        return kept

    async def _read_again(self, key: bytes) -> tuple[Packed, int] | None:
        """A payload that is held; None where it can't be read, or is damaged: it goes with its region."""
        chunk = self._held.chunk(key)
        if chunk is None:
            return None
        with contextlib.suppress(StorageError):
            data = await read_payload(self._scheduler, self._files, chunk)
            if data is not None and await self._scheduler.run(is_whole, self._layout, chunk, data):
                return Packed(data, chunk.bytes, chunk.crc, chunk.strip), chunk.tokens
        self.counts.damaged += 1
        return None

    async def _write(self, step: Placed, packed: Packed, tokens: int) -> None:
        number = self._sequence
        self._sequence += 1
        chunk = Chunk(step.key, number, packed.bytes, tokens, packed.crc, packed.strip, step.extents)
        await self._scheduler.run(self._files.write, step.extents, packed.data)
        await self._scheduler.run(self._files.note, chunk)
        self._held.add(chunk)
        self._behind_table += 1
        self._put_since_table += len(packed.data)

    # --- the table

    def _table_is_due(self) -> bool:
        table_bytes = _ROW_BYTES * len(self._held)
        long = self._behind_table >= _ENTRIES_DUE and self._put_since_table * _TABLE_SHARE >= table_bytes
        return long or self._behind_table >= _ENTRIES_DUE_ANYWAY

    async def _publish(self) -> None:
        rows, late = [], []
        for count, key in enumerate(list(self._held)):
            found = self._held.get(key)
            if isinstance(found, int):
                rows.append((found, self.policy.weight(key)))
            elif found is not None:  # or it was found damaged just now
                late.append((found, self.policy.weight(key)))
            if count % _WEIGHED_AT_ONCE == _WEIGHED_AT_ONCE - 1:
                await asyncio.sleep(0)
        used = {number: region.used for number, region in self.policy.regions.items()}
        new = Table(
            self._table.uuid,
            self._table.number + 1,
            self._opened.bytes_max,
            self._table.region_bytes,
            self._sequence,
            self.policy.next_region,
        )
        new.note_regions(self._files.entries, used)
        await self._scheduler.run(new.fill, self._table, rows, late)
        await self._scheduler.run(self._files.publish, new)
        self._table.number = new.number
        self._behind_table = self._put_since_table = 0

    # --- beginning and end

    async def _restore(self) -> None:
        """Index what is held, tell the policy of it, in slices, and then of the lookups since."""
        begin = 0
        while self._held.index(begin, begin + _INDEXED_AT_ONCE):
            begin += _INDEXED_AT_ONCE
            await asyncio.sleep(0)
        for number, key in enumerate(list(self._held)):
            if number % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            found = self._held.get(key)
            if found is not None:
                weight = self._table.weight(found) if isinstance(found, int) else 1.0
                chunk = self._table.chunk(found) if isinstance(found, int) else found
                self.policy.restore(key, chunk.extents, weight)
        for region in self._files.entries:
            self.policy.region(region)
        for region, size in self._opened.open_again.items():
            self.policy.reopen(region, size)
        async with self._one_at_a_time:
            for step in self.policy.shrink():
                await self._evict(step)
        looked, self._looked = self._looked or [], None
        for key in looked:
            self.policy.look(key)

    async def close(self, *, changed: bool) -> None:
        """Finish what is being put, and write a table, if anything has `changed` since the last.

        Raises what kept it from being written, or the store from being restored: nothing that is held is lost.
        """
        await asyncio.wait([self._restoring])
        async with self._one_at_a_time:
            self._closed = True
            await self.restored()
            if self.failure is None and (self._behind_table or changed):
                await self._publish()
