"""A pure-Python twin of the directory of posting lists, its matching and its insertion, for differential tests.

It follows `format-spec/postings.md` in the plainest way: lists are dicts, records are dataclasses in a dict by
position, postings name records by position instead of a reference. It is slow. Removals and compaction are not
modelled. Counts and offsets are in blocks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sarpstore._format import WINDOW
from sarpstore._kernel.twin_directory import NO_PREFIX, Segment
from sarpstore._kernel.twin_hash import directory_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OFFSETS: Final = (0, 8, 16, 24, 32, 40, 48, 63)
EXPANDED: Final = 1
REFINED: Final = 2
ADD: Final = 1
DROP: Final = 2
FINGERPRINTS: Final = 8
LIST_GROWN_MAX: Final = 256
_REGIONS: Final = 32
_U64: Final = (1 << 64) - 1


def fingerprint(block_id: bytes, secret: bytes) -> int:
    """Section 1: of the last block of a region."""
    mixed = int.from_bytes(block_id[:8], "little") ^ int.from_bytes(secret[8:], "little")
    mixed = mixed * 0x9E3779B97F4A7C15 & _U64
    return 1 + ((mixed >> 32) * 255 >> 32)


def filter_of(ids: Sequence[bytes], point: int, secret: bytes) -> int:
    """Section 1: of a window's ids at a point."""
    if point == 7:
        return 0
    first = OFFSETS[point] // 2
    regions = [i for i in range(first, first + FINGERPRINTS) if i < _REGIONS]
    prints = [fingerprint(ids[2 * i + 1], secret) if 2 * i + 1 < len(ids) else 0 for i in regions]
    return int.from_bytes(bytes(prints).ljust(FINGERPRINTS, b"\0"), "big")


def successor(point: int, flags: int) -> int | None:
    """Section 3."""
    if point == 7:
        return None
    if point == 6:
        return 7 if flags & REFINED else None
    return point + 1 if point % 2 or flags & REFINED else point + 2


def equal_fingerprints(left: int, right: int) -> int:
    """How many leading fingerprints are equal and not 0."""
    pairs = zip(left.to_bytes(8, "big"), right.to_bytes(8, "big"), strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b or not a), FINGERPRINTS)


@dataclass(frozen=True, slots=True)
class Posting:
    """What a list says of a record: section 2. `point` is that under which it was first added."""

    n: int
    d: int
    point: int


@dataclass(frozen=True, slots=True)
class ListChange:
    """One change of one list (section 4): of a posting, or with position 0 of a state, whose flags are in `filter`."""

    operation: int
    point: int
    key: int
    filter: int
    position: int
    n: int
    d: int


Members: TypeAlias = dict[tuple[int, int], Posting]
"""A list's postings by (filter, position)."""


class TwinPostings:
    """The directory: lists and states by key. It knows no ids and reads nothing."""

    def __init__(self) -> None:
        self.lists: dict[int, Members] = {}
        self.states: dict[int, int] = {}
        self.state_points: dict[int, int] = {}
        """The point that a key's state was first set under."""

    def at(self, key: int) -> Members:
        return self.lists.get(key, {})

    def apply(self, change: ListChange) -> bool:
        """Applying it again changes nothing; whether it changed something."""
        if not change.position:
            return self._apply_state(change)
        members, element = self.lists.setdefault(change.key, {}), (change.filter, change.position)
        present = element in members
        if change.operation == ADD and not present:
            members[element] = Posting(change.n, change.d, change.point)
        elif change.operation == DROP and present:
            del members[element]
        if not members:
            del self.lists[change.key]
        return present != (change.operation == ADD)

    def _apply_state(self, change: ListChange) -> bool:
        before = self.states.get(change.key, 0)
        after = before | change.filter if change.operation == ADD else before & ~change.filter
        if not before:
            self.state_points[change.key] = change.point
        self.states[change.key] = after
        if not after:
            del self.states[change.key], self.state_points[change.key]
        return before != after

    def blocks(self) -> int:
        """Blocks held: section 2."""
        postings = (p for members in self.lists.values() for p in members.values())
        return sum(p.n - p.d for p in postings if p.point == 0)

    def elements(self) -> set[tuple[int, ...]]:
        """(key, filter, position, n, d, point) of every posting, and (key, 0, 0, flags, 0, point) of every state."""
        postings = {(key, *e, p.n, p.d, p.point) for key, found in self.lists.items() for e, p in found.items()}
        return postings | {(key, 0, 0, flags, 0, self.state_points[key]) for key, flags in self.states.items()}


