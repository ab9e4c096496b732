"""What the steps of a life do to a store, what its answers say of it, and what a model expects."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from life_model import UNKNOWN, Domain, Model, News, Path, Tree
from life_steps import (
    BLOCKS_MAX,
    DOMAINS,
    PATHS,
    Call,
    Clear,
    Estimate,
    Fork,
    Insert,
    Match,
    MatchHolders,
    MatchMany,
    Remove,
    SetTtl,
    Step,
    Truncate,
    Wait,
)
from store_helpers import locations

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from life_time import Horizons, WallClock

    from sarpstore import Namespace, Store

PATTERNS: Final = [tuple(Random(symbol).choices([0, 1], k=BLOCKS_MAX)) for symbol in range(3)]
# A time to live is looked at ten times a second, and where the log stands is noted four times.
NOTED_S: Final = 0.4
REFUSED: Final = "no room"
"""The answer of a call that the disk's bound leaves no room for."""


@dataclass(frozen=True)
class Doubt:
    """What a store may have lost by itself while a step was done."""

    evicts: bool = False
    """What was not seen since the last eviction may have been evicted."""
    evicted: bool = False
    """Something was, during the step."""
    reopened: bool = False
    """Another process may have evicted it, and this one have found a part of it again."""
    patchy: bool = False
    """A process before this one had evicted something, of which this one may have found a part."""
    expired: Callable[[Domain], float] | None = None
    """Up to when what was inserted may have expired; None: nothing does."""

    @property
    def any(self) -> bool:
        return self.evicts or self.expired is not None

    def follow(
        self, model: Model, domain: Domain, answers: Iterable[tuple[Path, Answer]], offered: int | None = None
    ) -> Model | None:
        """The model as it must be where so many blocks of paths, or blocks at these addresses, were found.

        `offered`: where a path is inserted that was found so. None if the model can't be so. Each answer is looked at
        alone: what one found may be evicted before the next.
        """
        news = News()
        for path, answer in answers:
            if not self._read(model, domain, path, answer, news):
                return None
            if offered is not None and news.masked:
                offers = dict(zip(model.tree.blocks(path), count(offered), strict=False))
                news.also = {block: offers[block] for block in news.masked}
        after = model.learned(domain, news)
        if after.held.get(domain, {}).keys() >= set(news.found):
            return after
        if not (self.reopened or self.evicted or self.expired):
            return None
        # Of what was evicted, a crash may bring back what is behind its checkpoint's start, and not what that stood on;
        # of what had expired for the process before, what that has not met.
        lost = model.tree.behind(news.missing).intersection(model.held[domain])
        news.missing = []
        return model.learned(domain, news).loosened(domain, lost)

    def _read(self, model: Model, domain: Domain, path: Path, answer: Answer, news: News) -> bool:
        """Add what an answer says; False if it can't be right."""
        blocks, held = model.tree.blocks(path), model.match(domain, path)
        found = answer if isinstance(answer, int) else len(answer)
        if found > len(held):
            return False
        if found < len(held):
            if not model.loose.get(domain, {}).keys().isdisjoint(blocks[: found + 1]):
                # What came back may stand before what was inserted when it was gone, for as long as it lives.
                news.masked += blocks[found:]
            elif self._may_miss(model, domain, blocks, found):
                news.missing.append(blocks[found])
            else:
                return False
        if not isinstance(answer, int) and answer != held[:found]:
            loose = model.loose.get(domain, {})
            for block, address, known in zip(blocks, answer, held, strict=False):
                if address != known:
                    if address not in loose.get(block, ()):
                        return False
                    news.moved[block] = address
        news.found += blocks[:found]
        if self.evicts and not self.evicted:
            news.seen += blocks[:found]
        return True

    def _may_miss(self, model: Model, domain: Domain, blocks: list[int], at: int) -> bool:
        if self.evicts and blocks[at] not in model.sure.get(domain, ()):
            return True
        if self.patchy and (domain, blocks[at]) in model.tree.shortened:
            return True
        if self.expired is None:
            return False
        earliest, _ = model.born[domain][blocks[0]]
        return (at == 0 or earliest == UNKNOWN) and earliest < self.expired(domain)


CERTAIN: Final = Doubt()

Answer: TypeAlias = "int | list[int]"
Follow: TypeAlias = "Callable[[Model, Any, Doubt], Model | None]"


@dataclass(frozen=True)
class Deed:
    """A step as it is done to the store, and to a model: the states that come after it, and the answer expected."""

    do: Callable[[], Awaitable[Any]]
    on: Callable[[Model], tuple[Sequence[Model], Any]]
    fits: Callable[[Any, Any], bool] = operator.eq
    """Whether an answer (the first argument) is what is expected."""
    follow: Follow | None = None
    """What an answer says of what the store lost by itself."""
    holds: tuple[Domain, Path] | None = None
    """What is held when it is done."""

    def past_after(self, past: tuple[Model, ...], answer: Any, doubt: Doubt) -> tuple[Model, ...] | None:
        """The past with this deed at its end; None if the answer says that it was not so."""
        if isinstance(answer, str) and answer == REFUSED:
            return past
        if self.follow is not None and doubt.any:
            model = self.follow(past[-1], answer, doubt)
            if model is None:
                return None
            past = (*past[:-1], model)
            states, _ = self.on(model)
            if self.holds is not None and doubt.evicts and not doubt.evicted:
                domain, path = self.holds
                states = [state.learned(domain, News(seen=state.tree.blocks(path))) for state in states or [model]]
        else:
            states, expected = self.on(past[-1])
            if not self.fits(answer, expected):
                return None
        return (*past, *(state for state in states if state is not past[-1]))


