"""The Python twin of the kernel's directory, against a plain dict of what was inserted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Damage, Insert, Operation, Query, Rebuild, Replay, ids_of, locations_of, operations

from sarpstore._kernel.twin_directory import Owner, Segment, SegmentChange, TwinDirectory, TwinStore
from sarpstore._kernel.twin_hash import directory_key, fmix64

if TYPE_CHECKING:
    from random import Random

SECRET = bytes(range(16))
SHAPES = [(48, 8), (6, 8), (1, 8), (48, 64), (6, 64)]  # key bits, blocks a window
shapes = pytest.mark.parametrize(("key_bits", "window_blocks"), SHAPES)


def deterministic(examples: int) -> settings:
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Oracle:
    """The blocks held and every location that they were given, by holder, namespace and id."""

    def __init__(self) -> None:
        self.locations: dict[tuple[int, int, bytes], list[bytes]] = {}

    def insert(self, operation: Insert) -> None:
        path = operation.path
        for block_id, location in zip(ids_of(path), locations_of(path, operation.number), strict=True):
            self.locations.setdefault((operation.holder, operation.namespace, block_id), []).append(location)

    def match(self, query: Insert | Query) -> list[list[bytes]]:
        """What locations each matched block was given; the length is how far the path is held."""
        found = []
        for block_id in ids_of(query.path):
            given_locations = self.locations.get((query.holder, query.namespace, block_id))
            if given_locations is None:
                break
            found.append(given_locations)
        return found


class Session:
    """Operations applied to a twin and to an oracle."""

    def __init__(self, key_bits: int, window_blocks: int) -> None:
        self.exact_keys = key_bits == 48
        self.twin = TwinStore(SECRET, key_bits, window_blocks)
        self.oracle = Oracle()
        self.queries: list[Insert | Query] = []
        self.damaged = False
        self.rebuilt_damaged = False

    def apply(self, operation: Operation) -> None:
        segments = self.twin.segments()
        match operation:
            case Insert():
                self._insert(operation)
            case Query():
                self.queries.append(operation)
            case Damage() if segments:
                self.twin.damage(segments[operation.choice % len(segments)].position)
                self.damaged = True
            case Replay() if segments:
                self.twin.replay(segments[operation.choice % len(segments)].position, operation.times)
            case Rebuild():
                self.twin = self.twin.rebuilt()
                self.rebuilt_damaged = self.damaged

    def _insert(self, operation: Insert) -> None:
        ids = ids_of(operation.path)
        self.twin.insert(ids, locations_of(operation.path, operation.number), operation.holder, operation.namespace)
        self.oracle.insert(operation)
        self.queries.append(operation)
        # A rebuild without a damaged root cuts the way to later windows, whose records can then hide newer ones.
        if not self.rebuilt_damaged:
            assert self.twin.match(ids, operation.holder, operation.namespace).blocks == len(ids)

    def check_exact(self, query: Insert | Query) -> None:
        ids = ids_of(query.path)
        held = self.oracle.match(query)
        assert self.twin.match(ids, query.holder, query.namespace).blocks == len(held)
        assert self.twin.match_locations(ids, query.holder, query.namespace) == [first for first, *_ in held]
        at_least, at_most = self.twin.estimate(ids, query.holder, query.namespace)
        if self.exact_keys:
            assert at_least <= len(held) <= at_most

    def check_sound(self, query: Insert | Query) -> None:
        ids = ids_of(query.path)
        held = self.oracle.match(query)
        blocks = self.twin.match(ids, query.holder, query.namespace).blocks
        locations = self.twin.match_locations(ids, query.holder, query.namespace)
        assert len(locations) <= blocks <= len(held)
        assert all(location in held[block] for block, location in enumerate(locations))


def insert(twin: TwinStore, path: str, number: int) -> list[tuple[int, int, int, int]]:
    """Insert a path; returns (window, d, dp, n) of each record written."""
    written = twin.insert(ids_of(path), locations_of(path, number))
    return [(segment.window, segment.d, segment.dp, segment.n) for segment in written]


def per_key(directory: TwinDirectory) -> list[tuple[int, int, int, int, int, int]]:
    """The entries, each with its key's mask: which root entry of several with equal keys carries a bit is open."""
    rows = directory.entries()
    return sorted((key, directory.mask(key), position or 0, n, d, dp) for key, _, position, n, d, dp in rows)


