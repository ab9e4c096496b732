"""Which file is compacted next, up to which removal files are clean, and which records are written again. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from sarpstore import _format as fmt
from sarpstore._compaction import (
    AT_REST,
    FILE_BYTES,
    SETTLING,
    UNDER_PRESSURE,
    Choice,
    FileLedger,
    FileRow,
    choose,
    settled,
    together,
)
from sarpstore._compaction.again import Context, written_again
from sarpstore._compaction.survey import FileFacts, LogFiles
from sarpstore._log.commits import clear_record, count_record, remove_record, retire_record
from sarpstore._log.removals import Removals

MB = 1 << 20


def row(number: int, dead_share: float, **more: int) -> FileRow:
    return FileRow(number, 64 * MB, int(64 * MB * (1 - dead_share)), **more)


def test_nothing_is_chosen_that_is_not_worth_it() -> None:
    assert choose([], UNDER_PRESSURE) is None
    assert choose([row(1, 0.45)], AT_REST) is None
    assert choose([row(1, 0.55)], AT_REST) == row(1, 0.55)
    assert choose([row(1, 0.2)], SETTLING) == row(1, 0.2)
    assert choose([row(1, 0.06)], UNDER_PRESSURE) is None


def test_age_counts_at_rest_and_the_gain_under_pressure() -> None:
    rows = [row(1, 0.5), row(50, 0.6), row(60, 0.0)]
    assert choose(rows, AT_REST) == rows[0]
    assert choose(rows, UNDER_PRESSURE) == rows[1]


def test_rows_may_be_looked_at_in_parts() -> None:
    rows = [row(1, 0.5), row(2, 0.7, before=1), row(50, 0.6), row(60, 0.0)]
    for eagerness in (AT_REST, SETTLING, UNDER_PRESSURE):
        choice = Choice(eagerness, 60)
        for each in rows:
            choice.look([each])
        assert choice.result() == choose(rows, eagerness)


def test_a_file_whose_end_another_names_goes_first() -> None:
    rows = [row(4, 0.0), row(5, 0.9, before=4)]
    assert choose(rows, AT_REST) == rows[0]
    # It may not be deleted yet.
    assert choose(rows[1:], AT_REST) is None


def test_many_files_each_of_which_waits_for_the_one_before() -> None:
    """They are gone through once: for each of them, twenty thousand would take minutes."""
    chain = [row(1, 0.9), *(row(number, 0.9, before=number - 1) for number in range(2, 20_000))]
    assert choose(chain, UNDER_PRESSURE) == chain[0]
    assert choose(chain[1:], UNDER_PRESSURE) is None


def test_what_keeps_many_removals_needed_is_compacted() -> None:
    rows = [row(1, 0.0, clean=7), row(2, 0.0, clean=90, removal_bytes=30 * MB)]
    assert choose(rows, AT_REST, last_pass=50) == rows[0]
    assert choose(rows, AT_REST, last_pass=7) is None
    few = [row(1, 0.0, clean=7), row(2, 0.0, clean=90, removal_bytes=9 * MB)]
    assert choose(few, AT_REST, last_pass=50) is None
    assert choose(few, SETTLING, last_pass=50) == few[0], "who asks for compaction wants the room"


def test_settled() -> None:
    assert settled([], 64 * MB)
    assert settled([row(1, 0.08), row(2, 0.08)], 64 * MB)
    assert not settled([row(1, 0.0), row(2, 0.4)], 64 * MB)
    assert settled([row(1, 0.0), row(2, 0.0, removal_bytes=3 * MB)], 64 * MB)
    assert not settled([row(1, 0.0), row(2, 0.0, removal_bytes=5 * MB)], 64 * MB), "who keeps them needed may go"
    assert not settled([small_row(number) for number in range(4)], 64 * MB)


def small_row(number: int, copies: int = 0, before: int | None = None) -> FileRow:
    """A file that has nothing beside what a file costs, and so many bytes."""
    return FileRow(number, FILE_BYTES - fmt.PAGE + copies, FILE_BYTES + copies, before=before)


def test_small_files_are_worth_compacting_together() -> None:
    rows = [small_row(number) for number in range(8)]
    for eagerness, least in ((AT_REST, 8), (SETTLING, 4), (UNDER_PRESSURE, 3)):
        assert choose(rows, eagerness) is None, "each alone is worth as much as its copy"
        assert together(rows[:least], eagerness, 64 * MB) == rows[:least]
        assert together(rows[: least - 1], eagerness, 64 * MB) == []
    assert together(rows, AT_REST, 3 * FILE_BYTES) == [], "such files are not small"


def test_small_files_of_live_records_are_left_alone() -> None:
    """Together they would be no shorter: it would never end."""
    assert together([small_row(number, copies=FILE_BYTES) for number in range(50)], UNDER_PRESSURE, 64 * MB) == []


def test_files_compacted_together_fill_one_at_most() -> None:
    rows = [small_row(number, copies=fmt.PAGE) for number in range(100)]
    chosen = together(rows, UNDER_PRESSURE, 40 * fmt.PAGE)
    assert sum(each.copy_bytes for each in chosen) <= 20 * fmt.PAGE
    assert chosen == rows[:20]


def test_of_small_files_those_go_before_which_nothing_must() -> None:
    rows = [small_row(2, before=1), small_row(3), small_row(4, before=3), *map(small_row, range(5, 100))]
    assert together(rows, SETTLING, 64 * MB) == [rows[1], *rows[3:66]], "64 at a time"


def test_a_ledger() -> None:
    ledger = FileLedger([1, 2])
    begin = [fmt.position(number, 0) for number in range(6)]
    assert [ledger.clean(n) for n in (1, 2, 3)] == [0, 0, begin[3]]
    assert ledger.floor([1, 2, 3]) == 0
    ledger.on_pass(begin[3] + 9, [1])
    assert [ledger.clean(n) for n in (1, 2, 3)] == [begin[3] + 9, 0, begin[3]]
    ledger.on_copy(4)
    assert ledger.clean(4) == begin[3] + 9
    ledger.on_pass(begin[4] + 5)
    ledger.on_copy(4)
    assert ledger.clean(4) == begin[3] + 9  # the first copy decides
    ledger.on_copy(5)
    assert ledger.clean(5) == begin[4] + 5
    ledger.on_removal(5, 100)
    ledger.on_removal(5, 20)
    assert ledger.removal_bytes(5) == 120
    assert ledger.floor([1, 4, 5]) == begin[3] + 9
    ledger.on_deleted(5)
    assert (ledger.removal_bytes(5), ledger.floor([])) == (0, 0)


def test_which_deleted_files_a_kept_checkpoint_may_name() -> None:
    ledger = FileLedger([1, 2, 3])
    ledger.on_checkpoint()
    assert ledger.may_be_named(0), "one from before the open may be kept"
    ledger.on_deleted(1)
    ledger.on_checkpoint()
    ledger.on_deleted(2)
    assert [ledger.may_be_named(n) for n in (0, 1, 2)] == [False, True, True]
    ledger.on_checkpoint()
    assert [ledger.may_be_named(n) for n in (1, 2)] == [False, True]
    ledger.on_checkpoint()
    assert not ledger.may_be_named(2)


def test_where_files_end_and_what_must_go_first() -> None:
    whole, at = 10 * fmt.PAGE, fmt.position
    files = LogFiles(
        {
            1: FileFacts(whole, 0),
            2: FileFacts(whole, at(1, whole)),
            3: FileFacts(whole, at(2, 4 * fmt.PAGE)),  # 2 was cut short
            4: FileFacts(whole, at(2, 4 * fmt.PAGE)),  # nothing of 3 was accepted
            6: FileFacts(whole, at(5, whole)),  # 5 is gone
            7: FileFacts(whole + 100, 0),  # its header is damaged
        }
    )
    assert files.ends() == {1: whole, 2: 4 * fmt.PAGE, 3: 0, 4: whole, 6: whole, 7: whole}
    assert files.before() == {3: 2, 4: 3}
    assert files.previous()[6] == 5


def test_what_is_written_again() -> None:
    removals = Removals(8, 8, 8)
    removals.clear(1, 500)
    removals.clear(2, 0)
    context = Context(removals, 100, [3, 9], 5, {9: 8}, {1}.__contains__)

    def again(record: bytes, kind: int) -> bool:
        return written_again(memoryview(record), kind, context) == record

    assert [again(remove_record(1, 0, bytes(16), effect), fmt.RECORD_REMOVE) for effect in (100, 101)] == [False, True]
    clears = [clear_record(1, 500), clear_record(1, 400), clear_record(2, 0), clear_record(1, 0)]
    assert [again(record, fmt.RECORD_CLEAR_HOLDER) for record in clears] == [True, False, True, False]
    assert [again(retire_record(n), fmt.RECORD_RETIRE_FILE) for n in (1, 2, 4, 8)] == [True, False, True, True]


def test_that_a_count_is_forgotten_is_written_again_while_an_older_file_may_say_more() -> None:
    removals = Removals(8, 8, 8)
    ids = [bytes([number] * 16) for number in range(4)]

    def entries(*rows: tuple[int, int, int]) -> Any:
        return np.array([(ids[number], count, forgotten) for number, count, forgotten in rows], fmt.COUNT_ENTRY_DTYPE)

    removals.set_counts(entries((0, 3, 0), (1, 2, 0)), 7, 0)
    record = count_record(7, 0, entries((0, 3, 0), (1, 4, 0), (2, 1, 0), (3, 0, 2), (1, 1, 0)))
    for files, left in (
        ([1, 9], entries((0, 3, 0), (2, 1, 5), (3, 0, 2))),
        ([2, 9], entries((0, 3, 0), (2, 1, 5), (3, 0, 2))),
        ([3, 9], entries((0, 3, 0), (2, 1, 5))),
        ([6], entries((0, 3, 0))),
        ([], entries((0, 3, 0))),
    ):
        context = Context(removals, 0, files, 5, {}, set().__contains__)
        assert written_again(memoryview(record), fmt.RECORD_COUNT, context) == count_record(7, 0, left)
