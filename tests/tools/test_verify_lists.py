"""`sarpstore verify` on stores with posting lists: clean ones, and lawful bytes in the log that say something false."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sarpstore_tools.specreader.store import verify_store
from spec_writer import Built, StoreWriter, chain
from spec_writer_damage import LOG_1, LOG_2, LOG_3, alter, codes
from spec_writer_sarp import DROP, EXPANDED, REFINED, Change, SarpWriter, build_sarp_store, shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_sarp_store(tmp_path_factory.mktemp("lists") / "store")


@pytest.fixture
def writer(tmp_path: Path) -> SarpWriter:
    """A store with three short paths, written and synced; a fourth makes the list of point 0 expand."""
    writer = SarpWriter(tmp_path / "s", prune_at=3)
    writer.new_file()
    for ids in shared(3, 20, 40):
        writer.insert(ids)
    writer.commit()
    writer.mark()
    return writer


def found(writer: StoreWriter) -> set[str]:
    """The codes of what is found once all that was written is below the synced position."""
    writer.commit()
    writer.mark()
    return {code for _, code in codes(verify_store(writer.path))}


def meanings(writer: StoreWriter, code: str) -> str:
    writer.commit()
    writer.mark()
    return "\n".join(fault.meaning for fault in verify_store(writer.path).faults if fault.code == code)


def test_a_clean_store_is_clean_with_notes(built: Built) -> None:
    report = verify_store(built.path)
    assert report.faults == []
    assert [(note.file, note.severity.value) for note in report.notes] == [(LOG_2, "void"), (LOG_3, "torn tail")]
    assert report.blocks == sum(len(one.ids) - one.d for one in built.writer.live.values())


def test_the_store_that_the_tests_use_has_lists_of_every_kind(built: Built) -> None:
    writer = built.writer
    assert isinstance(writer, SarpWriter)
    states = {(one.point, one.flags) for one in writer.lists.values()}
    assert {point for point, _ in states} >= {0, 1, 2, 3, 4, 5, 7}
    assert {(0, 3), (1, 1), (2, 3), (4, 3), (6, 3)} <= states
    assert {change.operation for said in writer.said.values() for change in said if not change.position} == {1}
    assert any(
        place not in writer.made and change.operation == DROP for place, said in writer.said.items() for change in said
    )


@pytest.mark.parametrize(("prune_at", "refine_at"), [(1, 2), (2, 4), (3, 3), (0, 0), (3, 16)])
def test_a_larger_store_is_clean(tmp_path: Path, prune_at: int, refine_at: int) -> None:
    rng = random.Random(prune_at)
    writer = SarpWriter(tmp_path / "s", prune_at, refine_at)
    paths: list[list[bytes]] = [chain([1])]
    for _ in range(2):
        writer.new_file()
        for _ in range(8):
            for _ in range(3):
                base = rng.choice(paths)
                base = base[: rng.randint(1, len(base))]
                paths.append(base + chain([rng.randrange(9) for _ in range(rng.randint(1, 90))], base[-1]))
                writer.insert(paths[-1], holder=rng.randrange(2))
            writer.commit()
        writer.seal(closed=True)
        writer.checkpoint(writer.file, depth=rng.randrange(5))
    assert verify_store(tmp_path / "s").faults == []


def test_lists_that_shrink_below_a_greater_prune_at_are_clean(tmp_path: Path) -> None:
    writer = SarpWriter(tmp_path / "s", prune_at=1, refine_at=9)
    writer.new_file()
    for ids in shared(5, 18, 30) + shared(3, 5, 30, 77):
        writer.insert(ids)
    writer.commit()
    writer.prune_at = 6
    for ids in shared(4, 4, 30, 999):
        writer.insert(ids)
    writer.commit()
    assert any(change.operation == DROP and not change.position for said in writer.said.values() for change in said)
    writer.seal()
    writer.checkpoint(1, depth=1)
    assert verify_store(writer.path).faults == []


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_a_fault_or_in_void_or_torn_space(built: Built, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(name for name in os.listdir(built.path) if name != "LOCK")))
    offset = data.draw(st.integers(0, (built.path / name).stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    alter(built.path / name, offset, 1 << bit)
    try:
        report = verify_store(built.path)
    finally:
        alter(built.path / name, offset, 1 << bit)
    void, first, last = built.void
    if name == void and first <= offset < last:
        assert report.faults == []
    elif name == LOG_3 and offset >= built.unsynced[1] and not report.faults:
        torn = [note for note in report.notes if note.file == LOG_3]
        assert torn[0].offset <= offset
    else:
        assert any(fault.file == name for fault in report.faults)


# -- what segment records say


@pytest.mark.parametrize(
    ("tail", "codes_found"),
    [
        (lambda points, old_n: (points & ~1, old_n), {"points", "list"}),
        (lambda points, old_n: (points | 1 << 7, old_n), {"points"}),
        (lambda points, old_n: (points, 1), {"old-n"}),
    ],
)
def test_false_points_and_old_n_are_found(
    writer: SarpWriter, tail: Callable[[int, int], tuple[int, int]], codes_found: set[str]
) -> None:
    writer.edit_tail = tail
    writer.insert(chain([7, 8, 9]))
    assert found(writer) == codes_found


@pytest.mark.parametrize("old_n", [0, 39, 41, 44, 255])
def test_an_old_n_that_is_not_that_of_the_superseded_record_is_found(writer: SarpWriter, old_n: int) -> None:
    writer.edit_tail = lambda points, _: (points, old_n)
    writer.insert(shared(1, 20, 43)[0])
    said = meanings(writer, "old-n")
    assert "is not the n of the record that it supersedes" in said
    assert ("is more than n" in said) == (old_n > 43)


def test_a_true_old_n_is_no_fault(writer: SarpWriter) -> None:
    writer.insert(shared(1, 20, 43)[0])
    assert found(writer) == set()


def test_a_record_that_is_not_in_the_list_that_an_expanded_one_leads_to_is_found(writer: SarpWriter) -> None:
    for ids in shared(4, 20, 40):
        writer.insert(ids)
    writer.edit_tail = lambda points, old_n: (points & ~(1 << 2), old_n)
    writer.insert(shared(5, 20, 40)[4])
    assert "not in that of its successor, point 2" in meanings(writer, "list")


def test_a_superseded_record_that_stays_in_a_list_is_found(writer: SarpWriter) -> None:
    writer.insert(shared(4, 20, 40)[3])
    writer.edit_tail = lambda points, old_n: (points & ~(1 << 2), old_n)
    writer.insert(shared(4, 20, 50)[3])
    assert "is superseded, and still in the list" in meanings(writer, "list")


# -- what postings records say


def _expands(writer: SarpWriter, edit: Callable[[Change], Change]) -> None:
    """The record that makes the list of point 0 expand, with changes that were edited."""
    writer.edit_change = edit
    writer.insert(shared(4, 20, 40)[3])


def test_true_changes_are_no_fault(writer: SarpWriter) -> None:
    _expands(writer, lambda change: change)
    assert len(writer.said[max(writer.said)]) == 10
    assert found(writer) == set()


class _Odd(Change):
    def stored(self) -> bytes:
        return bytes([super().stored()[0] | 1]) + super().stored()[1:]


class _Reserved(Change):
    def stored(self) -> bytes:
        return super().stored()[:-1] + b"\1"


def _as(kind: type[Change], change: Change) -> Change:
    return kind(**vars(change))


FALSE_POSTINGS: list[tuple[Callable[[Change], Change], str]] = [
    (lambda change: replace(change, key=change.key ^ 1), "has not the key"),
    (lambda change: replace(change, filter=change.filter ^ 1), "has not the filter"),
    (lambda change: replace(change, n=change.n - 1), "has not the n and d"),
    (lambda change: replace(change, d=change.d + 1), "has not the n and d"),
    (lambda change: replace(change, n=20, d=20), "has a d that is not below n"),
    (lambda change: replace(change, point=7), "has a point behind its last block"),
    (lambda change: replace(change, position=change.position + 1), "where no accepted segment record is"),
    (lambda change: replace(change, position=1 << 40), "is not before it"),
    (lambda change: replace(change, operation=3), "is neither an add nor a drop"),
    (lambda change: _as(_Odd, change), "has a bit in word 0"),
    (lambda change: _as(_Reserved, change), "has reserved bytes"),
]

FALSE_STATES: list[tuple[Callable[[Change], Change], str]] = [
    (lambda change: replace(change, filter=0), "has flags that no list"),
    (lambda change: replace(change, filter=4), "has flags that no list"),
    (lambda change: replace(change, filter=REFINED, point=1), "has flags that no list"),
    (lambda change: replace(change, filter=EXPANDED, point=7), "has flags that no list"),
    (lambda change: replace(change, n=2), "is of a state and has an n or d"),
    (lambda change: replace(change, operation=0), "is neither an add nor a drop"),
    (lambda change: _as(_Odd, change), "has a bit in word 0"),
]


@pytest.mark.parametrize(("edit", "meaning"), FALSE_POSTINGS)
def test_false_changes_of_postings_are_found(
    writer: SarpWriter, edit: Callable[[Change], Change], meaning: str
) -> None:
    _expands(writer, lambda change: edit(change) if change.position else change)
    assert meaning in meanings(writer, "change")


@pytest.mark.parametrize(("edit", "meaning"), FALSE_STATES)
def test_false_changes_of_states_are_found(writer: SarpWriter, edit: Callable[[Change], Change], meaning: str) -> None:
    _expands(writer, lambda change: change if change.position else edit(change))
    assert meaning in meanings(writer, "change")


def test_an_expanded_list_whose_records_were_not_posted_is_found(writer: SarpWriter) -> None:
    _expands(writer, lambda change: replace(change, operation=DROP) if change.position else change)
    assert found(writer) == {"list"}


def _listed(writer: SarpWriter, point: int) -> tuple[int, Change]:
    key, one = next((key, one) for key, one in writer.lists.items() if one.point == point)
    return key, next(iter(one.postings.values()))


def test_a_dropped_posting_of_point_0_is_found(writer: SarpWriter) -> None:
    writer.insert(chain([9]))
    writer.postings_record([replace(_listed(writer, 0)[1], operation=DROP)])
    assert "is not in the list of its point 0" in meanings(writer, "list")


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        (Change(77, EXPANDED, 0, 1, 0, 0), "and no posting of that point"),
        (Change(0, EXPANDED, 0, 1, 0, 2), "and no posting of that point"),
        (Change(0, REFINED, 0, 1, 0, 0), "cannot have the flags 2"),
    ],
)
def test_states_that_no_list_has_are_found(writer: SarpWriter, state: Change, meaning: str) -> None:
    writer.insert(chain([9]))
    writer.postings_record([state if state.key else replace(state, key=_listed(writer, 0)[0])])
    assert meaning in meanings(writer, "list")


# -- where postings records stand


def test_a_postings_record_without_an_insertion_is_found(writer: SarpWriter) -> None:
    writer.postings_record([_listed(writer, 0)[1]])
    assert found(writer) == {"postings"}


def test_a_postings_record_by_which_states_go_stands_alone(writer: SarpWriter) -> None:
    writer.postings_record([Change(77, EXPANDED, 0, 1, 0, 0, DROP)])
    assert found(writer) == set()
    writer.postings_record([Change(77, EXPANDED, 0, 1, 0, 0, DROP), Change(77, EXPANDED, 0, 1, 0, 0)])
    assert "postings" in found(writer)


def test_a_postings_record_before_a_record_that_was_there_is_found(writer: SarpWriter) -> None:
    writer.insert(chain([8]))
    writer.sequence += 1
    writer.postings_record([_listed(writer, 0)[1]])
    writer.sequence -= 2
    writer.insert(chain([9]))
    writer.sequence += 1
    assert "was in the commit and stands behind it" in meanings(writer, "postings")


def test_a_superseding_record_before_an_earlier_postings_record_is_found(writer: SarpWriter) -> None:
    writer.insert(chain([8]))
    writer.sequence += 1
    writer.insert(shared(1, 20, 43)[0])
    writer.sequence -= 2
    writer.postings_record([_listed(writer, 0)[1]])
    writer.sequence += 1
    assert "supersedes another, came later, and stands before it" in meanings(writer, "postings")


def test_postings_records_and_points_under_another_routing_are_found(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.header_tail = lambda owner: bytes([1, 0])  # type: ignore[method-assign]
    writer.insert(chain([1, 2]))
    assert found(writer) == {"points"}
    writer.add(10, bytes(32), Change(1, 1, 0, 1, 0, 0).stored(), n=1)
    assert found(writer) == {"points", "postings"}


@pytest.mark.parametrize(("n", "body"), [(0, b""), (1, bytes(40)), (2, bytes(32)), (127, bytes(32))])
def test_postings_records_of_other_lengths_are_damaged(writer: SarpWriter, n: int, body: bytes) -> None:
    writer.add(10, bytes(32), body, n=n)
    assert found(writer) == {"damaged-record", "commit"}


# -- summaries


def _sealed(writer: SarpWriter, edit: Callable[[list[Change]], list[Change]]) -> SarpWriter:
    """A sealed file whose summary has other changes of its postings record than the record."""
    writer.insert(shared(4, 20, 40)[3])
    writer.insert(shared(1, 20, 43)[0])
    writer.commit()
    place = next(place for place in writer.said if place not in writer.made)
    writer.said[place] = edit(writer.said[place])
    writer.seal()
    return writer


def test_a_true_summary_is_no_fault(writer: SarpWriter) -> None:
    assert verify_store(_sealed(writer, lambda changes: changes).path).faults == []


@pytest.mark.parametrize("edit", [lambda some: some[:-1], lambda some: some[::-1], lambda some: [*some, some[0]]])
def test_a_summary_with_other_changes_is_found(
    writer: SarpWriter, edit: Callable[[list[Change]], list[Change]]
) -> None:
    assert codes(verify_store(_sealed(writer, edit).path)) == {(LOG_1, "summary")}


@pytest.mark.parametrize("name", ["key", "filter", "position", "n", "d", "point", "operation"])
def test_a_summary_that_says_a_change_otherwise_is_found(writer: SarpWriter, name: str) -> None:
    def edit(changes: list[Change]) -> list[Change]:
        return [replace(changes[0], **{name: getattr(changes[0], name) ^ 3}), *changes[1:]]

    assert codes(verify_store(_sealed(writer, edit).path)) == {(LOG_1, "summary")}


def test_a_summary_without_a_records_entries_or_with_entries_of_none_is_found(writer: SarpWriter) -> None:
    place = max(writer.made)
    writer.placed = [one for one in writer.placed if one.position != place]
    writer.seal()
    assert "no entry for this record" in next(iter(verify_store(writer.path).faults)).meaning


def test_a_summary_with_entries_of_no_record_is_found(writer: SarpWriter) -> None:
    place = max(writer.made)
    writer.said[place + 1] = writer.said[place]
    writer.placed.append(replace(next(one for one in writer.placed if one.position == place), position=place + 1))
    writer.placed.sort(key=lambda one: one.position)
    writer.seal()
    assert "where no sound record is" in next(iter(verify_store(writer.path).faults)).meaning


def test_a_summary_out_of_order_is_found(writer: SarpWriter) -> None:
    writer.placed.reverse()
    writer.seal()
    assert codes(verify_store(writer.path)) == {(LOG_1, "summary")}


def test_a_damaged_record_costs_itself_and_makes_the_rest_no_corruption(tmp_path: Path) -> None:
    writer = SarpWriter(tmp_path / "s")
    writer.new_file()
    for ids in shared(8, 20, 40):
        writer.insert(ids)
    writer.commit()
    writer.seal()
    position = next(place for place in writer.said if place not in writer.made)
    alter(writer.log_path, (position & 0xFFFFFF) * 64 + 70)
    report = verify_store(writer.path)
    severe = {fault.code for fault in report.faults if fault.severity.value == "corruption"}
    assert severe == {"damaged-record", "commit"}
    assert {fault.code for fault in report.faults} <= {*severe, "list"}


def test_what_a_search_missed_may_be_introduced_twice(writer: SarpWriter) -> None:
    writer.owners.clear()
    writer.insert(shared(1, 20, 43)[0])
    assert found(writer) == set()
