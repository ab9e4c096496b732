"""The process that `sarpstore crashtest --removals` kills: a few small trees, inserted and removed over and over.

Each task has a holder and trees of its own and waits for every operation before it begins the next: so what is left of
them after a kill must be what some number of its operations made, and at least of those that were acknowledged.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from sarpstore_tools.bench.shapes import Ids, family, locations_of
from sarpstore_tools.crashing import TASKS, Inserting, namespace_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import sarpstore

TREES: Final = range(6 * TASKS)
"""Tree number n belongs to the task, and to the holder, n % TASKS."""

FORKS: Final = 9
FORK_BLOCKS: Final = (1, 60)
BASE_BLOCKS_MAX: Final = 150
REMOVED_MAX: Final = 6
PAUSE_SECONDS_MAX: Final = 0.001
COMPACT_EVERY_SECONDS: Final = (0.02, 0.15)
OPTIONS: Final = {"log_file_bytes": 1 << 20, "markers_max": 2048}
"""Small, so that files are sealed and compacted, and mark passes made, every few rounds."""

Kind = Literal["insert", "remove", "truncate", "clear"]
SHARES: Final[dict[Kind, float]] = {"insert": 0.6, "remove": 0.25, "truncate": 0.14, "clear": 0.01}


class Churned(msgspec.Struct, tag=True):
    """Operation number `op` of this round begins.

    `blocks`: of an insertion how many of the member's, of a truncation how many are kept, of a removal which.
    """

    op: int
    kind: Kind
    tree: int
    member: int
    blocks: list[int]


@cache
def churned_tree(seed: int, number: int) -> list[Ids]:
    """The sequences of a tree: one of up to 150 blocks, and 9 that each leave an earlier one at a random block."""
    rng = np.random.default_rng([seed, number, 2])
    return family(rng, int(rng.integers(1, BASE_BLOCKS_MAX + 1)), FORKS, FORK_BLOCKS)


class Churning(Inserting):
    """The tasks of one round."""

    options = OPTIONS

    def tasks(self, store: sarpstore.Store) -> list[Coroutine[None, None, None]]:
        """All that is done at once."""
        return [*super().tasks(store), self._compact(store)]

    async def work(self, store: sarpstore.Store, task: int) -> None:
        """Insert and remove, one operation after another."""
        rng = self.rng(task)
        kinds, shares = list(SHARES), list(SHARES.values())
        while True:
            kind = kinds[int(rng.choice(len(kinds), p=shares))]
            tree = TASKS * int(rng.integers(len(TREES) // TASKS)) + task
            members = churned_tree(self.job.seed, tree)
            member = int(rng.integers(len(members)))
            await self._do(store, Churned(self.next_op(), kind, tree, member, _blocks(rng, kind, len(members[member]))))
            await asyncio.sleep(float(rng.random()) * PAUSE_SECONDS_MAX)

    async def _do(self, store: sarpstore.Store, step: Churned) -> None:
        namespace, holder = store.namespace(namespace_of(step.tree)), step.tree % TASKS
        ids = churned_tree(self.job.seed, step.tree)[step.member]
        self.parent.send(step)
        if step.kind == "insert":
            ids = ids[: step.blocks[0]]
            await namespace.insert_ids(ids, locations_of(ids), holder=holder)
        elif step.kind == "clear":
            await store.clear_holder(holder)
        else:
            # To keep so many blocks is to remove the next one.
            await namespace.remove_ids(ids[step.blocks], holder=holder)
        self.returned(step.op)

    async def _compact(self, store: sarpstore.Store) -> None:
        rng = self.rng(TASKS + 2)
        while True:
            await asyncio.sleep(rng.uniform(*COMPACT_EVERY_SECONDS))
            await store.compact()


def _blocks(rng: np.random.Generator, kind: Kind, length: int) -> list[int]:
    if kind == "insert":
        return [int(rng.integers(1, length + 1))]
    if kind == "remove":
        return [int(block) for block in rng.integers(length, size=int(rng.integers(1, REMOVED_MAX + 1)))]
    return [int(rng.integers(length))] if kind == "truncate" else []
