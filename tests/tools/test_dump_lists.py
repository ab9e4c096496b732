"""`sarpstore dump` of stores with posting lists."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sarpstore_tools.dump import dump
from spec_writer_sarp import ADD, OFFSETS, Change, SarpWriter, build_sarp_store

if TYPE_CHECKING:
    from spec_writer import Built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_sarp_store(tmp_path_factory.mktemp("dump") / "store")


@pytest.fixture(scope="module")
def writer(built: Built) -> SarpWriter:
    assert isinstance(built.writer, SarpWriter)
    return built.writer


def run(*arguments: object) -> str:
    result = CliRunner().invoke(dump, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    return result.output


def items(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "--json").splitlines()]


def place_of(item: dict[str, Any]) -> int:
    return int(item["file"][:16], 16) << 24 | item["offset"] // 64


def flags_of(flags: int) -> list[str]:
    return [name for bit, name in ((1, "expanded"), (2, "refined")) if flags & bit]


def test_segments_show_their_points_and_old_n(writer: SarpWriter) -> None:
    segments = [item for item in items(writer.path, "--type", "segment") if item["kind"] == "record"]
    assert {place_of(item) for item in segments} == set(writer.made)
    superseding = 0
    for item in segments:
        said = writer.said[place_of(item)]
        assert item["points"] == [change.point for change in said if change.operation == ADD]
        owner = writer.made[place_of(item)]
        assert item["old_n"] == (len(writer.made[owner.supersedes].ids) if owner.supersedes else 0)
        superseding += item["old_n"] > 0
    assert superseding
    assert max(len(item["points"]) for item in segments) > 3


def _as_item(change: Change) -> dict[str, Any]:
    common = {"operation": ("", "add", "drop")[change.operation], "key": f"{change.key:012x}", "point": change.point}
    if not change.position:
        return common | {"state": flags_of(change.filter)}
    said = {"filter": f"{change.filter:016x}", "n": change.n, "d": change.d, "record": change.position}
    return common | said


def test_postings_records_show_their_changes_when_asked_for(writer: SarpWriter) -> None:
    records = [item for item in items(writer.path, "--type", "postings", "--ids") if item["kind"] == "record"]
    assert {place_of(item) for item in records} == writer.said.keys() - writer.made.keys()
    for item in records:
        assert item["changes"] == [_as_item(change) for change in writer.said[place_of(item)]]
        assert item["entries"] == len(item["changes"])
    assert all("changes" not in item for item in items(writer.path, "--type", "postings"))


def test_partitions_and_entries_are_those_of_lists(writer: SarpWriter) -> None:
    shown = items(writer.path, "--entries", "--no-records")
    heads = [item for item in shown if item["kind"] == "checkpoint head"]
    assert [(head["number"], head["routing"]) for head in heads] == [(1, "sarp"), (2, "sarp")]
    partitions = [item for item in shown if item["kind"] == "partition"]
    assert {key: partitions[0][key] for key in ("key", "filter", "slot", "at")} == {
        "key": "0" * 12, "filter": "0" * 16, "slot": 0, "at": 0,
    }  # fmt: skip
    images = [item for item in shown if item["kind"] == "image"]
    assert [(one["prefix"], one["filter"], one["entries"]) for one in images] == [
        (one["key"], one["filter"], one["entries"]) for one in partitions
    ]
    entries = [item for item in shown if item["kind"] == "entry"]
    assert len(entries) == sum(head["entries"] for head in heads)
    states = [item["state"] for item in entries if "state" in item]
    assert ["expanded"] in states
    assert ["expanded", "refined"] in states
    posting = next(item for item in entries if "state" not in item)
    owner = next(
        one
        for one in writer.made.values()
        if (one.position & 0xFFFFFF) * 64 == posting["at"] and writer.slots[one.position >> 24] == posting["slot"]
    )
    assert posting["key"] == f"{writer.key_at(owner, posting['point']):012x}"
    assert posting["filter"] == f"{writer.posting(owner, posting['point']).filter:016x}"
    assert (posting["n"], posting["d"], posting["recency"]) == (len(owner.ids), owner.d, 5)
    assert OFFSETS[posting["point"]] < posting["n"]


def test_the_text_is_readable(writer: SarpWriter) -> None:
    text = run(writer.path, "--entries", "--ids")
    assert "  routing           sarp\n" in text
    assert "  points 0,2,4" in text
    assert "  old_n 40" in text
    assert "  postings   seq " in text
    assert "\n                   0  add  key " in text
    assert "  drop  key " in text
    assert "  state expanded,refined\n" in text
    assert "  point 7  filter 0000000000000000  " in text
    assert "  d 0  record 1.log:" in text
    of_lists = [line for line in text.splitlines() if "  point " in line]
    assert max(map(len, of_lists)) <= 120


def test_images_alone_are_read_with_the_stores_routing(writer: SarpWriter, tmp_path: Path) -> None:
    name = f"{2:016x}.images"
    whole = items(writer.path, "--file", name, "--entries")
    assert {"image", "entry"} == {item["kind"] for item in whole}
    path = Path(shutil.copytree(writer.path, tmp_path / "copy"))
    for log in path.glob("*.log"):
        log.write_bytes(b"")
    assert items(path, "--file", name, "--entries") == whole
    for head in path.glob("*.checkpoint"):
        head.write_bytes(b"")
    assert {item["kind"] for item in items(path, "--file", name)} == {"damage"}


def test_garbage_never_raises(writer: SarpWriter, tmp_path: Path) -> None:
    rng = random.Random(1)
    for attempt in range(8):
        path = Path(shutil.copytree(writer.path, tmp_path / str(attempt)))
        for file in sorted(path.iterdir()):
            data = bytearray(file.read_bytes())
            at = rng.randrange(len(data))
            data[at : at + 3000] = rng.randbytes(rng.randrange(9000))
            file.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data) + 1)])
        run(path, "--entries", "--ids")
        run(path, "--entries", "--ids", "--json")
