"""Gathering commits: where records go, what is refused, and that a scan of a finished one finds them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kernel_machine import Machine
from kernel_views import UUID
from records import put, summary_entry
from scans import FILE, SETUP, position_at, scan

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, lib, pointer
from sarpstore._log.commits import CommitBuffer, namespace_record, seal_record, summary_record

RULES = [lib.SARP_PLACE_BEST, lib.SARP_PLACE_BEST, lib.SARP_PLACE_BEHIND, lib.SARP_PLACE_FRESH]


def new_commit(pages: int) -> CommitBuffer:
    buffer = CommitBuffer(UUID, 14, pages)
    buffer.begin(FILE, 0, fmt.LOG_HEADER_BYTES, 1, 1, pages)
    return buffer


def record_of(length: int) -> bytes:
    record = bytearray(max(length, 64))
    put(record, 0, length=length, type=200, flags=fmt.FLAG_IGNORABLE, header_units=1)
    return bytes(record)


@pytest.mark.parametrize("seed", range(20))
def test_records_are_apart_and_behind_what_a_commit_was_parted_at(seed: int) -> None:
    random = Random(seed)
    commit = CommitBuffer(bytes(16), 14)
    commit.begin(1, 0, fmt.LOG_HEADER_BYTES, 1, 1, 60)
    commit.part()
    taken: set[int] = set()
    parted = before = 0
    while True:
        if random.random() < 0.1:
            commit.part()
            parted = max(taken, default=0)
        record = namespace_record(16, "n" * random.randrange(1, 3900), "", 1)
        position = commit.append(record, rule=random.choice(RULES))
        if not position:
            break
        units = set(range(position, position + -(-len(record) // fmt.UNIT)))
        assert len({unit // fmt.PAGE_UNITS for unit in units}) == 1
        assert taken.isdisjoint(units)
        assert position > parted
        before += position < max(taken, default=0)
        taken |= units
    assert commit.pages == 59
    assert before, "records still fill pages that are not the last"


def test_appending_keeps_to_its_bounds() -> None:
    machine, buffer = Machine(SETUP), new_commit(4)
    for length in (0, 1, 63, 4097, 65535):
        assert buffer.append(record_of(length)) == 0
    assert (buffer.records, buffer.pages, buffer.next_sequence) == (0, 0, 1)
    assert buffer.append(record_of(4096)) == position_at(0)
    assert buffer.append(record_of(64)) == position_at(fmt.PAGE)
    # Best fit: a full page's rest is not open, a started one takes what fits.
    assert buffer.append(record_of(3968)) == position_at(fmt.PAGE + 64)
    assert buffer.append(record_of(64)) == position_at(2 * fmt.PAGE)
    # The last page is the commit record's, whatever still fits.
    assert buffer.append(record_of(64)) == 0
    assert (buffer.records, buffer.pages) == (4, 3)
    buffer.finish(machine.directory.base, 0)
    found = scan(machine, bytes(buffer.data()))
    assert found.complete == [1]
    assert [(c[2], c[7]) for c in found.changes] == [
        (position_at(at), 200) for at in (0, fmt.PAGE, fmt.PAGE + 64, 2 * fmt.PAGE)
    ]
    for pages in (0, 1):
        assert new_commit(pages).append(record_of(64)) == 0


def test_a_record_goes_where_it_fits_best() -> None:
    machine, buffer = Machine(SETUP), new_commit(12)
    rng = Random(7)
    free = {}  # page: free units, of those that are open
    placed = []
    for _ in range(200):
        length = rng.choice([64, 100, 700, 1500, 2048, 2049, 3000, 4000])
        fresh = rng.random() < 0.05
        rule = lib.SARP_PLACE_FRESH if fresh else lib.SARP_PLACE_BEST
        units = -(-length // 64)
        if buffer.pages + 2 > 12:
            assert buffer.append(record_of(length), rule=rule) == 0
            break
        fitting = [] if fresh else [page for page, left in free.items() if left >= units and left >= 3]
        at = buffer.append(record_of(length), rule=rule)
        page = (fmt.position_offset(at) - fmt.LOG_HEADER_BYTES) // fmt.PAGE
        if fitting:
            assert free[page] == min(free[p] for p in fitting)
        else:
            assert page == len(free)
            free[page] = 64
        assert fmt.position_offset(at) % fmt.PAGE == (64 - free[page]) * 64
        free[page] -= units
        placed.append(at)
    assert len(placed) > 12
    buffer.finish(machine.directory.base, 0)
    assert [c[2] for c in scan(machine, bytes(buffer.data())).changes] == sorted(placed)


def test_a_commit_record_that_needs_a_page_of_its_own() -> None:
    machine, buffer = Machine(SETUP), new_commit(3)
    buffer.append(record_of(4096))
    buffer.finish(machine.directory.base, 99, fmt.COMMIT_CLOSED)
    assert buffer.pages == 2
    found = scan(machine, bytes(buffer.data()))
    assert found.commits == [
        *[(1, position_at(0), position_at(2 * fmt.PAGE), 99, lib.SARP_COMMIT_COMPLETE | fmt.COMMIT_CLOSED << 8, 1)]
    ]
    mark = new_commit(3)
    mark.finish(machine.directory.base, 7, fmt.COMMIT_MARK)
    found = scan(machine, bytes(mark.data()))
    assert (found.complete, found.changes) == ([1], [])
    changes = np.zeros(1, CHANGE_DTYPE)
    full = new_commit(4)
    for _ in range(2):
        full.append(record_of(64))
    status = lib.sarp_commit_finish(full.c, machine.directory.base.c, 0, 0, pointer("sarp_change *", changes), 1)
    assert status == lib.SARP_INVALID
    assert full.pages == 1


def test_a_sealing_commit_is_read_back() -> None:
    machine, buffer = Machine(SETUP), new_commit(5)
    entries = np.frombuffer(b"".join(summary_entry(units=i + 1) for i in range(200)), fmt.SUMMARY_DTYPE)
    for part in (entries[:126], entries[126:]):
        assert buffer.append(summary_record(part), rule=lib.SARP_PLACE_FRESH)
    assert buffer.append(seal_record(2, 200, position_at(0)), rule=lib.SARP_PLACE_FRESH)
    buffer.finish(machine.directory.base, 0)
    found = scan(machine, bytes(buffer.data()))
    assert found.complete == [1]
    assert [(c[2], c[7]) for c in found.changes] == [
        *((position_at(i * fmt.PAGE), fmt.RECORD_SUMMARY) for i in range(2)),
        (position_at(2 * fmt.PAGE), fmt.RECORD_SEAL),
    ]
