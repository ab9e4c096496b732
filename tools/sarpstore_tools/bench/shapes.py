"""Random sequences of block ids, made fast, and locations that can be checked without an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Ids = npt.NDArray[np.uint8]
"""Block ids, (blocks, 16)."""

PLAIN_BLOCKS = 4096
FORKS = 80
BASE_BLOCKS = 512
FORK_BLOCKS = (20, 60)
UNKNOWN_BLOCKS = 4

PROMPTS = 64
PROMPT_BLOCKS = (16, 256)
SESSION_BLOCKS = (4, 2048)
SESSION_BLOCKS_MEDIAN = 96
TURNS_MAX = 4
SESSIONS_AT_ONCE = 256


def random_ids(rng: np.random.Generator, blocks: int) -> Ids:
    """New block ids, (blocks, 16)."""
    return np.frombuffer(rng.bytes(16 * blocks), np.uint8).reshape(-1, 16)


def locations_of(ids: Ids) -> npt.NDArray[Any]:
    """A location (`sarpstore.LOCATION`) for each id: its first 14 bytes, so that a wrong one shows by itself."""
    rows: npt.NDArray[Any] = np.ascontiguousarray(ids[:, : sarpstore.LOCATION.itemsize]).view(sarpstore.LOCATION)
    return rows.reshape(-1)


def family(rng: np.random.Generator, base_blocks: int, forks: int, fork_blocks: tuple[int, int]) -> list[Ids]:
    """A base sequence and `forks` more: each leaves a random earlier one at a random block and adds new blocks."""
    members = [random_ids(rng, base_blocks)]
    fresh = random_ids(rng, fork_blocks[1] * forks)
    lengths = rng.integers(fork_blocks[0], fork_blocks[1] + 1, forks).tolist()
    parents, cuts = rng.random(forks).tolist(), rng.random(forks).tolist()
    for i in range(forks):
        parent = members[int(parents[i] * len(members))]
        cut = 1 + int(cuts[i] * (len(parent) - 1))
        begin = fork_blocks[1] * i
        members.append(np.concatenate([parent[:cut], fresh[begin : begin + lengths[i]]]))
    return members


def plain(rng: np.random.Generator) -> Iterator[Ids]:
    """Sequences of 4,096 blocks that share nothing, without end."""
    while True:
        yield random_ids(rng, PLAIN_BLOCKS)


def branching(rng: np.random.Generator) -> Iterator[Ids]:
    """Families of 81 sequences, without end: 512 blocks, and forks of it and of one another, 20 to 60 new blocks each.

    Forks diverge inside windows, so that a window of the base is the start of some ten entries.
    """
    while True:
        yield from family(rng, BASE_BLOCKS, FORKS, FORK_BLOCKS)


def sessions(rng: np.random.Generator) -> Iterator[Ids]:
    """Sessions without end, 256 at a time, each behind one of 64 prompts, some more frequent than others.

    A prompt has 16 to 256 blocks; a session adds 4 to 2,048 (half of them up to 96) in one to four turns, and comes
    once for each, longer each time.
    """
    prompts = [random_ids(rng, int(blocks)) for blocks in rng.integers(*PROMPT_BLOCKS, PROMPTS)]
    frequency = 1 / np.arange(1, PROMPTS + 1)
    frequency /= frequency.sum()
    while True:
        own = rng.lognormal(np.log(SESSION_BLOCKS_MEDIAN), 1.0, SESSIONS_AT_ONCE).clip(*SESSION_BLOCKS).astype(int)
        chosen = [prompts[i] for i in rng.choice(PROMPTS, SESSIONS_AT_ONCE, p=frequency).tolist()]
        fresh = np.split(random_ids(rng, int(own.sum())), own.cumsum()[:-1])
        made = [np.concatenate(both) for both in zip(chosen, fresh, strict=True)]
        turns = rng.integers(1, TURNS_MAX + 1, SESSIONS_AT_ONCE).tolist()
        for turn in range(1, TURNS_MAX + 1):
            for ids, prompt, last in zip(made, chosen, turns, strict=True):
                if turn <= last:
                    yield ids[: len(prompt) + -(-(len(ids) - len(prompt)) * turn // last)]


SHAPES: dict[str, Callable[[np.random.Generator], Iterator[Ids]]] = {
    "plain": plain,
    "branching": branching,
    "sessions": sessions,
}


def wrong_answer(match: Any, ids: Ids, least: int, most: int) -> str:
    """What is wrong with the answer to a query of `ids`, of which `least` to `most` blocks must match; else empty."""
    if not least <= match.blocks <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        return f"{match.blocks} blocks match where {expected} should"
    held = ids[: match.blocks]
    if not np.array_equal(match.ids, held):
        return f"other ids than asked for among {match.blocks}"
    if not np.array_equal(match.locations, locations_of(held)):
        return f"wrong locations among {match.blocks} blocks"
    return ""
