"""Makes the stores under `v1.0`, which every later version must go on reading.

They were made once, by the engine that wrote format 1.0, with

    python tests/golden/make_golden.py

and are kept as they were: run it again only to add a store, and keep the others. The uuid, the secret and the times of
a store are seeded here, and everything is inserted and synced step by step, so that another run of the same engine
gives the same bytes, apart from the statistics file, which is left out.

Each store's `expected.json` has the answers (how many blocks are held, and the locations' addresses) to the queries of
`golden_queries`, as the engine gave them when the store was made, and what `sarpstore verify` says. The damaged stores
are copies of `clean` or of a store that was left as a kill leaves it, with the bytes changed that their functions say.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import sarpstore
from sarpstore import _clock
from sarpstore._log import header

sys.path.insert(0, str(Path(__file__).parent))
from golden_queries import answers, queries, verified

HERE = Path(__file__).parent / "v1.0"
PAGE = 4096
WIDE = np.dtype([("object", "S20"), ("offset", "<u8"), ("tier", "|u1"), ("score", "<f4")])


def seeded(name: str) -> None:
    """Random bytes and times of this process become the same in every run."""
    count = itertools.count()
    secrets.token_bytes = lambda n=32: hashlib.sha256(f"{name} {next(count)}".encode()).digest()[:n]
    clock = itertools.count(1_790_000_000_000, 1000)
    header.wall_ms = _clock.wall_ms = lambda: next(clock)


def located(count: int, first: int, dtype: np.dtype[Any] = sarpstore.LOCATION) -> np.ndarray:
    """Locations that say where they came from: `first` and on."""
    rows = np.zeros(count, dtype)
    rows["address" if "address" in dtype.names else "offset"] = np.arange(first, first + count)
    return rows


async def fill(path: Path, **options: Any) -> None:
    """Two namespaces and the empty one, two holders, branches, records that supersede; two sessions, each closed."""
    asked = queries()
    dtype = options.get("location_dtype", sarpstore.LOCATION)
    async with sarpstore.open(path, block_tokens=4, **options) as store:
        chat, lora, bare = store.namespace("chat"), store.namespace("chat", adapter="lora-1"), store.namespace()
        await chat.insert(asked["chat"][2][:40], located(10, 100, dtype))
        await chat.insert(asked["chat"][2], located(100, 200, dtype))
        await store.sync()
        await lora.insert(asked["lora"][2], located(20, 1000, dtype))
        await bare.insert(asked["bare"][2], located(70, 2000, dtype))
        await store.checkpoint()
        await chat.insert(asked["chat branch"][2], located(80, 3000, dtype))
        await chat.insert(asked["chat late branch"][2], located(110, 4000, dtype))
        await store.sync()
    async with sarpstore.open(path) as store:
        chat = store.namespace("chat")
        await chat.insert(asked["chat longer"][2], located(120, 5000, dtype))
        await store.sync()
        await chat.insert(asked["other holder"][2], located(5, 6000, dtype), holder=7)
        await store.checkpoint()
        await chat.insert(asked["last"][2], located(9, 7000, dtype))
        await store.sync()


def live_copy(source: Path, target: Path) -> None:
    """What a kill at this moment would leave."""
    shutil.copytree(source, target)


async def killed_store(path: Path, torn: bool) -> None:
    """A process that wrote and was killed: no seal. `torn` cuts its last commit in the middle of a page."""
    asked = queries()
    with tempfile.TemporaryDirectory() as other:
        living = Path(other) / "living"
        async with sarpstore.open(living, block_tokens=4, durability="never") as store:
            chat = store.namespace("chat")
            await chat.insert(asked["chat"][2], located(100, 200))
            await store.sync()
            await store.checkpoint()
            await chat.insert(asked["chat branch"][2], located(80, 3000))
            await store.sync()
            await chat.insert(asked["last"][2], located(9, 7000))
            await store.sync()
            live_copy(living, path)
    if torn:
        (log,) = path.glob("*.log")
        data = log.read_bytes()
        log.write_bytes(data[: len(data) - PAGE + 700])


async def make(name: str, path: Path) -> None:
    seeded(name)
    if name == "killed":
        await killed_store(path, torn=True)
    elif name == "void-region":
        await void_region(path)
    elif name == "mmh3-custom-location":
        await fill(path, hash="mmh3", location_dtype=WIDE)
    else:
        seeded("clean")
        await fill(path)
        DAMAGES.get(name, lambda _: None)(path)


async def void_region(path: Path) -> None:
    """A commit that was written, but not accepted when the store was opened again: the next file's header names an end
    before it. Then its bytes came back, as those of a write that was still under way may: valid, and void."""
    await killed_store(path, torn=False)
    (log,) = path.glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:-PAGE])
    async with sarpstore.open(path) as store:
        await store.namespace("chat").insert(queries()["after the kill"][2], located(8, 8000))
        await store.sync()
    log.write_bytes(whole)


def no_checkpoint(path: Path) -> None:
    for name in [*path.glob("*.checkpoint"), *path.glob("*.images")]:
        name.unlink()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def damaged_record(path: Path) -> None:
    """One bit of a block id in the record of `chat`'s first 64 blocks, which was synced long ago."""
    flip(path / f"{1:016x}.log", 8192 + PAGE + 900)


def damaged_image(path: Path) -> None:
    flip(max(path.glob("*.images")), 70)


def damaged_head(path: Path) -> None:
    flip(max(path.glob("*.checkpoint")), 100)


DAMAGES = {
    "no-checkpoint": no_checkpoint,
    "damaged-record": damaged_record,
    "damaged-image": damaged_image,
    "damaged-head": damaged_head,
}
NAMES = ("clean", "killed", *DAMAGES, "void-region", "mmh3-custom-location")


async def main() -> None:
    for name in sys.argv[1:] or NAMES:
        path = HERE / name
        shutil.rmtree(path, ignore_errors=True)
        store = path / "store"
        path.mkdir(parents=True)
        await make(name, store)
        for unwanted in ("LOCK", "stats"):
            (store / unwanted).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as other:
            copy = Path(shutil.copytree(store, Path(other) / "copy"))
            expected = {"answers": await answers(copy), "verify": verified(store)}
        (path / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        size = sum(file.stat().st_size for file in store.iterdir())
        sys.stdout.write(f"{name}: {size} bytes, verify {expected['verify']}\n")


if __name__ == "__main__":
    asyncio.run(main())
