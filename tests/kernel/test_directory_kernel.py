"""The kernel's directory alone: hand-made changes against the twin, splits, images, bounds, memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_views import SECRET, changes_array, kernel_rows, twin_rows

from sarpstore import LimitError
from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._directory.divergence import DIRTY, LOADED
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, PARTITION_DTYPE, ffi, lib, pointer
from sarpstore._kernel.twin_directory import SegmentChange, TwinDirectory
from sarpstore._kernel.twin_hash import directory_key

if TYPE_CHECKING:
    import numpy.typing as npt

FILE, SLOT = 7, 3
PAGE_SLOTS, INDEX_SLOTS, ARENA_PAGE = 64, 17, 1024
ENTRIES_MAX = lib.SARP_PARTITION_ENTRIES_MAX
both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


def deterministic(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a seed does not get simpler
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


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


def check_find(directory: DivergenceDirectory, twin: TwinDirectory, keys: list[int]) -> None:
    """Looked up one by one, by both paths through the CPU."""
    features = directory.base.c.features
    for key in keys:
        expected = twin.at(key)
        for directory.base.c.features in (0, FEATURES):
            found = directory.find(key)
            assert len(found) == min(64, len(expected))
            assert all(word0 >> 16 == key for word0, _ in found)
    directory.base.c.features = features


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


@both_paths
@pytest.mark.parametrize(
    ("prefixes", "prefix_bits", "key_bits"), [(1, 0, 48), (3, 9, 48), (2, 5, 9), (40, 6, 2), (1, 0, 3)]
)
def test_random_changes_equal_the_twin(features: int, prefixes: int, prefix_bits: int, key_bits: int) -> None:
    @deterministic(3)
    @given(st.integers(0, 2**32), st.sampled_from([300, 3000, 9000]))
    def run(seed: int, count: int) -> None:
        # Splitting ends at a depth of 31: entries of one key must fit a partition.
        count = min(count, 900 if key_bits < 4 else 9000)
        source = Changes(seed, prefixes, prefix_bits, key_bits)
        directory, twin = new_directory(features=features), TwinDirectory(SECRET)
        for _ in range(5):
            batch = [source.next() for _ in range(count // 5)]
            directory.apply(changes_array(batch))
            for each in batch:
                twin.apply(each)
            check(directory, twin)
        keys = [each.key for each in source.made] + [source.key() for _ in range(100)]
        check_find(directory, twin, random.Random(seed).sample(keys, min(400, len(keys))))
        # Replay of a suffix: what was superseded comes and goes again.
        for start in (len(source.made) // 2, 0):
            for _ in range(2):
                directory.apply(changes_array(source.made[start:]))
                for each in source.made[start:]:
                    twin.apply(each)
            check(directory, twin)

    run()


@both_paths
def test_every_fill_of_a_partition_up_and_down(features: int) -> None:
    """Insertions and removals at the front, the middle and the end move entries across every page boundary."""
    rng = random.Random(3)
    directory, twin = new_directory(features=features), TwinDirectory(SECRET)
    low, high = 0, (1 << 48) - 1
    keys = [(low + i, high - i, 1 << 47 | rng.getrandbits(40))[i % 3] for i in range(ENTRIES_MAX)]
    log = [change(i + 1, key, key, n=1 + i % 64, dp=i % 64) for i, key in enumerate(keys)]
    for at in range(0, len(log), 31):
        batch = log[at : at + 31]
        directory.apply(changes_array(batch))
        for each in batch:
            twin.apply(each)
        assert rows(directory) == twin_rows(twin)
        assert directory.c.arena.page_next == pages_for(at + len(batch))
    assert directory.c.partition_count == 1
    check(directory, twin)
    check_find(directory, twin, rng.sample(keys, 300))


@pytest.mark.parametrize("order", ["front", "back", "shuffled"])
def test_removal_shifts_across_pages(order: str) -> None:
    directory, twin = new_directory(), TwinDirectory(SECRET)
    rng = random.Random(5)
    keys = sorted({rng.getrandbits(48) for _ in range(900)})
    log = [change(i + 1, key, key, n=3, d=1) for i, key in enumerate(keys)]
    # Under root keys that are the records' own: no placeholders, since a child's step 2 finds no root entry there.
    for each in log:
        twin.apply_entry(each)
    steps = np.arange(0, 2 * len(log), 2, dtype="<u4")
    directory.apply(changes_array(log), steps)
    check(directory, twin)
    # A second record under each key, and then that it supersedes the first, which goes.
    todo = {"front": keys, "back": keys[::-1], "shuffled": rng.sample(keys, len(keys))}[order]
    olds = {each.key: each.position for each in log}
    second = [change(1000 + i, key, key, n=3, d=1) for i, key in enumerate(todo)]
    directory.apply(changes_array(second), steps)
    for each in second:
        twin.apply_entry(each)
    check(directory, twin)
    assert directory.c.arena.page_next - directory.c.arena.pages_free == pages_for(2 * len(keys))
    for i, each in enumerate(second):
        again = SegmentChange(each.position, each.key, each.key, 3, 1, 0, olds[each.key])
        directory.apply(changes_array([again]), steps[:1])
        twin.apply_entry(again)
        if i % 23 == 0:
            check(directory, twin)
    check(directory, twin)
    assert directory.entries == len(keys)


def test_a_root_that_loses_its_last_entry_stays_as_a_placeholder_and_counts_nothing() -> None:
    directory, twin = new_directory(), TwinDirectory(SECRET)
    log = [
        *(change(1, 5, 5, n=10), change(2, 9, 5, n=12, d=8), change(3, 5, 5, n=4, d=2)),
        change(3, 5, 5, n=4, d=2, supersedes=change(1, 5).position),
    ]
    for each in log[:3]:
        directory.apply(changes_array([each]))
        twin.apply(each)
    directory.apply(changes_array(log), np.array([6], "<u4"))
    twin.apply_entry(log[3])
    check(directory, twin)
    assert (directory.c.placeholders, directory.entries) == (1, 2)
    # The next root takes it over.
    directory.apply(changes_array([change(4, 5, 5, n=6)]))
    twin.apply(change(4, 5, 5, n=6))
    check(directory, twin)
    assert directory.c.placeholders == 0


def test_superseding_keeps_recency_and_mask() -> None:
    directory = new_directory()
    word1 = fmt.position(SLOT, 64) << 24 | 4 << 18 | 9 << 6 | 21 << 1
    parts = np.zeros(1, fmt.PARTITION_DTYPE)
    parts[0]["entries"], parts[0]["blocks"] = 1, 5
    directory.start_unloaded(parts)
    directory.load(0, np.array([(77 << 16 | 0xBEEF, word1)], fmt.ENTRY_DTYPE))
    directory.apply(changes_array([change(2, 77, 77, n=40, dp=9, supersedes=fmt.position(FILE, 64))]))
    ((word0, word1),) = directory.find(77)
    assert word0 == 77 << 16 | 0xBEEF
    assert word1 == (SLOT << 24 | 2) << 24 | 39 << 18 | 9 << 6 | 21 << 1
    assert directory.blocks == 40


@both_paths
def test_keys_are_the_twins(features: int) -> None:
    rng = random.Random(9)
    directory = new_directory(features=features)
    ids = np.frombuffer(rng.randbytes(16 * 300), np.uint8).reshape(-1, 16)
    for holder, name_space in [(0, 0), (1, 0), (2**32 - 1, 2**64 - 1), (7, rng.getrandbits(64))]:
        keys = directory.base.keys(ids, holder, name_space).tolist()
        assert keys == [directory_key(bytes(i), holder, name_space, SECRET) for i in ids]


# Images


def snapshot(directory: DivergenceDirectory) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
    """The partitions' rows in order of prefix, and their images."""
    parts = directory.partitions
    order = np.argsort(parts["prefix"])
    out = np.zeros(len(parts), fmt.PARTITION_DTYPE)
    for name in ("prefix", "depth", "entries", "blocks"):
        out[name] = parts[order][name]
    return out, [directory.image(int(n)).copy() for n in order]


