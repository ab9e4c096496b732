"""Images of partitions: they load in any order, the log's tail goes on them, and what is no directory is refused."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from directory_checks import (
    ARENA_PAGE,
    ENTRIES_MAX,
    FILE,
    SLOT,
    Changes,
    change,
    check,
    check_shape,
    new_directory,
    rows,
)
from kernel_views import SECRET, changes_array, kernel_rows

from sarpstore import LimitError
from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._directory.divergence import DIRTY, LOADED
from sarpstore._kernel import ffi, lib, pointer
from sarpstore._kernel.twin_directory import TwinDirectory

if TYPE_CHECKING:
    import numpy.typing as npt


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
