"""A workload done once, the states that it went through, and the images that a power cut may have left meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from life_deeds import Deed, Deeds
from life_machine import OPTIONS, Difference
from life_model import Domain, Model, Path, Tree, longest
from life_steps import Call, Clear, Insert, Remove, Reopen, Step, Together, Truncate
from life_time import Horizons, WallClock

import sarpstore
from fuzz.crashes.disk import WatchedFolder
from sarpstore import ClosedError
from sarpstore._files import FaultyFolder, MemoryFolder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from random import Random

    from sarpstore import Store
    from sarpstore._files import CrashMode, Fault

__all__ = [
    "CERTAIN",
    "MODES",
    "Answers",
    "Difference",
    "History",
    "Image",
    "Interrupted",
    "Workload",
    "ask",
    "cut_short",
    "digest_of",
]

MODES: Final[tuple[CrashMode, ...]] = ("lose", "keep", "tear", "pages", "junk")
"""Of power cuts. With "kill", too, run 16 of seed 20261130 tells of damage in an index after a kill, an open and a
power cut under durability="never": a fault that is not understood yet."""
CERTAIN: Final = ("lose", "keep", "kill")
"""Modes that leave nothing to chance: one image of each is enough."""
Answers: TypeAlias = tuple[tuple[int, ...], ...]
"""Of each domain's each path, the addresses of the blocks that match."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A step that is cut short after so many turns of the loop: its task is cancelled, or the store is closed."""

    step: Insert | Remove | Truncate | Clear | Call
    turns: int
    by: Literal["cancel", "close"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is done, with which options, and what the medium refuses meanwhile."""

    routing: str
    durability: str
    steps: tuple[Step | Interrupted, ...]
    fault: Fault | None = None

    def __str__(self) -> str:
        return f"{self.routing}, durability {self.durability}, {self.fault}"

    @property
    def options(self) -> dict[str, Any]:
        return OPTIONS | {
            "cache_bytes": 1 << 16,
            "markers_max": 4096,
            "routing": self.routing,
            # So that lists of a few records grow.
            "refine_at": 3,
            "prune_at": 2,
            "durability": self.durability,
        }


@dataclass(slots=True)
class Image:
    """What is found after a power cut, and the numbers of the first and the last state that it may show."""

    folder: MemoryFolder
    first: int
    last: int
    mode: str
    at: int
    """Number of the change after which it was taken."""
    depth: int = 0
    """How many power cuts came during recoveries before."""
    only: Answers | None = None
    """What it has to say, where that is known: a recovery has ended, and said so."""
    never: frozenset[int] = frozenset()
    """States between them that never were: of an operation that was cut short before."""

    @property
    def allowed(self) -> list[int]:
        """Numbers of the states that it may show."""
        return [number for number in range(self.first, self.last + 1) if number not in self.never]


@dataclass
class History:
    """What a workload went through. `live` first."""

    workload: Workload
    clock: WallClock
    log_file_bytes: int
    random: Random
    images_max: int
    """Images of each kind at each change; those that are equal to one before are not kept."""
    modes: tuple[CrashMode, ...] = MODES
    images: list[Image] = field(default_factory=list)
    changes: int = 0
    injected: int = 0
    """How many calls the medium refused."""
    interrupted: Counter[str] = field(default_factory=Counter)
    """Steps that were cut short, by what."""

    def __post_init__(self) -> None:
        self.tree = Tree()
        self.states: list[Model] = [Model(self.tree)]
        self.synced = 0
        """The newest state that no crash can take back."""
        self.options = self.workload.options | {"log_file_bytes": self.log_file_bytes}
        self._seen: set[bytes] = set()
        self._deeds = Deeds(self.tree, self.clock, Horizons(), sarpstore.LOCATION, lossy=False)
        self._expected: dict[int, Answers] = {}
        self._disk = MemoryFolder()
        self._never: frozenset[int] = frozenset()

    # --- doing

    async def live(self) -> None:
        """Do it all. Raises a Difference where the store's answers are not the model's."""
        plan = [self.workload.fault] if self.workload.fault else []
        faulty = FaultyFolder(self._disk, plan)
        folder = WatchedFolder(faulty, self._changed)
        store: Store | None = None
        try:
            store = await self._open(folder)
            for step in self.workload.steps:
                if isinstance(step, Interrupted):
                    store = await self._interrupt(step, folder)
                elif isinstance(step, Reopen):
                    await store.close()
                    self._acknowledge()
                    store = await self._open(folder)
                else:
                    await self._do(step)
        except (sarpstore.StorageError, sarpstore.FailedError):
            if not faulty.injected:
                raise
        finally:
            if store is not None:
                await self._close(store, faulty)
            self.injected = faulty.injected

    async def _open(self, folder: WatchedFolder) -> Store:
        self._disk = self._disk.reopen()
        faulty = folder.inner
        assert isinstance(faulty, FaultyFolder)
        faulty.inner = self._disk
        self._deeds.store = await sarpstore.open(folder, **self.options)
        return self._deeds.store

    @staticmethod
    async def _close(store: Store, faulty: FaultyFolder) -> None:
        try:
            await store.close()
        except sarpstore.SarpError:
            if not faulty.injected:
                raise

    async def _do(self, step: Step) -> None:
        change, *calls = step.steps if isinstance(step, Together) else (step,)
        deed = self._deeds.of(change)
        after, expected = deed.on(self.states[-1])
        # A change of the files while it goes on may show any of the states that come of it.
        self.states += [state for state in after if state is not self.states[-1]]
        others = [self._deeds.of(call).do() for call in calls]
        answer, *_ = await asyncio.gather(self._in_between(deed) if calls else deed.do(), *others)
        if not deed.fits(answer, expected):
            raise Difference(f"{step} answers {answer} where {expected} should be")
        if self.workload.durability == "always" or isinstance(step, Call):
            self._acknowledge()

    async def _interrupt(self, step: Interrupted, folder: WatchedFolder) -> Store:
        """Begin a step and cut it short; what the store says then tells how far it got. The store, or the next one."""
        deed, store, before = self._deeds.of(step.step), self._deeds.store, self.states[-1]
        after, _ = deed.on(before)
        begun = len(self.states)
        self.states += [state for state in after if state is not before]
        self.interrupted[step.by] += await cut_short(as_coroutine(deed.do), step.turns, step.by, store)
        if step.by == "close":
            store = await self._open(folder)
        answers = await ask(store, self.questions)
        shown = [i for i, state in enumerate((before, *after)) if self._answers_of(state) == answers]
        if not shown:
            raise Difference(f"after {step} the store is in no state that the step goes through: {answers}")
        last = shown[-1]
        # Up to now an image could show any of them; from now on those that it did not get to never were.
        reached = begun + sum(state is not before for state in (before, *after)[: 1 + last])
        self._never = self._never.union(range(reached, len(self.states)))
        self.states.append((before, *after)[last])
        if step.by == "close":
            self._acknowledge()
        return store

    async def _in_between(self, deed: Deed) -> Any:
        """Do it while what was started with it is somewhere on its way."""
        for _ in range(self.random.choice([0, 2, 5, 10, 20, 40])):
            await asyncio.sleep(0)
        return await deed.do()

    def _acknowledge(self) -> None:
        self.synced = len(self.states) - 1

    def _changed(self) -> None:
        self.changes += 1
        for mode in self.modes:
            for _ in range(1 if mode in CERTAIN else self.images_max):
                self.take(self._disk, mode, self.synced, len(self.states) - 1)

    def take(self, disk: MemoryFolder, mode: CrashMode, first: int, last: int) -> None:
        """Keep an image, unless it is equal to one that was taken before and has to show the same states."""
        folder = disk.crash(self.random, mode)
        digest = digest_of(folder, f"{mode == 'kill'} {first} {last}")
        if digest not in self._seen:
            self._seen.add(digest)
            self.images.append(Image(folder, first, last, mode, self.changes, never=self._never))

    # --- what it should be

    @property
    def questions(self) -> list[tuple[Domain, list[Path]]]:
        """The longest paths of each domain: what they match tells all that is held."""
        return [(domain, longest(inserted)) for domain, inserted in self._deeds.inserted.items()]

    def expected(self, number: int) -> Answers:
        """What the store says in state `number`."""
        if number not in self._expected:
            self._expected[number] = self._answers_of(self.states[number])
        return self._expected[number]

    def _answers_of(self, state: Model) -> Answers:
        return tuple(tuple(state.match(domain, path)) for domain, paths in self.questions for path in paths)


async def as_coroutine(do: Callable[[], Awaitable[Any]]) -> Any:
    """What a task can be made of."""
    return await do()


async def cut_short(doing: Coroutine[Any, Any, Any], turns: int, by: Literal["cancel", "close"], store: Any) -> bool:
    """Begin something, and after so many turns of the loop cancel it or close the store; whether it was under way."""
    task = asyncio.create_task(doing)
    for _ in range(turns):
        await asyncio.sleep(0)
    under_way = not task.done()
    if by == "cancel":
        task.cancel()
    else:
        await store.close()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), ClosedError):
        await task
    return under_way


async def ask(store: Store, questions: Sequence[tuple[Domain, list[Path]]]) -> Answers:
    """What the store says of each path."""
    found: list[tuple[int, ...]] = []
    for (name, holder), paths in questions:
        if not paths:
            continue
        namespace = store.namespace(name)
        matches = await store.match_many([(namespace, path) for path in paths], holder=holder)
        found += [tuple(match.locations["address"].tolist()) for match in matches]
    return tuple(found)


def digest_of(folder: MemoryFolder, allowed: str) -> bytes:
    """Tells images apart: by what is in them, and by what they have to show."""
    digest = hashlib.blake2b(allowed.encode(), digest_size=12)
    for name in folder.names():
        file = folder.open(name)
        data = bytearray(file.size())
        file.read_into(0, data)
        digest.update(name.encode() + b"\0" + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()
