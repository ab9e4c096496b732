"""What an image of a chunk store has to hold when it is opened, and what comes of it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunk_helpers import check_loaded, kv_of, prompt
from sarpstore_tools.specreader.chunk_store import verify_chunks

import sarpstore
from fuzz.crashes.check import SECONDS_MAX, opened_and_cut
from fuzz.crashes.chunks import DOCUMENTS, LAYOUT, REGIONS, ChunkHistory, ChunkImage, open_on, tokens_of
from fuzz.crashes.damage import Damage, spoil
from fuzz.crashes.history import Difference
from sarpstore._files import MemoryFolder, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random
    from typing import Final

    from sarpstore import Chunks
    from sarpstore._files import Folder

__all__ = ["check_chunks", "check_damaged_chunks"]

_NEW: Final = 1_000
"""A document that no workload has."""


async def check_chunks(_: ChunkHistory, image: ChunkImage, random: Random) -> ChunkImage | None:
    """Recover an image, and load all that it holds; an image of a power cut meanwhile, if one came.

    Raises a Difference, or an AssertionError where what is loaded is not what was put.
    """
    cut: list[ChunkImage] = []
    chunks = await opened_and_cut(image, random, cut, _open_image)
    found = await _found(chunks, image)
    if not image.must <= found:
        raise Difference(f"{_name(image)}: documents {sorted(image.must - found)} are lost")
    stats = chunks.stats()
    if chunks._opened.found.damage or stats.failed or stats.damaged_payloads:
        told = f"{chunks._opened.found.damage}, {stats.damaged_payloads} payloads, failed: {stats.failed!r}"
        raise Difference(f"{_name(image)}: damage after a power cut: {told}")
    await chunks.close()
    what = random.randrange(4)
    if what == 0:
        await _check_going_on(image, found)
    elif what == 1:
        await _check_same(image, image.folder, found, "opened a second time")
    elif what == 2:
        without = image.folder.clone()
        for name in [name for name in without.names() if name.endswith(".chunks")]:
            without.remove(name)
        await _check_same(image, without, found, "opened without its tables")
    elif what == 3:
        _check_verified(image)
    return cut[0] if cut else None


async def check_damaged_chunks(
    _: ChunkHistory, image: ChunkImage, kind: str, random: Random
) -> tuple[Damage, str] | None:
    """Damage an image and recover it: what was done and how it ended. Raises a Difference where that is not known."""
    folder = image.folder.clone()
    damage = spoil(folder, kind, random)
    if damage is None:
        return None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            chunks = await _open_image(folder)
    except sarpstore.SarpError:
        return damage, "refused"
    found = await _found(chunks, image)
    reported = bool(chunks._opened.found.damage) or chunks.stats().damaged_payloads > 0
    await _put_new(chunks)
    await chunks.close()
    lost = image.must - found
    if not lost:
        return damage, "reported, nothing lost" if reported else "harmless"
    if reported:
        return damage, "reported, chunks lost"
    if any(name.endswith(".entries") for name in (damage.name, damage.also)):
        # The end of the entries, or all of them: so a crash in the middle of a put, or of an eviction, leaves them.
        return damage, "taken for a torn tail"
    raise Difference(f"{_name(image)}, after {damage}: documents {sorted(lost)} are lost, and nothing is reported")


def _open_image(folder: Folder) -> Any:
    return open_on(folder, max(REGIONS))


def _name(image: ChunkImage) -> str:
    return f"{image.mode} at change {image.at}, depth {image.depth}"


async def _found(chunks: Chunks, image: ChunkImage) -> frozenset[int]:
    """The documents that are held, each loaded and compared. Difference: one that was never put."""
    numbers = [_NEW, *range(DOCUMENTS)]
    with await chunks.plan(prompt(*map(tokens_of, numbers))) as plan:
        check_loaded(plan, await chunks.load(plan), LAYOUT)
        found = frozenset(number for number, span in zip(numbers, plan.spans, strict=False) if span.hit)
    if unknown := found - image.may - {_NEW}:
        raise Difference(f"{_name(image)}: documents {sorted(unknown)} were never put")
    return found


async def _put_new(chunks: Chunks) -> bool:
    """Put a document that is new, asked for often enough that it is admitted."""
    for _ in range(4):
        with await chunks.plan(prompt(tokens_of(_NEW))) as plan:
            span = plan.spans[0]
            if span.hit or await chunks.put(span, *kv_of(span, LAYOUT)):
                return True
    return False


async def _check_going_on(image: ChunkImage, found: Iterable[int]) -> None:
    """What is put after a recovery is there after the next power cut, and so is all else that did not go for it."""
    folder = image.folder.clone()
    chunks = await _open_image(folder)
    if not await _put_new(chunks):  # not admitted: all that is held was asked for more often
        await chunks.close()
        return
    evicted = chunks.stats().evicted_chunks
    after = await _open_image(folder.crash(0, "lose"))
    await chunks.close()
    again = await _found(after, image)
    await after.close()
    if _NEW not in again or len(frozenset(found) - again) > evicted:
        raise Difference(f"{_name(image)}: {sorted(again)} after a put behind a recovery that found {sorted(found)}")


async def _check_same(image: ChunkImage, folder: MemoryFolder, found: Iterable[int], how: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        chunks = await _open_image(folder.reopen())
    again = await _found(chunks, image)
    await chunks.close()
    if again != found:
        raise Difference(f"{_name(image)}, {how}: {sorted(again)}; the first time {sorted(found)}")


def _check_verified(image: ChunkImage) -> None:
    """A reader that knows the specification alone finds no fault."""
    folder = image.folder.reopen()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as place:
        for name in folder.names():
            (Path(place) / name).write_bytes(read_whole(folder, name))
        if faults := verify_chunks(Path(place)).faults:
            raise Difference(f"{_name(image)}: verify finds {faults}")
