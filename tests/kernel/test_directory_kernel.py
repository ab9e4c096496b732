"""The kernel's directory alone: hand-made changes against the twin, splits, bounds, memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

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
    pages_for,
    rows,
)
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_views import SECRET, changes_array, twin_rows

from sarpstore import LimitError
from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FEATURES
from sarpstore._kernel.twin_directory import SegmentChange, TwinDirectory
from sarpstore._kernel.twin_hash import directory_key

if TYPE_CHECKING:
    from sarpstore._directory import DivergenceDirectory

both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


def deterministic(count: int) -> settings:
    return settings(
        max_examples=count,
        phases=[Phase.generate],  # a seed does not get simpler
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


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


@both_paths
@pytest.mark.parametrize(
    ("prefixes", "prefix_bits", "key_bits"), [(1, 0, 48), (3, 9, 48), (2, 5, 9), (40, 6, 2), (1, 0, 3)]
)
def test_random_changes_equal_the_twin(features: int, prefixes: int, prefix_bits: int, key_bits: int) -> None:
    @deterministic(examples(3))
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
