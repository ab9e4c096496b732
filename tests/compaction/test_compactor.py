"""Compacting the files of an open store: answers stay, space comes back, and nothing is lost whatever cuts it short."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import asynccontextmanager

import pytest
from compaction_helpers import (
    answers,
    compactor_of,
    fill,
    is_cancelled_at,
    options,
    reopened,
    small_steps,
    start_of,
    with_compactor,
)
from store_helpers import (
    WaitingFolder,
    abandoned,
    addresses,
    flip,
    locations,
    logs,
    memory_store,
    records,
    remove_checkpoints,
    segments,
)

import sarpstore
from sarpstore import _format as fmt
from sarpstore._compaction import UNDER_PRESSURE, Eagerness, choose, settled
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True
SEEDS = range(4)
EAGER = Eagerness(0.05, 4 << 10)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_steps(monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_worth_it_is_compacted_and_answers_stay(seed):
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), seed)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        rows = await compactor.rows(start_of(store))
        for _ in rows:  # in files so small the gain is soon lost in what a file costs
            await compactor.compact_next(start_of(store), EAGER)
            assert await answers(store, asked) == before
            await store.sync()
            await store.checkpoint()
        assert compactor.files_deleted > 0
        assert not compactor.reports
        assert store.stats().damaged_records == 0
    assert await reopened(folder.clone(), asked) == before
    remove_checkpoints(folder)
    assert await reopened(folder.clone(), asked) == before


async def test_all_files_can_be_compacted_again_and_again():
    """Copies of copies; and every file that the store began with goes."""
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 3, sequences=40)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        first = store._core.state.gatherer.buffer.file_number
        for _ in range(3):
            for row in await compactor.rows(start_of(store)):
                await compactor.compact_file(row.number)
            await store.namespace("m").insert([8] * 7000, locations(7000))
            await store.namespace("m").truncate([8] * 7000, blocks=0)
            await store.sync()
            await store.checkpoint()
            assert await answers(store, asked) == before
        assert min(fmt.numbered(logs(folder), fmt.LOG_SUFFIX)) > first
        base = store._core.state.directory.base
        assert int(base.slot_entries.sum()) == sum(int(base.slot_entries[slot]) for slot in base.files().values())
    assert await reopened(folder.clone(), asked) == before
    remove_checkpoints(folder)
    assert await reopened(folder.clone(), asked) == before


@pytest.mark.parametrize("mode", ["lose", "keep", "tear"])
async def test_cancelled_at_every_wait_it_goes_on_later_and_a_crash_there_loses_nothing(mode):
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 1, sequences=30)
    before = await reopened(folder.reopen(), asked)
    limit, left = 1, True
    while left:
        image = folder.clone()
        async with with_compactor(image.reopen()) as (store, compactor):
            number = (await compactor.rows(start_of(store)))[0].number
            left = await is_cancelled_at(limit, compactor.compact_file(number))
            assert await answers(store, asked) == before
            crashed = image.crash(limit, mode)
            assert await reopened(crashed.reopen(), asked) == before, f"crash at {limit}"
            if left:
                await compactor.compact_next(start_of(store), UNDER_PRESSURE)
                if number in [row.number for row in await compactor.rows(start_of(store))]:
                    await compactor.compact_file(number)
            assert fmt.log_name(number) not in image.names()
            assert await answers(store, asked) == before
        assert await reopened(image.reopen(), asked) == before
        limit += 1 if limit < 40 else 7
    assert limit > 20


async def test_a_store_that_died_between_copying_and_deletion_compacts_again():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 5)
    before = await reopened(folder.reopen(), asked)
    async with abandoned(memory_store(folder.reopen(), **options())) as store:
        await store.namespace("m").insert([9] * 100, locations(100, 1 << 30))
        await store.sync()
        await store.checkpoint()
        compactor = compactor_of(store)
        numbers = [row.number for row in await compactor.rows(start_of(store))]
        await compactor._empty(numbers[0], compactor._files.ends()[numbers[0]])
        await store.sync()
        crashed = folder.crash(7, "lose")
    assert await reopened(crashed.reopen(), asked) == before
    async with with_compactor(crashed.reopen()) as (store, compactor):
        rows = {row.number: row for row in await compactor.rows(start_of(store))}
        assert await compactor.compact_file(numbers[0]) == rows[numbers[0]].bytes
        assert await answers(store, asked) == before
    remove_checkpoints(crashed)
    assert await reopened(crashed.reopen(), asked) == before


async def test_matches_and_insertions_go_on_meanwhile():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 2)
    before = await reopened(folder.reopen(), asked)
    rng = random.Random(2)
    async with with_compactor(folder.reopen(), cache_bytes=0) as (store, compactor):
        namespace, inserted = store.namespace("m"), []

        async def match():
            while not done.is_set():
                i = rng.randrange(len(asked))
                holder, path = asked[i]
                found = (await namespace.match(path, holder=holder)).locations
                assert found[found.dtype.names[0]].tolist() == before[i]

        async def insert():
            while not done.is_set():
                path = [100 + len(inserted)] + [rng.randrange(3) for _ in range(90)]
                await namespace.insert(path, locations(len(path), len(inserted)))
                inserted.append(path)
                await asyncio.sleep(0)

        async def compact():
            for row in await compactor.rows(start_of(store)):
                await compactor.compact_file(row.number)
            done.set()

        done = asyncio.Event()
        await asyncio.gather(compact(), match(), match(), insert())
        assert store.stats().damaged_records == 0
        assert len(inserted) > 3
        assert [(await namespace.match(path)).blocks for path in inserted] == [91] * len(inserted)
    assert await reopened(folder.reopen(), asked) == before


async def test_a_match_whose_read_is_under_way_when_the_file_goes():
    folder = WaitingFolder(part=fmt.LOG_SUFFIX)
    asked = await fill(folder.inner.reopen(), 6, sequences=30)
    before = await reopened(folder.inner.reopen(), asked)
    async with with_compactor(folder, cache_bytes=0) as (store, compactor):
        number = (await compactor.rows(start_of(store)))[0].number
        slot = store._core.state.directory.base.files()[number]
        await compactor._empty(
            number, compactor._files.ends()[number]
        )  # the entries are elsewhere; what is asked for now is not of the file
        old = store._core.state.directory.base.slot_files[slot]
        assert old == number
        matching = [asyncio.create_task(answers(store, asked[i : i + 1])) for i in range(len(asked))]
        await asyncio.sleep(0)
        compacting = asyncio.create_task(compactor.compact_file(number))
        assert await asyncio.gather(*matching) == [[each] for each in before]
        await compacting
        assert await answers(store, asked) == before
        assert store.stats().damaged_records == 0


async def test_files_are_deleted_while_matches_want_their_pages():
    """A match decided to read a page of the file; when its turn comes the file is gone: it decides again."""
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 6, sequences=30)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen(), cache_bytes=0) as (store, compactor):
        matcher = store._core.state.matcher
        read, numbers = matcher._read, [row.number for row in await compactor.rows(start_of(store))]

        async def read_late(missing):
            if numbers:
                number = numbers.pop(0)
                await compactor.compact_file(number)
            await read(missing)

        matcher._read = read_late
        assert await answers(store, asked) == before
        assert not numbers
        assert store.stats().damaged_records == 0


async def test_a_damaged_record_is_lost_and_reported_and_its_file_can_go():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 8)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        base = store._core.state.directory.base
        rows = await compactor.rows(start_of(store))
        row = max(rows, key=lambda row: row.live_bytes)
        name, slot = fmt.log_name(row.number), base.files()[row.number]
        for offset in segments(folder, name):
            flip(folder, name, offset + 40)
        await compactor.compact_file(row.number)
        assert base.slot_entries[slot] == 0
        assert name not in folder.names()
        [report] = compactor.reports
        assert name in str(report)
        after = await answers(store, asked)
        assert all(a == b[: len(a)] for a, b in zip(after, before, strict=True))
        assert after != before
    assert await reopened(folder.reopen(), asked) == after


async def test_records_beside_segments_are_written_again_as_long_as_they_are_needed():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 4)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        for _ in range(2):
            for row in await compactor.rows(start_of(store)):
                await compactor.compact_file(row.number)
            await store.sync()
            await store.checkpoint()
    kinds = [kind for name in logs(folder) for _, kind, _, _ in records(folder, name)]
    assert kinds.count(fmt.RECORD_NAMESPACE) == 1
    # No mark pass has said that what they kill is gone, so they stay.
    assert fmt.RECORD_REMOVE in kinds
    assert kinds.count(fmt.RECORD_CLEAR_HOLDER) >= 1
    remove_checkpoints(folder)
    assert await reopened(folder.reopen(), asked) == before
    async with memory_store(folder.reopen(), **options()) as store:
        assert 4 in store._core.state.removals.holders


async def test_after_a_mark_pass_removals_are_dropped():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 4)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        maintenance = store._background.maintenance
        for _ in range(3):
            await maintenance.mark_pass()
            position = int(store._core.state.removals.c.settled)
            compactor._ledger.on_pass(position)
            for row in await compactor.rows(start_of(store)):
                await compactor.compact_file(row.number)
            await store.sync()
            await store.checkpoint()
        assert await answers(store, asked) == before
    kinds = [kind for name in logs(folder) for _, kind, _, _ in records(folder, name)]
    assert fmt.RECORD_REMOVE not in kinds
    remove_checkpoints(folder)
    assert await reopened(folder.reopen(), asked) == before


async def test_a_removal_that_kills_what_is_still_to_be_copied_is_written_again():
    """It stands before a copy that only it kills, through an earlier window, in a store without any mark pass."""
    folder, path = MemoryFolder(), list(range(128))
    async with memory_store(folder.reopen(), **options()) as store:
        compactor, namespace, writer = compactor_of(store), store.namespace("m"), store._core.state.writer
        await namespace.insert(path, locations(128))
        await writer.end_file()
        await namespace.truncate(path, blocks=10)
        for turn in range(2):
            await store.sync()
            await store.checkpoint()
            # First of the file that has the blocks: they come to stand behind the removal. Then of both.
            oldest = (await compactor.rows(start_of(store)))[0]
            await compactor.compact_file(oldest.number)
            await writer.end_file()
            await namespace.insert([7000 + turn], locations(1))
        await namespace.insert(path[:64], locations(64, 500))
        assert (await namespace.match(path)).blocks == 64
    remove_checkpoints(folder)
    async with memory_store(folder, **options()) as store:
        assert (await store.namespace("m").match(path)).blocks == 64


async def test_slots_of_deleted_files_are_given_again(monkeypatch):
    """Many files' worth of data goes through a store that may have fourteen."""
    monkeypatch.setattr(fmt, "SLOT_MAX", 13)
    folder = MemoryFolder()
    rng = random.Random(4)
    async with memory_store(folder.reopen(), **options()) as store:
        compactor, namespace = compactor_of(store), store.namespace("m")
        for turn in range(150):
            path = [turn] + [rng.randrange(2) for _ in range(150)]
            for cut in (40, 80, 120, 151):
                await namespace.insert(path[:cut], locations(cut, turn * 1000))
            if turn > 3:
                await namespace.truncate([turn - 4, 0], blocks=0)
            await store.sync()
            await store.checkpoint()
            for row in await compactor.rows(start_of(store)):
                await compactor.compact_file(row.number)
        numbers = fmt.numbered(logs(folder), fmt.LOG_SUFFIX)
        assert max(numbers) > 14 >= len(numbers), "slots were given again"
        last = path
        assert (await namespace.match(last)).blocks == len(last)
        assert store.stats().damaged_records == 0
        answers_before = [(await namespace.match([turn] + [0])).blocks for turn in range(150)]
    async with memory_store(folder.reopen(), **options()) as store:
        namespace = store.namespace("m")
        assert (await namespace.match(last)).blocks == len(last)
        assert [(await namespace.match([turn] + [0])).blocks for turn in range(150)] == answers_before
        await namespace.insert([7777] * 100, locations(100))


