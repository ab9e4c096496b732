"""Removing blocks, clearing holders, counting announcements, times to live: what matches no more, what still does."""

import asyncio

import numpy as np
import pytest
from store_helpers import addresses, flip, locations, memory_store, names_of, records, remove_checkpoints

import sarpstore
from sarpstore import _format as fmt
from sarpstore._engine import lifetimes, maintenance
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True

A = list(range(200))
B = [*A[:70], *range(1000, 1100)]


async def blocks(namespace, path, holder=0):
    return (await namespace.match(path, holder=holder)).blocks


async def filled(store, holders=(0,)):
    namespace = store.namespace("m")
    for holder in holders:
        await namespace.insert(A, locations(len(A)), holder=holder)
        await namespace.insert(B, locations(len(B)), holder=holder)
    return namespace


async def test_a_removed_block_takes_what_follows_with_it_and_nothing_else():
    async with memory_store() as store:
        namespace = await filled(store)
        assert await namespace.remove_ids(namespace.block_ids(A)[100:101]) == 1
        assert (await blocks(namespace, A), await blocks(namespace, B)) == (100, len(B))
        assert addresses((await namespace.match(A)).locations) == list(range(100))


async def test_ids_may_come_in_any_order_twice_and_unknown():
    async with memory_store() as store:
        namespace = await filled(store)
        ids = namespace.block_ids(A)
        unknown = namespace.block_ids([9, 9, 9])
        given = np.concatenate([ids[150:152], unknown, ids[80:81], ids[150:151], ids[199:200]])
        assert await namespace.remove_ids(given) == len(given) - 1, "one is named twice"
        assert (await blocks(namespace, A), await blocks(namespace, B)) == (80, len(B))


async def test_removing_where_nothing_was_ever_inserted_writes_nothing():
    async with memory_store() as store:
        namespace = await filled(store)
        ids = namespace.block_ids(A)
        assert await namespace.remove_ids(ids, holder=7) == 0
        assert await store.namespace("other").remove_ids(ids) == 0
        await store.clear_holder(7)
        assert store.stats().markers == 0


async def test_more_ids_than_a_record_holds():
    async with memory_store() as store:
        namespace = store.namespace("m")
        path = list(range(1000))
        await namespace.insert(path, locations(1000))
        assert await namespace.remove_ids(namespace.block_ids(path)[::-1]) == 1000
        assert await blocks(namespace, path) == 0


async def test_what_is_inserted_again_is_there_with_its_new_locations():
    async with memory_store() as store:
        namespace = await filled(store)
        await namespace.remove_ids(namespace.block_ids(A)[30:31])
        assert (await blocks(namespace, A), await blocks(namespace, B)) == (30, 30)
        await namespace.insert(A, locations(len(A), 5000))
        match = await namespace.match(A)
        assert addresses(match.locations) == [*range(30), *range(5030, 5000 + len(A))]
        assert await blocks(namespace, B) == 70, "what left the path behind was removed, too"


async def test_truncate_keeps_a_path_up_to_a_block():
    async with memory_store() as store:
        namespace = await filled(store)
        await namespace.truncate(A, blocks=120)
        assert (await blocks(namespace, A), await blocks(namespace, B)) == (120, len(B))
        await namespace.truncate(A, blocks=len(A))
        await namespace.truncate(B, blocks=0)
        assert (await blocks(namespace, A), await blocks(namespace, B)) == (0, 0)


@pytest.mark.parametrize("count", [-1, 1.5, "3", True])
async def test_truncate_wants_a_number_of_blocks(count):
    async with memory_store() as store:
        with pytest.raises(sarpstore.InputError, match="blocks"):
            await store.namespace("m").truncate(A, blocks=count)


async def test_holders_are_told_apart():
    async with memory_store() as store:
        namespace = await filled(store, holders=(0, 3, 4))
        await namespace.remove_ids(namespace.block_ids(A)[10:11], holder=3)
        await store.clear_holder(4)
        assert await namespace.match_holders(A) == {0: 200, 3: 10}
        await namespace.insert(B, locations(len(B)), holder=4)
        assert await namespace.match_holders(A) == {0: 200, 3: 10, 4: 70}
        assert store.stats().holders == 3


async def test_a_thousand_holders():
    async with memory_store() as store:
        namespace = store.namespace("m")
        for holder in range(1000):
            await namespace.insert(A[: holder % 100], locations(holder % 100), holder=holder)
        for holder in range(0, 1000, 2):
            await store.clear_holder(holder)
        expected = {h: h % 100 for h in range(1, 1000, 2)}
        assert await namespace.match_holders(A) == expected
        bounds = await namespace.match_holders(A, exact=False)
        assert all(low <= expected.get(holder, 0) <= high for holder, (low, high) in bounds.items())
        assert set(expected) <= set(bounds)


