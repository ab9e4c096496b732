"""What `sarpstore bench churn` does to a store: turns, removals as engines announce them, and questions in between."""

from __future__ import annotations

import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from sarpstore_tools.bench.population import BLOCK_TOKENS, HOLDERS, Path, Population, locations_of_tokens
from sarpstore_tools.bench.times import Times

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import sarpstore

REMOVED_IDS: Final = 32
"""Ids of one call of remove_ids: what an engine announces at a time."""
REMOVE_IDS_SHARE, TRUNCATE_SHARE = 0.6, 0.25
"""How many sessions go by remove_ids, leaf first, and by truncate; the others lose a part of themselves and go on."""
ASK_EVERY: Final = 16
"""Turns between two questions: one for something held, one for something removed."""
REMEMBERED: Final = 256
"""Removed paths that are asked for again."""
SLOW_MS: Final = 10.0
FAILURES_MAX: Final = 10


class Answers:
    """How many questions were asked, and what was wrong with the answers."""

    def __init__(self) -> None:
        self.held = self.held_whole = self.removed = self.wrong = 0
        self.failures: list[str] = []

    def fail(self, text: str) -> None:
        """One more wrong answer; only the first ones are told."""
        self.wrong += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(text)


class Churn:
    """A population in a store. `use` names the store, which may be another one when it has been opened again."""

    def __init__(self, population: Population, capacity: int) -> None:
        self.population = population
        self.capacity = capacity
        self.inserted = self.removed = self.cleared = 0
        self.inserts, self.removals = Times(SLOW_MS), Times(SLOW_MS)
        self.answers = Answers()
        self._gone: deque[tuple[Path, int]] = deque(maxlen=REMEMBERED)
        """Paths that were removed, and how many leading blocks of each may still match."""
        self._clear_at = capacity
        self.evicted = False
        """Whether an earlier opening of the store evicted anything."""

    def use(self, store: sarpstore.Store) -> None:
        """Speak to this store from now on."""
        self._store = store
        self._namespace = store.namespace("bench")

    async def step(self) -> None:
        """A turn of a session, and whatever must go to make room for it."""
        path = self.population.next_turn().path
        tokens = path.tokens()
        async with _timed(self.inserts):
            self.inserted += await self._namespace.insert(tokens, locations_of_tokens(tokens), holder=path.holder)
        if self.inserted >= self._clear_at:
            self._clear_at += self.capacity
            await self._clear_a_holder()
        while self.population.held > self.capacity:
            await self._make_room()
        if self.population.turn % ASK_EVERY == 0:
            await self._ask_held(self.population.random.choice(self.population.sessions).path)
            if self._gone:
                await self._ask_removed(*self.population.random.choice(self._gone))

    async def ask_all(self, sessions: int) -> None:
        """Ask for so many sessions that are held, and for everything remembered that was removed."""
        held = self.population.sessions
        for session in self.population.random.sample(held, min(sessions, len(held))):
            await self._ask_held(session.path)
        for path, blocks in self._gone:
            await self._ask_removed(path, blocks)

    async def _make_room(self) -> None:
        session = self.population.oldest()
        path, how = session.path, self.population.random.random()
        if how < REMOVE_IDS_SHARE:
            await self._remove_ids(path)
        else:
            partly = how >= REMOVE_IDS_SHARE + TRUNCATE_SHARE and path.own > 1
            kept = path.shared + (self.population.random.randrange(1, path.own) if partly else 0)
            async with _timed(self.removals):
                await self._namespace.truncate(path.tokens(), blocks=kept, holder=path.holder)
            if partly:
                self.population.cut(session, kept)
                await self._note_removed(path, kept)
                return
        self.population.remove(session)
        await self._note_removed(path, path.shared)

    async def _remove_ids(self, path: Path) -> None:
        """Its own blocks, leaf first, some at a time."""
        ids = self._namespace.block_ids(path.tokens())[path.shared :][::-1]
        for first in range(0, len(ids), REMOVED_IDS):
            batch = np.ascontiguousarray(ids[first : first + REMOVED_IDS])
            async with _timed(self.removals):
                await self._namespace.remove_ids(batch, holder=path.holder)

    async def _note_removed(self, path: Path, kept: int) -> None:
        self.removed += path.blocks - kept
        if self.population.random.random() < 1 / ASK_EVERY:
            self._gone.append((path, kept))
            await self._ask_removed(path, kept)

    async def _clear_a_holder(self) -> None:
        """It dies, all at once, and comes back with the next session that it gets."""
        holder = self.population.random.randrange(HOLDERS)
        before = self.population.held
        gone = self.population.clear(holder)
        async with _timed(self.removals):
            await self._store.clear_holder(holder)
        self.cleared += 1
        self.removed += before - self.population.held
        for session in self.population.random.sample(gone, min(ASK_EVERY, len(gone))):
            await self._ask_removed(session.path, 0)
            self._gone.append((session.path, session.path.shared))

    async def _ask_held(self, path: Path) -> None:
        tokens = path.tokens()
        match = await self._namespace.match(tokens, holder=path.holder)
        self.answers.held += 1
        self.answers.held_whole += match.blocks == path.blocks
        if match.blocks < path.blocks and not (self.evicted or self._store.stats().evicted):
            self.answers.fail(f"{match.blocks} blocks match of {path.blocks} that are held, and nothing was evicted")
        expected = locations_of_tokens(tokens[: match.blocks * BLOCK_TOKENS])
        if not np.array_equal(match.locations, expected):
            self.answers.fail(f"wrong locations among {match.blocks} blocks")

    async def _ask_removed(self, path: Path, most: int) -> None:
        match = await self._namespace.match(path.tokens(), locations=False, holder=path.holder)
        self.answers.removed += 1
        if match.blocks > most:
            self.answers.fail(f"{match.blocks} blocks match of a path of which {most} were left by a removal")


@asynccontextmanager
async def _timed(times: Times) -> AsyncIterator[None]:
    began = time.perf_counter()
    yield
    times.add((time.perf_counter() - began) * 1e3)
