"""A store's life beside the model's: each step is done to both, and their answers must be the same.

What a power cut leaves, and in which order concurrent steps took effect, only the store knows: the machine goes on with
every past that agrees with all answers so far. No past left is a difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pytest
from life_backend import LoopBackend, QuietLoop
from life_folder import CutFolder
from life_model import Domain, Model, Path, Tree
from life_steps import (
    BLOCKS_MAX,
    DOMAINS,
    PATHS,
    Call,
    Clear,
    Crash,
    Estimate,
    Fork,
    Heads,
    Insert,
    Match,
    MatchHolders,
    MatchMany,
    Remove,
    Reopen,
    Setup,
    Step,
    Together,
    Truncate,
)
from store_helpers import locations, names_of, remove_checkpoints, small_files

import sarpstore
from sarpstore import _format as fmt
from sarpstore._engine import matcher, state
from sarpstore._files import MemoryFolder
from sarpstore._log import header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sarpstore import Namespace, Store

OPTIONS: Final = {
    "block_tokens": 1,
    "hash": "mmh3",
    "io": "threads",
    "exact": True,
    "directory_bytes_max": 4 << 20,
    "holders_max": 8,
    "counts_max": 1024,
    "queue_depth": 8,
}
SECONDS_MAX: Final = 60
"""A life that takes longer hangs."""
PATTERNS: Final = [tuple(Random(symbol).choices([0, 1], k=BLOCKS_MAX)) for symbol in range(3)]

Past: TypeAlias = tuple[Model, ...]
"""States in their order: the last is now, the first the one that survives whatever happens."""


class Difference(AssertionError):  # noqa: N818 - it is no error of the program
    """The store's answer is none that the model allows."""


@dataclass(frozen=True)
class Deed:
    """A step as it is done to the store, and to a model: the states that come after it, and the answer expected."""

    do: Callable[[], Awaitable[Any]]
    on: Callable[[Model], tuple[Sequence[Model], Any]]
    fits: Callable[[Any, Any], bool] = operator.eq
    """Whether an answer (the first argument) is what is expected."""


