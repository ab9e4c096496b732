"""Postings records in the log: what a scan and a summary say of them, and what hostile ones may not do."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from kernel_views import SECRET, UUID, KernelQueries, Needs
from postings_machine import PostingsMachine
from postings_views import FIRST_PAGE, SIZE, Setup, changes_list, list_changes
from records import get, put, seal, starts
from strategies import ids_of, locations_of

from sarpstore import VersionError
from sarpstore import _format as fmt
from sarpstore._directory import PostingsDirectory
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, FOUND_COMMIT_DTYPE, ffi, lib, pointer
from sarpstore._kernel.twin_postings import TwinPostings
from sarpstore._log.base import Base
from sarpstore._log.commits import CommitBuffer, summary_of
from sarpstore._log.pages import Pages

FILE = 1
SETUP = Setup(refine_at=4, prune_at=1, commit_pages=512)


def machine_of(count: int = 40, seed: int = 3, every: int = 8) -> tuple[PostingsMachine, list[str]]:
    """Sessions that share, leave each other and go on, in commits of `every` insertions."""
    rng, machine, paths = random.Random(seed), PostingsMachine(SETUP), [""]
    for number in range(count):
        parent = rng.choice(paths)
        parent = parent if rng.random() < 0.4 else parent[: rng.randrange(len(parent) + 1)]
        paths.append((parent + "".join(rng.choice("ab") * rng.randrange(1, 30) for _ in "12"))[:200])
        machine.insert(paths[-1], number)
        if number % every == every - 1:
            machine.settle()
    machine.settle()
    return machine, paths[1:]


@pytest.fixture(scope="module")
def written() -> tuple[PostingsMachine, list[str], bytes]:
    machine, paths = machine_of()
    assert machine.counts["added refined"]
    assert machine.counts["dropped posting"]
    return machine, paths, bytes(machine.log[FILE][fmt.LOG_HEADER_BYTES :])


Written = tuple[PostingsMachine, list[str], bytes]


def scan(base: Base, data: bytes, room: int | None = None, features: int = FEATURES) -> tuple[Any, Any, list[int]]:
    """(changes, commits, positions damaged) of pages; `room`: changes that one call has room for."""
    pages = len(data) // fmt.PAGE
    memory, uuid, state = ffi.new("uint8_t[]", data), ffi.new("uint8_t[16]", UUID), ffi.new("sarp_scan *")
    state.uuid, state.file_number, state.location_bytes, state.features = uuid, FILE, SIZE, features
    state.begin_page = state.next_page = FIRST_PAGE
    room = room or pages * lib.SARP_PAGE_CHANGES_MAX
    parts, commits_out, damaged_out, at = [], [], [], 0
    while at < pages:
        # Memory of its own, so that a sanitizer sees one change too many.
        changes, commits = np.zeros(room, CHANGE_DTYPE), np.zeros(pages, FOUND_COMMIT_DTYPE)
        damaged, found = np.zeros(64 * pages, "<u8"), ffi.new("sarp_found *")
        found.changes, found.change_limit = pointer("sarp_change *", changes), room
        found.commits, found.commit_limit = pointer("sarp_found_commit *", commits), pages
        found.damaged, found.damaged_limit = pointer("uint64_t *", damaged), len(damaged)
        done = lib.sarp_scan_pages(state, base.c, memory + at * fmt.PAGE, pages - at, found)
        assert done
        assert found.change_count <= room
        if found.unknown_at:
            raise VersionError(str(found.unknown_at))
        parts.append(changes[: found.change_count])
        commits_out.append(commits[: found.commit_count])
        damaged_out += damaged[: found.damaged_count].tolist()
        at += done
    return np.concatenate(parts), np.concatenate(commits_out), damaged_out


def test_a_scan_gives_what_the_commits_gave_whatever_room_it_has(written: Written) -> None:
    machine, _, data = written
    changes, commits, damaged = scan(machine.directory.base, data)
    assert not damaged
    assert np.all(commits["flags"] & lib.SARP_COMMIT_COMPLETE)
    twin = TwinPostings()
    for change in list_changes(changes):
        twin.apply(change)
    assert twin.elements() == machine.twin.directory.elements()
    for room in (lib.SARP_PAGE_CHANGES_MAX, 400, 1000):
        again, _, _ = scan(machine.directory.base, data, room, features=0)
        assert again.tobytes() == changes.tobytes()
    kinds = {fmt.RECORD_SEGMENT, fmt.RECORD_POSTINGS}
    assert set(changes["type"].tolist()) == kinds


def test_no_room_for_a_pages_changes_reads_no_page(written: Written) -> None:
    machine, _, data = written
    state, found, uuid = ffi.new("sarp_scan *"), ffi.new("sarp_found *"), ffi.new("uint8_t[16]", UUID)
    state.uuid, state.file_number, state.location_bytes, state.next_page = uuid, FILE, SIZE, FIRST_PAGE
    room = lib.SARP_PAGE_CHANGES_MAX - 1
    changes, commits, damaged = np.zeros(room, CHANGE_DTYPE), np.zeros(1, FOUND_COMMIT_DTYPE), np.zeros(64, "<u8")
    found.changes, found.commits = pointer("sarp_change *", changes), pointer("sarp_found_commit *", commits)
    found.damaged = pointer("uint64_t *", damaged)
    found.change_limit, found.commit_limit, found.damaged_limit = room, 1, 64
    assert lib.sarp_scan_pages(state, machine.directory.base.c, ffi.new("uint8_t[]", data), 1, found) == 0


def test_a_page_can_have_no_more_changes_than_the_limit_says() -> None:
    """The smallest segments that supersede at all eight points, and the smallest records."""
    assert -(-(fmt.SEGMENT_HEADER_BYTES + 16 + 1) // 64) == 3
    assert lib.SARP_PAGE_CHANGES_MAX >= 64 // 3 * 16 + 1 >= 126


def test_another_directory_does_not_know_postings_records(written: Written) -> None:
    _, _, data = written
    base = Base(SECRET, fmt.ROUTINGS.index("divergence"))
    with pytest.raises(VersionError):
        scan(base, data)
    alone = b"".join(
        data[at : at + fmt.PAGE]
        for at in range(0, len(data), fmt.PAGE)
        if all(get(data, at + s, "type") != fmt.RECORD_POSTINGS for s in starts(data[at : at + fmt.PAGE]))
    )
    changes, _, _ = scan(base, alone)
    assert not changes["operation"].any()


def records(data: bytes, kind: int) -> list[tuple[int, int]]:
    """(page, place in it) of the records of a type."""
    places = [(at, s) for at in range(0, len(data), fmt.PAGE) for s in starts(data[at : at + fmt.PAGE])]
    return [(at, s) for at, s in places if get(data, at + s, "type") == kind]


def changed(data: bytes, at: int, start: int, **fields: Any) -> bytes:
    """The page at `at` with other fields in the record at `start`: by name, or bytes by their offset."""
    page = bytearray(data[at : at + fmt.PAGE])
    for name, value in fields.items():
        if name.startswith("at_"):
            offset = start + int(name[3:])
            page[offset : offset + len(value)] = value
        else:
            put(page, start, **{name: value})
    seal(page, start, UUID, fmt.position(FILE, fmt.LOG_HEADER_BYTES + at + start))
    return data[:at] + bytes(page) + data[at + fmt.PAGE :]


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"n": 127},
        {"n": 255},
        {"header_units": 2},
        {"length": 64},
        {"at_64": b"\x01"},  # bit 0 of word 0
        {"at_88": b"\0"},
        {"at_88": b"\3"},
        {"at_80": u64(1)},  # a filter, or flags, that are not the entry's
        {"at_64": u64(1 << 16 | 63 << 4)},
    ],
    ids=str,
)
def test_a_postings_record_with_impossible_fields_is_damage(written: Written, fields: dict[str, Any]) -> None:
    machine, _, data = written
    whole, _, _ = scan(machine.directory.base, data)
    for at, start in records(data, fmt.RECORD_POSTINGS)[:12]:
        place = fmt.position(FILE, fmt.LOG_HEADER_BYTES + at + start)
        if get(data, at + start, "n") == fields.get("n") or ("at_80" in fields and data[at + start + 80] == 1):
            continue
        changes, commits, damaged = scan(machine.directory.base, changed(data, at, start, **fields))
        assert place in damaged
        assert not np.all(commits["flags"] & lib.SARP_COMMIT_COMPLETE)
        assert set(changes_list(changes)) <= {row for row in changes_list(whole) if row[0] != place}


@pytest.mark.parametrize(
    "fields", [{"at_88": b"\0"}, {"at_88": b"\2"}, {"at_88": b"\xff"}, {"at_89": b"\x40"}, {"supersedes": 5}], ids=str
)
def test_a_segment_posted_where_it_cannot_be_is_damage(written: Written, fields: dict[str, Any]) -> None:
    machine, _, data = written
    tried = 0
    for at, start in records(data, fmt.RECORD_SEGMENT):
        n, old_n = get(data, at + start, "n"), data[at + start + 89]
        if (fields.get("at_88") == b"\xff" and n == 64) or ("supersedes" in fields and old_n):
            continue
        _, _, damaged = scan(machine.directory.base, changed(data, at, start, **fields))
        assert damaged == [fmt.position(FILE, fmt.LOG_HEADER_BYTES + at + start)]
        tried += 1
    assert tried > 5


def test_summaries_give_the_changes_and_nothing_that_no_writer_makes(written: Written) -> None:
    machine, _, data = written
    changes, _, _ = scan(machine.directory.base, data)
    changes["commit"] = 0
    entries = summary_of(changes)

    def again(table: bytes, count: int) -> tuple[int, Any]:
        out = np.zeros(count, CHANGE_DTYPE)
        source = ffi.new("uint8_t[]", table)
        base = machine.directory.base.c
        return lib.sarp_summary_changes(base, FILE, source, count, pointer("sarp_change *", out)), out

    status, out = again(entries.tobytes(), len(entries))
    assert status == lib.SARP_OK
    assert out.tobytes() == changes.tobytes()
    rng = random.Random(6)
    for _ in range(400):
        table = bytearray(entries[: rng.randrange(1, 20)].tobytes())
        at = rng.randrange(len(table))
        table[at] ^= 1 << rng.randrange(8)
        status, out = again(bytes(table), len(table) // 32)
        if status == lib.SARP_OK:
            # What is let through can be applied: every field is within its bounds.
            PostingsMachine(SETUP).directory.apply(out)
    swapped = entries[::-1].copy()
    assert again(swapped.tobytes(), len(swapped))[0] == lib.SARP_INVALID


def test_finishing_needs_room_for_every_change() -> None:
    machine = PostingsMachine(SETUP)
    for number in range(6):
        machine.insert("a" * 20 + "bcdefg"[number] * 20, number)
    buffer = machine.gatherer.buffer
    count = int(buffer.c.changes)
    assert count > buffer.records
    out = np.zeros(count, CHANGE_DTYPE)
    base = machine.directory.base.c
    assert lib.sarp_commit_finish(buffer.c, base, 0, 0, pointer("sarp_change *", out), count - 1) == lib.SARP_INVALID
    assert lib.sarp_commit_finish(buffer.c, base, 0, 0, pointer("sarp_change *", out), count) == count
    positions = out["position"]
    assert np.all(positions[1:] >= positions[:-1])


def test_what_overrides_stands_behind_and_shares_pages() -> None:
    """Superseding records behind postings records go where there is room at the end, not on a page each."""
    machine = PostingsMachine(Setup(commit_pages=512))
    paths = [f"{'a' * 20}{chr(0x4E00 + i)}" for i in range(60)]
    for turn in range(3):
        for i, path in enumerate(paths):
            machine.insert(path + "b" * turn, turn * 60 + i)
    buffer = machine.gatherer.buffer
    assert buffer.c.ordered
    used = sum(buffer.c.used[page] for page in range(buffer.pages))
    assert used > buffer.pages * 64 * 0.75


def test_an_appended_record_counts_for_its_changes() -> None:
    machine = PostingsMachine(SETUP)
    for number in range(6):
        machine.insert("a" * 20 + "bcdefg"[number] * 20, number)
    source = machine.gatherer.buffer
    other = CommitBuffer(UUID, SIZE, 64)
    other.begin(FILE, 0, fmt.LOG_HEADER_BYTES, 1, 1, 64)
    for _, kind in machine._gathering():
        assert kind in (fmt.RECORD_SEGMENT, fmt.RECORD_POSTINGS)
    for position, _ in machine._gathering():
        start = fmt.position_offset(position) - source.offset
        length = int.from_bytes(source._memory[start + 8 : start + 10], "little")
        assert other.append(bytes(source._memory[start : start + length]), rule=lib.SARP_PLACE_FRESH)
    assert other.c.changes == source.c.changes
    other.finish(machine.directory.base, 0)
    assert len(other.changes) == source.c.changes


# Hostile pages: checksums hold, fields say anything


def hostile(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(6)):
        at, start = rng.choice(records(data, rng.choice([fmt.RECORD_SEGMENT, fmt.RECORD_SEGMENT, fmt.RECORD_POSTINGS])))
        kind = rng.randrange(5)
        if kind == 0:
            fields: dict[str, Any] = {rng.choice(["n", "d", "dp", "type", "flags"]): rng.randrange(256)}
        elif kind == 1:
            fields = {rng.choice(["window", "holder", "length"]): rng.choice([0, 1, 63, 64, 2047, 4096])}
        elif kind == 2:  # a segment that is right in itself
            n = rng.randrange(1, 65)
            fields = {"n": n, "d": rng.randrange(n), "length": 128 + 30 * n, "type": 1, "header_units": 2}
        elif kind == 3:
            fields = {f"at_{rng.randrange(128, 1000)}": rng.randbytes(16)}
        else:
            fields = {"at_88": rng.randbytes(2), "supersedes": rng.getrandbits(50)}
        data = changed(data, at, start, **fields)
    return data


def directory_of(machine: PostingsMachine, paths: list[str], rng: random.Random, features: int) -> PostingsDirectory:
    """The machine's, with postings that name any unit of any page, under the paths' keys."""
    directory = PostingsDirectory(SECRET, 1 << 20, features, read_cap=3, refine_at=2, prune_at=1)
    directory.start_empty()
    directory.base.add_slot(0, FILE)
    changes = machine.scan_log()
    directory.apply(changes)
    odd = changes[rng.choices(range(len(changes)), k=rng.randrange(60))].copy()
    for row in odd:
        if row["supersedes"]:
            row["supersedes"] = FILE << 24 | rng.randrange(128, len(machine.log[FILE]) // 64 + 64)
        row["operation"] = 1 if rng.random() < 0.9 else 2
    directory.apply(odd)
    return directory


@pytest.mark.parametrize("features", sorted({0, FEATURES}))
def test_hostile_pages_are_read_within_their_bounds(written: Written, features: int) -> None:
    machine, paths, data = written
    rng = random.Random(features)
    for _ in range(60):
        directory, log = directory_of(machine, paths, rng, features), hostile(data, rng)
        pages = Pages(UUID, SIZE, 0, features)
        # Memory of its own for each page, so that a sanitizer sees one byte too many.
        memory = {
            FIRST_PAGE + at // fmt.PAGE: ffi.new("uint8_t[]", log[at : at + fmt.PAGE])
            for at in range(0, len(log), fmt.PAGE)
        }
        needs = Needs(4096)
        with pages.hold({number: memoryview(ffi.buffer(page)) for number, page in memory.items()}):
            for _ in range(6):
                path = rng.choice(paths)
                ids = ids_of(path[: rng.randrange(len(path)) + 1])
                queries = KernelQueries(ids, 0, 0, SIZE, [False, True])
                needs.clear()
                left = directory.match(pages.c, queries.c, 2, needs.c)
                assert not left or set(needs.pages) - set(memory)
                for query in queries.c:
                    assert query.status != lib.SARP_OK or query.matched <= len(ids)
                low, high = directory.estimate(queries.c)
                assert low <= high <= len(ids)


@pytest.mark.parametrize("features", sorted({0, FEATURES}))
def test_hostile_pages_under_an_insertion(written: Written, features: int) -> None:
    source, paths, data = written
    rng = random.Random(features + 100)
    for _ in range(25):
        machine = PostingsMachine(SETUP)
        machine.directory = directory_of(source, paths, rng, features)
        machine.end.file_number = FILE
        machine._begin_writing()
        machine.features = machine.pages.c.features = features
        machine.log[FILE] = bytearray(fmt.LOG_HEADER_BYTES) + hostile(data, rng)
        for number in range(8):
            path = rng.choice(paths)[: rng.randrange(200)] + rng.choice("abc") * rng.randrange(1, 50)
            ids = ids_of(path)
            status, query, _ = machine.kernel_insert(ids, locations_of(path, number))
            assert status in (lib.SARP_OK, lib.SARP_NO_ROOM)
            assert query.matched <= len(ids)
        machine.elements()
        machine.settle()
        found = machine.scan_file(FILE + 1)
        assert not len(found.damaged)
        assert np.all(found.commits["flags"] & lib.SARP_COMMIT_COMPLETE)
