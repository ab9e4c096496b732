"""bytes_max: what counts, what is promised and reserved, who waits, and that the files never take more."""

import asyncio
import contextlib
import random

import pytest
from store_helpers import locations, memory_store

import sarpstore
from sarpstore._engine.space import (
    Pressure,
    checkpoint_reserve,
    counting_bytes,
    images_bytes_max,
    insertion_bytes,
    pressure,
    removing_bytes,
)
from sarpstore._files import CountedFolder, MemoryFolder, rounded
from sarpstore._log.commits import COMMIT_PAGES_MAX

MIB = 1 << 20
PAGE = 4096


def measured(folder):
    """Bytes of all files and of the lock file, in whole pages."""
    return PAGE + sum(rounded(folder.size(name)) for name in folder.names())


# --- pure


@pytest.mark.parametrize(("size", "pages"), [(0, 0), (1, 1), (4095, 1), (4096, 1), (4097, 2), (1 << 30, 1 << 18)])
def test_sizes_are_rounded_up_to_pages(size, pages):
    assert rounded(size) == pages * PAGE


def test_three_checkpoints_fit_at_every_moment():
    whole = 100
    assert checkpoint_reserve(whole, 0, None) == 300
    assert checkpoint_reserve(whole, 100, None) == 200
    assert checkpoint_reserve(whole, 200, None) == 100
    # While the third is written, what there is of it need not be reserved any more.
    assert [checkpoint_reserve(whole, 200 + written, written) for written in (0, 40, 100)] == [100, 60, 0]
    # Older ones that are larger than the next would be: still room for the next.
    assert checkpoint_reserve(whole, 900, None) == 100


def test_images_take_at_most_what_is_reserved():
    for entries in (0, 1, 250, 251, 252, 2031):
        assert rounded(64 + 16 * entries) <= images_bytes_max(entries, 1, 16)
    assert images_bytes_max(1000, 3, 16) == 16_000 + 3 * (64 + PAGE)


@pytest.mark.parametrize(
    ("live", "free", "expected"),
    [
        (0, 1000, Pressure(0, False)),
        (700, 1000, Pressure(0, False)),
        (701, 1000, Pressure(51, False)),
        (900, 61, Pressure(250, True)),
        (100, 62, Pressure(0, False)),
        (100, 61, Pressure(0, True)),
        (0, -5, Pressure(0, True)),
    ],
)
def test_pressure(live, free, expected):
    assert pressure(live, 1000, free, 50) == expected


def test_a_log_file_is_kept_free_where_it_is_more_than_the_share():
    assert pressure(0, 1000, 199, 200).compact
    assert not pressure(0, 1000, 200, 200).compact


def test_insertions_are_taken_for_their_worst_case():
    assert insertion_bytes(1, "divergence", 16) < insertion_bytes(64, "divergence", 16) < MIB // 8
    assert insertion_bytes(32 * 64, "sarp", 24) < MIB


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bytes_max": 0}, "bytes_max=0"),
        ({"bytes_max": 1.5}, "bytes_max=1.5"),
        ({"bytes_max": True}, "bytes_max=True"),
        ({"bytes_max": 8 * MIB}, "log_file_bytes=4,194,304"),
        ({"bytes_max": 8 * MIB - 1, "log_file_bytes": MIB}, "at least 8,388,608"),
        ({"bytes_max": 1 << 40}, "use larger log files"),
    ],
)
def test_bounds_that_make_no_sense_name_both_options(options, message):
    with pytest.raises(sarpstore.OptionError, match=message):
        sarpstore.Options.of(options)


def test_bounds_that_make_sense():
    sarpstore.Options.of({"bytes_max": 32 * MIB})
    sarpstore.Options.of({"bytes_max": 8 * MIB, "log_file_bytes": MIB})
    sarpstore.Options.of({"bytes_max": 1 << 40, "log_file_bytes": 1 << 30})


# --- counting


