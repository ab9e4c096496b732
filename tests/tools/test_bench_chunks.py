"""`sarpstore bench chunks`: it loads what it put, and shows shares of the device."""

from __future__ import annotations

import json

from click.testing import CliRunner
from sarpstore_tools.bench import bench, chunks


def test_the_command_measures_loads_and_a_full_store(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "FULL_BYTES", 160 << 20)
    out = tmp_path / "out.json"
    arguments = ["chunks", "--mib", "2", "--total-mib", "64", "--repeats", "1", "--turnover", "2", "--no-targets"]
    result = CliRunner().invoke(bench, [*arguments, "--store", str(tmp_path / "s"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    figures = {figure["name"]: figure for figure in json.loads(out.read_text())["figures"]}
    assert figures["load, chunks of 2 MiB"]["value"] > 0
    assert 1 < figures["full store, bytes written"]["value"] < 1.2
    assert figures["full store, disk"]["value"] <= 1
