"""Chunk stores: the same document after a different prompt, after a restart, and after damage."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from chunk_helpers import (
    END,
    LAYOUT,
    MIB,
    check_loaded,
    chunks_in,
    document,
    fill,
    held,
    kv_of,
    prompt,
    put_all,
)

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import CountedFolder, Fault, FaultyFolder, MemoryFolder


@pytest.fixture
def folder():
    return MemoryFolder()


async def test_a_document_hits_after_another_prompt_and_its_keys_are_rotated_for_there(folder):
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(document(1), document(2))) as plan:
            assert [(span.begin, span.end, span.hit, span.why) for span in plan.spans] == [
                (0, 50, False, "new"),
                (50, 100, False, "new"),
                (100, 103, False, "question"),
            ]
            assert await put_all(chunks, plan) == 2
        other = prompt([5, 5, 5, END], document(2), document(3), document(1))
        with await chunks.plan(other) as plan:
            assert [span.hit for span in plan.spans] == [False, True, False, True, False]
            kv = await chunks.load(plan)
            assert kv.shape == LAYOUT.shape(len(other))
            check_loaded(plan, kv)
        stats = chunks.stats()
        assert (stats.chunks, stats.hit_tokens, stats.tokens) == (2, 100, 254)
        assert stats.missed_tokens == {"new": 154}
        assert stats.question_tokens == 6
        assert stats.loaded_bytes == 2 * sum(span.bytes for span in plan.hits) / 2 > 0


@pytest.mark.parametrize(
    "layout",
    [
        LAYOUT,
        sarpstore.KVLayout(layers=3, kv_heads=1, head_dim=6, dtype="float16", rope=None),
        sarpstore.KVLayout(layers=1, kv_heads=1, head_dim=2, dtype="bfloat16", rope=sarpstore.Rope(), windows=(3,)),
        sarpstore.KVLayout(
            layers=5,
            kv_heads=2,
            head_dim=8,
            dtype="bfloat16",
            rope=sarpstore.Rope(),
            windows=(None, 20, 20, None, 1000),
        ),
    ],
    ids=["float32", "no rope", "one window", "windows"],
)
@pytest.mark.parametrize("tokens", [2, 50, 3000])
async def test_payloads_of_any_layout_and_length_come_back(folder, layout, tokens):
    ids = [*range(100, 99 + tokens), END]
    async with chunks_in(folder, layout) as chunks:
        with await chunks.plan(prompt(ids)) as plan:
            assert await put_all(chunks, plan, layout) == 1
    async with chunks_in(folder, layout) as chunks:
        with await chunks.plan(prompt([5, END], ids)) as plan:
            out = np.zeros(layout.shape(plan.tokens), layout.numpy_dtype)
            assert await chunks.load(plan, out) is out
            assert len(plan.hits) == 1
            check_loaded(plan, out, layout)


async def test_what_differs_in_anything_is_another_chunk(folder):
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            await put_all(chunks, plan)
        for more in ({"conditioning": b"x"}, {"salt": b"x"}, {"adapter": "x"}):
            with await chunks.plan(prompt(document(1)), **more) as plan:
                assert not plan.hits
        with await chunks.plan(prompt(document(1))) as plan:
            assert len(plan.hits) == 1
    async with chunks_in(folder, fingerprint=b"another model") as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            assert not plan.hits
    other = sarpstore.KVLayout(layers=2, kv_heads=2, head_dim=16, rope=sarpstore.Rope(theta=101.0))
    async with chunks_in(folder, other) as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            assert not plan.hits


async def test_the_question_is_stored_only_where_that_is_asked_for(folder):
    async with chunks_in(folder) as chunks:
        with (
            await chunks.plan(prompt(document(1))) as plan,
            pytest.raises(sarpstore.InputError, match="store_question"),
        ):
            await chunks.put(plan.misses[-1], *kv_of(plan.misses[0]))
        with await chunks.plan([1, 4, 3], store_question=True) as plan:
            assert await put_all(chunks, plan) == 1
        with await chunks.plan([1, 4, 3], store_question=True) as plan:
            assert plan.spans[0].hit
        with await chunks.plan([]) as plan:
            assert plan.spans == ()


# --- the bound


async def test_the_files_never_take_more_than_the_bound_and_what_is_held_is_right(folder):
    async with chunks_in(folder) as chunks:
        for number in range(300):
            for _ in range(2):  # or it would not be admitted
                (await chunks.plan(prompt(document(number, 500)))).close()
            await fill(chunks, [number], 500)
            assert chunks._opened.folder.bytes_highest <= 8 * MIB
        there = await held(chunks, range(300), 500)
        stats = chunks.stats()
        assert len(there) == stats.chunks > 20
        assert stats.missed_tokens["evicted"] > 0
        assert stats.again_bytes <= 0.07 * stats.put_bytes
        assert stats.write_amplification < 1.1
        assert stats.disk_bytes == sum(file_bytes(folder)) + fmt.PAGE
    async with chunks_in(folder, bytes_max=None) as chunks:
        assert chunks.stats().bytes_max == 8 * MIB
        assert await held(chunks, range(300), 500) == there


def file_bytes(folder):
    from sarpstore._files import rounded

    inner = folder.reopen()
    return [rounded(inner.size(name)) for name in inner.names()]


async def test_a_lower_bound_is_kept_from_the_open_on(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(60), 500)
        before = await held(chunks, range(60), 500)
    async with chunks_in(folder, bytes_max=4 * MIB) as chunks:
        after = await held(chunks, range(60), 500)
        await chunks._puts.restored()
        assert after <= before
        assert len(await held(chunks, range(60), 500)) > 5
        assert chunks.stats().disk_bytes <= 4 * MIB


async def test_what_was_asked_for_once_is_not_admitted_to_a_full_store(folder):
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(200), 500)
        with await chunks.plan(prompt(document(777, 500))) as plan:
            assert await put_all(chunks, plan) == 0
        with await chunks.plan(prompt(document(777, 500))) as plan:
            assert plan.spans[0].why == "not admitted"
            assert await put_all(chunks, plan) == 1
        assert chunks.stats().refused_puts > 0


# --- at once


async def test_a_chunk_that_several_requests_miss_is_computed_once(folder):
    async with chunks_in(folder) as chunks:
        computed = []

        async def request(number):
            with await chunks.plan(prompt([number + 50, END], document(1), question=[number + 100])) as plan:
                for span in plan.misses:
                    if span.why != "question":
                        await asyncio.sleep(0.01)
                        computed.append(span.key)
                        await chunks.put(span, *kv_of(span))
                return len(plan.hits)

        hits = await asyncio.gather(*(request(number) for number in range(8)))
        assert len(computed) == len(set(computed)) == 9
        assert sorted(hits) == [0, *[1] * 7]


async def test_who_gives_up_lets_the_next_compute(folder):
    async with chunks_in(folder) as chunks:
        plan = await chunks.plan(prompt(document(1)))
        waiting = asyncio.create_task(chunks.plan(prompt(document(1))))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        hurried = await chunks.plan(prompt(document(1)), wait_ms=1)
        assert hurried.spans[0].why == "in flight"
        plan.close()
        other = await waiting
        assert other.spans[0].why == "new"
        del other, waiting  # whoever forgets to close it
        with await chunks.plan(prompt(document(1))) as again:
            assert again.spans[0].why == "new"


async def test_a_put_that_is_cancelled_is_carried_out(folder):
    async with chunks_in(folder) as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            task = asyncio.create_task(put_all(chunks, plan))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await held(chunks, [1]) in ({1}, set())
        await fill(chunks, [1, 2])
        assert await held(chunks, [1, 2]) == {1, 2}


# --- damage and crashes


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


# --- opening


async def test_options_that_cannot_be_are_refused(tmp_path):
    for wrong, words in (
        ({"bytes_max": MIB}, "bytes_max"),
        ({"bytes_max": None}, "bytes_max"),
        ({"region_bytes": 5000}, "region_bytes"),
        ({"fingerprint": b""}, "fingerprint"),
        ({"delimiters": ()}, "delimiters"),
        ({"delimiters": (-1,)}, "delimiters"),
        ({"direct_io": 7}, "direct_io"),
    ):
        with pytest.raises(sarpstore.OptionError, match=words):
            await chunks_in(tmp_path / "s", **wrong)
    for path in ("a\0b", 7):
        with pytest.raises(sarpstore.OptionError, match="path"):
            await chunks_in(path)
    with pytest.raises(sarpstore.OptionError, match="layout"):
        await chunks_in(tmp_path / "s", layout="none")
    with pytest.raises(sarpstore.NotAStoreError):
        await chunks_in(tmp_path / "nothing", create=False)
    async with chunks_in(tmp_path / "s") as chunks:
        with pytest.raises(sarpstore.LockedError):
            await chunks_in(tmp_path / "s")
        with pytest.raises(sarpstore.InputError):
            await chunks.plan(["a"])
    with pytest.raises(sarpstore.MismatchError, match="region_bytes"):
        await chunks_in(tmp_path / "s", region_bytes=2 * MIB)
    with pytest.raises(sarpstore.ClosedError):
        await chunks.plan([1])
    await chunks.close()


async def test_a_store_of_the_other_kind_is_not_taken_for_one(tmp_path):
    async with sarpstore.open(tmp_path / "index"):
        pass
    with pytest.raises(sarpstore.NotAStoreError, match="no chunk store"):
        await chunks_in(tmp_path / "index")
    async with chunks_in(tmp_path / "chunks"):
        pass
    names = sorted(os.listdir(tmp_path / "chunks"))
    with pytest.raises(sarpstore.NotAStoreError, match="holds a chunk store"):
        await sarpstore.open(tmp_path / "chunks")
    assert sorted(os.listdir(tmp_path / "chunks")) == names


async def test_a_real_folder_with_its_own_reads(tmp_path):
    layout = sarpstore.KVLayout(layers=4, kv_heads=4, head_dim=64, dtype="bfloat16", rope=sarpstore.Rope())
    options = {"bytes_max": 80 * MIB, "region_bytes": 8 * MIB, "io": "auto"}
    async with chunks_in(tmp_path, layout, **options) as chunks:
        await fill(chunks, range(6), 1500, layout)
    async with chunks_in(tmp_path, layout, **options) as chunks:
        assert await held(chunks, range(6), 1500, layout) == set(range(6))
