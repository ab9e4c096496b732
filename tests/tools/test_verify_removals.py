"""`sarpstore verify` on stores of version 1.1: clean ones, retired files, heads and images that say too much."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sarpstore_tools.specreader.store import Report, verify_store
from spec_writer import StoreWriter, chain
from spec_writer_damage import HEAD_1, LOG_1, LOG_2, LOG_3, alter, codes
from spec_writer_removals import WRITERS, Removing, RemovingSarp, build_removed_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_writer_sarp import Change

A, B, C = chain([1, 2, 3]), chain([4, 5]), chain([6])
LONG = chain(list(range(100, 300)))


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> type[Removing]:
    found: type[Removing] = request.param
    return found


@pytest.fixture
def writer(tmp_path: Path, kind: type[Removing]) -> Removing:
    """A synced store of one file: paths of two holders, of which some blocks were removed, and counts."""
    writer = kind(tmp_path / "s")
    writer.new_file()
    for ids in (A, B, C, LONG):
        writer.insert(ids)
    writer.insert(LONG[:30] + chain([1], LONG[29]))
    writer.insert(A, holder=9)
    writer.count({B[0]: 2})
    writer.commit()
    writer.mark()
    return writer


def notes(report: Report) -> list[tuple[str, str]]:
    return [(note.code, note.meaning) for note in report.notes]


def found(writer: Removing, change: dict[str, int] | None = None) -> set[str]:
    """The codes of what is found when a checkpoint has been written."""
    writer.checkpoint(1, change=change)
    return {code for _, code in codes(verify_store(writer.path))}


def removed(writer: Removing) -> None:
    writer.remove([C[0], LONG[70]])
    writer.clear(9)
    writer.commit()
    writer.mark()


# -- what is held


def test_a_store_with_all_that_version_1_1_has_is_clean(tmp_path: Path, kind: type[Removing]) -> None:
    writer = build_removed_store(tmp_path / "s", kind)
    report = verify_store(writer.path)
    assert report.faults == []
    assert [note.severity.value for note in report.notes] == ["removed"]
    assert report.blocks == sum(len(one.ids) - one.d for one in writer.live.values())
    for head in writer.path.glob("*.checkpoint"):
        head.unlink()
    assert verify_store(writer.path).faults == []


def test_what_is_removed_is_counted_no_more(writer: Removing) -> None:
    everything = verify_store(writer.path).blocks
    removed(writer)
    report = verify_store(writer.path)
    assert report.faults == []
    assert everything - report.blocks == len(C) + len(LONG[70:]) + len(A)
    assert report.blocks == sum(len(one.ids) - one.d for one in writer.live.values())
    writer.insert(LONG)
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).blocks == report.blocks + len(LONG[70:])


def test_entries_of_what_was_removed_are_no_fault_and_those_that_went_are_counted(writer: Removing) -> None:
    live = dict(writer.live)
    lists = {key: replace(one, postings=dict(one.postings)) for key, one in getattr(writer, "lists", {}).items()}
    removed(writer)
    assert found(writer) == set()
    ((code, meaning),) = notes(verify_store(writer.path))
    assert code == "lacking"
    assert int(meaning.split()[0]) >= 4
    assert notes(verify_store(writer.path, compare=False)) == []
    writer.live = live
    if isinstance(writer, RemovingSarp):
        writer.lists = lists
    assert found(writer) == set()
    ((code, meaning),) = notes(verify_store(writer.path))
    assert code == "dead"
    assert int(meaning.split()[0]) >= 4


def test_images_may_be_of_before_a_removal_and_the_log_of_after_it(writer: Removing) -> None:
    writer.checkpoint(1)
    removed(writer)
    writer.insert([*LONG[:70], *chain([1, 2], LONG[69])])
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []


def test_a_store_of_version_1_0_has_all_its_entries(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    for ids in (A, B):
        writer.insert(ids)
    writer.commit()
    writer.live.pop(writer.owners[0, 0, A[0]].position)
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}


# -- damage


@pytest.fixture(scope="module", params=WRITERS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_removed_store(tmp_path_factory.mktemp("removed") / "s", request.param).path


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_a_fault(built: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(name for name in os.listdir(built) if name != "LOCK")))
    offset = data.draw(st.integers(0, (built / name).stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    alter(built / name, offset, 1 << bit)
    try:
        report = verify_store(built)
    finally:
        alter(built / name, offset, 1 << bit)
    assert any(fault.file == name for fault in report.faults)


@pytest.mark.parametrize("seed", range(10))
def test_garbage_and_lost_files_never_raise(built: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = Path(shutil.copytree(built, tmp_path / "copy"))
    for file in sorted(path.iterdir()):
        data = bytearray(file.read_bytes())
        at = rng.randrange(len(data))
        data[at : at + 3000] = rng.randbytes(rng.randrange(6000))
        file.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data) + 1)])
        if rng.random() < 0.2 and not file.name.endswith("4.log"):
            file.unlink()
    verify_store(path)


# -- images that say too much


def _longer(writer: Removing) -> None:
    """An entry with a block that its record has not."""
    _entry(writer, B, ids=[*B, *C])


def _shorter(writer: Removing) -> None:
    writer.cut(writer.owners[0, 0, B[0]], 1)


def _entry(writer: Removing, path: list[bytes], **change: object) -> None:
    """The entry of that path is changed, in the directory of either routing."""
    owner = writer.owners[0, 0, path[0]]
    changed = replace(owner, **change)  # type: ignore[arg-type]
    if isinstance(writer, RemovingSarp):
        one = writer.lists[owner.key]
        one.postings = {place: change for place, change in one.postings.items() if change.position != owner.position}
        posting = writer.posting(changed, 0)
        one.postings[posting.filter, posting.position] = posting
    del writer.live[owner.position]
    writer.live[changed.position] = changed


def _of_no_file(writer: Removing) -> None:
    _entry(writer, B, position=77 << 24 | 128)
    images = writer.images

    def of_a_slot_that_the_head_has_not(number: int, depth: int) -> tuple[bytes, list[bytes], int, int]:
        writer.slots[77] = 77
        out = images(number, depth)
        del writer.slots[77]
        return out

    writer.images = of_a_slot_that_the_head_has_not  # type: ignore[method-assign]


def _of_no_record(writer: Removing) -> None:
    _entry(writer, B, position=writer.owners[0, 0, B[0]].position + 1)


def _superseded(writer: Removing) -> None:
    """The entry of a record that another superseded, in place of its."""
    old = writer.owners[0, 0, B[0]]
    lists = dict(getattr(writer, "lists", {}))
    kept = {key: replace(one, postings=dict(one.postings)) for key, one in lists.items()}
    writer.insert([*B, *chain([7], B[-1])])
    writer.commit()
    writer.mark()
    del writer.live[writer.owners[0, 0, B[0]].position]
    writer.live[old.position] = old
    if isinstance(writer, RemovingSarp):
        writer.lists = kept


@pytest.mark.parametrize(
    ("edit", "codes_found"),
    [
        (_longer, {"entry-differs", "state"}),
        (_shorter, set()),
        (_of_no_file, set()),
        (_of_no_record, {"entry-lost", "state"}),
        (_superseded, {"state"}),
    ],
)
def test_entries_that_the_log_does_not_explain_are_found(
    writer: Removing, edit: Callable[[Removing], None], codes_found: set[str]
) -> None:
    edit(writer)
    assert found(writer) == codes_found


def test_a_mask_that_does_not_know_of_an_entry_is_found(tmp_path: Path) -> None:
    writer = Removing(tmp_path / "s")
    writer.new_file()
    writer.insert(LONG[:60])
    writer.insert(LONG[:30] + chain([1], LONG[29]))
    writer.commit()
    writer.owners[0, 0, LONG[0]].bits = 0
    assert found(writer) == {"state"}
    writer.cut(writer.owners[0, 0, chain([1], LONG[29])[0]], 0)
    assert found(writer) == set()


def test_a_filter_ends_where_its_posting_was_cut(tmp_path: Path) -> None:
    writer = RemovingSarp(tmp_path / "s")
    writer.new_file()
    writer.insert(LONG[:60])
    writer.commit()
    writer.cut(writer.owners[0, 0, LONG[0]], 9)
    assert found(writer) == set()
    (one,) = writer.lists.values()
    ((place, posting),) = one.postings.items()
    one.postings = {place: replace(posting, filter=posting.filter | 1)}
    assert found(writer) == {"entry-differs"}


def test_a_change_may_name_what_is_left_of_its_record_and_no_more(tmp_path: Path) -> None:
    writer = RemovingSarp(tmp_path / "s")
    writer.new_file()
    writer.insert(LONG[:60])
    writer.commit()
    writer.cut(writer.owners[0, 0, LONG[0]], 20)
    writer.insert(C)
    (owner,) = (one for one in writer.live.values() if len(one.ids) == 20)
    change: Change = writer.posting(owner, 2)
    writer.postings_record([change])
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []
    writer.insert(B)
    writer.postings_record([replace(change, n=61)])
    writer.commit()
    writer.mark()
    assert {code for _, code in codes(verify_store(writer.path))} == {"change"}


# -- tables of a head


def _behind(writer: Removing) -> int:
    return writer.end + 64


FALSE_TABLES: list[tuple[Callable[[Removing], object], str]] = [
    (lambda writer: writer.markers.clear(), ""),
    (lambda writer: writer.counts.clear(), ""),
    (lambda writer: writer.counts.update({(B[0], 0, 0): 7}), ""),
    (lambda writer: writer.moments.extend([(5, 5), (9, 9)]), ""),
    (lambda writer: writer.markers.update({(C[0], 0, 0): _behind(writer)}), "marker"),
    (lambda writer: writer.markers.update({(C[0], 0, 0): 1 << 24 | 129}), "marker"),
    (lambda writer: writer.markers.update({(A[0], 0, 0): writer.markers[C[0], 0, 0]}), "marker"),
    (lambda writer: writer.markers.update({(C[0], 0, 5): writer.markers[C[0], 0, 0]}), "marker"),
    (lambda writer: writer.epochs.update({9: _behind(writer)}), "epoch"),
    (lambda writer: writer.epochs.update({9: writer.epochs[9] - 1}), "epoch"),
    (lambda writer: writer.epochs.update({9: 0}), "epoch"),
    (lambda writer: writer.epochs.update({4: 0}), "epoch"),
    (lambda writer: writer.epochs.pop(9), "epoch"),
    (lambda writer: writer.counts.update({(B[0], 0, 0): 1}), "count"),
    (lambda writer: writer.counts.update({(A[0], 0, 0): 2}), "count"),
    (lambda writer: writer.moments.extend([(9, 9), (5, 9)]), "moment"),
    (lambda writer: writer.moments.extend([(5, 9), (9, 5)]), "moment"),
    (lambda writer: writer.moments.append((_behind(writer), 9)), "moment"),
    (lambda writer: _twice(writer, 0), "marker"),
    (lambda writer: _twice(writer, 1), "epoch"),
    (lambda writer: _twice(writer, 2), "count"),
]


def _twice(writer: Removing, table: int) -> None:
    tables = writer.tables()
    tables[table].append(tables[table][0])
    writer.tables = lambda: tables  # type: ignore[method-assign]


@pytest.mark.parametrize(("edit", "codes_found"), FALSE_TABLES)
def test_false_tables_are_found(writer: Removing, edit: Callable[[Removing], object], codes_found: str) -> None:
    removed(writer)
    edit(writer)
    assert found(writer) == set(codes_found.split())


def test_places_of_findings_are_those_of_the_rows(writer: Removing) -> None:
    removed(writer)
    writer.markers[A[0], 0, 0] = 1 << 24 | 129
    writer.counts[A[0], 0, 0] = 2
    writer.checkpoint(1)
    length = (writer.path / HEAD_1).stat().st_size
    at = [(fault.code, length - fault.offset) for fault in verify_store(writer.path).faults]
    assert at == [("marker", 40 + 2 * 16 + 2 * 32), ("count", 32)]


@pytest.mark.parametrize(
    ("minor", "incompatible", "codes_found"),
    [(0, 0, {"features"}), (1, 0, {"features", "version"}), (0, 1, {"version"}), (1, 3, {"head-features"})],
)
def test_a_heads_feature_is_that_of_its_store(
    writer: Removing, minor: int, incompatible: int, codes_found: set[str]
) -> None:
    writer.tables = lambda: ([], [], [], [])  # type: ignore[method-assign]
    writer.minor, writer.incompatible = minor, incompatible
    assert found(writer) - {"epoch"} == codes_found


def test_tables_longer_than_the_head_are_found(writer: Removing) -> None:
    tables = writer.tables()
    writer.tables = lambda: (*tables[:3], [*tables[3], b""])  # type: ignore[method-assign]
    assert found(writer) == {"head-length"}


# -- files that are gone


@pytest.fixture
def files(tmp_path: Path, kind: type[Removing]) -> Removing:
    """Three files, the first one retired by the third, and a checkpoint that starts in that."""
    writer = kind(tmp_path / "s")
    for ids in (A, B):
        writer.new_file()
        writer.insert(ids)
        writer.commit()
        writer.seal()
    writer.new_file()
    writer.name("")
    writer.clear(0, effect=0)
    writer.copy(writer.owners[0, 0, A[0]].position)
    writer.retire(1)
    writer.commit()
    writer.mark()
    writer.checkpoint(1)
    return writer


def test_a_retired_file_may_be_there_or_not(files: Removing) -> None:
    assert verify_store(files.path).faults == []
    files.delete(1)
    report = verify_store(files.path)
    assert report.faults == []
    assert report.blocks == len(A) + len(B)
    files.checkpoint(1)
    assert verify_store(files.path).faults == []
    (files.path / HEAD_1).unlink()
    assert verify_store(files.path).faults == []


def test_a_file_that_was_not_retired_is_missing(files: Removing) -> None:
    (files.path / LOG_2).unlink()
    assert (LOG_2, "missing") in codes(verify_store(files.path))


def test_files_in_the_middle_may_be_retired(files: Removing) -> None:
    files.copy(files.owners[0, 0, B[0]].position)
    files.retire(2)
    files.commit()
    files.mark()
    files.checkpoint(1)
    files.delete(2)
    report = verify_store(files.path)
    assert (report.faults, report.blocks) == ([], len(A) + len(B))


def test_of_deleted_files_that_nothing_names_no_record_need_be_left(files: Removing) -> None:
    files.copy(files.owners[0, 0, B[0]].position)
    files.commit()
    files.mark()
    files.checkpoint(1)
    files.delete(1)
    files.delete(2)
    assert codes(verify_store(files.path)) >= {(LOG_2, "missing")}
    files.checkpoint(1)
    assert verify_store(files.path).faults == []  # its start is behind, and its slots do not name them
    (files.path / HEAD_1).unlink()
    assert (LOG_2, "missing") in codes(verify_store(files.path))  # the third file's header goes on from it
    files.retire(2)
    files.commit()
    files.mark()
    assert verify_store(files.path).faults == []


def test_nothing_may_be_missing_in_a_store_of_version_1_0(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    for ids in (A, B):
        writer.new_file()
        writer.insert(ids)
        writer.commit()
        writer.seal()
    writer.log_path.with_name(LOG_1).unlink()
    assert (LOG_1, "missing") in codes(verify_store(writer.path))


def test_a_retired_file_is_deleted_behind_a_checkpoint_alone(files: Removing) -> None:
    files.checkpoint(1, (1 << 24 | 128, 0, 1))
    (files.path / LOG_1).unlink()
    assert codes(verify_store(files.path)) == {(LOG_3, "retired")}


def test_a_record_that_was_not_copied_may_be_named_where_its_file_was_retired(files: Removing) -> None:
    owner = files.owners[0, 0, A[0]]
    files.live[owner.position] = owner
    files.checkpoint(1)
    files.delete(1)
    assert verify_store(files.path).faults == []


def test_a_slot_that_a_head_gives_to_another_file_is_found(files: Removing) -> None:
    files.delete(1)
    files.file = 3
    files.slots[1] = files.slots[3] + 1
    files.checkpoint(1)
    files.seal()
    del files.slots[1]
    files.new_file()
    assert (HEAD_1, "slot") in codes(verify_store(files.path))


def test_what_a_deleted_file_named_must_be_named_again(tmp_path: Path, kind: type[Removing]) -> None:
    writer = kind(tmp_path / "s")
    for ids in (A, B):
        writer.new_file()
        writer.insert(ids)
        writer.retire(1)
        writer.commit()
        writer.seal()
    writer.delete(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"namespace", "holder"}