async def test_one_holder_more_than_there_may_be():
    async with memory_store(holders_max=2) as store:
        namespace = await filled(store, holders=(1, 2))
        with pytest.raises(sarpstore.LimitError, match="holders_max=2"):
            await namespace.insert(A, locations(len(A)), holder=3)
        assert await namespace.match_holders(A) == {1: 200, 2: 200}


async def test_estimates_enclose_what_is_left():
    async with memory_store() as store:
        namespace = await filled(store)
        for at in (150, 100, 64, 63, 1, 0):
            await namespace.remove_ids(namespace.block_ids(A)[at : at + 1])
            for path in (A, B):
                low, high = namespace.estimate(path)
                assert low <= await blocks(namespace, path) <= high


@pytest.mark.parametrize("cut", [2, 4, 6, 8, 10])
async def test_an_estimate_reaches_past_a_candidate_that_a_removal_shortened(cut):
    """Of the published method: its filter is then the query's, and it comes before one that goes on."""
    async with memory_store() as store:
        namespace = store.namespace("m")
        path = list(range(12))
        shortened = path[:cut] + [100 + i for i in range(12 - cut)]
        for each in (shortened, path):
            await namespace.insert(each, locations(12))
        await namespace.remove_ids(namespace.block_ids(shortened)[cut : cut + 1])
        await store._background.maintenance.mark_pass()
        for blocks_asked in range(1, 13):
            least, most = namespace.estimate(path[:blocks_asked])
            assert least <= await blocks(namespace, path[:blocks_asked]) <= most


async def test_a_counted_block_goes_with_its_last_removal():
    async with memory_store() as store:
        namespace = store.namespace("m")
        ids = namespace.block_ids(A)
        for _ in range(3):
            await namespace.insert_ids(ids, locations(len(A)), counted=True)
        assert await namespace.remove_ids(ids[50:51]) == 0
        assert await namespace.remove_ids(np.concatenate([ids[50:51], ids[60:61]])) == 0
        assert await blocks(namespace, A) == 200
        assert await namespace.remove_ids(ids[50:51]) == 1
        assert await blocks(namespace, A) == 50
        await namespace.insert_ids(ids, locations(len(A)), counted=True)
        assert await namespace.remove_ids(ids[60:61]) == 1, "a block that was gone counts from the beginning"
        assert await blocks(namespace, A) == 60


async def test_the_same_id_twice_in_one_removal_counts_twice():
    async with memory_store() as store:
        namespace = store.namespace("m")
        ids = namespace.block_ids(A)
        for _ in range(2):
            await namespace.insert_ids(ids, locations(len(A)), counted=True)
        assert await namespace.remove_ids(np.concatenate([ids[9:10], ids[9:10]])) == 1
        assert await blocks(namespace, A) == 9


async def test_a_cleared_holder_counts_nothing():
    async with memory_store() as store:
        namespace = store.namespace("m")
        ids = namespace.block_ids(A)
        for _ in range(2):
            await namespace.insert_ids(ids, locations(len(A)), counted=True)
        await store.clear_holder(0)
        await namespace.insert_ids(ids, locations(len(A)), counted=True)
        assert await namespace.remove_ids(ids[5:6]) == 1


async def test_past_the_bound_the_oldest_counts_are_forgotten():
    async with memory_store(counts_max=32) as store:
        namespace = store.namespace("m")
        ids = namespace.block_ids(A)
        for _ in range(2):
            await namespace.insert_ids(ids, locations(len(A)), counted=True)
        assert store.stats().counts <= 32
        assert await namespace.remove_ids(ids[150:151]) in (0, 1)


@pytest.mark.parametrize("heads", ["all", "none"])
async def test_removals_holders_and_counts_are_there_after_an_open(heads):
    folder = MemoryFolder()
    async with memory_store(folder) as store:
        namespace = await filled(store, holders=(0, 3, 4))
        ids = namespace.block_ids(A)
        await namespace.remove_ids(ids[20:21], holder=3)
        await store.checkpoint()
        await store.clear_holder(4)
        await namespace.insert_ids(ids[:10], locations(10), holder=3, counted=True)
        await namespace.truncate(B, blocks=90)
    folder = folder.reopen()
    if heads == "none":
        remove_checkpoints(folder)
    async with memory_store(folder.reopen(), read_only=True) as store:
        assert await store.namespace("m").match_holders(B) == {0: 90, 3: 20}
    async with memory_store(folder.reopen()) as store:
        namespace = store.namespace("m")
        assert await namespace.match_holders(A) == {0: 200, 3: 20}
        assert store.stats().holders == 3
        assert await namespace.remove_ids(ids[5:6], holder=3) == 0
        assert await namespace.remove_ids(ids[5:6], holder=3) == 1