@asynccontextmanager
async def broken(folder):
    store = await memory_store(folder.reopen(), **options())
    try:
        yield store
    finally:
        with contextlib.suppress(OSError):
            await store.close()


async def test_a_failed_disk_stops_it_with_that_error():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 5, sequences=30)
    async with memory_store(folder.reopen(), **options()) as store:
        await store.checkpoint()
    before = await reopened(folder.reopen(), asked)
    async with broken(folder) as store:
        await store.namespace("m").insert([9] * 100, locations(100))
        await store.sync()
        await store.checkpoint()
        compactor = compactor_of(store)
        row = (await compactor.rows(start_of(store)))[0]
        store._core.state.writer.failure = OSError(5, "the disk is gone")
        with pytest.raises((sarpstore.FailedError, OSError)):
            await compactor.compact_file(row.number)
        assert fmt.log_name(row.number) in folder.names()
        assert await answers(store, asked) == before


async def test_a_file_that_a_crash_cut_short_goes_before_the_one_that_names_its_end():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 5, sequences=20)
    # A crash: the last file has pages behind its last accepted commit.
    async with abandoned(memory_store(folder.reopen(), **options())) as store:
        await store.namespace("m").insert([5] * 64, locations(64))
        await store.sync()
        await store.namespace("m").insert([6] * 300, locations(300))
        await store.namespace("m").insert([7] * 300, locations(300))
        state = store._core.state
        state.writer._freeze()
        state.writer._keep_running()
        while state.writer._ready:  # noqa: ASYNC110 - the writer tells nobody of one commit
            await asyncio.sleep(0.001)
        torn = max(logs(folder))
        image = folder.clone()
    size = image.size(torn)
    file = image.open(torn, writable=True)
    file.write(size, b"\x55" * 4096)
    file.sync()
    file.close()
    before = await reopened(image.reopen(), asked)
    number = int(torn.split(".")[0], 16)
    async with with_compactor(image.reopen()) as (store, compactor):
        namespace = store.namespace("m")
        for i in range(20):
            await namespace.insert([30 + i] * 400, locations(400))
        await store.sync()
        await store.checkpoint()
        rows = {row.number: row for row in await compactor.rows(start_of(store))}
        assert rows[number + 1].before == number
        assert rows[number].before is None
        ends = compactor._files.ends()
        assert ends[number] == size < rows[number].bytes
        only_the_next = [rows[number + 1], rows[number]]
        assert choose(only_the_next, Eagerness(0.0, 0)) == rows[number]
        await compactor.compact_file(number)
        await compactor.compact_file(number + 1)
        assert not compactor.reports
        assert await answers(store, asked) == before
    remove_checkpoints(image)
    assert await reopened(image.reopen(), asked) == before