def reopened(parts: npt.NDArray[Any], bytes_max: int = 1 << 22) -> DivergenceDirectory:
    directory = DivergenceDirectory(SECRET, bytes_max)
    directory.base.add_slot(SLOT, FILE)
    directory.start_unloaded(parts)
    return directory


@pytest.fixture(scope="module")
def grown() -> tuple[DivergenceDirectory, TwinDirectory, Changes]:
    source = Changes(11, 3, 5, 48)
    directory, twin = new_directory(), TwinDirectory(SECRET)
    batch = [source.next() for _ in range(12_000)]
    directory.apply(changes_array(batch))
    for each in batch:
        twin.apply(each)
    return directory, twin, source


Grown = tuple[DivergenceDirectory, TwinDirectory, Changes]


def test_images_load_in_any_order(grown: Grown) -> None:
    directory, twin, _ = grown
    parts, images = snapshot(directory)
    assert len(parts) > 8
    again = reopened(parts)
    assert (again.blocks, again.c.entries) == (directory.blocks, directory.c.entries)
    order = list(range(len(parts)))
    random.Random(1).shuffle(order)
    for done, number in enumerate(order):
        assert not again.partitions[number]["flags"] & LOADED
        with pytest.raises(ValueError, match="not a directory"):
            again.image(number)
        with pytest.raises(ValueError, match="not a directory"):
            again.find(int(parts[number]["prefix"]))
        again.load(number, images[number])
        assert again.partitions[number]["flags"] == LOADED
        assert again.image(number).tobytes() == images[number].tobytes()
        if done % 5 == 0:
            check_shape(again)
        with pytest.raises(ValueError, match="not a directory"):
            again.load(number, images[number])
        with pytest.raises(ValueError, match="not a directory"):
            again.load_empty(number)
    check(again, twin)