async def test_a_damaged_remove_record_is_reported():
    folder = MemoryFolder()
    async with memory_store(folder) as store:
        namespace = await filled(store)
        await namespace.truncate(A, blocks=10)
    folder = folder.reopen()
    remove_checkpoints(folder)
    name = names_of(folder, fmt.LOG_SUFFIX)[0]
    [at] = [at for at, kind, _, _ in records(folder, name) if kind == fmt.RECORD_REMOVE]
    flip(folder, name, at + 70)
    async with memory_store(folder.reopen()) as store:
        assert store.stats().damaged_records > 0


async def test_always_means_that_a_removal_is_synced():
    folder = MemoryFolder()
    async with memory_store(folder, durability="always") as store:
        namespace = await filled(store)
        await namespace.truncate(A, blocks=10)
        copy = folder.crash(mode="lose")
        await store.clear_holder(0)
    async with memory_store(copy) as store:
        assert await blocks(store.namespace("m"), A) == 10


async def test_a_read_only_store_removes_nothing():
    folder = MemoryFolder()
    async with memory_store(folder) as store:
        await filled(store)
    async with memory_store(folder.reopen(), read_only=True) as store:
        namespace = store.namespace("m")
        for call in (
            namespace.remove_ids(namespace.block_ids(A)),
            namespace.truncate(A, blocks=1),
            store.clear_holder(0),
        ):
            with pytest.raises(sarpstore.ReadOnlyError):
                await call


class Clock:
    """A wall clock that the test moves."""

    def __init__(self, monkeypatch):
        self.now_ms = 1_000_000_000_000
        monkeypatch.setattr(lifetimes, "wall_ms", lambda: self.now_ms)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


async def ticked(store):
    """Let the store notice what time it is."""
    await asyncio.sleep(0.15)
    await store.sync()
    await asyncio.sleep(0.15)


async def test_a_sequence_expires_with_its_first_block(clock):
    async with memory_store(ttl_s=60) as store:
        namespace = store.namespace("m")
        await namespace.insert(A, locations(len(A)))
        await ticked(store)
        clock.now_ms += 50_000
        await namespace.insert([5, *A], locations(len(A) + 1))
        await namespace.insert([*A, 1], locations(len(A) + 1))
        await ticked(store)
        assert (await blocks(namespace, A), await blocks(namespace, [5, *A])) == (200, 201)
        clock.now_ms += 20_000
        await ticked(store)
        assert (await blocks(namespace, [*A, 1]), await blocks(namespace, [5, *A])) == (0, 201)
        await namespace.insert(A, locations(len(A)))
        assert await blocks(namespace, A) == 200
        clock.now_ms += 50_000
        await ticked(store)
        assert (await blocks(namespace, A), await blocks(namespace, [5, *A])) == (200, 0)


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
async def test_what_came_last_in_a_commit_that_still_gathers_expires_in_time(clock, routing):
    """And what comes behind it, into a page where there was room before, does not with it."""
    async with memory_store(ttl_s=60, routing=routing, durability="never", sync_interval_ms=60_000) as store:
        namespace, commit = store.namespace("m"), store._core.state.gatherer.buffer
        for path in (A, [5, *A], [6]):
            await namespace.insert(path, locations(len(path)))
        await asyncio.sleep(0.3)
        clock.now_ms += 50_000
        await namespace.insert([7], locations(1))
        await asyncio.sleep(0.3)
        clock.now_ms += 20_000
        await asyncio.sleep(0.3)
        assert [await blocks(namespace, path) for path in (A, [5, *A], [6], [7])] == [0, 0, 0, 1]
        clock.now_ms += 50_000
        await asyncio.sleep(0.3)
        assert await blocks(namespace, [7]) == 0
        assert store._core.state.gatherer.buffer is commit, "all of it in one commit"
        assert commit.pages < 8


async def test_lifetimes_of_holders_and_namespaces(clock):
    async with memory_store() as store:
        one, other = store.namespace("one"), store.namespace("other")
        for namespace in (one, other):
            for holder in (0, 1):
                await namespace.insert(A, locations(len(A)), holder=holder)
        store.set_ttl(10, holder=1)
        store.set_ttl(100, namespace=other)
        await ticked(store)
        clock.now_ms += 20_000
        await ticked(store)
        assert await one.match_holders(A) == {0: 200}
        assert await other.match_holders(A) == {0: 200}
        clock.now_ms += 100_000
        await ticked(store)
        assert (await one.match_holders(A), await other.match_holders(A)) == ({0: 200}, {})


