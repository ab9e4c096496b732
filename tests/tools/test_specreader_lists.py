"""The specification's reader of posting lists, piece by piece, against the specification's writer."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import spec_writer_sarp
from hypothesis import given, settings
from hypothesis import strategies as st
from sarpstore_tools.specreader.accept import Log, accept
from sarpstore_tools.specreader.changes import ADD, CHANGE, DROP, Changes
from sarpstore_tools.specreader.faults import Faults
from sarpstore_tools.specreader.files import close_logs, open_logs
from sarpstore_tools.specreader.folder import list_folder
from sarpstore_tools.specreader.lists import Lists, list_differences, placed_postings
from sarpstore_tools.specreader.points import OFFSETS, may_have, successor
from sarpstore_tools.specreader.structures import POSTING
from spec_writer import Built, chain
from spec_writer_sarp import SarpWriter, build_sarp_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.specreader.log import Rows


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_sarp_store(tmp_path_factory.mktemp("lists") / "store")


@pytest.fixture
def log(built: Built) -> Iterator[Log]:
    faults = Faults()
    files = open_logs(list_folder(built.path), faults)
    yield accept(files, [], faults)
    close_logs(files)


def _held(
    writer: SarpWriter,
) -> tuple[dict[int, dict[tuple[int, int], tuple[int, int, int]]], dict[int, tuple[int, int]]]:
    postings = {
        key: {element: (one.n, one.d, one.point) for element, one in found.postings.items()}
        for key, found in writer.lists.items()
        if found.postings
    }
    return postings, {key: (found.point, found.flags) for key, found in writer.lists.items() if found.flags}


def test_replayed_lists_are_what_the_writer_holds(built: Built, log: Log) -> None:
    assert isinstance(built.writer, SarpWriter)
    lists = Lists()
    lists.replay(Changes(log).all)
    assert (lists.postings, lists.states) == _held(built.writer)
    assert lists.count == len(list(built.writer.entries()))
    assert lists.blocks == sum(len(one.ids) - one.d for one in built.writer.live.values())


def test_replaying_any_suffix_twice_changes_nothing(log: Log) -> None:
    changes = Changes(log).all
    once = Lists()
    once.replay(changes)
    for boundary in log.boundaries:
        twice = Lists()
        twice.replay(changes)
        twice.replay(changes[changes["place"] >= boundary])
        assert not list(list_differences(once, twice))


def test_the_order_of_sequence_and_that_of_position_give_the_same(log: Log) -> None:
    changes = Changes(log)
    by_sequence = Lists()
    rows = log.rows[np.argsort(log.rows["sequence"], kind="stable")]
    for position in rows["position"]:
        by_sequence.replay(changes.all[changes.all["place"] == position])
    by_position = Lists()
    by_position.replay(changes.all)
    assert not list(list_differences(by_sequence, by_position))


def test_stored_entries_are_taken_apart(built: Built) -> None:
    writer = built.writer
    assert isinstance(writer, SarpWriter)
    files = np.zeros(1 << 16, dtype=np.uint64)
    for file, slot in writer.slots.items():
        files[slot] = file
    data = b"".join(entry[4] for entry in writer.entries())
    placed = placed_postings(np.frombuffer(data, dtype=POSTING), files)
    lists = Lists()
    lists.load(placed)
    assert (lists.postings, lists.states) == _held(writer)
    assert not placed["odd"].any()
    assert set(placed["recency"].tolist()) == {0, 5}


@given(st.integers(1, 64), st.integers(0, 63), st.binary(min_size=16, max_size=16), st.integers(0, 2**32))
@settings(max_examples=60)
def test_keys_and_filters_of_any_record_equal_those_by_big_integers(
    tmp_path_factory: pytest.TempPathFactory, n: int, old_n: int, secret: bytes, token: int
) -> None:
    writer = SarpWriter(tmp_path_factory.mktemp("facts") / "s")
    writer.secret = secret
    writer.new_file()
    writer.edit_tail = lambda points, _: (points, min(old_n, n))
    ids = chain([token % (1 << 32), *range(n - 1)])
    writer.insert(ids, holder=token % 7)
    writer.commit()
    files = open_logs(list_folder(writer.path), Faults())
    (facts,) = Changes(accept(files, [], Faults())).facts
    close_logs(files)
    owner = next(iter(writer.made.values()))
    for point, offset in enumerate(OFFSETS):
        assert int(facts["keys"][point]) == (writer.key_at(owner, point) if offset < n else 0)
        assert int(facts["filters"][point]) == spec_writer_sarp.filter_of(secret, ids, point)
        assert int(facts["old_filters"][point]) == spec_writer_sarp.filter_of(secret, ids[: min(old_n, n)], point)


def test_a_fingerprint_is_the_specified_one() -> None:
    secret = struct.pack("<QQ", 0, 5)
    block = struct.pack("<QQ", 5 ^ 1, 99)
    assert spec_writer_sarp.fingerprint(secret, block) == 1 + ((0x9E3779B9 * 255) >> 32) == 158
    assert spec_writer_sarp.fingerprint(secret, struct.pack("<QQ", 5, 0)) == 1


def test_successors_are_those_of_the_specification() -> None:
    assert [successor(point, 1) for point in range(8)] == [2, 2, 4, 4, 6, 6, None, None]
    assert [successor(point, 3) for point in (0, 2, 4, 6)] == [1, 3, 5, 7]
    lawful = {(point, flags) for point in range(8) for flags in range(5) if may_have(point, flags)}
    assert lawful == {(point, 1) for point in range(6)} | {(point, 3) for point in (0, 2, 4, 6)}


def _state_change(flags: int, operation: int, order: int) -> Rows:
    row = np.zeros(1, dtype=CHANGE)
    row["key"], row["filter"], row["n"], row["operation"], row["order"] = 9, flags, 1, operation, order
    return row


def test_a_state_is_what_is_left_of_its_flags() -> None:
    lists = Lists()
    seen = []
    for order, (flags, operation) in enumerate([(1, ADD), (2, ADD), (1, DROP), (2, DROP), (2, DROP)]):
        lists.replay(_state_change(flags, operation, order))
        seen.append(lists.states.get(9))
    assert seen == [(0, 1), (0, 3), (0, 2), None, None]
