"""What of the log is accepted, as a pure function of what was found."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FOUND_COMMIT_DTYPE
from sarpstore._log.scan import FileScan
from sarpstore._recovery import accept

COMPLETE = 1
BEGIN = fmt.position(1, fmt.LOG_HEADER_BYTES)


def scan_of(commits, *, file_number=1, offset=fmt.LOG_HEADER_BYTES, tail_pages=0, damaged=(), previous=0):
    """`commits`: (number, pages, complete, synced), one behind the other; a record at the begin of each."""
    rows, changes = [], []
    for number, pages, complete, synced in commits:
        begin, end = fmt.position(file_number, offset), fmt.position(file_number, offset + pages * fmt.PAGE)
        rows.append((number, begin, end, synced, COMPLETE if complete else 0, 1))
        change = np.zeros(1, CHANGE_DTYPE)[0]
        change["position"], change["type"], change["commit"] = begin, fmt.RECORD_SEGMENT, number
        changes.append(change)
        offset += pages * fmt.PAGE
    tail = fmt.position(file_number, offset)
    return FileScan(
        np.array(changes, CHANGE_DTYPE),
        np.array(rows, FOUND_COMMIT_DTYPE),
        np.array(damaged, "<u8"),
        sequence=len(rows),
        tail=tail,
        end=fmt.position(file_number, offset + tail_pages * fmt.PAGE),
        read_bytes=0,
        previous_commit=previous,
    )


def accepted(scans, *, commit=0, synced=0, begin=BEGIN):
    return accept(scans, begin=begin, commit=commit, synced=synced)


def test_complete_commits_in_order_are_accepted():
    scan = scan_of([(1, 1, True, 0), (2, 3, True, 0), (3, 1, True, 0)])
    result = accepted([scan])
    assert (result.end, result.commit, len(result.changes)) == (scan.end, 3, 3)
    assert result.damage == []


def test_nothing_is_accepted_behind_a_torn_commit():
    scan = scan_of([(1, 1, True, 0), (2, 1, False, 0), (3, 1, True, 0)])
    result = accepted([scan])
    assert (result.end, result.commit, len(result.changes)) == (int(scan.commits["end"][0]), 1, 1)
    assert [damage.corruption for damage in result.damage] == [False]


def test_nothing_is_accepted_behind_a_missing_number():
    result = accepted([scan_of([(1, 1, True, 0), (3, 1, True, 0)])])
    assert (result.commit, len(result.changes)) == (1, 1)


def test_below_the_synced_position_every_valid_record_is_accepted():
    scan = scan_of([(1, 1, True, 0), (2, 2, False, 0), (3, 1, True, 0)])
    result = accepted([scan], synced=scan.end)
    assert (result.end, result.commit, len(result.changes)) == (scan.end, 3, 3)
    assert [damage.corruption for damage in result.damage] == [True]


def test_a_later_commit_may_say_what_was_synced():
    first = scan_of([(1, 1, True, 0), (2, 1, False, 0)])
    synced = int(first.commits["end"][1])
    scan = scan_of([(1, 1, True, 0), (2, 1, False, 0), (3, 1, True, synced), (4, 1, False, 0)])
    result = accepted([scan])
    assert (result.end, result.commit, result.synced) == (int(scan.commits["end"][2]), 3, synced)
    assert sorted(damage.corruption for damage in result.damage) == [False, True]


def test_an_unfinished_tail_is_torn_above_the_synced_position_and_damage_below():
    scan = scan_of([(1, 1, True, 0)], tail_pages=2)
    assert [d.corruption for d in accepted([scan]).damage] == [False]
    assert [d.corruption for d in accepted([scan], synced=scan.end).damage] == [True]


def test_behind_a_lost_file_commits_follow_the_one_that_the_header_names():
    synced = fmt.position(2, 5 * fmt.PAGE)
    last = scan_of([(8, 1, True, 0), (9, 1, True, 0)], file_number=3, previous=7)
    result = accepted([scan_of([(1, 1, True, 0)]), last], synced=synced)
    assert (result.end, result.commit, len(result.changes)) == (last.end, 9, 3)


def test_positions_are_compared_as_whole_numbers():
    """As floating-point numbers many of those of high file numbers would be one."""
    number = (1 << 38) + 1
    scan = scan_of([(1 + i, 1, True, 0) for i in range(20)], file_number=number)
    result = accepted([scan], begin=fmt.position(number, fmt.LOG_HEADER_BYTES))
    assert (result.end, result.commit, len(result.changes)) == (scan.end, 20, 20)


def test_nothing_found_is_nothing_accepted():
    result = accepted([scan_of([])], commit=7)
    assert (result.end, result.commit, len(result.changes), result.damage) == (BEGIN, 7, 0, [])


commit_lists = st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=12)


@settings(max_examples=120)
@given(commit_lists, st.integers(0, 12), st.integers(0, 2), st.integers(0, 5))
def test_what_is_accepted_is_a_prefix_and_reaches_the_synced_position(drawn, synced_commits, tail_pages, previous):
    commits = [(previous + 1 + i, pages, complete, 0) for i, (pages, complete, _) in enumerate(drawn)]
    scan = scan_of(commits, tail_pages=tail_pages)
    ends = [int(end) for end in scan.commits["end"]]
    synced = ends[min(synced_commits, len(ends)) - 1] if ends and synced_commits else 0
    result = accepted([scan], commit=previous, synced=synced)
    assert result.end in [BEGIN, *ends]
    assert result.end >= synced
    assert (result.changes["position"] < result.end).all()
    assert result.synced == synced
    # Behind S: every commit up to the end is whole, and the first that is not, or the tail, is where it ends.
    for row in scan.commits:
        if synced < row["end"] <= result.end:
            assert row["flags"] & COMPLETE
    behind = [row for row in scan.commits if row["end"] > result.end]
    assert not behind or not behind[0]["flags"] & COMPLETE
    assert result.commit == previous + sum(end <= result.end for end in ends)
    # Corruption is what stands below S, and nothing else.
    for damage in result.damage:
        assert damage.corruption == (fmt.position(1, damage.offset) < synced)
    flawed = sum(not complete for _, _, complete, _ in commits) + (tail_pages > 0)
    assert len(result.damage) == flawed


@settings(max_examples=60)
@given(commit_lists, commit_lists, st.integers(0, 2))
def test_accepting_again_up_to_the_accepted_end_gives_the_same(first, second, tail_pages):
    """As after the next open, whose header names that end: it is the synced position then."""
    commits = [(i + 1, pages, complete, 0) for i, (pages, complete, _) in enumerate(first)]
    scan = scan_of(commits, tail_pages=tail_pages)
    once = accepted([scan])
    kept = [row for row, end in zip(commits, scan.commits["end"], strict=True) if end <= once.end]
    again_scan = scan_of(kept)
    newer = scan_of(
        [(once.commit + 1 + i, pages, complete, 0) for i, (pages, complete, _) in enumerate(second)], file_number=2
    )
    again = accepted([again_scan, newer], synced=once.end if kept else 0)
    below = again.changes[again.changes["position"] < fmt.position(2, 0)]
    assert below.tolist() == once.changes.tolist()
    assert again.commit >= once.commit
    assert not any(damage.corruption for damage in again.damage)
