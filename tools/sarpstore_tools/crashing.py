"""The process that `sarpstore crashtest` kills: it opens the store, inserts, and says what it does as it does it.

Several tasks insert random prefixes of random sequences; every insertion is told to the parent before it begins and
when it is acknowledged. Checkpoints are written now and then, and some rounds end with a close.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.bench.machine import event_loop
from sarpstore_tools.bench.shapes import Ids, family, locations_of
from sarpstore_tools.bench.worker import Failed, Parent, Phase, work_together
from sarpstore_tools.killpoints import KillPoint, arm

if TYPE_CHECKING:
    from collections.abc import Coroutine

NAMESPACES = ("crash a", "crash b")
TASKS = 4
FORKS = 31
FORK_BLOCKS = (1, 80)
BASE_BLOCKS_MAX = 200
INSERTIONS_A_TREE = 24
OLD_TREE_SHARE = 0.3
CHECKPOINT_EVERY_SECONDS = (0.02, 0.15)
SYNC_EVERY_SECONDS = (0.002, 0.02)
PAUSE_SECONDS_MAX = 0.002

Where = Literal["opening", "inserting", "checkpointing", "closing", "closed"]


class CrashJob(msgspec.Struct, kw_only=True):
    """One round. Trees below `first_tree` were used by earlier ones; after `close_after` seconds, it closes.

    `removals`: blocks are removed, too, as `churning` does. `point`: where it kills itself. `power_cut`: the power goes
    before it is killed.
    """

    store: str
    durability: Literal["always", "interval", "never"]
    seed: int
    round: int
    first_tree: int
    close_after: float | None
    removals: bool = False
    point: KillPoint | None = None
    power_cut: bool = False


class Began(msgspec.Struct, tag=True):
    """Insertion number `op` of this round begins: the first `blocks` blocks of a member of a tree."""

    op: int
    tree: int
    member: int
    blocks: int


class Acknowledged(msgspec.Struct, tag=True):
    """These insertions are durable: they returned under "always", or a sync() that began later did."""

    ops: list[int]


Message = Phase | Began | Acknowledged

_OPS_A_MESSAGE = 256


def tree_of(seed: int, number: int) -> list[Ids]:
    """The sequences of a tree: one of up to 200 blocks, and 31 that each leave an earlier one at a random block."""
    rng = np.random.default_rng([seed, number])
    return family(rng, int(rng.integers(1, BASE_BLOCKS_MAX + 1)), FORKS, FORK_BLOCKS)


def namespace_of(tree: int) -> str:
    """The name of the namespace that a tree is inserted into."""
    return NAMESPACES[tree % len(NAMESPACES)]


def main() -> int:
    """Do the job of the first argument; the exit status is 0, or 2 after a `Failed` message."""
    # Ctrl-C reaches the whole process group; the parent ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = msgspec.json.decode(sys.argv[1], type=CrashJob)
    # A torn tail is what a kill leaves, and without power nothing can be read: no news here.
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL + 1 if job.power_cut else logging.ERROR)
    parent = Parent()
    if job.point is not None:
        arm(job.point)
    try:
        with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
            runner.run(_kind_of(job)(job, parent).run())
    except BrokenPipeError:
        return 2  # The parent is gone: nobody is left to tell.
    except (sarpstore.SarpError, OSError) as error:
        parent.send(Failed(f"{type(error).__name__}: {error}"))
        return 2
    return 0


def _kind_of(job: CrashJob) -> type[Inserting]:
    if not job.removals:
        return Inserting
    from sarpstore_tools.churning import Churning

    return Churning


class Inserting:
    """The tasks of one round."""

    options: ClassVar[dict[str, Any]] = {}
    """Of the store, besides durability."""

    def __init__(self, job: CrashJob, parent: Parent) -> None:
        self.job = job
        self.parent = parent
        self._ops = 0
        self._trees = job.first_tree
        self._returned: list[int] = []

    async def run(self) -> None:
        """Insert until killed, or until it is time to close."""
        job = self.job
        self.parent.send(Phase("opening"))
        store = await sarpstore.open(job.store, durability=job.durability, **self.options)
        self.parent.send(Phase("inserting"))
        await work_together(self.tasks(store), job.close_after)
        self.parent.send(Phase("closing"))
        await store.close()
        self.parent.send(Phase("closed"))
        self.parent.wait()

    def tasks(self, store: sarpstore.Store) -> list[Coroutine[None, None, None]]:
        """All that is done at once."""
        work = [self.work(store, number) for number in range(TASKS)]
        work.append(self._checkpoint(store))
        if self.job.durability != "always":
            work.append(self._sync(store))
        return work

    def next_op(self) -> int:
        """The number of an operation that begins."""
        self._ops += 1
        return self._ops - 1

    def returned(self, op: int) -> None:
        """The operation is done: it is durable now, or with the next sync."""
        if self.job.durability == "always":
            self.parent.send(Acknowledged([op]))
        else:
            self._returned.append(op)

    def rng(self, task: int) -> np.random.Generator:
        """Chance, for one task of this round."""
        return np.random.default_rng([self.job.seed, self.job.round, task])

    async def work(self, store: sarpstore.Store, task: int) -> None:
        """Insert, one sequence after another."""
        rng = self.rng(task)
        while True:
            number = self._next_tree(rng)
            members = tree_of(self.job.seed, number)
            namespace = store.namespace(namespace_of(number))
            for _ in range(INSERTIONS_A_TREE):
                member = int(rng.integers(len(members)))
                ids = members[member][: int(rng.integers(1, len(members[member]) + 1))]
                op = self.next_op()
                self.parent.send(Began(op, number, member, len(ids)))
                await namespace.insert_ids(ids, locations_of(ids))
                self.returned(op)
                await asyncio.sleep(float(rng.random()) * PAUSE_SECONDS_MAX)

    def _next_tree(self, rng: np.random.Generator) -> int:
        """An earlier round's, or one that no task has had."""
        if self.job.first_tree and rng.random() < OLD_TREE_SHARE:
            return int(rng.integers(self.job.first_tree))
        self._trees += 1
        return self._trees - 1

    async def _sync(self, store: sarpstore.Store) -> None:
        rng = self.rng(TASKS)
        while True:
            await asyncio.sleep(rng.uniform(*SYNC_EVERY_SECONDS))
            returned, self._returned = self._returned, []
            await store.sync()
            for i in range(0, len(returned), _OPS_A_MESSAGE):
                self.parent.send(Acknowledged(returned[i : i + _OPS_A_MESSAGE]))

    async def _checkpoint(self, store: sarpstore.Store) -> None:
        rng = self.rng(TASKS + 1)
        while True:
            await asyncio.sleep(rng.uniform(*CHECKPOINT_EVERY_SECONDS))
            self.parent.send(Phase("checkpointing"))
            await store.checkpoint()
            self.parent.send(Phase("inserting"))
