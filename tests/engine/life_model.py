"""What a store holds after a life of operations: a dict a domain, and a tree that knows which block follows which.

A model is never changed: an operation gives the states that come after it, so that a life can go back to any of them
after a crash, and try several orders of what was started together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Domain: TypeAlias = tuple[str, int]
"""(namespace, holder): the same tokens under another of them are other blocks."""

Block: TypeAlias = int
Path: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[float, float]
"""A time that is known to lie between two."""

WINDOW: Final = 64
"""Blocks of a window: those of one record."""

UNKNOWN: Final = 0.0
"""The earliest time."""

Value = TypeVar("Value")
_NOWHERE: Final[frozenset[int]] = frozenset()


def longest(paths: Iterable[Path]) -> list[Path]:
    """Those that none of the others begins with: what they match tells what all of them do."""
    ordered = sorted(paths)
    return [path for path, after in zip_longest(ordered, ordered[1:], fillvalue=()) if after[: len(path)] != path]


class Tree:
    """A number for each prefix that was ever spoken of, whatever is held of it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Block, int], Block] = {}
        self._followers: list[list[Block]] = [[]]
        self._paths: dict[Path, list[Block]] = {}
        self._parents: list[Block] = [0]
        self._depths = [-1]
        self.shortened: set[tuple[Domain, Block]] = set()
        """What stands before a removed block in its window. Where records were evicted, and a crash brought some back,
        it may be held by one alone that did not introduce it, and goes with what that introduced.
        """

    def note_removed(self, domain: Domain, blocks: Iterable[Block]) -> None:
        """These were removed once."""
        for block in blocks:
            while block and self._depths[block] % WINDOW:
                block = self._parents[block]
                self.shortened.add((domain, block))

    def blocks(self, path: Path) -> list[Block]:
        """The numbers of a path's blocks, a token each."""
        known = self._paths.get(path)
        if known is None:
            known = self._paths[path] = self._walk(path)
        return known

    def _walk(self, path: Path) -> list[Block]:
        parent, found = 0, []
        for token in path:
            number = self._numbers.get((parent, token))
            if number is None:
                number = self._numbers[parent, token] = len(self._followers)
                self._followers.append([])
                self._parents.append(parent)
                self._depths.append(self._depths[parent] + 1)
                self._followers[parent].append(number)
            found.append(number)
            parent = number
        return found

    def without(self, held: dict[Block, Value], blocks: list[Block]) -> dict[Block, Value]:
        """What is left of `held`, a whole tree, when these blocks and all that follows them are gone."""
        left, gone = dict(held), list(blocks)
        while gone:
            block = gone.pop()
            if left.pop(block, None) is not None:
                gone += self._followers[block]
        return left

    def behind(self, blocks: list[Block]) -> set[Block]:
        """These blocks and all that follows them, held or not."""
        found, left = set(), list(blocks)
        while left:
            block = left.pop()
            found.add(block)
            left += self._followers[block]
        return found


@dataclass
class News:
    """What answers of one domain say of what the store did by itself."""

    missing: list[Block] = field(default_factory=list)
    """Not there any more, nor what follows."""
    found: list[Block] = field(default_factory=list)
    """There when one of the answers was given."""
    seen: list[Block] = field(default_factory=list)
    """There when all of them had been given."""
    moved: dict[Block, int] = field(default_factory=dict)
    """Found at this other address."""
    masked: list[Block] = field(default_factory=list)
    """Not found now, which says nothing of later."""
    also: dict[Block, int] = field(default_factory=dict)
    """Masked ones that were inserted again, and where."""


