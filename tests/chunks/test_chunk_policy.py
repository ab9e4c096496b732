"""The chunk policy: what is kept, where it goes and what goes for it, with sizes in place of payloads."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sarpstore
from sarpstore import ChunkEvicted, ChunkPlaced, ChunkPolicy
from sarpstore._chunks import policy as policy_module
from sarpstore._chunks.policy import Extent

BYTES = 1000


def key(number):
    return number.to_bytes(4, "little")


class Disk:
    """What the steps of a policy leave on a disk."""

    def __init__(self):
        self.regions = {}
        self.places = {}

    def take(self, step):
        if isinstance(step, ChunkEvicted):
            gone = self.regions.pop(step.region)
            for other in gone:
                self.places.pop(other, None)
            return
        assert isinstance(step, ChunkPlaced)
        for extent in step.extents:
            taken = self.regions.setdefault(extent.region, {})
            for other in taken.values():
                assert extent.offset >= other.offset + other.bytes, "two payloads in one place"
            assert extent.offset + extent.bytes <= BYTES
            taken[step.key] = extent
        self.places[step.key] = step.extents


def check(policy, disk):
    assert len(policy.regions) <= policy.regions_max
    assert set(disk.places) == set(policy._held)
    assert set(disk.regions) == set(policy.regions)
    for region in policy.regions.values():
        assert region.used <= policy.region_bytes
        assert set(region.keys) == {
            k for k, extents in disk.places.items() if region.number in {e.region for e in extents}
        }
        load = sum(policy._weights.get(k, 0.0) * policy._held[k][0] for k in region.keys)
        assert math.isclose(region.load, load, rel_tol=1e-6, abs_tol=1e-6 * policy._unit * BYTES)
    assert policy.opened == {number for number, region in policy.regions.items() if region.open}
    closed = [region for region in policy.regions.values() if not region.open]
    if policy.regions:
        assert policy._worth(policy._victim()) == min(map(policy._worth, closed or policy.regions.values()))
    assert len(policy._closed) <= 4 * len(policy.regions) + 65
    assert len(policy._ghosts) <= max(policy_module._REMEMBERED_MIN, 8 * len(policy))


requests = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 2500)), max_size=150)


@given(requests, st.integers(2, 12), st.booleans(), st.booleans())
def test_what_is_held_stands_whole_in_regions_that_are_there(asked, regions_max, admission, oldest_first):
    policy, disk, sizes = ChunkPolicy(regions_max, BYTES, admission=admission, oldest_first=oldest_first), Disk(), {}
    for number, size in asked:
        size = sizes.setdefault(number, size)
        held = policy.look(key(number))
        assert held == (key(number) in disk.places)
        if not held and policy.admits(key(number), size):
            for step in policy.put(key(number), size):
                disk.take(step)
            assert policy.again_bytes <= 0.07 * policy.put_bytes
        elif held and size % 7 == 0:
            policy.drop(key(number))
            for extent in disk.places.pop(key(number)):
                del disk.regions[extent.region][key(number)]
        check(policy, disk)


@given(requests)
def test_what_is_restored_decides_as_before(asked):
    policy, disk = ChunkPolicy(5, BYTES), Disk()
    for number, size in asked:
        if not policy.look(key(number)) and policy.admits(key(number), size):
            for step in policy.put(key(number), size):
                disk.take(step)
    again = ChunkPolicy(5, BYTES)
    for held, extents in disk.places.items():
        again.restore(held, extents, policy.weight(held))
    for held in disk.places:
        assert math.isclose(again.weight(held), policy.weight(held))
    for number, region in again.regions.items():
        assert region.keys.keys() == policy.regions[number].keys.keys()
        assert region.used <= policy.regions[number].used
    if len(policy.regions) == 5 and all(region.keys for region in policy.regions.values()):
        for number in policy.opened:
            policy._close(policy.regions[number])
        assert again._victim().number == policy._victim().number


def test_one_that_was_asked_for_once_does_not_displace_any_in_a_full_store():
    policy = ChunkPolicy(2, BYTES)
    for number in range(2):
        policy.look(key(number))
        assert policy.admits(key(number), BYTES)
        list(policy.put(key(number), BYTES))
    policy.look(key(7))
    assert not policy.admits(key(7), BYTES)
    policy.look(key(7))
    assert policy.admits(key(7), BYTES)


def test_the_lightest_region_goes_and_its_heaviest_payload_is_written_again():
    policy = ChunkPolicy(3, BYTES)
    for number in range(30):
        policy.look(key(number))
        list(policy.put(key(number), 100))
    for number in (3, 10, 11, 12, 20, 21, 22, 23):
        for _ in range(5):
            policy.look(key(number))
    for _ in range(9):
        policy.look(key(99))
    steps = list(policy.put(key(99), 300))
    assert steps[0] == ChunkEvicted(1, tuple(key(n) for n in range(10)), (key(3),))
    assert [step.key for step in steps[1:]] == [key(99), key(3)]
    assert [step.again for step in steps[1:]] == [False, True]


def test_one_that_is_larger_than_a_region_spans_several_and_no_other_does():
    policy = ChunkPolicy(8, BYTES)
    policy.look(key(1))
    [placed] = policy.put(key(1), 2300)
    assert [(e.offset, e.bytes) for e in placed.extents] == [(0, BYTES), (0, BYTES), (0, 300)]
    assert len({e.region for e in placed.extents}) == 3
    [placed] = policy.put(key(2), 800)
    assert [(e.offset, e.bytes) for e in placed.extents] == [(0, 800)]
    [placed] = policy.put(key(3), 650)
    assert [(e.offset, e.bytes) for e in placed.extents] == [(300, 650)]


def test_what_can_never_fit_is_not_admitted():
    policy = ChunkPolicy(4, BYTES)
    assert not policy.admits(key(1), 3 * BYTES + 1)
    assert policy.admits(key(1), 3 * BYTES)
    assert not policy.admits(key(1), 0)


def test_weights_decay_by_half_and_survive_being_scaled_down(monkeypatch):
    policy = ChunkPolicy(2, BYTES)
    policy.look(key(0))
    for number in range(1, policy_module._HALF_LIFE * policy_module._HELD_MIN + 1):
        policy.look(key(1 + number % 50))
    assert math.isclose(policy.weight(key(0)), 0.5, rel_tol=1e-6)
    monkeypatch.setattr(policy_module, "_UNIT_MAX", 1.5)
    list(policy.put(key(0), 10))
    before = policy.weight(key(0))
    policy.look(key(1))
    assert policy._unit == 1.0
    assert math.isclose(policy.weight(key(0)), before, rel_tol=1e-3)
    check_load = policy.regions[1].load
    assert math.isclose(check_load, policy.weight(key(0)) * 10)


def test_a_million_keys_that_come_once_are_forgotten():
    policy = ChunkPolicy(2, BYTES)
    random_keys = random.Random(1)
    for _ in range(20_000):
        policy.look(random_keys.randbytes(16))
    assert len(policy._weights) <= policy_module._REMEMBERED_MIN


def test_an_extent_says_where():
    assert Extent(1, 2, 3) == Extent(region=1, offset=2, bytes=3)


@pytest.mark.parametrize(("regions", "size"), [(1, 10), (2, 0)])
def test_nonsense_is_refused(regions, size):
    with pytest.raises(sarpstore.OptionError):
        ChunkPolicy(regions, size)
