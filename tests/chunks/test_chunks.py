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
from sarpstore._files import MemoryFolder


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
