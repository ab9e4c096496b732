"""What must and what may be in a store after its writers were killed, and asking it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.bench.shapes import Ids, locations_of, random_ids
from sarpstore_tools.crashing import NAMESPACES, Began, namespace_of, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN_TREES = 4
UNKNOWN_TREE_FIRST = 1 << 32
"""Trees that no round ever inserts."""

BEYOND_BLOCKS = 8
"""Blocks, never inserted, behind every query."""

NOT_CHECKED = -1
"""Faults when there is no `sarpstore verify` to find them."""

MESSAGES_MAX = 3


class Checked(msgspec.Struct, kw_only=True):
    """What a check found, in queries and blocks; `recovery_ms` runs from open() to the first answer.

    `returned_blocks` were removed, or are behind one that was; `damaged` counts records that were found damaged: a kill
    damages none.
    """

    queries: int = 0
    lost_blocks: int = 0
    lost_queries: int = 0
    returned_blocks: int = 0
    wrong: int = 0
    damaged: int = 0
    recovery_ms: float = 0.0
    messages: list[str] = []

    def say(self, message: str) -> None:
        """Keep the first few."""
        if len(self.messages) < MESSAGES_MAX:
            self.messages.append(message)


class Oracle:
    """Blocks of each sequence that were ever tried, and that were acknowledged: (tree, member) → the most."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tried: dict[int, dict[int, int]] = defaultdict(dict)
        self._acknowledged: dict[int, dict[int, int]] = defaultdict(dict)

    @property
    def trees(self) -> list[int]:
        """Those of which anything was tried."""
        return list(self._tried)

    def began(self, op: Began) -> None:
        """It may be held from now on."""
        _raise(self._tried[op.tree], op)

    def acknowledged(self, op: Began) -> None:
        """It must be held from now on."""
        _raise(self._acknowledged[op.tree], op)

    async def check(self, path: str, trees: Iterable[int], *, read_only: bool) -> Checked:
        """Open the store, and ask for every member of these trees, for unknown ones, and in the wrong namespace.

        A block's id occurs under one prefix only. So of every sequence the leading blocks that were acknowledged, by
        whatever insertion, must match, and those that were never tried must not; what matches must come with its ids
        and locations.
        """
        found = Checked()
        trees = list(trees)
        first = trees[0] if trees else UNKNOWN_TREE_FIRST
        query = tree_of(self._seed, first)[0]
        began = time.perf_counter()
        store = await sarpstore.open(path, create=False, read_only=read_only)
        try:
            await store.namespace(namespace_of(first)).match_ids(query)
            found.recovery_ms = (time.perf_counter() - began) * 1e3
            unknown = range(UNKNOWN_TREE_FIRST, UNKNOWN_TREE_FIRST + UNKNOWN_TREES)
            for number in [*trees, *unknown]:
                await self._check_tree(store, number, found)
            found.damaged = store.stats().damaged_records
        finally:
            await store.close()
        return found

    async def _check_tree(self, store: sarpstore.Store, number: int, found: Checked) -> None:
        members = tree_of(self._seed, number)
        tried = _firstwords_of(members, self._tried.get(number, {}))
        must = _firstwords_of(members, self._acknowledged.get(number, {}))
        beyond = random_ids(np.random.default_rng([self._seed, number, 1]), BEYOND_BLOCKS)
        queries = [np.concatenate([ids, beyond]) for ids in members]
        name = namespace_of(number)
        other = next(other for other in NAMESPACES if other != name)
        asked = [(store.namespace(name), ids) for ids in queries] + [(store.namespace(other), queries[0])]
        matches = await store.match_many_ids(asked)
        for member, (match, ids) in enumerate(zip(matches[:-1], queries, strict=True)):
            self._judge(match, ids, _leading(ids, must), _leading(ids, tried), f"tree {number}, {member}", found)
        self._judge(matches[-1], queries[0], 0, 0, f"tree {number} in the wrong namespace", found)

    def _judge(self, match: Any, ids: Ids, least: int, most: int, what: str, found: Checked) -> None:
        found.queries += 1
        if match.blocks < least:
            found.lost_queries += 1
            found.lost_blocks += least - match.blocks
            found.say(f"{what}: {match.blocks} blocks match, {least} were acknowledged")
        held = ids[: match.blocks]
        if match.blocks > most:
            found.wrong += 1
            found.say(f"{what}: {match.blocks} blocks match, {most} were ever inserted")
        elif not (np.array_equal(match.ids, held) and np.array_equal(match.locations, locations_of(held))):
            found.wrong += 1
            found.say(f"{what}: other ids or locations than inserted among {match.blocks} blocks")


def _raise(most: dict[int, int], op: Began) -> None:
    most[op.member] = max(most.get(op.member, 0), op.blocks)


def words_of(ids: Ids) -> list[int]:
    """64 bits of each id: enough to tell random ones apart."""
    words: list[int] = np.ascontiguousarray(ids).view("<u8")[:, 0].tolist()
    return words


def _firstwords_of(members: list[Ids], blocks: dict[int, int]) -> set[int]:
    """The ids of the first blocks of each member."""
    return {word for member, count in blocks.items() for word in words_of(members[member][:count])}


def _leading(ids: Ids, among: set[int]) -> int:
    """How many of the leading ids are among these."""
    for count, word in enumerate(words_of(ids)):
        if word not in among:
            return count
    return len(ids)


def verify_faults(path: str) -> tuple[int, str]:
    """Faults that `sarpstore verify` finds in the store, and the first of them; `NOT_CHECKED` if there is no verify."""
    code = "from sarpstore_tools.main import main; main()"
    done = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-P", "-c", code, "verify", "--json", path], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return 0, ""
    if "no command verify" in done.stderr:
        return NOT_CHECKED, "sarpstore verify is not installed: the files were NOT CHECKED"
    lines = done.stdout.splitlines()
    faults = max(1, sum('"severity"' in line for line in lines) if done.returncode == 1 else 1)
    first = lines[0] if lines else next(iter(done.stderr.splitlines()[-1:]), "")
    return faults, f"verify ended with status {done.returncode}: {first}"
