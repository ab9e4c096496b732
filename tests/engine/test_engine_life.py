"""Any life of a store, with removals, counts, eviction, times to live, crashes and concurrent steps, is the model's.

`python -m fuzz.life` lives many more of them.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from life_deeds import Doubt
from life_machine import Difference, live
from life_model import Model, Tree
from life_steps import (
    Call,
    Clear,
    Crash,
    Estimate,
    Fork,
    Insert,
    Match,
    MatchHolders,
    Pour,
    Remove,
    Reopen,
    SetTtl,
    Setup,
    Together,
    Truncate,
    Wait,
    plainer,
    random_setup,
    random_step,
)

from sarpstore import Namespace
from sarpstore import _format as fmt
from sarpstore._directory import Evicted
from sarpstore._engine.lifetimes import Lifetimes
from sarpstore._eviction import Evictor

LIVES = 200
DOMAIN = ("a", 0)

chances = st.randoms(use_true_random=False)


@st.composite
def whole_lives(draw, routing):
    setup = random_setup(draw(chances), routing)
    steps = chances.map(lambda random: random_step(random, setup.kinds))
    return setup, draw(st.lists(steps, min_size=10, max_size=40))


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_any_life_of_a_store_agrees_with_the_model(routing):
    @seed(0)
    @settings(
        max_examples=LIVES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(whole_lives(routing))
    def lives(life):
        live(*life)

    lives()


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_a_removal_that_is_forgotten_is_noticed(monkeypatch, routing):
    async def forget(self, ids, *, holder=0):
        return len(ids)

    monkeypatch.setattr(Namespace, "remove_ids", forget)
    path = Fork(0, 140, 10, 0)
    sequence = [Insert(0, path, False), Remove(0, path, (4,), False), Match(0, path, True)]
    with pytest.raises(Difference, match="Match"):
        live(Setup(routing, "never", 0, 60_000, 64), sequence)


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_a_block_named_twice_that_was_never_inserted_is_removed_once(routing):
    """The first insertion of all waits for a read: the removal beside it comes first, and its name is known."""
    path = Fork(0, 0, 1, 0)
    beside = Together((Insert(0, path, False), Remove(0, path, (0, 0), False)))
    setup = Setup(routing, "always", 1 << 16, 60_000, 4096, None, 3)
    live(setup, [Crash("keep", 0, "all", Call("squeeze"), 0), beside])


BOUNDED = 400 * fmt.PAGE


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_lives_with_a_bound_evict(routing):
    counts = live(Setup(routing, "never", 0, 60_000, 4096, BOUNDED), [Pour(0, 20, 140)] * 4)
    assert counts["evicted"] > 50


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_what_is_lost_though_nothing_was_evicted_is_noticed(monkeypatch, routing):
    async def forget(self, wanted):
        result = await evict(self, wanted)
        self.records -= result.records
        return result

    evict = Evictor.evict
    monkeypatch.setattr(Evictor, "evict", forget)
    with pytest.raises(Difference, match="should be"):
        live(Setup(routing, "never", 0, 60_000, 4096, BOUNDED), [Pour(0, 20, 140)] * 4)


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_what_does_not_expire_in_time_or_expires_early_is_noticed(monkeypatch, routing):
    path, ttl_s = Fork(0, 140, 10, 0), 10
    setup = Setup(routing, "never", 0, 60_000, 64, None, ttl_s)
    sequence = [Insert(0, path, False), Wait(ttl_s + 2), Match(0, path, True)]
    live(setup, sequence)
    with monkeypatch.context() as patch:
        patch.setattr(Lifetimes, "tick", lambda self, state: None)
        with pytest.raises(Difference, match="Match"):
            live(setup, sequence)
    tick = Lifetimes.tick

    def early(self, state):
        self._ttl_ms = dict.fromkeys(self._ttl_ms, 1000)
        tick(self, state)

    monkeypatch.setattr(Lifetimes, "tick", early)
    with pytest.raises(Difference, match="Match"):
        live(setup, [Insert(0, path, False), Wait(5), Match(0, path, True)])


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_a_refusal_though_something_could_be_evicted_is_noticed(monkeypatch, routing):
    async def nothing(self, wanted):
        return Evicted()

    monkeypatch.setattr(Evictor, "evict", nothing)
    with pytest.raises(AssertionError, match="could be evicted"):
        live(Setup(routing, "never", 0, 60_000, 4096, BOUNDED), [Pour(0, 25, 140)] * 6)


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_what_is_there_of_a_later_window_does_not_say_that_an_earlier_one_is_whole(routing):
    """What has expired goes as it is met: of this path the first window, and a part of that is inserted anew."""
    setup = Setup(routing, "interval", 1 << 16, 1, 64, None, 1_000_000)
    sequence = [
        *(Insert(0, Fork(0, 0, *tail), False) for tail in ((131, 1), (128, 1), (1, 0), (1, 1))),
        Insert(1, Fork(6, 118, 0, 0), False),
        Insert(0, Fork(1, 2, 0, 0), False),
        Insert(0, Fork(1, 1, 65, 0), False),
        SetTtl("store", 0, 1),
        Wait(1),
        Insert(0, Fork(7, 3, 0, 0), False),
        Reopen("all"),
        MatchHolders(Fork(0, 65, 0, 0)),
        Estimate(0, Fork(0, 65, 0, 0)),
    ]
    live(setup, sequence, 22)


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_of_what_may_have_expired_for_one_process_the_next_may_have_a_part(routing):
    """Compaction took the one record out, and did not come to the other, which has the first block, too."""
    setup = Setup(routing, "never", 1 << 16, 1, 4096, None, 1_000_000, 16)
    sequence = [
        Insert(2, Fork(0, 0, 20, 1), False),
        *(Wait(seconds) for seconds in (0, 1)),
        Insert(0, Fork(5, 2, 0, 0), False),
        *(Insert(0, Fork(0, 0, *tail), False) for tail in ((1, 0), (2, 0), (1, 1))),
        Wait(0),
        Remove(0, Fork(0, 0, 0, 0), (), False),
        *(Insert(domain, Fork(1, 1, *tail), False) for domain, *tail in ((0, 2, 0), (2, 1, 1), (0, 0, 0))),
        Clear(1),
        SetTtl("holder", 0, 3),
        Call("squeeze"),
        Reopen("older"),
    ]
    live(setup, sequence, 5001)


def test_a_record_that_was_cut_before_it_was_posted_elsewhere_leaves_all_its_lists():
    """The log has it whole at one point, and cut at another; no mark pass comes before compaction."""
    setup = Setup("sarp", "always", 1 << 16, 60_000, 64, None, None, 2)
    path = Fork(6, 10, 0, 0)
    sequence = [
        *(Insert(0, Fork(cut, cut, *tail), False) for cut, *tail in ((0, 1, 0), (0, 16, 0), (1, 1, 1))),
        Remove(0, path, (9,), False),
        Match(0, path, False),
        *(Insert(0, Fork(0, 0, *tail), False) for tail in ((2, 0), (6, 2))),
        Reopen("none"),
        Call("squeeze"),
    ]
    live(setup, sequence, 6002)


def test_a_count_that_was_forgotten_is_not_remembered_when_compaction_has_dropped_what_said_so():
    setup = Setup("divergence", "never", 1 << 16, 1, 4096, None, None, 16)
    sequence = [
        Insert(1, Fork(0, 0, 5, 0), False),
        Remove(0, Fork(0, 0, 0, 0), (), False),
        Insert(0, Fork(0, 0, 14, 0), False),
        Insert(0, Fork(1, 2, 0, 0), True),
        Call("sync"),
        Insert(0, Fork(0, 0, 0, 0), False),
        Call("mark_pass"),
        Insert(0, Fork(0, 0, 1, 0), False),
        Reopen("all"),
        Remove(0, Fork(1, 2, 0, 0), (129,), False),
        Call("checkpoint"),
        Truncate(0, Fork(0, 0, 0, 0), 0),
        Call("compact"),
        Reopen("none"),
        Remove(0, Fork(0, 0, 2, 0), (1,), False),
    ]
    live(setup, sequence, 7001)


def test_a_step_is_made_plainer_until_nothing_is_left():
    step = random_step(Random(3), ("crash", "together"))
    seen = 0
    while simpler := list(plainer(step)):
        step = simpler[0]
        seen += 1
    assert seen > 1


def test_the_model_itself():
    start = Model(Tree())
    [held], new = start.insert(DOMAIN, (1, 2, 3), 10, counted=True)
    assert (new, held.match(DOMAIN, (1, 2, 4)), held.match(("a", 1), (1,))) == (3, [10, 11], [])
    assert held.counts == {}
    [counted], new = held.insert(DOMAIN, (1, 2, 4), 20, counted=True)
    assert (new, counted.match(DOMAIN, (1, 2, 4))) == (1, [10, 11, 22])
    one, two, three = held.tree.blocks((1, 2, 3))
    assert counted.counts == {(DOMAIN, one): 2, (DOMAIN, two): 2}
    [once], removed = counted.remove(DOMAIN, [two, three])
    assert (removed, once.match(DOMAIN, (1, 2, 3)), once.match(DOMAIN, (1, 2, 4))) == (1, [10, 11], [10, 11, 22])
    [twice], removed = once.remove(DOMAIN, [two])
    assert (removed, twice.match(DOMAIN, (1, 2, 4))) == (1, [10])
    assert start.remove(DOMAIN, [one]) == ([], None)
    [cleared] = counted.clear(0)
    assert (cleared.match(DOMAIN, (1,)), cleared.counts) == ([], {})


def test_what_the_model_follows():
    path = (1, 2, 3)
    [held], _ = Model(Tree()).insert(DOMAIN, path, 10, counted=False)
    _, two, _ = held.tree.blocks(path)
    evicting, during = Doubt(evicts=True), Doubt(evicts=True, evicted=True)
    seen = evicting.follow(held, DOMAIN, [(path, 3)])
    assert evicting.follow(seen, DOMAIN, [(path, 2)]) is None
    assert evicting.follow(held, DOMAIN, [(path, [10, 99])]) is None
    short = evicting.follow(seen.evicted(), DOMAIN, [(path, 1)])
    assert (short.match(DOMAIN, path), during.follow(short, DOMAIN, [(path, 2)])) == ([10], None)
    [again], new = short.insert(DOMAIN, path[:2], 20, counted=False)
    assert (new, again.match(DOMAIN, path)) == (1, [10, 21])
    opened = again.opened_again(0, 0, lambda _: 0)
    assert opened.match(DOMAIN, path) == [10, 21, 12]
    assert evicting.follow(opened, DOMAIN, [(path, [10, 11, 12])]).match(DOMAIN, path) == [10, 11, 12]
    [removed], _ = again.remove(DOMAIN, [two])
    assert removed.opened_again(0, 0, lambda _: 0).match(DOMAIN, path) == [10]
    born = Model(Tree()).insert(DOMAIN, path, 10, counted=False, born=(5, 6))[0][0]
    assert Doubt(expired=lambda _: 5).follow(born, DOMAIN, [(path, 0)]) is None
    assert Doubt(expired=lambda _: 5.5).follow(born, DOMAIN, [(path, 1)]) is None
    assert Doubt(expired=lambda _: 5.5).follow(born, DOMAIN, [(path, 0)]).match(DOMAIN, path) == []
    assert born.expired(lambda _: 6).match(DOMAIN, path) == [10, 11, 12]
    assert born.expired(lambda _: 6.5).match(DOMAIN, path) == []