@pytest.mark.parametrize("seed", range(20))
def test_a_counted_folder_knows_what_its_files_take(seed):
    rng = random.Random(seed)
    plain = MemoryFolder()
    plain.create("old.log").write(0, bytes(5000))
    folder = CountedFolder(plain)
    folder.survey()
    names = [f"{i}.{kind}" for i in range(3) for kind in ("log", "images", "log.tmp", "checkpoint.tmp", "checkpoint")]
    open_files = []
    for _ in range(200):
        name, kind = rng.choice(names), rng.randrange(6)
        if kind == 0 and name not in plain.names():
            open_files.append(folder.create(name))
        elif kind == 1 and name in plain.names():
            folder.remove(name)
        elif kind == 2 and name in plain.names():
            open_files.append(folder.open(name, writable=True))
        elif kind == 3 and name in plain.names():
            folder.rename(name, rng.choice(names))
        elif kind == 4 and open_files:
            rng.choice(open_files).write(rng.randrange(9000), bytes(rng.randrange(9000)))
        elif open_files:
            rng.choice(open_files).truncate(rng.randrange(20_000))
        assert folder.bytes == measured(plain)
        assert folder.bytes_highest >= folder.bytes
    own = [n for n in plain.names() if n.removesuffix(".tmp").endswith(".log")]
    assert folder.bytes_of(".log") == sum(rounded(plain.size(n)) for n in own)


# --- a store with a bound


def bounded(folder, **options):
    return memory_store(folder, bytes_max=8 * MIB, log_file_bytes=MIB, io="threads", **options)


def hooked(store):
    """The store's space, with nobody there who makes room."""
    space = store._core.state.space
    space.end = lambda _: None
    for task in store._background._tasks:
        if task.get_name() == "sarpstore maintenance":
            task.cancel()
    space.maintained = False
    return space


def nothing_is_left(space):
    space.bytes_max = space.used


async def fill(store, rng, folder, bound=8 * MIB):
    """Insert, match, sync and checkpoint until there is no room; how many insertions went in."""
    namespace, known = store.namespace("n"), [[0]]
    for number in range(100_000):
        fresh = [rng.randrange(1 << 30) for _ in range(rng.randrange(1, 90))]
        path = rng.choice(known)[: rng.randrange(1, 600)] + fresh
        known.append(path)
        try:
            await namespace.insert(path, locations(len(path), number))
        except sarpstore.LimitError as error:
            assert "bytes_max=8,388,608" in str(error)  # noqa: PT017 - what ends it
            return number
        kind = rng.random()
        if kind < 0.02:
            await store.sync()
        elif kind < 0.03:
            await store.checkpoint()
        elif kind < 0.3:
            await namespace.match(rng.choice(known))
        assert measured(folder) <= bound
    raise AssertionError("it never filled")


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
@pytest.mark.parametrize("durability", ["interval", "always"])
async def test_the_files_never_take_more_than_the_bound(routing, durability):
    folder = MemoryFolder()
    rng = random.Random(f"{routing} {durability}")
    async with bounded(folder.reopen(), routing=routing, durability=durability) as store:
        space = hooked(store)
        inserted = await fill(store, rng, folder)
        assert inserted > 300
        # What is full is full because of what logs have, not because nearly all is reserved.
        assert space.used > 4 * MIB
        await store.checkpoint()
        await store.checkpoint()
        assert store._core.state.folder.bytes == measured(folder)
    highest = store._core.state.folder.bytes_highest
    assert measured(folder) <= highest <= 8 * MIB


async def test_what_is_promised_and_reserved_stays_within_the_bound_at_every_step():
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        space, namespace = hooked(store), store.namespace("n")
        for number in range(60):
            before = space.free
            await namespace.insert([number, *range(200)], locations(201, number))
            assert 0 < space.free < before + MIB
            promised = space._log.promised_bytes
            assert promised >= store._core.state.gatherer.buffer.pages * PAGE
        await store.sync()
        assert space._log.promised_bytes <= 8 * PAGE


async def test_a_store_that_is_larger_than_its_new_bound_opens_and_takes_nothing_new():
    folder = MemoryFolder()
    rng = random.Random(3)
    async with memory_store(folder.reopen(), log_file_bytes=MIB) as store:
        namespace = store.namespace("n")
        for number in range(600):
            await namespace.insert([rng.randrange(1 << 30) for _ in range(600)], locations(600, number))
        path = [7, 8, 9]
        await namespace.insert(path, locations(3))
    assert measured(folder) > 8 * MIB
    async with bounded(folder.reopen()) as store:
        space = hooked(store)
        assert space.free < 0
        assert space.pressure(6 * MIB).evict_bytes > 0
        assert space.pressure(0).compact
        assert (await store.namespace("n").match(path)).blocks == 3
        with pytest.raises(sarpstore.LimitError, match="bytes_max"):
            await store.namespace("n").insert([1, 2], locations(2))