class Life:
    """One store, through openings and crashes."""

    def __init__(self, setup: Setup, log_file_bytes: int) -> None:
        self.counts: Counter[str] = Counter()
        self._setup = setup
        self._options = OPTIONS | setup.options | {"log_file_bytes": log_file_bytes}
        self._is_lossy = setup.bytes_max is not None
        self._tree = Tree()
        self._pasts: list[Past] = [(Model(self._tree),)]
        self._folder = CutFolder(MemoryFolder())
        self._store: Store
        self._paths: list[Path] = [()]
        self._offered: set[tuple[Domain, int, int]] = set()
        self._ids: dict[tuple[str, Path], Any] = {}
        self._inserted: dict[Domain, dict[Path, None]] = {domain: {} for domain in DOMAINS}
        self._address = 1

    async def live(self, steps: Sequence[Step]) -> None:
        """All steps, and then once more through every way of opening. Raises a Difference."""
        await self._open()
        try:
            for step in steps:
                self.counts[type(step).__name__] += 1
                await self._take(step)
            await self._check_all()
            await self._take(Reopen("none"))
        finally:
            with contextlib.suppress(sarpstore.SarpError):
                await self._store.close()

    async def _take(self, step: Step) -> None:
        if isinstance(step, Reopen):
            await self._store.close()
            self._pasts = _distinct([past[-1:] for past in self._pasts])
            await self._open_again(self._folder.inner, step.heads)
        elif isinstance(step, Crash):
            await self._crash(step)
        else:
            await self._do(step)
            self._acknowledge(step)

    # --- opening

    async def _open(self) -> None:
        self._store = await sarpstore.open(self._folder, **self._options)

    async def _open_again(self, folder: MemoryFolder, heads: Heads) -> None:
        self._folder = CutFolder(folder.reopen())
        _leave(self._folder.inner, heads)
        await self._open()
        await self._check_all()

    async def _crash(self, step: Crash) -> None:
        before = self._pasts
        self._folder.cut_after(step.writes, step.seed, step.mode)
        await self._do(step.during)
        image = self._folder.cut_now()
        with contextlib.suppress(sarpstore.SarpError):
            await self._store.close()
        states = {id(each): each for past in (*before, *self._pasts) for each in past}
        self._pasts = _distinct([(each,) for each in states.values()])
        await self._open_again(image, step.heads)

    # --- doing

    async def _do(self, step: Step) -> None:
        """Do it to the store, and keep the pasts that agree with its answers."""
        steps = step.steps if isinstance(step, Together) else (step,)
        deeds = [self._deed(each) for each in steps]
        answers = await asyncio.gather(*(deed.do() for deed in deeds))
        pasts = [
            after
            for past in self._pasts
            for order in permutations(range(len(deeds)))
            if (after := _past_after(past, [(deeds[i], answers[i]) for i in order]))
        ]
        if not pasts:
            expected = [deed.on(past[-1])[1] for past in self._pasts for deed in deeds]
            raise Difference(f"{step}: {answers} where {expected} should be")
        self._pasts = _distinct(pasts)

    def _acknowledge(self, step: Step) -> None:
        """Forget what no crash can bring back."""
        if self._setup.durability == "always" or isinstance(step, Call):
            self._pasts = _distinct([past[-1:] for past in self._pasts])

    def _deed(self, step: Step) -> Deed:
        match step:
            case Insert():
                return self._insert(step)
            case Match(domain, path, located):
                return self._match(DOMAINS[domain], self._path(path), located=located)
            case Estimate(domain, path):
                return self._estimate(DOMAINS[domain], self._path(path))
            case MatchMany(domain, located):
                return self._match_many(DOMAINS[domain], self._paths, located=located)
            case MatchHolders(path):
                return self._match_holders(self._path(path))
            case Remove():
                return self._remove(step)
            case Truncate(domain, fork, blocks):
                path, (namespace, holder) = self._path(fork), self._place(DOMAINS[domain])
                return Deed(
                    lambda: namespace.truncate(path, blocks=blocks, holder=holder),
                    lambda model: (model.truncate(DOMAINS[domain], path, blocks), None),
                )
            case Clear(holder):
                return Deed(lambda: self._store.clear_holder(holder), lambda model: (model.clear(holder), None))
            case Call(name):
                call = self._mark_pass if name == "mark_pass" else getattr(self._store, name)
                return Deed(call, lambda _: ((), None))
        raise AssertionError(step)

    async def _mark_pass(self) -> None:
        """What otherwise comes when it is due."""
        maintenance = self._store._background.maintenance
        async with maintenance._one_at_a_time:
            await maintenance._mark_pass()

    def _insert(self, step: Insert) -> Deed:
        domain, path, address = DOMAINS[step.domain], self._path(step.path), self._address
        counted = step.counted and not self._is_lossy
        self._address += len(path)
        self._note(domain, path)
        if self._is_lossy:
            self._offered.update((domain, block, address + at) for at, block in enumerate(self._tree.blocks(path)))
        namespace, holder = self._place(domain)
        rows = locations(len(path), address)
        ids = self._ids_of(domain, path)
        return Deed(
            lambda: namespace.insert_ids(ids, rows, holder=holder, counted=counted),
            lambda model: model.insert(domain, path, address, counted=counted),
            operator.ge if self._is_lossy else operator.eq,
        )

    def _remove(self, step: Remove) -> Deed:
        domain, path = DOMAINS[step.domain], self._path(step.path)
        namespace, holder = self._place(domain)
        places = [place % len(path) for place in step.places] if path else []
        ids = self._ids_of(domain, path)[places]
        blocks = [self._tree.blocks(path)[place] for place in places]
        if step.unknown:
            ids, blocks = np.concatenate([ids, np.full((1, 16), 0xA5, np.uint8)]), [*blocks, 0]

        def fits(removed: Any, expected: Any) -> bool:
            return removed in (0, len(blocks)) if expected is None else removed == expected

        return Deed(lambda: namespace.remove_ids(ids, holder=holder), lambda model: model.remove(domain, blocks), fits)

    # --- asking

    def _match(self, domain: Domain, path: Path, *, located: bool) -> Deed:
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            match = await namespace.match_ids(self._ids_of(domain, path), locations=located, holder=holder)
            return match.locations["address"].tolist() if located else match.blocks

        def on(model: Model) -> tuple[tuple[()], Any]:
            held = model.match(domain, path)
            return (), held if located else len(held)

        return Deed(ask, on, lambda found, expected: self._fits(domain, path, found, expected))

    def _estimate(self, domain: Domain, path: Path) -> Deed:
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            least, most = namespace.estimate(path, holder=holder)
            blocks = (await namespace.match(path, locations=False, holder=holder)).blocks
            assert least <= blocks <= most <= len(path)
            return blocks

        def on(model: Model) -> tuple[tuple[()], Any]:
            return (), len(model.match(domain, path))

        return Deed(ask, on, lambda found, expected: self._fits(domain, path, found, expected))

    def _match_many(self, domain: Domain, paths: Sequence[Path], *, located: bool) -> Deed:
        paths = list(paths)
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            queries = [(namespace, self._ids_of(domain, path)) for path in paths]
            found = await self._store.match_many_ids(queries, locations=located, holder=holder)
            return [match.locations["address"].tolist() if located else match.blocks for match in found]

        def on(model: Model) -> tuple[tuple[()], Any]:
            held = [model.match(domain, path) for path in paths]
            return (), held if located else list(map(len, held))

        def fits(found: Any, expected: Any) -> bool:
            return found == expected or all(map(partial(self._fits, domain), paths, found, expected))

        return Deed(ask, on, fits)

    def _match_holders(self, path: Path) -> Deed:
        namespace, _ = self._place(DOMAINS[0])

        async def ask() -> Any:
            found = await namespace.match_holders(path)
            bounds = await namespace.match_holders(path, exact=False)
            assert all(bounds[holder][0] <= blocks <= bounds[holder][1] for holder, blocks in found.items())
            return found

        def fits(found: dict[int, int], expected: dict[int, int]) -> bool:
            return found == expected or (
                self._is_lossy and all(blocks <= expected.get(holder, 0) for holder, blocks in found.items())
            )

        return Deed(ask, lambda model: ((), model.holders(DOMAINS[0][0], path)), fits)

    def _fits(self, domain: Domain, path: Path, found: Any, expected: Any) -> bool:
        """Whether blocks, or the addresses of blocks, are as expected; where some were evicted: no more, and no others.

        What was evicted and is inserted again is where it was offered then.
        """
        if not self._is_lossy:
            return bool(found == expected)
        if isinstance(found, int):
            return bool(found <= expected)
        blocks = self._tree.blocks(path)
        return len(found) <= len(expected) and all(
            first <= address and (domain, block, address) in self._offered
            for block, address, first in zip(blocks, found, expected, strict=False)
        )

    async def _check_all(self) -> None:
        """Ask for everything that was ever inserted."""
        for domain, inserted in self._inserted.items():
            paths = [path for path in inserted if self._tree.is_leaf(path)]
            paths += self._paths
            deed = self._match_many(domain, paths, located=True)
            answer = await deed.do()
            pasts = [past for past in self._pasts if deed.fits(answer, deed.on(past[-1])[1])]
            if not pasts:
                raise Difference(f"{domain}, opened again: {self._first_unlike(domain, answer, deed, paths)}")
            self._pasts = pasts
        damaged = self._store.stats().damaged_records
        if damaged:
            raise Difference(f"{damaged} records are damaged")

    def _first_unlike(self, domain: Domain, answer: Any, deed: Deed, paths: Sequence[Path]) -> str:
        """The first answer that is not what the newest state expects."""
        expected = deed.on(self._pasts[-1][-1])[1]
        at = next(at for at, found in enumerate(answer) if not self._fits(domain, paths[at], found, expected[at]))
        return f"{_text(paths[at])} matches {answer[at]} where {expected[at]} should be"

    # --- what steps speak of

    def _path(self, fork: Fork) -> Path:
        kept = self._paths[fork.base % len(self._paths)][: fork.cut]
        return (kept + PATTERNS[fork.symbol][: fork.tail])[:BLOCKS_MAX]

    def _note(self, domain: Domain, path: Path) -> None:
        """Later steps may speak of this path."""
        self._inserted[domain][path] = None
        if path not in self._paths:
            self._paths = [*self._paths[-(PATHS - 1) :], path]

    def _ids_of(self, domain: Domain, path: Path) -> Any:
        key = domain[0], path
        if key not in self._ids:
            self._ids[key] = self._store.namespace(domain[0]).block_ids(path)
        return self._ids[key]

    def _place(self, domain: Domain) -> tuple[Namespace, int]:
        return self._store.namespace(domain[0]), domain[1]


