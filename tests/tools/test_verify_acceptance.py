"""Which commits `sarpstore verify` accepts where damage meets the synced position (recovery.md, section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.specreader.store import Report, verify_store
from spec_writer import PAGE, Built, StoreWriter, build_store, chain
from spec_writer_damage import LOG_1, LOG_2, LOG_3, alter, codes, copied

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    """A store with commits 1 to 3, a page and a segment each (and the namespace record), none of them synced."""
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    for number in range(3):
        more(writer, number)
    return writer


def more(writer: StoreWriter, number: int, synced: int | None = None) -> None:
    """One commit, of a page and one segment."""
    writer.insert(chain([number]))
    writer.commit(synced)


def end_of(commit: int) -> int:
    """The end position of a commit of the fixture's kind."""
    return 1 << 24 | (PAGE + commit * PAGE + PAGE) // 64


def segments(report: Report) -> int:
    return report.segments


def commit_record(writer: StoreWriter, commit: int) -> int:
    """Byte offset of the record of a commit in its file."""
    found = [one.position for one in writer.placed if one.kind == 5]
    return (found[commit - 1] & 0xFFFFFF) * 64


def test_nothing_synced_and_all_complete_is_accepted(writer: StoreWriter) -> None:
    report = verify_store(writer.path)
    assert (report.faults, report.notes, segments(report), report.synced) == ([], [], 3, 0)


def test_damage_above_the_synced_position_is_a_torn_tail(writer: StoreWriter) -> None:
    alter(writer.log_path, commit_record(writer, 2) - 60)
    report = verify_store(writer.path)
    assert (report.faults, segments(report)) == ([], 1)
    assert [(note.offset, note.code) for note in report.notes] == [(3 * PAGE, "torn-tail")]


def test_damage_in_free_space_above_the_synced_position_makes_a_torn_tail(writer: StoreWriter) -> None:
    alter(writer.log_path, 3 * PAGE + 4000)
    report = verify_store(writer.path)
    assert (report.faults, segments(report)) == ([], 1)


