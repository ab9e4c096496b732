"""A directory by itself: changes for it, made by hand or at random, and its comparison with the twin."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from kernel_views import SECRET, kernel_rows, twin_rows

from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._directory.divergence import LOADED
from sarpstore._kernel import FEATURES, PARTITION_DTYPE, lib
from sarpstore._kernel.twin_directory import SegmentChange, TwinDirectory

FILE, SLOT = 7, 3
PAGE_SLOTS, INDEX_SLOTS, ARENA_PAGE = 64, 17, 1024
ENTRIES_MAX = lib.SARP_PARTITION_ENTRIES_MAX


def new_directory(bytes_max: int = 1 << 22, features: int = FEATURES) -> DivergenceDirectory:
    directory = DivergenceDirectory(SECRET, bytes_max, features)
    directory.start_empty()
    directory.base.add_slot(SLOT, FILE)
    return directory


def change(number: int, key: int, root_key: int = 0, **fields: int) -> SegmentChange:
    values = {"n": 1, "d": 0, "dp": 0, "supersedes": 0} | fields
    return SegmentChange(fmt.position(FILE, number * 64), key, root_key, **values)


def rows(directory: DivergenceDirectory) -> Any:
    return kernel_rows(directory, range(directory.c.partition_count))


def pages_for(entries: int) -> int:
    return -(-(entries + INDEX_SLOTS) // PAGE_SLOTS)


def check_shape(directory: DivergenceDirectory) -> None:
    """Partitions cover all keys once, the table finds them, counts are the sums, pages are what the entries need."""
    parts = directory.partitions
    order = np.argsort(parts["prefix"])
    prefix = 0
    for part in parts[order]:
        assert part["prefix"] == prefix
        prefix += 1 << (48 - int(part["depth"]))
    assert prefix == 1 << 48
    ends = [int(p["prefix"]) + (1 << (48 - int(p["depth"]))) - 1 for p in parts]
    for keys in (parts["prefix"], np.array(ends, "<u8")):
        assert directory.partition_of(keys).tolist() == list(range(len(parts)))
    assert int(parts["depth"].max()) == directory.c.depth
    loaded = parts[parts["flags"] & LOADED != 0]
    used = [page for p in loaded for page in p["pages"][: pages_for(int(p["entries"]))].tolist()]
    assert len(set(used)) == len(used) == directory.c.arena.page_next - directory.c.arena.pages_free
    assert int(parts["entries"].sum()) == directory.c.entries
    assert int(parts["blocks"].sum()) == directory.blocks
    table = 4 << directory.c.depth
    assert directory.bytes == len(used) * ARENA_PAGE + len(parts) * PARTITION_DTYPE.itemsize + table


def check(directory: DivergenceDirectory, twin: TwinDirectory) -> None:
    found = rows(directory)
    assert found == twin_rows(twin)
    assert directory.blocks == twin.blocks()
    assert directory.entries == sum(len(entries) for entries, _ in found.values())
    assert directory.c.placeholders == sum(len(placeholders) for _, placeholders in found.values())
    check_shape(directory)


class Changes:
    """Random changes with what makes them meet: keys in few prefixes, equal keys, superseding, children of roots."""

    def __init__(self, seed: int, prefixes: int, prefix_bits: int, key_bits: int) -> None:
        self.random = random.Random(seed)
        self.prefixes = [self.random.getrandbits(prefix_bits) << 48 - prefix_bits for _ in range(prefixes)]
        self.spread = 48 - prefix_bits
        self.key_bits = key_bits
        self.made: list[SegmentChange] = []
        self.number = 0

    def key(self) -> int:
        low = self.random.getrandbits(self.key_bits) << max(0, self.spread - self.key_bits)
        return self.random.choice(self.prefixes) | low & ((1 << self.spread) - 1)

    def next(self) -> SegmentChange:
        rng = self.random
        self.number += 1
        kind = rng.random()
        if self.made and kind < 0.15:
            old = rng.choice(self.made[-400:])
            fields = {"n": max(old.d + 1, min(64, old.n + rng.randrange(3))), "d": old.d, "dp": old.dp}
            made = change(self.number, old.key, old.root_key, supersedes=old.position, **fields)
        elif self.made and kind < 0.2:
            return rng.choice(self.made)
        elif self.made and kind < 0.5:
            d = rng.randrange(1, 64)
            root = rng.choice(self.made).root_key if kind < 0.45 else self.key()
            made = change(self.number, self.key(), root, n=rng.randrange(d + 1, 65), d=d, dp=rng.randrange(64))
        else:
            key = rng.choice(self.made).key if self.made and kind < 0.6 else self.key()
            made = change(self.number, key, key, n=rng.randrange(1, 65), dp=rng.randrange(64))
        self.made.append(made)
        return made
