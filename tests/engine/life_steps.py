"""The steps of a store's life, as plain data, and how chance draws them.

A step names a path by how it leaves an earlier one, so that a life without some of its steps is still one: that is what
makes a failing life small.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from sarpstore._files import CrashMode

Heads: TypeAlias = Literal["all", "none", "older"]
"""Which checkpoints are left when a store is opened again."""

DOMAINS: Final = (("a", 0), ("a", 1), ("b", 0))
BLOCKS_MAX: Final = 140
PATHS: Final = 8
"""Earlier paths that a step may speak of."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A path: the first `cut` blocks of an earlier one, then `tail` blocks of pattern number `symbol`."""

    base: int
    cut: int
    tail: int
    symbol: int


@dataclass(frozen=True, slots=True)
class Insert:
    domain: int
    path: Fork
    counted: bool


@dataclass(frozen=True, slots=True)
class Match:
    domain: int
    path: Fork
    located: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    domain: int
    path: Fork


@dataclass(frozen=True, slots=True)
class MatchMany:
    domain: int
    located: bool


@dataclass(frozen=True, slots=True)
class MatchHolders:
    path: Fork


@dataclass(frozen=True, slots=True)
class Remove:
    """Of a path, the ids at these places, in this order; `unknown`: and one that nobody ever had."""

    domain: int
    path: Fork
    places: tuple[int, ...]
    unknown: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    domain: int
    path: Fork
    blocks: int


@dataclass(frozen=True, slots=True)
class Clear:
    holder: int


