"""Gathering, sealing and summaries: what is written is what a reader finds, page by page or by the summary."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import WIDE, locations, logs, memory_store, records, remove_checkpoints, small_files

from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._io import Scheduler, ThreadBackend
from sarpstore._log.header import LogHeader
from sarpstore._log.scan import PageScanner, scan_file, scan_summary


async def scans_of(folder, name):
    """(page by page, by the summary or None) of a log file."""
    data = read_whole(folder, name)
    header = LogHeader.decode(data[: fmt.LOG_HEADER_BYTES], name)
    directory = DivergenceDirectory(header.shape.secret, 1 << 20)
    scheduler = Scheduler(ThreadBackend())
    file = folder.open(name)
    try:
        scanner = PageScanner(header.shape, directory.base, header.file_number, 2, header.previous_commit)
        paged = await scan_file(scheduler, file, scanner, fmt.LOG_HEADER_BYTES, len(data))
        summed = await scan_summary(
            scheduler, file, header.shape, directory.base, header.file_number, len(data), synced=(1 << 64) - 1
        )
    finally:
        await scheduler.close()
    return paged, summed


def same_changes(paged, summed):
    """The summary stands for every record but commit records, the seal and the summary itself."""
    kept = ~np.isin(paged.changes["type"], [fmt.RECORD_SEAL, fmt.RECORD_SUMMARY])
    fields = [name for name in paged.changes.dtype.names if name not in ("commit", "reserved")]
    assert paged.changes[kept][fields].tolist() == summed.changes[fields].tolist()
    assert paged.sequence == summed.sequence
    assert paged.end == summed.end
    assert paged.commits[-1]["number"] == summed.commits[-1]["number"]
    assert len(paged.damaged) == len(summed.damaged) == 0


inserts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 200), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=15,
)


@pytest.mark.parametrize("dtype", [np.dtype([("page", "u1")]), WIDE], ids=["1-byte", "46-bytes"])
def test_a_sealed_files_summary_gives_the_same_changes_as_its_records(dtype):
    async def write(sequence):
        folder = MemoryFolder()
        async with memory_store(folder.reopen(), location_dtype=dtype, sync_interval_ms=60_000) as store:
            trunk = [7] * 200
            for space, cut, tail, symbol, sync in sequence:
                path = trunk[:cut] + [symbol] * tail
                await store.namespace(f"n{space}").insert(path, np.zeros(len(path), dtype), holder=symbol)
                if sync:
                    await store.sync()
        for name in logs(folder):
            paged, summed = await scans_of(folder, name)
            assert summed is not None
            assert summed.sealed
            same_changes(paged, summed)
            assert (paged.commits["flags"] & 1).all()
            assert np.array_equal(paged.commits["number"], paged.commits[0]["number"] + np.arange(len(paged.commits)))
            assert paged.tail == paged.end

    @settings(max_examples=40)
    @given(inserts)
    def check(sequence):
        asyncio.run(write(sequence))

    check()


@pytest.mark.parametrize("durability", ["always", "never"])
async def test_files_roll_seal_and_never_exceed_their_size(monkeypatch, durability):
    size = small_files(monkeypatch)
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), log_file_bytes=size, durability=durability) as store:
        x = store.namespace("x")
        for i in range(60):
            await x.insert([i] * (i * 7 % 300 + 1), locations(i * 7 % 300 + 1, 1000 * i))
    assert len(logs(folder)) > 2
    end = 0
    for name in logs(folder):
        data = read_whole(folder, name)
        header = LogHeader.decode(data[: fmt.LOG_HEADER_BYTES], name)
        assert len(data) <= size
        assert header.previous_end == end
        paged, summed = await scans_of(folder, name)
        same_changes(paged, summed)
        end = paged.end
    remove_checkpoints(folder)
    async with memory_store(folder.reopen()) as store:
        for i in range(60):
            match = await store.namespace("x").match([i] * 400)
            assert match.locations["address"].tolist() == list(range(1000 * i, 1000 * i + i * 7 % 300 + 1))


async def test_many_small_namespaces_do_not_push_a_file_past_its_size():
    """A namespace's record and a one-block segment take 4 units of a page, and two entries of the summary."""
    dtype = np.dtype([("page", "u1")])
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), location_dtype=dtype, log_file_bytes=1 << 20) as store:
        for i in range(7000):
            await store.namespace("", salt=i.to_bytes(4, "little")).insert([i], np.zeros(1, dtype))
            if i % 1000 == 999:
                await store.sync()
    assert len(logs(folder)) > 1
    assert max(len(read_whole(folder, name)) for name in logs(folder)) <= 1 << 20
    remove_checkpoints(folder)
    async with memory_store(folder.reopen()) as store:
        for i in range(0, 7000, 100):
            assert (await store.namespace("", salt=i.to_bytes(4, "little")).match([i])).blocks == 1


