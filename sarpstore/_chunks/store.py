"""The chunk store: plans, loads and puts of KV payloads by content.

tokens ─► split, keys ─► index ─► Plan          load: regions ─► checksums ─► rotated into the prompt's KV
                                                put: policy ─► regions that go, payload, entry ─► index

One put is carried out at a time, and synced before it returns; plans and loads go on meanwhile. A failed write or sync
stops puts for good; what is held can still be loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore._blocks import tokens_in_turns
from sarpstore._chunks.boundaries import Boundaries
from sarpstore._chunks.held import Held
from sarpstore._chunks.keys import KeyMaker, delimiters_of, split
from sarpstore._chunks.loads import Loads, target_of
from sarpstore._chunks.payload import check_kv, payload_bytes
from sarpstore._chunks.plan import Plan, Span
from sarpstore._chunks.puts import Puts
from sarpstore._chunks.stats import ChunkStats, Tally
from sarpstore._errors import ClosedError, ForkedError, InputError, WrongLoopError
from sarpstore._log.published import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from sarpstore._chunks.layout import KVLayout
    from sarpstore._chunks.opening import Opened

__all__ = ["Chunks"]

_log = logging.getLogger("sarpstore")

# Tokens that are hashed without a thread: about a millisecond.
_HASHED_ON_LOOP: Final = 100_000
# No prompt has more: so sums of them stay numbers of 64 bits.
_TOKENS_MAX: Final = 1 << 32


class Chunks:
    """An open chunk store. Made by `sarpstore.open_chunks`; belongs to the event loop and process that opened it."""

    def __init__(self, opened: Opened, layout: KVLayout, fingerprint: bytes, delimiters: Iterable[int]) -> None:
        self._opened = opened
        self._layout = layout
        self._fingerprint = fingerprint
        self._delimiters = delimiters_of(delimiters)
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        found = opened.found
        self._held = Held(found.table, found.rows, found.late)
        self._loads = Loads(layout, opened.scheduler, opened.files, self._held)
        self._puts = Puts(opened, layout, self._held)
        self._boundaries = Boundaries(self._held.was_held)
        self._tally = Tally()
        self._computing: dict[bytes, asyncio.Future[None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._publisher = Publisher(opened.scheduler, opened.folder, found.table.uuid, self._stats)
        self._publishing = self._publisher.start()

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
            keys = await self._opened.scheduler.run(_keys, maker, ids, stored)
        await self._await_others([key for key, _ in keys], wait_ms)
        self._check()
        spans = [self._look(*each, ids, *part) for each, part in zip(keys, stored, strict=True)]
        plan = Plan(len(ids), (), self._release)
        self._claim(plan, spans)
        for span in spans:
            self._tally.looked(span)
        for begin, end in parts[len(stored) :]:
            self._tally.question_tokens += end - begin
            spans.append(Span(begin, end, hit=False, why="question", key=b""))
        plan.spans = tuple(spans)
        return plan

    def _claim(self, plan: Plan, spans: list[Span]) -> None:
        """Misses that nobody computes are the plan's to compute; the others are told apart."""
        claimed = plan._claimed  # noqa: SLF001 - a plan is this store's to make
        for span in spans:
            if not span.hit and span.key not in self._computing:
                claimed[span.key] = self._computing[span.key] = self._loop.create_future()
            elif not span.hit and span.key not in claimed:
                span.why = "in flight"

    async def _await_others(self, keys: list[bytes], wait_ms: float) -> None:
        """Before anything is claimed: so no two requests wait for each other."""
        until = self._loop.time() + wait_ms / 1e3
        while waiting := [self._computing[key] for key in keys if key in self._computing and key not in self._held]:
            left = until - self._loop.time()
            if left <= 0:
                return
            await asyncio.wait(waiting, timeout=left)

    def _look(self, key: bytes, head: bytes, ids: npt.NDArray[np.uint32], begin: int, end: int) -> Span:
        self._puts.look(key)
        if key in self._held:
            self._boundaries.hit(head, key, ids[begin:end])
            return Span(begin, end, hit=True, why="", key=key, bytes=payload_bytes(self._layout, end - begin))
        why = self._held.why_not(key)
        if why == "new" and self._boundaries.is_cut_elsewhere(head, key, ids[begin:end]):
            why = "boundary"
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
            InputError: `out` is of another shape or dtype, or read-only, or its rows of head_dim elements are not in
                one piece each.
        """
        self._check()
        target = target_of(self._layout, plan, out)
        began, wanted = self._loop.time(), plan.hits
        for span, why in await self._loads.load(wanted, target):
            self._miss_late(span, why)
        self._tally.loaded_bytes += sum(span.bytes for span in wanted)
        self._tally.load_seconds += self._loop.time() - began
        return target

    def _miss_late(self, span: Span, why: str) -> None:
        if span.hit:  # or the same plan was loaded twice at a time
            span.hit, span.why, span.bytes = False, why, 0
            self._tally.missed_late(span)
        if why == "damaged" and span.key in self._held:
            self._tally.damaged += 1
            _log.warning("%s: the payload of chunk %s is damaged, and is a miss", self.path, span.key.hex()[:16])
            self._puts.drop(span.key, why)

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
        self._puts.check()
        # Shielded: a put that is cut short is carried out all the same.
        return await asyncio.shield(asyncio.create_task(self._put(span.key, keys, values)))

    async def _put(self, key: bytes, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
        try:
            return await self._puts.put(key, keys, values)
        finally:
            self._release(key, self._computing.get(key))

    # --- what is told

    def note_use(self, *, tokens: int, recomputed: int = 0) -> None:
        """An answer was computed from hits of so many tokens, of which a fix-up computed some again.

        Raises:
            InputError: these are no such numbers.
        """
        self._check()
        if not all(isinstance(n, int) for n in (tokens, recomputed)) or not 0 <= recomputed <= tokens <= _TOKENS_MAX:
            raise InputError(f"note_use: {recomputed!r} of {tokens!r} tokens were computed again")
        self._tally.used(tokens, recomputed)

    def note_drift(self, nats: float) -> None:
        """An answer from hits differed so much from that of a full prefill, as Kullback-Leibler divergence in nats.

        Raises:
            InputError: it is no finite number, or below 0.
        """
        self._check()
        value = float(nats) if isinstance(nats, np.floating) else nats
        if not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise InputError(f"note_drift: {nats!r} is no divergence")
        self._tally.differed(value)

    def stats(self) -> ChunkStats:
        """Counters since the open, and what there is now."""
        self._check()
        return self._stats()

    def _stats(self) -> ChunkStats:
        tally, puts, opened = self._tally, self._puts, self._opened
        return ChunkStats(
            chunks=len(self._held),
            regions=len(opened.files.entries),
            disk_bytes=opened.folder.bytes,
            bytes_max=opened.bytes_max,
            tokens=tally.tokens,
            hit_tokens=tally.hit_tokens,
            missed_tokens=dict(tally.missed),
            question_tokens=tally.question_tokens,
            loaded_bytes=tally.loaded_bytes,
            load_seconds=tally.load_seconds,
            put_bytes=puts.policy.put_bytes,
            again_bytes=puts.policy.again_bytes,
            written_bytes=opened.files.bytes_written,
            damaged_payloads=tally.damaged + puts.counts.damaged,
            puts=puts.counts.puts,
            refused_puts=puts.counts.refused,
            evicted_chunks=puts.counts.evicted,
            table_lag=puts.table_lag,
            used_tokens=tally.used_tokens,
            recomputed_tokens=tally.recomputed_tokens,
            compared=tally.compared,
            drift=tally.drift,
            recovery_ms=opened.recovery_ms,
            io_backend=opened.scheduler.backend.name,
            failed="" if puts.failure is None else str(puts.failure) or type(puts.failure).__name__,
        )

    # --- lifecycle

    async def close(self) -> None:
        """Finish what is being put, write the table, and close. Closing again does nothing.

        Raises what kept the table from being written; the store is closed all the same, and nothing is lost.
        """
        if self._closing is None:
            self._check()
            self._closing = asyncio.create_task(self._close(), name="sarpstore chunks close")
            await asyncio.shield(self._closing)
        elif not self._closing.done():
            await asyncio.wait([self._closing])

    async def _close(self) -> None:
        for future in self._computing.values():
            if not future.done():
                future.set_result(None)
        self._computing.clear()
        try:
            await self._puts.close(changed=self._tally.tokens > 0)
        finally:
            self._publishing.cancel()
            await asyncio.wait([self._publishing])
            await self._publisher.publish()
            self._opened.files.close()
            self._opened.folder.close()
            await self._opened.scheduler.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self.path} was opened by another process, before a fork")
        if self._closing is not None:
            raise ClosedError(f"{self.path} is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(f"{self.path} was opened in another event loop")


def _keys(maker: KeyMaker, ids: npt.NDArray[np.uint32], parts: list[tuple[int, int]]) -> list[tuple[bytes, bytes]]:
    """(key, head) of each part."""
    return [(maker.key(ids[begin:end]), maker.head(ids[begin:end])) for begin, end in parts]
