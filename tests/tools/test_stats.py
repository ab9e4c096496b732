"""`sarpstore stats`: the published statistics, once and while they change."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from sarpstore_tools import stats as stats_module
from sarpstore_tools.specreader.structures import Statistics
from sarpstore_tools.stats import rates_between, stats
from spec_writer import StoreWriter

if TYPE_CHECKING:
    from pathlib import Path

VALUES: dict[str, object] = {
    "blocks": 1234567,
    "matches": 100,
    "reads": 40,
    "cache_hits": 60,
    "log_bytes": 1 << 20,
    "synced_position": 2 << 24 | 300,
    "checkpoint_position": 2 << 24 | 200,
    "io_backend": "threads",
    "loop_hold_ms_max": 0.25,
    "something_new": [1, 2],
}


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path / "s")
    writer.stats(VALUES, time_ms=int(time.time() * 1000))
    return writer


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(stats, [str(path), *arguments])


def test_the_table_shows_known_and_unknown_values(writer: StoreWriter) -> None:
    result = run(writer.path)
    assert result.exit_code == 0
    for part in ("1,234,567", "something_new", "[1, 2]", "threads", "2.log:19200", "is running", "6,400 bytes"):
        assert part in result.output


def test_a_writer_that_is_gone_is_said_to_be(writer: StoreWriter) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    writer.stats(VALUES, process=process.pid, time_ms=int(time.time() * 1000) - 5000)
    output = run(writer.path).output
    assert "is gone" in output
    assert "published 5." in output
    for odd in (0, 2**32 - 1):
        writer.stats(VALUES, process=odd)
        assert "is gone" in run(writer.path).output


def test_json_has_the_values_and_when_they_were_published(writer: StoreWriter) -> None:
    output = json.loads(run(writer.path, "--json").output)
    published = output.pop("published")
    assert output == VALUES
    assert published["alive"]
    assert published["age_s"] < 60


def test_no_or_damaged_statistics_are_status_2_and_one_line(writer: StoreWriter, tmp_path: Path) -> None:
    file = writer.path / "stats"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    (tmp_path / "odd" / "stats").mkdir(parents=True)
    for path in (writer.path, tmp_path / "nowhere", tmp_path / "odd", file):
        result = run(path)
        assert result.exit_code == 2
        assert len(result.output.splitlines()) == 1
    for content in (b"", b"\0" * 100, b"\x89SAS\r\n\x1a\n"):
        file.write_bytes(content)
        assert run(writer.path).exit_code == 2


def test_watching_shows_rates_and_outlives_a_missing_file(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([200, 300])

    def step(_: float) -> None:
        matches = next(samples, None)
        if matches is None:
            raise KeyboardInterrupt
        if matches == 200:
            grown = {**VALUES, "matches": 300, "cache_hits": 90, "reads": 50, "log_bytes": 3 << 20}
            writer.stats(grown, time_ms=int(time.time() * 1000) + 2000)
        else:
            (writer.path / "stats").unlink()

    monkeypatch.setattr(stats_module.time, "sleep", step)
    result = run(writer.path, "--watch", "--interval", "0.05")
    assert result.exit_code == 0
    assert "matches/s" in result.output
    assert "75.0%" in result.output
    assert "MiB/s" in result.output


def test_watching_as_json_gives_a_line_a_sample(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1, 2])

    def step(_: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(stats_module.time, "sleep", step)
    assert len(run(writer.path, "--watch", "--json").output.splitlines()) == 3


def test_rates_need_two_samples_of_one_writer() -> None:
    def sample(process: int, time_ms: int, **values: object) -> Statistics:
        return Statistics(1, 0, bytes(16), process, time_ms, dict(values))

    older = sample(1, 1000, matches=10, reads=4, cache_hits=0, log_bytes="?")
    rates = rates_between(older, sample(1, 3000, matches=30, reads=4, cache_hits=0, log_bytes=1))
    assert (rates.matches, rates.reads, rates.hit_rate, rates.log_bytes) == (10.0, 0.0, None, None)
    assert rates_between(older, sample(2, 3000, matches=30)).matches is None
    assert rates_between(older, older).matches is None
