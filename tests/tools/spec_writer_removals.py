"""Writes small stores of version 1.1 from `format-spec/` alone: removals, counts, copies, files that are retired.

`Removing` goes before a writer of either routing. What it removes it deletes and cuts from its directory at once; a
test that keeps an entry which the log calls dead takes it back from what it saw before.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from spec_writer import REMOVALS, Owner, StoreWriter, chain
from spec_writer_sarp import OFFSETS, SarpWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REMOVE, CLEAR_HOLDER, RETIRE_FILE, COUNT = 2, 3, 6, 11
COPY = 2

Block = tuple[bytes, int, int]
"""Block id, namespace and holder."""


class Removing(StoreWriter):
    """Version 1.1. Records are written in order of place, so that each is born at its own."""

    minor, incompatible = 1, REMOVALS

    def __init__(self, path: Path, *options: int) -> None:
        super().__init__(path, *options)
        self.markers: dict[Block, int] = {}
        self.epochs: dict[int, int] = {}
        self.counts: dict[Block, int] = {}
        self.moments: list[tuple[int, int]] = []
        self.edit_times: Callable[[int, int], tuple[int, int]] = lambda born, root: (born, root)
        self.edit_copy: Callable[[Owner], Owner] = lambda owner: owner

    def insert(self, ids: list[bytes], namespace: int = 0, holder: int = 0) -> list[int]:
        if holder not in self.epochs:
            self.clear(holder, effect=0)
        return super().insert(ids, namespace, holder)

    def times(self, owner: Owner) -> tuple[int, int]:
        if not owner.born:
            owner.born = owner.position
            owner.root_born = owner.root_born or owner.born
        return self.edit_times(owner.born, owner.root_born)

    # -- records

    def remove(self, ids: list[bytes], namespace: int = 0, holder: int = 0, effect: int | None = None) -> int:
        """Removes blocks, or writes the record again that took effect at `effect`."""
        own = self.next_position(64 + 16 * len(ids))
        at = own if effect is None else effect
        self.add(REMOVE, struct.pack("<IIQQ", holder, 0, namespace, at), b"".join(ids), n=len(ids))
        for one in ids:
            self.markers[one, namespace, holder] = at
            for owner in list(self.live.values()):
                if (owner.namespace, owner.holder) != (namespace, holder) or owner.born > at:
                    continue
                if one in owner.path:
                    self.cut(owner, 0)
                elif one in owner.ids:
                    self.cut(owner, owner.ids.index(one))
        return own

    def clear(self, holder: int, effect: int | None = None) -> int:
        """Clears a holder; with effect 0 says that it is there, with another writes the record again."""
        own = self.next_position(64)
        at = own if effect is None else effect
        self.add(CLEAR_HOLDER, struct.pack("<IIQQ", holder, 0, 0, at))
        self.epochs[holder] = max(at, self.epochs.get(holder, 0))
        if effect is None:
            self.counts = {block: count for block, count in self.counts.items() if block[2] != holder}
            for owner in [owner for owner in self.live.values() if owner.holder == holder]:
                self.cut(owner, 0)
        return own

    def count(self, counts: dict[bytes, int], namespace: int = 0, holder: int = 0) -> int:
        body = b"".join(struct.pack("<16sII", one, count, 0) for one, count in counts.items())
        for one, count in counts.items():
            self.counts[one, namespace, holder] = count
        self.counts = {block: count for block, count in self.counts.items() if count > 1}
        return self.add(COUNT, struct.pack("<IIQ16x", holder, 0, namespace), body, n=len(counts))

    def copy(self, position: int) -> int:
        """Moves what is left of a live record to the log's end."""
        old = self.live[position]
        owner = self.edit_copy(replace(old, supersedes=position))
        self.segment(owner, flags=COPY)
        return owner.position

    def retire(self, number: int) -> int:
        return self.add(RETIRE_FILE, struct.pack("<QQ", 0, number))

    def delete(self, number: int) -> None:
        """Deletes a log file, whose slot stands for nothing then."""
        (self.path / f"{number:016x}.log").unlink()
        self.slots.pop(number)

    # -- what is held

    def cut(self, owner: Owner, at: int) -> None:
        """Takes blocks from the offset on off an entry, and deletes it if none of its own is left."""
        for one in owner.ids[max(at, owner.d) :]:
            self.owners.pop((owner.holder, owner.namespace, one), None)
        self.entry_cut(owner, at)
        if at <= owner.d:
            del self.live[owner.position]
            return
        left = replace(owner, ids=owner.ids[:at])
        self.live[owner.position] = left
        for one in left.ids[left.d :]:
            self.owners[left.holder, left.namespace, one] = left

    def entry_cut(self, owner: Owner, at: int) -> None:
        """What else a directory has of it."""

    def tables(self) -> tuple[list[bytes], ...]:
        markers = [struct.pack("<16sQQII", one, namespace, at, holder, 0)
                   for (one, namespace, holder), at in self.markers.items()]  # fmt: skip
        counts = [struct.pack("<16sQII", *block, count) for block, count in self.counts.items()]
        epochs = [struct.pack("<IIQ", holder, 0, at) for holder, at in self.epochs.items()]
        return markers, epochs, counts, [struct.pack("<QQ", *moment) for moment in self.moments]


