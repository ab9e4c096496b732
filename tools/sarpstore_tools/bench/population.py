"""Sessions that come, grow, and go: what an engine holds while it runs, without any store.

Tokens are made from numbers whenever they are needed, so that what is remembered of a session is some 300 bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK_TOKENS: Final = 16
PROMPTS: Final = 16
PROMPT_BLOCKS: Final = (8, 160)
TURN_BLOCKS: Final = (4, 60)
SESSION_BLOCKS_MAX: Final = 512
NEW_SHARE: Final = 0.25
"""How many of the turns begin a session; the others go on with one."""
HOLDERS: Final = 6
CAPACITY_MIN: Final = 20_000
"""With less, prompts might take all of it: 16 of up to 160 blocks for each of 6 holders."""
OLDEST_OF: Final = 8
"""Of so many sessions, chosen at random, the one whose last turn is the longest ago is removed."""

_WINDOW_BLOCKS: Final = 64
_HEADER_BYTES: Final = 128
_ROUNDED_TO: Final = 64
_BLOCK_BYTES: Final = 16 + sarpstore.LOCATION.itemsize

Tokens = npt.NDArray[np.uint32]
Part = tuple[int, int]
"""A stream of tokens, and how many of its leading blocks: 256 at most, or they would be those of the next stream."""


def tokens_of(parts: Iterable[Part]) -> Tokens:
    """The leading blocks of these streams, one behind the other: the same whenever they are asked for.

    A block's first two tokens are splitmix64 of its stream and number, the others 0: what comes from them is hashed.
    """
    heads = np.concatenate([np.arange(blocks, dtype=np.uint64) + np.uint64(stream << 8) for stream, blocks in parts])
    heads *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        heads ^= heads >> np.uint64(shift)
        heads *= np.uint64(factor)
    heads ^= heads >> np.uint64(31)
    words = np.zeros(len(heads) * BLOCK_TOKENS // 2, np.uint64)
    words[:: BLOCK_TOKENS // 2] = heads
    return words.view(np.uint32)


def locations_of_tokens(tokens: Tokens) -> npt.NDArray[Any]:
    """A location for each block that depends on its tokens, so that a wrong one shows by itself."""
    rows = np.zeros(len(tokens) // BLOCK_TOKENS, sarpstore.LOCATION)
    rows["address"] = tokens.view(np.uint64)[:: BLOCK_TOKENS // 2]
    return rows


@dataclass(frozen=True, slots=True)
class Path:
    """A sequence of a holder: the first part is a prompt that others share, the rest is its own."""

    holder: int
    parts: tuple[Part, ...]

    @property
    def blocks(self) -> int:
        return sum(blocks for _, blocks in self.parts)

    @property
    def shared(self) -> int:
        """Blocks of the prompt."""
        return self.parts[0][1]

    @property
    def own(self) -> int:
        return self.blocks - self.shared

    def tokens(self) -> Tokens:
        return tokens_of(self.parts)

    def cut(self, blocks: int) -> Path:
        """Its first blocks; the prompt stays whole."""
        kept, left = [], blocks
        for stream, count in self.parts:
            if left > 0:
                kept.append((stream, min(count, left)))
            left -= count
        return Path(self.holder, tuple(kept))


@dataclass(slots=True)
class Session:
    """A path that grows, and the turn at which it last did."""

    path: Path
    used: int
    place: int
    """Where it stands in the population's list."""


class Population:
    """The sessions that are held. `held` counts their own blocks and each holder's prompts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (no secret)
        self.sessions: list[Session] = []
        self.held = 0
        self.turn = 0
        self._streams = iter(range(seed << 24, 1 << 62))
        self.prompts = [(next(self._streams), self.random.randint(*PROMPT_BLOCKS)) for _ in range(PROMPTS)]
        self._prompted: set[tuple[int, Part]] = set()

    def next_turn(self) -> Session:
        """A session that has just grown, or begun."""
        self.turn += 1
        grown = None if not self.sessions or self.random.random() < NEW_SHARE else self.random.choice(self.sessions)
        if grown is None or grown.path.own >= SESSION_BLOCKS_MAX:
            prompt = self.prompts[int(PROMPTS * self.random.random() ** 2)]
            grown = self._add(Path(self.random.randrange(HOLDERS), (prompt,)))
        part = (next(self._streams), self.random.randint(*TURN_BLOCKS))
        grown.path = Path(grown.path.holder, (*grown.path.parts, part))
        grown.used = self.turn
        self.held += part[1]
        return grown

    def _add(self, path: Path) -> Session:
        session = Session(path, self.turn, len(self.sessions))
        self.sessions.append(session)
        prompt = (path.holder, path.parts[0])
        if prompt not in self._prompted:
            self._prompted.add(prompt)
            self.held += path.shared
        return session

    def oldest(self) -> Session:
        """One of those that have not been used for long."""
        return min((self.random.choice(self.sessions) for _ in range(OLDEST_OF)), key=lambda session: session.used)

    def remove(self, session: Session) -> None:
        """Its own blocks are gone; the prompt stays."""
        self.held -= session.path.own
        last = self.sessions.pop()
        if last is not session:
            self.sessions[session.place], last.place = last, session.place

    def cut(self, session: Session, blocks: int) -> None:
        """All but its first blocks are gone; it will go on from there."""
        self.held -= session.path.blocks - blocks
        session.path = session.path.cut(blocks)
        session.used = self.turn

    def clear(self, holder: int) -> list[Session]:
        """All of a holder is gone; returns the sessions that were."""
        gone = [session for session in self.sessions if session.path.holder == holder]
        for session in gone:
            self.remove(session)
        prompts = {prompt for prompt in self._prompted if prompt[0] == holder}
        self.held -= sum(blocks for _, (_, blocks) in prompts)
        self._prompted -= prompts
        return gone

    def record_bytes(self) -> int:
        """Bytes of the segment records in which all of that is held, at the least (format-spec/log.md)."""
        prompts = sum(_record_bytes(0, blocks) for _, (_, blocks) in self._prompted)
        return prompts + sum(_record_bytes(one.path.shared, one.path.blocks) for one in self.sessions)


def _record_bytes(first: int, end: int) -> int:
    """Bytes of the records of a path's windows, from the one on that has block `first`."""
    return sum(map(_rounded, _windows(first, end)))


def _windows(first: int, end: int) -> Iterator[int]:
    """Blocks of each such window."""
    for begin in range(first - first % _WINDOW_BLOCKS, end, _WINDOW_BLOCKS):
        yield min(_WINDOW_BLOCKS, end - begin)


def _rounded(blocks: int) -> int:
    return -(-(_HEADER_BYTES + _BLOCK_BYTES * blocks) // _ROUNDED_TO) * _ROUNDED_TO


def record_bytes_at(capacity: int, seed: int) -> int:
    """What a population of so many held blocks takes in records."""
    population = Population(seed)
    while population.held < capacity:
        population.next_turn()
    return population.record_bytes()