def _past_after(past: Past, done: Sequence[tuple[Deed, Any]]) -> Past | None:
    """A past after deeds in this order; None if their answers say that it was not so."""
    for deed, answer in done:
        states, expected = deed.on(past[-1])
        if not deed.fits(answer, expected):
            return None
        past = (*past, *(state for state in states if state is not past[-1]))
    return past


def _distinct(pasts: Sequence[Past]) -> list[Past]:
    """Each past once."""
    found: list[Past] = []
    for past in pasts:
        if past not in found:
            found.append(past)
    return found


def live(setup: Setup, steps: Sequence[Step], seed: int = 0) -> Counter[str]:
    """Live a life, from which the same seed makes the same again; how many steps of each kind it took."""
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=QuietLoop) as runner:
        patch.setattr(header, "secrets", SimpleNamespace(token_bytes=random.randbytes))
        patch.setattr(state, "choose_backend", lambda *_: LoopBackend(random))
        patch.setattr(matcher, "monotonic_ms", lambda: runner.get_loop().time() * 1e3)
        life = Life(setup, small_files(patch))
        runner.run(asyncio.wait_for(life.live(steps), SECONDS_MAX))
    return life.counts


def _text(path: Path) -> str:
    return "".join(map(str, path))


def _leave(folder: MemoryFolder, heads: Heads) -> None:
    """Remove the checkpoints that are not to be left."""
    if heads == "none":
        remove_checkpoints(folder)
    elif heads == "older" and len(found := names_of(folder, fmt.CHECKPOINT_SUFFIX)) > 1:
        folder.remove(found[-1])
        folder.sync()
