"""Makes the seed inputs of the targets out of stores that the engine wrote.

    python -m fuzz.hostile.corpus

A scene (targets/scene.h) is some pages of a store's first log file with the entries of its partitions and options; the
stores have the uuid and the secret that the targets know, so that checksums and keys hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import struct
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._log import header

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).resolve().parent / "corpus"
UUID: Final = b"sarpstore uuid !"
SECRET: Final = b"sarpstore secret"
SCENES: Final = ("scan", "compact", "markpass", "match", "removals")
"""Targets that take scenes; they share their seeds."""

_FILE_BYTES: Final = 1 << 22
_SARP, _EVICTS, _HALVES, _FROM_LOG, _EXPIRY, _EPOCH, _REPLAYED = 1, 4, 8, 16, 32, 64, 128
_MENDED: Final = 15


def folder_of(target: str) -> Path:
    """Where a target's seeds are."""
    return FOLDER / ("scene" if target in SCENES else target)


async def small_store(routing: str, random: Random, *, inserts: int = 12) -> MemoryFolder:
    """A store of one log file with branches, removals, counts, a second holder and, but for the end, a checkpoint."""
    tokens = iter((UUID, SECRET))
    kept, header.secrets.token_bytes = header.secrets.token_bytes, lambda _: next(tokens)
    folder = MemoryFolder()
    options: dict[str, Any] = {"read_cap": 4, "refine_at": 4, "prune_at": 2} if routing == "sarp" else {}
    try:
        store = await sarpstore.open(folder.reopen(), block_tokens=1, routing=routing, **options)
    finally:
        header.secrets.token_bytes = kept
    async with store:
        await _fill(store, random, inserts)
    return folder


async def _fill(store: sarpstore.Store, random: Random, inserts: int) -> None:
    spaces = [store.namespace("a"), store.namespace("b", adapter="c")]
    paths: list[list[int]] = [[]]
    for number in range(inserts):
        parent = random.choice(paths)
        path = parent[: random.randrange(len(parent) + 1)]
        path = path + [random.randrange(1 << 20) for _ in range(random.choice([3, 20, 63, 70]))]
        paths.append(path[:150])
        space, holder = random.choice([spaces[0], spaces[0], spaces[1]]), random.choice([0, 0, 5])
        rows = np.zeros(len(paths[-1]), sarpstore.LOCATION)
        rows["address"] = np.arange(len(rows)) + 1000 * number
        await space.insert(paths[-1], rows, holder=holder)
        if number % 4 == 3:
            cut = random.choice(paths[1:])
            await space.truncate(cut, blocks=random.randrange(len(cut)), holder=holder)
        if number % 3 == 2:
            await store.sync()
        if number == 2 * inserts // 3:
            await store.checkpoint()
    ids = np.frombuffer(hashlib.sha256(b"counted").digest(), np.uint8).reshape(2, 16)
    for _ in range(2):
        await spaces[1].insert_ids(ids, np.zeros(2, sarpstore.LOCATION), counted=True)
    if inserts % 2:
        await store.clear_holder(5)


def image_entries(folder: MemoryFolder, routing: str) -> bytes:
    """The entries of all partitions of the newest checkpoint, in order."""
    number = max(fmt.numbered(folder.names(), fmt.CHECKPOINT_SUFFIX))
    head = read_whole(folder, fmt.checkpoint_name(number))
    fields = fmt.CHECKPOINT_HEAD.unpack_from(head)
    rows = np.frombuffer(head, fmt.ROW_DTYPES[routing], fields[16], fmt.CHECKPOINT_HEAD.size + 16 * fields[17])
    size, parts = fmt.ENTRY_DTYPES[routing].itemsize, []
    for row in rows:
        if row["entries"]:
            at = int(row["page"]) * fmt.PAGE + fmt.IMAGE_HEADER.size
            data = read_whole(folder, fmt.images_name(int(row["images_number"])))
            parts.append(data[at : at + int(row["entries"]) * size])
    return b"".join(parts)


