"""Recency and eviction of the directory of posting lists: by record, all postings of one or none, and true answers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from effort import examples
from eviction_model import NONE, PROBATION, TOP, depth_of, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from postings_machine import PostingsMachine
from postings_views import SIZE, Setup
from strategies import ids_of
from test_postings_kernel import CUT, grown, lows

from sarpstore import _format as fmt
from sarpstore._directory import LEVELS, Evicted, Recency, Threshold
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

Path = tuple[tuple[bytes, ...], int, int]
SETUPS = [
    Setup(refine_at=4, prune_at=1),
    Setup(refine_at=4, prune_at=2, lows=lows(("a", 1 << 60, 7), ("ab", 0, 1)), file_pages=300),
]


class Model:
    """A machine and the level of each record, by position."""

    def __init__(self, setup: Setup) -> None:
        self.machine = PostingsMachine(setup)
        self.levels: dict[int, int] = {}
        self.machine.directory.base.keep_recency(SIZE)

    def touch(self, path: Path) -> None:
        for window, proof in enumerate(self.machine.twin.match(*path).proofs):
            self.levels[proof.position] = max(self.levels[proof.position], TOP - depth_of(window))

    def match(self, path: Path) -> int:
        """What kernel and twin answer; the kernel's answer touches, and so does the model."""
        queries, _, _ = self.machine.match(self.machine.pages, *path, [False])
        self.touch(path)
        assert queries.c[0].matched == self.machine.twin.match(*path).blocks
        return int(queries.c[0].matched)

    def insert(self, text: str, number: int) -> None:
        self.touch((ids_of(text), 0, 0))
        written = self.machine.insert(text, number)
        for segment in written.segments if written else ():
            self.levels[segment.position] = PROBATION - depth_of(segment.window)
            if segment.supersedes:
                self.levels[segment.position] = self.levels.pop(segment.supersedes)

    def tick(self) -> None:
        directory = self.machine.directory
        sweep(directory, lambda begin: directory.age(begin, 1))
        directory.base.tick()
        self.levels = {position: max(1, level - 1) for position, level in self.levels.items()}

    def supports(self) -> list[tuple[int, int]]:
        """(a record, one that it may stand on) as far as memory tells: by position."""
        pairs = []
        for members in self.machine.twin.directory.lists.values():
            first = [(value, position, p) for (value, position), p in members.items() if p.point == 0]
            for value, position, p in first:
                behind = 64 - 8 * min(8, p.d // 2)
                pairs += [
                    (position, other)
                    for before, other, q in first
                    if q.d < p.d <= q.n and value >> behind == before >> behind
                ]
        return pairs

    def settle(self) -> None:
        """Counting and evicting lift what is colder than what stands on it."""
        supports, before = self.supports(), {}
        while before != self.levels:
            before = dict(self.levels)
            for position, other in supports:
                self.levels[other] = max(self.levels[other], self.levels[position])

    def going(self, threshold: Threshold) -> set[int]:
        """The records that an eviction takes: what it stands on never goes without it."""
        self.settle()
        supports, going, before = self.supports(), set[int](), None
        for position, level in self.levels.items():
            if level < threshold.level or (level == threshold.level and position >> 24 >= threshold.file_number):
                going.add(position)
        while before != len(going):
            before = len(going)
            going |= {position for position, other in supports if other in going}
        return going

    def evict(self, threshold: Threshold, partitions: int = 1, between: Callable[[], None] = lambda: None) -> Evicted:
        """Evict, and let the twin follow; what is left must be whole."""
        directory, twin, evicted = self.machine.directory, self.machine.twin, Evicted()

        def step(begin: Any) -> Any:
            cursor = directory.evict(begin, partitions, threshold, evicted)
            between()
            return cursor

        before = self.elements()
        sweep(directory, step)
        after = self.elements()
        gone = {element[2] for element in before - after if element[2]}
        assert not {element[2] for element in after} & gone, "all postings of a record, or none"
        for members in twin.directory.lists.values():
            for each in [e for e in members if e[1] in gone]:
                del members[each]
        twin.directory.lists = {key: members for key, members in twin.directory.lists.items() if members}
        # Of a list that was emptied the state may stay, where it ends a partition.
        states = {element[0] for element in after if not element[2]}
        assert twin.directory.states.keys() & twin.directory.lists.keys() <= states
        for key in twin.directory.states.keys() - states:
            del twin.directory.states[key], twin.directory.state_points[key]
        self.machine.check_directory()
        return evicted

    def elements(self) -> set[tuple[int, ...]]:
        return self.machine.elements()

    def kernel_levels(self) -> dict[int, int]:
        """The level of each posting at point 0, by its record's position."""
        directory, out = self.machine.directory, {}
        for number in range(len(directory.partitions)):
            for word0, word1, _ in directory.image(number).tolist():
                if word1 >> 24 and not word0 >> 1 & 7:
                    out[self.machine.position_of(word1 >> 24)] = ((word1 >> 1) - directory.base.c.clock) % LEVELS
        return out


@pytest.mark.parametrize("setup", SETUPS, ids=range(len(SETUPS)))
@settings(max_examples=examples(15))
@given(st.integers(0, 2**32))
def test_levels_and_evictions_follow_the_model(setup: Setup, seed: int) -> None:
    rng, model, known = random.Random(seed), Model(setup), [""]
    for number in range(40):
        kind = rng.random()
        if kind < 0.6:
            known.append(grown(rng, known))
            model.insert(known[-1], number)
        elif kind < 0.75:
            model.match((ids_of(rng.choice(known)), 0, 0))
        elif kind < 0.9:
            model.tick()
        else:
            evict_some(model, rng)
        assert model.kernel_levels() == model.levels
    for path in model.machine.queries:
        model.match(path)


def evict_some(model: Model, rng: random.Random) -> None:
    threshold = Threshold(rng.randrange(8, 26), rng.choice([NONE, 1, 2]))
    going = model.going(threshold)
    blocks = {p: model.machine.twin.records[p].n - model.machine.twin.records[p].d for p in going}
    evicted = model.evict(threshold, rng.randrange(1, 4))
    assert (evicted.records, evicted.blocks) == (len(going), sum(blocks.values()))
    assert not {element[2] for element in model.elements()} & going
    model.levels = {position: level for position, level in model.levels.items() if position not in going}
    for path in model.machine.queries:
        model.match(path)


@pytest.mark.parametrize("lowest", [lows(), lows(*(("a", value << 56, 0) for value in range(0, 256, 2)))])
@pytest.mark.parametrize("held", [1, 2, 9, 16, 17, 40, 63])
def test_a_record_goes_no_sooner_than_what_stands_on_it(held: int, lowest: tuple[tuple[int, int, int], ...]) -> None:
    """What a removal leaves of the one that stays is held by the other alone."""
    model = Model(Setup(lows=lowest))
    paths = ["a" * held + symbol * (64 - held) for symbol in "abc"]
    for number, path in enumerate(paths):
        model.insert(path, number)
    first, second, third = sorted(model.levels)
    for _ in range(3):
        model.tick()
        model.match((ids_of(paths[2]), 0, 0))
    assert model.levels[first] == model.levels[second] < model.levels[third]
    level = model.levels[third]
    assert model.evict(Threshold(level, NONE)).records == 1
    assert {element[2] for element in model.elements() if element[2]} == {first, third}
    assert model.kernel_levels() == {first: level, third: level}


def test_of_one_level_what_stands_on_a_record_of_a_newer_file_goes_with_it() -> None:
    model = Model(Setup(file_pages=260, commit_pages=4))
    first, second = "a" * 20, "a" * 9 + "b" * 55
    for number, path in enumerate([first, second]):
        model.insert(path, number)
    (child,) = {position for position, other in model.supports()}
    number = 2
    while max(model.levels) >> 24 == 1:
        model.insert(f"{number:09b}".replace("0", "b").replace("1", "c") * 7, number)
        model.machine.freeze()
        number += 1
    model.insert(first * 2, number)
    for path in (first * 2, second):
        model.match((ids_of(path), 0, 0))
    ((_, parent),) = [pair for pair in model.supports() if pair[0] == child]
    assert (child >> 24, parent >> 24) == (1, 2)
    assert model.levels[child] == model.levels[parent] == TOP
    going = model.going(Threshold(TOP, 2))
    model.evict(Threshold(TOP, 2))
    assert going >= {child, parent}
    assert not {element[2] for element in model.elements()} & going
    model.match((ids_of(second), 0, 0))


def test_what_is_being_evicted_is_posted_nowhere_any_more() -> None:
    """Lists that grow between the sweeps' calls do not bring back a record that is half gone."""
    setup = Setup(refine_at=4, prune_at=1, lows=lows(*((symbol * 3, 0, 0) for symbol in "abc")))
    for seed in range(12):
        rng, model, known = random.Random(seed), Model(setup), [""]
        for number in range(12):
            known.append(grown(rng, known))
            model.insert(known[-1], number)
        for _ in range(PROBATION):
            model.tick()
        old = set(model.levels)
        directory, evicted = model.machine.directory, Evicted()

        def step(
            begin: Any,
            rng: random.Random = rng,
            known: list[str] = known,
            model: Model = model,
            evicted: Evicted = evicted,
        ) -> Any:
            cursor = model.machine.directory.evict(begin, 1, Threshold(2, NONE), evicted)
            known.append(grown(rng, known))
            ids, locations = ids_of(known[-1]), [bytes(SIZE)] * len(known[-1])
            assert model.machine.kernel_insert(ids, locations)[0] == lib.SARP_OK
            return cursor

        sweep(directory, step)
        assert directory.c.condemned == ffi.NULL
        left = model.elements()
        posted_first = {e[2] for e in left if e[2] and e[5] == 0}
        assert {e[2] for e in left if e[2]} == posted_first
        assert evicted.records > 0
        assert len(posted_first & old) <= len(old) - evicted.records


def test_more_records_than_one_pair_of_sweeps_takes() -> None:
    model = Model(Setup(lows=CUT))
    for number in range(160):
        model.insert(f"{number:08b}".replace("0", "a").replace("1", "b") * 4 + "c" * 60, number)
    directory, records = model.machine.directory, len(model.levels)
    directory._condemned.size = 1 << (2 * int(directory.partitions["entries"].max()) - 1).bit_length()
    rounds = 0

    def count() -> None:
        nonlocal rounds
        rounds += directory.c.condemned == ffi.NULL and not directory._condemned.count

    evicted = model.evict(Threshold(LEVELS, NONE), 1, count)
    assert evicted.records == records
    assert records > directory._condemned.size // 2
    assert rounds > 1
    assert not any(element[2] for element in model.elements())


def test_sums_are_of_records_not_of_postings() -> None:
    model = Model(SETUPS[1])
    for number in range(30):
        model.insert("ab" * 20 + "ab"[number % 2] * (number + 2), number)
    model.settle()
    sizes: dict[tuple[int, int], int] = {}
    for position, level in model.levels.items():
        size = -(-(128 + model.machine.twin.records[position].n * (16 + SIZE)) // fmt.UNIT) * fmt.UNIT
        sizes[level, position >> 24] = sizes.get((level, position >> 24), 0) + size
    directory = model.machine.directory
    for level in range(LEVELS):
        found = Recency(level)
        sweep(directory, lambda begin, out=found: directory.recency(begin, 2, out))
        assert found.levels[level] == sum(size for (own, _), size in sizes.items() if own == level)
        assert found.by_file(directory.base.slot_files) == {
            number: size for (own, number), size in sizes.items() if own == level
        }
