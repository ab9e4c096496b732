"""Payloads with codes of a byte: half the bytes, an error that is declared, and chunks of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chunk_helpers import END, chunks_in, document, kv_of, prompt, put_all

import sarpstore
from sarpstore._chunks.payload import payload_bytes
from sarpstore._files import MemoryFolder

EXACT = sarpstore.KVLayout(
    layers=5,
    kv_heads=2,
    head_dim=14,
    dtype="bfloat16",
    rope=sarpstore.Rope(theta=100.0),
    windows=(None, 20, 20, 7, None),
)
ERROR = {"int8": 0.012, "fp8": 0.03}
"""Of normal values, over all elements, rounding to bfloat16 in it."""


def wide(bfloats):
    return (bfloats.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("payload", ["int8", "fp8"])
@pytest.mark.parametrize("tokens", [2, 51, 3000])
async def test_what_is_loaded_is_near_what_was_put(payload, tokens):
    layout, folder = replace(EXACT, payload=payload), MemoryFolder()
    ids = [*range(100, 99 + tokens), END]
    async with chunks_in(folder, layout) as chunks:
        with await chunks.plan(prompt(ids)) as plan:
            assert await put_all(chunks, plan, layout) == 1
            [put, _] = plan.spans
    async with chunks_in(folder, layout) as chunks:
        with await chunks.plan(prompt([5, END], ids)) as plan:
            kv = await chunks.load(plan, np.zeros(layout.shape(plan.tokens), np.uint16))
            span = plan.spans[1]
            assert span.hit
            assert span.bytes == payload_bytes(layout, tokens)
    keys, values = kv_of(put, layout)
    rotated = np.empty_like(keys)
    sarpstore.rotate_keys(layout, keys, rotated, span.begin)
    for layer in range(layout.layers):
        kept = layout.kept_tokens(layer, tokens)
        there = kv[layer, :, :, span.end - kept : span.end]
        for kind, exact in enumerate((rotated[layer, :, -kept:], values[layer, :, -kept:])):
            off = np.linalg.norm(wide(there[kind]) - wide(exact)) / np.linalg.norm(wide(exact))
            assert 0 < off < ERROR[payload]
        assert not kv[layer, :, :, span.begin : span.end - kept].any()
    if tokens > 1000:
        assert payload_bytes(layout, tokens) < 0.52 * payload_bytes(EXACT, tokens)


async def test_chunks_of_another_encoding_are_others():
    folder = MemoryFolder()
    for payload in ("exact", "int8", "fp8"):
        layout = replace(EXACT, payload=payload)
        async with chunks_in(folder, layout) as chunks:
            with await chunks.plan(prompt(document(1))) as plan:
                assert plan.spans[0].why == "new"
                await put_all(chunks, plan, layout)
    assert EXACT.canonical() == replace(EXACT, payload="exact").canonical()
    assert b"payload" not in EXACT.canonical()  # as it was before there were others
    with pytest.raises(sarpstore.OptionError, match="payload='int4'"):
        replace(EXACT, payload="int4")


@pytest.mark.parametrize("payload", ["int8", "fp8"])
async def test_infinities_are_refused_and_the_store_goes_on(payload):
    layout = replace(EXACT, payload=payload)
    async with chunks_in(MemoryFolder(), layout) as chunks:
        with await chunks.plan(prompt(document(1), document(2))) as plan:
            shape = (5, 2, 50, 14)
            odd = np.full(shape, 0x7F80, np.uint16)
            for keys, values in ((odd, np.zeros(shape, np.uint16)), (np.zeros(shape, np.uint16), odd)):
                with pytest.raises(sarpstore.InputError, match="infinities"):
                    await chunks.put(plan.misses[0], keys, values)
            assert await put_all(chunks, plan, layout) == 2


async def test_a_damaged_code_is_a_miss():
    layout, folder = replace(EXACT, payload="int8"), MemoryFolder()
    async with chunks_in(folder, layout) as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            await put_all(chunks, plan, layout)
        [name] = [name for name in folder.reopen().names() if name.endswith(".region")]
        file = folder.reopen().open(name, writable=True)
        file.write(3000, b"\1\2\3")
        with await chunks.plan(prompt(document(1))) as plan:
            await chunks.load(plan)
            assert plan.spans[0].why == "damaged"


@pytest.mark.parametrize("payload", ["exact", "int8"])
async def test_an_array_whose_rows_cannot_be_written_is_refused_and_left_alone(payload):
    layout = replace(EXACT, payload=payload)
    async with chunks_in(MemoryFolder(), layout) as chunks:
        with await chunks.plan(prompt(document(1))) as plan:
            await put_all(chunks, plan, layout)
        with await chunks.plan(prompt(document(1))) as plan:
            *most, head_dim = layout.shape(plan.tokens)
            whole = np.zeros((*most, 2 * head_dim), np.uint16)
            read_only = np.zeros((*most, head_dim), np.uint16)
            read_only.flags.writeable = False
            one_row = np.lib.stride_tricks.as_strided(whole, (*most, head_dim), (0, 0, 0, 0, 2))
            for out in (whole[..., ::2], whole[:, :, :, ::-1, :head_dim], read_only, one_row):
                with pytest.raises(sarpstore.InputError, match="out: it is read-only"):
                    await chunks.load(plan, out)
            assert not whole.any()
            assert not read_only.any()
            assert (await chunks.load(plan, whole[..., :head_dim])).any()
            assert not whole[..., head_dim:].any()