def test_a_tail_by_steps_in_any_order_of_partitions(grown: Grown) -> None:
    directory, twin, source = grown
    parts, images = snapshot(directory)
    again, straight = reopened(parts), reopened(parts)
    tail = [source.next() for _ in range(2500)]
    changes = changes_array(tail)
    partition = again.partition_of(np.stack([changes["key"], changes["root_key"]], 1).reshape(-1))
    order = list(range(len(parts)))
    random.Random(2).shuffle(order)
    for number in order:
        again.load(number, images[number])
        again.apply(changes, np.flatnonzero(partition == number).astype("<u4"))
    for number in range(len(parts)):
        straight.load(number, images[number])
    straight.apply(changes)
    assert rows(again) == rows(straight)
    check_shape(again)
    assert again.blocks == straight.blocks
    other = TwinDirectory(SECRET)
    for key, entries in twin._entries.items():
        for e in entries:
            copies = other._entries.setdefault(key, [])
            copies.append(type(e)(e.position, e.n, e.d, e.dp, e.mask))
    for each in tail:
        other.apply(each)
    check(again, other)


def test_steps_outside_loaded_partitions_are_refused(grown: Grown) -> None:
    directory, _, _ = grown
    parts, images = snapshot(directory)
    again = reopened(parts)
    again.load(0, images[0])
    keys = int(parts[0]["prefix"]), int(parts[1]["prefix"])
    changes = changes_array([change(1, keys[0], keys[1], n=3, d=1)])
    before = rows_of_loaded(again)
    with pytest.raises(ValueError, match="not a directory"):
        again.apply(changes, np.array([1], "<u4"))
    assert rows_of_loaded(again) == before
    again.apply(changes, np.array([0], "<u4"))
    assert again._done[0] == 1
    with pytest.raises(ValueError, match="not a directory"):
        again.apply(changes)
    assert again._done[0] == 0


