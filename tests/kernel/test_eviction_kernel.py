"""Recency and eviction of the divergence directory against plain numbers: parents stay warm, the deepest goes first,
what was matched stays, and every answer after an eviction is the longest prefix that is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from effort import examples
from eviction_model import FLOOR, NONE, PROBATION, TOP, Model, depth_of, kernel_levels, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_machine import Machine
from kernel_operations import _PACKED_STEPS, Setup, _decode
from strategies import Insert, Query, ids_of

from sarpstore._directory import LEVELS, Recency

if TYPE_CHECKING:
    from kernel_operations import Operation

_KINDS = ["insert"] * 10 + ["query"] * 6 + ["freeze"] * 2
_STEPS = st.lists(st.tuples(_PACKED_STEPS, st.integers(0, 255)), min_size=1, max_size=25)


def model_of(layout: tuple[int, ...] = (0,), file_pages: int = 4096, commit_pages: int = 64) -> Model:
    return Model(Machine(Setup(layout, 14, 64, commit_pages, file_pages, scalar=False)))


def operations_of(steps: list[tuple[object, int]]) -> list[tuple[Operation, int]]:
    operations = _decode([step for step, _ in steps], _KINDS)  # type: ignore[misc]
    return list(zip(operations, [event for _, event in steps], strict=True))


def kernel_match(model: Model, ids: tuple[bytes, ...], holder: int = 0, namespace: int = 0) -> int:
    """What the kernel answers, and so touches; the model follows."""
    queries, _, _ = model.machine.match(model.machine.pages, ids, holder, namespace, [False])
    model.touch(ids, holder, namespace)
    return int(queries.c[0].matched)


@settings(max_examples=examples(120))
@given(_STEPS, st.sampled_from([(0,), (1, 2, 4, 4, 4, 4)]))
def test_whole_levels_leave_the_longest_prefix(steps: list[tuple[object, int]], layout: tuple[int, ...]) -> None:
    model = model_of(layout, 166, 8)
    for operation, event in operations_of(steps):
        model.apply(operation)  # type: ignore[arg-type]
        for _ in range(event % 4 if event < 96 else 0):
            model.tick()
        if event >= 224:
            evict_and_expect(model, event % LEVELS)
        model.check_levels()
        model.check_order()
    evict_and_expect(model, PROBATION)


def evict_and_expect(model: Model, level: int) -> None:
    """What is left of each path ends where its first evicted record began."""
    expected = []
    for path in model.machine.queries:
        chain = reversed(model.chain(*path))
        length = model.machine.twin.match(*path).blocks
        gone = [(window, d) for key, window, d, entry in chain if model.levels[key, entry.position] < level]
        expected.append(gone[0][0] * 64 + gone[0][1] if gone else length)
    model.evict(level, NONE)
    for path, length in zip(model.machine.queries, expected, strict=True):
        assert model.machine.twin.match(*path).blocks == length
        assert kernel_match(model, *path) == length


@settings(max_examples=examples(120))
@given(_STEPS)
def test_a_level_that_is_split_by_file_leaves_true_answers(steps: list[tuple[object, int]]) -> None:
    model = model_of((0,), 42, 8)
    for operation, event in operations_of(steps):
        if not model.machine.damaged:
            model.apply(operation)  # type: ignore[arg-type]
        if event < 64:
            model.tick()
        if event >= 192:
            model.evict(event % LEVELS, 1 + event % 5)
            for path in model.machine.queries:
                claims_only_what_is_there(model, *path)
                holds_every_prefix(model, *path)


def claims_only_what_is_there(model: Model, ids: tuple[bytes, ...], holder: int, namespace: int) -> None:
    """All that a match claims is in records that entries still name, window by window; and the twin says the same."""
    twin = model.machine.twin
    length = kernel_match(model, ids, holder, namespace)
    assert length == twin.match(ids, holder, namespace).blocks
    entries = [e for found in twin.directory._entries.values() for e in found]
    held = [(twin._records[e.position], e.n) for e in entries if e.position is not None]
    for window in range(-(-length // 64)):
        part = ids[window * 64 : min(length, window * 64 + 64)]
        prefix = ids[window * 64 - 1] if window else bytes(16)
        assert any(
            (r.window, r.prefix_id, r.holder, r.namespace) == (window, prefix, holder, namespace)
            and n >= len(part)
            and r.ids[: len(part)] == part
            for r, n in held
        )


def holds_every_prefix(model: Model, ids: tuple[bytes, ...], holder: int, namespace: int) -> None:
    """Of its last window: what a record left is there as long as it."""
    length = kernel_match(model, ids, holder, namespace)
    for blocks in range(max(0, length - 1) // 64 * 64, length):
        assert kernel_match(model, ids[:blocks], holder, namespace) == blocks


def test_levels_come_in_rise_and_sink() -> None:
    model = model_of()
    model.apply(Insert("a" * 600, 0, 0, 0))
    windows = {position: record.window for position, record in model.machine.twin._records.items()}
    levels = {windows[position]: level for (_, position), level in model.levels.items() if position is not None}
    assert levels == {window: PROBATION - depth_of(window) for window in range(10)}
    model.check_levels()
    model.tick()
    assert kernel_match(model, ids_of("a" * 70)) == 70
    model.check_levels()
    assert sorted(model.levels.values(), reverse=True)[:3] == [TOP, TOP - 1, PROBATION - 3]
    for _ in range(2 * LEVELS + 5):
        model.tick()
        model.check_levels()
    assert set(model.levels.values()) == {FLOOR}


def test_the_deepest_goes_first_and_what_was_matched_stays() -> None:
    model = model_of()
    for symbol in "ab":
        model.apply(Insert(symbol * 640, 0, 0, 0))
    kept = ids_of("b" * 640)
    assert kernel_match(model, kept) == 640
    lengths = []
    for level in range(PROBATION - 4, PROBATION + 2):
        model.evict(level, NONE)
        lengths.append(model.machine.twin.match(ids_of("a" * 640)).blocks)
        assert model.machine.twin.match(kept).blocks == 640
    assert lengths == [640, 512, 256, 128, 64, 0]
    assert kernel_match(model, kept) == 640


def test_a_path_that_was_just_asked_for_costs_one_look() -> None:
    """An entry that has its level says that all before it have theirs: what is behind it is not looked at."""
    model = model_of()
    path = ids_of("a" * 200)
    model.apply(Insert("a" * 200, 0, 0, 0))
    assert kernel_match(model, path) == 200
    root = model.machine.twin.directory.key(path[0], 0, 0)
    lower_to_the_floor(model, root)
    queries, _, _ = model.machine.match(model.machine.pages, path, 0, 0, [False])
    assert queries.c[0].matched == 200
    assert level_under(model, root) == FLOOR
    model.tick()
    assert kernel_match(model, path) == 200
    assert level_under(model, root) == TOP


def lower_to_the_floor(model: Model, key: int) -> None:
    """Behind the kernel's back."""
    directory = model.machine.directory
    memory = np.frombuffer(directory._arena, "<u8")
    (at,) = np.flatnonzero(memory >> np.uint64(16) == key)
    memory[at + 1] = int(memory[at + 1]) & ~62 | (FLOOR + directory.base.c.clock) % LEVELS << 1


