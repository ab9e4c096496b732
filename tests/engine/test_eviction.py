"""What eviction takes, as pure functions of numbers, and how it goes about it in slices."""

import asyncio
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import locations, memory_store

from sarpstore import _format as fmt
from sarpstore import _options
from sarpstore._directory import LEVELS, DivergenceDirectory
from sarpstore._eviction import TICKS, Evictor, boundary_file, boundary_level, boundary_offset, ticks_due
from sarpstore._files import MemoryFolder
from sarpstore._io import Turns
from sarpstore._kernel import CHANGE_DTYPE

MIB = 1 << 20

# --- policy


def test_a_tick_is_due_each_time_that_a_sixteenth_of_the_capacity_was_written():
    assert [ticks_due(written, 1600, 0) for written in (0, 99, 100, 1600)] == [0, 0, 1, TICKS]
    assert ticks_due(1600, 1600, 10) == TICKS - 10
    assert ticks_due(50, 1600, 3) == 0


@given(st.lists(st.integers(0, 100), min_size=LEVELS, max_size=LEVELS), st.integers(-5, 4000))
def test_the_boundary_level_has_the_last_of_what_is_wanted(levels, wanted):
    level, rest = boundary_level(levels, wanted)
    below = sum(levels[:level])
    assert below + rest == max(0, min(wanted, sum(levels)))
    if level < LEVELS:
        assert rest < levels[level]
    else:
        assert rest == 0


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 100)), st.integers(-5, 3000))
def test_of_the_boundary_level_the_newest_files_go(by_file, wanted):
    number = boundary_file(by_file, wanted)
    newer = [size for file_number, size in by_file.items() if file_number > number]
    if wanted <= 0 or not by_file:
        assert number == fmt.FILE_NUMBER_END
    else:
        assert sum(newer) < wanted
        assert sum(newer) + by_file[number] >= wanted or number == min(by_file)


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.integers(0, 700))
def test_of_the_boundary_level_what_left_its_window_deepest_goes_first(by_offset, wanted):
    d, rest = boundary_offset(by_offset, wanted)
    gone = sum(by_offset[d:])
    assert d >= 1
    assert rest == max(0, wanted - gone)
    assert rest == 0 or gone == sum(by_offset[1:]), "whole windows give only what the others do not"
    assert d == 64 or gone - by_offset[d] < wanted, "no more than is needed"


# --- the mechanism


def directory_with(count, files=4):
    """Records of one window each, `count` in all, in some files."""
    directory = DivergenceDirectory(bytes(16), 1 << 24)
    directory.base.keep_recency(14)
    for slot in range(files):
        directory.base.add_slot(slot, slot + 1)
    directory.start_empty()
    changes = np.zeros(count, CHANGE_DTYPE)
    changes["key"] = changes["root_key"] = np.random.default_rng(1).integers(0, 1 << 48, count, "<u8")
    changes["position"] = [fmt.position(1 + i * files // count, 8192 + i * 64) for i in range(count)]
    changes["n"], changes["type"] = 64, fmt.RECORD_SEGMENT
    changes["level"] = 5 + np.arange(count) % 3
    directory.apply(changes)
    return directory


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 1.0, 2.0])
async def test_about_as_much_goes_as_is_wanted(share):
    count, size = 20_000, 2048
    evictor = Evictor(directory_with(count), Turns())
    wanted = int(share * count * size)
    evicted = await evictor.evict(wanted)
    least, most = min(wanted, count * size), wanted + count * size // 12 + size
    assert least <= evicted.bytes <= most
    assert evictor.bytes == evicted.bytes
    assert evictor.records == evicted.records == evicted.bytes // size
    assert evictor.blocks == evicted.records * 64
    assert evictor._directory.entries == count - evicted.records
    await evictor.finish()
    assert evictor.records == evicted.records


async def test_an_eviction_that_was_cut_short_is_gone_on_with():
    evictor = Evictor(directory_with(120_000), Turns())
    task = asyncio.create_task(evictor.evict(1 << 40))
    for _ in range(100):
        await asyncio.sleep(0)
        if evictor._unfinished:
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < evictor._directory.entries < 120_000
    await evictor.finish()
    assert evictor._directory.entries == 0
    assert evictor.records == 120_000


