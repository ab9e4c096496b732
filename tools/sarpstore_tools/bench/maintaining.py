"""The load of `sarpstore bench maintenance`: matches at a fixed rate, at rest and beside all maintenance."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from sarpstore_tools.bench.arrivals import arrive
from sarpstore_tools.bench.shapes import Ids, locations_of, random_ids, wrong_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    import sarpstore
    from sarpstore_tools.bench.loop import Holds

REST, WRITING, MAINTAINING = WHEN = ("at rest", "writing", "maintaining")
"""Kinds of phases: nothing but matches; sequences replaced beside; and all maintenance beside that."""
KINDS: Final = {"one window": 64, "16 windows": 1024}
"""What is matched, and how many blocks that is."""
LONG_SHARE: Final = 0.2
"""How many of the matches are of 16 windows."""
CHECKED_SHARE: Final = 1 / 16
"""How many answers are compared throughout, ids and locations; of all others, the length."""
CLOSED_TASKS: Final = 32
CHECKPOINT_EVERY_S: Final = 0.5
COMPACT_EVERY_S: Final = 1.0
REWRITE_EVERY_S: Final = 0.01
QUIET_S: Final = 0.5
QUIET_S_MAX: Final = 60.0
COUNTERS: Final = ("checkpoints", "mark_passes", "compacted_files", "copied_bytes")
"""What tells that maintenance ran."""
FAILURES_MAX: Final = 10


class Phase(msgspec.Struct, kw_only=True):
    """What was seen in one phase: latencies in ms by kind, the longest hold of the loop and all that were over its
    target (ms, what), how much maintenance there was, where pages came from, how many matches were not
    answered when the last one had arrived, and how much of a core the loop's thread used.
    """

    when: str
    ms: dict[str, list[float]]
    longest_hold_ms: float
    holds_over: list[tuple[float, str]]
    maintenance: dict[str, int]
    reads: int
    cache_hits: int
    unanswered: int
    core_share: float


class Load:
    """Sequences that a store holds, and everything that is done with them. `fill` first."""

    def __init__(self, blocks: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[str, list[Ids | None]] = {
            kind: [None] * max(2, blocks // len(KINDS) // length) for kind, length in KINDS.items()
        }
        self._latencies: dict[str, list[float]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self.failures: list[str] = []

    def use(self, store: sarpstore.Store) -> None:
        """Speak to this store from now on."""
        self._store = store
        self._namespace = store.namespace("bench")

    async def fill(self) -> None:
        """Insert all sequences, those of one kind among those of the other."""
        slots = [(kind, slot) for kind, pool in self._pools.items() for slot in range(len(pool))]
        for i in self._rng.permutation(len(slots)).tolist():
            await self._insert(*slots[i])
            await asyncio.sleep(0)

    async def closed_loop(self, seconds: float) -> float:
        """Matches a second when each of 32 tasks asks as soon as it has its answer."""
        self._latencies = {kind: [] for kind in KINDS}
        stop = time.perf_counter() + seconds

        async def ask_on() -> None:
            while time.perf_counter() < stop:
                await self._ask(time.perf_counter_ns())
                await asyncio.sleep(0)

        await asyncio.gather(*(ask_on() for _ in range(CLOSED_TASKS)))
        return sum(map(len, self._latencies.values())) / seconds

    async def replace(self, blocks: int) -> None:
        """Replace sequences of so many blocks together, at once: that is what there is to compact."""
        done = 0
        while done < blocks:
            done += await self.rewrite()
            await asyncio.sleep(0)

    async def phase(self, rate: float, seconds: float, holds: Holds, when: str = REST, rewritten: float = 0) -> Phase:
        """Ask at that rate for so long, and beside replace so many blocks a second, if it is not at rest."""
        self._latencies = {kind: [] for kind in KINDS}
        before = self._store.stats()
        beside = _Beside(self, when, rewritten) if when != REST else None
        holds.ms.clear()
        await asyncio.sleep(0)  # what led here is not of this phase, nor is giving up a hundred thousand figures
        holds.ms.clear()
        holds.longest.clear()
        began, worked = time.perf_counter(), time.thread_time()
        await arrive(rate, seconds, self._start)
        core_share = (time.thread_time() - worked) / (time.perf_counter() - began)
        unanswered, after = len(self._asking), self._store.stats()
        longest_hold_ms, over = max(holds.ms, default=0.0), holds.longest.copy()
        while self._asking:
            await asyncio.wait(self._asking)
        latencies = self._latencies
        if beside is not None:
            await beside.stop()
            await self._until_quiet()
        return Phase(
            when=when,
            ms=latencies,
            longest_hold_ms=longest_hold_ms,
            holds_over=over,
            maintenance={name: getattr(after, name) - getattr(before, name) for name in COUNTERS},
            reads=after.reads - before.reads,
            cache_hits=after.cache_hits - before.cache_hits,
            unanswered=unanswered,
            core_share=core_share,
        )

    async def rewrite(self) -> int:
        """Remove a sequence, insert another in its place; returns its blocks."""
        kind = self._any_kind()
        pool = self._pools[kind]
        slot = int(self._rng.integers(len(pool)))
        ids = pool[slot]
        if ids is None:
            return 0
        pool[slot] = None  # from now on nobody asks for it, and who has asked may find less
        await self._namespace.remove_ids(np.ascontiguousarray(ids[::-1]))
        await asyncio.sleep(0)
        await self._insert(kind, slot)
        return len(ids)

    async def checkpoint(self) -> None:
        """Write a checkpoint."""
        await self._store.checkpoint()

    async def compact(self) -> None:
        """Compact what there is to compact."""
        await self._store.compact()

    async def _insert(self, kind: str, slot: int) -> None:
        ids = random_ids(self._rng, KINDS[kind])
        await self._namespace.insert_ids(ids, locations_of(ids))
        self._pools[kind][slot] = ids

    async def _until_quiet(self) -> None:
        """Wait until no maintenance has run for half a second."""
        await self._store.sync()
        await self._store.checkpoint()
        seen, since, began = None, time.monotonic(), time.monotonic()
        while time.monotonic() - since < QUIET_S and time.monotonic() - began < QUIET_S_MAX:
            await asyncio.sleep(QUIET_S / 10)
            stats = self._store.stats()
            now = [getattr(stats, name) for name in COUNTERS]
            if now != seen:
                seen, since = now, time.monotonic()

    def _any_kind(self) -> str:
        short, long = KINDS
        return long if self._rng.random() < LONG_SHARE else short

    def _start(self, due: int) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(due))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, due: int) -> None:
        """Match something that is held; its latency runs from when it was due."""
        kind = self._any_kind()
        pool = self._pools[kind]
        while (ids := pool[slot := int(self._rng.integers(len(pool)))]) is None:
            pass
        match = await self._namespace.match_ids(ids)
        self._latencies[kind].append((time.perf_counter_ns() - due) / 1e6)
        if pool[slot] is ids:
            self._check(match, ids)

    def _check(self, match: Any, ids: Ids) -> None:
        wrong = "" if match.blocks == len(ids) else f"{match.blocks} blocks match of {len(ids)} that are held"
        if not wrong and self._rng.random() < CHECKED_SHARE:
            wrong = wrong_answer(match, ids, len(ids), len(ids))
        if wrong and len(self.failures) < FAILURES_MAX:
            self.failures.append(wrong)


class _Beside:
    """Tasks that replace so many blocks a second, and while maintaining checkpoint and compact, until stopped."""

    def __init__(self, load: Load, when: str, rewritten: float) -> None:
        self._over = False
        self._rewritten = rewritten
        self._load = load
        work = [self._rewrite()]
        if when == MAINTAINING:
            work += [self._again(load.checkpoint, CHECKPOINT_EVERY_S), self._again(load.compact, COMPACT_EVERY_S)]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        """Let what has begun end."""
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _again(self, work: Callable[[], Any], pause: float) -> None:
        while not self._over:
            await work()
            await asyncio.sleep(pause)

    async def _rewrite(self) -> None:
        began, done = time.monotonic(), 0
        while not self._over:
            while not self._over and done < (time.monotonic() - began) * self._rewritten:
                done += await self._load.rewrite()
                await asyncio.sleep(0)
            await asyncio.sleep(REWRITE_EVERY_S)