def change(position: int, **fields: int) -> SegmentChange:
    return dataclasses.replace(SegmentChange(position, key=1, root_key=1, n=4, d=0, dp=0, supersedes=0), **fields)


# Keys


def test_fmix64_is_murmur3s() -> None:
    assert fmix64(0) == 0
    assert fmix64(1) == 0xB456BCFC34C2CB2C


def test_a_key_is_the_top_48_bits_of_the_mixed_product() -> None:
    halves_of_one = (1).to_bytes(8, "little") * 2
    assert directory_key(halves_of_one, 0, 0, bytes(16)) == 0xB456BCFC34C2
    # 2^63 times 2 is 2^64: the product's high half alone is 1.
    crossing = (1 << 63).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert directory_key(crossing, 0, 0, bytes(16)) == 0xB456BCFC34C2
    # The namespace goes into the low half, the holder's multiple into the high one, the secret into both.
    assert directory_key(bytes(8) + halves_of_one[8:], 0, 1, bytes(16)) == 0xB456BCFC34C2
    holder_inverse = (0x9E3779B97F4A7C15 * 5 % 2**64 ^ 1).to_bytes(8, "little")
    assert directory_key(halves_of_one[:8] + holder_inverse, 5, 0, bytes(16)) == 0xB456BCFC34C2
    assert directory_key(bytes(16), 0, 0, halves_of_one) == 0xB456BCFC34C2


def test_fewer_key_bits_keep_the_top_ones() -> None:
    block_id = ids_of("a")[0]
    whole = TwinDirectory(SECRET).key(block_id, 0, 0)
    assert whole == directory_key(block_id, 0, 0, SECRET)
    assert TwinDirectory(SECRET, key_bits=6).key(block_id, 0, 0) == whole >> 42 << 42


# How a record changes the directory


def test_a_child_before_its_root_leaves_a_placeholder_that_the_root_takes_over() -> None:
    directory = TwinDirectory(SECRET)
    child = change(2, key=7, d=9, n=12, dp=0)
    directory.apply(child)
    assert directory.entries() == [(1, 0b100, None, 1, 0, 0), (7, 0, 2, 12, 9, 0)]
    assert directory.blocks() == 3
    directory.apply(change(1, n=10))
    assert directory.entries() == [(1, 0b100, 1, 10, 0, 0), (7, 0, 2, 12, 9, 0)]
    assert directory.blocks() == 13


def test_superseding_keeps_the_key_and_its_mask() -> None:
    directory = TwinDirectory(SECRET)
    directory.apply(change(1, n=10, dp=3))
    directory.apply(change(2, key=7, d=5, n=8))
    directory.apply(change(3, n=20, dp=3, supersedes=1))
    assert directory.entries() == [(1, 0b10, 3, 20, 0, 3), (7, 0, 2, 8, 5, 0)]


def test_replay_drops_what_a_later_record_superseded_and_keeps_the_mask() -> None:
    directory = TwinDirectory(SECRET)
    log = [change(1, n=10), change(2, n=20, supersedes=1), change(3, key=7, d=5), change(4, n=30, supersedes=2)]
    for each in log:
        directory.apply(each)
    entries = directory.entries()
    for start in range(len(log)):
        for each in log[start:] * 2:
            directory.apply(each)
        assert directory.entries() == entries


def test_every_root_entry_of_equal_keys_gets_the_mask_bit() -> None:
    directory = TwinDirectory(SECRET)
    directory.apply(change(1))
    directory.apply(change(2))
    directory.apply(change(3, key=7, d=5))
    assert [row[:3] for row in directory.entries()] == [(1, 0b10, 1), (1, 0b10, 2), (7, 0, 3)]


def test_every_root_entry_of_an_equal_key_has_the_same_mask_so_that_replay_changes_nothing() -> None:
    directory = TwinDirectory(SECRET)
    log = [change(1), change(2, key=7, d=5), change(3)]  # 1 and 3: different blocks with an equal key
    for _ in range(2):
        for each in log:
            directory.apply(each)
        assert [row[:3] for row in directory.entries()] == [(1, 0b10, 1), (1, 0b10, 3), (7, 0, 2)]


def test_a_removed_root_entry_hands_on_its_mask() -> None:
    directory = TwinDirectory(SECRET)
    directory.apply(change(2, key=7, d=5))
    directory.apply(change(1))  # takes the placeholder's mask
    directory.apply(change(4))  # another block with an equal key
    directory.apply(change(4, supersedes=1))
    assert directory.entries() == [(1, 0b10, 4, 4, 0, 0), (7, 0, 2, 4, 5, 0)]


