"""Chunk stores and power cuts: workloads of prompts, and the images that a power cut may have left meanwhile.

Documents are numbers: a number's tokens are always the same, and a chunk's KV follows from its key, so whatever is
loaded says whether it is what was put. An image may hold whatever was begun to be put until then, and has to hold what
was acknowledged and had not been evicted. The engine says what it has evicted; that this is no more than it counts, and
only where the store is full, is checked after each step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from chunk_helpers import END, check_loaded, document, kv_of, prompt

import sarpstore
from fuzz.crashes.disk import WatchedFolder
from fuzz.crashes.draw import random_fault
from fuzz.crashes.history import CERTAIN, MODES, Difference, cut_short, digest_of
from sarpstore._files import FaultyFolder, MemoryFolder

if TYPE_CHECKING:
    from random import Random

    from sarpstore import Chunks
    from sarpstore._files import Fault, Folder

__all__ = ["ChunkHistory", "ChunkImage", "ChunkWorkload", "open_on", "random_chunk_workload", "tokens_of"]

LAYOUT: Final = sarpstore.KVLayout(layers=1, kv_heads=1, head_dim=16, rope=sarpstore.Rope(theta=100.0))
REGION_BYTES: Final = 1 << 16
REGIONS: Final = (3, 5, 8)
METADATA_BYTES: Final = 1 << 18
_TOKENS: Final = (5, 40, 60, 130, 300, 700, 1500)
"""Of documents: from one page of payload to some that span regions."""
DOCUMENTS: Final = 30
_STEPS_MAX: Final = 12
_FAULT_SHARE: Final = 0.3
_INTERRUPTED_SHARE: Final = 0.15
_TOGETHER_SHARE: Final = 0.25
_REOPEN_SHARE: Final = 0.1
_TURNS: Final = (1, 2, 3, 5, 8, 13, 21, 34)


# --- workloads


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: what is held of these documents is loaded, the rest is put."""

    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """Requests at one time."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class CutShort:
    """A request whose task is cancelled, or whose store is closed, after so many turns of the loop."""

    prompt: Prompt
    turns: int
    by: Literal["cancel", "close"]


@dataclass(frozen=True, slots=True)
class ReopenWith:
    """The store is closed and opened again with a bound of so many regions."""

    regions: int


ChunkStep: TypeAlias = Prompt | Beside | CutShort | ReopenWith


@dataclass(frozen=True, slots=True)
class ChunkWorkload:
    """What is done, and what the medium refuses meanwhile."""

    regions: int
    steps: tuple[ChunkStep, ...]
    fault: Fault | None = None

    def __str__(self) -> str:
        return f"chunk store of {self.regions} regions, {self.fault}"


def random_chunk_workload(random: Random) -> ChunkWorkload:
    fault = random_fault(random) if random.random() < _FAULT_SHARE else None
    steps = [_random_step(random, interrupts=fault is None) for _ in range(random.randint(2, _STEPS_MAX))]
    return ChunkWorkload(random.choice(REGIONS), tuple(steps), fault)


def _random_step(random: Random, *, interrupts: bool) -> ChunkStep:
    if random.random() < _REOPEN_SHARE:
        return ReopenWith(random.choice(REGIONS))
    if random.random() < _TOGETHER_SHARE:
        return Beside(tuple(_random_prompt(random) for _ in range(2)))
    if interrupts and random.random() < _INTERRUPTED_SHARE:
        return CutShort(_random_prompt(random), random.choice(_TURNS), random.choice(["cancel", "close"]))
    return _random_prompt(random)


def _random_prompt(random: Random) -> Prompt:
    # Some documents are asked for often, most seldom.
    return Prompt(tuple(int(DOCUMENTS * random.random() ** 2) for _ in range(random.randint(1, 4))))


def tokens_of(number: int) -> list[int]:
    """The tokens of a document, the same each time."""
    return document(number, _TOKENS[number * 5 % len(_TOKENS)])


# --- living


@dataclass(slots=True)
class ChunkImage:
    """What is found after a power cut: documents that it has to hold, and those that it may."""

    folder: MemoryFolder
    must: frozenset[int]
    may: frozenset[int]
    mode: str
    at: int
    depth: int = 0


@dataclass
class ChunkHistory:
    """What a workload went through. `live` first."""

    workload: ChunkWorkload
    random: Random
    images_max: int
    images: list[ChunkImage] = field(default_factory=list)
    changes: int = 0
    injected: int = 0
    interrupted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.begun: set[int] = set()
        self._acknowledged: dict[int, bytes] = {}
        """Documents and their keys."""
        self._before: frozenset[int] = frozenset()
        self._chunks: Chunks | None = None
        self._regions = self.workload.regions
        self._disk = MemoryFolder()
        self._seen: set[bytes] = set()

    async def live(self) -> None:
        """Do it all. Raises a Difference where something is lost that was not evicted, or is not what was put."""
        faulty = FaultyFolder(self._disk, [self.workload.fault] if self.workload.fault else [])
        folder = WatchedFolder(faulty, self._changed)
        try:
            chunks = await self._open(folder)
            for step in self.workload.steps:
                chunks = await self._do(step, chunks, folder)
                await self._check_evictions(chunks)
        except (sarpstore.StorageError, sarpstore.FailedError):
            if not faulty.injected:
                raise
        finally:
            self.injected = faulty.injected
            if self._chunks is not None:
                await self._close(self._chunks, faulty)

    async def _open(self, folder: WatchedFolder) -> Chunks:
        self._before, self._chunks = self._held(), None
        self._disk = self._disk.reopen()
        faulty = folder.inner
        assert isinstance(faulty, FaultyFolder)
        faulty.inner = self._disk
        self._evicted = 0
        self._chunks = await open_on(folder, self._regions)
        return self._chunks

    @staticmethod
    async def _close(chunks: Chunks, faulty: FaultyFolder) -> None:
        try:
            await chunks.close()
        except sarpstore.SarpError:
            if not faulty.injected:
                raise

    async def _do(self, step: ChunkStep, chunks: Chunks, folder: WatchedFolder) -> Chunks:
        if isinstance(step, ReopenWith):
            await chunks.close()
            self._regions = step.regions
            return await self._open(folder)
        if isinstance(step, CutShort):
            return await self._cut_short(step, chunks, folder)
        prompts = step.prompts if isinstance(step, Beside) else (step,)
        for result in await asyncio.gather(*(self._ask(chunks, each) for each in prompts), return_exceptions=True):
            if result is not None:
                raise result
        return chunks

    async def _cut_short(self, step: CutShort, chunks: Chunks, folder: WatchedFolder) -> Chunks:
        self.interrupted[step.by] += await cut_short(self._ask(chunks, step.prompt), step.turns, step.by, chunks)
        return await self._open(folder) if step.by == "close" else chunks

    async def _ask(self, chunks: Chunks, asked: Prompt) -> None:
        """Load what is held of a prompt, and put the rest."""
        with await chunks.plan(prompt(*map(tokens_of, asked.documents))) as plan:
            check_loaded(plan, await chunks.load(plan), LAYOUT)
            for number, span in zip(asked.documents, plan.spans, strict=False):
                if span.hit or span.why == "in flight":
                    continue
                self.begun.add(number)
                if await chunks.put(span, *kv_of(span, LAYOUT)):
                    self._acknowledged[number] = span.key

    def _held(self) -> frozenset[int]:
        """What was acknowledged, and has not been evicted since."""
        if self._chunks is None:
            return self._before
        held = self._chunks._held
        return frozenset(number for number, key in self._acknowledged.items() if key in held)

    async def _check_evictions(self, chunks: Chunks) -> None:
        """What is not held any more was evicted, and counted."""
        await chunks._puts.restored()
        gone = self._before - self._held()
        stats = chunks.stats()
        if len(gone) > stats.evicted_chunks - self._evicted:
            raise Difference(f"documents {sorted(gone)} are gone, {stats.evicted_chunks - self._evicted} were evicted")
        if stats.disk_bytes > stats.bytes_max:
            raise Difference(f"{stats.disk_bytes} bytes are used, above the bound of {stats.bytes_max}")
        self._evicted, self._before = stats.evicted_chunks, self._held()

    def _changed(self) -> None:
        self.changes += 1
        must, may = self._held(), frozenset(self.begun)
        for mode in (*MODES, "kill"):
            for _ in range(1 if mode in CERTAIN else self.images_max):
                folder = self._disk.crash(self.random, mode)
                digest = digest_of(folder, f"{mode == 'kill'} {sorted(must)} {sorted(may)}")
                if digest not in self._seen:
                    self._seen.add(digest)
                    self.images.append(ChunkImage(folder, must, may, mode, self.changes))


def open_on(folder: Folder, regions: int) -> Any:
    """Open the store of a workload, or of an image, under a bound of so many regions."""
    return sarpstore.open_chunks(
        folder,
        layout=LAYOUT,
        fingerprint=b"a model",
        delimiters=(END,),
        bytes_max=regions * REGION_BYTES + METADATA_BYTES,
        region_bytes=REGION_BYTES,
        io="threads",
    )
