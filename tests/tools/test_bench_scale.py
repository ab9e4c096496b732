"""Stores of several sizes, killed halfway and at the end; and sizes that there is no room for."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sarpstore_tools.bench import scale, shapes
from sarpstore_tools.bench.extrapolation import extrapolated
from sarpstore_tools.bench.figures import measured
from sarpstore_tools.main import main

if TYPE_CHECKING:
    from pathlib import Path


def run_scale(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, object], dict[str, dict[str, object]]]:
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "scale", "--repeats", "1", "--no-targets", "--json", str(report), *arguments])
    found = json.loads(report.read_bytes()) if report.exists() and report.stat().st_size else {}
    code = exit_info.value.code
    assert isinstance(code, int)
    return code, found, {figure["name"]: figure for figure in found.get("figures", [])}


def scaled(blocks: int, on_disk: float) -> scale.Scaled:
    figures = {name: measured(name, "B", [on_disk]) for name in (scale.ON_DISK_A_BLOCK, scale.FIRST_ANSWER)}
    return scale.Scaled(blocks=blocks, figures=figures, failures=[], page_cache=[])


def test_a_store_is_built_killed_twice_and_opened_after_each_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found, figures = run_scale(tmp_path, "--blocks", "2e4", "--store", str(tmp_path / "s"))
    assert (status, found["failures"]) == (0, []), capsys.readouterr().out
    values = {name.removeprefix("2e4: "): figure["value"] for name, figure in figures.items()}
    for when in ("halfway", "at the end"):
        assert values[f"first answer, {when}"] >= values[f"open() alone, {when}"] > 0  # type: ignore[operator]
    assert values["build, without the driver"] > values["build"] > 0  # type: ignore[operator]
    assert values["on disk, a block"] > values["log, a block"] > 30  # type: ignore[operator]
    assert values["memory, all loaded, at the end"] > 1  # type: ignore[operator]
    assert any((tmp_path / "s" / "sessions-20000").glob("*.log"))


def test_a_size_that_has_no_room_is_refused_or_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale._ScaledStore, "run", lambda self, repeats, keep: scaled(self._blocks, 50.0))
    monkeypatch.setattr(scale, "free_bytes", lambda folder: 60_000_000)
    status, found, figures = run_scale(tmp_path, "--blocks", "1e4,1e5,1e7")
    assert status == 0
    assert not any("1e7" in name for name in figures)
    assert any("1e7 blocks need 0.6 GB" in line and "not extrapolated either" in line for line in found["method"])  # type: ignore[attr-defined]
    status, found, figures = run_scale(tmp_path, "--blocks", "1e4,1e5,1e6,1e7")
    assert any("EXTRAPOLATED, not measured" in line for line in found["method"])  # type: ignore[attr-defined]
    guessed = figures[f"1e7 (not measured): {scale.ON_DISK_A_BLOCK}"]
    assert guessed["value"] == pytest.approx(50.0)
    assert guessed["note"] == "EXTRAPOLATED from 1e4, 1e5, 1e6"
    assert guessed["target"] is None


def test_no_room_for_any_size_is_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "free_bytes", lambda folder: 1000)
    assert run_scale(tmp_path, "--blocks", "1e4")[0] == 2


def test_room_is_judged_by_what_was_measured() -> None:
    assert scale.no_room(1000, [], 1000 * 70) != ""
    assert scale.no_room(1000, [], 1000 * 71) == ""
    assert scale.no_room(1000, [scaled(10, 100.0)], 1000 * 71) != ""
    assert scale.no_room(1000, [scaled(10, 40.0)], 1000 * 45) == ""


def test_extrapolation_follows_a_power_law_and_needs_three_sizes() -> None:
    assert extrapolated([1e6, 1e7, 1e8], [2.0, 20.0, 200.0], 1e9) == pytest.approx(2000.0)
    assert extrapolated([1e6, 1e7, 1e8], [7.0, 7.0, 7.0], 1e9) == pytest.approx(7.0)
    assert extrapolated([1e6, 1e7], [2.0, 20.0], 1e9) is None
    assert extrapolated([1e6, 1e7, 1e8], [0.0, 1.0, 2.0], 1e9) is None


def test_large_stores_have_few_files_and_room_for_their_directory() -> None:
    assert scale.options_for(10**6) == {"log_file_bytes": 4 << 20, "directory_bytes_max": 1 << 30}
    for blocks in (10**7, 10**8, 10**9):
        options = scale.options_for(blocks)
        files = blocks * scale.DISK_BYTES_A_BLOCK / options["log_file_bytes"]
        assert files <= scale.LOG_FILES_MAX
        assert options["log_file_bytes"] == 4 << 20 or files > scale.LOG_FILES_MAX / 2
        assert options["directory_bytes_max"] >= blocks
    assert scale.options_for(10**9)["log_file_bytes"] == 64 << 20


def test_sessions_share_prompts_and_come_back_longer() -> None:
    made = list(islice(shapes.sessions(np.random.default_rng(0)), 1000))
    starts = {bytes(ids[0]) for ids in made}
    assert len(starts) <= shapes.PROMPTS
    assert max(map(len, made)) <= shapes.PROMPT_BLOCKS[1] + shapes.SESSION_BLOCKS[1]
    unique = np.unique(np.concatenate(made).view("V16"))
    total = sum(map(len, made))
    assert total / 20 < len(unique) < total / 2
    by_own = {bytes(ids[-1]) for ids in made}
    longer = [ids for ids in made if any(bytes(one) in by_own for one in ids[:-1])]
    assert len(longer) > 100
