"""Hypothesis strategies: sequences of operations on a directory and its records, for the twin and the kernel alike.

A path is a string of one-letter symbols, one a block; `ids_of` gives its block ids, which chain as the engine's do.
Paths grow out of prefixes of earlier ones by runs of few symbols, so that they share deeply, branch inside windows and
at their edges, and span several windows. Choices (which record, which suffix) are numbers to be taken modulo what
there is, so that one sequence can drive two implementations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

ID_BYTES = 16
LOCATION_BYTES = 14
WINDOWS_MAX = 4
SYMBOLS = "abc"
TENANTS = [(0, 0)] * 8 + [(3, 0), (0, 2**64 - 1)]  # holder, namespace


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert the path; `number` tells its locations from every other insertion's."""

    path: str
    holder: int
    namespace: int
    number: int


@dataclass(frozen=True, slots=True)
class Query:
    """Match the path."""

    path: str
    holder: int
    namespace: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Make one readable record unreadable: in order of position, the one at `choice` modulo their number."""

    choice: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Apply the log `times` times more from a record on: in order of position, `choice` modulo their number."""

    choice: int
    times: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Go on with a directory that is made from the log alone."""


Operation = Insert | Query | Damage | Replay | Rebuild


@cache
def _child_id(parent_id: bytes, symbol: str) -> bytes:
    return hashlib.blake2b(parent_id + symbol.encode(), digest_size=ID_BYTES).digest()


@cache
def ids_of(path: str) -> tuple[bytes, ...]:
    """The 16-byte block ids of a path: each the hash of its parent's id and its own symbol."""
    ids: list[bytes] = []
    for symbol in path:
        ids.append(_child_id(ids[-1] if ids else b"", symbol))
    return tuple(ids)


def locations_of(path: str, number: int) -> tuple[bytes, ...]:
    """One location a block, different for every block of every insertion."""
    return tuple(
        number.to_bytes(4, "little") + block.to_bytes(4, "little") + bytes(LOCATION_BYTES - 8)
        for block in range(len(path))
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """Plain numbers that `_decode` makes an operation of: drawing these is several times faster than drawing paths."""

    kind: int
    choice: int
    cut: tuple[str, int]
    runs: list[tuple[str, str, int]]
    tenant: tuple[int, int]


_NUMBERS = st.integers(0, 999)
_STEPS = st.builds(
    _Step,
    kind=_NUMBERS,
    choice=_NUMBERS,
    cut=st.tuples(st.sampled_from(["whole", "anywhere", "edge"]), _NUMBERS),
    runs=st.lists(
        st.tuples(st.sampled_from(SYMBOLS), st.sampled_from(["short", "long", "edge"]), _NUMBERS),
        min_size=1,
        max_size=4,
    ),
    tenant=st.sampled_from(TENANTS),
)


def _cut(path: str, cut: tuple[str, int], window_blocks: int) -> str:
    where, number = cut
    if where == "whole" or not path:
        return path
    if where == "anywhere":
        return path[: number % (len(path) + 1)]
    edge = number // 3 % (len(path) // window_blocks + 1) * window_blocks
    return path[: max(0, edge + number % 3 - 1)]


def _grow(path: str, runs: list[tuple[str, str, int]], window_blocks: int) -> str:
    for symbol, kind, number in runs:
        lengths = {
            "short": 1 + number % 3,
            "long": 1 + number % window_blocks,
            "edge": window_blocks - len(path) % window_blocks,
        }
        path += symbol * lengths[kind]
    return path[: WINDOWS_MAX * window_blocks]


def _decode(steps: list[_Step], window_blocks: int, kinds: list[str]) -> list[Operation]:
    known = [""]
    operations: list[Operation] = []
    for number, step in enumerate(steps):
        prefix = _cut(known[step.choice % len(known)], step.cut, window_blocks)
        match kinds[step.kind % len(kinds)]:
            case "insert":
                path = _grow(prefix, step.runs, window_blocks)
                known.append(path)
                operations.append(Insert(path, *step.tenant, number))
            case "query":
                operations.append(Query(_grow(prefix, step.runs[1:], window_blocks), *step.tenant))
            case "damage":
                operations.append(Damage(step.choice))
            case "replay":
                operations.append(Replay(step.choice, 1 + step.cut[1] % 2))
            case "rebuild":
                operations.append(Rebuild())
    return operations


def operations(
    window_blocks: int = 64, *, damage: bool = False, count_max: int = 30
) -> st.SearchStrategy[list[Operation]]:
    """A sequence of operations, most of them insertions; Damage only where `damage` is set."""
    kinds = ["insert"] * 12 + ["query"] * 4 + ["replay", "rebuild"] + ["damage"] * (2 if damage else 0)
    # Lists of free length come out short: a drawn length makes deep shapes common and still shrinks.
    lists = st.integers(1, count_max).flatmap(lambda count: st.lists(_STEPS, min_size=count, max_size=count))
    return lists.map(lambda steps: _decode(steps, window_blocks, kinds))
