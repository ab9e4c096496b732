"""The chunk store: plans, loads and puts of KV payloads by content.

tokens ─► split, keys ─► index ─► Plan          load: regions ─► checksums ─► rotated into the prompt's KV
                                                put: policy ─► regions that go, payload, entry ─► index

One put is carried out at a time, and synced before it returns; plans and loads go on meanwhile. A failed write or sync
stops puts for good; what is held can still be loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore._blocks import tokens_in_turns
from sarpstore._chunks.encoding import Chunk, Table
from sarpstore._chunks.keys import KeyMaker, delimiters_of, split
from sarpstore._chunks.payload import Packed, check_kv, is_whole, pack, payload_bytes, unpack_whole
from sarpstore._chunks.plan import ChunkStats, Plan, Span
from sarpstore._chunks.policy import ChunkPolicy, Evicted, Placed
from sarpstore._errors import ClosedError, FailedError, ForkedError, InputError, StorageError, WrongLoopError
from sarpstore._files import rounded
from sarpstore._io import MATCHING
from sarpstore._kernel import reserve

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from sarpstore._chunks.layout import KVLayout
    from sarpstore._chunks.opening import Opened

__all__ = ["Chunks"]

_log = logging.getLogger("sarpstore")

# Payloads that are read, checked and rotated side by side, and bytes of them at once.
_LOADS_AT_ONCE: Final = 4
# Tokens that are hashed without a thread: about a millisecond.
_HASHED_ON_LOOP: Final = 100_000
_CAUSES_REMEMBERED: Final = 65_536
_RESTORED_AT_ONCE: Final = 200
_WEIGHED_AT_ONCE: Final = 2_000
# A table is due when what stands behind the last one is long to read, and much against its own size.
_ENTRIES_DUE: Final = 2_000
_ENTRIES_DUE_ANYWAY: Final = 8_000
_TABLE_SHARE: Final = 1 / 40
_ROW_BYTES: Final = 96
_ALIGNED_FROM: Final = 1 << 20


class Chunks:
    """An open chunk store. Made by `sarpstore.open_chunks`; belongs to the event loop and process that opened it."""

    def __init__(self, opened: Opened, layout: KVLayout, fingerprint: bytes, delimiters: Iterable[int]) -> None:
        self._opened = opened
        self._layout = layout
        self._fingerprint = fingerprint
        self._delimiters = delimiters_of(delimiters)
        self._scheduler, self._files = opened.scheduler, opened.files
        self._table, self._index = opened.found.table, opened.found.index
        self._policy = ChunkPolicy(opened.regions_max, self._table.region_bytes, next_region=self._table.next_region)
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._looked: list[bytes] | None = []
        """Lookups that the policy is still to be told of; None once it knows what is held."""
        self._computing: dict[bytes, asyncio.Future[None]] = {}
        self._causes: OrderedDict[bytes, str] = OrderedDict()
        self._putting = asyncio.Lock()
        self._sequence, self._behind_table = self._table.next_sequence, opened.entries_behind
        self._put_since_table = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._tokens = self._hit_tokens = self._question_tokens = 0
        self._missed: Counter[str] = Counter()
        self._loaded_bytes = self._damaged = self._puts = self._refused = 0
        self._restoring = asyncio.create_task(self._restore(), name="sarpstore chunk policy")

    @property
    def path(self) -> str:
        return self._opened.folder.path

    @property
    def layout(self) -> KVLayout:
        """The shape of what is put and loaded."""
        return self._layout

    # --- plans

    async def plan(
        self,
        tokens: object,
        *,
        conditioning: bytes = b"",
        salt: bytes = b"",
        adapter: str = "",
        store_question: bool = False,
        wait_ms: float = 10_000,
    ) -> Plan:
        """What of a prompt is stored, and what is to be computed.

        tokens: Token ids: ints, numpy uint32, array('I'), or bytes-like little-endian u32. They are split behind each
            delimiter.
        conditioning: Names the constant prefix that chunks are computed behind, if any: such chunks are others.
        salt: Of the tenant; adapter: name of the LoRA adapter: chunks of different ones are different.
        store_question: The last chunk is looked up and to be put, too.
        wait_ms: How long to wait for chunks that other requests are computing, before they are computed twice.

        Raises:
            InputError: `tokens` are no token ids.
        """
        self._check()
        ids = await tokens_in_turns(tokens)
        maker = KeyMaker(self._fingerprint, self._layout, adapter, conditioning, salt)
        parts = split(ids, self._delimiters)
        stored = parts if store_question else parts[:-1]
        if len(ids) <= _HASHED_ON_LOOP:
            keys = _keys(maker, ids, stored)
        else:
            keys = await self._scheduler.run(_keys, maker, ids, stored)
        await self._await_others(keys, wait_ms)
        self._check()
        spans = [self._look(key, begin, end) for key, (begin, end) in zip(keys, stored, strict=True)]
        plan = Plan(len(ids), (), self._release)
        for span in spans:
            if not span.hit and span.key not in self._computing:
                claim = self._computing[span.key] = self._loop.create_future()
                plan._claimed[span.key] = claim  # noqa: SLF001 - a plan is this store's to make
            elif not span.hit and span.key not in plan._claimed:  # noqa: SLF001
                span.why = "in flight"
        if len(stored) < len(parts):
            begin, end = parts[-1]
            self._question_tokens += end - begin
            spans.append(Span(begin, end, hit=False, why="question", key=b""))
        plan.spans = tuple(spans)
        return plan

    async def _await_others(self, keys: list[bytes], wait_ms: float) -> None:
        """Before anything is claimed: so no two requests wait for each other."""
        until = self._loop.time() + wait_ms / 1e3
        while waiting := [self._computing[key] for key in keys if key in self._computing and key not in self._index]:
            left = until - self._loop.time()
            if left <= 0:
                return
            await asyncio.wait(waiting, timeout=left)

    def _look(self, key: bytes, begin: int, end: int) -> Span:
        hit = key in self._index
        if self._looked is None:
            self._policy.look(key)
        else:
            self._looked.append(key)
        self._tokens += end - begin
        if hit:
            self._hit_tokens += end - begin
            return Span(begin, end, hit=True, why="", key=key, bytes=payload_bytes(self._layout, end - begin))
        why = self._causes.get(key, "new")
        self._missed[why] += end - begin
        return Span(begin, end, hit=False, why=why, key=key)

    def _release(self, key: bytes, claim: object) -> None:
        """The claim is given up; another one of the same key, made since, is not."""
        future = self._computing.get(key)
        if future is not None and future is claim:
            del self._computing[key]
            if not future.done() and not self._loop.is_closed():
                future.set_result(None)

    # --- loads

    async def load(self, plan: Plan, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The KV of a plan's hits, in an array for the whole prompt: (layers, 2, kv_heads, plan.tokens, head_dim).

        Keys are rotated for where they stand. What belongs to misses is not written, nor, of a layer with a sliding
        window, what lies before the last tokens of a chunk that it needs. A hit whose payload went meanwhile, or is
        damaged, is a miss afterwards: `span.hit` is false, `span.why` "evicted" or "damaged".

        out: Where to write instead of a new array, of that shape and the layout's `numpy_dtype`.

        Raises:
            InputError: `out` is of another shape or dtype.
        """
        self._check()
        target = self._target(plan, out)
        gate = asyncio.Semaphore(_LOADS_AT_ONCE)

        async def one(span: Span) -> None:
            async with gate:
                await self._load_span(span, target)

        async with asyncio.TaskGroup() as group:
            for span in plan.hits:
                group.create_task(one(span))
        return target

    def _target(self, plan: Plan, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        shape, dtype = self._layout.shape(plan.tokens), self._layout.numpy_dtype
        if out is None:
            size = int(np.prod(shape)) * dtype.itemsize
            if size < _ALIGNED_FROM:
                return np.empty(shape, dtype)
            return np.frombuffer(reserve(size, "a prompt's KV"), dtype).reshape(shape)
        if out.shape != shape or out.dtype != dtype:
            raise InputError(f"out: {out.shape} of {out.dtype}, not {shape} of {dtype}")
        return out

    async def _load_span(self, span: Span, target: npt.NDArray[Any]) -> None:
        chunk = self._chunk(span.key)
        try:
            data = None if chunk is None else await self._read(chunk)
            if chunk is None or data is None or chunk.tokens != span.end - span.begin:
                self._missed_late(span, "evicted" if self._chunk(span.key) is not chunk or chunk is None else "damaged")
            elif await self._scheduler.run(unpack_whole, self._layout, chunk, data, target, span.begin):
                self._loaded_bytes += span.bytes
            else:
                self._missed_late(span, "damaged")
        except StorageError as error:
            gone = self._chunk(span.key) is not chunk
            if not gone:
                _log.warning("a chunk's payload can't be read: %s", error)
            self._missed_late(span, "evicted" if gone else "damaged")

    def _missed_late(self, span: Span, why: str) -> None:
        span.hit, span.why, span.bytes = False, why, 0
        tokens = span.end - span.begin
        self._hit_tokens -= tokens
        self._missed[why] += tokens
        if why == "damaged" and span.key in self._index:
            self._damaged += 1
            _log.warning("%s: the payload of chunk %s is damaged, and is a miss", self.path, span.key.hex()[:16])
            self._drop(span.key, why)

    def _drop(self, key: bytes, why: str) -> None:
        """The chunk is not held any more."""
        self._index.pop(key, None)
        if key in self._policy:  # perhaps not told yet
            self._policy.drop(key)
        self._note_cause(key, why)

    def _note_cause(self, key: bytes, why: str) -> None:
        self._causes[key] = why
        self._causes.move_to_end(key)
        if len(self._causes) > _CAUSES_REMEMBERED:
            self._causes.popitem(last=False)

    def _chunk(self, key: bytes) -> Chunk | None:
        found = self._index.get(key)
        if isinstance(found, int):
            found = self._index[key] = self._table.chunk(found)
        return found

    async def _read(self, chunk: Chunk) -> memoryview | None:
        """The payload's pages; None where a region of it is gone or ends too early."""
        wanted = []
        for extent in chunk.extents:
            if extent.region not in self._files.entries:
                return None
            file = await self._scheduler.run(self._files.reader, extent.region)
            wanted.append((file, extent.offset, extent.bytes))
        try:
            pieces = await self._scheduler.try_read_many(wanted, MATCHING)
        except ClosedError:
            return None
        for piece, extent in zip(pieces, chunk.extents, strict=True):
            if isinstance(piece, ClosedError):
                return None
            if isinstance(piece, BaseException):
                raise piece
            if len(piece) < extent.bytes:
                return None
        whole: list[memoryview] = [piece for piece in pieces if isinstance(piece, memoryview)]
        return whole[0] if len(whole) == 1 else memoryview(b"".join(whole))

    # --- puts

    async def put(self, span: Span, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
        """Store what was computed for a missed span; whether it is stored, and on the disk, on return.

        keys, values: (layers, kv_heads, tokens, head_dim) of the layout's `numpy_dtype`, the keys not rotated. They
            must stay as they are until the call returns.

        False: it was not admitted; the next plan says so. A chunk that is stored already is not written again.

        Raises:
            InputError: the shapes or dtypes are others, or the span is the question of a plan without `store_question`.
            FailedError: puts stopped after a failed write or sync.
            StorageError: the system refused, DiskFullError among these; puts stop.
        """
        self._check()
        if not span.key:
            raise InputError(
                "put: the last chunk of a prompt is stored only if plan() was asked to (store_question=True)"
            )
        check_kv(self._layout, keys, values, span.end - span.begin)
        if self._failure is not None:
            raise FailedError(self.path, self._failure) from self._failure
        # Shielded: a put that is cut short is carried out all the same.
        return await asyncio.shield(asyncio.create_task(self._put(span.key, keys, values)))

    async def _put(self, key: bytes, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
        try:
            await self._restoring
            async with self._putting:
                self._check()
                if key in self._index:
                    return True
                size = rounded(payload_bytes(self._layout, keys.shape[2]))
                if not self._has_metadata_room() or not self._policy.admits(key, size):
                    self._refused += 1
                    self._note_cause(key, "not admitted")
                    return False
                packed = await self._scheduler.run(pack, self._layout, keys, values, key)
                try:
                    await self._carry_out(key, packed, keys.shape[2])
                except BaseException as error:
                    self._failure = error
                    raise
                self._puts += 1
                return True
        finally:
            self._release(key, self._computing.get(key))

    def _has_metadata_room(self) -> bool:
        """Whether the entries and tables of one chunk more, two tables and a temporary one, keep to their share."""
        return (len(self._index) + 1) * 4 * _ROW_BYTES <= self._opened.metadata_bytes

    async def _carry_out(self, key: bytes, packed: Packed, tokens: int) -> None:
        again: dict[bytes, tuple[Packed, int]] = {key: (packed, tokens)}
        for step in self._policy.put(key, len(packed.data)):
            if isinstance(step, Evicted):
                again.update(await self._evict(step))
            elif step.key in again:
                await self._write(step, *again.pop(step.key))
            else:
                self._policy.drop(step.key)  # it was damaged
        await self._scheduler.run(self._files.close_writers, self._open_regions())
        if self._table_is_due():
            await self._publish()

    def _open_regions(self) -> set[int]:
        return {number for number, region in self._policy.regions.items() if region.open}

    async def _evict(self, step: Evicted) -> dict[bytes, tuple[Packed, int]]:
        """The region goes; the payloads that will be written again, as they were read."""
        kept: dict[bytes, tuple[Packed, int]] = {}
        for key in step.again:
            chunk = self._chunk(key)
            data: memoryview | None = None
            if chunk is not None:
                with contextlib.suppress(StorageError):  # what can't be read goes with its region
                    data = await self._read(chunk)
            if chunk is None or data is None:
                continue
            if await self._scheduler.run(is_whole, self._layout, chunk, data):
                kept[key] = Packed(data, chunk.bytes, chunk.crc, chunk.strip), chunk.tokens
        for key in step.keys:
            self._index.pop(key, None)
            self._note_cause(key, "evicted")
        await self._scheduler.run(self._files.remove, step.region)
        return kept

    async def _write(self, step: Placed, packed: Packed, tokens: int) -> None:
        number = self._sequence
        self._sequence += 1
        chunk = Chunk(step.key, number, packed.bytes, tokens, packed.crc, packed.strip, step.extents)
        await self._scheduler.run(self._files.write, step.extents, packed.data)
        await self._scheduler.run(self._files.note, chunk)
        self._index[step.key] = chunk
        self._causes.pop(step.key, None)
        self._behind_table += 1
        self._put_since_table += len(packed.data)

    # --- the table

    def _table_is_due(self) -> bool:
        long = self._behind_table >= _ENTRIES_DUE and self._put_since_table * _TABLE_SHARE >= _ROW_BYTES * len(
            self._index
        )
        return long or self._behind_table >= _ENTRIES_DUE_ANYWAY

    async def _publish(self) -> None:
        held = dict(self._index)
        weights = {}
        for count, key in enumerate(held):
            weights[key] = self._policy.weight(key)
            if count % _WEIGHED_AT_ONCE == _WEIGHED_AT_ONCE - 1:
                await asyncio.sleep(0)
        used = {number: region.used for number, region in self._policy.regions.items()}
        bounds = (self._table.number + 1, self._opened.bytes_max, self._sequence, self._policy.next_region)
        table = await self._scheduler.run(_table_of, self._table, held, weights, self._files.entries, used, bounds)
        await self._scheduler.run(self._files.publish, table)
        self._table.number = table.number
        self._behind_table = self._put_since_table = 0

    async def _restore(self) -> None:
        """Tell the policy what is held, in slices, and then of the lookups since."""
        for number, key in enumerate(list(self._index)):
            if number % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            row = self._index.get(key)
            if row is None:
                continue
            weight = self._table.weight(row) if isinstance(row, int) else 1.0
            chunk = self._table.chunk(row) if isinstance(row, int) else row
            self._policy.restore(key, chunk.extents, weight)
        for number in self._files.entries:
            self._policy.region(number)
        for number, size in self._opened.open_again.items():
            self._policy.reopen(number, size)
        async with self._putting:
            for step in self._policy.shrink():
                await self._evict(step)
        looked, self._looked = self._looked or [], None
        for key in looked:
            self._policy.look(key)

    # --- lifecycle

    def stats(self) -> ChunkStats:
        """Counters since the open, and what there is now."""
        self._check()
        return ChunkStats(
            chunks=len(self._index),
            regions=len(self._files.entries),
            disk_bytes=self._opened.folder.bytes,
            bytes_max=self._opened.bytes_max,
            tokens=self._tokens,
            hit_tokens=self._hit_tokens,
            missed_tokens=dict(self._missed),
            question_tokens=self._question_tokens,
            loaded_bytes=self._loaded_bytes,
            put_bytes=self._policy.put_bytes,
            again_bytes=self._policy.again_bytes,
            written_bytes=self._files.bytes_written,
            damaged_payloads=self._damaged,
            puts=self._puts,
            refused_puts=self._refused,
            recovery_ms=self._opened.recovery_ms,
            io_backend=self._scheduler.backend.name,
        )

    async def close(self) -> None:
        """Finish what is being put, write the table, and close. Closing again does nothing.

        Raises what kept the table from being written; the store is closed all the same, and nothing is lost.
        """
        if self._closed:
            return
        self._check()
        await asyncio.wait([self._restoring])
        async with self._putting:
            self._closed = True
            for future in self._computing.values():
                if not future.done():
                    future.set_result(None)
            self._computing.clear()
            try:
                await self._restoring
                if self._failure is None and (self._behind_table or self._puts or self._tokens):
                    await self._publish()
            finally:
                self._files.close()
                self._opened.folder.close()
                await self._scheduler.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self.path} was opened by another process, before a fork")
        if self._closed:
            raise ClosedError(f"{self.path} is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(f"{self.path} was opened in another event loop")


def _keys(maker: KeyMaker, ids: npt.NDArray[np.uint32], parts: list[tuple[int, int]]) -> list[bytes]:
    return [maker.key(ids[begin:end]) for begin, end in parts]


def _table_of(
    last: Table,
    held: dict[bytes, int | Chunk],
    weights: dict[bytes, float],
    entries: dict[int, int],
    used: dict[int, int],
    bounds: tuple[int, int, int, int],
) -> Table:
    """The table of what is held. For a thread: `held` and `weights` are its own."""
    number, bytes_max, sequence, region = bounds
    table = Table(last.uuid, number, bytes_max, last.region_bytes, sequence, region)
    table.note_regions(entries, used)
    chunks = [last.chunk(found) if isinstance(found, int) else found for found in held.values()]
    chunks.sort(key=lambda chunk: chunk.sequence)
    table.fill(chunks, [weights[chunk.key] for chunk in chunks])
    return table
