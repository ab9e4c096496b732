"""`sarpstore dump` of stores of version 1.1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sarpstore_tools.dump import dump
from spec_writer import chain
from spec_writer_removals import WRITERS, Removing, build_removed_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Removing:
    return build_removed_store(tmp_path_factory.mktemp("dump") / "store", request.param)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(dump, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    return result.output


def records(path: Path, kind: str, *arguments: object) -> list[dict[str, Any]]:
    items = [json.loads(line) for line in run(path, "--json", "--type", kind, *arguments).splitlines()]
    return [item for item in items if item["kind"] == "record"]


def place_of(item: dict[str, Any]) -> int:
    return int(item["file"][:16], 16) << 24 | item["offset"] // 64


def test_remove_records_show_what_and_when(writer: Removing) -> None:
    base = chain(list(range(150)))
    own, later, moved = records(writer.path, "remove", "--ids")
    assert own["ids"] == [base[100].hex()]
    assert own["effect"] == place_of(own)
    assert later["ids"] == moved["ids"] == [base[32].hex(), chain([70])[0].hex()]
    assert moved["effect"] == place_of(later) == later["effect"] < place_of(moved)
    assert (own["holder"], own["namespace"], own["entries"]) == (0, "0" * 16, 1)
    assert "ids" not in records(writer.path, "remove")[0]


def test_clear_holder_records_show_whom_they_clear_or_introduce(writer: Removing) -> None:
    said = [(item["holder"], item["introduces"]) for item in records(writer.path, "clear-holder")]
    assert said == [(6, False), (0, True), (5, True), (6, False)]


def test_counts_and_retired_files_are_shown(tmp_path: Path) -> None:
    writer = Removing(tmp_path / "s")
    writer.new_file()
    ids = chain([1, 2])
    writer.count({ids[0]: 3, ids[1]: 1}, holder=4)
    writer.commit()
    writer.new_file()
    writer.retire(1)
    writer.commit()
    (item,) = records(writer.path, "count", "--ids")
    assert (item["holder"], item["entries"]) == (4, 2)
    assert (item["ids"], item["counted"]) == ([one.hex() for one in ids], [3, 1])
    (item,) = records(writer.path, "retire-file")
    assert item["retired_file"] == 1
    text = run(writer.path, "--ids")
    assert f"\n{'':<16}   0  {ids[0].hex()}  3\n" in text
    assert "  retired_file 1.log\n" in text


def test_segments_show_births_and_copies(writer: Removing) -> None:
    segments = records(writer.path, "segment")
    copies = [item for item in segments if item["copy"]]
    assert len(copies) == 5
    assert {item["flags"] for item in copies} == {2}
    for item in copies:
        assert item["born"] <= item["supersedes"] < place_of(item)
        assert 0 < item["root_born"] <= item["born"]
    assert all(item["born"] == place_of(item) for item in segments if not item["copy"])
    text = run(writer.path, "--type", "segment")
    assert text.count("  copy") == len(copies)
    assert "  flags" not in text
    different = sum(item["root_born"] != item["born"] for item in segments)
    assert text.count("  root_born ") == different > 0


def test_a_heads_tables_are_shown(writer: Removing) -> None:
    writer.counts[chain([1])[0], 7, 6] = 4
    writer.checkpoint(3)
    items = [json.loads(line) for line in run(writer.path, "--json", "--checkpoints", "--no-records").splitlines()]
    tables = {kind: [item for item in items if item["kind"] == kind] for kind in ("marker", "epoch", "count", "moment")}
    of_3 = {kind: [item for item in some if item["file"].startswith(f"{3:016x}")] for kind, some in tables.items()}
    markers = {(bytes.fromhex(item["id"]), int(item["namespace"], 16), item["holder"]): item["position"]
               for item in of_3["marker"]}  # fmt: skip
    assert markers == writer.markers
    assert {item["holder"]: item["position"] for item in of_3["epoch"]} == writer.epochs
    assert [(item["position"], item["time_ms"]) for item in of_3["moment"]] == writer.moments
    (count,) = of_3["count"]
    assert (count["id"], count["namespace"], count["holder"], count["count"]) == (
        chain([1])[0].hex(), f"{7:016x}", 6, 4,
    )  # fmt: skip
    heads = {item["number"]: item for item in items if item["kind"] == "checkpoint head"}
    assert heads[3]["version"] == "1.1"
    assert heads[3]["features"] == [0, 0, 1]
    assert [heads[3][name] for name in ("markers", "epochs", "counts", "moments")] == [
        len(writer.markers), len(writer.epochs), 1, 2,
    ]  # fmt: skip


def test_the_text_is_readable(writer: Removing) -> None:
    text = run(writer.path, "--checkpoints")
    assert "  remove     seq " in text
    assert "  clear-holder  seq " in text
    assert "  holder 0  effect none  introduces\n" in text
    assert "  moment     position 1.log:8192  time_ms 1000  (1970-01-01T00:00:01.000Z)".replace("Z)", "+00:00)") in text
    assert "  epoch      holder 0  position none\n" in text
    assert "  marker     " in text
