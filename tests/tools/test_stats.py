"""`sarpstore stats`: the published statistics, once and while they change."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner, Result
from sarpstore_tools import stats as stats_module
from sarpstore_tools.specreader.structures import Statistics
from sarpstore_tools.stats import stats
from sarpstore_tools.statstables import Growth, growth_between, meaning_table
from sarpstore_tools.statsview import GROUPS, meanings
from spec_writer import StoreWriter

import sarpstore

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
    assert re.search(r"matches +300 +\d+\.\d/s", result.output)
    assert "75.0%" in result.output
    assert "since the last" in result.output
    assert "MiB/s" in result.output


def test_watching_as_json_gives_a_line_a_sample(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1, 2])

    def step(_: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(stats_module.time, "sleep", step)
    assert len(run(writer.path, "--watch", "--json").output.splitlines()) == 3


def sample(process: int, time_ms: int, **values: object) -> Statistics:
    return Statistics(1, 0, bytes(16), process, time_ms, dict(values))


def shown(values: dict[str, object], growth: Growth | None = None, age: float | None = None) -> dict[str, list[str]]:
    """The rows of the table of meanings: what → [overall, since the last]."""
    table = meaning_table(meanings(values, growth, age), watched=growth is not None)
    columns = [list(map(str, column.cells)) for column in table.columns]
    return {what: [overall, since] for what, overall, since in zip(*columns, strict=True)}


def test_growth_needs_two_samples_of_one_writer() -> None:
    older = sample(1, 1000, matches=10, reads=4, cache_hits=0, log_bytes="?")
    growth = growth_between(older, sample(1, 3000, matches=30, reads=4, cache_hits=0, log_bytes=1))
    assert growth is not None
    assert (growth.rate("matches"), growth.of("reads"), growth.rate("log_bytes")) == (10.0, 0.0, None)
    assert growth_between(older, sample(2, 3000, matches=30)) is None
    assert growth_between(older, older) is None


def test_every_counter_of_the_engine_has_its_group() -> None:
    grouped = [name for _, names in GROUPS for name in names]
    assert sorted(grouped) == sorted(sarpstore.Stats.__struct_fields__)


def test_the_table_says_what_counters_mean_overall_and_since_the_last_sample() -> None:
    older: dict[str, object] = {
        "matches": 100, "matched_blocks": 1000, "cache_hits": 50, "reads": 50, "removed": 10, "markers": 700,
        "evicted": 0, "copied_bytes": 0, "compacted_files": 1, "mark_passes": 1, "disk_bytes": 40 << 20,
        "bytes_max": 64 << 20, "live_bytes": 30 << 20, "dead_bytes": 10 << 20, "checkpoint_lag_bytes": 4096,
        "damaged_records": 0, "failed": "",
    }  # fmt: skip
    newer = {
        **older, "matches": 200, "matched_blocks": 4000, "cache_hits": 125, "reads": 75, "removed": 30, "markers": 0,
        "copied_bytes": 4 << 20, "compacted_files": 5, "mark_passes": 2, "disk_bytes": 48 << 20,
    }  # fmt: skip
    rows = shown(newer, growth_between(sample(1, 1000, **older), sample(1, 3000, **newer)), age=2.5)
    assert rows["blocks a match"] == ["20.0", "30.0"]
    assert rows["cache hit rate"] == ["62.5%", "75.0%"]
    assert rows["blocks removed"] == ["30", "10.0/s"]
    assert rows["markers"] == ["0", "-700"]
    assert rows["mark passes"] == ["2", "0.5/s"]
    assert rows["files compacted"] == ["5", "2.0/s"]
    assert rows["copied by compaction"] == ["4.0 MiB", "2.0 MiB/s"]
    assert rows["disk use"] == ["48.0 MiB of 64.0 MiB, 75.0%", "4.0 MiB/s"]
    assert rows["live / dead"] == ["75.0% / 25.0%", ""]
    assert rows["checkpoint lag"] == ["4,096 bytes", ""]
    assert rows["checkpoint age"] == ["2.5 s", ""]
    assert rows["writes"] == ["go on", ""]
    assert rows["reads joined"] == ["-", ""]


def test_a_store_without_a_bound_or_with_stopped_writes_says_so() -> None:
    rows = shown({"disk_bytes": 1 << 20, "bytes_max": 0, "failed": "no space", "damaged_records": 3})
    assert rows["disk use"][0] == "1.0 MiB, unbounded"
    assert rows["writes"][0] == "have stopped"
    assert rows["damaged records"][0] == "3"
    assert rows["checkpoint age"][0] == "-"


async def test_the_counters_of_an_open_store_are_watched(tmp_path: Path) -> None:
    async with sarpstore.open(tmp_path / "s") as store:
        await store.namespace("x").insert(list(range(160)), np.zeros(10, sarpstore.LOCATION))
        await store.checkpoint()
        await asyncio.sleep(0.1)
        while not (tmp_path / "s" / "stats").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        result = await asyncio.to_thread(run, tmp_path / "s")
    assert result.exit_code == 0
    rows = {line.split("  ")[0].strip(): line for line in result.output.splitlines()}
    assert "is running" in result.output
    assert rows["checkpoint age"].rstrip().endswith(" s")
    assert "other" not in rows