async def test_ticks_are_made_as_they_come_due():
    directory = directory_with(100)
    evictor = Evictor(directory, Turns())
    await evictor.age(0, 1600)
    assert directory.base.c.clock == 0
    await evictor.age(320, 1600)
    assert directory.base.c.clock == 3
    await evictor.age(320, 1600)
    assert directory.base.c.clock == 3
    await evictor.age(1 << 40, 1600)
    clock = directory.base.c.clock
    assert {(word1 // 2 - clock) % LEVELS for word1 in directory.image(0)["word1"].tolist()} == {1}


async def test_others_get_their_turn_between_slices():
    evictor = Evictor(directory_with(300_000), Turns())
    turns = itertools.count()
    going = True

    async def other():
        while going:
            next(turns)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await evictor.evict(1 << 27)
    await evictor.age(100, 1600)
    going = False
    await task
    partitions = len(evictor._directory.partitions)
    assert next(turns) >= partitions // 2


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
async def test_what_a_store_evicts_is_what_nobody_asked_for(routing):
    folder, rng = MemoryFolder(), random.Random(1)
    paths = [[rng.randrange(1 << 30) for _ in range(200)] for _ in range(60)]
    options = {"bytes_max": 8 * MIB, "log_file_bytes": MIB, "io": "threads", "routing": routing}
    async with memory_store(folder.reopen(), **options) as store:
        namespace, state = store.namespace("n"), store._core.state
        evictor = Evictor(state.directory, Turns())
        for number, path in enumerate(paths):
            await namespace.insert(path, locations(200, number))
        for path in paths[:20]:
            assert (await namespace.match(path)).blocks == 200
        evicted = await evictor.evict(30 * (3 * 2048 + 384))
        assert 90 <= evicted.records <= 160
        lengths = [(await namespace.match(path)).blocks for path in paths]
        assert lengths[:20] == [200] * 20
        assert sum(lengths[20:]) < 40 * 100
        for path, length in zip(paths, lengths, strict=True):
            assert len((await namespace.match(path)).locations) == length
            assert length in {0, 64, 128, 192, 200}
        blocks = store.stats().blocks
        assert blocks == sum(lengths)
        await namespace.insert(paths[-1], locations(200, 99))
        assert (await namespace.match(paths[-1])).blocks == 200
    async with memory_store(folder.reopen(), **options) as store:
        found = [(await store.namespace("n").match(path)).blocks for path in paths]
        assert found[:-1] == lengths[:-1]
        assert found[-1] == 200


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
async def test_what_was_matched_last_stays(routing):
    """While four times what the bound allows is inserted, what is asked for again and again is never missing."""
    rng = random.Random(2)
    hot = [[rng.randrange(1 << 30) for _ in range(200)] for _ in range(8)]
    async with memory_store(bytes_max=8 * MIB, log_file_bytes=MIB, io="threads", routing=routing) as store:
        namespace = store.namespace("n")
        for number, path in enumerate(hot):
            await namespace.insert(path, locations(200, 1000 * number))
        cold = 0
        while store.stats().record_bytes < 32 * MIB:
            for _ in range(40):
                cold += 1
                await namespace.insert([rng.randrange(1 << 30) for _ in range(200)], locations(200, cold))
            for number, path in enumerate(hot):
                match = await namespace.match(path)
                assert (match.blocks, match.locations["address"][0]) == (200, 1000 * number)
            assert store.stats().disk_bytes <= 8 * MIB
        assert store.stats().evicted > 200 * cold // 2


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
async def test_what_a_truncation_leaves_was_not_evicted_before(routing):
    """A sequence that forks off another holds the blocks before as long as that one is there: so that one stays."""
    async with memory_store(routing=routing, bytes_max=1 << 28) as store:
        namespace, evictor = store.namespace("m"), store._background.maintenance.evictor
        first, second, other = list(range(20)), [*range(8), *range(100, 112)], list(range(200, 220))
        for path in (first, second, other):
            await namespace.insert(path, locations(20))
        for path in (first, other):
            assert (await namespace.match(path)).blocks == 20
        for _ in range(3):
            evictor._directory.base.tick()
            assert (await namespace.match(second)).blocks == 20
        evicted = await evictor.evict(1)
        assert (evicted.records, evicted.blocks) == (1, 20)
        await namespace.truncate(second, blocks=8)
        assert [(await namespace.match(path)).blocks for path in (first, second)] == [20, 8]


async def test_a_root_that_compaction_has_made_young_is_not_evicted_before_what_left_it(monkeypatch):
    """Where one level of recency is split, newer files go first, and a copy is in a newer file than what came later."""
    monkeypatch.setattr(_options, "_LOG_FILES_MIN", 1)
    folder, options = MemoryFolder(), {"bytes_max": 1 << 28, "log_file_bytes": 1 << 20}
    roots = [[1000 * number, *range(1, 50)] for number in range(1, 60)]
    forks = [[*root[:4], *range(100, 140)] for root in roots]
    async with memory_store(folder.reopen(), **options) as store:
        namespace, writer, maintenance = store.namespace("m"), store._core.state.writer, store._background.maintenance
        for path in roots:
            await namespace.insert(path, locations(50))
        await writer.end_file()
        for path in forks:
            await namespace.insert(path, locations(44))
        await writer.end_file()
        await namespace.insert([7], locations(1))
        await store.checkpoint()
        async with maintenance._one_at_a_time:
            rows = await maintenance.compactor.rows(store.stats().checkpoint_position)
            await maintenance.compactor.compact_file(rows[0].number)
    async with memory_store(folder.reopen(), **options) as store:  # which takes all for equally old
        namespace, maintenance = store.namespace("m"), store._background.maintenance
        assert (await namespace.match(forks[0])).blocks == 44
        async with maintenance._one_at_a_time:
            evicted = await maintenance.evictor.evict(store._core.state.live_bytes // 4)
        assert 20 < evicted.records < 100
        for root, fork in zip(roots, forks, strict=True):
            assert (await namespace.match(root)).blocks == 50
            held = (await namespace.match(fork)).blocks
            assert held in (4, 44)
            assert (await namespace.match(fork[:4])).blocks == 4
