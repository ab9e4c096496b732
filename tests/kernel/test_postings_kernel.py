"""The directory of posting lists in the kernel, its twin and a dict: the same operations, compared after each."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_views import SECRET, KernelQueries, Needs
from postings_machine import PostingsMachine
from postings_views import SIZE, Setup
from strategies import TENANTS, ids_of, locations_of

from sarpstore import _format as fmt
from sarpstore._kernel import FEATURES, ffi, lib
from sarpstore._kernel.twin_hash import directory_key

PATHS_MAX = 200


def lows(*places: tuple[str, int, int]) -> tuple[tuple[int, int, int], ...]:
    """Partitions that begin within the lists of these paths' last blocks (path, filter, reference)."""
    keys = [(directory_key(ids_of(path)[-1], 0, 0, SECRET), value, ref) for path, value, ref in places]
    return ((0, 0, 0), *sorted(keys))


# Lists of the first blocks of "a…" and "b…", and at the next points, lie in several partitions.
CUT = lows(
    ("a", 1 << 63, 0), ("a", 1 << 62, 5), ("b", 0, 0), ("b", 3 << 62, 0), ("a" * 9, 1 << 62, 0), ("a" * 17, 1 << 63, 0)
)
SETUPS = [
    Setup(read_cap=1, refine_at=2, prune_at=1),
    Setup(read_cap=2, refine_at=3, prune_at=2, lows=CUT, commit_pages=9),
    Setup(read_cap=4, refine_at=5, prune_at=3, tie_cap=1, lows=CUT),
    Setup(read_cap=3, refine_at=1, prune_at=3, tie_cap=2),
    Setup(read_cap=64, refine_at=4, prune_at=0, lows=CUT),
    Setup(read_cap=4, refine_at=16, prune_at=3, file_pages=260),
]


def grown(rng: random.Random, known: list[str]) -> str:
    """A path that leaves an earlier one somewhere, often where it ended."""
    parent = rng.choice(known)
    path = parent if rng.random() < 0.3 else parent[: rng.randrange(len(parent) + 1)]
    return (path + "".join(rng.choice("ab") * rng.randrange(1, 24) for _ in range(rng.randrange(1, 4))))[:PATHS_MAX]


def step(machine: PostingsMachine, rng: random.Random, known: list[str], number: int, *, damage: bool) -> None:
    """One operation, most of the time an insertion."""
    kind, tenant = rng.random(), rng.choice(TENANTS)
    if kind < 0.7:
        known.append(grown(rng, known))
        machine.insert(known[-1], number, *tenant)
    elif kind < 0.78:
        machine.queries.append((ids_of(grown(rng, known)), *tenant))
    elif kind < 0.82:
        machine.freeze()
    elif kind < 0.86:
        machine.replay(rng.randrange(1000), 1 + rng.randrange(2))
    elif kind < 0.89:
        machine.rebuild()
    elif kind < 0.93:
        machine.checkpoint()
    elif kind < 0.96:
        machine.reopen(rng.randrange(1000), rng.randrange(4))
    elif damage:
        machine.damage(rng.randrange(1000))
    machine.take_images(rng.randrange(3))


def run(setup: Setup, seed: int, count: int, *, damage: bool) -> PostingsMachine:
    print(f"seed {seed} {setup}")  # noqa: T201 - what a failure is repeated with
    rng = random.Random(seed)
    machine, known = PostingsMachine(setup), [""]
    for number in range(count):
        step(machine, rng, known, number, damage=damage)
        machine.check_directory()
        if machine.queries:
            machine.check(*machine.queries[-1])
            machine.check(*rng.choice(machine.queries))
    machine.load_all()
    machine.check_directory()
    return machine


@pytest.mark.parametrize("damage", [False, True], ids=["", "damage"])
@pytest.mark.parametrize("scalar", [False, True], ids=["", "scalar"])
@pytest.mark.parametrize("setup", SETUPS, ids=range(len(SETUPS)))
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_kernel_twin_and_dict_agree(setup: Setup, scalar: bool, damage: bool, seed: int) -> None:
    run(replace(setup, scalar=scalar), seed, 40, damage=damage)


def test_the_workload_reaches_everything() -> None:
    counts = run(SETUPS[2], 1, 120, damage=True).counts
    wanted = {
        "added posting",
        "added expanded",
        "added refined",
        "dropped posting",
        "superseding",
        "hit",
        "miss",
        "lost",
    }
    assert {name for name in wanted if counts[name]} == wanted
    assert run(SETUPS[1], 3, 120, damage=False).counts["no room"]


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_where_all_that_ties_is_read(seed: int) -> None:
    machine = run(Setup(read_cap=64, refine_at=6, prune_at=3), seed, 60, damage=False)
    assert machine.counts["lost"] == 0
    # So no block was counted twice either.
    assert machine.directory.blocks == len(machine.oracle.locations)


