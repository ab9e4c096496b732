"""The queries that are put to the golden stores, the engine's answers to them, and what `sarpstore verify` says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from click.testing import CliRunner
from sarpstore_tools.verify import verify

import sarpstore

if TYPE_CHECKING:
    from pathlib import Path

Query = tuple[str, str, np.ndarray, int]


def tokens(first: int, count: int) -> np.ndarray:
    """Token ids that any version of anything makes: no random generator, whose sequence could change."""
    return ((np.arange(first, first + count, dtype=np.uint64) * 2_654_435_761) % 50_000).astype(np.uint32)


def queries() -> dict[str, Query]:
    """Name, adapter, tokens and holder of each query. Blocks have 4 tokens."""
    chat = tokens(0, 400)
    return {
        "chat": ("chat", "", chat, 0),
        "chat branch": ("chat", "", np.concatenate([chat[:160], tokens(10_000, 160)]), 0),
        "chat late branch": ("chat", "", np.concatenate([chat[:300], tokens(20_000, 140)]), 0),
        "chat longer": ("chat", "", np.concatenate([chat, tokens(30_000, 80)]), 0),
        "chat unknown end": ("chat", "", np.concatenate([chat[:212], tokens(40_000, 80)]), 0),
        "lora": ("chat", "lora-1", tokens(0, 80), 0),
        "bare": ("", "", tokens(0, 280), 0),
        "bare branch": ("", "", np.concatenate([tokens(0, 30), tokens(50_000, 80)]), 0),
        "other holder": ("chat", "", chat[:20], 7),
        "nobody": ("chat", "", chat, 8),
        "last": ("chat", "", tokens(60_000, 36), 0),
        "after the kill": ("chat", "", tokens(70_000, 32), 0),
        "unknown": ("chat", "", tokens(80_000, 40), 0),
    }


async def answers(path: Path) -> dict[str, Any]:
    """The engine's answers: blocks held, the locations' numbers, and the last block's id."""
    out: dict[str, Any] = {}
    async with sarpstore.open(path, create=False) as store:
        for label, (name, adapter, asked, holder) in queries().items():
            match = await store.namespace(name, adapter=adapter).match(asked, holder=holder)
            field = "address" if "address" in (store.location_dtype.names or ()) else "offset"
            last = match.ids[-1].tobytes().hex() if match.blocks else ""
            out[label] = {"blocks": match.blocks, "last id": last, "locations": match.locations[field].tolist()}
    return out


def verified(path: Path) -> dict[str, Any]:
    """Exit status of `sarpstore verify`, and the findings' places and codes."""
    result = CliRunner().invoke(verify, [str(path), "--json"])
    found = [json.loads(line) for line in result.output.splitlines()]
    places = [f"{one['file']}:{one['offset']} {one['code']}" for one in found if "code" in one]
    return {"status": result.exit_code, "found": sorted(places)}
