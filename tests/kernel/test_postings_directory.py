"""The directory of posting lists as memory: partitions, images, changes; what breaks the rules is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_views import SECRET
from strategies import ids_of

from sarpstore import LimitError
from sarpstore import _format as fmt
from sarpstore._directory import DIRTY, LOADED, Directory, DivergenceDirectory, PostingsDirectory
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, ffi, lib
from sarpstore._kernel.twin_postings import OFFSETS, ListChange, TwinPostings, filter_of, fingerprint

FILE = 9
both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


def directory_of(bytes_max: int = 1 << 20, features: int = FEATURES, *, start: bool = True) -> PostingsDirectory:
    directory = PostingsDirectory(SECRET, bytes_max, features)
    directory.base.add_slot(0, 3)
    directory.base.add_slot(1, FILE)
    if start:
        directory.start_empty()
    return directory


def array_of(changes: list[ListChange]) -> Any:
    out = np.zeros(len(changes), CHANGE_DTYPE)
    for row, change in zip(out, changes, strict=True):
        row["key"], row["root_key"], row["supersedes"] = change.key, change.filter, change.position
        row["n"], row["d"], row["point"], row["operation"] = change.n, change.d, change.point, change.operation
        row["type"], row["position"] = fmt.RECORD_POSTINGS, 1
    return out


def position(unit: int, file: int = FILE) -> int:
    return file << 24 | unit


def value_of(n: int, point: int, rng: random.Random) -> int:
    """A filter that a sequence of n blocks may have at a point."""
    count = 0 if point == 7 else min(8, max(0, n // 2 - OFFSETS[point] // 2))
    return int.from_bytes(bytes(rng.choice([1, 2, 255]) for _ in range(count)).ljust(8, b"\0"), "big")


def change(rng: random.Random, operation: int, keys: list[int]) -> ListChange:
    key = rng.choice(keys)
    point = key % 8
    if rng.random() < 0.2:
        return ListChange(operation, point, key, rng.randrange(1, 4), 0, 1, 0)
    n = rng.randrange(OFFSETS[point] + 1, 65)
    return ListChange(operation, point, key, value_of(n, point, rng), position(128 + rng.randrange(40)), n, 0)


def elements(directory: PostingsDirectory) -> set[tuple[int, ...]]:
    out = set()
    for number in range(directory.c.partition_count):
        for word0, word1, value in directory.image(number).tolist():
            n, d, point = (word0 >> 10 & 63) + 1, word0 >> 4 & 63, word0 >> 1 & 7
            reference = word1 >> 24
            own = directory.base.slot_files[reference >> 24] << 24 | reference & 0xFFFFFF if reference else 0
            out.add((word0 >> 16, value, int(own), n if reference else word1, d, point))
    return out


@both_paths
@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32))
def test_changes_do_what_the_twin_does_and_again_nothing(features: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = [rng.getrandbits(45) << 3 | point for point in rng.choices(range(8), k=rng.randrange(1, 30))]
    directory, twin = directory_of(features=features), TwinPostings()
    changes = [change(rng, rng.choice([1, 1, 2]), keys) for _ in range(400)]
    for one in changes:
        twin.apply(one)
    rows = array_of(changes)
    directory.apply(rows)
    expected = {e for e in twin.elements() if e[2]}
    assert {e for e in elements(directory) if e[2]} == expected
    for key in keys:
        listed = directory.find(key)
        flags = twin.states.get(key, 0)
        assert len(listed) == len(twin.at(key)) + bool(flags)
        assert not flags or int(listed[0]["word1"]) == flags
    before = elements(directory)
    start = rng.randrange(len(changes))
    directory.apply(rows[start:])
    assert elements(directory) == before
    assert directory.entries == len(expected)
    assert directory.blocks == twin.blocks()


def filled(count: int, keys: int = 3, bytes_max: int = 1 << 20) -> PostingsDirectory:
    """Long lists: a few keys."""
    rng = random.Random(count)
    directory = directory_of(bytes_max)
    changes = []
    for i in range(count):
        n = rng.randrange(1, 65)
        changes.append(ListChange(1, 0, (rng.randrange(keys) + 1) << 40, value_of(n, 0, rng), position(128 + i), n, 0))
    directory.apply(array_of(changes))
    return directory


def rows_of(directory: PostingsDirectory) -> tuple[Any, list[Any]]:
    """Rows and images in order of range, by the calls that a checkpoint makes."""
    rows, images, number = [], [], directory.first()
    while True:
        rows.append(directory.row(number))
        images.append(directory.image(number))
        end = directory.end_of(number)
        if end is None:
            return np.array(rows, fmt.POSTING_PARTITION_DTYPE), images
        number = directory.at(end)


def test_partitions_split_in_the_middle_and_cover_everything_in_order() -> None:
    directory = filled(9000)
    rows, images = rows_of(directory)
    assert len(rows) == directory.c.partition_count >= 8
    lows = [directory.row_range(row) for row in rows]
    assert lows == sorted(set(lows))
    assert lows[0] == (0, 0, 0)
    places = [(w0 >> 16, value, w1 >> 24) for image in images for w0, w1, value in image.tolist()]
    assert places == sorted(set(places))
    assert len(places) == 9000 == directory.entries
    assert sum(map(len, images)) == rows["entries"].sum()
    assert directory.blocks == rows["blocks"].sum()
    used = [page for part in directory.partitions for page in part["pages"][: -(-int(part["entries"]) // 42)].tolist()]
    arena = directory.c.arena
    assert len(set(used)) == len(used) == arena.page_next - arena.pages_free
    assert directory.bytes / (24 * 9000) < 1.1
    # A list of thousands is found whole.
    assert sum(len(directory.find(key << 40)) for key in (1, 2, 3)) == 9000
    for row, low in zip(rows, lows, strict=True):
        assert directory.row(directory.at(low)).tobytes() == row.tobytes()
        assert directory.image_range(row) == (low[0], 0, low[1])


def test_dropping_gives_the_pages_back() -> None:
    directory = filled(5000)
    _, images = rows_of(directory)
    drops = []
    for word0, word1, value in (row for image in images for row in image.tolist()):
        unit = position(word1 >> 24 & 0xFFFFFF)
        drops.append(ListChange(2, word0 >> 1 & 7, word0 >> 16, value, unit, (word0 >> 10 & 63) + 1, 0))
    random.Random(4).shuffle(drops)
    directory.apply(array_of(drops))
    assert (directory.entries_all, directory.blocks) == (0, 0)
    assert directory.c.arena.page_next == directory.c.arena.pages_free
    directory.apply(array_of(drops))
    assert directory.entries_all == 0


def reopened(rows: Any) -> PostingsDirectory:
    directory = directory_of(start=False)
    directory.start_unloaded(rows)
    return directory


def test_images_give_the_directory_back() -> None:
    directory = filled(6000)
    rows, images = rows_of(directory)
    other = reopened(rows)
    assert (other.entries_all, other.blocks) == (6000, directory.blocks)
    assert not (other.partitions["flags"] & LOADED).any()
    with pytest.raises(ValueError, match="any writer"):
        other.find(1 << 40)
    order = list(range(len(rows)))
    random.Random(2).shuffle(order)
    for number in order:
        other.load(number, images[number])
    assert elements(other) == elements(directory)
    assert not (other.partitions["flags"] & DIRTY).any()
    other.mark_dirty_from(other.row_range(rows[3]))
    assert [bool(f & DIRTY) for f in other.partitions["flags"]] == [False] * 3 + [True] * (len(rows) - 3)
    # What comes again changes nothing, not even the flag.
    again = reopened(rows)
    for number, image in enumerate(images):
        again.load(number, image)
    again.apply(array_of([ListChange(1, 0, *place_of(images[0][0]), int(images[0][0]["word0"]) >> 10 & 63 or 1, 0)]))
    assert not (again.partitions["flags"] & DIRTY).any()


def place_of(entry: Any) -> tuple[int, int, int]:
    return int(entry["word0"]) >> 16, int(entry["filter"]), position(int(entry["word1"]) >> 24 & 0xFFFFFF)


def test_steps_name_the_partition_of_each_change() -> None:
    directory = filled(6000)
    rows, images = rows_of(directory)
    changes, numbers = [], []
    for row, image in zip(rows, images, strict=True):
        for entry in (image[0], image[-1]):
            n = (int(entry["word0"]) >> 10 & 63) + 1
            changes.append(ListChange(2, 0, *place_of(entry), n, 0))
            numbers.append(directory.at(directory.row_range(row)))
    table = array_of(changes)
    table["operation"][5] = 0
    partition, order = directory.steps(table)
    assert order.tolist() == [i for i in range(len(table)) if i != 5]
    assert partition.tolist() == [n for i, n in enumerate(numbers) if i != 5]
    other = reopened(rows)
    number = other.at(other.row_range(rows[2]))
    other.load(number, images[2])
    mine = np.ascontiguousarray(order[partition == numbers[4]])
    other.apply(table, mine)
    assert other.entries_all == 6000 - len(mine)
    with pytest.raises(ValueError, match="any writer"):
        other.apply(table, order)


def test_a_partition_rebuilt_from_the_log_begins_empty() -> None:
    directory = filled(6000)
    rows, images = rows_of(directory)
    other = reopened(rows)
    for number, image in enumerate(images):
        if number != 1:
            other.load(number, image)
    other.load_empty(1)
    assert other.entries_all == 6000 - len(images[1])
    assert elements(other) < elements(directory)
    for number in (1, 2):
        with pytest.raises(ValueError, match="any writer"):
            other.load_empty(number)


def corrupt(image: Any, at: int, **fields: int) -> Any:
    out = image.copy()
    for name, value in fields.items():
        out[at][name] = value
    return out


def test_hostile_images_are_refused() -> None:
    directory = filled(6000)
    rows, images = rows_of(directory)
    image = images[2]
    word0, word1, value = (int(x) for x in image[10].tolist())
    n = (word0 >> 10 & 63) + 1
    for bad in [
        image[:-1],
        corrupt(image, 10, word0=word0 | 1),
        corrupt(image, 10, word0=word0 | 63 << 4),  # d >= n
        corrupt(image, 10, word0=word0 & ~(63 << 10)),  # n that the filter does not have
        corrupt(image, 10, word0=word0 | 7 << 1),  # a point that it does not reach, or whose filter is 0
        corrupt(image, 10, word0=word0 ^ 1 << 16),
        corrupt(image, 10, word0=0),
        corrupt(image, 10, word1=word1 | 1),
        corrupt(image, 10, word1=word1 | 1 << 6),
        corrupt(image, 10, word1=word1 & 0xFFFFFF | 2 << 48),  # a slot without a file
        corrupt(image, 10, word1=0),
        corrupt(image, 10, word1=4, filter=0),
        corrupt(image, 10, filter=value ^ 1 << 63),
        corrupt(image, 10, filter=value | 1 if n < 16 else value & ~0xFF),
        corrupt(image, 10, filter=0),
        image[::-1].copy(),
        np.repeat(image[:1], len(image)),
        images[1][: len(image)],
    ]:
        other = reopened(rows)
        with pytest.raises(ValueError, match="any writer"):
            other.load(2, bad)
        assert not other.partitions[2]["flags"] & LOADED
        other.load(2, image)
        with pytest.raises(ValueError, match="any writer"):
            other.load(2, image)
    rng = random.Random(8)
    for _ in range(300):
        bad = image.copy()
        data = bad.view(np.uint8)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        other = reopened(rows)
        try:
            other.load(2, bad)
        except ValueError:
            continue
        elements_of_it = other.image(2)
        assert elements_of_it.tobytes() == bad.tobytes()


@pytest.mark.parametrize(
    ("field", "row", "value"),
    [
        ("key", 0, 1),
        ("filter", 0, 1),
        ("reference", 0, 1),
        ("key", 2, 0),
        ("key", 2, 1 << 48),
        ("reference", 2, 1 << 40),
        ("reference", 2, (1 << 40) - 1),
        ("entries", 2, 1345),
        ("entries", 2, 65537),
    ],
)
def test_hostile_partition_tables_are_refused(field: str, row: int, value: int) -> None:
    rows, _ = rows_of(filled(6000))
    rows[row][field] = value
    with pytest.raises(ValueError, match="any writer"):
        reopened(rows)


def test_tables_that_do_not_begin_at_the_beginning_or_repeat_are_refused() -> None:
    rows, _ = rows_of(filled(6000))
    for bad in (rows[1:], rows[:0], rows[::-1].copy(), np.repeat(rows, 2)):
        with pytest.raises(ValueError, match="any writer"):
            reopened(bad)
    small = directory_of(20 << 10, start=False)
    with pytest.raises(LimitError):
        small.start_unloaded(rows)


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": 3},
        {"point": 8},
        {"n": 0},
        {"n": 65},
        {"d": 20},
        {"n": 8, "point": 1},
        {"root_key": 1},
        {"supersedes": 0},
        {"supersedes": 0, "root_key": 4, "n": 1},
        {"supersedes": 0, "root_key": 0, "n": 1},
    ],
)
def test_changes_that_no_writer_makes_are_refused(fields: dict[str, int]) -> None:
    directory = directory_of()
    rng = random.Random(1)
    good = array_of([ListChange(1, 0, 5, value_of(20, 0, rng), position(128), 20, 3)])
    bad = good.copy()
    for name, value in fields.items():
        bad[0][name] = value
    with pytest.raises(ValueError, match="any writer"):
        directory.apply(bad)
    assert directory.entries_all == 0
    directory.apply(good)
    assert (directory.entries, directory.blocks) == (1, 17)


def test_what_names_a_file_that_is_gone_changes_nothing() -> None:
    directory = directory_of()
    rng = random.Random(1)
    gone = array_of([ListChange(1, 0, 5, value_of(20, 0, rng), position(128, file=77), 20, 3)])
    directory.apply(gone)
    assert directory.entries_all == 0


def test_past_the_bound_what_came_before_is_applied() -> None:
    with pytest.raises(LimitError):
        filled(9000, bytes_max=100 << 10)
    directory = directory_of(100 << 10)
    rng = random.Random(1)
    changes = array_of(
        [ListChange(1, 0, rng.getrandbits(47), value_of(9, 0, rng), position(128 + i), 9, 0) for i in range(9000)]
    )
    with pytest.raises(LimitError, match="directory_bytes_max"):
        directory.apply(changes)
    assert 1344 <= directory.entries == directory._done[0] < 9000
    assert len(elements(directory)) == directory.entries


def test_filters_are_those_of_the_specification() -> None:
    ids = ids_of("".join(random.Random(3).choice("abc") for _ in range(64)))
    base = directory_of().base
    for n in range(1, 65):
        out = ffi.new("uint64_t[8]")
        data = ffi.new("uint8_t[]", b"".join(ids[:n]))
        lib.sarp_postings_filters(base.c, data, n, out)
        assert list(out) == [filter_of(ids[:n], p, SECRET) if OFFSETS[p] < n else 0 for p in range(8)]
    prints = [fingerprint(i.to_bytes(16, "little"), SECRET) for i in range(3000)]
    assert set(prints) == set(range(1, 256))
    assert filter_of(ids, 0, SECRET).to_bytes(8, "big") == bytes(fingerprint(ids[i], SECRET) for i in range(1, 16, 2))


def test_both_directories_are_what_the_engine_asks_for() -> None:
    def names(directory: Directory) -> tuple[str, int, int]:
        return directory.routing, directory.entry_bytes, directory.row_dtype.itemsize

    assert names(directory_of()) == ("sarp", 24, 48)
    assert names(DivergenceDirectory(SECRET, 1 << 20)) == ("divergence", 16, 40)
    assert PostingsDirectory(SECRET, 1 << 20, read_cap=2, exact=True).c.read_cap == 64
