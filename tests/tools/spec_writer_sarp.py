"""Writes small stores with posting lists (`routing` 1) from `format-spec/postings.md` alone.

`SarpWriter` posts, expands, refines and prunes as section 3 says, over plain lists. With `edit_change`, `edit_tail`,
`edit_entries` and `edit_lows` a test writes something false where it would write what is true.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spec_writer import (
    COMMIT,
    MASK64,
    UNIT,
    Built,
    Owner,
    Placed,
    StoreWriter,
    chain,
    directory_key,
    namespace_root,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POSTINGS = 10
ADD, DROP = 1, 2
EXPANDED, REFINED = 1, 2
OFFSETS = (0, 8, 16, 24, 32, 40, 48, 63)


def fingerprint(secret: bytes, block: bytes) -> int:
    (s1,) = struct.unpack("<Q", secret[8:])
    (low,) = struct.unpack("<Q", block[:8])
    mixed = (low ^ s1) * 0x9E3779B97F4A7C15 & MASK64
    return 1 + ((mixed >> 32) * 255 >> 32)


def filter_of(secret: bytes, ids: list[bytes], point: int) -> int:
    if point == 7:
        return 0
    first = OFFSETS[point] // 2
    regions = [2 * region + 1 for region in range(first, first + 8)]
    return int.from_bytes(
        bytes(fingerprint(secret, ids[last]) if last < min(64, len(ids)) else 0 for last in regions), "big"
    )


def successor(point: int, flags: int) -> int | None:
    if point % 2:
        return None if point == 7 else point + 1
    if flags & REFINED:
        return point + 1
    return None if point == 6 else point + 2


@dataclass(frozen=True)
class Change:
    """One change; of a state `position` is 0 and `filter` has its flags."""

    key: int
    filter: int
    position: int
    n: int
    d: int
    point: int
    operation: int = ADD

    def stored(self) -> bytes:
        word0 = self.key << 16 | (self.n - 1) << 10 | self.d << 4 | self.point << 1
        return struct.pack("<QQQB7x", word0, self.position, self.filter, self.operation)

    def summary(self, place: int, kind: int) -> bytes:
        word3 = place & 0xFFFFFF | kind << 24 | self.point << 32 | self.operation << 40
        return struct.pack("<QQQQ", self.key | self.n << 48 | self.d << 56, self.filter, self.position, word3)


Low = tuple[int, int, int]
Entry = tuple[int, int, int, int, bytes]


@dataclass
class List:
    """A posting list: its postings by filter and position, and its state."""

    point: int
    postings: dict[tuple[int, int], Change] = field(default_factory=dict)
    flags: int = 0


class SarpWriter(StoreWriter):
    """A store with `routing` 1."""

    routing = 1

    def __init__(self, path: Path, prune_at: int = 2, refine_at: int = 5) -> None:
        super().__init__(path)
        self.prune_at, self.refine_at = prune_at, refine_at
        self.lists: dict[int, List] = {}
        self.made: dict[int, Owner] = {}
        self.said: dict[int, list[Change]] = {}
        self.pending: list[Change] = []
        self.edit_change: Callable[[Change], Change] = lambda change: change
        self.edit_entries: Callable[[list[Entry]], list[Entry]] = lambda entries: entries
        self.edit_lows: Callable[[int, Low], tuple[Low, Low]] = lambda at, low: (low, low)
        self.edit_tail: Callable[[int, int], tuple[int, int]] = lambda points, old_n: (points, old_n)

    # -- lists

    def posting(self, owner: Owner, point: int) -> Change:
        return Change(self.key_at(owner, point), filter_of(self.secret, owner.ids, point), owner.position,
                      len(owner.ids), owner.d, point)  # fmt: skip

    def key_at(self, owner: Owner, point: int) -> int:
        return directory_key(self.secret, owner.ids[OFFSETS[point]], owner.namespace, owner.holder)

    def apply(self, change: Change) -> None:
        one = self.lists.setdefault(change.key, List(change.point))
        if not change.position:
            one.flags = one.flags | change.filter if change.operation == ADD else one.flags & ~change.filter
        elif change.operation == ADD:
            one.postings.setdefault((change.filter, change.position), change)
        else:
            one.postings.pop((change.filter, change.position), None)
        if not one.postings and not one.flags:
            del self.lists[change.key]

    def change(self, change: Change) -> None:
        """A change that the open insertion causes beside its record's own postings."""
        self.apply(change)
        self.pending.append(change)

    def header_tail(self, owner: Owner) -> bytes:
        """Posts the record, and says where, and the n of what it supersedes."""
        old = self.live[owner.supersedes] if owner.supersedes else None
        self.made[owner.position] = owner
        points, said, point = 0, [], 0
        while True:
            if old and OFFSETS[point] < len(old.ids):
                said.append(replace(self.posting(old, point), operation=DROP))
            said.append(self.posting(owner, point))
            for change in said[-2:]:
                self.apply(change)
            points |= 1 << point
            flags = self.lists[said[-1].key].flags
            follows = successor(point, flags)
            if not flags & EXPANDED or follows is None or OFFSETS[follows] >= len(owner.ids):
                break
            point = follows
        self.said[owner.position] = said
        return bytes(self.edit_tail(points, len(old.ids) if old else 0))

    def entered(self, owner: Owner) -> None:
        for change in [one for one in self.said[owner.position] if one.operation == ADD]:
            self.grow(change.key)
        for at in range(0, len(self.pending), 126):
            self.postings_record(self.pending[at : at + 126])
        self.pending = []

    def postings_record(self, changes: list[Change]) -> int:
        written = [self.edit_change(change) for change in changes]
        body = b"".join(change.stored() for change in written)
        position = self.add(POSTINGS, bytes(32), body, n=len(changes))
        self.said[position] = written
        return position

    def grow(self, key: int) -> None:
        """Expands and refines a list, and the lists that this fills."""
        one = self.lists.get(key)
        if one is None:
            return
        follows = successor(one.point, one.flags)
        if not one.flags & EXPANDED and follows is not None and len(one.postings) > self.prune_at:
            filled = self.fill(one, follows)
            self.set_flags(key, one.point, EXPANDED)
            for other in filled:
                self.grow(other)
        may = one.flags & EXPANDED or one.point == 6
        if one.point % 2 == 0 and may and not one.flags & REFINED and len(one.postings) > self.refine_at:
            self.refine(key, one)

    def fill(self, one: List, follows: int) -> list[int]:
        """Posts the list's records that reach a point there; the keys of the lists that they are in now."""
        keys = []
        for posting in sorted(one.postings.values(), key=lambda posting: (posting.filter, posting.position)):
            if posting.n > OFFSETS[follows]:
                self.change(self.posting(self.made[posting.position], follows))
                keys.append(self.pending[-1].key)
        return list(dict.fromkeys(keys))

    def set_flags(self, key: int, point: int, flags: int, operation: int = ADD) -> None:
        self.change(Change(key, flags, 0, 1, 0, point, operation))

    def refine(self, key: int, one: List) -> None:
        filled = self.fill(one, one.point + 1)
        self.set_flags(key, one.point, REFINED | EXPANDED if one.point == 6 else REFINED)
        for other in filled if one.point < 6 else ():
            if len(self.lists[other].postings) > self.prune_at:
                self.set_flags(other, one.point + 1, EXPANDED)
            else:
                self.prune(self.lists[other], one.point + 2)

    def prune(self, one: List, following: int) -> None:
        for posting in list(one.postings.values()):
            if posting.n > OFFSETS[following]:
                gone = self.posting(self.made[posting.position], following)
                self.change(replace(gone, operation=DROP))
                if gone.key in self.lists and self.lists[gone.key].flags:
                    self.set_flags(gone.key, following, self.lists[gone.key].flags, DROP)

    # -- what is stored

    def summary_entries(self, one: Placed) -> list[bytes]:
        if one.position not in self.said:
            return super().summary_entries(one)
        return [change.summary(one.position, one.kind) for change in self.said[one.position]]

    def entries(self) -> Iterator[Entry]:
        """Key, filter, reference, blocks and bytes of every entry, in order."""
        found = []
        for key, one in self.lists.items():
            if one.flags:
                stored = struct.pack("<QQQ", key << 16 | one.point << 1, one.flags, 0)
                found.append((key, 0, 0, 0, stored))
            for posting in one.postings.values():
                reference = self.slots[posting.position >> 24] << 24 | posting.position & 0xFFFFFF
                word0 = key << 16 | (posting.n - 1) << 10 | posting.d << 4 | posting.point << 1
                stored = struct.pack("<QQQ", word0, reference << 24 | 5 << 1, posting.filter)
                held = posting.n - posting.d if posting.point == 0 else 0
                found.append((key, posting.filter, reference, held, stored))
        yield from sorted(found)

    def images(self, number: int, depth: int) -> tuple[bytes, list[bytes], int, int]:
        """As many images as the depth says, of about as many entries each; lists may go over several."""
        entries = self.edit_entries(list(self.entries()))
        size = max(1, -(-len(entries) >> depth))
        images, rows, blocks = b"", [], 0
        for at in range(0, len(entries), size):
            some = entries[at : at + size]
            held = sum(entry[3] for entry in some)
            low, in_head = self.edit_lows(at, some[0][:3] if at else (0, 0, 0))
            image, crc = self.image(number, low[0], 0, held, [entry[4] for entry in some], low[1])
            rows.append(struct.pack("<QQQQIIII", *in_head, number, len(images) // 4096, len(some), crc, held))
            images, blocks = images + image, blocks + held
        if not rows:
            rows.append(bytes(48))
        return images, rows, len(entries), blocks


def shared(count: int, at: int, length: int, seed: int = 1000) -> list[list[bytes]]:
    """Paths of `length` blocks that are the same in the first `at`."""
    base = chain(list(range(at)))
    return [
        base + chain([seed * (number + 1) + step for step in range(length - at)], base[-1]) for number in range(count)
    ]


def build_sarp_store(path: Path) -> Built:
    """Like `spec_writer.build_store`: sealed, void and torn files, two checkpoints, the second one fuzzy. Lists at all
    points, expanded and refined ones, pruned ones, superseded records in them."""
    writer = SarpWriter(path)
    writer.new_file()
    for ids in shared(4, 20, 40):
        writer.insert(ids)
        writer.commit()
    for ids in shared(8, 3, 30, 77):
        writer.insert(ids)
    writer.commit()
    llama = writer.name("llama", "lora-1")
    base = chain(list(range(60)), namespace_root("llama", "lora-1"))
    for number in range(7):
        writer.insert(base + chain([number, *range(40)], base[-1]), llama)
    writer.commit()
    writer.seal()
    writer.checkpoint(1)

    writer.new_file()
    for ids in shared(4, 20, 62):
        writer.insert(ids)
    writer.insert(chain(list(range(10))), holder=3)
    accepted = writer.commits + 1, writer.commit()
    kept = writer.sequence, dict(writer.names)
    writer.name("void")
    writer.commit(synced=writer.end)
    void = (writer.log_path.name, (accepted[1] & 0xFFFFFF) * UNIT, len(writer.data))
    writer.sequence, writer.names = kept

    writer.new_file(accepted)
    for ids in shared(9, 30, 64):
        writer.insert(ids)
    start = writer.commit(), writer.commits, writer.sequence
    for ids in shared(12, 50, 70, 55):
        writer.insert(ids)
    writer.commit()
    writer.checkpoint(2, start, depth=3)
    writer.mark()
    writer.synced = writer.end
    writer.insert(shared(5, 20, 63)[4])
    writer.commit()
    unsynced = (writer.log_path.name, (writer.synced & 0xFFFFFF) * UNIT)
    with writer.log_path.open("ab") as file:
        file.write(os.urandom(1000) + bytes(4096))
    writer.placed.append(Placed(0, COMMIT, None))
    return Built(path, writer, void, unsynced)
