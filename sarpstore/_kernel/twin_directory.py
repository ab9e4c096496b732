"""A pure-Python twin of the kernel's divergence directory, its matching and its insertion decision.

It exists for differential tests: the same operations go to the C kernel and to the twin, and matches, locations and
entries are compared. It is written to be read beside `format-spec/directory.md` (keys, entries, how a record changes
them) and `format-spec/log.md` 2.1 (a segment's fields), and it is slow. Records are dataclasses in a dict by position
instead of bytes in a log; an entry names a record by its position instead of a reference.

Removals, markers, epochs, compaction and eviction are not modelled. An entry whose record cannot be read stays: it
misses whenever it is tried. All counts and offsets are in blocks.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sarpstore._format import ID_BYTES, WINDOW
from sarpstore._kernel.twin_hash import directory_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEY_BITS: Final = 48
MASK_BITS: Final = 16
NO_PREFIX: Final = bytes(ID_BYTES)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment record (log.md, 2.1): one sequence's blocks in one window, from the window's start."""

    position: int
    holder: int
    window: int
    namespace: int
    prefix_id: bytes
    ids: tuple[bytes, ...]
    locations: tuple[bytes, ...]
    d: int
    dp: int
    parent_key: int
    supersedes: int

    @property
    def n(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """What a segment record means to the directory: what a log summary knows of it."""

    position: int
    key: int
    root_key: int
    n: int
    d: int
    dp: int
    supersedes: int


@dataclass(slots=True)
class Entry:
    """A directory entry (directory.md, section 2) under the key where it is kept; position None: a placeholder."""

    position: int | None
    n: int
    d: int
    dp: int
    mask: int = 0


class TwinDirectory:
    """The directory: entries by key. It knows no ids and reads nothing.

    key_bits (1 to 48) keeps only so many top bits of each key, so that tests meet equal keys.
    group_blocks is how many offsets one mask bit stands for.
    """

    def __init__(self, secret: bytes, key_bits: int = KEY_BITS, group_blocks: int = 4) -> None:
        self.secret = secret
        self.key_bits = key_bits
        self.group_blocks = group_blocks
        self._entries: dict[int, list[Entry]] = {}

    def key(self, block_id: bytes, holder: int, namespace: int) -> int:
        dropped = KEY_BITS - self.key_bits
        return directory_key(block_id, holder, namespace, self.secret) >> dropped << dropped

    def change(self, segment: Segment) -> SegmentChange:
        """The change that a segment record stands for."""
        return SegmentChange(
            position=segment.position,
            key=self.key(segment.ids[segment.d], segment.holder, segment.namespace),
            root_key=self.key(segment.ids[0], segment.holder, segment.namespace),
            n=segment.n,
            d=segment.d,
            dp=segment.dp,
            supersedes=segment.supersedes,
        )

    def at(self, key: int) -> list[Entry]:
        """All entries with that key, placeholders too."""
        return list(self._entries.get(key, ()))

    def roots(self, key: int) -> list[Entry]:
        """The root entries (d = 0) with that key, placeholders too."""
        return [entry for entry in self.at(key) if entry.d == 0]

    def mask(self, key: int) -> int:
        """Where something diverges in the windows that begin with that key: the mask belongs to the key."""
        mask = 0
        for root in self.roots(key):
            mask |= root.mask
        return mask

    def apply(self, change: SegmentChange) -> None:
        """Let one segment record change the directory (directory.md, section 3). Applying it again changes nothing."""
        self.apply_entry(change)
        self.apply_mask(change)

    def apply_entry(self, change: SegmentChange) -> None:
        """Step 1: the record's own entry. Touches only entries with the record's key."""
        own = self._find(change.key, change.position)
        superseded = self._find(change.key, change.supersedes)
        if own is not None:
            # Replay brought back what this record had replaced.
            if superseded is not None:
                self._remove(change.key, superseded)
        elif superseded is not None:
            superseded.position, superseded.n, superseded.dp = change.position, change.n, change.dp
        else:
            self._add(change)

    def apply_mask(self, change: SegmentChange) -> None:
        """Step 2: say at the window's root that something diverges at d. Touches only entries with the root key."""
        if change.d == 0:
            return
        bit = 1 << change.d // self.group_blocks
        roots = self.roots(change.root_key)
        for root in roots:
            root.mask |= bit
        if not roots:
            self._add_placeholder(change.root_key, bit)

    def entries(self) -> list[tuple[int, int, int | None, int, int, int]]:
        """(key, mask, position or None for a placeholder, n, d, dp) of every entry, sorted."""
        rows = [(key, e.mask, e.position, e.n, e.d, e.dp) for key, found in self._entries.items() for e in found]
        return sorted(rows, key=lambda row: (*row[:2], row[2] or 0, *row[3:]))

    def blocks(self) -> int:
        """The sum of n - d over the entries that stand for a record. A placeholder claims nothing."""
        held = (entry for found in self._entries.values() for entry in found if entry.position is not None)
        return sum(entry.n - entry.d for entry in held)

    def _find(self, key: int, position: int) -> Entry | None:
        """The entry with that key and position; position 0 means none."""
        return next((entry for entry in self.at(key) if entry.position == position), None) if position else None

    def _add(self, change: SegmentChange) -> None:
        mask = 0
        found = self._entries.setdefault(change.key, [])
        if change.d == 0:
            mask = functools.reduce(operator.or_, (entry.mask for entry in found if entry.d == 0), 0)
            found[:] = [entry for entry in found if entry.position is not None]
        found.append(Entry(change.position, change.n, change.d, change.dp, mask))

    def _add_placeholder(self, key: int, mask: int) -> None:
        self._entries.setdefault(key, []).append(Entry(None, n=1, d=0, dp=0, mask=mask))

    def _remove(self, key: int, entry: Entry) -> None:
        found = self._entries[key]
        found[:] = [other for other in found if other is not entry]
        if entry.mask:
            heir = next(iter(self.roots(key)), None)
            if heir is not None:
                heir.mask |= entry.mask
            else:
                self._add_placeholder(key, entry.mask)
        if not self._entries[key]:
            del self._entries[key]


@dataclass(frozen=True, slots=True)
class Owner:
    """The entry through which a length was proved; n is the entry's."""

    position: int
    window: int
    offset: int
    n: int


@dataclass(frozen=True, slots=True)
class MatchResult:
    """How far a query is held. records_read counts every record that was asked for, also those that missed."""

    blocks: int
    owner: Owner | None
    records_read: int


@dataclass(frozen=True, slots=True)
class _Proof:
    """`length` blocks of a window are held, as `owner`'s record says."""

    owner: Owner
    length: int


class _Query:
    """Block ids under a holder and a namespace, cut into windows; keys are computed once."""

    def __init__(
        self, directory: TwinDirectory, window_blocks: int, ids: Sequence[bytes], holder: int, namespace: int
    ) -> None:
        self.ids = tuple(ids)
        self.holder = holder
        self.namespace = namespace
        self._directory = directory
        self._window_blocks = window_blocks
        self._keys: dict[int, int] = {}

    @property
    def windows(self) -> int:
        return -(-len(self.ids) // self._window_blocks)

    def key(self, window: int, offset: int) -> int:
        block = window * self._window_blocks + offset
        if block not in self._keys:
            self._keys[block] = self._directory.key(self.ids[block], self.holder, self.namespace)
        return self._keys[block]

    def window_ids(self, window: int) -> tuple[bytes, ...]:
        base = window * self._window_blocks
        return self.ids[base : base + self._window_blocks]

    def prefix_id(self, window: int) -> bytes:
        return self.ids[window * self._window_blocks - 1] if window else NO_PREFIX


class TwinStore:
    """A directory and the records that it names: match, insert, damage, replay.

    window_blocks and group_blocks (offsets a mask bit; by default what makes 16 bits cover the window) are smaller
    than the format's in tests, so that deep shapes come quickly. next_position may be set, to follow another store's.
    """

    def __init__(
        self,
        secret: bytes,
        key_bits: int = KEY_BITS,
        window_blocks: int = WINDOW,
        group_blocks: int | None = None,
    ) -> None:
        self.window_blocks = window_blocks
        self.directory = TwinDirectory(secret, key_bits, group_blocks or max(1, window_blocks // MASK_BITS))
        self.next_position = 1
        self._records: dict[int, Segment] = {}

    def segments(self) -> list[Segment]:
        """The readable records in order of position."""
        return [self._records[position] for position in sorted(self._records)]

    def match(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> MatchResult:
        """How many blocks are held: only through a record that was read and verified, its earlier windows presumed."""
        query = self._query(ids, holder, namespace)
        records_read = 0
        for window in reversed(range(self._present_windows(query))):
            proof, reads = self._prove(query, window)
            records_read += reads
            if proof is not None and self._stands(proof):
                return MatchResult(window * self.window_blocks + proof.length, proof.owner, records_read)
        return MatchResult(0, None, records_read)

    def match_locations(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> list[bytes]:
        """The locations of the matched blocks, in order.

        Fewer than `match` says only where an earlier window's record is damaged: a location must be read, a length may
        be presumed.
        """
        found = self.match(ids, holder, namespace)
        if found.owner is None:
            return []
        owner = found.owner
        query = self._query(ids, holder, namespace)
        locations: list[bytes] = []
        for window in range(owner.window):
            proof = self._whole_by_dp(query, window) or self._longest_by_walk(query, window)
            if proof is not None:
                locations += self._records[proof.owner.position].locations[: proof.length]
            if proof is None or proof.length < self.window_blocks:
                return locations
        length = found.blocks - owner.window * self.window_blocks
        return locations + list(self._records[owner.position].locations[:length])

    def estimate(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> tuple[int, int]:
        """(at least, at most) blocks held, from memory alone: up to the deepest key's block, and up to its entry's n.

        Bounds of what `match` gives as long as no other block has an equal key and no record is damaged.
        """
        query = self._query(ids, holder, namespace)
        for window in reversed(range(self._present_windows(query))):
            for offset, entries in self._hits(query, window):
                base = window * self.window_blocks
                at_most = base + max(entry.n for entry in entries)
                return base + offset + 1, min(at_most, len(query.ids))
        return 0, 0

    def insert(
        self, ids: Sequence[bytes], locations: Sequence[bytes], holder: int = 0, namespace: int = 0
    ) -> list[Segment]:
        """Hold these blocks, one location each; returns the records that this wrote, none if all was held.

        A block that was held keeps its location.
        """
        if len(ids) != len(locations):
            raise ValueError(f"{len(ids)} ids, {len(locations)} locations")
        query = self._query(ids, holder, namespace)
        found = self.match(ids, holder, namespace)
        if found.blocks == len(ids):
            return []
        written = [self._first_segment(query, locations, found)]
        while written[-1].window + 1 < query.windows:
            window = written[-1].window + 1
            written.append(self._opening(query, locations, window, written[-1].d, written[-1].position + 1))
        self.next_position = written[-1].position + 1
        for segment in written:
            self._records[segment.position] = segment
            self.directory.apply(self.directory.change(segment))
        return written

    def damage(self, position: int) -> None:
        """From now on the record at that position cannot be read."""
        del self._records[position]

    def replay(self, from_position: int, times: int = 1) -> None:
        """Apply the log's readable records from that position on once more, in order, so many times."""
        for _ in range(times):
            for segment in self.segments():
                if segment.position >= from_position:
                    self.directory.apply(self.directory.change(segment))

    def rebuilt(self) -> TwinStore:
        """Another store with the same log, its directory made from the readable records alone."""
        directory = self.directory
        other = TwinStore(directory.secret, directory.key_bits, self.window_blocks, directory.group_blocks)
        other.next_position = self.next_position
        other._records = dict(self._records)
        other.replay(0)
        return other

    def _query(self, ids: Sequence[bytes], holder: int, namespace: int) -> _Query:
        return _Query(self.directory, self.window_blocks, ids, holder, namespace)

    # Matching

    def _present_windows(self, query: _Query) -> int:
        """The number of windows before the first whose root key has no root entry."""
        for window in range(query.windows):
            roots = self.directory.roots(query.key(window, 0))
            if not roots:
                return window
            if window and not self._stands_on_whole(query, window, roots):
                # Of a placeholder it is not known what it stands on: the record that is read says it.
                return window + all(root.position is None for root in roots)
        return query.windows

    def _stands_on_whole(self, query: _Query, window: int, roots: Sequence[Entry]) -> bool:
        """Whether the previous window's owner, which one of these roots names, is there and whole."""
        offsets = {root.dp for root in roots if root.position is not None and root.d == 0}
        found = [entry for offset in offsets for entry in self._entries_at(query, window - 1, offset)]
        return any(entry.n == self.window_blocks for entry in found)

    def _stands(self, proof: _Proof) -> bool:
        """Whether the previous window's owner, which the record names, is still there."""
        record = self._records[proof.owner.position]
        held = self.directory.at(record.parent_key)
        return not record.window or any(entry.n == self.window_blocks for entry in held)

    def _hits(self, query: _Query, window: int) -> Iterator[tuple[int, list[Entry]]]:
        """The window's offsets where the directory has entries that may be this path's, the deepest first."""
        mask = self.directory.mask(query.key(window, 0))
        for offset in reversed(range(len(query.window_ids(window)))):
            if offset == 0 or mask >> offset // self.directory.group_blocks & 1:
                entries = self._entries_at(query, window, offset)
                if entries:
                    yield offset, entries

    def _entries_at(self, query: _Query, window: int, offset: int) -> list[Entry]:
        """The entries with that block's key and that d, without placeholders."""
        found = self.directory.at(query.key(window, offset))
        return [entry for entry in found if entry.d == offset and entry.position is not None]

    def _prove(self, query: _Query, window: int) -> tuple[_Proof | None, int]:
        """The proof by the deepest offset that has one, and how many records were read."""
        reads = 0
        for _, entries in self._hits(query, window):
            reads += len(entries)
            proof = self._longest(query, window, entries)
            if proof is not None:
                return proof, reads
        return None, reads

    def _longest(self, query: _Query, window: int, entries: list[Entry]) -> _Proof | None:
        """Of entries with equal keys, the one that proves most; of equals, the newest."""
        proofs = [proof for entry in entries if (proof := self._read(query, window, entry)) is not None]
        return max(proofs, key=lambda proof: (proof.length, proof.owner.position), default=None)

    def _read(self, query: _Query, window: int, entry: Entry) -> _Proof | None:
        """Read an entry's record and compare it with the query; None if it is damaged or of another path."""
        if entry.position is None or (record := self._records.get(entry.position)) is None:
            return None
        if (record.holder, record.namespace, record.window) != (query.holder, query.namespace, window):
            return None
        if (record.d, record.prefix_id) != (entry.d, query.prefix_id(window)):
            return None
        run = _common_run(record.ids, query.window_ids(window))
        if run <= entry.d:  # another block with an equal key
            return None
        # An entry may claim less than its record has, never more.
        return _Proof(Owner(entry.position, window, entry.d, entry.n), min(entry.n, record.n, run))

    def _whole_by_dp(self, query: _Query, window: int) -> _Proof | None:
        """The window's owner where the next window's root entries say that it is, if it proves the whole window."""
        roots = self.directory.roots(query.key(window + 1, 0))
        for offset in sorted({root.dp for root in roots if root.position is not None}, reverse=True):
            entries = [e for e in self._entries_at(query, window, offset) if e.n == self.window_blocks]
            proof = self._longest(query, window, entries)
            if proof is not None and proof.length == self.window_blocks:
                return proof
        return None

    def _longest_by_walk(self, query: _Query, window: int) -> _Proof | None:
        """The longest proof that any of the window's offsets gives; of equals, the deepest."""
        best: _Proof | None = None
        for _, entries in self._hits(query, window):
            proof = self._longest(query, window, entries)
            if proof is not None and (best is None or proof.length > best.length):
                best = proof
        return best

    # The insertion decision

    def _first_segment(self, query: _Query, locations: Sequence[bytes], found: MatchResult) -> Segment:
        """The record for the window in which the held part ends."""
        window, shared = divmod(found.blocks, self.window_blocks)
        if found.owner is None or shared == 0:
            dp = found.owner.offset if found.owner is not None else 0
            return self._opening(query, locations, window, dp, self.next_position)
        owner = self._records[found.owner.position]
        extends = shared == found.owner.n  # the path goes on where the owner ends: same key, longer record
        # A block keeps the location that it was first inserted with, so the shared part repeats the owner's.
        fresh = locations[found.blocks : (window + 1) * self.window_blocks]
        return Segment(
            position=self.next_position,
            holder=query.holder,
            window=window,
            namespace=query.namespace,
            prefix_id=query.prefix_id(window),
            ids=query.window_ids(window),
            locations=owner.locations[:shared] + tuple(fresh),
            d=owner.d if extends else shared,
            dp=owner.dp if extends else owner.d,
            parent_key=owner.parent_key,
            supersedes=owner.position if extends else 0,
        )

    def _opening(self, query: _Query, locations: Sequence[bytes], window: int, dp: int, position: int) -> Segment:
        """A record that opens its window; dp is the offset of the previous window's owner on this path."""
        base = window * self.window_blocks
        return Segment(
            position=position,
            holder=query.holder,
            window=window,
            namespace=query.namespace,
            prefix_id=query.prefix_id(window),
            ids=query.window_ids(window),
            locations=tuple(locations[base : base + self.window_blocks]),
            d=0,
            dp=dp,
            parent_key=query.key(window - 1, dp) if window else 0,
            supersedes=0,
        )


def _common_run(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    run = 0
    while run < min(len(left), len(right)) and left[run] == right[run]:
        run += 1
    return run
