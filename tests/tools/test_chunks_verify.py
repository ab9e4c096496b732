"""`sarpstore verify` and `dump` on chunk stores: clean ones, crash images, and every kind of damage."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sarpstore_tools.dump import dump
from sarpstore_tools.specreader.chunk_store import verify_chunks
from sarpstore_tools.specreader.crc import crc32c
from sarpstore_tools.verify import verify

from sarpstore._files import MemoryFolder

sys.path.insert(0, str(Path(__file__).parent.parent / "chunks"))

from chunk_helpers import MIB, chunks_in, document, fill, held, prompt

TOKENS = 500
PAYLOAD = 63 * 4096


def name(number, kind):
    return f"{number:016x}.{kind}"


def written(folder, path):
    """A memory folder's files in a real one."""
    path.mkdir()
    inner = folder.reopen()
    for each in inner.names():
        file = inner.open(each)
        data = bytearray(file.size())
        file.read_into(0, data)
        file.close()
        (path / each).write_bytes(data)
    return path


async def differs(path, **more):
    """What the engine holds and verify does not, or the other way round."""
    report = verify_chunks(path, payloads=False)
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    async with chunks_in(copy, **more or {"bytes_max": None, "region_bytes": None}) as chunks:
        await chunks._puts.restored()
        index = {key: chunks._held.chunk(key) for key in chunks._held}
    shutil.rmtree(copy)
    ours = {key: (one.sequence, one.bytes, one.tokens, one.crc, one.strip) for key, one in report.held.items()}
    return ours.items() ^ {k: (c.sequence, c.bytes, c.tokens, c.crc, c.strip) for k, c in index.items()}.items()