SESSIONS = 160
PROMPT = 70


def behind_a_prompt(machine: PostingsMachine, count: int, turns: int, prompt: int = PROMPT) -> None:
    """Sessions behind one prompt that ends inside a window, each going on in its own way, turn after turn."""
    rng = random.Random(count)
    paths = [f"{'a' * prompt}{chr(0x4E00 + i)}" for i in range(count)]
    for turn in range(turns):
        for i, path in enumerate(paths):
            paths[i] = (path + "bcd"[turn % 3] * rng.randrange(1, 12))[:PATHS_MAX]
            machine.insert(paths[i], turn * count + i)
        machine.check_directory()


@pytest.mark.parametrize("prompt", [70, 64 + 47, 63, 64])
def test_many_sessions_behind_one_prompt(prompt: int) -> None:
    cut = lows(*(("a" * n, i << 61, 0) for n in (65, 65 + 32) for i in range(0, 8, 2)))
    machine = PostingsMachine(Setup(lows=cut, commit_pages=512))
    behind_a_prompt(machine, SESSIONS, 2, prompt)
    for query in machine.queries[-40:]:
        machine.check(*query)
    machine.checkpoint()
    behind_a_prompt(machine, 20, 1, prompt)
    machine.reopen(3, 2)
    for query in machine.queries[:40]:
        machine.check(*query)
    machine.load_all()
    machine.check_directory()


def test_a_list_of_thousands_spans_partitions_and_still_answers() -> None:
    """The kernel alone: all sessions are in the list of the prompt's last point, in many partitions."""
    machine = PostingsMachine(Setup(commit_pages=1024, directory_bytes=4 << 20))
    count = 4000
    paths = [f"{'a' * PROMPT}{chr(0x4E00 + i)}{'b' * (i % 30)}" for i in range(count)]
    for number, path in enumerate(paths):
        status, _, _ = machine.kernel_insert(ids_of(path), locations_of(path, number))
        if status == lib.SARP_NO_ROOM:
            machine.settle()
            status, _, _ = machine.kernel_insert(ids_of(path), locations_of(path, number))
        assert status == lib.SARP_OK
    machine.settle()
    elements = machine.elements()
    assert len(machine.directory.partitions) > 4
    key = directory_key(ids_of("a" * 65)[-1], 0, 0, SECRET)
    listed = machine.directory.find(key)
    assert len(listed) > count // 2
    assert len({int(n) for n in machine.directory.partition_of(machine.scan_log()[-50:])}) > 1
    reads = lost = 0
    for path in paths[::37]:
        queries, rounds, _ = machine.match(machine.cold, ids_of(path), 0, 0, [True])
        assert PROMPT - 1 <= queries.c[0].matched <= len(path)
        assert all(location[8:] == bytes(SIZE - 8) for location in queries.locations(0))
        lost += len(path) - queries.c[0].matched
        reads += sum(map(len, rounds))
    assert lost <= 20
    assert reads <= 5 * len(paths[::37])
    # The log says the same.
    machine.rebuild_alone()
    assert machine.elements() == elements


# What an insertion refuses it leaves as it was


def state_of(machine: PostingsMachine) -> tuple[object, ...]:
    directory, buffer = machine.directory, machine.gatherer.buffer
    images = [directory.image(n).tobytes() for n in range(directory.c.partition_count)]
    counts = directory.entries_all, directory.blocks, directory.bytes, int(directory.c.states)
    return images, counts, buffer.records, buffer.pages, buffer.next_sequence, int(buffer.c.changes)


@pytest.mark.parametrize("setup", [Setup(directory_bytes=160 << 10), Setup(directory_bytes=160 << 10, refine_at=4)])
def test_a_full_directory_refuses_an_insertion_whole(setup: Setup) -> None:
    machine = PostingsMachine(replace(setup, commit_pages=1024))
    rng, known = random.Random(1), [""]
    full = rooms = number = 0
    while full < 5:
        path = grown(rng, known)
        known.append(path)
        before = state_of(machine)
        status, query, records = machine.kernel_insert(ids_of(path), locations_of(path, number))
        number += 1
        if status in (lib.SARP_NO_ROOM, lib.SARP_FULL):
            assert not records
            assert state_of(machine) == before
        if status == lib.SARP_NO_ROOM:
            rooms += 1
            machine.settle()
        full += status == lib.SARP_FULL
        assert status in (lib.SARP_OK, lib.SARP_NO_ROOM, lib.SARP_FULL)
    assert machine.directory.entries > 500
    held = ids_of(path)[: query.matched]
    assert machine.kernel_insert(held, locations_of(path, 0)[: query.matched])[0] == lib.SARP_OK
    assert "directory_bytes_max" in str(machine.directory.full_error())