async def test_who_waits_goes_on_when_maintenance_has_made_room():
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        space = hooked(store)
        nothing_is_left(space)
        space.maintained = True
        waiting = asyncio.create_task(store.namespace("n").insert([1, 2], locations(2)))
        await asyncio.wait_for(space.wanted.wait(), 10)
        space.bytes_max += 4 * MIB
        space.round_ended(freed=True)
        async with asyncio.timeout(10):
            await waiting
        space.bytes_max = 8 * MIB


async def test_who_waits_is_told_when_nothing_can_be_freed():
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        space = hooked(store)
        nothing_is_left(space)
        space.maintained = True
        waiting = asyncio.create_task(store.namespace("n").insert([1, 2], locations(2)))
        for _ in range(2):
            await asyncio.wait_for(space.wanted.wait(), 10)
            assert not waiting.done()
            space.round_ended(freed=False)
            await asyncio.sleep(0.05)
        with pytest.raises(sarpstore.LimitError, match="no more can be evicted"):
            await asyncio.wait_for(waiting, 10)
        space.bytes_max = 8 * MIB


async def test_a_checkpoint_that_does_not_fit_drops_the_older_one_and_never_the_last():
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        space = hooked(store)
        namespace = store.namespace("n")
        for number in range(50):
            await namespace.insert([number, *range(100)], locations(101, number))
            if number in {20, 40}:
                await store.checkpoint()
        heads = [name for name in folder.names() if name.endswith(".checkpoint")]
        assert len(heads) == 2
        bound, space.bytes_max = space.bytes_max, space.used + space._log.promised_bytes
        with pytest.raises(sarpstore.LimitError, match="no room for a checkpoint"):
            await store.checkpoint()
        assert [name for name in folder.names() if name.endswith(".checkpoint")] == heads[1:]
        space.bytes_max = bound
        await store.checkpoint()
    async with bounded(folder.reopen()) as store:
        assert (await store.namespace("n").match([20, *range(100)])).blocks == 101


async def test_compaction_that_finds_no_room_drops_the_older_checkpoint():
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        maintenance, tries = store._background.maintenance, []

        async def compact_next(*_):
            tries.append(1)
            if len(tries) == 1:
                raise sarpstore.LimitError("no room to compact")
            return 1

        for number in range(2):
            await store.namespace("n").insert([number, *range(100)], locations(101, number))
            await store.checkpoint()
        heads = [name for name in folder.names() if name.endswith(".checkpoint")]
        assert len(heads) == 2
        maintenance.compactor.compact_next = compact_next
        async with maintenance._one_at_a_time:
            assert await maintenance._compact_under_pressure()
        assert [name for name in folder.names() if name.endswith(".checkpoint")] == heads[1:]


async def test_where_compaction_gains_nothing_records_go():
    """Of files that are little more than their ends each copy costs as much as it frees, and that for ever."""
    async with bounded(MemoryFolder()) as store:
        maintenance, space = store._background.maintenance, store._core.state.space
        for number in range(20):
            await store.namespace("n").insert([number, *range(100)], locations(101, number))

        async def in_vain():
            return True

        maintenance._compact_under_pressure = in_vain
        async with maintenance._one_at_a_time:
            assert not await maintenance._relieve(space, Pressure(0, compact=True))
            assert maintenance.evictor.records == 0, "nobody waits for it"
            space.wanted.set()
            assert await maintenance._relieve(space, Pressure(0, compact=True))
        assert maintenance.evictor.records > 0


async def test_a_counted_insertion_that_is_refused_has_neither_inserted_nor_counted():
    """Room that is enough for the blocks, and not for their counts."""
    async with bounded(MemoryFolder().reopen()) as store:
        space, namespace = hooked(store), store.namespace("n")
        ids = namespace.block_ids(range(500))
        await namespace.insert_ids(ids[:300], locations(300), counted=True)
        whole = insertion_bytes(500, "divergence", 16)
        space.bytes_max -= space.free - whole - counting_bytes(500) + 1
        assert space.admits(500)
        with pytest.raises(sarpstore.LimitError, match="bytes_max"):
            await namespace.insert_ids(ids, locations(500), counted=True)
        assert ((await namespace.match_ids(ids)).blocks, store.stats().counts) == (300, 0)
        space.bytes_max += 1
        await namespace.insert_ids(ids, locations(500), counted=True)
        assert ((await namespace.match_ids(ids)).blocks, store.stats().counts) == (500, 300)
        space.bytes_max = 8 * MIB


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
async def test_what_is_counted_finds_room_in_the_commit_of_its_insertion(routing):
    """Whatever is in the commit already, and in parts of a long sequence."""
    async with memory_store(routing=routing, sync_interval_ms=60_000) as store:
        namespace, gatherer = store.namespace("n"), store._core.state.gatherer
        for number in range(40):
            ids = namespace.block_ids([number, *range(600 if number else 20_000)])
            for times in (1, 2):
                await namespace.insert_ids(ids, locations(len(ids)), counted=True)
                assert gatherer.buffer.pages <= COMMIT_PAGES_MAX
                counts = store._core.state.removals.get_counts(ids, 0, namespace._key.name_space)
                assert set(counts.tolist()) == ({2} if times == 2 else {0})