def found(path, **more):
    return {(fault.file, fault.code) for fault in verify_chunks(path, **more).faults}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Regions 1 to 3 are in table 2; region 3 goes on behind it, region 4 is new, and table 1 is empty."""
    path = tmp_path_factory.mktemp("chunks") / "made"

    async def make():
        async with chunks_in(path.with_name("live")) as chunks:
            await fill(chunks, range(11), TOKENS)
        async with chunks_in(path.with_name("live")) as chunks:
            await fill(chunks, range(20, 24), TOKENS)
            shutil.copytree(path.with_name("live"), path, ignore=shutil.ignore_patterns("*.tmp"))

    asyncio.run(make())
    return path


@pytest.fixture
def path(made, tmp_path):
    shutil.copytree(made, tmp_path / "s")
    return tmp_path / "s"


# --- clean


async def test_stores_are_clean_after_puts_evictions_and_reopening_and_while_they_are_open(tmp_path):
    path = tmp_path / "s"
    for turn in range(3):
        async with chunks_in(path) as chunks:
            report = verify_chunks(path)
            # In one turn of the loop: statistics come and go at any other time.
            assert (report.faults, report.disk_bytes) == ([], chunks.stats().disk_bytes)
            for number in range(turn * 30, turn * 30 + 40):
                (await chunks.plan(prompt(document(number, TOKENS)))).close()
                await fill(chunks, [number], TOKENS)
            report = verify_chunks(path)
            assert (report.faults, report.notes) == ([], [])
            await chunks._puts.restored()
            assert report.held.keys() == set(chunks._held)
            assert report.tokens == TOKENS * len(report.held)
        assert verify_chunks(path).faults == []
        assert not await differs(path)


async def test_a_store_is_clean_that_is_written_while_it_is_checked(tmp_path):
    async with chunks_in(tmp_path / "s") as chunks:
        checking = asyncio.create_task(asyncio.to_thread(verify_chunks, tmp_path / "s"))
        number = 0
        while not checking.done() or number < 60:
            await fill(chunks, [number % 300], TOKENS)
            number += 1
        assert (await checking).faults == []


async def test_payloads_in_several_extents_are_read(tmp_path):
    async with chunks_in(tmp_path / "s") as chunks:
        await fill(chunks, range(2), 5000)
    report = verify_chunks(tmp_path / "s")
    assert report.faults == []
    assert {len(stored.extents) for stored in report.held.values()} == {3}
    last = max(report.held.values(), key=lambda stored: stored.sequence).extents[-1]
    flip(tmp_path / "s" / name(last.region, "region"), last.page * 4096 + 7)
    assert found(tmp_path / "s") == {(name(last.region, "region"), "payload")}
    assert found(tmp_path / "s", payloads=False) == set()


@pytest.mark.parametrize("mode", ["lose", "keep", "tear", "junk"])
async def test_crash_images_are_clean_and_hold_what_the_engine_finds(tmp_path, mode):
    folder, cuts = MemoryFolder(), []
    async with chunks_in(folder) as chunks:
        for number in range(14):
            task = asyncio.create_task(fill(chunks, [number], 2 * TOKENS))
            for turn in range(60):
                await asyncio.sleep(0)
                if (number * 60 + turn) % 59 == 0:
                    cuts.append(folder.crash(number * 100 + turn, mode))
            await task
    for at, image in enumerate(cuts):
        path = written(image, tmp_path / str(at))
        # Statistics are never synced: the medium may show noise in their place, which is warned of.
        assert not [fault for fault in verify_chunks(path).faults if fault.file != "stats"]
        assert not await differs(path)


# --- damage


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def changed(path, offset, value):
    """Other bytes in a table, under a checksum that holds."""
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    data[8:12] = crc32c(bytes(data[12:])).to_bytes(4, "little")
    path.write_bytes(data)


TABLE = name(2, "chunks")
CHUNKS_AT = 128 + 3 * 24


@pytest.mark.parametrize(
    ("file", "offset", "code"),
    [
        (name(1, "region"), 5000, "payload"),
        (name(1, "region"), 256_001, "payload"),  # the strip's checksum
        (name(4, "region"), 10, "payload"),
        (name(1, "entries"), 0, "header-magic"),
        (name(1, "entries"), 20, "header-checksum"),
        (name(1, "entries"), 4000, "header-checksum"),
        (name(1, "entries"), 4096 + 20, "damaged-entry"),
        (name(3, "entries"), 4096 + 3 * 80 + 5, None),  # the last, behind the table: a torn tail
        (name(4, "entries"), 4096 + 5, "damaged-entry"),  # valid ones follow
        (TABLE, 0, "table-magic"),
        (TABLE, 100, "table-checksum"),
        (TABLE, CHUNKS_AT + 3, "table-checksum"),
    ],
)
async def test_flipped_bits_are_found(path, file, offset, code):
    flip(path / file, offset)
    report = verify_chunks(path)
    assert {(fault.file, fault.code) for fault in report.faults} == ({(file, code)} if code else set())
    assert code or [note.code for note in report.notes] == ["torn-tail"]
    assert not await differs(path)


async def test_what_verify_says_is_whole_is_what_the_engine_loads(path):
    for region in (1, 2, 4):
        flip(path / name(region, "region"), 100_000)
    report = verify_chunks(path)
    broken = {fault.meaning.split()[1] for fault in report.faults}
    async with chunks_in(path) as chunks:
        assert len(await held(chunks, [*range(11), *range(20, 24)], TOKENS)) == 12
        await chunks._puts.restored()
        assert {key.hex()[:16] for key in chunks._held} == {key.hex()[:16] for key in report.held} - broken


def test_every_flipped_byte_of_heads_and_entries_is_a_fault_or_in_the_torn_tail(path):
    for kind in ("chunks", "entries"):
        for file in sorted(path.glob(f"*.{kind}")):
            size = file.stat().st_size
            for offset in [*range(0, 128, 9), *range(min(4096, size), size, 47)]:
                flip(path / file, offset)
                report = verify_chunks(path, payloads=False)
                assert any(one.file == file.name for one in report.faults + report.notes), (file.name, offset)
                flip(path / file, offset)


@pytest.mark.parametrize(
    ("file", "size", "codes"),
    [
        (name(2, "region"), 3 * PAYLOAD - 1, {"region-short"}),
        (name(2, "region"), 0, {"region-short"}),
        (name(1, "entries"), 4096 + 90, {"damaged-entry", "entries-cut"}),
        (name(1, "entries"), 4096 + 80, {"entries-cut"}),
        (name(1, "entries"), 100, {"header-truncated"}),
        (TABLE, 500, {"table-checksum"}),
        (TABLE, 50, {"table-truncated"}),
    ],
)
async def test_cut_files_are_found(path, file, size, codes):
    cut(path / file, size)
    assert found(path, payloads=False) >= {(file, code) for code in codes}
    assert not await differs(path)


async def test_missing_files_are_found_and_regions_that_went_are_not_missing(path):
    (path / name(1, "region")).unlink()
    assert found(path) == {(name(1, "entries"), "region-missing")}
    assert not await differs(path)
    (path / name(1, "entries")).unlink()
    assert found(path) == set()
    assert not await differs(path)
    (path / name(2, "entries")).unlink()
    report = verify_chunks(path)
    assert report.faults == []
    assert [(note.file, note.code) for note in report.notes] == [(name(2, "region"), "torn-tail")]
    assert not await differs(path)
    for table in (1, 2):
        (path / name(table, "chunks")).unlink()
    assert found(path) == {("", "table-missing")}
    assert not await differs(path, bytes_max=8 * MIB, region_bytes=MIB)


async def test_what_a_crash_leaves_while_a_region_is_made_is_no_fault(path):
    (path / name(9, "region")).write_bytes(b"")
    header = (path / name(4, "entries")).read_bytes()[:4096]
    (path / name(8, "entries")).write_bytes(header)
    changed(path / name(8, "entries"), 56, struct.pack("<Q", 8))
    (path / f"{name(9, 'entries')}.tmp").write_bytes(header[:50])
    report = verify_chunks(path)
    assert report.faults == []
    assert {note.file for note in report.notes} == {name(8, "entries"), name(9, "region")}
    assert not await differs(path)


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (40, bytes(16), "uuid"),
        (56, struct.pack("<Q", 7), "number"),
        (72, struct.pack("<Q", MIB), "cap"),
        (80, struct.pack("<Q", MIB + 1), "region-bytes"),
        (80, struct.pack("<Q", MIB // 2), "region-size"),
        (88, struct.pack("<Q", 3), "table-order"),
        (88, struct.pack("<Q", 3), "table-sequence"),
        (88, struct.pack("<Q", 99), "table-sequence"),
        (96, struct.pack("<Q", 2), "table-regions"),
        (104, struct.pack("<I", 3), "table-length"),
        (12, struct.pack("<H", 2), "table-version"),
        (32, struct.pack("<Q", 4), "table-features"),
        (128, struct.pack("<Q", 3), "table-regions"),
        (136, struct.pack("<Q", 4096 + 81), "table-entries"),
        (136, struct.pack("<Q", 4096 + 80), "table-sequence"),
        (144, struct.pack("<Q", 4096), "table-extents"),
        (CHUNKS_AT + 80, bytes(32), "entry-differs"),
        (CHUNKS_AT + 32, struct.pack("<Q", 0), "entry-missing"),
        (CHUNKS_AT + 40, struct.pack("<Q", 300_000), "extents"),
        (CHUNKS_AT + 40, struct.pack("<Q", 256_003), "length"),
        (CHUNKS_AT + 48, struct.pack("<I", 3), "entry-differs"),
        (CHUNKS_AT + 56, struct.pack("<d", float("nan")), "weight"),
        (CHUNKS_AT + 64, struct.pack("<I", 900), "table-extents"),
        (CHUNKS_AT + 68, b"\x00", "table-extents"),
        (CHUNKS_AT + 69, b"\x05", "strip"),
        (CHUNKS_AT + 11 * 80 + 8, struct.pack("<I", 5), "entry-differs"),
    ],
)
async def test_lies_of_a_table_are_found(path, offset, value, code):
    changed(path / TABLE, offset, value)
    assert code in {each for _, each in found(path, payloads=False)}


def entry_changed(path, region, offset, at, value):
    """Other bytes in an entry, under a checksum that holds."""
    file = path / name(region, "entries")
    data = bytearray(file.read_bytes())
    data[offset + at : offset + at + len(value)] = value
    length = int.from_bytes(data[offset + 4 : offset + 6], "little")
    place = bytes(data[40:56]) + struct.pack("<QQ", region, offset)
    data[offset : offset + 4] = crc32c(place + bytes(data[offset + 4 : offset + length])).to_bytes(4, "little")
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (7, b"\x13", "strip"),
        (8, struct.pack("<Q", 12), "sequence"),
        (8, struct.pack("<Q", 99), "order"),
        (8, struct.pack("<Q", 2), "table-sequence"),
        (16, struct.pack("<Q", 1), "length"),
        (24, struct.pack("<I", 0), "numbers"),
        (28, struct.pack("<I", 9), "payload"),
        (32, bytes(32), "payload"),
        (64, struct.pack("<Q", 3), "entry-region"),
        (72, struct.pack("<I", 64), "overlap"),
        (72, struct.pack("<I", 1000), "extents"),
        (72, struct.pack("<I", 190), "region-short"),
        (76, struct.pack("<I", 0), "extents"),
        (64, struct.pack("<Q", 0), "region-number"),
    ],
)
async def test_lies_of_an_entry_are_found(path, at, value, code):
    entry_changed(path, 4, 4096, at, value)
    assert code in {each for _, each in found(path, payloads=code == "payload")}


async def test_two_payloads_on_one_page_are_found(path):
    entry_changed(path, 4, 4096 + 80, 72, struct.pack("<I", 62))
    assert (name(4, "entries"), "overlap") in found(path)


async def test_what_was_given_up_is_a_note_whether_it_was_put_again_or_not(tmp_path):
    async with chunks_in(tmp_path / "s") as chunks:
        await fill(chunks, range(3), TOKENS)
        for at in (5000, PAYLOAD + 5000):
            flip(tmp_path / "s" / name(1, "region"), at)
        assert len(found(tmp_path / "s")) == 1
        assert await held(chunks, range(2), TOKENS) == set()
        await fill(chunks, [0], TOKENS)
    for payloads in (True, False):
        report = verify_chunks(tmp_path / "s", payloads)
        assert report.faults == []
        assert [note.code for note in report.notes] == ["given-up", "given-up"]
        assert len(report.held) == 2
    assert not await differs(tmp_path / "s")


def test_a_whole_chunk_that_the_table_leaves_out_is_a_warning(path):
    file = path / TABLE
    data = bytearray(file.read_bytes())
    last = CHUNKS_AT + 10 * 80
    data = data[:last] + data[last + 80 : -16]
    struct.pack_into("<Q", data, 64, len(data))
    struct.pack_into("<II", data, 104, 10, 10)
    file.write_bytes(data)
    changed(file, 12, data[12:14])
    assert [(one.code, one.severity.value) for one in verify_chunks(path).faults] == [("not-in-table", "warning")]


# --- the commands


def test_the_commands_take_stores_of_either_kind(path, tmp_path):
    runner = CliRunner()
    done = runner.invoke(verify, [str(path)])
    assert done.exit_code == 0
    assert done.output.startswith("clean: 11 files, 15 entries, 15 chunks of 7,500 tokens")
    flip(path / name(1, "region"), 5000)
    assert runner.invoke(verify, [str(path), "--quick"]).exit_code == 0
    done = runner.invoke(verify, [str(path), "--json"])
    assert done.exit_code == 1
    fault, summary = map(json.loads, done.output.splitlines())
    assert (fault["file"], fault["offset"], fault["code"]) == (name(1, "region"), 0, "payload")
    assert summary["summary"]["chunks"] == 15
    (tmp_path / "none").mkdir()
    assert runner.invoke(verify, [str(tmp_path / "none")]).exit_code == 2
    assert runner.invoke(dump, [str(tmp_path / "none")]).exit_code == 2


def test_dump_shows_tables_entries_regions_and_damage(path):
    runner = CliRunner()
    flip(path / name(1, "entries"), 4096 + 5)
    flip(path / name(1, "chunks"), 5)
    done = runner.invoke(dump, [str(path), "--json", "--chunks"])
    items = [json.loads(line) for line in done.output.splitlines()]
    kinds = [item["kind"] for item in items]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "damage": 2,
        "table": 1,
        "row": 3,
        "chunk": 11,
        "entries header": 4,
        "entry": 14,
        "region": 4,
    }
    held = verify_chunks(path).held
    for item in items:
        if item["kind"] in ("entry", "chunk"):
            stored = held[bytes.fromhex(item["key"])]
            assert (item["sequence"], item["bytes"]) == (stored.sequence, stored.bytes)
            assert len(item["extents"]) == len(stored.extents)
    text = runner.invoke(dump, [str(path), "--file", name(1, "entries")]).output
    assert "1.entries:4096  damage" in text
    assert text.count("  void") == 3
    assert runner.invoke(dump, [str(path), "--no-records"]).output.count("entry  ") == 0
    assert runner.invoke(dump, [str(path), "--limit", "3"]).output.count("entry  ") <= 3
    assert runner.invoke(dump, [str(path), "--file", name(9, "entries")]).exit_code == 2
