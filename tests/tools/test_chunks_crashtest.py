"""Killing a process in the middle of puts: nothing is lost, and the check would notice if something were."""

from __future__ import annotations

import json

import pytest
from sarpstore_tools.chunks import crashcheck, crashtest
from sarpstore_tools.chunks.crashing import Stored, kv_of, open_store, tokens_of
from sarpstore_tools.main import main

from sarpstore._chunks.held import Held


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["chunks", "crashtest", *arguments])
    captured = capsys.readouterr()
    return exit_info.value.code, captured.out, captured.err


@pytest.mark.parametrize("more", [(), ("--points",)], ids=["at random", "at points"])
def test_nothing_acknowledged_is_lost_over_a_few_kills(capsys, tmp_path, more):
    report = tmp_path / "report.json"
    status, out, _ = run(capsys, "--kills", "3", "--seed", "4", "--json", str(report), *more)
    assert status == 0, out
    assert "seed 4" in out
    found = json.loads(report.read_bytes())
    figures = {figure["name"]: figure["value"] for figure in found["figures"]}
    assert found["passed"] is True
    assert found["failures"] == []
    assert figures["kills"] == 3
    assert figures["lost chunks"] == figures["verify faults"] == 0
    assert 0 < figures["disk, at most"] <= 1
    assert figures.get("kills at named points", 1) > 0


def test_files_above_the_bound_are_a_failure(capsys, monkeypatch):
    monkeypatch.setattr(crashtest, "BYTES_MAX", 8192)
    status, out, _ = run(capsys, "--kills", "1", "--seed", "4")
    assert status == 1
    assert "of the bound" in out


def test_a_store_that_is_not_new_and_odd_options_are_refused(capsys, tmp_path):
    (tmp_path / "something").touch()
    status, out, err = run(capsys, "--kills", "1", "--store", str(tmp_path))
    assert (status, out) == (2, "")
    assert "not empty" in err
    for odd in (["--kills", "0"], ["--seed", "-1"], ["--seconds-max", "0"]):
        assert run(capsys, *odd)[0] == 2


# --- what the check would notice


@pytest.fixture
async def put(tmp_path):
    """(path, oracle) of a store with ten documents."""
    oracle, path = crashcheck.ChunkOracle(7), tmp_path / "store"
    async with open_store(path) as chunks:
        for document in range(10):
            with await chunks.plan([*tokens_of(7, document), 5]) as plan:
                [span, _] = plan.spans
                assert await chunks.put(span, *kv_of(7, document, span.end))
                extents = chunks._held.chunk(span.key).extents
            oracle.began(document)
            oracle.stored(Stored(document, [extent.region for extent in extents]))
    return path, oracle


def without_tables(path):
    for table in path.glob("*.chunks"):
        table.unlink()


async def test_the_check_is_content_with_what_was_put(put):
    path, oracle = put
    found = await oracle.check(path)
    assert (found.held, found.lost, found.gone, found.wrong, found.damaged, found.faults) == (10, 0, 0, 0, 0, 0)
    assert found.messages == []
    assert found.asked > 300


async def test_an_entry_that_is_gone_is_a_loss_and_a_region_that_is_gone_is_not(put):
    path, oracle = put
    without_tables(path)
    entries = sorted(path.glob("*.entries"))
    with entries[-1].open("r+b") as file:
        file.truncate(entries[-1].stat().st_size - 80)
    found = await oracle.check(path)
    assert found.lost == 1
    assert found.wrong == 0
    assert any("was acknowledged" in message for message in found.messages)
    without_tables(path)
    entries[-1].unlink()  # its region's file is there: a kill may come between the two
    found = await oracle.check(path)
    assert found.lost == 0
    assert found.gone > 0


async def test_a_damaged_payload_is_noticed(put):
    path, oracle = put
    region = sorted(path.glob("*.region"))[0]
    data = bytearray(region.read_bytes())
    data[100] ^= 1
    region.write_bytes(data)
    found = await oracle.check(path)
    assert found.faults == found.damaged == 1
    assert found.lost == 1


async def test_another_payload_and_what_was_never_put_are_wrong(put, monkeypatch):
    path, oracle = put
    oracle._tried.discard(3)
    found = await oracle.check(path)
    assert found.wrong == 1
    oracle._tried.add(3)
    monkeypatch.setattr(crashcheck, "is_right", lambda *_: False)
    assert (await oracle.check(path)).wrong == 10


async def test_an_engine_that_forgets_a_chunk_is_noticed(put, monkeypatch):
    path, oracle = put
    monkeypatch.setattr(Held, "__contains__", lambda self, key: False)
    found = await oracle.check(path)
    assert found.lost == 10
    assert found.wrong == 10
    assert "misses" in found.messages[0]
