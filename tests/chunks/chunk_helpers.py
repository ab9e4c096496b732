"""Chunk stores in memory, and KV that says which chunk it is of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import sarpstore
from sarpstore._files import MemoryFolder

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

LAYOUT = sarpstore.KVLayout(layers=2, kv_heads=2, head_dim=16, rope=sarpstore.Rope(theta=100.0))
END = 2
"""The delimiter of all tests."""
MIB = 1 << 20
OPTIONS = {"fingerprint": b"a model", "delimiters": (END,), "bytes_max": 8 * MIB, "region_bytes": MIB, "io": "threads"}


def chunks_in(folder, layout=LAYOUT, **more):
    if isinstance(folder, MemoryFolder):
        folder = folder.reopen()
    return sarpstore.open_chunks(folder, layout=layout, **OPTIONS | more)


def document(number, tokens=50):
    """A chunk's token ids, its delimiter included."""
    return [10 + number * 7 % 90, *(3 + (number * 31 + i) % 200 for i in range(tokens - 2)), END]


def prompt(*documents, question=(7, 8, 9)):
    return [token for each in documents for token in each] + list(question)


def kv_of(span, layout=LAYOUT):
    """(keys, values) of a span, which follow from its key."""
    shape = (layout.layers, layout.kv_heads, span.end - span.begin, layout.head_dim)
    random = np.random.default_rng(list(span.key))
    keys, values = (random.standard_normal(shape, np.float32) for _ in range(2))
    if layout.dtype == "bfloat16":
        return tuple((each.view(np.uint32) >> 16).astype(np.uint16) for each in (keys, values))
    return keys.astype(layout.numpy_dtype), values.astype(layout.numpy_dtype)


async def put_all(chunks, plan, layout=LAYOUT):
    """Put what a plan missed, but for the question; how many are stored."""
    stored = 0
    for span in plan.misses:
        if span.why != "question":
            stored += await chunks.put(span, *kv_of(span, layout))
    return stored


async def fill(chunks, numbers, tokens=50, layout=LAYOUT):
    """Put documents, one prompt each."""
    for number in numbers:
        with await chunks.plan(prompt(document(number, tokens))) as plan:
            await put_all(chunks, plan, layout)


def check_loaded(plan, kv, layout=LAYOUT):
    """The hits of a plan have the KV of their chunks, rotated for where they stand."""
    for span in plan.hits:
        keys, values = kv_of(span, layout)
        rotated = np.empty_like(keys)
        sarpstore.rotate_keys(layout, keys, rotated, span.begin)
        for layer in range(layout.layers):
            kept = layout.kept_tokens(layer, span.end - span.begin)
            at = slice(span.end - kept, span.end)
            assert np.array_equal(kv[layer, 0, :, at], rotated[layer, :, -kept:])
            assert np.array_equal(kv[layer, 1, :, at], values[layer, :, -kept:])


async def held(chunks, numbers, tokens=50, layout=LAYOUT):
    """Which of these documents are there, each loaded and compared."""
    found = set()
    for number in numbers:
        with await chunks.plan(prompt(document(999), document(number, tokens))) as plan:
            kv = await chunks.load(plan)
            check_loaded(plan, kv, layout)
            if plan.spans[1].hit:
                found.add(number)
    return found