def rows_of_loaded(directory: DivergenceDirectory) -> Any:
    parts = directory.partitions
    return kernel_rows(directory, [n for n in range(len(parts)) if parts[n]["flags"] & LOADED])


def test_the_record_of_a_file_without_a_slot_is_refused() -> None:
    directory = new_directory()
    unknown = SegmentChange(fmt.position(FILE + 1, 64), 5, 5, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="not a directory"):
        directory.apply(changes_array([change(1, 5, 5), unknown, change(2, 6, 6)]))
    assert directory._done[0] == 1
    assert directory.entries == 1
    # One that it supersedes may be gone with its file.
    directory.apply(changes_array([change(3, 6, 6, supersedes=unknown.position)]))
    assert directory.entries == 2


def layout(*rows: tuple[int, int, int]) -> npt.NDArray[Any]:
    """(prefix, depth, entries) of partitions."""
    out = np.zeros(len(rows), fmt.PARTITION_DTYPE)
    for row, (prefix, depth, entries) in zip(out, rows, strict=True):
        row["prefix"], row["depth"], row["entries"] = prefix, depth, entries
    return out


HALF, QUARTER = 1 << 47, 1 << 46


@pytest.mark.parametrize(
    "parts",
    [
        layout(),
        layout((0, 1, 0)),
        layout((HALF, 1, 0)),
        layout((0, 2, 0), (HALF, 1, 0)),
        layout((0, 1, 0), (HALF, 2, 0)),
        layout((0, 0, 0), (HALF, 1, 0)),
        layout((0, 1, 0), (QUARTER, 2, 0), (HALF, 1, 0)),
        layout((0, 1, 0), (0, 1, 0), (HALF, 1, 0)),
        layout((HALF, 1, 0), (0, 1, 0)),
        layout((0, 2, 0), (QUARTER, 1, 0), (HALF + QUARTER, 2, 0)),
        layout((0, 1, 0), (HALF + 1, 1, 0)),
        layout((0, 0, 0), (1 << 48, 0, 0)),
        layout((0, 41, 0)),
        layout((0, 255, 0)),
        layout((0, 0, ENTRIES_MAX + 1)),
        layout((0, 0, 65_535)),
    ],
)
def test_partitions_that_do_not_cover_all_keys_once_are_refused(parts: npt.NDArray[Any]) -> None:
    directory = DivergenceDirectory(SECRET, 1 << 20)
    with pytest.raises(ValueError, match="not a directory"):
        directory.start_unloaded(parts)


def test_partitions_past_the_bound_are_refused() -> None:
    depths = [*range(1, 33), 32]
    prefixes = np.cumsum([0] + [1 << (48 - depth) for depth in depths])[:-1]
    deep = layout(*((int(p), depth, 0) for p, depth in zip(prefixes, depths, strict=True)))
    with pytest.raises(LimitError):
        DivergenceDirectory(SECRET, 1 << 20).start_unloaded(deep)
    eighth = layout(*((i << 45, 3, 0) for i in range(8)))
    # Refused before anything is loaded: a directory that can't be loaded whole would miss what it holds.
    with pytest.raises(LimitError):
        DivergenceDirectory(SECRET, 7 * ARENA_PAGE).start_unloaded(eighth)
    directory = DivergenceDirectory(SECRET, 8 * ARENA_PAGE)
    directory.start_unloaded(eighth)
    for number in range(8):
        directory.load_empty(number)


def word1(units: int, n: int, d: int, dp: int = 0, slot: int = SLOT) -> int:
    return (slot << 24 | units) << 24 | (n - 1) << 18 | d << 12 | dp << 6


PLACEHOLDER = fmt.REFERENCE_NONE << 24 | 1
GOOD = [(HALF | 5, 0, word1(1, 64, 0)), (HALF | 5, 0, word1(2, 9, 8)), (HALF | 9, 0xFFFF, PLACEHOLDER)]
GOOD_BLOCKS = 65