def test_damage_in_free_space_below_it_is_corruption_and_costs_nothing(writer: StoreWriter) -> None:
    writer.mark()
    more(writer, 9)
    alter(writer.log_path, 3 * PAGE + 4000)
    report = verify_store(writer.path)
    assert {(fault.offset, fault.code) for fault in report.faults} == {
        (3 * PAGE, "commit"),
        (3 * PAGE + 4000 // 64 * 64, "damaged-record"),
    }
    assert segments(report) == 4


def test_a_lost_commit_record_below_costs_no_record_and_nothing_above(writer: StoreWriter) -> None:
    writer.mark()
    more(writer, 9)
    alter(writer.log_path, commit_record(writer, 2))
    report = verify_store(writer.path)
    assert codes(report) == {(LOG_1, "damaged-record"), (LOG_1, "commit")}
    # Commit 3 belongs to what is reported at commit 2.
    assert [fault.offset for fault in report.faults if fault.code == "commit"] == [3 * PAGE]
    assert segments(report) == 4


def test_above_the_synced_position_numbers_follow_the_last_commit_record_at_or_below_it(writer: StoreWriter) -> None:
    more(writer, 8)
    # A head says that commits 1 to 4 are synced; the record of commit 4, just below S, is lost.
    writer.checkpoint(1, (end_of(3), 3, 8))
    more(writer, 9)
    alter(writer.log_path, commit_record(writer, 4))
    report = verify_store(writer.path)
    assert codes(report) == {(LOG_1, "damaged-record"), (LOG_1, "commit")}
    assert segments(report) == 4
    assert [note.offset for note in report.notes] == [6 * PAGE]


def test_numbers_after_damage_go_on_with_those_of_the_newest_heads_start(writer: StoreWriter) -> None:
    more(writer, 8)
    writer.checkpoint(1)
    more(writer, 9)
    alter(writer.log_path, commit_record(writer, 4))
    report = verify_store(writer.path)
    assert codes(report) == {(LOG_1, "damaged-record"), (LOG_1, "commit")}
    assert (segments(report), report.notes) == (5, [])


def test_of_a_run_over_the_synced_position_what_stands_before_it_is_accepted(writer: StoreWriter) -> None:
    # One commit of two pages, cut at S by a head: the writer never does that, but damage leaves such a run.
    writer.checkpoint(1, (end_of(2), 2, 6), change={"synced": end_of(2)})
    writer.path.joinpath(f"{1:016x}.images").unlink()
    alter(writer.log_path, commit_record(writer, 2))
    data = bytearray(writer.log_path.read_bytes())
    data[commit_record(writer, 3) : commit_record(writer, 3) + 64] = bytes(64)
    writer.log_path.write_bytes(data)
    report = verify_store(writer.path)
    # Commit 3's segment stands behind S; neither run has a commit record left.
    assert segments(report) == 2
    assert (LOG_1, "commit") in codes(report)
    assert [(note.offset, note.code) for note in report.notes] == [(4 * PAGE, "torn-tail")]


def test_zeroed_pages_behind_the_last_commit_record(writer: StoreWriter) -> None:
    with writer.log_path.open("ab") as file:
        file.write(bytes(2 * PAGE))
    report = verify_store(writer.path)
    assert report.faults == []
    assert [(note.offset, note.code) for note in report.notes] == [(5 * PAGE, "torn-tail")]
    writer.checkpoint(1, change={"synced": writer.end + 2 * PAGE // 64})
    assert (LOG_1, "hole") in codes(verify_store(writer.path))


def test_a_number_twice_or_left_out_below_is_corruption_and_its_records_are_accepted(writer: StoreWriter) -> None:
    writer.commits += 1
    more(writer, 7)
    writer.commits -= 1
    more(writer, 8)
    writer.mark()
    report = verify_store(writer.path)
    assert [(fault.offset, fault.code) for fault in report.faults] == [(5 * PAGE, "commit"), (6 * PAGE, "commit")]
    assert segments(report) == 5


def test_a_commit_record_that_claims_too_few_pages_ends_an_incomplete_commit(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    more(writer, 0)
    writer.pages.append(bytearray(PAGE))
    alone = writer.pages
    writer.insert(chain([1]))
    writer.data += bytes(PAGE)  # the page before belongs to no commit
    writer.log_path.write_bytes(writer.data)
    writer.pages = alone[1:]
    writer.pages, writer.crcs, writer.room, writer.names = [], [], 0, {0: b""}
    writer.owners.clear()
    writer.sequence = 4
    writer.insert(chain([2]))
    writer.commit()
    assert verify_store(writer.path).faults == []
    assert segments(verify_store(writer.path)) == 1
    writer.mark()
    report = verify_store(writer.path)
    assert codes(report) == {(LOG_1, "hole")}
    assert segments(report) == 2


def test_the_lowest_end_that_any_later_header_names_ends_a_file(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    more(writer, 0)
    accepted = writer.commits, writer.end
    more(writer, 1)
    writer.new_file()
    writer.new_file(accepted)
    report = verify_store(writer.path)
    assert segments(report) == 1
    assert (LOG_1, 3 * PAGE, "void") in {(note.file, note.offset, note.code) for note in report.notes}
    assert {fault.file for fault in report.faults} <= {LOG_2}


def test_a_header_that_names_no_end_voids_all_before_it(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    more(writer, 0)
    writer.names, writer.sequence = {}, 1
    writer.owners.clear()
    writer.new_file((0, 0))
    more(writer, 1)
    report = verify_store(writer.path)
    assert report.faults == []
    assert [(note.file, note.code) for note in report.notes] == [(LOG_1, "void")]


def test_gaps_in_file_numbers_are_lawful(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    more(writer, 0)
    writer.file += 5
    writer.new_file()
    more(writer, 1)
    assert verify_store(writer.path).faults == []


def test_a_lost_file_in_the_middle_is_one_fault(tmp_path: Path) -> None:
    path = copied(build_store(tmp_path / "s"), tmp_path)
    alter(path / LOG_2, 100)
    alter(path / LOG_2, PAGE + 100)
    report = verify_store(path)
    assert {fault.code for fault in report.faults if fault.file in (LOG_1, LOG_3) and fault.code != "entry-lost"} <= {
        "orphan",
        "supersedes",
    }
    assert (LOG_2, "header") in codes(report)


def test_a_head_of_another_store_does_not_speak_of_this_one(tmp_path: Path) -> None:
    built: Built = build_store(tmp_path / "s")
    path = copied(built, tmp_path)
    other = StoreWriter(tmp_path / "other")
    other.uuid = bytes(16)
    other.new_file()
    more(other, 0)
    other.checkpoint(9, change={"synced": 99 << 24})
    (other.path / f"{9:016x}.checkpoint").rename(path / f"{9:016x}.checkpoint")
    report = verify_store(path)
    assert (f"{9:016x}.checkpoint", "uuid") in codes(report)
    assert report.synced == verify_store(built.path).synced
