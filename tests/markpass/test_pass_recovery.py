"""Passes, checkpoints and power cuts in any order: what was removed stays away, and what is held stays there."""

from __future__ import annotations

import pytest
from pass_store import Marked, marked
from store_helpers import abandoned, locations, memory_store, remove_checkpoints
from test_pass import Churn

from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder


@pytest.fixture(params=["divergence", "sarp"])
def routing(request):
    return request.param


async def check_copy(m: Marked, folder: MemoryFolder) -> None:
    """A store that is opened from this folder says what `m` does."""
    async with abandoned(memory_store(folder, exact=True)) as store:
        copy = Marked(store)
        copy.paths, copy.held = dict(m.paths), set(m.held)
        await copy.check()


async def passed(m: Marked) -> None:
    m.retirement.passed((await m.mark_pass().run()).position, m.removals.markers)


async def test_what_a_checkpoint_needs_that_was_half_done_at_the_pass(routing, monkeypatch) -> None:
    """Remove, checkpoint half done, pass, finish, recover; only the next checkpoint retires."""
    folder = MemoryFolder()
    async with marked(routing, monkeypatch, folder) as m:
        await m.insert("a" * 150)
        await m.insert("b" * 150)
        await m.remove("a" * 20)
        left = [3]

        async def between() -> None:
            left[0] -= 1
            if left[0] == 0:
                await passed(m)

        await m.checkpoint_between(monkeypatch, between)
        assert left[0] < 0
        assert m.removals.markers == 1
        await check_copy(m, folder.crash(0, "lose"))
        await m.store.checkpoint()
        assert m.removals.markers == 0
        await check_copy(m, folder.crash(0, "lose"))


async def test_markers_that_retire_after_another_pass_do_not_wait_any_more(routing, monkeypatch) -> None:
    """Remove, pass; a checkpoint, in which two are removed, and a pass finishes: two markers are left, and wait."""
    async with marked(routing, monkeypatch) as m:
        for first in "abcdefg":
            await m.insert(first * 20)
        for first in "abcde":
            await m.remove(first * 10)
        await passed(m)
        left = [3]

        async def between() -> None:
            left[0] -= 1
            if left[0] == 0:
                await m.remove("f" * 10)
                await m.remove("g" * 10)
                m.retirement.passed((await m.mark_pass().run()).position, 7)

        await m.checkpoint_between(monkeypatch, between)
        assert (m.removals.markers, m.retirement.waiting) == (2, 2)
        await m.store.checkpoint()
        assert (m.removals.markers, m.retirement.waiting) == (0, 0)


async def test_the_log_alone_says_the_same(routing) -> None:
    """A truncation, a pass, and an insertion that supersedes what it left."""
    folder = MemoryFolder()
    async with marked(routing, folder=folder) as m:
        await m.insert("a" * 150)
        await m.remove("a" * 20)
        await passed(m)
        await m.store.checkpoint()
        await m.insert("a" * 30)
        await m.store.sync()
        copy = folder.crash(0, "lose")
        for name in copy.names():
            if name.endswith(fmt.CHECKPOINT_SUFFIX):
                copy.remove(name)
        await check_copy(m, copy)


@pytest.mark.parametrize("seed", range(10))
async def test_churn_with_power_cuts(routing, seed, monkeypatch) -> None:
    folder = MemoryFolder()
    async with marked(routing, monkeypatch, folder, seed) as m:
        churn = Churn(m, seed)
        rng = churn.rng

        async def between() -> None:
            if rng.random() < 0.3:
                await churn.step()

        async def run_pass() -> None:
            m.retirement.passed((await m.pass_between(monkeypatch, between)).position, m.removals.markers)

        async def between_or_pass() -> None:
            await (run_pass() if rng.random() < 0.15 else between())

        for _ in range(12):
            for _ in range(rng.randint(0, 5)):
                await churn.step()
            kind = rng.random()
            if kind < 0.35:
                await run_pass()
            elif kind < 0.7:
                await m.checkpoint_between(monkeypatch, between_or_pass)
            else:
                await m.store.sync()
                await check_copy(m, folder.crash(rng.randrange(1 << 30), rng.choice(["lose", "keep"])))
        await m.check()


@pytest.mark.parametrize("how", ["mark pass", "eviction"])
async def test_the_log_says_when_an_emptied_list_loses_its_state(how) -> None:
    """What is inserted into it later is posted in it alone: replay must not look for it where the list once led."""
    folder, options = MemoryFolder(), {"routing": "sarp", "bytes_max": 1 << 30}
    forks = [[5, *range(100 * number, 100 * number + 30)] for number in range(1, 7)]
    new = [5, *range(900, 930)]
    async with memory_store(folder.reopen(), **options) as store:
        namespace, maintenance = store.namespace("m"), store._background.maintenance
        directory = store._core.state.directory
        for path in forks:
            await namespace.insert(path, locations(31))
        assert directory.c.states
        if how == "mark pass":
            await namespace.truncate(forks[0], blocks=0)
            await maintenance.mark_pass()
        else:
            async with maintenance._one_at_a_time:
                await maintenance._evict(1 << 30)
        assert directory.entries_all == 0
        await namespace.insert(new, locations(31, 500))
    remove_checkpoints(folder)
    async with memory_store(folder.reopen(), **options) as store:
        found = await store.namespace("m").match(new)
        assert found.locations["address"].tolist() == list(range(500, 531))
