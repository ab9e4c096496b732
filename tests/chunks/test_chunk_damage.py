"""Chunk stores after damage, power cuts and refusals, and after loads that were cancelled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from chunk_helpers import (
    MIB,
    chunks_in,
    document,
    fill,
    held,
    prompt,
    put_all,
)

import sarpstore
from sarpstore._chunks.policy import Extent
from sarpstore._files import CountedFolder, Fault, FaultyFolder, MemoryFolder


@pytest.fixture
def folder():
    return MemoryFolder()


def names(folder, suffix):
    return [name for name in folder.reopen().names() if name.endswith(suffix)]


def flip(folder, name, at):
    file = folder.reopen().open(name, writable=True)
    data = bytearray(1)
    file.read_into(at, data)
    file.write(at, bytes([data[0] ^ 16]))
    file.close()


async def test_a_damaged_payload_is_a_miss_and_counted_and_can_be_put_again(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, [1, 2])
        [region] = names(folder, ".region")
        flip(folder, region, 5000)
        assert await held(chunks, [1, 2]) == {2}
        assert chunks.stats().damaged_payloads == 1
        with await chunks.plan(prompt(document(1))) as plan:
            assert plan.spans[0].why == "damaged"
            assert await put_all(chunks, plan) == 1
        assert await held(chunks, [1, 2]) == {1, 2}


@pytest.mark.parametrize("suffix", [".chunks", ".entries"])
async def test_damaged_tables_and_entries_cost_no_payload_that_something_else_knows(folder, suffix):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(30))
    for name in names(folder, suffix):
        flip(folder, name, 20)
    async with chunks_in(folder) as chunks:
        assert await held(chunks, range(30)) == set(range(30))
        await fill(chunks, range(30, 40))
    async with chunks_in(folder) as chunks:
        assert len(await held(chunks, range(40))) >= 30


async def test_a_table_that_is_written_after_all_were_damaged_stays(folder):
    """It is the newest: otherwise it would go at once, and the bounds with it."""
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(5))
    for name in names(folder, ".chunks"):
        flip(folder, name, 20)
    for damaged in (True, False):
        async with chunks_in(folder, bytes_max=None if not damaged else 8 * MIB) as chunks:
            assert bool(chunks._opened.found.damage) == damaged
            assert chunks.stats().bytes_max == 8 * MIB
            assert await held(chunks, range(5)) == set(range(5))


async def test_an_entry_is_no_reason_to_reserve_memory(folder):
    """Its checksum holds, and it says that its payload has a TiB."""
    async with chunks_in(folder) as chunks:
        await fill(chunks, [1])
        [chunk] = chunks._opened.found.late or [chunks._held.chunk(next(iter(chunks._held)))]
        huge = replace(chunk, sequence=9, extents=(Extent(1, 0, (1 << 40) - 4096),))
        chunks._opened.files.note(huge)
        image = folder.clone()
    async with chunks_in(image) as chunks:
        assert await held(chunks, [1]) == set()
        assert chunks.stats().damaged_payloads == 1


async def test_regions_alone_are_not_taken_for_an_empty_folder(folder):
    """A store that is made among them would not be able to put anything into the first of its regions."""
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(5))
    for name in [*names(folder, ".entries"), *names(folder, ".chunks")]:
        folder.remove(name)
    before = folder.sizes()
    with pytest.raises(sarpstore.CorruptionError, match="no valid table and no entries file"):
        await chunks_in(folder)
    assert folder.sizes() == before


async def test_puts_behind_a_damaged_entries_file_are_kept(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(5))
    [name] = names(folder, ".entries")
    flip(folder, name, 20)
    async with chunks_in(folder) as chunks:
        assert await held(chunks, range(5)) == set(range(5))
        await fill(chunks, range(5, 9))
        image = folder.crash(1, "lose")
    async with chunks_in(image) as chunks:
        assert await held(chunks, range(9)) == set(range(9))


async def test_a_damaged_entry_is_told_and_a_torn_one_is_not(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(5))
        damaged, torn = folder.crash(1, "lose"), folder.crash(2, "lose")
    [name] = names(damaged, ".entries")
    flip(damaged, name, 4096 + 80 + 3)
    async with chunks_in(damaged) as chunks:
        assert len(chunks._opened.found.damage) == 1
        assert await held(chunks, range(5)) == {0}
    file = torn.reopen().open(name, writable=True)
    file.truncate(4096 + 5 * 80 - 7)
    file.close()
    async with chunks_in(torn) as chunks:
        assert chunks._opened.found.damage == []
        assert await held(chunks, range(5)) == set(range(4))


async def test_a_bound_that_was_changed_stays_after_a_crash(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(5))
    async with chunks_in(folder, bytes_max=20 * MIB):
        image = folder.crash(1, "lose")
    async with chunks_in(image, bytes_max=None) as chunks:
        assert chunks.stats().bytes_max == 20 * MIB
        assert await held(chunks, range(5)) == set(range(5))


async def test_a_region_that_is_gone_is_told_and_costs_its_payloads(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(60), 500)
        before = await held(chunks, range(60), 500)
    gone = names(folder, ".region")[0]
    folder.reopen().remove(gone)
    async with chunks_in(folder) as chunks:
        assert chunks._opened.found.damage == [f"{gone} is gone, and its entries are there"]
        after = await held(chunks, range(60), 500)
        assert after < before
        assert len(after) > len(before) // 2


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_load_that_is_cancelled_harms_no_later_one(folder, turns):
    """Another load may use the files that it was opening."""
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(4))
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(*map(document, range(4)))) as plan:
            load = asyncio.create_task(chunks.load(plan))
            for _ in range(turns):
                await asyncio.sleep(0)
            load.cancel()
            await asyncio.wait([load])
        assert await held(chunks, range(4)) == set(range(4))
        assert chunks.stats().damaged_payloads == 0


@pytest.mark.parametrize("mode", ["lose", "keep", "tear"])
async def test_what_was_put_is_there_after_a_power_cut_in_the_middle_of_puts(mode):
    folder, acknowledged, cuts = MemoryFolder(), set(), []
    async with chunks_in(folder, bytes_max=40 * MIB) as chunks:
        for number in range(40):
            task = asyncio.create_task(fill(chunks, [number], 300))
            for turn in range(60):
                await asyncio.sleep(0)
                if (number * 60 + turn) % 97 == 0:
                    cuts.append((set(acknowledged), folder.crash(number * 100 + turn, mode)))
            await task
            acknowledged.add(number)
    assert len(cuts) > 15
    for before, image in cuts:
        async with chunks_in(image.reopen(), bytes_max=None) as chunks:
            there = await held(chunks, range(40), 300)
            assert before <= there
            assert not chunks._opened.found.damage
            await fill(chunks, [100])
            assert await held(chunks, [100]) == {100}
        async with chunks_in(image.reopen(), bytes_max=None) as chunks:
            assert await held(chunks, range(40), 300) == there


async def test_a_power_cut_while_a_region_is_made_is_no_damage(folder, monkeypatch):
    images = []

    def rename_and_cut(self, old, new, rename=CountedFolder.rename):
        rename(self, old, new)
        if new.endswith(".entries"):
            images.extend(folder.crash(seed, "tear") for seed in range(20))

    monkeypatch.setattr(CountedFolder, "rename", rename_and_cut)
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(6), 500)
    lone = 0
    for image in images:
        regions, entries = ({name[:16] for name in names(image, suffix)} for suffix in (".region", ".entries"))
        lone += not entries <= regions
        async with chunks_in(image) as chunks:
            assert not chunks._opened.found.damage
    assert lone > 2


async def test_names_that_a_killed_process_had_not_synced_are_synced_before_more_is_put():
    """Or a power cut later would lose the name of a file, and with it what was acknowledged since."""
    folder = MemoryFolder()
    async with chunks_in(folder):
        pass
    faulty = FaultyFolder(folder.reopen())
    chunks = await chunks_in(faulty)
    faulty.inject(Fault("sync_folder", times=None))
    with pytest.raises(sarpstore.StorageError):
        await fill(chunks, [1])
    await chunks.close()
    assert names(folder, ".entries")
    async with chunks_in(folder) as again:
        await fill(again, [2])
        image = folder.crash(1, "lose")
    async with chunks_in(image) as after:
        assert await held(after, [1, 2]) == {2}


@pytest.mark.parametrize("in_table", [False, True])
async def test_a_region_that_has_no_entries_of_its_own_is_missed_too(folder, in_table):
    """It has the second half of a payload."""
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(document(1, 6000))) as plan:
            await put_all(chunks, plan)
        image = folder.crash(1, "lose")
    if in_table:
        image = folder.reopen()
    image.remove(names(image, ".region")[-1])
    async with chunks_in(image) as chunks:
        assert any("region is gone" in damage for damage in chunks._opened.found.damage)
        assert await held(chunks, [1], 6000) == set()


async def test_a_region_that_an_entry_names_does_not_come_again():
    """Of a payload in two regions the second, and last of all, is gone: its number is not given to another one."""
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(document(1, 6000))) as plan:
            await put_all(chunks, plan)
        last = max(chunks._opened.files.entries)
        assert last > 1
        image = folder.crash(1, "lose")
    for suffix in (".entries", ".region"):
        image.remove(f"{last:016x}{suffix}")
    async with chunks_in(image) as chunks:
        assert await held(chunks, [1], 6000) == set()
        await fill(chunks, range(2, 12), 2000)
        assert last not in chunks._opened.files.entries
        assert max(chunks._opened.files.entries) > last


@pytest.mark.parametrize("operation", ["write", "sync", "create", "rename"])
async def test_after_a_failed_write_puts_stop_and_loads_go_on(operation):
    folder = FaultyFolder(MemoryFolder())
    chunks = await chunks_in(folder)
    await fill(chunks, [1])
    folder.inject(Fault(operation, errno=28, times=None))
    refused = 0
    for number in range(2, 30):
        try:
            await fill(chunks, [number], 2000)
        except (sarpstore.StorageError, sarpstore.FailedError):
            refused += 1
    assert refused >= (1 if operation in ("create", "rename") else 28)
    assert await held(chunks, [1]) == {1}
    await chunks.close()
