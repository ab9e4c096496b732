"""What a store holds after a life of operations: a dict a domain, and a tree that knows which block follows which.

A model is never changed: an operation gives the states that come after it, so that a life can go back to any of them
after a crash, and try several orders of what was started together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

Domain: TypeAlias = tuple[str, int]
"""(namespace, holder): the same tokens under another of them are other blocks."""

Block: TypeAlias = int
Path: TypeAlias = tuple[int, ...]


class Tree:
    """A number for each prefix that was ever spoken of, whatever is held of it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Block, int], Block] = {}
        self._followers: list[list[Block]] = [[]]
        self._paths: dict[Path, list[Block]] = {}

    def blocks(self, path: Path) -> list[Block]:
        """The numbers of a path's blocks, a token each."""
        known = self._paths.get(path)
        if known is None:
            known = self._paths[path] = self._walk(path)
        return known

    def is_leaf(self, path: Path) -> bool:
        """Whether no longer path was spoken of."""
        return not path or not self._followers[self.blocks(path)[-1]]

    def _walk(self, path: Path) -> list[Block]:
        parent, found = 0, []
        for token in path:
            number = self._numbers.get((parent, token))
            if number is None:
                number = self._numbers[parent, token] = len(self._followers)
                self._followers.append([])
                self._followers[parent].append(number)
            found.append(number)
            parent = number
        return found

    def without(self, held: dict[Block, int], blocks: list[Block]) -> dict[Block, int]:
        """What is left of `held` when these blocks and all that follows them are gone."""
        left, gone = dict(held), list(blocks)
        while gone:
            block = gone.pop()
            if left.pop(block, None) is not None:
                gone += self._followers[block]
        return left


@dataclass(frozen=True)
class Model:
    """One state: of each held block the address that it was first inserted with, since it was last removed."""

    tree: Tree = field(compare=False, repr=False)
    held: dict[Domain, dict[Block, int]] = field(default_factory=dict)
    counts: dict[tuple[Domain, Block], int] = field(default_factory=dict)
    """Those above 1, also of blocks that are gone by now: as the store, until they are inserted anew."""
    named: frozenset[str | int] = frozenset()
    """Namespaces and holders that were ever inserted for."""

    # --- asking

    def match(self, domain: Domain, path: Path) -> list[int]:
        """The addresses of the leading blocks that are held."""
        found: list[Any] = list(map(self.held.get(domain, {}).get, self.tree.blocks(path)))
        return found[: found.index(None)] if None in found else found

    def holders(self, name: str, path: Path) -> dict[int, int]:
        """How many blocks each holder has."""
        found = {holder: len(self.match((name, holder), path)) for other, holder in self.held if other == name}
        return {holder: blocks for holder, blocks in found.items() if blocks}

    # --- changing

    def insert(self, domain: Domain, path: Path, address: int, *, counted: bool) -> tuple[list[Model], int]:
        """Hold a path, whose blocks are at `address` and behind; the states that follow, and how many are new.

        Blocks are counted after they are in: a crash may come between.
        """
        if not path:
            return [], 0
        before, blocks = len(self.match(domain, path)), self.tree.blocks(path)
        inserted = self
        if before < len(path):
            held = dict(zip(blocks, count(address), strict=False)) | self.held.get(domain, {})
            inserted = replace(self, held=self.held | {domain: held}, named=self.named | set(domain))
        return [inserted, inserted._count(domain, blocks, before, counted=counted)], len(path) - before

    def _count(self, domain: Domain, blocks: list[Block], before: int, *, counted: bool) -> Model:
        if not (self.counts or (counted and before)):
            return self
        counts = dict(self.counts)
        for block in blocks[before:]:
            counts.pop((domain, block), None)
        for block in blocks[:before] if counted else ():
            counts[domain, block] = counts.get((domain, block), 1) + 1
        return replace(self, counts=counts)

    def remove(self, domain: Domain, blocks: list[Block]) -> tuple[list[Model], int | None]:
        """Remove blocks, in any order, and what follows them: the state after it, and how many count as removed.

        None, if nothing was ever inserted there: while the first insertion waits for a read, they may count or not.
        """
        if not self.named.issuperset(domain):
            return [], None
        if not blocks:
            return [], 0
        if not any((domain, block) in self.counts for block in blocks):
            return [self._without(domain, blocks)], len(set(blocks))
        counts, gone = dict(self.counts), []
        for block in dict.fromkeys(blocks):
            left = counts.get((domain, block), 1) - blocks.count(block)
            if left <= 0:
                gone.append(block)
            elif left == 1:
                counts.pop((domain, block), None)
            else:
                counts[domain, block] = left
        return [replace(self._without(domain, gone), counts=counts)], len(gone)

    def truncate(self, domain: Domain, path: Path, blocks: int) -> list[Model]:
        """Remove a path's block number `blocks`, and all that follows it."""
        return [self._without(domain, self.tree.blocks(path)[blocks : blocks + 1])]

    def clear(self, holder: int) -> list[Model]:
        """Remove all that a holder has."""
        held = {domain: blocks for domain, blocks in self.held.items() if domain[1] != holder}
        counts = {key: count for key, count in self.counts.items() if key[0][1] != holder}
        return [replace(self, held=held, counts=counts)]

    def _without(self, domain: Domain, blocks: list[Block]) -> Model:
        held = self.tree.without(self.held.get(domain, {}), blocks)
        return replace(self, held=self.held | {domain: held})
