"""`sarpstore dump`: what it shows of clean, damaged and hostile stores."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sarpstore_tools.dump import dump
from spec_writer import Built, build_store, chain

LOG_1, LOG_2, LOG_3 = (f"{number:016x}.log" for number in (1, 2, 3))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_store(tmp_path_factory.mktemp("dump") / "store")


@pytest.fixture
def path(built: Built, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.path, tmp_path / "copy"))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(dump, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    return result.output


def items(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "--json").splitlines()]


def test_json_lines_show_every_record_with_its_fields(built: Built) -> None:
    records = [item for item in items(built.path) if item["kind"] == "record"]
    segments = [item for item in records if item["type"] == "segment"]
    # 26 accepted, and the two records of the void commit
    assert (len(records), len(segments)) == (28, 15)
    for one in built.writer.live.values():
        name, offset = f"{one.position >> 24:016x}.log", (one.position & 0xFFFFFF) * 64
        (item,) = [item for item in segments if (item["file"], item["offset"]) == (name, offset)]
        assert (item["n"], item["d"], item["dp"]) == (len(one.ids), one.d, one.dp)
        assert (item["key"], item["supersedes"]) == (f"{one.key:012x}", one.supersedes)
        assert item["parent_key"] == f"{one.parent_key:012x}"
    _, namespace = [item for item in records if item["type"] == "namespace"]
    assert (namespace["name"], namespace["adapter"], namespace["key_bytes"]) == ("llama", "lora-1", 16)


def test_records_behind_a_named_end_are_marked_void(built: Built) -> None:
    void = [(item["file"], item["offset"]) for item in items(built.path) if item.get("void")]
    assert void == [(LOG_2, 12288), (LOG_2, 13056)]


def test_ids_and_locations_are_shown_when_asked_for(built: Built) -> None:
    _, item = [item for item in items(built.path, "--limit", 2, "--ids") if item["kind"] == "record"]
    assert item["n"] == 20
    assert len(item["ids"]) == len(item["locations"]) == 20
    assert item["locations"][0] == [0x0706050403020100, 0x0B0A0908, 12, 13]


def test_checkpoints_and_entries_are_shown_when_asked_for(built: Built) -> None:
    assert {item["kind"] for item in items(built.path)} == {"log header", "record", "damage"}
    shown = items(built.path, "--entries", "--no-records")
    heads = [item for item in shown if item["kind"] == "checkpoint head"]
    assert [head["number"] for head in heads] == [1, 2]
    entries = [item for item in shown if item["kind"] == "entry"]
    assert len(entries) == sum(head["entries"] for head in heads)
    assert not [item for item in shown if item["kind"] == "record"]
    assert "partition" in {item["kind"] for item in items(built.path, "--checkpoints")}


def test_one_file_alone(built: Built) -> None:
    for name in sorted(os.listdir(built.path)):
        if name == "LOCK":
            continue
        shown = items(built.path, "--file", name)
        assert {item["file"] for item in shown} == {name}
    for name in ("nothing", "../x.log", f"{9:016x}.log", "LOCK"):
        assert CliRunner().invoke(dump, [str(built.path), "--file", name]).exit_code == 2


def test_types_and_limits(built: Built) -> None:
    commits = [item for item in items(built.path, "--type", "commit", "--type", "seal") if item["kind"] == "record"]
    assert [item["type"] for item in commits].count("commit") == 9
    assert {item["type"] for item in commits} == {"commit", "seal"}
    assert len([item for item in items(built.path, "--limit", 5) if item["kind"] == "record"]) == 5
    assert len([item for item in items(built.path, "--limit", 0) if item["kind"] == "record"]) == 0


def test_text_shows_a_line_a_record_and_blocks_for_headers(built: Built) -> None:
    text = run(built.path, "--entries")
    assert f"{LOG_1}: log header\n" in text
    assert "  previous_end      2.log:12288\n" in text
    assert "\n1.log:20480     segment    seq 9  commit 2  n 22  d 0" in text
    assert "\n2.log:13056     commit     seq 20  commit 5  pages 1  records 1  synced 2.log:12288  void\n" in text
    assert ": checkpoint head\n" in text
    assert "\n2.images:64     entry      key " in text
    with_ids = run(built.path, "--limit", 2, "--ids")
    assert f"\n{'':<16}  19  {chain(list(range(20)))[19].hex()}  [" in with_ids
    assert max(len(line) for line in text.splitlines() if "supersedes" not in line) <= 120


def test_damage_is_shown_where_it_is(path: Path) -> None:
    data = bytearray((path / LOG_1).read_bytes())
    data[12416 + 50] ^= 1
    data[20480 + 200] ^= 1
    (path / LOG_1).write_bytes(data)
    shown = items(path, "--file", LOG_1)
    assert [(item["offset"], item["size"]) for item in shown if item["kind"] == "damage"] == [(12416, 2048)]
    assert [item["offset"] for item in shown if "problem" in item] == [20480]


def test_records_are_shown_without_a_header_of_their_own(path: Path) -> None:
    data = bytearray((path / LOG_2).read_bytes())
    data[100] ^= 1
    data[4196] ^= 1
    (path / LOG_2).write_bytes(data)
    shown = items(path)
    assert len([item for item in shown if item["kind"] == "record" and item["file"] == LOG_2]) == 6


def test_not_a_store_is_status_2(tmp_path: Path) -> None:
    assert CliRunner().invoke(dump, [str(tmp_path)]).exit_code == 2
    assert CliRunner().invoke(dump, [str(tmp_path / "nowhere")]).exit_code == 2


def test_garbage_never_raises(built: Built, tmp_path: Path) -> None:
    rng = random.Random(1)
    for attempt in range(12):
        path = Path(shutil.copytree(built.path, tmp_path / str(attempt)))
        for file in sorted(path.iterdir()):
            data = bytearray(file.read_bytes())
            at = rng.randrange(len(data))
            data[at : at + 3000] = rng.randbytes(rng.randrange(9000))
            file.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data) + 1)])
        (path / f"{9:016x}.log").mkdir()
        os.mkfifo(path / f"{9:016x}.images")
        (path / f"{9:016x}.checkpoint").write_bytes(b"")
        run(path, "--entries", "--ids")
        run(path, "--entries", "--ids", "--json")


def test_a_closed_pipe_ends_it_quietly(built: Built) -> None:
    code = "from sarpstore_tools.dump import dump; dump()"
    command = [sys.executable, "-c", code, str(built.path), "--ids", "--entries", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()