async def filled(store, sequences=50):
    namespace = store.namespace("n")
    for number in range(sequences):
        await namespace.insert([number, *range(100)], locations(101, number))
    await store.sync()
    return namespace


async def test_what_is_evicted_while_a_checkpoint_is_written_takes_no_room_from_it():
    """Its image is written already, and what comes instead is still to be."""
    async with bounded(MemoryFolder().reopen()) as store:
        space = hooked(store)
        await filled(store)
        space.checkpoint_begins()
        whole, free = space._checkpoint_bytes, space.free
        await store._background.maintenance.evictor.evict(1 << 30)
        assert (space._checkpoint_bytes, space.free) == (whole, free)
        space.checkpoint_ended()
        assert space._checkpoint_bytes < whole
        assert space.free > free


@pytest.mark.parametrize("step", ["_flush", "_add_markers"])
async def test_a_checkpoint_that_finds_no_room_while_it_is_written_is_given_up(monkeypatch, step):
    folder = MemoryFolder()
    async with bounded(folder.reopen()) as store:
        space, checkpointer = hooked(store), store._background._checkpointer
        await filled(store)
        await store.checkpoint()
        there = [name for name in folder.names() if name.endswith((".checkpoint", ".images", ".tmp"))]
        await store.namespace("n").insert([7] * 100, locations(100))
        await store.sync()
        go_on = getattr(checkpointer, step)

        async def when_full(*args):
            space.bytes_max = space.used + space._log.promised_bytes
            await go_on(*args)

        with monkeypatch.context() as patch:
            patch.setattr(checkpointer, step, when_full)
            with pytest.raises(sarpstore.LimitError, match="the rest of a checkpoint"):
                await store.checkpoint()
        assert [name for name in folder.names() if name.endswith((".checkpoint", ".images", ".tmp"))] == there
        space.bytes_max = 8 * MIB
        await store.checkpoint()
    async with bounded(folder.reopen()) as store:
        assert (await store.namespace("n").match([7] * 100)).blocks == 100


async def test_a_removal_asks_for_room_in_the_step_in_which_it_removes():
    async with bounded(MemoryFolder().reopen()) as store:
        space, namespace = hooked(store), await filled(store)
        ids = namespace.block_ids([0, *range(100)])
        bound = space.bytes_max
        space.bytes_max -= space.free - insertion_bytes(0, "divergence", 16) - removing_bytes(50) + 1
        with pytest.raises(sarpstore.LimitError, match="bytes_max"):
            await namespace.remove_ids(ids[:50])
        space.bytes_max += 1
        assert await namespace.remove_ids(ids[:50]) == 50
        assert space.free >= 0
        space.bytes_max = bound


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
async def test_whatever_goes_on_at_once_the_files_stay_within_the_bound(routing):
    folder, rng = MemoryFolder(), random.Random(routing)
    async with bounded(folder.reopen(), routing=routing, sync_interval_ms=5, markers_max=2048) as store:
        namespace, paths = store.namespace("n"), [[0]]

        async def insert():
            for number in range(60):
                path = rng.choice(paths)[: rng.randrange(600)] + [rng.randrange(1 << 30) for _ in range(200)]
                paths[:] = [*paths[-40:], path]
                with contextlib.suppress(sarpstore.LimitError):
                    await namespace.insert_ids(namespace.block_ids(path), locations(len(path), number), counted=True)

        async def remove():
            for _ in range(30):
                path = rng.choice(paths)
                with contextlib.suppress(sarpstore.LimitError):
                    await namespace.remove_ids(namespace.block_ids(path)[rng.randrange(len(path)) :])
                await asyncio.sleep(0.005)

        async def call():
            for _ in range(5):
                with contextlib.suppress(sarpstore.LimitError):
                    await rng.choice([store.checkpoint, store.compact, store.sync])()

        await asyncio.gather(insert(), insert(), insert(), remove(), call(), call())
        assert store._core.state.folder.bytes_highest <= 8 * MIB
        assert store.stats().failed == ""