def half_loaded(entries: int, blocks: int) -> DivergenceDirectory:
    parts = layout((0, 1, 0), (HALF, 1, entries))
    parts[1]["blocks"] = blocks
    return reopened(parts)


def array_of(entries: list[tuple[int, int, int]]) -> npt.NDArray[Any]:
    return np.array([(key << 16 | mask, word1) for key, mask, word1 in entries], fmt.ENTRY_DTYPE)


def test_a_good_image_loads_whatever_its_recency() -> None:
    directory = half_loaded(3, GOOD_BLOCKS)
    entries = array_of(GOOD)
    entries["word1"] |= np.array([31 << 1, 1 << 1, 31 << 1], "<u8")
    directory.load(1, entries)
    assert directory.image(1).tobytes() == entries.tobytes()
    assert (directory.entries, directory.c.placeholders) == (2, 1)


@pytest.mark.parametrize(
    ("entries", "blocks"),
    [
        (GOOD[:2], GOOD_BLOCKS),
        ([*GOOD, GOOD[2]], GOOD_BLOCKS),
        (GOOD, GOOD_BLOCKS + 1),
        (GOOD[::-1], GOOD_BLOCKS),
        ([(5, 0, word1(1, 64, 0)), *GOOD[1:]], GOOD_BLOCKS),
        ([(HALF - 1, 0, word1(1, 64, 0)), *GOOD[1:]], GOOD_BLOCKS),
        ([GOOD[0], (HALF | 5, 0, word1(2, 8, 8)), GOOD[2]], 64),
        ([GOOD[0], (HALF | 5, 0, word1(2, 1, 63)), GOOD[2]], 64 - 62),
        ([GOOD[0], (HALF | 5, 1, word1(2, 9, 8)), GOOD[2]], GOOD_BLOCKS),
        ([GOOD[0], (HALF | 5, 0, word1(2, 9, 8, slot=SLOT + 1)), GOOD[2]], GOOD_BLOCKS),
        ([GOOD[0], (HALF | 5, 0, word1(2, 9, 8, slot=65_535)), GOOD[2]], GOOD_BLOCKS),
        ([*GOOD[:2], (HALF | 9, 1, PLACEHOLDER & ~1)], GOOD_BLOCKS + 1),
        ([*GOOD[:2], (HALF | 9, 1, word1(3, 1, 0) | 1)], GOOD_BLOCKS),
        ([*GOOD[:2], (HALF | 9, 1, PLACEHOLDER | 1 << 6)], GOOD_BLOCKS),
        ([*GOOD[:2], (HALF | 9, 1, PLACEHOLDER | 1 << 12)], GOOD_BLOCKS),
        ([*GOOD[:2], (HALF | 9, 1, PLACEHOLDER | 1 << 18)], GOOD_BLOCKS),
    ],
    ids=[
        *("too few", "too many", "blocks", "order", "prefix", "prefix before", "d = n", "d > n", "mask below a root"),
        *("slot", "last slot", "reference none", "placeholder with a reference", "with dp", "with d", "with n"),
    ],
)
def test_bad_images_are_refused(entries: list[tuple[int, int, int]], blocks: int) -> None:
    directory = half_loaded(3, blocks & 0xFFFFFFFF)
    with pytest.raises(ValueError, match="not a directory"):
        directory.load(1, array_of(entries))
    # Nothing came in: the right image still may, or the log.
    assert not directory.partitions[1]["flags"] & LOADED
    assert (directory.c.arena.page_next, directory.c.placeholders, directory.c.entries) == (0, 0, 3)
    directory.load_empty(1)
    assert (directory.entries, directory.blocks) == (0, 0)
    assert directory.partitions[1]["flags"] == LOADED | DIRTY
    check_shape(half_loaded(0, 0))