async def test_a_time_to_live_goes_on_over_a_restart(clock):
    folder = MemoryFolder()
    async with memory_store(folder) as store:
        await store.namespace("m").insert(A, locations(len(A)))
        await ticked(store)
    clock.now_ms += 30_000
    async with memory_store(folder.reopen(), ttl_s=60) as store:
        namespace = store.namespace("m")
        await ticked(store)
        assert await blocks(namespace, A) == 200
        clock.now_ms += 40_000
        await ticked(store)
        assert await blocks(namespace, A) == 0


async def test_what_has_expired_does_not_come_back_when_a_store_is_opened(clock):
    folder = MemoryFolder()
    async with memory_store(folder, ttl_s=60) as store:
        await store.namespace("m").insert(A, locations(len(A)))
        await ticked(store)
        await store.checkpoint()
    clock.now_ms += 100_000
    async with memory_store(folder.reopen(), ttl_s=60) as store:
        assert await blocks(store.namespace("m"), A) == 0
    async with memory_store(folder.reopen(), ttl_s=60, read_only=True) as store:
        assert await blocks(store.namespace("m"), A) == 0
        await store.refresh()
        assert await blocks(store.namespace("m"), A) == 0


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), "60", True])
async def test_impossible_lifetimes(ttl_s):
    with pytest.raises(sarpstore.OptionError, match="ttl_s"):
        await memory_store(ttl_s=ttl_s)
    async with memory_store() as store:
        with pytest.raises(sarpstore.OptionError, match="ttl_s"):
            store.set_ttl(ttl_s)
        with pytest.raises(sarpstore.InputError, match="holder or a namespace"):
            store.set_ttl(5, holder=1, namespace=store.namespace("m"))


async def test_more_removals_than_are_remembered_at_once():
    async with memory_store(markers_max=64) as store:
        namespace = store.namespace("m")
        expected = {}
        for n in range(40):
            path = [n, *range(100)]
            await namespace.insert(path, locations(len(path)))
            await namespace.remove_ids(namespace.block_ids(path)[: 60 + n : -1])
            expected[n] = 61 + n
        assert store.stats().mark_passes > 0
        assert store.stats().markers <= 64
        for n, count in expected.items():
            assert await blocks(namespace, [n, *range(100)]) == count


async def test_a_large_removal_gets_room_among_many_small_ones():
    async with memory_store(markers_max=64) as store:
        namespace, done = store.namespace("m"), asyncio.Event()
        await namespace.insert(A, locations(len(A)))

        async def remove_others(block):
            while not done.is_set():
                await namespace.insert([block], locations(1))
                await namespace.remove_ids(namespace.block_ids([block]))
                block += 1

        others = [asyncio.create_task(remove_others(number << 24)) for number in range(1, 9)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert await namespace.remove_ids(namespace.block_ids(A)[-64:]) == 64
        done.set()
        await asyncio.gather(*others)
        assert await blocks(namespace, A) == len(A) - 64


async def test_a_removal_that_waits_for_room_is_told_of_a_close(monkeypatch):
    async def never(_):
        await asyncio.Event().wait()

    monkeypatch.setattr(maintenance.MarkPass, "run", never)
    store = await memory_store(markers_max=64)
    namespace = await filled(store)
    ids = namespace.block_ids(A)
    waiting = asyncio.create_task(namespace.remove_ids(ids))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with asyncio.timeout(10):
        await store.close()
        with pytest.raises(sarpstore.ClosedError):
            await waiting


async def test_a_close_cuts_a_compaction_short(monkeypatch):
    async def never(_):
        await asyncio.Event().wait()

    monkeypatch.setattr(maintenance.MarkPass, "run", never)
    store = await memory_store()
    namespace = await filled(store)
    await namespace.truncate(A, blocks=10)
    compaction = asyncio.create_task(store.compact())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        await store.close()
        with pytest.raises(sarpstore.ClosedError):
            await compaction


async def test_a_cancelled_compaction_is_cancelled(monkeypatch):
    async def never(_):
        await asyncio.Event().wait()

    monkeypatch.setattr(maintenance.MarkPass, "run", never)
    async with memory_store() as store:
        namespace = await filled(store)
        await namespace.truncate(A, blocks=10)
        compaction = asyncio.create_task(store.compact())
        await asyncio.sleep(0.05)
        compaction.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compaction


async def test_blocks_that_are_all_held_are_counted_however_full_the_commit_is():
    """They take no room themselves, but their counts do."""
    async with memory_store(sync_interval_ms=60_000) as store:
        namespace = store.namespace("n")
        paths = [[number, *(number % 9 for _ in range(63))] for number in range(900)]
        for _ in range(2):
            for number, path in enumerate(paths):
                await namespace.insert_ids(namespace.block_ids(path), locations(64, 100 * number), counted=True)
        assert await namespace.remove_ids(namespace.block_ids(paths[-1])) == 0, "they were counted twice"
        assert await namespace.remove_ids(namespace.block_ids(paths[-1])) == 64