async def test_the_rate_is_kept():
    folder = MemoryFolder()
    await fill(folder.reopen(), 5, sequences=30)
    async with with_compactor(folder.reopen()) as (store, compactor):
        row = (await compactor.rows(start_of(store)))[0]
        compactor.bytes_per_second = row.bytes / 0.2
        began = asyncio.get_running_loop().time()
        await compactor.compact_file(row.number)
        assert asyncio.get_running_loop().time() - began > 0.15


async def test_settled_is_about_all_files():
    folder = MemoryFolder()
    await fill(folder.reopen(), 9)
    async with with_compactor(folder.reopen()) as (store, compactor):
        assert not settled(await compactor.rows(start_of(store)), store._core.state.gatherer.file_bytes)


async def test_after_a_crash_nothing_stands_on_what_was_evicted_with_its_file():
    """An image names records that were evicted since, whose file is gone; behind them one that is still there."""
    path, folder = [n % 5 for n in range(139)], MemoryFolder()
    async with abandoned(memory_store(folder.reopen(), **options())) as store:
        namespace, state = store.namespace("m"), store._core.state
        await namespace.insert(path[:128], locations(128))
        await state.writer.end_file()
        await namespace.insert(path, locations(139))
        await state.writer.end_file()
        await namespace.insert([9] * 100, locations(100, 1 << 30))
        await store.checkpoint()
        compactor = compactor_of(store)
        first = (await compactor.rows(start_of(store)))[0].number
        slot = state.directory.base.files()[first]
        state.directory.forget(0, len(state.directory.partitions), slot)
        await compactor.compact_file(first)
        crashed = folder.crash(0, "keep")
    assert fmt.log_name(first) not in crashed.names()
    async with memory_store(crashed, **options()) as store:
        namespace = store.namespace("m")
        located = await namespace.match(path)
        assert located.blocks == (await namespace.match(path, locations=False)).blocks == 0
        assert await namespace.insert(path, locations(139, 500)) == 139
        assert addresses((await namespace.match(path)).locations) == list(range(500, 639))
        assert store.stats().damaged_records == 0