def test_the_last_root_entry_that_is_removed_stays_as_a_placeholder() -> None:
    directory = TwinDirectory(SECRET)
    directory.apply(change(1))
    directory.apply(change(2, key=7, d=5))
    directory.apply_entry(change(3, d=2))
    directory.apply_entry(change(3, d=2, supersedes=1))  # no root entry: it cannot inherit the mask
    assert directory.entries() == [(1, 0, 3, 4, 2, 0), (1, 0b10, None, 1, 0, 0), (7, 0, 2, 4, 5, 0)]


# Insertion and matching, one case each


def test_a_path_is_one_record_a_window() -> None:
    twin = TwinStore(SECRET)
    assert insert(twin, "a" * 150, 0) == [(0, 0, 0, 64), (1, 0, 0, 64), (2, 0, 0, 22)]
    assert insert(twin, "a" * 150, 1) == []
    found = twin.match(ids_of("a" * 200))
    assert (found.blocks, found.records_read) == (150, 1)
    assert twin.match_locations(ids_of("a" * 200)) == list(locations_of("a" * 150, 0))


def test_a_branch_is_keyed_where_it_leaves_and_repeats_the_shared_blocks() -> None:
    twin = TwinStore(SECRET)
    insert(twin, "a" * 100, 0)
    branch = "a" * 80 + "b" * 90
    assert insert(twin, branch, 1) == [(1, 16, 0, 64), (2, 0, 16, 42)]
    left = twin.segments()[-2]
    assert left.ids == ids_of(branch)[64:128]
    assert left.locations == locations_of(branch, 0)[64:80] + locations_of(branch, 1)[80:128]
    assert twin.segments()[-1].parent_key == twin.directory.key(ids_of(branch)[80], 0, 0)
    assert left.parent_key == twin.directory.key(ids_of(branch)[0], 0, 0)
    found = twin.match(ids_of(branch))
    assert (found.blocks, found.records_read) == (170, 1)
    assert twin.match_locations(ids_of(branch)) == list(locations_of(branch, 0)[:80] + locations_of(branch, 1)[80:])
    # The path that was left goes on under its own key, past the branch's.
    assert twin.match(ids_of("a" * 170)).blocks == 100


def test_a_path_that_ends_with_its_owner_supersedes_it() -> None:
    twin = TwinStore(SECRET)
    insert(twin, "a" * 30, 0)
    insert(twin, "a" * 10 + "b" * 10, 1)
    assert insert(twin, "a" * 10 + "b" * 70, 2) == [(0, 10, 0, 64), (1, 0, 10, 16)]
    superseding = twin.segments()[2]
    assert superseding.supersedes == twin.segments()[1].position
    assert superseding.locations[:21] == (
        locations_of("a" * 10, 0) + locations_of("a" * 20, 1)[10:] + locations_of("a" * 21, 2)[20:]
    )
    assert len(twin.directory.entries()) == 3
    assert twin.directory.blocks() == 30 + 70


def test_superseding_survives_a_rebuild_from_the_log_alone() -> None:
    twin = TwinStore(SECRET)
    for number, length in enumerate((5, 20, 64, 70)):
        insert(twin, "a" * length, number)
    rebuilt = twin.rebuilt()
    assert rebuilt.directory.entries() == twin.directory.entries()
    assert rebuilt.directory.blocks() == 70
    assert rebuilt.match_locations(ids_of("a" * 80)) == twin.match_locations(ids_of("a" * 80))


def test_a_damaged_owner_inside_a_window_with_the_next_root_present() -> None:
    twin = TwinStore(SECRET)
    insert(twin, "a" * 64, 0)
    branch = "a" * 20 + "b" * 60
    assert insert(twin, branch, 1) == [(0, 20, 0, 64), (1, 0, 20, 16)]
    twin.damage(twin.segments()[1].position)
    # The length is proved by the next window's record; locations reach as far as records can be read.
    assert twin.match(ids_of(branch)).blocks == 80
    assert twin.match_locations(ids_of(branch)) == list(locations_of(branch, 0)[:20])
    # A query that ends in the damaged record falls back to the owner that it had left.
    short = twin.match(ids_of(branch[:64]))
    assert (short.blocks, short.records_read) == (20, 2)
    # After a rebuild the lost owner has no entry: the next window stands on nothing, and its root is not believed.
    assert twin.rebuilt().match(ids_of(branch)).blocks == 20
    assert twin.rebuilt().match(ids_of(branch[:64])).records_read == 1


