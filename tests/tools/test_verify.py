"""`sarpstore verify` on clean stores, on every kind of damage, and on garbage."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sarpstore_tools.dump import dump
from sarpstore_tools.specreader import store as store_module
from sarpstore_tools.specreader.folder import NotAStoreError
from sarpstore_tools.specreader.store import Report, verify_store
from sarpstore_tools.verify import verify
from spec_writer import Built, Owner, StoreWriter, build_store, chain, namespace_root, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_1, LOG_2, LOG_3 = (f"{number:016x}.log" for number in (1, 2, 3))
HEAD_1, HEAD_2 = (f"{number:016x}.checkpoint" for number in (1, 2))
IMAGES_2 = f"{2:016x}.images"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_store(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def path(built: Built, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.path, tmp_path / "copy"))


def codes(report: Report) -> set[tuple[str, str]]:
    return {(fault.file, fault.code) for fault in report.faults}


def alter(path: Path, offset: int, mask: int = 0x40) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def test_a_clean_store_is_clean_with_notes(built: Built) -> None:
    report = verify_store(built.path)
    assert report.faults == []
    assert [(note.file, note.offset, note.severity.value) for note in report.notes] == [
        (LOG_2, built.void[1], "void"),
        (LOG_3, 24576, "torn tail"),
    ]
    live = built.writer.live.values()
    assert report.blocks == sum(len(one.ids) - one.d for one in live)
    assert (report.files, report.records, report.segments) == (8, 25, 14)


@pytest.mark.parametrize("location_bytes", [1, 14, 46])
def test_a_larger_store_is_clean(tmp_path: Path, location_bytes: int) -> None:
    rng = random.Random(location_bytes)
    writer = StoreWriter(tmp_path / "s", location_bytes)
    paths: list[list[bytes]] = [chain([1])]
    for _ in range(2):
        writer.new_file()
        for _ in range(6):
            for _ in range(3):
                base = rng.choice(paths)
                base = base[: rng.randint(1, len(base))]
                paths.append(base + chain([rng.randrange(9) for _ in range(rng.randint(1, 90))], base[-1]))
                writer.insert(paths[-1])
            writer.commit()
        writer.seal(closed=True)
        writer.checkpoint(writer.file, depth=3)
    assert verify_store(tmp_path / "s").faults == []


def test_a_store_without_records_is_clean(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("1")
    assert verify_store(tmp_path).faults == []
    StoreWriter(tmp_path).new_file()
    assert verify_store(tmp_path).faults == []


# -- damage to bytes


def _damages(built: Built) -> list[tuple[str, str, int, str]]:
    return [
        ("header copy", LOG_1, 4096 + 100, "header-checksum"),
        ("header magic", LOG_1, 0, "header-magic"),
        ("segment header", LOG_1, 8192 + 40, "damaged-record"),
        ("segment body", LOG_1, 8192 + 200, "damaged-record"),
        ("padding behind a record", LOG_1, 8192 + 728 + 3, "padding"),
        ("free space", LOG_1, 8192 + 2048, "damaged-record"),
        ("commit record", LOG_1, 8960 + 33, "damaged-record"),
        ("summary record", LOG_1, 24576 + 70, "damaged-record"),
        ("seal", LOG_1, 28672 + 33, "damaged-record"),
        ("head", HEAD_2, 100, "head-checksum"),
        ("image", IMAGES_2, 70, "image-checksum"),
        ("space behind an image", IMAGES_2, 4000, "image-padding"),
        ("statistics", "stats", 50, "stats-checksum"),
    ]


def test_damaged_bytes_are_found_where_they_are(built: Built, path: Path) -> None:
    for what, name, offset, code in _damages(built):
        alter(path / name, offset)
        report = verify_store(path)
        assert any(fault.file == name and fault.code == code for fault in report.faults), (what, report.faults)
        alter(path / name, offset)
    assert verify_store(path).faults == []


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_a_fault_or_in_void_or_torn_space(built: Built, data: st.DataObject) -> None:
    names = sorted(name for name in os.listdir(built.path) if name != "LOCK")
    name = data.draw(st.sampled_from(names))
    offset = data.draw(st.integers(0, (built.path / name).stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    alter(built.path / name, offset, 1 << bit)
    try:
        report = verify_store(built.path)
    finally:
        alter(built.path / name, offset, 1 << bit)
    void, first, last = built.void
    if (name == void and first <= offset < last) or (name == LOG_3 and offset >= 24576):
        assert report.faults == []
    elif name == LOG_3 and offset >= built.unsynced[1] and not report.faults:
        torn = [note for note in report.notes if note.file == LOG_3]
        assert torn[0].offset <= offset
    else:
        assert any(fault.file == name for fault in report.faults)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_garbage_never_raises(built: Built, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    path = Path(shutil.copytree(built.path, tmp_path_factory.mktemp("garbage") / "s"))
    for file in sorted(path.iterdir()):
        choice, data = rng.randrange(5), bytearray(file.read_bytes())
        if choice == 0:
            data = data[: rng.randrange(len(data) + 1)]
        elif choice == 1:
            at = rng.randrange(len(data))
            data[at : at + 5000] = rng.randbytes(rng.randrange(9000))
        elif choice == 2:
            data = bytearray(len(data)) if rng.random() < 0.5 else bytearray(rng.randbytes(len(data)))
        elif choice == 3 and rng.random() < 0.3:
            file.unlink()
            continue
        file.write_bytes(data)
    verify_store(path)
    shutil.rmtree(path)


def test_odd_files_are_reported_and_do_not_hang(path: Path) -> None:
    (path / f"{9:016x}.log").mkdir()
    (path / f"{10:016x}.log").write_bytes(b"")
    os.mkfifo(path / f"{11:016x}.checkpoint")
    (path / f"{12:016x}.checkpoint").mkdir()
    (path / f"{13:016x}.log").symlink_to("nowhere")
    with (path / f"{14:016x}.log").open("wb") as sparse:
        sparse.truncate(1 << 42)
    (path / "unknown").write_text("not ours")
    (path / f"{15:016x}.log.tmp").write_text("not published")
    found = codes(verify_store(path))
    assert {file for file, _ in found} == {
        *(f"{number:016x}.log" for number in (9, 10, 13, 14)),
        *(f"{number:016x}.checkpoint" for number in (11, 12)),
    }


# -- the log as a whole


def test_damage_above_the_synced_position_is_a_torn_tail(built: Built, path: Path) -> None:
    alter(path / LOG_3, built.unsynced[1] + 300)
    report = verify_store(path)
    assert report.faults == []
    assert report.notes[-1].offset == built.unsynced[1]
    assert report.records == 23


def test_a_file_cut_off_below_the_synced_position_has_a_hole(path: Path) -> None:
    with (path / LOG_3).open("r+b") as file:
        file.truncate(12288)
    assert (LOG_3, "hole") in codes(verify_store(path))


def test_a_sealed_file_cut_off_has_a_hole(path: Path) -> None:
    with (path / LOG_1).open("r+b") as file:
        file.truncate(28672)
    assert (LOG_1, "hole") in codes(verify_store(path))


def test_zeroed_pages_below_the_synced_position_are_one_hole(path: Path) -> None:
    data = bytearray((path / LOG_1).read_bytes())
    data[12288:24576] = bytes(12288)
    (path / LOG_1).write_bytes(data)
    report = verify_store(path)
    holes = [fault for fault in report.faults if fault.code in ("hole", "commit")]
    assert [(fault.file, fault.offset, fault.code) for fault in holes] == [(LOG_1, 12288, "hole")]


@pytest.mark.parametrize("name", [LOG_1, LOG_2, LOG_3])
def test_a_missing_log_file_is_corruption(path: Path, name: str) -> None:
    (path / name).unlink()
    assert (name, "missing") in codes(verify_store(path))


def test_a_missing_images_file_is_corruption(path: Path) -> None:
    (path / IMAGES_2).unlink()
    assert (IMAGES_2, "image-missing") in codes(verify_store(path))


def test_missing_checkpoints_are_no_fault(path: Path) -> None:
    for name in (HEAD_1, HEAD_2, IMAGES_2, f"{1:016x}.images", "stats"):
        (path / name).unlink()
    assert verify_store(path).faults == []


def test_a_log_file_under_another_number_is_corruption(path: Path) -> None:
    (path / LOG_3).rename(path / f"{4:016x}.log")
    assert (f"{4:016x}.log", "number") in codes(verify_store(path))


def test_a_log_file_of_another_store_is_corruption(path: Path, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "other")
    writer.uuid = bytes(16)
    writer.new_file()
    shutil.copy(writer.log_path, path / LOG_1)
    assert (LOG_1, "uuid") in codes(verify_store(path))


# -- lawful bytes that say something false


def _two_with_one_sequence(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.sequence -= 1
    writer.insert(chain([3, 4]))


def _superseding_another_path(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    owner = next(iter(writer.live.values()))
    owner.ids = chain([9, 2])
    writer.owners |= {(0, 0, one): owner for one in owner.ids}
    writer.insert(owner.ids + chain([3], owner.ids[-1]))


def _superseding_nothing(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    owner = next(iter(writer.live.values()))
    writer.live[owner.position - 1] = owner
    owner.position -= 1
    writer.insert(chain([1, 2, 3]))


def _orphan(writer: StoreWriter) -> None:
    ids = chain(list(range(70)))
    nowhere = Owner(0, 0, 0, ids[:64], 0, 0, 0, 0)
    writer.owners |= {(0, 0, one): nowhere for one in ids[:64]}
    writer.insert(ids)


def _wrong_parent(writer: StoreWriter) -> None:
    ids = chain(list(range(70)))
    writer.insert(ids[:64])
    writer.owners[0, 0, ids[63]].key ^= 1
    writer.insert(ids)
    writer.owners[0, 0, ids[63]].key ^= 1


def _unnamed_namespace(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]), namespace=77)


def _late_namespace(writer: StoreWriter) -> None:
    number = int.from_bytes(namespace_root("late")[:8], "little")
    writer.insert(chain([1, 2]), namespace=number)
    writer.name("late")


def _unlawful_lengths(writer: StoreWriter) -> None:
    writer.add(1, bytes(96), b"x" * 40, n=1, units=2)


def _unknown_type(writer: StoreWriter) -> None:
    writer.add(77, b"")


def _leaving_no_owner(writer: StoreWriter) -> None:
    ids = chain(list(range(9)))
    writer.insert(ids)
    writer.owners[0, 0, ids[4]] = replace(writer.owners[0, 0, ids[4]], d=3)
    writer.insert(ids[:5] + chain([99], ids[4]))


def _introducing_twice(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.owners.clear()
    writer.insert(chain([1, 2, 3]))


FALSEHOODS: list[tuple[Callable[[StoreWriter], None], str]] = [
    (_two_with_one_sequence, "sequence"),
    (_superseding_another_path, "supersedes"),
    (_superseding_nothing, "supersedes duplicate"),
    (_orphan, "orphan"),
    (_wrong_parent, "parent"),
    (_unnamed_namespace, "namespace"),
    (_late_namespace, "namespace"),
    (_leaving_no_owner, "owner"),
    (_introducing_twice, "duplicate"),
]


@pytest.mark.parametrize(("write", "codes_found"), FALSEHOODS)
def test_false_records_are_found(tmp_path: Path, write: Callable[[StoreWriter], None], codes_found: str) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    write(writer)
    writer.commit()
    writer.mark()
    assert {found for _, found in codes(verify_store(writer.path))} == set(codes_found.split())


@pytest.mark.parametrize("write", [_unlawful_lengths, _unknown_type])
def test_records_against_the_rules_are_damaged_records(tmp_path: Path, write: Callable[[StoreWriter], None]) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    write(writer)
    writer.commit()
    writer.mark()
    assert {found for _, found in codes(verify_store(writer.path))} == {"damaged-record", "commit"}


def test_an_unknown_ignorable_record_is_skipped(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.add(77, b"anything", b"at all", flags=1)
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []


def _wrong_count(writer: StoreWriter) -> None:
    writer.crcs.append(writer.crcs[-1])


def _wrong_checksum(writer: StoreWriter) -> None:
    writer.crcs.reverse()


@pytest.mark.parametrize("spoil", [_wrong_count, _wrong_checksum])
def test_commits_that_do_not_agree_with_their_records_are_corrupt(
    tmp_path: Path, spoil: Callable[[StoreWriter], None]
) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.insert(chain([2]))
    spoil(writer)
    writer.commit()
    writer.mark()
    assert {code for _, code in codes(verify_store(writer.path))} == {"commit"}


def test_a_missing_commit_number_is_corruption_below_and_torn_above(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.commit()
    writer.commits += 1
    writer.insert(chain([2]))
    writer.commit()
    assert verify_store(writer.path).faults == []
    assert verify_store(writer.path).records == 2
    writer.mark()
    assert (LOG_1, "commit") in codes(verify_store(writer.path))


def test_a_commit_that_calls_itself_synced_is_a_fault(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.commit(synced=1 << 24 | 12288 // 64)
    assert codes(verify_store(writer.path)) == {(LOG_1, "synced")}


def test_a_summary_that_differs_from_its_records_is_found(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1, 2]))
    writer.insert(chain([3, 4]))
    writer.commit()
    owner = next(one.owner for one in writer.placed if one.owner)
    owner.root_key ^= 1
    writer.seal()
    owner.root_key ^= 1
    assert codes(verify_store(writer.path)) == {(LOG_1, "summary")}
    writer.placed = [one for one in writer.placed if one.kind in (1, 5)]
    writer.seal()
    assert (LOG_1, "seal") in codes(verify_store(writer.path))


def _checkpointed(path: Path) -> StoreWriter:
    writer = StoreWriter(path)
    writer.new_file()
    base = chain(list(range(100)))
    writer.insert(base)
    writer.insert(base[:70] + chain([3], base[69]))
    writer.commit()
    writer.mark()
    return writer


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"start": 1 << 24 | 200}, "start"),
        ({"commit": 9}, "start"),
        ({"sequence": 2}, "sequence"),
        ({"entries": 9}, "entries"),
        ({"blocks": 9}, "blocks"),
        ({"synced": 1 << 24 | 128}, "entry-behind"),
        ({"synced": 7 << 24}, "missing"),
        ({"partitions": 1}, "head-length"),
        ({"slots": 1 << 31}, "head-length"),
        ({"namespaces": 9}, "head-length"),
    ],
)
def test_false_heads_are_found(tmp_path: Path, change: dict[str, int], code: str) -> None:
    writer = _checkpointed(tmp_path / "s")
    writer.checkpoint(1)
    assert verify_store(writer.path).faults == []
    writer.checkpoint(1, change=change)
    assert code in {found for _, found in codes(verify_store(writer.path))}


def test_false_entries_are_found(tmp_path: Path) -> None:
    writer = _checkpointed(tmp_path / "s")
    owner = next(one for one in writer.live.values() if one.bits)
    kept, owner.bits = owner.bits, 0
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}
    assert verify_store(writer.path, compare=False).faults == []
    owner.bits = kept | 1 << 15
    writer.checkpoint(1)
    assert verify_store(writer.path).faults == []
    owner.dp = 3
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"entry-differs", "state"}
    owner.position += 1
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"entry-lost", "state"}
    writer.live.pop(owner.position - 1)
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}


def test_images_out_of_order_are_found(tmp_path: Path) -> None:
    writer = _checkpointed(tmp_path / "s")
    writer.checkpoint(1, depth=0)
    images = tmp_path / "s" / f"{1:016x}.images"
    data = images.read_bytes()
    (count,) = struct.unpack_from("<H", data, 12)
    swapped = data[12:64] + data[80:96] + data[64:80] + data[96 : 64 + 16 * count]
    image = sealed(data[:8], swapped)
    images.write_bytes(image.ljust(4096, b"\0"))
    assert {"image-order", "image-crc"} <= {code for _, code in codes(verify_store(writer.path))}


# -- live stores


def test_faults_of_a_moment_are_not_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = path / IMAGES_2
    kept = images.read_bytes()
    images.unlink()
    monkeypatch.setattr(store_module.time, "sleep", lambda _: images.write_bytes(kept))
    signatures = iter([frozenset([1]), frozenset([2])])
    monkeypatch.setattr(store_module, "signature", lambda _: next(signatures))
    report = verify_store(path)
    assert report.live
    assert report.faults == []


def _write_for_a_while(path: Path, stop: threading.Event) -> None:
    writer = StoreWriter(path)
    rng = random.Random(3)
    paths = [chain([0])]
    while not stop.wait(0.01):
        if writer.file == 0 or len(writer.data) > 60_000:
            if writer.file:
                writer.seal()
            writer.new_file()
        base = rng.choice(paths[-20:])[: rng.randint(1, 100)]
        paths.append(base + chain([rng.randrange(1 << 20) for _ in range(rng.randint(1, 40))], base[-1]))
        writer.insert(paths[-1])
        writer.commit()
        if writer.commits % 7 == 0:
            writer.mark()
            writer.checkpoint(writer.commits, depth=2)
            for suffix in ("checkpoint", "images"):
                for old in sorted(path.glob(f"*.{suffix}"))[:-2]:
                    old.unlink()


def test_a_store_that_is_being_written_is_clean_and_can_be_dumped(tmp_path: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=_write_for_a_while, args=(tmp_path / "s", stop))
    thread.start()
    try:
        while not (tmp_path / "s" / LOG_1).exists():
            stop.wait(0.01)
        segments = 0
        while segments < 40:
            report = verify_store(tmp_path / "s")
            assert report.faults == []
            segments = report.segments
            assert CliRunner().invoke(dump, [str(tmp_path / "s"), "--entries"]).exit_code == 0
    finally:
        stop.set()
        thread.join()
    assert verify_store(tmp_path / "s").faults == []


def test_a_store_at_rest_is_checked_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / IMAGES_2).unlink()
    monkeypatch.setattr(store_module.time, "sleep", lambda _: pytest.fail("checked again"))
    assert verify_store(path).faults


# -- the command


def test_the_command_says_clean_or_faults_or_not_a_store(path: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(verify, [str(path)])
    assert result.exit_code == 0
    assert "clean: 8 files, 25 records" in result.output
    alter(path / LOG_1, 8192 + 200)
    result = runner.invoke(verify, [str(path), "--quick"])
    assert result.exit_code == 1
    assert f"{LOG_1} @ 8192  [damaged-record]" in result.output
    for missing in (tmp_path / "nowhere", path / LOG_1, tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert runner.invoke(verify, [str(missing)]).exit_code == 2
        with pytest.raises(NotAStoreError):
            verify_store(missing)


def test_the_command_gives_json_lines(path: Path) -> None:
    alter(path / HEAD_1, 20)
    result = CliRunner().invoke(verify, [str(path), "--json"])
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert lines[0] == {
        "severity": "corruption",
        "file": HEAD_1,
        "offset": 0,
        "code": "head-checksum",
        "meaning": "checkpoint head does not have its checksum",
    }
    assert lines[-1]["summary"]["faults"] == 1
    assert lines[-1]["summary"]["notes"] == 2
