"""What a store does first imports nothing more: an import holds the event loop, or delays the first answer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ALLOWED = {"concurrent.futures.thread"}
"""Of asyncio's own making, when the first thread is asked for."""

LIFE = """
import asyncio, json, sys
import numpy as np
import sarpstore

async def index(path):
    async with sarpstore.open(path) as store:
        space, tokens = store.namespace("x"), np.arange(1600)
        await space.insert(tokens, np.zeros(100, sarpstore.LOCATION))
        await store.checkpoint()
        await space.match(tokens)
        await space.truncate(tokens, blocks=5)
        await store.compact()

async def chunks(path):
    layout = sarpstore.KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="float16", rope=sarpstore.Rope())
    options = {"layout": layout, "fingerprint": b"x", "delimiters": (1,), "bytes_max": 8 << 20, "region_bytes": 1 << 20}
    async with sarpstore.open_chunks(path, **options) as store:
        for _ in range(2):
            with await store.plan([5, 6, 1, 7]) as plan:
                kv = np.zeros((1, 1, 3, 8), np.float16)
                await store.put(plan.spans[0], kv, kv)
                await store.load(plan)

before = set(sys.modules)
for turn in range(2):
    asyncio.run(index(sys.argv[1] + "/index"))
    asyncio.run(chunks(sys.argv[1] + "/chunks"))
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_a_first_insertion_match_checkpoint_and_compaction_import_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIFE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) <= ALLOWED
