"""An exact oracle of what a store must answer: a radix tree over token blocks, compared token by token.

It shares nothing with the engine: no hashes, no segments, no windows, no files. It numbers blocks in the order in which
they first appear (their *ordinal*); a block that is held keeps its ordinal, and a replay derives its location from
it, so locations can be checked as exactly as lengths. About 32 to 64 bytes of memory a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sarpstore_tools.traces.model import TOKEN_BLOCK
from sarpstore_tools.traces.random_tokens import splitmix64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.traces.model import Tokens

Ordinals = npt.NDArray[np.int64]

DECOY = 1 << 48
"""Added to an ordinal, gives one that no block has."""

NO_ORDINALS: Ordinals = np.zeros(0, dtype=np.int64)


class _Edge:
    """A run of blocks without a branch: its tokens, its first block's ordinal, and the edges that follow it."""

    __slots__ = ("children", "first", "tokens")

    def __init__(self, tokens: npt.NDArray[Any], first: int) -> None:
        self.tokens = tokens
        self.first = first
        self.children: dict[bytes, _Edge] = {}

    def common(self, tokens: Tokens) -> int:
        """How many whole blocks of this edge `tokens` begins with."""
        length = min(len(self.tokens), len(tokens))
        same = self.tokens[:length] == tokens[:length]
        return (length if same.all() else int(same.argmin())) // TOKEN_BLOCK

    def split(self, blocks: int) -> None:
        """Cut this edge after `blocks` blocks: what follows becomes its only child."""
        cut = blocks * TOKEN_BLOCK
        rest = _Edge(self.tokens[cut:].copy(), self.first + blocks)
        rest.children = self.children
        # A copy, so that the memory of the uncut edge is given back.
        self.tokens = self.tokens[:cut].copy()
        self.children = {_key(rest.tokens): rest}


class Oracle:
    """What a store holds after the insertions so far, for any number of namespaces."""

    def __init__(self) -> None:
        self.blocks = 0
        """Unique blocks inserted: also the next ordinal."""
        self._roots: dict[str, _Edge] = {}

    def match(self, namespace: str, tokens: Tokens) -> int:
        """How many leading blocks of `tokens` are held."""
        return sum(count for _, count in self._walk(namespace, tokens))

    def ordinals(self, namespace: str, tokens: Tokens) -> Ordinals:
        """The ordinals of the leading blocks that are held, one a block."""
        return _join(list(self._walk(namespace, tokens)))

    def insert(self, namespace: str, tokens: Tokens) -> Ordinals:
        """Hold every whole block of `tokens`; returns all their ordinals, new ones for those that were not held."""
        tokens = tokens[: len(tokens) // TOKEN_BLOCK * TOKEN_BLOCK]
        runs: list[tuple[int, int]] = []
        edge, rest = self._root(namespace), tokens
        while len(rest):
            child = edge.children.get(_key(rest))
            if child is None:
                child = _Edge(_lean(rest), self.blocks)
                edge.children[_key(rest)] = child
                self.blocks += len(rest) // TOKEN_BLOCK
            common = child.common(rest)
            if common * TOKEN_BLOCK < len(child.tokens) and common * TOKEN_BLOCK < len(rest):
                child.split(common)
            runs.append((child.first, common))
            edge, rest = child, rest[common * TOKEN_BLOCK :]
        return _join(runs)

    def _root(self, namespace: str) -> _Edge:
        return self._roots.setdefault(namespace, _Edge(np.zeros(0, dtype=np.uint16), 0))

    def _walk(self, namespace: str, tokens: Tokens) -> Iterator[tuple[int, int]]:
        """Runs of (first ordinal, blocks) along the part of `tokens` that is held."""
        edge, rest = self._root(namespace), tokens
        while len(rest) >= TOKEN_BLOCK:
            child = edge.children.get(_key(rest))
            if child is None:
                return
            common = child.common(rest)
            yield child.first, common
            if common * TOKEN_BLOCK < len(child.tokens):
                return
            edge, rest = child, rest[common * TOKEN_BLOCK :]


def locations_of(ordinals: Ordinals, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Locations of a location dtype, one a block, that no two ordinals below 2**64 share by accident.

    Every byte is a function of the ordinal alone, so a row taken from another block, or cut short, shows.
    """
    words = -(-dtype.itemsize // 8)
    mixed = np.empty((len(ordinals), words), dtype=np.uint64)
    for word in range(words):
        mixed[:, word] = splitmix64(ordinals.astype(np.uint64) + np.uint64(word << 56))
    rows = np.ascontiguousarray(mixed.view(np.uint8).reshape(len(ordinals), words * 8)[:, : dtype.itemsize])
    return rows.reshape(-1).view(dtype)


def decoys_of(ordinals: Ordinals, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Locations that no block has: what an insertion offers for blocks that are held, and a store must not take."""
    return locations_of(ordinals + DECOY, dtype)


def _key(tokens: npt.NDArray[Any]) -> bytes:
    """A block as a dictionary key: its tokens, whatever width they are kept in."""
    return tokens[:TOKEN_BLOCK].astype(np.uint32, copy=False).tobytes()


def _lean(tokens: Tokens) -> npt.NDArray[Any]:
    """A copy of `tokens` in the narrowest width that holds them."""
    return tokens.astype(np.uint16 if tokens.max(initial=0) < 1 << 16 else np.uint32, copy=True)


def _join(runs: list[tuple[int, int]]) -> Ordinals:
    if not runs:
        return NO_ORDINALS
    return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in runs])
