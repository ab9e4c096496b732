"""What a chunk store publishes about itself each second, and what is told to it."""

from __future__ import annotations

import asyncio
import os
import time
from errno import EIO, ENOSPC

import msgspec
import numpy as np
import pytest
from chunk_helpers import MIB, chunks_in, document, fill, held, prompt, put_all

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import Fault, FaultyFolder, MemoryFolder, read_whole
from sarpstore._log import published


@pytest.fixture
def quickly(monkeypatch):
    """Statistics are published in each turn of the loop, or nearly so."""
    monkeypatch.setattr(published, "_START_AFTER_S", 0)
    monkeypatch.setattr(published, "_PUBLISH_S", 1e-4)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


def published_in(folder):
    """The statistics in a folder in memory; None if there are none."""
    inner = folder.reopen()
    if "stats" not in inner.names():
        return None
    body = read_whole(inner, "stats")[fmt.STATS_HEADER.size :]
    return msgspec.json.decode(body, type=sarpstore.ChunkStats)


# --- published


async def test_a_closed_stores_last_statistics_are_published(tmp_path):
    async with chunks_in(tmp_path / "s") as chunks:
        await fill(chunks, range(5))
        assert await held(chunks, range(5)) == set(range(5))
        chunks.note_use(tokens=30, recomputed=6)
        chunks.note_drift(0.25)
        last = chunks.stats()
    told = await sarpstore.published_chunk_stats(tmp_path / "s")
    assert (
        msgspec.structs.replace(
            told.stats, disk_bytes=last.disk_bytes, written_bytes=last.written_bytes, table_lag=last.table_lag
        )
        == last
    )
    assert told.stats.table_lag == 0
    assert (told.stats.hit_rate, told.stats.fix_up_share, told.stats.drift) == (last.hit_rate, 0.2, 0.25)
    assert told.stats.load_bandwidth > 0
    assert told.process == os.getpid()
    assert abs(told.published_ms / 1e3 - time.time()) < 60


async def test_an_open_store_publishes_again_and_again(quickly):
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        await until(lambda: published_in(folder) is not None)
        await fill(chunks, range(3))
        await until(lambda: published_in(folder).puts == 3)
        await fill(chunks, range(3, 5))
        await until(lambda: published_in(folder).puts == 5)


async def test_nothing_is_published_after_the_close(quickly):
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        await fill(chunks, [1])
    folder.reopen().remove("stats")
    await asyncio.sleep(0.05)
    assert not {"stats", "stats.tmp"} & set(folder.reopen().names())
    assert not [task for task in asyncio.all_tasks() if "statistics" in task.get_name()]


async def test_each_kind_of_store_says_whose_statistics_they_are(tmp_path):
    for path in (tmp_path / "chunks", tmp_path / "index"):
        with pytest.raises(sarpstore.NotAStoreError, match="no writer has published"):
            await sarpstore.published_chunk_stats(path)
    async with chunks_in(tmp_path / "chunks"), sarpstore.open(tmp_path / "index"):
        pass
    with pytest.raises(sarpstore.NotAStoreError, match=r"of a chunk store; sarpstore\.published_chunk_stats"):
        await sarpstore.published_stats(tmp_path / "chunks")
    with pytest.raises(sarpstore.NotAStoreError, match=r"of an index; sarpstore\.published_stats"):
        await sarpstore.published_chunk_stats(tmp_path / "index")


async def test_damaged_statistics_are_one_clear_error(tmp_path):
    async with chunks_in(tmp_path):
        pass
    path = tmp_path / "stats"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises((sarpstore.CorruptionError, sarpstore.VersionError), match="stats"):
                await sarpstore.published_chunk_stats(tmp_path)
            async with chunks_in(tmp_path):
                assert not chunks_damage(tmp_path)


def chunks_damage(path):
    """Names that a store's open should not have left."""
    return [name for name in os.listdir(path) if name.endswith(".tmp")]


class _Old(msgspec.Struct):
    chunks: int


async def test_statistics_of_another_version_are_said_to_be(tmp_path):
    from sarpstore._files import folder_at

    folder = folder_at(tmp_path, create=True)
    published.publish(folder, bytes(16), _Old(chunks=5))
    folder.close()
    with pytest.raises(sarpstore.CorruptionError, match="of another version"):
        await sarpstore.published_chunk_stats(tmp_path)


@pytest.mark.parametrize("operation", ["create", "write", "rename", "remove"])
async def test_statistics_that_cannot_be_published_harm_nothing_and_are_tried_again(operation, quickly):
    inner = MemoryFolder()
    folder = FaultyFolder(inner, [Fault("write", "stats", errno=ENOSPC), Fault(operation, "stats", errno=EIO, times=3)])
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(4))
        assert await held(chunks, range(4)) == set(range(4))
        await until(lambda: published_in(inner) is not None)
        assert folder.injected >= 3
        assert chunks.stats().failed == ""
    assert published_in(inner).puts == 4


async def test_a_store_whose_puts_have_stopped_says_so_to_others():
    inner = MemoryFolder()
    folder = FaultyFolder(inner, [Fault("sync", "0000000000000001.region", errno=ENOSPC)])
    async with chunks_in(folder) as chunks:
        with pytest.raises(sarpstore.DiskFullError):
            await fill(chunks, [1])
    assert "sync of" in published_in(inner).failed


