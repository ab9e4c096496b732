"""Images that hold their checksums and say what no writer says: nothing is read past a record, every call ends,
and what is written is a log that a reader accepts. Found by `python -m fuzz.hostile`, or by reading beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compact_store import LOCATION_BYTES, CompactStore
from kernel_views import UUID, KernelQueries
from records import seal
from strategies import ids_of

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, MARK_ROW_DTYPE, ffi, lib, pointer
from sarpstore._log.commits import postings_record

both = pytest.mark.parametrize("routing", fmt.ROUTINGS)
TURNS = 50

Alter = Any


def made(routing: str, *paths: str) -> CompactStore:
    store = CompactStore(routing, layout=(0,))
    for path in paths:
        store.insert(path)
    return store


def with_n(n: int, d: int | None = None, *, of: int = 0) -> Alter:
    """The entry or posting of a record that has `of` blocks (0: of all) gets other numbers."""

    def alter(entries: npt.NDArray[Any]) -> None:
        name, at_n, at_d = ("word1", 18, 12) if len(entries.dtype) == 2 else ("word0", 10, 4)
        for i, word in enumerate(entries[name].tolist()):
            if of and (word >> at_n & 63) + 1 != of:
                continue
            word = word & ~(63 << at_n) | (n - 1) << at_n
            entries[name][i] = word if d is None else word & ~(63 << at_d) | d << at_d
            if "filter" in entries.dtype.names and n < 16:
                keep = 64 - 8 * (n // 2)
                entries["filter"][i] = int(entries["filter"][i]) >> keep << keep

    return alter


def rewritten(store: CompactStore, position: int, byte: int, value: int) -> None:
    """A record in the log gets another byte, and the checksums that go with it."""
    offset, log = fmt.position_offset(position), store.machine.log[fmt.position_file(position)]
    begin = offset - offset % fmt.PAGE
    page = bytearray(log[begin : begin + fmt.PAGE])
    page[offset % fmt.PAGE + byte] = value
    seal(page, offset % fmt.PAGE, UUID, position)
    log[begin : begin + fmt.PAGE] = page


def match(store: CompactStore, path: str) -> int:
    """The blocks that match; fails where a call asks for nothing and is not done, again and again."""
    queries = KernelQueries(ids_of(path), 0, 0, LOCATION_BYTES, [True])
    asked = 0

    def step() -> int:
        nonlocal asked
        asked += 1
        assert asked < TURNS
        directory = store.directory
        return int(directory.match(store.machine.pages.c, queries.c, 1, store.machine._needs.c))

    store.machine.decide(store.machine.pages, step)
    return int(queries.c[0].matched)


@both
def test_a_mark_pass_makes_no_row_of_an_entry_with_more_blocks_than_its_record(routing: str) -> None:
    store = made(routing, "a" * 20)
    store.reload(with_n(64))
    log = bytes(store.machine.log[1])
    rows, scan = np.zeros(256, MARK_ROW_DTYPE), ffi.new("sarp_mark_scan *")
    uuid = ffi.new("uint8_t[16]", store.machine.shape.uuid)
    scan.uuid, scan.rows, scan.row_limit = uuid, pointer("sarp_mark_row *", rows), len(rows)
    scan.file_number, scan.slot = 1, store.directory.base.files()[1]
    scan.location_bytes, scan.features = LOCATION_BYTES, FEATURES
    for page in range(fmt.LOG_HEADER_BYTES, len(log), fmt.PAGE):
        scan.next_page = page // fmt.PAGE
        # A page by itself, so that a sanitizer sees a step past it.
        data = ffi.new("uint8_t[]", log[page : page + fmt.PAGE])
        assert store.directory.mark_rows(scan, data, 1) == 1
    assert (scan.segments, scan.row_count, scan.damaged) == (1, 0, 0)


@both
def test_compaction_carries_no_entry_on_that_cannot_be_its_records(routing: str) -> None:
    store = made(routing, "a" * 20, "a" * 12 + "b" * 18)
    store.reload(with_n(8, 0, of=30))
    number = 1
    work, _ = store.compact(number)
    assert (work.live, work.dead) == (1, 1)
    written = store.next_file()
    found = store.machine.scan_file(written, 0)
    assert not len(found.damaged)
    assert all(copy[13] < copy[12] for copy in store.records(written).values())


def test_a_record_that_supersedes_blocks_before_its_own_is_damage() -> None:
    """It stood for a change that the directory refuses: the open failed with it."""
    store = made("sarp", "a" * 20, "a" * 10 + "b" * 5)
    store.settle()
    store.insert("a" * 10 + "b" * 8)
    number = store.next_file()
    [(at, record)] = [(at, r) for at, r in store.records(number).items() if r[89]]
    assert (record[12], record[13], record[89]) == (18, 10, 15)
    rewritten(store, at, 89, 5)
    found = store.machine.scan_file(number, 0)
    assert found.damaged.tolist() == [at]
    store.directory.apply(found.changes[np.isin(found.changes["type"], [fmt.RECORD_SEGMENT, fmt.RECORD_POSTINGS])])


def test_a_posting_with_more_blocks_than_its_record_proves_nothing() -> None:
    store = made("sarp", "a" * 20)
    store.directory.base.keep_recency(LOCATION_BYTES)
    store.reload(with_n(64))
    store.directory.base.keep_recency(LOCATION_BYTES)
    assert match(store, "a" * 20) == 0
    assert match(store, "a" * 64) == 0


def of_point_1(postings: npt.NDArray[Any]) -> None:
    """The posting of 17 blocks at point 0 says that it is point 1's, whose filter is shorter."""
    postings["word0"] |= np.uint64(1 << 1)
    postings["filter"] = postings["filter"] >> np.uint64(32) << np.uint64(32)


def test_compaction_does_not_take_another_points_posting_for_the_first() -> None:
    """It wrote a copy that is posted nowhere, which counted a change that a reader does not make."""
    store = made("sarp", "a" * 17)
    store.reload(of_point_1)
    work, _ = store.compact(1)
    assert (work.live, work.dead) == (0, 1)
    assert not store.records(store.next_file())


@pytest.mark.parametrize("operation", [2, 3])
def test_compaction_carries_on_no_change_that_is_none(operation: int) -> None:
    """An operation that there is not was written again, and a reader took the record for damaged."""
    store = made("sarp", "a" * 17)
    change = np.zeros(1, CHANGE_DTYPE)
    for name, value in (("key", 123), ("n", 1), ("root_key", 1), ("operation", 2)):
        change[name] = value
    assert store.commit.append(postings_record(change), rule=lib.SARP_PLACE_BEHIND)
    number = store.next_file()
    [at] = store.records(number, fmt.RECORD_POSTINGS)
    rewritten(store, at, 64 + 24, operation)
    work, _ = store.compact(number)
    carried = [record[64 + 24] for record in store.records(store.next_file(), fmt.RECORD_POSTINGS).values()]
    assert (carried, work.damaged) == (([2], 0) if operation == 2 else ([], 1))


@pytest.mark.parametrize("removed", ["a", "a" * 10])
def test_a_dead_posting_that_stands_where_its_record_does_not_is_passed_over(removed: str) -> None:
    """It was cut where its record is posted, which left it where it was, and found again, for ever."""

    def other_filter(postings: npt.NDArray[Any]) -> None:
        postings["filter"] ^= np.uint64(0xFF)
        postings["filter"] |= np.uint64(1)

    store = made("sarp", "a" * 20)
    store.reload(other_filter)
    store.remove(removed)
    assert match(store, "a" * 20) == len(removed) - 1