def test_partitions_that_do_not_exist_are_refused() -> None:
    directory = half_loaded(0, 0)
    out = np.empty(ENTRIES_MAX, fmt.ENTRY_DTYPE)
    for number in (2, 2**32 - 1):
        assert lib.sarp_directory_load(directory.c, number, ffi.NULL, 0) == lib.SARP_INVALID
        assert lib.sarp_directory_load_empty(directory.c, number) == lib.SARP_INVALID
        assert lib.sarp_directory_image(directory.c, number, pointer("sarp_entry *", out)) == lib.SARP_INVALID


def test_changes_mark_their_partitions(grown: Grown) -> None:
    directory, _, _ = grown
    parts, images = snapshot(directory)
    again = reopened(parts)
    for number, image in enumerate(images):
        again.load(number, image)
    assert not np.any(again.partitions["flags"] & DIRTY)
    low, high = int(parts[0]["prefix"]) + 1, int(parts[-1]["prefix"]) + 1
    again.apply(changes_array([change(50_000, high, low, n=3, d=1)]))
    assert np.flatnonzero(again.partitions["flags"] & DIRTY).tolist() == [0, len(parts) - 1]


# Memory


def test_slack_stays_below_a_third_from_ten_thousand_entries_on() -> None:
    rng = np.random.default_rng(1)
    directory = new_directory(1 << 24)
    made, worst = 0, 0.0
    while made < 120_000:
        step = max(64, made // 40)
        batch = np.zeros(step, CHANGE_DTYPE)
        batch["key"] = batch["root_key"] = rng.integers(0, 1 << 48, step, dtype="<u8")
        batch["position"] = np.arange(made + 1, made + 1 + step, dtype="<u8") + (FILE << 24)
        batch["n"] = 1
        directory.apply(batch)
        made += step
        assert directory.c.entries == made
        parts = directory.partitions
        pages = sum(map(pages_for, parts["entries"].tolist()))
        assert directory.c.arena.page_next - directory.c.arena.pages_free == pages
        if made >= 10_000:
            worst = max(worst, directory.bytes / (16 * made))
    assert worst <= 1.3


@pytest.mark.parametrize("pages", [1, 2, 7, 8, 9, 15, 16, 17, 24, 40])
def test_at_the_bound_nothing_is_lost(pages: int) -> None:
    rng = random.Random(pages)
    directory, twin = new_directory(pages * ARENA_PAGE), TwinDirectory(SECRET)
    log = []
    for i in range(16_000):
        d = rng.randrange(1, 64) if i % 3 == 0 else 0
        key = rng.getrandbits(48)
        log.append(change(i + 1, key, rng.getrandbits(48) if d else key, n=max(1, d + 1), d=d))
    with pytest.raises(LimitError, match="directory_bytes_max"):
        directory.apply(changes_array(log))
    done = directory._done[0]
    assert directory.c.arena.page_next <= pages
    for each in log[:done]:
        twin.apply(each)
    if rows(directory) != twin_rows(twin):
        # The last one's own entry came in, and then there was no room for its root's.
        assert log[done].d
        twin.apply_entry(log[done])
    check(directory, twin)
    # By single steps the count is exact.
    again, twin = new_directory(pages * ARENA_PAGE), TwinDirectory(SECRET)
    with pytest.raises(LimitError):
        again.apply(changes_array(log), np.arange(2 * len(log), dtype="<u4"))
    for step in range(again._done[0]):
        (twin.apply_mask if step % 2 else twin.apply_entry)(log[step // 2])
    check(again, twin)


def test_entries_of_one_key_that_outgrow_a_partition_meet_the_bound() -> None:
    directory = new_directory(1 << 22)
    log = [change(i + 1, 1234, 1234, n=2, d=1) for i in range(ENTRIES_MAX + 1)]
    steps = np.arange(0, 2 * len(log), 2, dtype="<u4")
    with pytest.raises(LimitError):
        directory.apply(changes_array(log), steps)
    assert directory._done[0] == ENTRIES_MAX
    assert directory.entries == directory.blocks == ENTRIES_MAX
    check_shape(directory)
    assert len(directory.find(1234)) == 64


def test_no_memory_at_all() -> None:
    with pytest.raises(LimitError):
        new_directory(0)
