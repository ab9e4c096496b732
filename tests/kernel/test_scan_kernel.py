"""Scanning log pages: what is valid is found, what is damaged is never passed over in silence, nothing is read past."""

from __future__ import annotations

import random

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_machine import Machine
from kernel_views import UUID, parse_segment
from records import get, put, seal, starts
from scans import FILE, FIRST_PAGE, SETUP, Log, log_of, machine_of, position_at, scan, several_commits

from sarpstore import VersionError
from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, FOUND_COMMIT_DTYPE, crc32c, ffi, lib, pointer

both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


@pytest.fixture(scope="module")
def small() -> Log:
    """One commit of five records in two pages."""
    machine = machine_of("a" * 9, "b", "a" * 4 + "c" * 60, "c" * 70)
    data = log_of(machine)
    assert len(data) == 2 * fmt.PAGE
    assert len(scan(machine, data).changes) == 5
    return machine, data


@pytest.fixture(scope="module")
def large() -> Log:
    return several_commits()


# What is whole


@both_paths
def test_every_record_and_commit_is_found(large: Log, features: int) -> None:
    machine, data = large
    found = scan(machine, data, features=features)
    assert not found.damaged
    assert found.complete == [c[0] for c in found.commits] == list(range(1, len(found.commits) + 1))
    positions = []
    for page in range(len(data) // fmt.PAGE):
        for at in starts(data[page * fmt.PAGE : (page + 1) * fmt.PAGE]):
            at += page * fmt.PAGE
            if get(data, at, "type") == fmt.RECORD_SEGMENT:
                positions.append(fmt.position(FILE, fmt.LOG_HEADER_BYTES + at))
                record = parse_segment(data[at : at + get(data, at, "length")], positions[-1], 14)
                change = machine.twin.directory.change(record)
                row = (change.key, change.root_key, change.position, change.supersedes, change.n, change.d, change.dp)
                assert (*row, fmt.RECORD_SEGMENT) in found.changes
    assert [c[2] for c in found.changes] == positions
    ends = [c[2] for c in found.commits]
    assert [c[1] for c in found.commits] == [fmt.position(FILE, fmt.LOG_HEADER_BYTES), *ends[:-1]]
    assert sum(c[5] for c in found.commits) == len(positions)


def test_slices_of_any_size_are_as_good_as_one(large: Log) -> None:
    machine, data = large
    rng = random.Random(1)
    damaged = bytearray(data)
    for at in rng.sample(range(len(damaged)), 4):
        damaged[at] ^= 4
    for log in (data, bytes(damaged)):
        whole = scan(machine, log)
        pages = len(log) // fmt.PAGE
        for sizes in [
            (1,) * pages,
            (2,) * pages,
            (7,) * pages,
            *(tuple(rng.choices(range(4), k=pages)) for _ in range(20)),
        ]:
            assert scan(machine, log, tuple(size for size in sizes if size)) == whole
        for limits in (64, 65, 127, 128, 200):
            assert scan(machine, log, limits=limits) == whole


def test_no_room_reads_no_page(small: Log) -> None:
    machine, data = small
    for short in ("change_limit", "commit_limit", "damaged_limit"):
        state, found, uuid = ffi.new("sarp_scan *"), ffi.new("sarp_found *"), ffi.new("uint8_t[16]", UUID)
        state.uuid, state.file_number, state.location_bytes, state.next_page = uuid, FILE, 14, FIRST_PAGE
        changes, commits, damaged = np.zeros(64, CHANGE_DTYPE), np.zeros(1, FOUND_COMMIT_DTYPE), np.zeros(64, "<u8")
        found.changes, found.commits = pointer("sarp_change *", changes), pointer("sarp_found_commit *", commits)
        found.damaged = pointer("uint64_t *", damaged)
        found.change_limit, found.commit_limit, found.damaged_limit = 64, 1, 64
        setattr(found, short, 0 if short == "commit_limit" else 63)
        memory = ffi.new("uint8_t[]", data)
        assert lib.sarp_scan_pages(state, machine.directory.base.c, memory, 2, found) == 0
        assert state.next_page == FIRST_PAGE


def test_pages_without_a_commit_record_are_a_tail(large: Log) -> None:
    machine, data = large
    whole = scan(machine, data)
    for pages in range(len(data) // fmt.PAGE):
        found = scan(machine, data[: pages * fmt.PAGE])
        end = fmt.position(FILE, fmt.LOG_HEADER_BYTES + pages * fmt.PAGE)
        assert found.commits == [c for c in whole.commits if c[2] <= end]
        assert found.changes == [c for c in whole.changes if c[2] < end]
        behind = found.commits[-1][2] if found.commits else fmt.position(FILE, fmt.LOG_HEADER_BYTES)
        assert fmt.position(FILE, found.state[0] * fmt.PAGE) == behind
        assert not found.damaged


# What is damaged


def covered(data: bytes) -> set[int]:
    """The bytes that a checksum or the rule of zero units covers: all but the end of a record's last unit."""
    out = set(range(len(data)))
    for page in range(0, len(data), fmt.PAGE):
        for at in starts(data[page : page + fmt.PAGE]):
            length = get(data, page + at, "length")
            out -= set(range(page + at + length, page + at + -(-length // fmt.UNIT) * fmt.UNIT))
    return out


def test_no_flipped_bit_is_passed_over(small: Log) -> None:
    machine, data = small
    whole = scan(machine, data)
    checked = covered(data)
    assert len(checked) > len(data) * 0.95
    uncovered = set(range(len(data))) - checked
    for byte in range(len(data)):
        for bit in range(8) if byte % 4096 < 640 or byte % 64 < 18 else (byte % 8,):
            flipped = bytearray(data)
            flipped[byte] ^= 1 << bit
            found = scan(machine, bytes(flipped))
            if byte in uncovered:
                assert found == whole
                continue
            assert found.damaged
            # Free units count, those behind the commit record too.
            assert not found.complete
            # What else is there is as it was.
            assert set(found.changes) <= set(whole.changes)
            assert len(found.changes) >= len(whole.changes) - 1
            unit = fmt.position(FILE, fmt.LOG_HEADER_BYTES + byte)
            assert found.damaged[0] <= unit


def test_zeroed_and_exchanged_pages_are_seen(large: Log) -> None:
    machine, data = large
    whole = scan(machine, data)
    pages = len(data) // fmt.PAGE

    def affected(page: int) -> int:
        at = fmt.position(FILE, fmt.LOG_HEADER_BYTES + page * fmt.PAGE)
        return next(c[0] for c in whole.commits if c[1] <= at < c[2])

    for page in range(pages):
        hurt = bytearray(data)
        hurt[page * fmt.PAGE : (page + 1) * fmt.PAGE] = bytes(fmt.PAGE)
        found = scan(machine, bytes(hurt))
        assert affected(page) not in found.complete
        other = (page + 1) % pages
        hurt = bytearray(data)
        hurt[page * fmt.PAGE : (page + 1) * fmt.PAGE] = data[other * fmt.PAGE : (other + 1) * fmt.PAGE]
        found = scan(machine, bytes(hurt))
        assert affected(page) not in found.complete
        assert found.damaged
        assert set(found.changes) < set(whole.changes) or not any(starts(data[page * fmt.PAGE :][: fmt.PAGE]))


def test_a_record_of_another_store_file_or_place_is_damage(small: Log) -> None:
    machine, data = small
    for uuid, file_number, shift in ((bytes(16), FILE, 0), (UUID, FILE + 1, 0), (UUID, FILE, 1)):
        memory, state, found = ffi.new("uint8_t[]", data), ffi.new("sarp_scan *"), ffi.new("sarp_found *")
        own = ffi.new("uint8_t[16]", uuid)
        changes, commits, damaged = np.zeros(128, CHANGE_DTYPE), np.zeros(2, FOUND_COMMIT_DTYPE), np.zeros(128, "<u8")
        state.uuid, state.file_number, state.location_bytes, state.features = own, file_number, 14, FEATURES
        state.begin_page = state.next_page = FIRST_PAGE + shift
        found.changes, found.change_limit = pointer("sarp_change *", changes), 128
        found.commits, found.commit_limit = pointer("sarp_found_commit *", commits), 2
        found.damaged, found.damaged_limit = pointer("uint64_t *", damaged), 128
        assert lib.sarp_scan_pages(state, machine.directory.base.c, memory, 2, found) == 2
        assert (found.change_count, found.commit_count) == (0, 0)
        assert found.damaged_count >= 2


def test_garbage_is_no_record() -> None:
    machine = Machine(SETUP)
    rng = random.Random(12)
    for _ in range(60):
        data = bytearray(rng.randbytes(3 * fmt.PAGE))
        if rng.random() < 0.7:  # bytes that look like records at each unit, but for their checksums
            for at in range(0, len(data), fmt.UNIT):
                put(data, at, type=rng.randrange(1, 10), header_units=rng.choice([0, 1, 2, 3, 255]))
                put(data, at, length=rng.choice([0, 1, 63, 64, 65, 128, 4096, 4097, 65535, rng.randrange(4096)]))
        found = scan(machine, bytes(data))
        assert (found.changes, found.commits) == ([], [])
        # A damaged run is named by its first unit.
        assert found.damaged == [fmt.position(FILE, fmt.LOG_HEADER_BYTES + page * fmt.PAGE) for page in range(3)]


# Valid checksums, and fields that no writer makes


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"n": 65},
        {"n": 255},
        {"n": 8},
        {"d": 9},
        {"d": 63},
        {"d": 255},
        {"dp": 64},
        {"dp": 255},
        {"header_units": 1},
        {"header_units": 0},
        {"header_units": 3},
        {"header_units": 255},
        {"length": 0},
        {"length": 63},
        {"length": 127},
        {"length": 397},
        {"length": 399},
        {"length": 65535},
        {"type": 0},
        {"type": fmt.RECORD_REMOVE},
        {"type": fmt.RECORD_SUMMARY},
        {"type": fmt.RECORD_COMMIT},
        {"type": fmt.RECORD_SEAL},
        {"type": fmt.RECORD_NAMESPACE},
        {"type": fmt.RECORD_CHUNK_PAYLOAD},
    ],
    ids=str,
)
def test_a_segment_with_impossible_fields_is_damage(small: Log, fields: dict[str, int]) -> None:
    machine, data = small
    whole = scan(machine, data)
    hurt = bytearray(data)
    at = next(a for a in starts(data[: fmt.PAGE]) if get(data, a, "n") == 9)
    assert get(data, at, "length") == 398
    put(hurt, at, **fields)
    seal(hurt, at, UUID, position_at(at))
    found = scan(machine, bytes(hurt))
    assert found.damaged[0] == position_at(at)
    assert not found.complete
    assert found.changes == [c for c in whole.changes if c[2] != position_at(at)]


def test_a_record_may_end_with_its_page_and_no_later() -> None:
    machine = Machine(SETUP)
    for fill in (64, 128, 640, 4096 - 128, 4096 - 64):
        at = fmt.PAGE - fill
        page = bytearray(fmt.PAGE)
        record = bytearray(fill)
        put(record, 0, length=fill, type=200, flags=fmt.FLAG_IGNORABLE, header_units=1, commit=1)
        page[at:] = record
        seal(page, at, UUID, position_at(at))
        found = scan(machine, bytes(page))
        assert [(c[2], c[7]) for c in found.changes] == [(position_at(at), 200)]
        assert not found.damaged
        for length in (fill + 1, fill + 64, 4096, 65535):
            put(page, at, length=length)
            seal(page, at, UUID, position_at(at))
            found = scan(machine, bytes(page))
            assert not found.changes
            assert found.damaged == [position_at(at)] or length == fill
        # A header of two units at a page's end.
        if fill == 64:
            put(page, at, length=64, header_units=2)
            seal(page, at, UUID, position_at(at))
            assert not scan(machine, bytes(page)).changes


def test_unknown_types() -> None:
    machine = Machine(SETUP)
    page = bytearray(fmt.PAGE)
    put(page, 0, length=100, type=77, header_units=1, commit=1)
    seal(page, 0, UUID, position_at(0))
    with pytest.raises(VersionError, match=str(position_at(0))):
        scan(machine, bytes(page))
    put(page, 0, flags=fmt.FLAG_IGNORABLE)
    seal(page, 0, UUID, position_at(0))
    assert [c[7] for c in scan(machine, bytes(page)).changes] == [77]


@pytest.mark.parametrize("name", ["pages", "records", "checksum", "commit"])
def test_a_commit_record_that_does_not_agree(small: Log, name: str) -> None:
    machine, data = small
    (at,) = [fmt.PAGE + a for a in starts(data[fmt.PAGE :]) if get(data, fmt.PAGE + a, "type") == fmt.RECORD_COMMIT]
    for delta in (1, -1):
        hurt = bytearray(data)
        put(hurt, at, **{name: (get(data, at, name) + delta) & 0xFFFFFFFF})
        seal(hurt, at, UUID, position_at(at))
        found = scan(machine, bytes(hurt))
        assert not found.damaged
        assert not found.complete
        assert len(found.commits) == 1
    # A record of another commit among its own.
    hurt = bytearray(data)
    put(hurt, 0, commit=2)
    seal(hurt, 0, UUID, position_at(0))
    assert not scan(machine, bytes(hurt)).complete
    # Even where the commit record's checksum is made to agree, as it does where nothing was changed.
    for log in (hurt, bytearray(data)):
        places = [page + a for page in (0, fmt.PAGE) for a in starts(log[page : page + fmt.PAGE])]
        put(log, at, checksum=crc32c(b"".join(bytes(log[a : a + 4]) for a in places if a != at)))
        seal(log, at, UUID, position_at(at))
        assert bool(scan(machine, bytes(log)).complete) == (log is not hurt)


def test_two_commit_records_in_a_page(small: Log) -> None:
    machine, data = small
    (at,) = [fmt.PAGE + a for a in starts(data[fmt.PAGE :]) if get(data, fmt.PAGE + a, "type") == fmt.RECORD_COMMIT]
    hurt = bytearray(data)
    assert at + 128 <= len(hurt)
    hurt[at + 64 : at + 128] = hurt[at : at + 64]
    seal(hurt, at + 64, UUID, position_at(at + 64))
    found = scan(machine, bytes(hurt))
    assert (len(found.commits), found.damaged) == (1, [position_at(at + 64)])


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_hostile_fields_under_valid_checksums(data: st.DataObject) -> None:
    machine, log = hostile_base()
    pages = bytearray(log)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from(range(0, len(pages), fmt.UNIT)))
        names = st.sampled_from(["length", "type", "flags", "n", "d", "dp", "header_units", "commit", "window"])
        for name in data.draw(st.lists(names, min_size=1, max_size=4, unique=True)):
            size = {"length": 2, "commit": 8, "window": 4}.get(name, 1)
            small_values = st.sampled_from([0, 1, 2, 4, 5, 8, 9, 63, 64, 65, 128, 252, 253, 255])
            value = data.draw(small_values | st.integers(0, 256**size - 1))
            put(pages, at, **{name: value & (256**size - 1)})
        page = at // fmt.PAGE * fmt.PAGE
        copy = pages[page : page + fmt.PAGE]
        seal(copy, at - page, UUID, position_at(at))
        pages[page : page + fmt.PAGE] = copy
    try:
        found = scan(machine, bytes(pages))
    except VersionError:
        return
    for key, root_key, position, _, n, d, dp, kind in found.changes:
        assert position_at(0) <= position < position_at(len(pages))
        if kind == fmt.RECORD_SEGMENT:
            assert 0 <= d < n <= 64
            assert dp < 64
            assert key < 1 << 48
            assert root_key < 1 << 48
    assert scan(machine, bytes(pages), (1,) * 50, features=0) == found


_BASE: list[Log] = []


def hostile_base() -> Log:
    if not _BASE:
        machine = machine_of("a" * 9, "b", "a" * 4 + "c" * 60, "c" * 70, "ab" * 40)
        _BASE.append((machine, log_of(machine)))
    return _BASE[0]