async def test_an_insertion_larger_than_a_commit_is_cut_into_a_prefix():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), location_dtype=WIDE, log_file_bytes=1 << 20) as store:
        assert await store.namespace("x").insert(range(40_000), locations(40_000, dtype=WIDE)) == 40_000
        match = await store.namespace("x").match(range(40_000))
        assert match.blocks == 40_000
        assert match.locations["address"].tolist() == list(range(40_000))
    assert len(logs(folder)) > 2
    remove_checkpoints(folder)
    async with memory_store(folder.reopen()) as store:
        match = await store.namespace("x").match(range(40_000))
        assert match.locations["address"].tolist() == list(range(40_000))


async def test_records_stand_in_pages_at_unit_boundaries_and_free_units_are_zero():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        for i in range(30):
            await store.namespace("x").insert([i] * (i * 5 + 1), locations(i * 5 + 1))
            if i % 4 == 0:
                await store.sync()
    name = logs(folder)[0]
    data = read_whole(folder, name)
    assert len(data) % fmt.PAGE == 0
    covered = bytearray(len(data))
    covered[: fmt.LOG_HEADER_BYTES] = b"\1" * fmt.LOG_HEADER_BYTES
    sequences, commit = [], 0
    for at, kind, _, number in records(folder, name):
        length = int.from_bytes(data[at + 8 : at + 10], "little")
        assert at % fmt.UNIT == 0
        assert at // fmt.PAGE == (at + length - 1) // fmt.PAGE
        covered[at : at + length] = b"\1" * length
        sequences.append(int.from_bytes(data[at + 16 : at + 24], "little"))
        assert number in (commit, commit + 1)
        assert kind
        commit = number
    assert not any(byte for byte, known in zip(data, covered, strict=True) if not known)
    assert sorted(sequences) == list(range(1, len(sequences) + 1))


async def test_what_overrides_a_record_stands_behind_it():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), sync_interval_ms=60_000) as store:
        x = store.namespace("x")
        for blocks in range(1, 64, 3):
            await x.insert(range(blocks), locations(blocks))
            await x.insert([*range(blocks // 2), 1000 + blocks], locations(blocks // 2 + 1))
        await store.sync()
        # one commit holds all of them, and the order of place is the order in which they are replayed
        assert store.stats().commits <= 2
        answers = {b: (await x.match(range(b))).locations.tolist() for b in range(1, 64, 3)}
    remove_checkpoints(folder)
    async with memory_store(folder.reopen()) as store:
        for blocks, answer in answers.items():
            assert (await store.namespace("x").match(range(blocks))).locations.tolist() == answer


async def test_a_mark_says_what_was_synced_and_an_idle_store_writes_only_one():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), sync_interval_ms=2) as store:
        await store.namespace("x").insert([1], locations(1))
        await store.sync()
        await asyncio.sleep(0.1)
        paged, _ = await scans_of(folder, logs(folder)[0])
        assert len(paged.commits) == 2
        assert paged.commits[1]["flags"] >> 8 == fmt.COMMIT_MARK
        assert paged.commits[1]["synced"] == paged.commits[0]["end"]