@pytest.mark.parametrize("mode", ["lose", "keep", "tear", "junk"])
async def test_what_a_power_cut_leaves_of_statistics_is_no_damage_and_goes(mode, quickly):
    folder, images = MemoryFolder(), []
    async with chunks_in(folder) as chunks:
        for number in range(30):
            await fill(chunks, [number % 6])
            images.append(folder.crash(number, mode))
    first = images[0].reopen()
    if "stats.tmp" not in first.names():
        first.create("stats.tmp").close()
    for image in images:
        async with chunks_in(image) as chunks:
            assert not chunks._opened.found.damage
            assert "stats.tmp" not in image.reopen().names()


async def test_statistics_count_in_the_bound(quickly):
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        for number in range(120):
            await fill(chunks, [number], 500)
            assert chunks._opened.folder.bytes_highest <= 8 * MIB
        await until(lambda: published_in(folder).puts == chunks.stats().puts)
        await until(lambda: "stats.tmp" not in folder.reopen().names())
    inner = folder.reopen()
    taken = fmt.PAGE + sum(-(-inner.size(name) // fmt.PAGE) * fmt.PAGE for name in inner.names())
    async with chunks_in(folder) as chunks:
        assert chunks.stats().disk_bytes == taken


async def test_small_regions_and_small_chunks_leave_room_for_all_files():
    options = {"bytes_max": 4 * MIB}
    folder = MemoryFolder()
    async with chunks_in(folder, **options) as chunks:
        await chunks._puts.restored()
        rows = chunks._opened.metadata_bytes
        regions = chunks._opened.regions_max
    # Entries, two tables and a third; what rounds up, of each file; headers; the folder; statistics, old and new.
    tables = 3 * (128 + 24 * regions + fmt.PAGE)
    entries = regions * (fmt.PAGE + fmt.PAGE - 1)
    assert rows + tables + entries + fmt.PAGE + 4 * fmt.PAGE + regions * MIB <= 4 * MIB


# --- told


async def test_what_is_told_is_summed_and_what_cannot_be_is_refused():
    async with chunks_in(MemoryFolder()) as chunks:
        assert (chunks.stats().fix_up_share, chunks.stats().drift, chunks.stats().load_bandwidth) == (0, 0, 0)
        chunks.note_use(tokens=100)
        chunks.note_use(tokens=100, recomputed=50)
        for nats in (1, np.float32(2.0), 3.0):
            chunks.note_drift(nats)
        before = chunks.stats()
        assert (before.fix_up_share, before.compared, before.drift) == (0.25, 3, 2.0)
        wrong = ({"tokens": -1}, {"tokens": 1, "recomputed": 2}, {"tokens": 1.5}, {"tokens": 1, "recomputed": -1})
        for told in (*wrong, {"tokens": 1 << 40}, {"tokens": "1"}):
            with pytest.raises(sarpstore.InputError, match="note_use"):
                chunks.note_use(**told)
        for nats in (-0.1, float("nan"), float("inf"), 10**400, "1", None):
            with pytest.raises(sarpstore.InputError, match="note_drift"):
                chunks.note_drift(nats)
        assert chunks.stats() == msgspec.structs.replace(before, disk_bytes=chunks.stats().disk_bytes)
    for call in (lambda: chunks.note_use(tokens=1), lambda: chunks.note_drift(1.0)):
        with pytest.raises(sarpstore.ClosedError):
            call()


async def test_the_drift_is_that_of_lately():
    async with chunks_in(MemoryFolder()) as chunks:
        for nats in [5.0] * 300 + [1.0] * 600:
            chunks.note_drift(nats)
        assert 1.0 < chunks.stats().drift < 1.01


# --- counted


async def test_every_token_looked_up_is_counted_once_under_the_cause_that_its_span_names():
    async with chunks_in(MemoryFolder()) as chunks:
        expected: dict[str, int] = {}
        plans = [await chunks.plan(prompt(document(1), document(2)))]
        plans.append(await chunks.plan(prompt(document(1), document(3)), wait_ms=0))
        await put_all(chunks, plans[0])
        plans.append(await chunks.plan(prompt(document(1), document(2, 40)[:-1] + document(7))))
        for plan in plans:
            plan.close()
            for span in plan.misses:
                if span.why != "question":
                    expected[span.why] = expected.get(span.why, 0) + span.end - span.begin
        assert set(expected) == {"new", "in flight", "boundary"}
        stats = chunks.stats()
        assert stats.missed_tokens == expected
        assert stats.hit_tokens + sum(expected.values()) == stats.tokens


async def test_a_hit_that_two_loads_find_damaged_is_counted_once():
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        await fill(chunks, [1])
        inner = folder.reopen()
        [region] = [name for name in inner.names() if name.endswith(".region")]
        file = inner.open(region, writable=True)
        file.write(5000, b"damage")
        file.close()
        with await chunks.plan(prompt(document(1))) as plan:
            await asyncio.gather(chunks.load(plan), chunks.load(plan))
            assert plan.spans[0].why == "damaged"
        stats = chunks.stats()
        assert (stats.hit_tokens, stats.missed_tokens, stats.damaged_payloads) == (0, {"new": 50, "damaged": 50}, 1)
