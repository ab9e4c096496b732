"""Which workloads there are: drawn by chance, or all of up to so many operations."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final

from life_steps import KINDS, Call, Clear, Fork, Insert, Remove, Reopen, Step, Together, Truncate, random_step

from fuzz.crashes.history import Interrupted, Workload
from sarpstore import _format as fmt
from sarpstore._files import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from sarpstore._files import Operation

__all__ = ["ALPHABET", "all_workloads", "random_fault", "random_workload"]

_STEPS_MAX: Final = 14
_DRAWN: Final = tuple(
    kind
    for kind in KINDS
    if kind not in ("together", "crash", "estimate", "match", "match_many", "match_holders", "reopen")
)
_FAULT_SHARE: Final = 0.3
_TOGETHER_SHARE: Final = 0.3
"""How many changes come while a checkpoint, a compaction or a mark pass is on its way."""
_INTERRUPTED_SHARE: Final = 0.15
_CLOSED_SHARE: Final = 0.3
_TURNS: Final = (0, 1, 1, 2, 2, 3, 5)
_TURNS_OF_CALLS: Final = (1, 2, 3, 5, 8, 13, 21, 34, 55)
_BESIDE: Final = ("checkpoint", "checkpoint", "compact", "squeeze", "mark_pass")
_OPERATIONS: Final[tuple[Operation, ...]] = ("write", "sync", "create", "rename", "remove", "sync_folder", "read")
_REFUSALS: Final = {"write": (errno.EIO, errno.ENOSPC), "create": (errno.EIO, errno.ENOSPC)}

_PATH: Final = Fork(0, 0, 3, 1)
ALPHABET: Final[tuple[Step, ...]] = (
    Insert(0, _PATH, counted=False),
    Insert(0, Fork(1, 2, 4, 2), counted=False),
    Insert(1, Fork(0, 0, 70, 1), counted=False),
    Remove(0, Fork(1, 140, 0, 0), (1,), unknown=False),
    Truncate(0, Fork(1, 140, 0, 0), 2),
    Clear(0),
    Call("sync"),
    Call("checkpoint"),
    Call("compact"),
    Call("mark_pass"),
    Reopen("all"),
)
"""The operations of the exhaustive mode; paths fork the first that was inserted."""


def random_workload(random: Random, routing: str) -> Workload:
    """A few steps, some of them cut short; in some workloads the medium refuses a call instead."""
    fault = random_fault(random) if random.random() < _FAULT_SHARE else None
    steps: list[Step | Interrupted] = []
    for _ in range(random.randint(2, _STEPS_MAX)):
        steps.append(_random_step(random, interrupts=fault is None))
        if random.random() < 0.05:
            steps.append(Reopen("all"))
    durability = random.choice(["always", "interval", "interval", "never"])
    return Workload(routing, durability, tuple(steps), fault)


def _random_step(random: Random, *, interrupts: bool) -> Step | Interrupted:
    step = random_step(random, (*_DRAWN, "sync"))
    if isinstance(step, Insert):
        step = replace(step, counted=False)
    if interrupts and random.random() < _INTERRUPTED_SHARE:
        assert isinstance(step, (Insert, Remove, Truncate, Clear, Call))
        turns = random.choice(_TURNS_OF_CALLS if isinstance(step, Call) else _TURNS)
        return Interrupted(step, turns, "close" if random.random() < _CLOSED_SHARE else "cancel")
    if isinstance(step, (Insert, Remove, Truncate)) and random.random() < _TOGETHER_SHARE:
        return Together((step, Call(random.choice(_BESIDE))))
    return step


def random_fault(random: Random) -> Fault:
    """One call that the medium refuses."""
    operation = random.choice(_OPERATIONS)
    number = random.choice(_REFUSALS.get(operation, (errno.EIO,)))
    partial = random.choice([None, 0, 512, 4096, 6000]) if operation == "write" else None
    drops = operation == "sync"
    return Fault(operation, after=random.randrange(40), errno=number, partial_bytes=partial, drops=drops)


def all_workloads(operations: int) -> Iterator[Workload]:
    """All sequences of one to so many operations, under both routings."""
    for count in range(1, operations + 1):
        for steps in product(ALPHABET, repeat=count):
            for routing in fmt.ROUTINGS:
                yield Workload(routing, "interval", steps)