class RemovingSarp(Removing, SarpWriter):
    """Version 1.1 with posting lists."""

    def entry_cut(self, owner: Owner, at: int) -> None:
        left = replace(owner, ids=owner.ids[:at])
        for key, one in list(self.lists.items()):
            for element, change in list(one.postings.items()):
                if change.position == owner.position:
                    del one.postings[element]
                    if at > owner.d and OFFSETS[change.point] < at:
                        posting = self.posting(left, change.point)
                        one.postings[posting.filter, posting.position] = posting
            if not one.postings:
                del self.lists[key]
        self.made[owner.position] = left


WRITERS = (Removing, RemovingSarp)


def build_removed_store(path: Path, kind: type[Removing] = Removing) -> Removing:
    """Two namespaces and holders; removed, cut, cleared, counted and inserted again; a file that was retired and is
    still there, one that was deleted, copies of cut and whole records."""
    writer = kind(path)
    writer.new_file()
    base = chain(list(range(150)))
    llama = writer.name("llama")
    writer.insert(base)
    whole = writer.insert(chain([7, 8, 9]), llama, holder=5)
    writer.insert(base[:30] + chain([1, 2, 3], base[29]))
    writer.commit()
    writer.insert(chain([50, 51]), holder=6)
    writer.count({chain([50])[0]: 3}, holder=6)
    writer.commit()
    writer.seal()
    writer.checkpoint(1)

    writer.new_file()
    writer.remove([base[100]])
    writer.insert(chain([60, 61, 62]), llama, holder=5)
    writer.commit()
    cleared = writer.clear(6)
    writer.insert(chain([50, 51, 52]), holder=6)
    writer.commit()
    writer.insert(base)
    writer.insert(chain([70, 71]))
    removed = writer.remove([base[32], chain([70])[0]])
    writer.commit()
    writer.moments = [(1 << 24 | 128, 1000), (writer.end, 2000)]
    writer.checkpoint(2)
    writer.seal()

    writer.new_file()
    writer.name("")
    writer.name("llama")
    for position in [position for position in writer.live if position >> 24 == 1]:
        writer.copy(position)
    for holder in (0, 5):
        writer.clear(holder, effect=0)
    writer.retire(1)
    writer.insert(base[:40] + chain([90, 91], base[39]))
    writer.commit()
    assert whole[0] not in writer.live
    for position in [position for position in writer.live if position >> 24 == 2]:
        writer.copy(position)
    writer.clear(6, effect=cleared)
    writer.remove([base[32], chain([70])[0]], effect=removed)
    writer.retire(2)
    writer.commit()
    writer.mark()
    writer.new_file()
    writer.insert(chain([50, 51, 99]), holder=6)
    writer.commit()
    writer.mark()
    writer.checkpoint(3)
    writer.delete(1)
    (path / f"{1:016x}.checkpoint").unlink()
    (path / f"{1:016x}.images").unlink()
    return writer
