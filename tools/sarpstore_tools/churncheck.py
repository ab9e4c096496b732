"""What may be in a store after processes that inserted and removed were killed, and asking it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import sarpstore
from sarpstore_tools.bench.shapes import Ids, locations_of, random_ids
from sarpstore_tools.churning import TREES, Churned, churned_tree
from sarpstore_tools.crashcheck import BEYOND_BLOCKS, Checked, words_of
from sarpstore_tools.crashing import TASKS, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable

State: TypeAlias = dict[int, frozenset[int]]
"""Of each tree of a holder the ids (64 bits of each) that are held."""


class ChurnOracle:
    """For each holder the states that the store may be in: several, until it has been asked."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: list[list[State]] = [[{}] for _ in range(TASKS)]
        self._begun: list[list[Churned]] = [[] for _ in range(TASKS)]
        self._acknowledged = [0] * TASKS

    @property
    def trees(self) -> list[int]:
        """Those that are always asked for: all."""
        return list(TREES)

    def began(self, step: Churned) -> None:
        """It may have been done from now on. Steps of a tree come in their order."""
        self._begun[step.tree % TASKS].append(step)

    def acknowledged(self, step: Churned) -> None:
        """It, and what came before it, must have been done."""
        holder = step.tree % TASKS
        self._acknowledged[holder] = max(self._acknowledged[holder], self._begun[holder].index(step) + 1)

    async def check(self, path: str, trees: Iterable[int], *, read_only: bool) -> Checked:
        """Open the store, ask for every member of every tree, and keep the states that its answers agree with."""
        del trees
        found = Checked()
        began = time.perf_counter()
        store = await sarpstore.open(path, create=False, read_only=read_only)
        try:
            await store.namespace(namespace_of(0)).match_ids(churned_tree(self._seed, 0)[0])
            found.recovery_ms = (time.perf_counter() - began) * 1e3
            for holder in range(TASKS):
                await self._check_holder(store, holder, found)
            found.damaged = store.stats().damaged_records
        finally:
            await store.close()
        return found

    async def _check_holder(self, store: sarpstore.Store, holder: int, found: Checked) -> None:
        answers = {tree: await self._ask(store, tree, holder, found) for tree in TREES if tree % TASKS == holder}
        possible = self._possible(holder)
        agreeing = [state for state in possible if all(self._lengths(state, tree) == answers[tree] for tree in answers)]
        if not agreeing:
            for tree, blocks in answers.items():
                self._judge(tree, blocks, [self._lengths(state, tree) for state in possible], found)
        self._states[holder] = agreeing or possible
        self._begun[holder], self._acknowledged[holder] = [], 0

    async def _ask(self, store: sarpstore.Store, tree: int, holder: int, found: Checked) -> list[int]:
        """How many blocks match of each member, whose ids and locations must be its own."""
        members = churned_tree(self._seed, tree)
        beyond = random_ids(np.random.default_rng([self._seed, tree, 1]), BEYOND_BLOCKS)
        namespace = store.namespace(namespace_of(tree))
        queries = [(namespace, np.concatenate([ids, beyond])) for ids in members]
        matches = await store.match_many_ids(queries, holder=holder)
        [other] = await store.match_many_ids(queries[:1], holder=(holder + 1) % TASKS)
        found.queries += len(matches) + 1
        for match, (_, ids) in zip((*matches, other), (*queries, queries[0]), strict=True):
            held = ids[: match.blocks]
            if not (np.array_equal(match.ids, held) and np.array_equal(match.locations, locations_of(held))):
                found.wrong += 1
                found.say(f"tree {tree}: other ids or locations than inserted among {match.blocks} blocks")
        if other.blocks:
            found.wrong += 1
            found.say(f"tree {tree}: {other.blocks} blocks match for another holder")
        return [match.blocks for match in matches]

    def _judge(self, tree: int, blocks: list[int], allowed: list[list[int]], found: Checked) -> None:
        """Say of a tree in which way the answers are none of those that are allowed."""
        for member, (held, among) in enumerate(zip(blocks, zip(*allowed, strict=True), strict=True)):
            if held < min(among):
                found.lost_queries += 1
                found.lost_blocks += min(among) - held
                found.say(f"tree {tree}, {member}: {held} blocks match, {min(among)} must")
            elif held > max(among):
                found.returned_blocks += held - max(among)
                found.say(f"tree {tree}, {member}: {held} blocks match, but what is behind {max(among)} was removed")
            elif blocks not in allowed:
                found.wrong += 1
                found.say(f"tree {tree}, {member}: {held} blocks match, as after no number of operations")

    def _possible(self, holder: int) -> list[State]:
        """The states after all that was acknowledged, and any number of the operations that follow."""
        states: list[State] = []
        for state in self._states[holder]:
            now = state
            after = [now := self._after(now, step) for step in self._begun[holder]]
            states += [state, *after][self._acknowledged[holder] :]
        return [state for at, state in enumerate(states) if state not in states[:at]]

    def _after(self, state: State, step: Churned) -> State:
        if step.kind == "clear":
            return {}
        members = churned_tree(self._seed, step.tree)
        words = words_of(members[step.member])
        held = state.get(step.tree, frozenset())
        if step.kind == "insert":
            return state | {step.tree: held.union(words[: step.blocks[0]])}
        gone = {words[block] for block in step.blocks}
        return state | {step.tree: held.difference(*(_following(ids, gone) for ids in members))}

    def _lengths(self, state: State, tree: int) -> list[int]:
        held = state.get(tree, frozenset())
        return [_leading(words_of(ids), held) for ids in churned_tree(self._seed, tree)]


def _following(ids: Ids, gone: set[int]) -> list[int]:
    """The ids from the first that is gone on."""
    words = words_of(ids)
    return words[next((at for at, word in enumerate(words) if word in gone), len(words)) :]


def _leading(words: list[Any], among: frozenset[int]) -> int:
    return next((at for at, word in enumerate(words) if word not in among), len(words))
