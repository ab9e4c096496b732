"""Operations of the kernel machine, besides those of `strategies`, and how hypothesis makes runs of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st
from kernel_views import LAYOUTS
from strategies import TENANTS, Insert, Query, _cut, _grow, _Step

from sarpstore import _format as fmt


@dataclass(frozen=True, slots=True)
class Freeze:
    """End the gathering commit; it is written later."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Hurt the log: a byte of one readable record, or all of its page."""

    how: str
    choice: int
    byte: int


@dataclass(frozen=True, slots=True)
class Collide:
    """Enter a record of the log under the key of a block of a path that it has nothing to do with."""

    choice: int
    path: str
    block: int
    d: int | None
    n: int
    dp: int
    tenant: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """Apply the log `times` times more from one record on."""

    choice: int
    times: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Close and open again, from the log alone."""

    in_order: bool
    slice_pages: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Begin to take images; each later operation takes `pace` more."""

    pace: int


@dataclass(frozen=True, slots=True)
class Reopen:
    """Close and open again, from the images and the log's tail; all but `at_once` partitions are loaded on use."""

    order: int
    at_once: int


Operation = Insert | Query | Freeze | Damage | Collide | Replay | Rebuild | Checkpoint | Reopen


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run does not change."""

    layout: tuple[int, ...]
    location_bytes: int
    cache_pages: int
    commit_pages: int
    file_pages: int
    scalar: bool


_SETUPS = st.builds(
    Setup,
    layout=st.sampled_from(LAYOUTS),
    location_bytes=st.sampled_from([14, 8, 46]),
    cache_pages=st.sampled_from([64, 0, 2]),
    commit_pages=st.sampled_from([64, 8]),
    file_pages=st.sampled_from([4096, 166]),
    scalar=st.booleans(),
)
_KINDS = ["insert"] * 16 + ["query"] * 5 + ["freeze"] * 2 + ["replay", "rebuild", "checkpoint", "reopen"]


def _decode(steps: list[_Step], kinds: list[str]) -> list[Operation]:
    known = [""]
    operations: list[Operation] = []
    for number, step in enumerate(steps):
        # Half of the paths grow out of the latest ones, as sessions do.
        recent = step.choice >= 0x8000
        parent = known[max(0, len(known) - 1 - step.choice % 3) if recent else step.choice % len(known)]
        prefix = _cut(parent, step.cut, fmt.WINDOW)
        kind = kinds[step.kind % len(kinds)]
        if kind == "insert":
            path = _grow(prefix, step.runs, fmt.WINDOW)
            known.append(path)
            operations.append(Insert(path, *step.tenant, number))
        elif kind == "query":
            operations.append(Query(_grow(prefix, step.runs[1:], fmt.WINDOW), *step.tenant))
        elif kind == "collide":
            operations.append(_collision(step, _grow(prefix, step.runs, fmt.WINDOW)))
        else:
            operations.append(_upkeep(kind, step))
    return operations


def _collision(step: _Step, path: str) -> Collide:
    number, other = step.cut[1], step.runs[0][2]
    d = number // 3 % 64 if number % 3 == 0 else None
    block = other % len(path) if other % 2 else other // 2 % (-(-len(path) // 64)) * 64
    return Collide(step.choice, path, block, d, 1 + other % 64, number % 64, step.tenant)


def _upkeep(kind: str, step: _Step) -> Operation:
    number, other = step.cut[1], step.runs[0][2]
    made: dict[str, Operation] = {
        "freeze": Freeze(),
        "damage": Damage(("byte", "byte", "zeros", "swap")[other % 4], step.choice, number),
        "replay": Replay(step.choice, 1 + number % 2),
        "rebuild": Rebuild(number % 2 == 0, 1 + other % 7),
        "checkpoint": Checkpoint(number % 4),
        "reopen": Reopen(step.choice, number % 9),
    }
    return made[kind]


def _steps_of(data: bytes) -> _Step:
    """A step out of 17 bytes: one draw instead of some twenty."""
    kind, choice, number, where, tenant, count = struct.unpack_from("<HHHBBB", data)
    runs = [
        ("abc"[data[9 + 2 * i] % 3], ("short", "long", "edge")[data[9 + 2 * i] // 3 % 3], data[10 + 2 * i])
        for i in range(1 + count % 4)
    ]
    return _Step(
        kind, choice, (("whole", "whole", "anywhere", "edge")[where % 4], number), runs, TENANTS[tenant % len(TENANTS)]
    )


_PACKED_STEPS = st.binary(min_size=17, max_size=17).map(_steps_of)


def runs(
    *, damage: bool, collide: bool, count_min: int = 1, count_max: int = 30
) -> st.SearchStrategy[tuple[Setup, list[Operation]]]:
    """A setup and operations."""
    kinds = _KINDS + ["damage"] * (2 if damage else 0) + ["collide"] * (3 if collide else 0)
    counts = st.integers(count_min, count_max)
    lists = counts.flatmap(lambda count: st.lists(_PACKED_STEPS, min_size=count, max_size=count))
    return st.tuples(_SETUPS, lists.map(lambda steps: _decode(steps, kinds)))


def all_runs(count_min: int = 1, count_max: int = 30) -> st.SearchStrategy[tuple[Setup, list[Operation]]]:
    """Runs without and with damage and equal keys."""
    kinds = [(False, False), (False, True), (True, False), (True, True)]
    return st.one_of(
        *(runs(damage=d, collide=c, count_min=count_min, count_max=count_max) for d, c in kinds),
    )


# Small pieces