@dataclass(frozen=True)
class Model:
    """One state: of each held block the address that it was first inserted with, since it was last removed."""

    tree: Tree = field(compare=False, repr=False)
    held: dict[Domain, dict[Block, int]] = field(default_factory=dict)
    counts: dict[tuple[Domain, Block], int] = field(default_factory=dict)
    """Those above 1, also of blocks that are gone by now: as the store, until they are inserted anew."""
    named: frozenset[str | int] = frozenset()
    """Namespaces and holders that were ever inserted for."""
    sure: dict[Domain, frozenset[Block]] = field(default_factory=dict)
    """Of held blocks those that were seen, or inserted, since anything was evicted last."""
    gone: dict[Domain, dict[Block, frozenset[int]]] = field(default_factory=dict)
    """What was evicted or has expired, and where it was: the next process may find it in the log again."""
    loose: dict[Domain, dict[Block, frozenset[int]]] = field(default_factory=dict)
    """What this process may have found again, and all addresses that it may have."""
    born: dict[Domain, dict[Block, Span]] = field(default_factory=dict)
    """When sequences' first blocks were inserted, as far as that is known; where anything has a time to live."""

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

    def insert(
        self, domain: Domain, path: Path, address: int, *, counted: bool, born: Span | None = None
    ) -> tuple[list[Model], int]:
        """Hold a path, whose blocks are at `address` and behind; the states that follow, and how many are new.

        They are in and counted in one step.
        """
        if not path:
            return [], 0
        before, blocks = len(self.match(domain, path)), self.tree.blocks(path)
        inserted = self
        if before < len(path):
            held = dict(zip(blocks, count(address), strict=False)) | self.held.get(domain, {})
            inserted = replace(self, held=self.held | {domain: held}, named=self.named | set(domain))
            if born and not before:
                inserted = replace(inserted, born=self.born | {domain: self.born.get(domain, {}) | {blocks[0]: born}})
        return [inserted._count(domain, blocks, before, counted=counted)], len(path) - before

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
        held, gone, loose = (
            {domain: blocks for domain, blocks in each.items() if domain[1] != holder}
            for each in (self.held, self.gone, self.loose)
        )
        counts = {key: count for key, count in self.counts.items() if key[0][1] != holder}
        return [replace(self, held=held, counts=counts, gone=gone, loose=loose)]

    def _without(self, domain: Domain, blocks: list[Block]) -> Model:
        held = self.tree.without(self.held.get(domain, {}), blocks)
        self.tree.note_removed(domain, blocks)
        model = replace(self, held=self.held | {domain: held})
        if not (self.gone.get(domain) or self.loose.get(domain)):
            return model
        # What is not known to be held is removed as well, and never comes back.
        dead = self.tree.behind([block for block in blocks if block])
        gone, loose = (_but(each.get(domain, {}), dead) for each in (self.gone, self.loose))
        return replace(model, gone=self.gone | {domain: gone}, loose=self.loose | {domain: loose})

    # --- following what the store does by itself

    def evicted(self) -> Model:
        """Something was evicted, nobody says what."""
        return replace(self, sure={}) if self.sure else self

    def learned(self, domain: Domain, news: News) -> Model:
        """The same where an answer told this much."""
        model = self
        if news.moved:
            model = replace(model, held=model.held | {domain: model.held[domain] | news.moved})
        if news.missing:
            model = model.missing(domain, news.missing)
        if also := {block: address for block, address in news.also.items() if block in model.held[domain]}:
            held, loose = model.held[domain], dict(model.loose.get(domain, {}))
            for block, address in also.items():
                loose[block] = loose.get(block, _NOWHERE) | {held[block], address}
            model = replace(model, loose=model.loose | {domain: loose})
        known = model.sure.get(domain, frozenset())
        if known.issuperset(news.seen):
            return model
        return replace(model, sure=model.sure | {domain: known.union(news.seen)})

    def missing(self, domain: Domain, blocks: list[Block]) -> Model:
        """The store does not have these held blocks any more, nor what follows them."""
        held, loose = self.held.get(domain, {}), self.loose.get(domain, {})
        left = self.tree.without(held, blocks)
        if len(left) == len(held):
            return self
        lost = held.keys() - left.keys()
        gone = dict(self.gone.get(domain, {}))
        for block in lost:
            gone[block] = gone.get(block, _NOWHERE) | loose.get(block, _NOWHERE) | {held[block]}
        return replace(
            self,
            held=self.held | {domain: left},
            sure=self.sure | {domain: self.sure.get(domain, frozenset()) - lost},
            gone=self.gone | {domain: gone},
            loose=self.loose | {domain: _but(loose, lost)} if loose else self.loose,
        )

    def expired(self, before: Callable[[Domain], float]) -> Model:
        """What follows a first block that was surely inserted before these times has outlived its own."""
        model = self
        for domain, born in self.born.items():
            limit, held = before(domain), self.held.get(domain, {})
            if dead := [block for block, (_, latest) in born.items() if latest < limit and block in held]:
                model = model.missing(domain, dead)
        return model

    def loosened(self, domain: Domain, blocks: set[Block]) -> Model:
        """Some answers have these held blocks, others do not."""
        held, loose = self.held[domain], dict(self.loose.get(domain, {}))
        for block in blocks:
            loose[block] = loose.get(block, _NOWHERE) | {held[block]}
        return replace(self, loose=self.loose | {domain: loose})

    def born_too(self, domain: Domain, path: Path, latest: float) -> Model:
        """A path whose first block may be there was inserted from it on."""
        born = self.born.get(domain, {})
        if not path or self.tree.blocks(path)[0] not in born:
            return self
        return replace(self, born=self.born | {domain: born | {self.tree.blocks(path)[0]: (UNKNOWN, latest)}})

    def opened_again(self, now: float, noted: float, expired: Callable[[Domain], float]) -> Model:
        """Another process may have found what was evicted or had expired, where its log still had it.

        It knows when what was inserted before `noted` was; of all else it knows that it was before `now`. Of what was
        inserted before `expired` it may have a part: the last process need not have compacted all of it away.
        """
        model = self
        for domain, gone in self.gone.items():
            held = model.held.get(domain, {})
            back = {block: min(addresses) for block, addresses in gone.items()}
            loose = dict(model.loose.get(domain, {}))
            for block, addresses in gone.items():
                loose[block] = loose.get(block, _NOWHERE) | addresses | ({held[block]} if block in held else _NOWHERE)
            model = replace(model, held=model.held | {domain: back | held}, loose=model.loose | {domain: loose})
        born = {domain: self._born_again(domain, now, noted, expired(domain)) for domain in self.born}
        return replace(model, gone={}, born=born)

    def _born_again(self, domain: Domain, now: float, noted: float, expired: float) -> dict[Block, Span]:
        """Where a first block that was found again is held anew, too, each path may go with the one or the other."""
        held, gone = self.held.get(domain, {}), self.gone.get(domain, {})
        return {
            block: (
                UNKNOWN if (block in held and block in gone) or earliest < expired else earliest,
                latest if latest < noted else now,
            )
            for block, (earliest, latest) in self.born[domain].items()
        }


def _but(values: dict[Block, Value], blocks: Any) -> dict[Block, Value]:
    return {block: value for block, value in values.items() if block not in blocks}
