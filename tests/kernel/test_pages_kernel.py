"""Pages in memory: the cache against a model, and which of several copies is read; comparing runs of ids."""

from __future__ import annotations

import random

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_machine import Machine
from kernel_operations import Setup
from kernel_views import UUID, KernelQueries, clear_cache
from strategies import Insert, ids_of

from sarpstore import _format as fmt
from sarpstore._kernel import FEATURES, ffi, lib
from sarpstore._log.pages import Pages

CAPACITIES = [0, 1, 2, 3, 7, 16, 100]
both_paths = pytest.mark.parametrize("features", sorted({0, FEATURES}))


class Clock:
    """Second chance, as the textbook has it: a ring of frames, each with a bit that a hit sets and the hand clears."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.frames: list[int] = []
        self.referenced: list[bool] = []
        self.hand = 0

    def insert(self, key: int) -> None:
        if not self.capacity or key in self.frames:
            return
        if len(self.frames) < self.capacity:
            self.frames.append(key)
            self.referenced.append(False)
            return
        while self.referenced[self.hand]:
            self.referenced[self.hand] = False
            self.hand = (self.hand + 1) % self.capacity
        self.frames[self.hand] = key
        self.hand = (self.hand + 1) % self.capacity

    def find(self, key: int) -> bool:
        if key not in self.frames:
            return False
        self.referenced[self.frames.index(key)] = True
        return True


def page_of(key: int, version: int = 0) -> bytes:
    return key.to_bytes(8, "little") * 256 + version.to_bytes(8, "little") * 256


def new_cache(capacity: int) -> Pages:
    pages = Pages(UUID, 14, capacity * fmt.PAGE)
    assert pages.cache.capacity == capacity
    return pages


def find(pages: Pages, key: int) -> bytes | None:
    found = lib.sarp_cache_find(pages.cache, key)
    return bytes(ffi.buffer(found, fmt.PAGE)) if found != ffi.NULL else None


def home(pages: Pages, key: int) -> int:
    return (key * 0x9E3779B97F4A7C15 & 2**64 - 1) >> 32 & (pages.cache.table_size - 1)


def colliding(pages: Pages, count: int) -> list[int]:
    """Keys of one home in the table, and of the last, so that probing goes round."""
    last = pages.cache.table_size - 1
    return [key for key in range(count * 40 * (last + 1)) if home(pages, key) in (last, last // 2)][:count]


def operations(keys: list[int]) -> st.SearchStrategy[list[tuple[bool, int]]]:
    return st.lists(st.tuples(st.booleans(), st.sampled_from(keys)), max_size=120)


@pytest.mark.parametrize("keys", ["any", "colliding"])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_cache_equals_a_model(capacity: int, keys: str) -> None:
    few = max(4, capacity * 2)
    rng = random.Random(capacity)
    pool = colliding(new_cache(capacity), few) if keys == "colliding" else [rng.getrandbits(34) for _ in range(few)]

    @settings(max_examples=examples(60))
    @given(operations(pool))
    def run(sequence: list[tuple[bool, int]]) -> None:
        pages, model = new_cache(capacity), Clock(capacity)
        hits = misses = 0
        for number, (insert, key) in enumerate(sequence):
            if insert:
                # A page that is there stays as it is, so each version is the one of its insertion.
                new = key not in model.frames
                pages.cache_insert(key, ffi.from_buffer("uint8_t[]", page_of(key)))
                model.insert(key)
                assert not capacity or key in model.frames
                if not new:
                    pages.cache_insert(key, ffi.from_buffer("uint8_t[]", page_of(key, number + 1)))
            else:
                held = model.find(key)
                assert find(pages, key) == (page_of(key) if held else None)
                hits, misses = hits + held, misses + (not held and capacity > 0)
        cache = pages.cache
        assert (cache.hits, cache.misses, pages.cache_hits) == (hits, misses, hits)
        assert pages.cache_bytes == len(model.frames) * fmt.PAGE
        assert [cache.keys[i] for i in range(cache.used)] == model.frames
        assert [bool(cache.referenced[i]) for i in range(cache.used)] == model.referenced
        assert cache.hand == model.hand
        assert sorted(filter(None, ffi.unpack(cache.table, cache.table_size))) == list(range(1, cache.used + 1))
        for key in pool:
            assert find(pages, key) == (page_of(key) if key in model.frames else None)

    run()


def test_many_operations_on_a_cache() -> None:
    rng = random.Random(4)
    pages, model = new_cache(64), Clock(64)
    for _ in range(20_000):
        key = int(rng.expovariate(1 / 60))
        if find(pages, key) is None:
            assert not model.find(key)
            pages.cache_insert(key, ffi.from_buffer("uint8_t[]", page_of(key)))
            model.insert(key)
        else:
            assert model.find(key)
    assert ffi.unpack(pages.cache.keys, 64) == model.frames


# Runs of equal ids


@both_paths
def test_common_run_finds_the_first_difference(features: int) -> None:
    rng = random.Random(6)
    for count in range(65):
        for shift_a, shift_b in ((0, 0), (1, 0), (5, 13), (15, 31)):
            ids = rng.randbytes(16 * count)
            # Exactly as long as they may be read, so that a sanitizer sees one byte too many.
            a, b = ffi.new("uint8_t[]", shift_a + 16 * count), ffi.new("uint8_t[]", shift_b + 16 * count)
            ffi.memmove(a + shift_a, ids, len(ids))
            ffi.memmove(b + shift_b, ids, len(ids))
            assert lib.sarp_common_run(features, a + shift_a, b + shift_b, count) == count
            for block in range(count):
                byte = 16 * block + rng.randrange(16)
                b[shift_b + byte] ^= 1 << rng.randrange(8)
                assert lib.sarp_common_run(features, a + shift_a, b + shift_b, count) == block
                b[shift_b + byte] = ids[byte]


@both_paths
def test_common_run_looks_at_every_bit_of_an_id(features: int) -> None:
    for count in (1, 2, 3):
        for bit in range(128 * count):
            a, b = bytes(16 * count), bytearray(16 * count)
            b[bit // 8] = 1 << bit % 8
            arrays = ffi.from_buffer("uint8_t[]", a), ffi.from_buffer("uint8_t[]", b)
            assert lib.sarp_common_run(features, *arrays, count) == bit // 128


# Where a page is looked for


SETUP = Setup((0,), 14, 4, 64, 4096, scalar=False)
PATH = "a" * 150


def matched(machine: Machine, pages: Pages) -> tuple[int, list[int]]:
    """Blocks matched by what is in memory alone, or -1; and what was found damaged."""
    queries = KernelQueries(ids_of(PATH), 0, 0, 14, [False])
    machine._needs.clear()
    left = lib.sarp_match(machine.directory.c, pages.c, queries.c, 1, machine._needs.c)
    return -1 if left else queries.c[0].matched, machine._needs.damaged


def test_pages_are_taken_from_ranges_then_held_ones_then_the_cache() -> None:
    machine = Machine(SETUP)
    machine.apply(Insert("b" * 200, 0, 0, 0))
    machine.apply(Insert(PATH, 0, 0, 1))
    first_key = machine.gatherer.buffer.first_key
    machine.settle()
    count = len(machine.log[1]) // fmt.PAGE - 2
    good = [machine.page(first_key + i) for i in range(count)]
    keys = [first_key + i for i in range(count)]
    pages = Pages(UUID, 14, 8 * fmt.PAGE)
    assert matched(machine, pages) == (-1, [])
    wanted = machine._needs.pages
    assert len(wanted) == 1
    (wanted_key,) = wanted
    page = good[keys.index(wanted_key)]
    assert page is not None
    bad = bytearray(page)
    for at in range(0, len(bad), 64):
        bad[at + 4] ^= 1
    # In the cache.
    pages.cache_insert(wanted_key, ffi.from_buffer("uint8_t[]", page))
    assert matched(machine, pages) == (150, [])
    # Held: before the cache, also where it could not be read; found among others.
    for others in ([], [-1], [1], [-3, -2, -1, 1, 2], [1, 2, 3, 5], [-3, -2, 9]):
        held = {wanted_key + other: memoryview(page) for other in others}
        for data, result in ((memoryview(bad), 0), (None, 0), (memoryview(page), 150)):
            with pages.hold(held | {wanted_key: data}):
                blocks, damaged = matched(machine, pages)
            # The windows before it are not in memory, or as little of use.
            assert blocks == 150 if result else blocks in (-1, 0)
            assert bool(damaged) == (result == 0)
        with pages.hold(held):
            assert matched(machine, pages) == (150, [])
    # Ranges: before all.
    data = ffi.new("uint8_t[]", bytes(bad) * 3)
    for first in (wanted_key, wanted_key - 1, wanted_key - 2):
        pages.add_range(first + 40, data, 3)
        pages.add_range(first, data, 3)
        with pages.hold({wanted_key: memoryview(page)}):
            assert matched(machine, pages)[1]
        pages.remove_range(first)
        assert matched(machine, pages) == (150, [])
        pages.remove_range(first + 40)
    for first, length in ((wanted_key - 3, 3), (wanted_key + 1, 3), (wanted_key, 0)):
        pages.add_range(first, data, length)
        assert matched(machine, pages) == (150, [])
        pages.remove_range(first)
    clear_cache(pages)
    assert matched(machine, pages) == (-1, [])