def test_a_damaged_root_costs_its_own_blocks_and_not_those_of_a_branch() -> None:
    twin = TwinStore(SECRET)
    insert(twin, "a" * 64, 0)
    branch = "a" * 20 + "b" * 20
    insert(twin, branch, 1)
    twin.damage(twin.segments()[0].position)
    for store in (twin, twin.rebuilt()):
        assert store.match(ids_of("a" * 64)).blocks == 0
        assert store.match(ids_of(branch)).blocks == 40
    # Inserting again opens the window again, beside the entry that misses.
    assert insert(twin, "a" * 30, 2) == [(0, 0, 0, 30)]
    assert twin.match(ids_of("a" * 64)).blocks == 30


def test_a_path_of_another_holder_or_namespace_is_not_held() -> None:
    twin = TwinStore(SECRET, key_bits=1)
    insert(twin, "aaa", 0)
    assert twin.match(ids_of("aaa"), holder=1).blocks == 0
    assert twin.match(ids_of("aaa"), namespace=1).blocks == 0
    assert twin.match(ids_of("aaa")).blocks == 3


def test_equal_ids_in_another_window_or_behind_another_prefix_are_not_held() -> None:
    # Engines bring ids of their own: these do not chain.
    first, second, third = ids_of("a" * 8), ids_of("b" * 8), ids_of("c" * 8)
    twin = TwinStore(SECRET, window_blocks=8)
    twin.insert(first + first, locations_of("a" * 16, 0))
    assert twin.match(first * 3).blocks == 16
    twin.insert(second + third, locations_of("b" * 16, 1))
    assert twin.match(first + third).blocks == 8


def test_of_equal_keys_the_longest_proof_wins_and_of_equals_the_newest() -> None:
    twin = TwinStore(SECRET, window_blocks=8)
    insert(twin, "a" * 20, 0)
    twin.damage(2)
    shorter = twin.rebuilt()  # window 1 has no root entry now, so window 2 is not looked at
    assert insert(shorter, "a" * 18, 1) == [(1, 0, 0, 8), (2, 0, 0, 2)]
    found = shorter.match(ids_of("a" * 20))
    assert (found.blocks, found.owner) == (20, Owner(position=3, window=2, offset=0, n=4))
    equal = twin.rebuilt()
    insert(equal, "a" * 20, 1)
    found = equal.match(ids_of("a" * 20))
    assert (found.blocks, found.records_read, found.owner) == (20, 2, Owner(position=5, window=2, offset=0, n=4))


def test_an_entry_may_claim_less_than_its_record() -> None:
    twin = TwinStore(SECRET)
    insert(twin, "a" * 10, 0)
    key = twin.directory.key(ids_of("a")[0], 0, 0)
    twin.directory.at(key)[0].n = 4
    assert twin.match(ids_of("a" * 10)).blocks == 4


def test_estimate_spans_from_the_deepest_key_to_its_n() -> None:
    twin = TwinStore(SECRET)
    assert twin.estimate(ids_of("a")) == (0, 0)
    insert(twin, "a" * 100, 0)
    insert(twin, "a" * 80 + "b" * 20, 1)
    assert twin.estimate(ids_of("a" * 90)) == (65, 90)
    assert twin.estimate(ids_of("a" * 80 + "b" * 2)) == (81, 82)
    assert twin.estimate(ids_of("a" * 80 + "b" * 100)) == (81, 100)
    assert twin.estimate(ids_of("a" * 64)) == (1, 64)


def test_a_location_a_block_is_asked_for() -> None:
    with pytest.raises(ValueError, match="2 ids, 1 locations"):
        TwinStore(SECRET).insert(ids_of("ab"), locations_of("a", 0))


# Any sequence of operations


@shapes
def test_undamaged_matches_are_exact_after_every_operation(key_bits: int, window_blocks: int) -> None:
    @deterministic(24)
    @given(operations(window_blocks))
    def run(sequence: list[Operation]) -> None:
        session = Session(key_bits, window_blocks)
        for operation in sequence:
            session.apply(operation)
            for query in session.queries[-2:]:
                session.check_exact(query)
        for query in session.queries:
            session.check_exact(query)
        assert session.twin.directory.blocks() == len(session.oracle.locations)

    run()


