"""Killing a writer again and again: nothing is lost, and the check would notice if something were."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from sarpstore_tools import crashcheck, killpoints
from sarpstore_tools.bench.shapes import locations_of
from sarpstore_tools.crashing import Began, namespace_of, tree_of
from sarpstore_tools.main import main

import sarpstore


def crashtest(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["crashtest", *arguments])
    captured = capsys.readouterr()
    return exit_info.value.code, captured.out, captured.err


# Seed 8 aims its first kill half a second after inserting began: then something has been acknowledged.
@pytest.mark.parametrize(("durability", "kills"), [("always", 3), ("interval", 1)])
def test_nothing_acknowledged_is_lost_over_a_few_kills(capsys, tmp_path, durability, kills):
    report = tmp_path / "report.json"
    status, out, _ = crashtest(
        capsys, "--kills", str(kills), "--seed", "8", "--durability", durability, "--json", str(report)
    )
    assert status == 0, out
    assert "seed 8" in out
    found = json.loads(report.read_bytes())
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert found["passed"] is True
    assert found["failures"] == []
    assert figures["kills"]["value"] == kills
    assert figures["acknowledged insertions"]["value"] > 0
    assert figures["lost blocks"]["value"] == figures["wrong answers"]["value"] == 0
    assert figures["verify faults"]["passed"]


def test_a_writer_kills_itself_at_named_points(capsys, tmp_path):
    report = tmp_path / "report.json"
    status, out, _ = crashtest(capsys, "--points", "--removals", "--kills", "6", "--seed", "3", "--json", str(report))
    assert status == 0, out
    figures = {figure["name"]: figure for figure in json.loads(report.read_bytes())["figures"]}
    assert figures["kills"]["value"] == 6
    assert figures["kills at named points"]["value"] >= 3, "most points come within two seconds"


@pytest.mark.parametrize(
    ("point", "when"), [(point, when) for point in killpoints.POINTS for when in killpoints.moments_of(point)]
)
def test_a_kill_point_is_before_within_or_after_its_call(tmp_path, point, when):
    """The second of the calls: the first one's work is done, and nothing that comes behind."""
    status = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path), point, when], capture_output=True, check=False
    ).returncode
    assert status == -signal.SIGKILL
    call, kind = point.split()
    names = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = when == "after"
    match call:
        case "create":
            assert f"1.{kind}" in names
            assert (f"2.{kind}" in names) == done
        case "write":
            assert names[f"1.{kind}"] == b"12345678"
            assert names[f"2.{kind}"] == {"before": b"", "halfway": b"1234", "after": b"12345678"}[when]
        case "rename":
            assert f"1.{kind}.new" in names
            assert (f"2.{kind}.new" in names) == done
        case "remove":
            assert f"1.{kind}" not in names
            assert (f"2.{kind}" in names) != done


CALLS = """
import os, sys
from sarpstore_tools import killpoints
folder, point, when = sys.argv[1:]
call, kind = point.split()
os.chdir(folder)
killpoints.arm(killpoints.KillPoint(point=point, nth=2, when=when))
suffix = "log" if kind == "folder" else kind
for number in range(1, 4):
    name = f"{number}.{suffix}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.open(f"{number}.stats", os.O_RDWR | os.O_CREAT)  # of another kind
    os.pwritev(fd, [b"12345678"], 0)
    os.fdatasync(fd)
    os.fsync(os.open(".", os.O_RDONLY))
    if call == "rename":
        os.replace(name, name + ".new")
    elif call == "remove":
        os.unlink(name)
"""


def test_a_store_that_is_not_new_is_refused(capsys, tmp_path):
    (tmp_path / "something").touch()
    status, out, err = crashtest(capsys, "--kills", "1", "--store", str(tmp_path))
    assert (status, out) == (2, "")
    assert "not empty" in err


def test_an_absent_verify_is_a_failure_and_said_loudly(capsys, monkeypatch):
    monkeypatch.setattr(
        "sarpstore_tools.crashtest.verify_faults", lambda path: (crashcheck.NOT_CHECKED, "the files were NOT CHECKED")
    )
    status, out, _ = crashtest(capsys, "--kills", "1", "--seed", "2")
    assert status == 1
    assert "NOT CHECKED" in out


async def held(path, tree, member, blocks, locations=locations_of):
    async with sarpstore.open(path) as store:
        ids = tree_of(0, tree)[member][:blocks]
        await store.namespace(namespace_of(tree)).insert_ids(ids, locations(ids))


async def check(path, tried, acknowledged):
    oracle = crashcheck.Oracle(0)
    for op in tried:
        oracle.began(op)
    for op in acknowledged:
        oracle.acknowledged(op)
    return await oracle.check(str(path), [1], read_only=True)


def whole(tree, member):
    return Began(0, tree, member, len(tree_of(0, tree)[member]))


async def test_the_check_is_content_with_what_was_acknowledged_and_with_what_only_began(tmp_path):
    op = whole(1, 0)
    await held(tmp_path, 1, 0, op.blocks)
    for acknowledged in ([op], []):
        found = await check(tmp_path, [op], acknowledged)
        assert (found.lost_blocks, found.wrong, found.messages) == (0, 0, [])
        assert found.queries > 32


async def test_the_check_sees_a_lost_block(tmp_path):
    op = whole(1, 0)
    await held(tmp_path, 1, 0, op.blocks - 1)
    found = await check(tmp_path, [op], [op])
    assert found.lost_blocks >= 1
    assert found.messages


async def test_the_check_sees_blocks_that_nobody_inserted(tmp_path):
    await held(tmp_path, 1, 0, whole(1, 0).blocks)
    found = await check(tmp_path, [], [])
    assert found.wrong >= 1


async def test_the_check_sees_wrong_locations(tmp_path):
    op = whole(1, 0)

    def moved(ids):
        return np.roll(locations_of(ids), 1)

    await held(tmp_path, 1, 0, op.blocks, moved)
    found = await check(tmp_path, [op], [op])
    assert found.wrong >= 1


async def test_verify_faults_are_counted(tmp_path):
    await held(tmp_path / "store", 1, 0, 10)
    assert crashcheck.verify_faults(str(tmp_path / "store")) == (0, "")
    for log in (tmp_path / "store").glob("*.log"):
        data = bytearray(log.read_bytes())
        data[3 * 4096 + 200 :: 4096] = bytes(len(data[3 * 4096 + 200 :: 4096]))
        data[2 * 4096 + 300] ^= 0xFF
        log.write_bytes(data)
    faults, first = crashcheck.verify_faults(str(tmp_path / "store"))
    assert faults >= 1
    assert "status 1" in first