def test_a_commit_is_full_where_its_summary_would_be() -> None:
    machine = PostingsMachine(Setup())
    machine.insert("a" * 30)
    buffer = machine.gatherer.buffer
    buffer.c.change_limit = buffer.c.changes + 1
    before = state_of(machine)
    path = "b" * 100
    assert machine.kernel_insert(ids_of(path), locations_of(path, 1))[0] == lib.SARP_NO_ROOM
    assert state_of(machine) == before
    buffer.c.change_limit += 1
    assert machine.kernel_insert(ids_of(path), locations_of(path, 1))[0] == lib.SARP_OK
    assert buffer.c.changes == buffer.c.change_limit


# What does not chain, and what is asked for


def test_ids_that_repeat_make_one_list_of_many_and_no_false_claim() -> None:
    """An engine's own ids need not chain: the lists of all points are one then."""
    first, second = ids_of("a"), ids_of("b")
    machine = PostingsMachine(Setup(refine_at=3, prune_at=1, commit_pages=1024))
    for number in range(1, 40):
        for ids in (first * (number * 5), first * number + second * number, second * 3 + first * (number * 3)):
            status, query, _ = machine.kernel_insert(ids, locations_of("x" * len(ids), number))
            assert status == lib.SARP_OK
            assert query.matched <= len(ids)
        machine.elements()
    queries, _, _ = machine.match(machine.pages, first * 200, 0, 0, [True])
    assert queries.c[0].matched <= 195
    queries, _, _ = machine.match(machine.pages, ids_of("c") + first * 200, 0, 0, [True])
    assert queries.c[0].matched == 0
    elements = machine.elements()
    machine.settle()
    machine.rebuild_alone()
    assert machine.elements() == elements


@pytest.mark.parametrize("limit", [1, 2])
def test_what_does_not_fit_in_the_needs_is_asked_for_again(limit: int) -> None:
    machine = PostingsMachine(Setup())
    path = "a" * 200
    machine.insert(path)
    machine.settle()
    machine._needs = Needs(limit)
    queries, rounds, _ = machine.match(machine.cold, ids_of(path), 0, 0, [True])
    assert queries.c[0].matched == 200
    assert len(rounds) > 1


def test_a_batch_answers_only_what_is_open() -> None:
    machine = PostingsMachine(Setup())
    machine.insert("a" * 100)
    data = ffi.new("uint8_t[]", b"".join(ids_of("a" * 100)))
    queries = ffi.new("sarp_query[]", 3)
    for i, query in enumerate(queries):
        query.ids, query.blocks, query.status = data, 30 * i, lib.SARP_NEED if i != 1 else lib.SARP_OK
        query.matched = 7

    def ask() -> int:
        return lib.SARP_NEED if machine.directory.match(machine.pages.c, queries, 3, machine._needs.c) else lib.SARP_OK

    machine.decide(machine.pages, ask)
    assert [q.matched for q in queries] == [0, 7, 60]
    nothing = KernelQueries((), 0, 0, SIZE, [False])
    assert machine.directory.estimate(nothing.c) == (0, 0)


def test_equal_ids_in_another_window_or_of_another_tenant_are_not_held() -> None:
    first, second, third = ids_of("a" * 64), ids_of("b" * 64), ids_of("c" * 64)
    machine = PostingsMachine(Setup())
    for number, ids in enumerate((first + first, second + third)):
        assert machine.kernel_insert(ids, locations_of("x" * 128, number))[0] == lib.SARP_OK
    expected = [(first * 3, 0, 128), (first + third, 0, 64), (second + third[:9], 0, 73), (third, 0, 0), (first, 1, 0)]
    for ids, holder, blocks in expected:
        queries, _, _ = machine.match(machine.pages, ids, holder, 0, [True])
        assert queries.c[0].matched == blocks


@pytest.mark.parametrize("features", sorted({0, FEATURES}))
def test_candidates_are_chosen_the_same_on_both_paths_through_the_cpu(features: int) -> None:
    machine = PostingsMachine(Setup(read_cap=7, tie_cap=90, commit_pages=512, refine_at=255, prune_at=200))
    rng = random.Random(9)
    paths = ["a" * rng.randrange(1, 64) + chr(0x4E00 + i) + "b" * rng.randrange(20) for i in range(150)]
    for number, path in enumerate(paths):
        machine.insert(path, number)
    machine.directory.base.c.features = features
    for path in paths:
        ids = ids_of(path[: rng.randrange(1, len(path) + 1)] + "c")
        queries, _, _ = machine.match(machine.pages, ids, 0, 0, [True])
        found = machine.twin.match(ids)
        assert queries.c[0].matched == found.blocks
        assert machine.position_of(queries.c[0].owner_reference) == found.proofs[-1].position
    assert fmt.WINDOW == 64
