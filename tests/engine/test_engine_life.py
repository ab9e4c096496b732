"""Any life of a store, with removals, counts, crashes and concurrent steps, gives what the model gives.

`python -m fuzz.life` lives many more of them.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from life_machine import Difference, live
from life_model import Model, Tree
from life_steps import KINDS, Fork, Insert, Match, Remove, Setup, plainer, random_setup, random_step

from sarpstore import Namespace
from sarpstore import _format as fmt

LIVES = 500
DOMAIN = ("a", 0)

chances = st.randoms(use_true_random=False)
steps = chances.map(lambda random: random_step(random, KINDS))


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
def test_any_life_of_a_store_agrees_with_the_model(routing):
    @seed(0)
    @settings(
        max_examples=LIVES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(chances, st.lists(steps, min_size=10, max_size=40))
    def lives(random, sequence):
        live(random_setup(random, routing), sequence)

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


def test_a_step_is_made_plainer_until_nothing_is_left():
    step = random_step(Random(3), ("crash", "together"))
    seen = 0
    while simpler := list(plainer(step)):
        step = simpler[0]
        seen += 1
    assert seen > 1


def test_the_model_itself():
    start = Model(Tree())
    [held, counted], new = start.insert(DOMAIN, (1, 2, 3), 10, counted=True)
    assert (new, held.match(DOMAIN, (1, 2, 4)), held.match(("a", 1), (1,))) == (3, [10, 11], [])
    assert counted.counts == {}
    [again, counted], new = held.insert(DOMAIN, (1, 2, 4), 20, counted=True)
    assert (new, again.match(DOMAIN, (1, 2, 4))) == (1, [10, 11, 22])
    one, two, three = held.tree.blocks((1, 2, 3))
    assert counted.counts == {(DOMAIN, one): 2, (DOMAIN, two): 2}
    [once], removed = counted.remove(DOMAIN, [two, three])
    assert (removed, once.match(DOMAIN, (1, 2, 3)), once.match(DOMAIN, (1, 2, 4))) == (1, [10, 11], [10, 11, 22])
    [twice], removed = once.remove(DOMAIN, [two])
    assert (removed, twice.match(DOMAIN, (1, 2, 4))) == (1, [10])
    assert start.remove(DOMAIN, [one]) == ([], None)
    [cleared] = counted.clear(0)
    assert (cleared.match(DOMAIN, (1,)), cleared.counts) == ([], {})