def scene(flags: int, mend: int, pages: bytes, entries: bytes, count: int, markers: bytes, choices: bytes) -> bytes:
    """An input of the targets that take scenes."""
    page_count = len(pages) // fmt.PAGE
    options = struct.pack("<BBBBHBB8s", flags, mend, 15, page_count, count, len(markers) // 2, 0, choices)
    return options + pages + entries + markers


async def scenes() -> Iterator[tuple[str, bytes]]:
    """Named scenes: both routings, the directory from the image or from the log, whole, in halves, with removals."""
    out = []
    for routing, inserts in (("divergence", 7), ("divergence", 18), ("sarp", 8), ("sarp", 15)):
        random = Random(f"{routing} {inserts}")
        folder = await small_store(routing, random, inserts=inserts)
        log = read_whole(folder, fmt.log_name(1))[fmt.LOG_HEADER_BYTES :]
        pages = log[: 10 * fmt.PAGE] if inserts < 10 else log[-10 * fmt.PAGE :]
        entries = image_entries(folder, routing)
        count = len(entries) // fmt.ENTRY_DTYPES[routing].itemsize
        own = _SARP if routing == "sarp" else 0
        small = pages[: 3 * fmt.PAGE]
        kinds = {
            "log": (own | _FROM_LOG | _REPLAYED, pages, b"", 0, bytes(range(7, 15))),
            "image": (own | _EVICTS, small, entries, count, bytes([0, 15, 1, 25, 2, 9, 3, 31])),
            "halves": (own | _HALVES | _EPOCH, small, entries, count, bytes([3, 11, 4, 13, 5, 26, 1, 12])),
            "removed": (own | _FROM_LOG | _EXPIRY, small, b"", 0, bytes([0, 15, 2, 8, 4, 47, 6, 14])),
        }
        for name, (flags, data, table, number, choices) in kinds.items():
            if inserts > 10 and name in ("log", "halves"):
                continue
            markers = bytes(random.randrange(256) for _ in range(12)) if name in ("removed", "halves") else b""
            out.append((f"{routing}-{inserts}-{name}", scene(flags, _MENDED, data, table, number, markers, choices)))
    return iter(out)


async def images() -> Iterator[tuple[str, str, bytes]]:
    """(target, name, input) of the targets that take images and summaries."""
    out = []
    for routing, target in (("divergence", "directory_image"), ("sarp", "postings_image")):
        folder = await small_store(routing, Random(routing), inserts=16)
        entries = image_entries(folder, routing)
        rows = {"divergence": struct.Struct("<QIHBB"), "sarp": struct.Struct("<QQQIHH")}[routing]
        for exponent in (0, 2):
            count = len(entries) // fmt.ENTRY_DTYPES[routing].itemsize // (1 << exponent)
            table = b"".join(
                rows.pack(0, 0, count, exponent, 0) if routing == "divergence" else rows.pack(0, 0, 0, 0, count, 0)
                for _ in range(1 << exponent)
            )
            choice = exponent if routing == "divergence" else (1 << exponent) - 1
            out.append((target, f"rows-{1 << exponent}", bytes([3, choice, 5, 16, 0, 0, 0, 0]) + table + entries))
        log = read_whole(folder, fmt.log_name(1))
        out.append(("summary", routing, bytes([routing == "sarp", 1]) + _summary_entries(log)))
    return iter(out)


def _summary_entries(log: bytes) -> bytes:
    for at in range(fmt.LOG_HEADER_BYTES, len(log), fmt.PAGE):
        length, kind = fmt.RECORD.unpack_from(log, at)[2:4]
        if kind == fmt.RECORD_SUMMARY:
            return log[at + fmt.SUMMARY_HEADER_BYTES : at + length]
    raise ValueError("the log file has no summary")


async def make() -> None:
    """Write the corpus anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    found = [("scan", name, data) for name, data in await scenes()] + list(await images())
    for target, name, data in found:
        folder = folder_of(target)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    print(f"{len(found)} seeds, {sum(len(data) for _, _, data in found):,} bytes")


if __name__ == "__main__":
    asyncio.run(make())
