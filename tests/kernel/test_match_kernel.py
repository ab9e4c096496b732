"""The kernel's directory, matching and insertion against the Python twin and a dict; and hostile pages.

`python -m fuzz.directory` is the same for long runs.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_machine import Machine
from kernel_operations import Checkpoint, Collide, Damage, Operation, Rebuild, Reopen, Replay, Setup, runs
from kernel_views import SECRET, UUID, KernelQueries, Needs, changes_array
from records import put, seal, starts
from strategies import Insert, Query, ids_of, locations_of

from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._kernel import FEATURES, ffi, lib
from sarpstore._kernel.twin_directory import SegmentChange
from sarpstore._log.pages import Pages

SETUP = Setup((0,), 14, 8, 64, 4096, scalar=False)
both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


def deterministic(count: int) -> settings:
    return settings(
        max_examples=count,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("collide", [False, True], ids=["", "equal keys"])
@pytest.mark.parametrize("damage", [False, True], ids=["", "damage"])
def test_kernel_twin_and_dict_agree(damage: bool, collide: bool) -> None:
    @deterministic(examples(60))
    @given(runs(damage=damage, collide=collide))
    def run(drawn: tuple[Setup, list[Operation]]) -> None:
        setup, operations = drawn
        Machine(setup).run(operations)

    run()


def insert(path: str, number: int = 0) -> Insert:
    return Insert(path, 0, 0, number)


BRANCH = "a" * 20 + "b" * 60


@pytest.mark.parametrize(
    "operations",
    [
        [insert("a" * 64), insert(BRANCH, 1), Damage("byte", 1, 3), Query(BRANCH, 0, 0), Query(BRANCH[:64], 0, 0)],
        [
            insert("a" * 64),
            insert(BRANCH, 1),
            Damage("byte", 0, 3),
            Rebuild(True, 1),
            insert("a" * 30, 2),
            insert(BRANCH, 3),
        ],
        [insert("a" * n, n) for n in range(1, 130, 3)],
        [insert("a" * 5), Checkpoint(0), insert("a" * 9, 1), insert("a" * 3 + "b", 2), Reopen(0, 0), Replay(0, 2)],
        [
            insert("a" * 5),
            Checkpoint(1),
            insert("a" * 70, 1),
            Reopen(1, 9),
            insert("a" * 70 + "b", 2),
            Rebuild(False, 2),
        ],
        [insert("a" * 9), insert("b" * 9, 1), *(Collide(0, "b" * 9, 0, None, 9, 0, (0, 0)) for _ in range(5))],
        [insert("a" * 64), insert("b" * 200, 1), Collide(0, "a" * 80, 64, 7, 9, 0, (0, 0)), insert("a" * 200, 2)],
        [
            *(insert("a" * 30), insert("a" * 10 + "b" * 10, 1), insert("a" * 8 + "c" * 20, 2)),
            *(Collide(1, "a" * 8 + "c" * 20, 10, None, 20, 0, (0, 0)), Query("a" * 8 + "c" * 20, 0, 0)),
        ],
        *(
            [insert("a" * old), Damage("byte", 1, 3), Rebuild(True, 9), insert("a" * new, 1), Query("a" * 150, 0, 0)]
            for old, new in ((140, 150), (150, 140), (150, 150))
        ),
        [insert("a" * 30), Collide(0, "a" * 30, 10, None, 20, 0, (0, 0)), Query("a" * 30, 0, 0), insert("a" * 40, 2)],
        [insert("a" * 64), Collide(0, "a" * 140, 64, 0, 64, 0, (0, 0)), Collide(0, "a" * 140, 128, 0, 9, 5, (0, 0))],
    ],
    ids=[
        *("damaged owner inside a window", "damaged root", "superseding again and again", "images", "images at once"),
        *("equal keys", "an equal key in place of a root"),
        *(
            "an equal key on the same path, further on than it is shared",
            "longer after shorter",
            "shorter after longer",
            "equally long",
            "a record under another d",
            "equal keys in place of roots",
        ),
    ],
)
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("commit_pages", [8, 64])
def test_sequences(operations: list[Operation], scalar: bool, commit_pages: int) -> None:
    Machine(Setup((1, 2, 2), 14, 2, commit_pages, 166, scalar)).run(operations)


# What the machine does not reach


def grown(count: int = 12) -> tuple[Machine, list[str]]:
    rng = random.Random(3)
    machine, paths = Machine(SETUP), [""]
    for number in range(count):
        parent = rng.choice(paths)
        path = parent[: rng.randrange(len(parent) + 1)] + "".join(
            rng.choice("ab") * rng.randrange(1, 60) for _ in "123"
        )
        paths.append(path[:256])
        machine.apply(insert(paths[-1], number))
    machine.settle()
    return machine, paths[1:]


def test_no_blocks_are_no_question() -> None:
    machine, _ = grown()
    queries, rounds, _ = machine.match(machine.cold, (), 0, 0, [False, True])
    assert not rounds
    assert [(q.matched, q.owner_reference) for q in queries.c] == [(0, fmt.REFERENCE_NONE)] * 2
    status, query, records = machine.kernel_insert((), (), 0, 0)
    assert (status, query.matched, records) == (lib.SARP_OK, 0, [])


def test_a_batch_answers_only_what_is_open() -> None:
    machine, paths = grown()
    data = [ffi.new("uint8_t[]", b"".join(ids_of(path))) for path in paths]
    queries = ffi.new("sarp_query[]", len(paths))
    for i, path in enumerate(paths):
        queries[i].ids, queries[i].blocks, queries[i].status = data[i], len(path), lib.SARP_NEED
        if i % 3 == 0:
            queries[i].status, queries[i].matched = lib.SARP_OK, 7

    def step() -> int:
        left: int = lib.sarp_match(machine.directory.c, machine.cold.c, queries, len(paths), machine._needs.c)
        assert left == sum(q.status == lib.SARP_NEED for q in queries)
        return left and int(lib.SARP_NEED)

    machine.decide(machine.cold, step)
    assert [q.matched for q in queries] == [7 if i % 3 == 0 else len(path) for i, path in enumerate(paths)]


@pytest.mark.parametrize("limit", [1, 2])
def test_what_does_not_fit_in_the_needs_is_asked_for_again(limit: int) -> None:
    machine, paths = grown()
    machine._needs = Needs(limit)
    path = max(paths, key=len)
    queries, rounds, _ = machine.match(machine.cold, ids_of(path), 0, 0, [True])
    assert queries.c[0].matched == len(path) > 128
    assert queries.locations(0) == machine.twin.held(ids_of(path), 0, 0)[1]
    assert len(rounds) > 1


def test_of_more_equal_keys_than_are_looked_at_none_is_claimed() -> None:
    machine, paths = grown()
    segments = machine.twin.segments()
    path = "c" * 40
    keys = [machine.twin.directory.key(block_id, 0, 0) for block_id in ids_of(path)]
    for i, segment in enumerate(segments[:12]):
        machine.directory.apply(changes_array([SegmentChange(segment.position, keys[0], keys[0], 9, 0, 0, 0)]))
        queries, _, _ = machine.match(machine.pages, ids_of(path), 0, 0, [True])
        assert queries.c[0].matched == 0
        assert len(machine.directory.find(keys[0])) == i + 1
    machine.kernel_insert(ids_of(path), locations_of(path, 99), 0, 0)
    queries, _, _ = machine.match(machine.pages, ids_of(path), 0, 0, [True])
    # What was entered last is looked at first.
    assert queries.c[0].matched == len(path)
    assert paths


def image_bytes(directory: DivergenceDirectory) -> list[bytes]:
    return [directory.image(number).tobytes() for number in range(directory.c.partition_count)]


def test_equal_ids_in_another_window_or_behind_another_prefix_are_not_held() -> None:
    # Engines bring ids of their own: these do not chain.
    first, second, third = ids_of("a" * 64), ids_of("b" * 64), ids_of("c" * 64)
    machine = Machine(SETUP)
    for number, ids in enumerate((first + first, second + third)):
        locations = locations_of("a" * len(ids), number)
        status, _, records = machine.kernel_insert(ids, locations, 0, 0)
        assert status == lib.SARP_OK
        machine.twin.insert_at(ids, locations, 0, 0, [position for position, _ in records])
    machine.damaged = True  # the dict knows ids alone
    machine.oracle.insert(first * 3, locations_of("a" * 192, 0), 0, 0)
    machine.oracle.insert(second + third, locations_of("a" * 128, 1), 0, 0)
    assert machine.check(first * 3, 0, 0) == 128
    assert machine.check(first + third, 0, 0) == 64
    assert machine.check(second + third[:9], 0, 0) == 73
    assert machine.check(third, 0, 0) == 0


@pytest.mark.parametrize(("holder", "namespace"), [(1, 0), (0, 1), (2**32 - 1, 2**64 - 1)])
def test_a_record_of_another_holder_or_namespace_under_an_equal_key_is_not_held(holder: int, namespace: int) -> None:
    machine = Machine(SETUP)
    machine.run([insert("a" * 80), Collide(0, "a" * 80, 0, None, 64, 0, (holder, namespace))])
    assert machine.check(ids_of("a" * 80), holder, namespace) == 0
    assert machine.check(ids_of("a" * 80), 0, 0) == 80


@pytest.mark.parametrize("left", [1, 2, 19, 20, 63])
def test_an_entry_may_claim_less_than_its_record(left: int) -> None:
    machine = Machine(SETUP)
    path, branch = "a" * 64, "a" * 10 + "b" * 54
    machine.apply(insert(path))
    machine.apply(insert(branch, 1))
    machine.settle()
    entries = machine.directory.image(0).copy()
    for entry in entries:
        d = int(entry["word1"]) >> 12 & 63
        entry["word1"] = int(entry["word1"]) & ~(63 << 18) | (max(left, d + 1) - 1) << 18
    parts = machine._empty_partitions()
    parts["entries"], parts["blocks"] = 2, left + max(left, 11) - 10
    machine.directory = machine._new_directory(machine.slots)
    machine._start(machine.directory, parts)
    machine.directory.load(0, entries)
    for held in machine.twin.directory._entries.values():
        for entry in held:
            entry.n = max(left, entry.d + 1)
    machine.damaged = True  # shorter than the dict
    for each in (path, branch, path[:30], branch[:5]):
        assert machine.check(ids_of(each), 0, 0) == min(len(each), max(left, 11) if "b" in each else left)
    machine.run([insert(path, 2), insert(branch, 3), Query(path, 0, 0), Query(branch, 0, 0), Replay(0, 2)])


def test_a_full_directory_refuses_an_insertion_whole() -> None:
    machine = Machine(SETUP)
    directory = DivergenceDirectory(SECRET, 30 * fmt.PAGE)
    directory.start_empty()
    directory.base.add_slot(0, 1)
    machine.directory = directory
    rng = random.Random(1)
    number = 0
    while True:
        path = "".join(rng.choice("abc") for _ in range(rng.randrange(1, 200)))
        before = image_bytes(directory)
        buffer = machine.gatherer.buffer
        state = buffer.records, buffer.pages, buffer.next_sequence, directory.bytes
        status, query, records = machine.kernel_insert(ids_of(path), locations_of(path, number), 0, 0)
        number += 1
        if status == lib.SARP_NO_ROOM:
            machine.settle()
        if status in (lib.SARP_NO_ROOM, lib.SARP_FULL):
            assert not records
            assert image_bytes(directory) == before
        if status == lib.SARP_FULL:
            assert (buffer.records, buffer.pages, buffer.next_sequence, directory.bytes) == state
            break
        assert status in (lib.SARP_OK, lib.SARP_NO_ROOM)
    assert directory.entries > 500
    assert query.matched < len(path)
    # What is held is no insertion.
    held = ids_of(path)[: query.matched]
    assert machine.kernel_insert(held, locations_of(path, 0)[: query.matched], 0, 0)[0] == lib.SARP_OK


# Hostile pages: checksums hold, fields say anything


VALUES = {"n": 1, "d": 1, "dp": 1, "length": 2, "header_units": 1, "window": 4, "type": 1, "flags": 1, "holder": 4}
VALUES |= {"namespace": 8, "parent_key": 8, "supersedes": 8}


class Hostile:
    """A log page of a machine, changed at will, and entries that lead anywhere into it."""

    def __init__(self) -> None:
        self.machine, self.paths = grown(20)
        self.pages = {}
        log = self.machine.log[1]
        for at in range(fmt.LOG_HEADER_BYTES, len(log), fmt.PAGE):
            self.pages[at // fmt.PAGE] = bytes(log[at : at + fmt.PAGE])

    def changed(self, rng: random.Random) -> dict[int, bytes]:
        out = {}
        for number, page in self.pages.items():
            copy = bytearray(page)
            places = starts(page)
            for _ in range(rng.randrange(4)):
                at = rng.choice(places) if rng.random() < 0.8 else rng.randrange(64) * 64
                for name in rng.sample(sorted(VALUES), rng.randrange(1, 3)):
                    size = VALUES[name]
                    value = rng.choice([0, 1, 2, 3, 63, 64, 65, 128, 255, rng.getrandbits(8 * size), 2046, 2047, 4096])
                    put(copy, at, **{name: value & (256**size - 1)})
                if rng.random() < 0.3:  # a segment that is right in itself
                    n = rng.randrange(1, 65)
                    length = 128 + 30 * n
                    d = rng.randrange(n)
                    put(copy, at, n=n, d=d, length=length, type=1, header_units=2, dp=rng.randrange(64))
                seal(copy, at, UUID, fmt.position(1, number * fmt.PAGE + at))
            out[number] = bytes(copy)
        return out

    def directory(self, rng: random.Random) -> DivergenceDirectory:
        """The machine's, with entries that name any unit of any page with any n, d and dp, under the paths' keys."""
        directory = DivergenceDirectory(SECRET, 1 << 20, rng.choice([0, FEATURES]))
        directory.start_empty()
        directory.base.add_slot(0, 1)
        directory.apply(changes_array([self.machine.twin.directory.change(s) for s in self.machine.twin.segments()]))
        changes = []
        for _ in range(rng.randrange(40)):
            ids = ids_of(rng.choice(self.paths))
            block = rng.randrange(len(ids))
            keys = [self.machine.twin.directory.key(ids[b], 0, 0) for b in (block, block // 64 * 64)]
            units = rng.choice(sorted(self.pages)) * 64 + rng.randrange(64)
            d = block % 64 if rng.random() < 0.8 else rng.randrange(64)
            n = rng.randrange(d + 1, 65)
            changes.append(SegmentChange(1 << 24 | units, *keys, n, d, rng.randrange(64), 0))
        directory.apply(changes_array(changes))
        return directory


@both_paths
def test_hostile_pages_are_read_within_their_bounds(features: int) -> None:
    hostile = Hostile()
    rng = random.Random(features)
    for _ in range(150):
        directory, changed = hostile.directory(rng), hostile.changed(rng)
        pages = Pages(UUID, 14, 0, features)
        # Memory of its own for each page, so that a sanitizer sees one byte too many.
        memory = {number: ffi.new("uint8_t[]", page) for number, page in changed.items()}
        needs = Needs()
        with pages.hold({number: memoryview(ffi.buffer(data)) for number, data in memory.items()}):
            for _ in range(6):
                path = rng.choice(hostile.paths)
                ids = ids_of(path[: rng.randrange(len(path)) + 1])
                queries = KernelQueries(ids, 0, 0, 14, [False, True])
                needs.clear()
                left = lib.sarp_match(directory.c, pages.c, queries.c, 2, needs.c)
                assert not left or set(needs.pages) - set(changed)
                for query in queries.c:
                    assert query.status != lib.SARP_OK or query.matched <= len(ids)
                bounds = ffi.new("uint32_t[2]")
                lib.sarp_estimate(directory.c, queries.c, bounds, bounds + 1)
                assert bounds[0] <= bounds[1] <= len(ids)


@both_paths
def test_hostile_pages_under_an_insertion(features: int) -> None:
    hostile = Hostile()
    rng = random.Random(features + 100)
    for _ in range(60):
        machine = Machine(SETUP)
        machine.directory = hostile.directory(rng)
        machine.pages.c.features = features
        # What is gathering is a second file; the first is hostile.
        machine.pages.remove_range(machine.gatherer.buffer.first_key)
        machine.end.file_number = 1
        machine._begin_writing()
        assert machine.slots == {0: 1, 1: 2}
        machine.log[1] = bytearray(fmt.LOG_HEADER_BYTES) + b"".join(hostile.changed(rng).values())
        for number in range(5):
            path = rng.choice(hostile.paths) + rng.choice("abc") * rng.randrange(50)
            ids, locations = ids_of(path), locations_of(path, number)
            status, query, _ = machine.kernel_insert(ids, locations, 0, 0)
            assert status in (lib.SARP_OK, lib.SARP_NO_ROOM)
            assert query.matched <= len(ids)
        found = machine.gatherer.freeze(0)
        machine.pending.append(found)
        machine._release()
        scanned = machine.scan_file(2, 0)
        assert not len(scanned.damaged)
        assert np.all(scanned.commits["flags"] & lib.SARP_COMMIT_COMPLETE)


@deterministic(100)
@given(st.integers(0, 2**32))
def test_entries_that_name_files_and_pages_that_are_not_there(seed: int) -> None:
    hostile = _hostile()
    rng = random.Random(seed)
    directory = hostile.directory(rng)
    directory.base.add_slot(5, 77)
    directory.base.add_slot(6, 78)
    ids = ids_of(rng.choice(hostile.paths))
    keys = [hostile.machine.twin.directory.key(ids[b], 0, 0) for b in (len(ids) - 1, (len(ids) - 1) // 64 * 64)]
    d = (len(ids) - 1) % 64
    changes = [SegmentChange(file << 24 | rng.getrandbits(24), *keys, 64, d, 0, 0) for file in (77, 78)]
    directory.apply(changes_array(changes))
    # The slot of a file that went away since is free.
    directory.base.drop_slot(6)
    pages = Pages(UUID, 14, 0)
    needs = Needs()
    queries = KernelQueries(ids, 0, 0, 14, [True])
    held = {number: memoryview(page) for number, page in hostile.pages.items()}
    for _ in range(3):
        needs.clear()
        with pages.hold(held):
            left = lib.sarp_match(directory.c, pages.c, queries.c, 1, needs.c)
        if not left:
            break
        held |= dict.fromkeys(needs.pages)
    assert queries.c[0].status == lib.SARP_OK
    assert queries.c[0].matched == len(ids)
    assert {fmt.position_file(r) for r in needs.damaged} <= {0, 5, 6}


_HOSTILE: list[Hostile] = []


def _hostile() -> Hostile:
    if not _HOSTILE:
        _HOSTILE.append(Hostile())
    return _HOSTILE[0]