def level_under(model: Model, key: int) -> int:
    return next(level for (own, _), level in kernel_levels(model.machine) if own == key)


def test_sums_by_level_and_by_file() -> None:
    model = model_of((0,), 42, 8)
    for number in range(12):
        model.apply(Insert("abc"[number % 3] * 64 + "bca"[number // 3 % 3] * 300, 0, 0, number))
        model.apply(Query("abc"[number % 3] * 64, 0, 0))
    sums: dict[int, int] = {}
    files: dict[tuple[int, int], int] = {}
    offsets: dict[tuple[int, int], int] = {}
    for (_, position), level in model.levels.items():
        if position is not None:
            size = -(-(128 + model.machine.twin._records[position].n * 30) // 64) * 64
            sums[level] = sums.get(level, 0) + size
            d = model.machine.twin._records[position].d
            offsets[level, d] = offsets.get((level, d), 0) + size
            if not d:
                files[level, position >> 24] = files.get((level, position >> 24), 0) + size
    directory = model.machine.directory
    for level in range(LEVELS):
        found = Recency(level)
        sweep(directory, lambda begin, out=found: directory.recency(begin, 3, out))
        assert found.levels == [sums.get(each, 0) for each in range(LEVELS)]
        assert found.offsets == [offsets.get((level, d), 0) for d in range(64)]
        expected = {number: size for (own, number), size in files.items() if own == level}
        assert found.by_file(directory.base.slot_files) == expected
    assert len({number for _, number in files}) > 1


@pytest.mark.parametrize("ticks", [0, 3, 40])
def test_what_is_loaded_comes_in_as_if_it_had_been_inserted_at_the_open(ticks: int) -> None:
    model = model_of()
    for symbol in "bc":
        model.apply(Insert("a" * 130 + symbol * 3, 0, 0, 0))
    image, row = model.machine.directory.image(0), model.machine.directory.row(0)
    other = model.machine._new_directory(model.machine.slots)
    other.base.keep_recency(14)
    rows = model.machine._empty_partitions()
    rows[0] = row
    other.start_unloaded(rows)
    for _ in range(ticks):
        sweep(other, lambda begin: other.age(begin, 4))
        other.base.tick()
    other.load(0, image)
    clock = other.base.c.clock
    assert {(word1 // 2 - clock) % 32 for word1 in (other.image(0)["word1"] % 64).tolist()} == {max(2, 16 - ticks)}


def test_nothing_is_kept_where_nothing_is_evicted() -> None:
    machine = Machine(Setup((0,), 14, 64, 64, 4096, scalar=False))
    machine.apply(Insert("a" * 130, 0, 0, 0))
    machine.apply(Query("a" * 130, 0, 0))
    assert {word1 & 62 for word1 in machine.directory.image(0)["word1"].tolist()} == {0}


@pytest.mark.parametrize("window", [0, 1, 2])
def test_nothing_is_presumed_of_a_window_whose_owner_is_gone(window: int) -> None:
    """However it came that what a record stands on went before it."""
    model = model_of()
    path = ids_of("a" * 200)
    model.apply(Insert("a" * 200, 0, 0, 0))
    key = model.machine.twin.directory.key(path[window * 64], 0, 0)
    lower_to_the_floor(model, key)
    model.levels = {known: FLOOR if known[0] == key else level for known, level in model.levels.items()}
    model.evict(FLOOR + 1, NONE)
    assert model.machine.directory.entries == 3
    assert kernel_match(model, path) == window * 64
    model.apply(Insert("a" * 200, 0, 0, 1))
    assert kernel_match(model, path) == 200
