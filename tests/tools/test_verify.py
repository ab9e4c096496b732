"""`sarpstore verify` on clean stores, on every kind of damage, and on garbage."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sarpstore_tools.dump import dump
from sarpstore_tools.specreader import store as store_module
from sarpstore_tools.specreader.folder import NotAStoreError
from sarpstore_tools.specreader.store import verify_store
from sarpstore_tools.verify import verify
from spec_writer import Built, StoreWriter, build_store, chain
from spec_writer_damage import HEAD_1, HEAD_2, IMAGES_2, LOG_1, LOG_2, LOG_3, alter, codes, copied


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_store(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def path(built: Built, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


def test_a_clean_store_is_clean_with_notes(built: Built) -> None:
    report = verify_store(built.path)
    assert report.faults == []
    assert [(note.file, note.offset, note.severity.value) for note in report.notes] == [
        (LOG_2, built.void[1], "void"),
        (LOG_3, 24576, "torn tail"),
    ]
    live = built.writer.live.values()
    assert report.blocks == sum(len(one.ids) - one.d for one in live)
    assert (report.files, report.records, report.segments) == (8, 26, 14)


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


def test_a_folder_without_log_files_and_heads_is_not_a_store_and_one_without_records_is(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("1")
    (tmp_path / "stats").write_text("")
    (tmp_path / f"{1:016x}.images").write_text("")
    with pytest.raises(NotAStoreError):
        verify_store(tmp_path)
    (tmp_path / "stats").unlink()
    (tmp_path / f"{1:016x}.images").unlink()
    StoreWriter(tmp_path).new_file()
    assert verify_store(tmp_path).faults == []


# -- damage to bytes


def _damages(built: Built) -> list[tuple[str, str, int, str]]:
    return [
        ("header copy", LOG_1, 4096 + 100, "header-checksum"),
        ("header magic", LOG_1, 0, "header-magic"),
        ("segment header", LOG_1, 8256 + 40, "damaged-record"),
        ("segment body", LOG_1, 8256 + 200, "damaged-record"),
        ("padding behind a record", LOG_1, 8256 + 728 + 3, "padding"),
        ("free space", LOG_1, 8192 + 2048, "commit"),
        ("commit record", LOG_1, 9024 + 33, "damaged-record"),
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
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_file_cut_off_below_the_synced_position_has_a_hole(path: Path) -> None:
    with (path / LOG_3).open("r+b") as file:
        file.truncate(12288)
    assert (LOG_3, "hole") in codes(verify_store(path))


def test_a_sealed_file_cut_off_has_a_hole(path: Path) -> None:
    with (path / LOG_1).open("r+b") as file:
        file.truncate(28672)
    found = codes(verify_store(path))
    assert {code for _, code in found} <= {"hole", "commit", "orphan", "owner", "supersedes", "entry-lost"}
    assert (LOG_1, "hole") in found


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
    assert "clean: 8 files, 26 records" in result.output
    alter(path / LOG_1, 8256 + 200)
    result = runner.invoke(verify, [str(path), "--quick"])
    assert result.exit_code == 1
    assert f"  {LOG_1}:8256  damaged-record  segment record 2: the record's body" in result.output
    assert "\nFAULTS (2 of corruption, " in result.output
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


def test_the_text_is_grouped_no_wider_than_120_columns_and_does_not_repeat_itself_for_ever(
    path: Path, tmp_path: Path
) -> None:
    data = bytearray((path / LOG_1).read_bytes())
    for page in range(8192, len(data), 4096):
        for unit in range(0, 4096, 192):
            data[page + unit + 30] ^= 1
    (path / LOG_1).write_bytes(data)
    lines = CliRunner().invoke(verify, [str(path)]).output.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("corruption: ")
    assert any("more of code damaged-record; --json shows all" in line for line in lines)
    assert lines[-1].startswith("synced up to 3.log:20480")