@dataclass(frozen=True, slots=True)
class Pour:
    """Insert so many new paths of `blocks` blocks, one after another: they fill a store. Steps may name the last."""

    domain: int
    paths: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens for so many seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class SetTtl:
    """Of everything, a holder or a namespace; 0: without end."""

    kind: str
    key: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the store that changes no answer."""

    name: str


@dataclass(frozen=True, slots=True)
class Together:
    """Steps that are started together and awaited together."""

    steps: tuple[Insert | Remove | Truncate | Match | Call, ...]


@dataclass(frozen=True, slots=True)
class Reopen:
    heads: Heads


@dataclass(frozen=True, slots=True)
class Crash:
    """A power cut at the `writes`-th write, sync or change of a name during another step, or after it."""

    mode: CrashMode
    seed: int
    heads: Heads
    during: Step
    writes: int


Step: TypeAlias = (
    Insert
    | Match
    | Estimate
    | MatchMany
    | MatchHolders
    | Remove
    | Truncate
    | Clear
    | Pour
    | Wait
    | SetTtl
    | Call
    | Together
    | Reopen
    | Crash
)

CALLS: Final = ("sync", "checkpoint", "compact", "squeeze", "mark_pass")
WEIGHTS: Final = {
    "insert": 9.0,
    "match": 3.0,
    "estimate": 1.0,
    "match_many": 0.7,
    "match_holders": 0.7,
    "remove": 3.0,
    "truncate": 1.0,
    "clear": 0.3,
    "together": 1.5,
    "sync": 1.2,
    "checkpoint": 1.0,
    "compact": 1.0,
    "squeeze": 0.8,
    "mark_pass": 0.8,
    "reopen": 0.9,
    "crash": 1.1,
}
"""How often each kind of step comes."""
KINDS: Final = tuple(WEIGHTS)
"""Of any life."""
WEIGHTS_BOUNDED: Final = {"pour": 3.0}
"""Besides, where there is a bound that is to be met."""
WEIGHTS_TIMED: Final = {"wait": 2.0, "set_ttl": 1.0}
"""Besides, where there are times to live."""
SECONDS: Final = (1, 3, 10, 30)
FOR_EVER_S: Final = 1_000_000

_PAGE: Final = 4096
_BOUNDS: Final = tuple((240 + log_pages) * _PAGE for log_pages in (150, 180, 220))
"""What three checkpoints and a compaction may take, which is kept free, and so many pages for the log."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a life does not change."""

    routing: str
    durability: str
    cache_bytes: int
    sync_interval_ms: int
    markers_max: int
    bytes_max: int | None = None
    """A bound that is met: what is least asked for is evicted."""
    ttl_s: int | None = None
    """The store's time to live; others may be set, too."""
    refine_at: int = 16
    """Of `sarp`: at which length its lists grow."""

    @property
    def options(self) -> dict[str, Any]:
        return {
            "routing": self.routing,
            "durability": self.durability,
            "cache_bytes": self.cache_bytes,
            "sync_interval_ms": self.sync_interval_ms,
            "markers_max": self.markers_max,
            "bytes_max": self.bytes_max,
            "ttl_s": self.ttl_s,
            "refine_at": self.refine_at,
            "prune_at": min(3, self.refine_at - 1),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of steps that make sense in it."""
        return (
            KINDS
            + tuple(WEIGHTS_BOUNDED) * (self.bytes_max is not None)
            + tuple(WEIGHTS_TIMED) * (self.ttl_s is not None)
        )


def random_setup(random: Random, routing: str) -> Setup:
    """Options of a new store."""
    durability = random.choice(["always", "interval", "never", "never"])
    cache_bytes, sync_interval_ms = random.choice([0, 1 << 16]), random.choice([1, 60_000])
    # With few markers, removals wait for mark passes.
    markers_max = random.choice([64, 4096, 4096, 4096])
    bytes_max = random.choice(_BOUNDS) if random.random() < 0.25 else None
    ttl_s = random.choice([*SECONDS, FOR_EVER_S, FOR_EVER_S]) if random.random() < 0.3 else None
    refine_at = random.choice([2, 4, 16]) if routing == "sarp" else 16
    return Setup(routing, durability, cache_bytes, sync_interval_ms, markers_max, bytes_max, ttl_s, refine_at)


def random_step(random: Random, kinds: tuple[str, ...]) -> Step:
    """One step of these kinds (of the weights above)."""
    weights = WEIGHTS | WEIGHTS_BOUNDED | WEIGHTS_TIMED
    kind = random.choices(kinds, [weights[kind] for kind in kinds])[0]
    if kind in CALLS:
        return Call(kind)
    if kind == "pour":
        return Pour(random.choice([0, 0, 1, 2]), random.randint(5, 25), random.choice([3, 130, 140, 140]))
    if kind == "wait":
        return Wait(random.choice([0, *SECONDS]))
    if kind == "set_ttl":
        return SetTtl(
            random.choice(["store", "holder", "namespace"]), random.randrange(2), random.choice([0, *SECONDS])
        )
    if kind == "together":
        return Together(tuple(_random_companion(random, kinds) for _ in range(random.choice([2, 2, 3]))))
    if kind == "reopen":
        return Reopen(_random_heads(random))
    if kind == "crash":
        during = random_step(random, tuple(kind for kind in kinds if kind not in ("crash", "reopen")))
        if isinstance(during, Pour):
            # Each of its paths may be the last that is left: few are enough.
            during = replace(during, paths=min(during.paths, 3))
        mode = random.choice(["lose", "keep", "tear"])
        return Crash(mode, random.randrange(1 << 16), _random_heads(random), during, random.randint(1, 12))
    return _random_plain(random, kind)


def _random_companion(random: Random, kinds: tuple[str, ...]) -> Any:
    """A step that can be started together with others; they often speak of the same path."""
    calls = [Call(name) for name in kinds if name in CALLS]
    kind = random.choice(["insert", "insert", "remove", "truncate", "match", "call"])
    if kind == "call" and calls:
        return random.choice(calls)
    return _random_plain(random, "match" if kind == "call" else kind)


def _random_plain(random: Random, kind: str) -> Step:
    if kind == "clear":
        return Clear(random.choice([0, 1, 1]))
    if kind == "match_holders":
        return MatchHolders(_random_fork(random))
    domain = random.choice([0, 0, 0, 1, 2])
    if kind == "match_many":
        return MatchMany(domain, random.random() < 0.5)
    path = _random_fork(random)
    if kind == "insert":
        return Insert(domain, path, random.random() < 0.15)
    if kind == "estimate":
        return Estimate(domain, path)
    if kind == "match":
        return Match(domain, path, random.random() < 0.7)
    if kind == "truncate":
        return Truncate(domain, path, _random_length(random))
    return Remove(domain, path, _random_places(random), random.random() < 0.1)


def _random_fork(random: Random) -> Fork:
    # Whole earlier paths are what removals and second insertions meet.
    tail = random.choice([0, 1, 1]) * _random_length(random)
    cut = random.choice([BLOCKS_MAX, _random_length(random)])
    return Fork(random.randrange(PATHS), cut, tail, random.randrange(3))


def _random_length(random: Random) -> int:
    kind = random.randrange(3)
    if kind == 0:
        return random.randrange(7)
    if kind == 1:
        return random.choice([62, 63, 64, 65, 66, 127, 128, 129, 130])
    return random.randint(1, BLOCKS_MAX)


def _random_places(random: Random) -> tuple[int, ...]:
    """One place, a run of them from the end on, or any, some twice."""
    kind = random.randrange(3)
    first = _random_length(random)
    if kind == 0:
        return (first,)
    if kind == 1:
        return tuple(range(first + random.randrange(12), first - 1, -1))
    return tuple(_random_length(random) for _ in range(random.randint(2, 6)))


def _random_heads(random: Random) -> Heads:
    return random.choice(["all", "all", "none", "older"])


def plainer(step: Any) -> Iterator[Any]:
    """Steps that differ from this one in one place, where they are smaller."""
    if isinstance(step, Crash):
        yield step.during
        yield Reopen(step.heads)
    if isinstance(step, Together):
        yield from step.steps
    for field in fields(step):
        for value in _smaller(getattr(step, field.name)):
            yield replace(step, **{field.name: value})


def _smaller(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from [False] * value
    elif isinstance(value, int):
        yield from dict.fromkeys(smaller for smaller in (0, value // 2, value - 1) if 0 <= smaller < value)
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield value[:at] + value[at + 1 :]
            yield from (value[:at] + (smaller,) + value[at + 1 :] for smaller in _smaller(item))
    elif is_dataclass(value):
        yield from plainer(value)