def grown(sequence: list[Operation], key_bits: int, window_blocks: int) -> TwinStore:
    """A twin after the sequence's insertions."""
    session = Session(key_bits, window_blocks)
    for operation in sequence:
        if isinstance(operation, Insert):
            session.apply(operation)
    return session.twin


def stands_on(twin: TwinStore, segment: Segment, other: Segment) -> bool:
    """Whether a record may follow an earlier one of its holder and namespace, by log.md, 2.1."""
    d = segment.d
    if not d and not segment.supersedes:
        key = twin.directory.change(other).key
        whole = other.n == twin.window_blocks and other.ids[-1] == segment.prefix_id
        return whole and (other.window, other.d, key) == (segment.window - 1, segment.dp, segment.parent_key)
    places = [(each.window, each.prefix_id, each.parent_key) for each in (segment, other)]
    if places[0] != places[1]:
        return False
    if segment.supersedes:
        extends = (other.d, other.dp, other.ids) == (d, segment.dp, segment.ids[: other.n])
        return extends and other.position == segment.supersedes and other.n < segment.n
    return other.d == segment.dp and other.n > d and other.ids[:d] == segment.ids[:d] and other.ids[d] != segment.ids[d]


@shapes
def test_every_record_names_what_it_stands_on(key_bits: int, window_blocks: int) -> None:
    @deterministic(10)
    @given(operations(window_blocks))
    def run(sequence: list[Operation]) -> None:
        twin = grown(sequence, key_bits, window_blocks)
        seen = set()
        for segment in twin.segments():
            if segment.window or segment.d or segment.supersedes:
                tenant = (segment.holder, segment.namespace)
                peers = [e for e in twin.segments()[: segment.position - 1] if (e.holder, e.namespace) == tenant]
                assert any(stands_on(twin, segment, each) for each in peers)
            else:
                assert (segment.dp, segment.parent_key, segment.prefix_id) == (0, 0, bytes(16))
            if not segment.supersedes:
                new = (segment.holder, segment.namespace, segment.ids[segment.d])
                assert new not in seen
                seen.add(new)
        # A block that was not held extends an owner under its key or is keyed itself: never both.
        superseded = {segment.supersedes for segment in twin.segments()}
        live = sorted(segment.position for segment in twin.segments() if segment.position not in superseded)
        assert live == sorted(position or 0 for _, _, position, *_ in twin.directory.entries())

    run()


@shapes
def test_damaged_records_only_ever_miss(key_bits: int, window_blocks: int) -> None:
    @deterministic(24)
    @given(operations(window_blocks, damage=True))
    def run(sequence: list[Operation]) -> None:
        session = Session(key_bits, window_blocks)
        for operation in sequence:
            session.apply(operation)
            for query in session.queries[-2:]:
                session.check_sound(query)
        for query in session.queries:
            session.check_sound(query)

    run()


@shapes
def test_replaying_any_suffix_twice_changes_nothing(key_bits: int, window_blocks: int) -> None:
    @deterministic(10)
    @given(operations(window_blocks))
    def run(sequence: list[Operation]) -> None:
        twin = grown(sequence, key_bits, window_blocks)
        entries = per_key(twin.directory)
        assert twin.rebuilt().directory.entries() == twin.directory.entries()
        for segment in twin.segments():
            twin.replay(segment.position, times=2)
            assert per_key(twin.directory) == entries

    run()


@shapes
def test_partitions_saved_at_different_times_become_current_by_replay(key_bits: int, window_blocks: int) -> None:
    @deterministic(15)
    @given(operations(window_blocks), st.randoms(use_true_random=False))
    def run(sequence: list[Operation], random: Random) -> None:
        twin = grown(sequence, key_bits, window_blocks)
        directory = twin.directory
        log = [directory.change(segment) for segment in twin.segments()]
        begin = random.randint(0, len(log))
        # A step touches the entries of one key alone, so a key saved at its own time has had just its own steps.
        keys = sorted({each.key for each in log} | {each.root_key for each in log})
        saved_at = {key: random.randint(begin, len(log)) for key in keys}
        opened = TwinDirectory(SECRET, key_bits, directory.group_blocks)
        for at, each in enumerate(log):
            if at < saved_at[each.key]:
                opened.apply_entry(each)
            if at < saved_at[each.root_key]:
                opened.apply_mask(each)
        for each in log[begin:]:
            opened.apply(each)
        assert per_key(opened) == per_key(directory)

    run()
