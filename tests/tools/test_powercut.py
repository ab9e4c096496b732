"""Cutting the power of a real file system: it really forgets, and the store does not. Where mounting is allowed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sarpstore_tools.main import main
from sarpstore_tools.powercut import NoPowerCutError, cut_disk

import sarpstore


@pytest.fixture
def disk(tmp_path):
    try:
        with cut_disk(tmp_path, "ext4", 64 << 20) as made:
            yield made
    except NoPowerCutError as error:
        pytest.skip(f"no disk to cut the power of: {error}")


def test_what_was_not_synced_is_gone(disk):
    folder = disk.folder
    (folder / "synced").write_bytes(b"1" * 8192)
    with (folder / "synced").open("rb+") as file:
        os.fsync(file.fileno())
        file.seek(8192)
        file.write(b"2" * 8192)
        file.flush()
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    (folder / "unsynced").write_bytes(b"3")
    disk.cut()
    with pytest.raises(OSError, match="Input/output error"):
        (folder / "after").write_bytes(b"4")
    disk.back()
    assert (folder / "synced").read_bytes() == b"1" * 8192
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["synced"]


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("more", [(), ("--removals", "--points")], ids=["inserting", "at points"])
def test_a_store_loses_nothing_that_was_acknowledged(capsys, tmp_path_factory, more):
    report = tmp_path_factory.mktemp("report") / "report.json"
    with pytest.raises(SystemExit) as exit_info:
        main(["crashtest", "--power-cuts", "ext4", "--kills", "3", "--seed", "8", *more, "--json", str(report)])
    assert exit_info.value.code == 0, capsys.readouterr().out
    figures = {figure["name"]: figure["value"] for figure in json.loads(report.read_bytes())["figures"]}
    assert figures["kills"] == 3
    assert figures["lost blocks"] == figures["wrong answers"] == figures["damaged records"] == 0


def test_a_user_who_may_not_is_told_so(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as exit_info:
        main(["crashtest", "--power-cuts", "xfs", "--kills", "1"])
    assert exit_info.value.code == 2
    assert "mkfs.xfs is not installed" in capsys.readouterr().err


@pytest.mark.usefixtures("disk")
def test_a_store_that_skips_its_fsyncs_is_seen_to_lose(tmp_path):
    root = Path(sarpstore.__file__).parent.parent
    for name in ("sarpstore", "tools"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = tmp_path / "sarpstore" / "_files" / "real.py"
    text = files.read_text()
    for sync in ("os.fdatasync", "os.fsync"):
        assert sync in text
        text = text.replace(sync, "(lambda _: None)")
    files.write_text(text)
    crashtest = (sys.executable, "-m", "sarpstore_tools", "crashtest")
    command = (*crashtest, "--power-cuts", "ext4", "--kills", "6", "--seed", "4")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'tools'}"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "were acknowledged" in done.stdout or "does not open" in done.stdout