class Deeds:
    """The deeds of one life, and the paths that it speaks of. `store` is the one that is open now."""

    def __init__(
        self, tree: Tree, clock: WallClock, horizons: Horizons, location_dtype: np.dtype[Any], *, lossy: bool
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.store: Store
        self.paths: list[Path] = [()]
        self.inserted: dict[Domain, dict[Path, None]] = {domain: {} for domain in DOMAINS}
        self._lossy = lossy
        self._tree = tree
        self._clock = clock
        self._horizons = horizons
        self._dtype = location_dtype
        self._ids: dict[tuple[str, Path], Any] = {}
        self._address = 1
        self._poured = 0

    def of(self, step: Step) -> Deed:
        match step:
            case Insert() | Remove() | Truncate() | Clear():
                return self._change(step)
            case Match(domain, path, located):
                return self._match(DOMAINS[domain], self._path(path), located=located)
            case Estimate(domain, path):
                return self._estimate(DOMAINS[domain], self._path(path))
            case MatchMany(domain, located):
                return self.match_many(DOMAINS[domain], self.paths, located=located)
            case MatchHolders(path):
                return self._match_holders(self._path(path))
            case Wait(seconds):
                return Deed(lambda: self._wait(seconds), lambda _: ((), None))
            case SetTtl():
                return Deed(lambda: self._set_ttl(step), lambda _: ((), None))
            case Call(name):
                own = {"mark_pass": self._mark_pass, "squeeze": self._squeeze}
                call = own.get(name) or getattr(self.store, name)
                return Deed(self._bounded(call), lambda _: ((), None))
        raise AssertionError(step)

    def _change(self, step: Insert | Remove | Truncate | Clear) -> Deed:
        match step:
            case Insert(domain, path, counted):
                return self.insert(DOMAINS[domain], self._path(path), counted=counted)
            case Remove():
                return self._remove(step)
            case Truncate(domain, fork, blocks):
                path, (namespace, holder) = self._path(fork), self._place(DOMAINS[domain])
                return Deed(
                    self._bounded(lambda: namespace.truncate(path, blocks=blocks, holder=holder)),
                    lambda model: (model.truncate(DOMAINS[domain], path, blocks), None),
                )
            case Clear(holder):
                clear = self._bounded(lambda: self.store.clear_holder(holder))
                return Deed(clear, lambda model: (model.clear(holder), None))
        raise AssertionError(step)

    def _bounded(self, do: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """The same, where the disk may be full."""

        async def or_refused() -> Any:
            try:
                return await do()
            except sarpstore.LimitError as error:
                if "bytes_max" not in str(error):
                    raise
                # Only where nothing is left that could be evicted is there no more room to be made.
                live = self.store._core.state.live_bytes
                if "no more can be evicted" in str(error) and live:
                    raise AssertionError(f"refused, though {live:,} bytes of records could be evicted") from error
                self.counts["refused"] += 1
                return REFUSED

        return or_refused

    async def _mark_pass(self) -> None:
        """What otherwise comes when it is due."""
        maintenance = self.store._background.maintenance
        assert maintenance is not None
        async with maintenance._one_at_a_time:
            await maintenance._mark_pass()

    async def _squeeze(self) -> None:
        """What otherwise comes where the disk is full: compaction of the file that gives most, with no mark pass."""
        maintenance = self.store._background.maintenance
        assert maintenance is not None
        async with maintenance._one_at_a_time:
            await maintenance._compact_any()

    async def _wait(self, seconds: int) -> None:
        await asyncio.sleep(NOTED_S)
        self._clock.leap(seconds)
        await asyncio.sleep(NOTED_S)

    async def _set_ttl(self, step: SetTtl) -> None:
        ttl_s = step.seconds or None
        name = DOMAINS[2 * step.key][0]
        key = {"store": 0, "holder": step.key, "namespace": name}[step.kind]
        if step.kind == "store":
            self.store.set_ttl(ttl_s)
        elif step.kind == "holder":
            self.store.set_ttl(ttl_s, holder=step.key)
        else:
            self.store.set_ttl(ttl_s, namespace=self.store.namespace(name))
        self._horizons.set((step.kind, key), ttl_s and ttl_s * 1e3, self._clock.now_ms())

    # --- changing

    def poured(self, domain: Domain, blocks: int) -> Deed:
        """The insertion of a path that nobody spoke of before."""
        self._poured += 1
        return self.insert(domain, (1 + self._poured, *PATTERNS[0])[:blocks], counted=False)

    def insert(self, domain: Domain, path: Path, *, counted: bool) -> Deed:
        address, blocks = self._address, len(path)
        self._address += blocks
        self._note(domain, path)
        # What was evicted or has expired may be held or not.
        counted = counted and not self._lossy
        namespace, holder = self._place(domain)
        rows = locations(blocks, address, self._dtype)
        ids = self._ids_of(domain, path)
        span = [0.0, 0.0]

        async def do() -> int:
            span[0] = self._clock.now_ms()
            try:
                return await namespace.insert_ids(ids, rows, holder=holder, counted=counted)
            finally:
                span[1] = self._clock.now_ms()

        def follow(model: Model, new: int, doubt: Doubt) -> Model | None:
            after = doubt.follow(model, domain, [(path, blocks - new)], address)
            if after is None or new < blocks or not after.match(domain, path[:1]):
                return after
            return after.born_too(domain, path, span[1])

        return Deed(
            self._bounded(do),
            lambda model: model.insert(domain, path, address, counted=counted, born=(span[0], span[1])),
            follow=follow,
            holds=(domain, path),
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
            return removed in (0, len(set(blocks))) if expected is None else removed == expected

        remove = self._bounded(lambda: namespace.remove_ids(ids, holder=holder))
        return Deed(remove, lambda model: model.remove(domain, blocks), fits)

    # --- asking

    def _match(self, domain: Domain, path: Path, *, located: bool) -> Deed:
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            match = await namespace.match_ids(self._ids_of(domain, path), locations=located, holder=holder)
            return match.locations["address"].tolist() if located else match.blocks

        def on(model: Model) -> tuple[tuple[()], Any]:
            held = model.match(domain, path)
            return (), held if located else len(held)

        return Deed(ask, on, follow=lambda model, found, doubt: doubt.follow(model, domain, [(path, found)]))

    def _estimate(self, domain: Domain, path: Path) -> Deed:
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            before = namespace.estimate(path, holder=holder)
            blocks = (await namespace.match(path, locations=False, holder=holder)).blocks
            # While it read something may have expired.
            after = namespace.estimate(path, holder=holder)
            assert min(before[0], after[0]) <= blocks <= max(before[1], after[1]) <= len(path)
            return blocks

        def on(model: Model) -> tuple[tuple[()], Any]:
            return (), len(model.match(domain, path))

        return Deed(ask, on, follow=lambda model, found, doubt: doubt.follow(model, domain, [(path, found)]))

    def match_many(self, domain: Domain, paths: Sequence[Path], *, located: bool) -> Deed:
        paths = list(paths)
        namespace, holder = self._place(domain)

        async def ask() -> Any:
            queries = [(namespace, self._ids_of(domain, path)) for path in paths]
            found = await self.store.match_many_ids(queries, locations=located, holder=holder)
            return [match.locations["address"].tolist() if located else match.blocks for match in found]

        def on(model: Model) -> tuple[tuple[()], Any]:
            held = [model.match(domain, path) for path in paths]
            return (), held if located else list(map(len, held))

        def follow(model: Model, answers: Any, doubt: Doubt) -> Model | None:
            return doubt.follow(model, domain, zip(paths, answers, strict=True))

        return Deed(ask, on, follow=follow)

    def _match_holders(self, path: Path) -> Deed:
        (name, _), (namespace, _) = DOMAINS[0], self._place(DOMAINS[0])

        async def ask() -> Any:
            before = await namespace.match_holders(path, exact=False)
            found = await namespace.match_holders(path)
            after = await namespace.match_holders(path, exact=False)
            for holder, blocks in found.items():
                bounds = [each[holder] for each in (before, after) if holder in each]
                assert min(least for least, _ in bounds) <= blocks <= max(most for _, most in bounds)
            return found

        def follow(model: Model, answer: dict[int, int], doubt: Doubt) -> Model | None:
            now: Model | None = model
            for holder in {holder for other, holder in model.held if other == name}:
                now = doubt.follow(now, (name, holder), [(path, answer.get(holder, 0))])
                if now is None:
                    return None
            return now

        return Deed(ask, lambda model: ((), model.holders(name, path)), follow=follow)

    # --- what steps speak of

    def _path(self, fork: Fork) -> Path:
        kept = self.paths[fork.base % len(self.paths)][: fork.cut]
        return (kept + PATTERNS[fork.symbol][: fork.tail])[:BLOCKS_MAX]

    def _note(self, domain: Domain, path: Path) -> None:
        """Later steps may speak of this path."""
        self.inserted[domain][path] = None
        if path not in self.paths:
            # What was poured in is many: only the last of it stays.
            kept = self.paths[:-1] if path[:1] > (2,) and self.paths[-1][:1] == (path[0] - 1,) else self.paths
            self.paths = [*kept[-(PATHS - 1) :], path]

    def _ids_of(self, domain: Domain, path: Path) -> Any:
        key = domain[0], path
        if key not in self._ids:
            self._ids[key] = self.store.namespace(domain[0]).block_ids(path)
        return self._ids[key]

    def _place(self, domain: Domain) -> tuple[Namespace, int]:
        return self.store.namespace(domain[0]), domain[1]