@dataclass(frozen=True, slots=True)
class Proof:
    """`length` blocks of a window, proved by the record at `position`, as the posting has it."""

    position: int
    length: int
    n: int
    d: int


@dataclass(slots=True)
class PostingsMatch:
    """`proofs`: one a window; `reads`: positions of the records that were looked at, in order, by window."""

    blocks: int = 0
    proofs: list[Proof] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Written:
    """An insertion: its segments with their points and old n, and what else it changed, in order."""

    segments: tuple[Segment, ...]
    points: tuple[int, ...]
    old_n: int
    growth: tuple[ListChange, ...]


class TwinPostingsStore:
    """A directory and the records that it names: match, insert, damage."""

    def __init__(
        self, secret: bytes, read_cap: int = 4, refine_at: int = 16, prune_at: int = 3, tie_cap: int = 8192
    ) -> None:
        self.secret = secret
        self.read_cap, self.refine_at, self.prune_at, self.tie_cap = read_cap, refine_at, prune_at, tie_cap
        self.directory = TwinPostings()
        self.records: dict[int, Segment] = {}
        """By position; those that can be read."""

    # Section 6

    def key(self, ids: Sequence[bytes], offset: int, holder: int, namespace: int) -> int:
        return directory_key(ids[offset], holder, namespace, self.secret)

    def match(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> PostingsMatch:
        """How many blocks are held, as far as a capped search finds them."""
        out = PostingsMatch()
        for window in range(-(-len(ids) // WINDOW)):
            own = ids[window * WINDOW : (window + 1) * WINDOW]
            if not self.directory.at(self.key(own, 0, holder, namespace)):
                break
            prefix = ids[window * WINDOW - 1] if window else NO_PREFIX
            proof, reads = self._search(own, (holder, namespace, window, prefix))
            out.reads.append(reads)
            if proof is None:
                break
            out.proofs.append(proof)
            out.blocks = window * WINDOW + proof.length
            if proof.length < WINDOW:
                break
        return out

    def locations(self, found: PostingsMatch) -> list[bytes]:
        return [where for p in found.proofs for where in self.records[p.position].locations[: p.length]]

    def route(self, own: Sequence[bytes], holder: int, namespace: int) -> tuple[int, int]:
        """(key, point) of the deepest list on a window's path."""
        key, point = self.key(own, 0, holder, namespace), 0
        while self.directory.states.get(key, 0) & EXPANDED:
            then = successor(point, self.directory.states[key])
            if then is None or OFFSETS[then] >= len(own):
                break
            next_key = self.key(own, OFFSETS[then], holder, namespace)
            if not self.directory.at(next_key):
                break
            key, point = next_key, then
        return key, point

    def candidates(self, own: Sequence[bytes], key: int, point: int) -> list[tuple[int, int, Posting]]:
        """(most blocks that it can have in common, position, posting) of a list's postings, the best first."""
        wanted = filter_of(own, point, self.secret)
        groups: dict[tuple[int, bool], list[tuple[int, int, Posting]]] = {}
        for (value, position), posting in self.directory.at(key).items():
            rank = equal_fingerprints(wanted, value), value == wanted
            groups.setdefault(rank, []).append((value, position, posting))
        out = []
        for equal, same in sorted(groups, reverse=True):
            bounded = equal < FINGERPRINTS and point != 7
            most = OFFSETS[point] + 2 * equal + 1 if bounded else WINDOW
            group = sorted(groups[equal, same], key=lambda e: e[:2])
            before = [e for e in group if e[0] < wanted][-self.tie_cap :]
            behind = [e for e in group if e[0] >= wanted][: self.tie_cap]
            for _, position, posting in sorted(before + behind, key=lambda e: (-e[2].n, -e[1])):
                out.append((min(most, posting.n, len(own)), position, posting))
        return out

    def _search(self, own: Sequence[bytes], place: tuple[int, int, int, bytes]) -> tuple[Proof | None, list[int]]:
        best: Proof | None = None
        reads: list[int] = []
        key, point = self.route(own, *place[:2])
        for bound, position, posting in self.candidates(own, key, point):
            if len(reads) == self.read_cap or bound <= (best.length if best else 0):
                break
            reads.append(position)
            length = self._prove(own, position, posting.n, place)
            if length > (best.length if best else 0):
                best = Proof(position, length, posting.n, posting.d)
        return best, reads

    def _prove(self, own: Sequence[bytes], position: int, n: int, place: tuple[int, int, int, bytes]) -> int:
        segment = self.records.get(position)
        if segment is None or (segment.holder, segment.namespace, segment.window, segment.prefix_id) != place:
            return 0
        pairs = list(zip(segment.ids[:n], own, strict=False))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))

    def estimate(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> tuple[int, int]:
        """(at least, at most) from memory alone."""
        at_least = first = 0
        route = None
        while first < len(ids) and self.directory.at(self.key(ids, first, holder, namespace)):
            own = ids[first : first + WINDOW]
            route = own, *self.route(own, holder, namespace)
            # A later window's lists do not say that an earlier one is whole.
            at_least = first + OFFSETS[route[2]] + 1 if at_least == first else at_least
            first += WINDOW
        if route is None:
            return 0, 0
        return at_least, first - WINDOW + max(most for most, _, _ in self.candidates(*route))

    # Sections 3 and 7

    def insert(
        self,
        ids: Sequence[bytes],
        locations: Sequence[bytes],
        holder: int,
        namespace: int,
        positions: Callable[[], int] | Iterator[int],
    ) -> Written | None:
        """Hold these blocks. `positions` gives the new records' in turn. None if all is held."""
        found = self.match(ids, holder, namespace)
        if found.blocks == len(ids):
            return None
        take = iter(positions, None) if callable(positions) else positions
        segments: list[Segment] = []
        while found.blocks // WINDOW + len(segments) < -(-len(ids) // WINDOW):
            segments.append(self._segment(ids, locations, holder, namespace, found, segments, next(take)))
        old_n = found.proofs[-1].n if segments[0].supersedes else 0
        for segment in segments:
            self.records[segment.position] = segment
        growing = _Growing(self)
        points = tuple(growing.enter(s, old_n if s.supersedes else 0) for s in segments)
        growing.grow()
        return Written(tuple(segments), points, old_n, tuple(growing.changes))

    def _segment(
        self,
        ids: Sequence[bytes],
        locations: Sequence[bytes],
        holder: int,
        namespace: int,
        found: PostingsMatch,
        before: list[Segment],
        position: int,
    ) -> Segment:
        window = found.blocks // WINDOW + len(before)
        first, end = window * WINDOW, min(len(ids), (window + 1) * WINDOW)
        held = 0 if before else found.blocks - first
        d = dp = parent = supersedes = 0
        where = tuple(locations[first:end])
        if held:
            proof = found.proofs[-1]
            owner = self.records[proof.position]
            where = owner.locations[:held] + where[held:]
            parent = owner.parent_key
            if held == proof.n:
                d, dp, supersedes = proof.d, owner.dp, proof.position
            else:
                d, dp = held, proof.d if proof.d < held else 0
        elif window:
            dp = before[-1].d if before else found.proofs[-1].d
            parent = self.key(ids, first - WINDOW + dp, holder, namespace)
        prefix = ids[first - 1] if window else NO_PREFIX
        own = tuple(ids[first:end])
        return Segment(position, holder, window, namespace, prefix, own, where, d, dp, parent, supersedes)


class _Growing:
    """What an insertion changes: first the lists that the new records enter, then what grows of that, list by list."""

    def __init__(self, store: TwinPostingsStore) -> None:
        self.store = store
        self.directory = store.directory
        self.changes: list[ListChange] = []
        self._entered: list[ListChange] = []

    def enter(self, segment: Segment, old_n: int) -> int:
        """The points that a new record is posted at as the lists are now; what it supersedes leaves them."""
        points, point = 0, 0
        while True:
            key = self.store.key(segment.ids, OFFSETS[point], segment.holder, segment.namespace)
            if OFFSETS[point] < old_n:
                old = filter_of(segment.ids[:old_n], point, self.store.secret)
                self.directory.apply(ListChange(DROP, point, key, old, segment.supersedes, old_n, segment.d))
            points |= 1 << point
            self._post(segment, segment.n, segment.d, point)
            flags = self.directory.states.get(key, 0)
            then = successor(point, flags) if flags & EXPANDED else None
            if then is None or OFFSETS[then] >= segment.n:
                return points
            point = then

    def grow(self) -> None:
        done = 0
        while done < len(self._entered):
            change = self._entered[done]
            done += 1
            if (change.filter, change.position) in self.directory.at(change.key):
                self._grow_list(change.key, change.point)

    def _grow_list(self, key: int, point: int) -> None:
        count = len(self.directory.at(key))
        if count > LIST_GROWN_MAX:
            return
        flags = self.directory.states.get(key, 0)
        then = successor(point, flags)
        if not flags & EXPANDED and then is not None and count > self.store.prune_at:
            self._post_all(key, then)
            self._state(ADD, key, point, EXPANDED)
            flags |= EXPANDED
        may_refine = point % 2 == 0 and not flags & REFINED and (flags & EXPANDED or point == 6)
        if may_refine and count > self.store.refine_at:
            self._refine(key, point)

    def _refine(self, key: int, point: int) -> None:
        made = self._post_all(key, point + 1)
        self._state(ADD, key, point, EXPANDED | REFINED)
        if point == 6:
            return
        for other in dict.fromkeys(made):
            if len(self.directory.at(other)) > self.store.prune_at:
                self._state(ADD, other, point + 1, EXPANDED)
            else:
                self._prune(other, point + 1)

    def _post_all(self, key: int, point: int) -> list[int]:
        """Post a list's records at a point; the keys of the lists that got one."""
        made = []
        for segment, posting in self._readable(key):
            if posting.n > OFFSETS[point]:
                change = self._post(segment, posting.n, posting.d, point)
                if change:
                    self.changes.append(change)
                    made.append(change.key)
        return made

    def _prune(self, key: int, point: int) -> None:
        for segment, posting in self._readable(key):
            for behind in range(point + 1, len(OFFSETS)):
                if posting.n <= OFFSETS[behind]:
                    break
                change = self._change(DROP, segment, posting.n, posting.d, behind)
                if self.directory.apply(change):
                    self.changes.append(change)
                self._state(DROP, change.key, behind, EXPANDED | REFINED)

    def _readable(self, key: int) -> list[tuple[Segment, Posting]]:
        found = [(self.store.records.get(position), p) for (_, position), p in self.directory.at(key).items()]
        return [(s, p) for s, p in found if s is not None and s.n >= p.n]

    def _change(self, operation: int, segment: Segment, n: int, d: int, point: int) -> ListChange:
        key = self.store.key(segment.ids, OFFSETS[point], segment.holder, segment.namespace)
        value = filter_of(segment.ids[:n], point, self.store.secret)
        return ListChange(operation, point, key, value, segment.position, n, d)

    def _post(self, segment: Segment, n: int, d: int, point: int) -> ListChange | None:
        change = self._change(ADD, segment, n, d, point)
        if not self.directory.apply(change):
            return None
        self._entered.append(change)
        return change

    def _state(self, operation: int, key: int, point: int, flags: int) -> None:
        present = self.directory.states.get(key, 0)
        changed = flags & ~present if operation == ADD else flags & present
        if changed:
            change = ListChange(operation, point, key, changed, 0, 1, 0)
            self.directory.apply(change)
            self.changes.append(change)


def invariant_faults(store: TwinPostingsStore) -> list[str]:
    """Section 3: every record of an expanded list that reaches its successor is in the successor's list."""
    faults = []
    directory = store.directory
    for key, flags in directory.states.items():
        points = Counter(p.point for p in directory.at(key).values())
        for (_, position), posting in directory.at(key).items():
            segment = store.records.get(position)
            then = successor(posting.point, flags)
            if not flags & EXPANDED or segment is None or then is None or posting.n <= OFFSETS[then]:
                continue
            behind = store.key(segment.ids, OFFSETS[then], segment.holder, segment.namespace)
            if (filter_of(segment.ids[: posting.n], then, store.secret), position) not in directory.at(behind):
                faults.append(f"record {position} of list {key:x} ({points}) is not in that of point {then}")
    return faults
