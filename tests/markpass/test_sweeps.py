"""The kernel's sweeps against the same done with lists, on directories of made-up entries."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory, PostingsDirectory
from sarpstore._directory.divergence import DIRTY
from sarpstore._io import Turns
from sarpstore._kernel import CHANGE_DTYPE, ffi, lib
from sarpstore._markpass.sweep import FreshMasks, sweep

SECRET = bytes(range(16))
FILE = 9
POSITION = fmt.position(FILE, (1 << 22) - fmt.UNIT)
BEYOND = 1 << 22 >> 6  # units: records from here on are newer than the pass
OFFSETS = (0, 8, 16, 24, 32, 40, 48, 63)


def started(directory):
    directory.start_empty()
    directory.base.add_slot(3, FILE)
    return directory


def change(**fields):
    row = np.zeros(1, CHANGE_DTYPE)
    row["type"] = fmt.RECORD_SEGMENT
    for name, value in fields.items():
        row[name] = value
    return row


def plan_of(verdicts: dict[int, int], masks: dict[int, int]):
    """Of units and root keys."""
    return SimpleNamespace(
        verdicts=np.array(sorted((3 << 24 | unit) << 8 | left for unit, left in verdicts.items()), "<u8"),
        masks=np.array(sorted(key << 16 | bits for key, bits in masks.items()), "<u8"),
    )


def random_verdicts(rng: random.Random, units: list[int]) -> dict[int, int]:
    """For most of the units that the pass has seen."""
    return {unit: rng.choice([0, 1, 9, 20, 40, 64, 64]) for unit in units if unit < BEYOND and rng.random() < 0.9}


def rows_of(directory):
    return sorted(row for number in range(len(directory.partitions)) for row in directory.image(number).tolist())


# --- divergence


class Entries:
    """A directory as a list of [key, mask, unit or None, n, d, dp]."""

    def __init__(self, seed: int, keys: int, count: int) -> None:
        self.rng = rng = random.Random(seed)
        self.directory = started(DivergenceDirectory(SECRET, 1 << 22))
        self.keys = [rng.getrandbits(48) for _ in range(keys)]
        for _ in range(count):
            self.insert(rng.choice([rng.randrange(1, BEYOND), BEYOND + rng.randrange(1000)]))

    def insert(self, unit: int) -> tuple[int, int]:
        rng = self.rng
        n, root = rng.randint(1, 64), rng.choice(self.keys)
        d = rng.choice([0, rng.randrange(n)])
        key = rng.choice(self.keys) if d else root
        fields = {"key": key, "root_key": root, "n": n, "d": d, "dp": rng.randrange(64)}
        self.directory.apply(change(position=FILE << 24 | unit, **fields))
        return root, 1 << d // 4 if d else 0

    def rows(self):
        out = []
        for word0, word1 in rows_of(self.directory):
            unit = None if word1 & 1 else word1 >> 24 & 0xFFFFFF
            out.append([word0 >> 16, word0 & 0xFFFF, unit, (word1 >> 18 & 63) + 1, word1 >> 12 & 63, word1 >> 6 & 63])
        return sorted(out, key=str)


def swept_entries(rows, verdicts, live):
    """`live(key)` gives the mask bits that may stay."""
    out, dropped, cut, unreadable = [], 0, 0, 0
    for key in sorted({row[0] for row in rows}):
        own = [row for row in rows if row[0] == key]
        mask, kept = 0, []
        for row in own:
            mask |= row[1]
        mask &= live(key)
        for _, _, unit, n, d, dp in own:
            if unit is None:
                continue
            left = verdicts.get(unit, 0 if unit < BEYOND else 64)
            if left <= d:
                dropped += 1
                unreadable += unit not in verdicts
                continue
            cut += left < n
            kept.append([key, 0 if d else mask, unit, min(n, left), d, dp])
        if mask and not any(row[4] == 0 for row in kept):
            kept.append([key, mask, None, 1, 0, 0])
        out += kept
    return sorted(out, key=str), (dropped, cut, unreadable)


@pytest.mark.parametrize(("seed", "keys", "count"), [(s, k, c) for s in range(4) for k, c in ((5, 40), (900, 3000))])
async def test_entries(seed, keys, count) -> None:
    e = Entries(seed, keys, count)
    before = e.rows()
    verdicts = random_verdicts(e.rng, [row[2] for row in before if row[2] is not None])
    masks = {key: e.rng.getrandbits(16) for key in e.keys if e.rng.random() < 0.5}
    with FreshMasks(e.directory) as fresh:
        added: dict[int, int] = {}
        for _ in range(count // 10):
            root, bit = e.insert(BEYOND + 2000 + e.rng.randrange(1000))
            added[root] = added.get(root, 0) | bit
        before = e.rows()
        result = await sweep(e.directory, plan_of(verdicts, masks), POSITION, Turns())
        assert not fresh.full
    expected, counts = swept_entries(before, verdicts, lambda key: masks.get(key, 0) | added.get(key, 0))
    assert e.rows() == expected
    assert (result.dropped, result.cut, result.unreadable) == counts
    check_counters(e.directory)


def check_counters(directory) -> None:
    rows = [row for number in range(len(directory.partitions)) for row in directory.image(number).tolist()]
    assert directory.entries_all == len(rows)
    assert directory.entries == sum(not row[1] & 1 for row in rows)
    blocks = sum((row[1] >> 18 & 63) + 1 - (row[1] >> 12 & 63) for row in rows if not row[1] & 1)
    assert directory.blocks == blocks == directory.partitions["blocks"].sum()
    for row in rows:  # the buckets' index is right
        assert tuple(row) in directory.find(row[0] >> 16)


async def test_a_partition_that_nothing_changes_in_stays_clean() -> None:
    e = Entries(1, 50, 200)
    e.directory.partitions["flags"] &= ~np.uint8(DIRTY)
    before = e.rows()
    verdicts = {row[2]: 64 for row in before if row[2] is not None}
    with FreshMasks(e.directory):
        await sweep(e.directory, plan_of(verdicts, dict.fromkeys(e.keys, 0xFFFF)), POSITION, Turns())
    assert e.rows() == before
    assert not (e.directory.partitions["flags"] & DIRTY).any()


async def test_past_the_bound_of_fresh_masks_none_is_cleared() -> None:
    e = Entries(2, 50, 10)
    with FreshMasks(e.directory, slots=4) as fresh:
        while not fresh.full:
            e.insert(BEYOND + e.rng.randrange(1000))
        masks = {row[0]: row[1] for row in e.rows() if row[1]}
        verdicts = {row[2]: 64 for row in e.rows() if row[2] is not None}
        await sweep(e.directory, plan_of(verdicts, {}), POSITION, Turns())
    assert {row[0]: row[1] for row in e.rows() if row[1]} == masks


async def test_without_a_table_of_fresh_masks_none_is_cleared() -> None:
    e = Entries(3, 20, 60)
    before = e.rows()
    verdicts = {row[2]: 64 for row in before if row[2] is not None}
    await sweep(e.directory, plan_of(verdicts, {}), POSITION, Turns())
    assert e.rows() == before


# --- sarp


def length_of(n: int, point: int) -> int:
    """Fingerprints of a point's filter."""
    return 0 if point == 7 else max(0, min(8, n // 2 - OFFSETS[point] // 2))


def cut_filter(value: int, n: int, point: int) -> int:
    length = length_of(n, point)
    return value >> 8 * (8 - length) << 8 * (8 - length) if length else 0


class Postings:
    """Records with postings at a few points, in few lists."""

    def __init__(self, seed: int, keys: int, records: int, *, alike: bool = False, bytes_max: int = 1 << 23) -> None:
        self.rng = rng = random.Random(seed)
        self.directory = started(PostingsDirectory(SECRET, bytes_max))
        self.keys = [[rng.getrandbits(48) for _ in range(keys)] for _ in OFFSETS]
        for key in self.keys[0]:
            if rng.random() < 0.7:
                self.directory.apply(change(key=key, n=1, point=0, operation=1, root_key=1, position=FILE << 24 | 1))
        for unit in rng.sample(range(2, 2 * BEYOND), records):
            self.insert(unit, alike=alike)

    def insert(self, unit: int, *, alike: bool) -> None:
        rng = self.rng
        n = 64 if alike else rng.randint(1, 64)
        d = 0 if alike else rng.randrange(n)
        for point in [0, *(p for p in range(1, 8) if rng.random() < 0.4 and not alike)]:
            if OFFSETS[point] < n:
                prints = int.from_bytes(bytes(rng.randint(1, 255) for _ in range(8)))
                key, value = rng.choice(self.keys[point]), cut_filter(prints, n, point)
                fields = {"key": key, "root_key": value, "n": n, "d": d, "point": point}
                position = FILE << 24 | unit
                self.directory.apply(change(position=position, supersedes=position, operation=1, **fields))

    def rows(self):
        """[key, filter, unit (of a state 0), n, d, point, flags]."""
        out = []
        for word0, word1, value in rows_of(self.directory):
            flags = word1 & 0xFFFFFF
            fields = (word0 >> 10 & 63) + 1, word0 >> 4 & 63, word0 >> 1 & 7
            out.append([word0 >> 16, value, word1 >> 24 & 0xFFFFFF, *fields, flags])
        return sorted(out)


def swept_postings(rows, verdicts):
    out, dropped, cut, unreadable = [], 0, 0, 0
    for row in rows:
        key, value, unit, n, d, point, flags = row
        left = verdicts.get(unit, 0 if unit < BEYOND else 64)
        if unit == 0 or left >= n:
            out.append(row)
        elif left <= d or left <= OFFSETS[point]:
            dropped += point == 0
            unreadable += point == 0 and unit not in verdicts
        else:
            cut += point == 0
            out.append([key, cut_filter(value, left, point), unit, left, d, point, flags])
    lists = {row[0] for row in out if row[2]}
    return sorted(row for row in out if row[0] in lists), (dropped, cut, unreadable)


@pytest.mark.parametrize(("seed", "keys", "records"), [(s, k, r) for s in range(4) for k, r in ((2, 30), (3, 2500))])
async def test_postings(seed, keys, records) -> None:
    p = Postings(seed, keys, records)
    before = p.rows()
    verdicts = random_verdicts(p.rng, sorted({row[2] for row in before if row[2]}))
    result = await sweep(p.directory, plan_of(verdicts, {}), POSITION, Turns())
    expected, counts = swept_postings(before, verdicts)
    assert p.rows() == expected
    assert (result.dropped, result.cut, result.unreadable) == counts
    check_order(p.directory)


async def test_all_of_a_long_list_is_cut_to_one_filter() -> None:
    """Everything moves to the list's beginning, over many partitions, and splits what is there."""
    p = Postings(7, 1, 9000, alike=True)
    assert len(p.directory.partitions) >= 8
    verdicts = {row[2]: 1 for row in p.rows() if 0 < row[2] < BEYOND}
    before = p.rows()
    result = await sweep(p.directory, plan_of(verdicts, {}), POSITION, Turns())
    expected, counts = swept_postings(before, verdicts)
    assert p.rows() == expected
    assert (result.dropped, result.cut, result.unreadable) == counts
    check_order(p.directory)


async def test_where_there_is_no_room_a_list_loses_what_would_move() -> None:
    p = Postings(8, 1, 6000, alike=True, bytes_max=(6000 // 42 + 40) << 10)
    p.directory.c.partition_limit = p.directory.c.partition_count
    before = p.rows()
    verdicts = {row[2]: 1 for row in before if 0 < row[2] < BEYOND}
    await sweep(p.directory, plan_of(verdicts, {}), POSITION, Turns())
    expected, _ = swept_postings(before, verdicts)
    after = p.rows()
    assert len(after) < len(expected)
    assert all(row in expected for row in after)
    check_order(p.directory)


def check_order(directory: PostingsDirectory) -> None:
    """All in order, and counted."""
    rows = [row for number in directory.order.tolist() for row in directory.image(number).tolist()]
    places = [(word0 >> 16, value, word1 >> 24) for word0, word1, value in rows]
    assert places == sorted(set(places))
    assert directory.entries_all == len(rows)
    assert directory.entries == sum(reference > 0 for _, _, reference in places)
    blocks = sum((w0 >> 10 & 63) + 1 - (w0 >> 4 & 63) for w0, w1, _ in rows if w1 >> 24 and not w0 >> 1 & 7)
    assert directory.blocks == blocks == directory.partitions["blocks"].sum()


def test_a_kernel_call_is_told_of_partitions_that_are_not_loaded() -> None:
    """They are passed over."""
    directory = PostingsDirectory(SECRET, 1 << 20)
    parts = np.zeros(1, fmt.POSTING_PARTITION_DTYPE)
    parts["entries"] = 5
    directory.start_unloaded(parts)
    assert lib.sarp_postings_sweep(directory.c, 0, ffi.new("sarp_mark_plan *"))
    assert directory.entries_all == 5
