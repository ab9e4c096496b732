"""`sarpstore stats` on chunk stores: a real store's file, what counters mean, and files that say anything."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sarpstore_tools import chunkview, statsview
from sarpstore_tools import stats as stats_module
from sarpstore_tools.chunkview import CAUSES, GROUPS, flattened, is_of_chunks, meanings
from sarpstore_tools.dump import dump
from sarpstore_tools.specreader.chunk_store import verify_chunks
from sarpstore_tools.specreader.structures import Statistics
from sarpstore_tools.stats import stats
from sarpstore_tools.statstables import Growth, counters_table, growth_between, meaning_table
from sarpstore_tools.verify import verify
from spec_writer import StoreWriter

import sarpstore

sys.path.insert(0, str(Path(__file__).parent.parent / "chunks"))

from chunk_helpers import chunks_in, document, fill, held, prompt

MIB = 1 << 20
VALUES: dict[str, object] = {
    "chunks": 1_234_567,
    "regions": 7,
    "disk_bytes": 48 * MIB,
    "bytes_max": 64 * MIB,
    "tokens": 1000,
    "hit_tokens": 700,
    "missed_tokens": {"new": 200, "evicted": 50, "boundary": 30, "by the moon": 20},
    "question_tokens": 10,
    "loaded_bytes": 300 * MIB,
    "load_seconds": 1.5,
    "put_bytes": 100 * MIB,
    "again_bytes": 5 * MIB,
    "written_bytes": 108 * MIB,
    "damaged_payloads": 0,
    "puts": 40,
    "refused_puts": 3,
    "evicted_chunks": 11,
    "table_lag": 17,
    "used_tokens": 600,
    "recomputed_tokens": 60,
    "compared": 8,
    "drift": 0.0125,
    "recovery_ms": 12.5,
    "io_backend": "uring",
    "failed": "",
    "something_new": [1, 2],
}


def run(path, *arguments):
    return CliRunner().invoke(stats, [str(path), *arguments], terminal_width=200)


def sample(process, time_ms, **values):
    return Statistics(1, 0, bytes(16), process, time_ms, flattened(values))


def shown(values, growth: Growth | None = None):
    """The rows of the table of meanings: what → (overall, since the last, whether it is red)."""
    table = meaning_table(meanings(flattened(values), growth), watched=growth is not None)
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    return {str(what): (str(overall), str(since), "red" in str(overall.style)) for what, overall, since in rows}


# --- what is shown


def test_every_counter_of_the_engine_has_its_group_and_every_cause_its_row():
    grouped = [name for _, names in GROUPS for name in names]
    fields = set(sarpstore.ChunkStats.__struct_fields__) - {"missed_tokens"}
    assert sorted(grouped) == sorted([*fields, *(f"missed: {cause}" for cause in CAUSES)])


def test_the_two_kinds_are_told_apart():
    assert is_of_chunks(VALUES)
    assert not is_of_chunks({"blocks": 1, "chunks": 2})
    assert not is_of_chunks({})


def test_the_table_says_what_counters_mean():
    rows = shown(VALUES)
    assert rows["tokens looked up"] == ("1,000", "", False)
    assert rows["token hit rate"][0] == "70.0%"
    missed = {what: row[0] for what, row in rows.items() if what.startswith("missed: ")}
    assert missed == {
        "missed: new": "20.0%", "missed: evicted": "5.0%", "missed: not admitted": "0.0%", "missed: damaged": "0.0%",
        "missed: boundary": "3.0%", "missed: in flight": "0.0%", "missed: by the moon": "2.0%",
    }  # fmt: skip
    assert rows["prefill saved"][0] == "700 tokens"
    assert rows["load bandwidth"][0] == "200.0 MiB/s"
    assert rows["write amplification"][0] == "1.080"
    assert rows["chunks evicted"][0] == "11"
    assert rows["puts not admitted"][0] == "3"
    assert rows["disk use"][0] == "48.0 MiB of 64.0 MiB, 75.0%"
    assert rows["table lag"][0] == "17"
    assert rows["fix-up share"][0] == "10.0%"
    assert rows["drift"][0] == "0.0125 nats, 8 compared"
    assert rows["damaged payloads"] == ("0", "", False)
    assert rows["puts"] == ("go on", "", False)


def test_the_table_says_what_has_changed_since_the_last_sample():
    newer = {
        **VALUES, "tokens": 2000, "hit_tokens": 1600, "loaded_bytes": 700 * MIB, "load_seconds": 2.0,
        "missed_tokens": {"new": 220, "evicted": 130, "boundary": 30, "by the moon": 20}, "puts": 44, "compared": 9,
        "put_bytes": 110 * MIB, "written_bytes": 120 * MIB, "used_tokens": 800, "recomputed_tokens": 160,
    }  # fmt: skip
    growth = growth_between(sample(1, 1000, **VALUES), sample(1, 3000, **newer))
    rows = shown(newer, growth)
    assert rows["tokens looked up"][:2] == ("2,000", "500.0/s")
    assert rows["token hit rate"][:2] == ("80.0%", "90.0%")
    assert rows["missed: new"][:2] == ("11.0%", "2.0%")
    assert rows["missed: evicted"][:2] == ("6.5%", "8.0%")
    assert rows["missed: damaged"][:2] == ("0.0%", "0.0%")
    assert rows["prefill saved"][:2] == ("1,600 tokens", "450.0/s")
    assert rows["loaded"][:2] == ("700.0 MiB", "200.0 MiB/s")
    assert rows["load bandwidth"][:2] == ("350.0 MiB/s", "800.0 MiB/s")
    assert rows["write amplification"][:2] == ("1.091", "1.200")
    assert rows["fix-up share"][:2] == ("20.0%", "50.0%")
    assert rows["drift"][:2] == ("0.0125 nats, 9 compared", "0.5/s")


def test_damage_and_stopped_puts_are_red():
    rows = shown({**VALUES, "damaged_payloads": 2, "failed": "no space"})
    assert rows["damaged payloads"] == ("2", "", True)
    assert rows["puts"] == ("have stopped", "", True)


def test_a_store_that_has_done_nothing_yet_has_no_shares():
    rows = shown({**dict.fromkeys(VALUES, 0), "missed_tokens": {}, "failed": "", "bytes_max": 1})
    for what in ("token hit rate", "missed: new", "load bandwidth", "write amplification", "fix-up share", "drift"):
        assert rows[what][0] == "-"


# --- files


@pytest.fixture
def writer(tmp_path):
    writer = StoreWriter(tmp_path / "s")
    writer.stats(VALUES, time_ms=int(time.time() * 1000))
    return writer


def test_the_command_shows_all_counters_known_or_not(writer):
    result = run(writer.path)
    assert result.exit_code == 0, result.output
    for part in ("1,234,567", "missed: boundary", "missed: by the moon", "something_new", "[1, 2]", "is running"):
        assert part in result.output
    assert "checkpoint" not in result.output
    output = json.loads(run(writer.path, "--json").output)
    output.pop("published")
    assert output == VALUES


def test_watching_shows_the_growth(writer, monkeypatch):
    steps = iter([1, 2])

    def step(_):
        if next(steps) == 2:
            raise KeyboardInterrupt
        grown = {**VALUES, "tokens": 2000, "hit_tokens": 1600}
        writer.stats(grown, time_ms=int(time.time() * 1000) + 2000)

    monkeypatch.setattr(stats_module.time, "sleep", step)
    result = run(writer.path, "--watch", "--interval", "0.05")
    assert result.exit_code == 0, result.output
    assert "since the last" in result.output
    assert "90.0%" in result.output


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.sampled_from([2**63, 2**64, -(2**64), 10**300])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.just("\x1b[2J[bold]"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("view", [statsview, chunkview], ids=["index", "chunks"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_whatever_a_file_says_is_shown(view, data):
    names = [*(name for _, names in view.GROUPS for name in names), "missed_tokens", "\x1b]0;x\x07"]
    samples = [flattened(data.draw(st.dictionaries(st.sampled_from(names), ODD))) for _ in range(2)]
    growth = Growth(*samples, seconds=data.draw(st.sampled_from([1e-3, 1.0, 1e12])))
    more = (None,) if view is statsview else ()
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(counters_table(samples[1], view.GROUPS))
    for since in (None, growth):
        console.print(meaning_table(view.meanings(samples[1], since, *more), watched=since is not None))
    assert "\x1b" not in console.export_text(styles=False)


def test_the_title_shows_no_control_characters(writer):
    writer.stats({**VALUES, "failed": "\x1b[2J no space"}, time_ms=int(time.time() * 1000))
    output = run(writer.path).output
    assert "\x1b" not in output
    assert "\\x1b[2J no space" in output


# --- a real store


async def test_the_counters_of_an_open_chunk_store_are_shown_verified_and_dumped(tmp_path):
    path = tmp_path / "s"
    async with chunks_in(path) as chunks:
        await fill(chunks, range(4), 200)
        assert await held(chunks, range(4), 200) == set(range(4))
        (await chunks.plan(prompt(document(1, 200)[:-1] + document(2, 200)))).close()
        chunks.note_use(tokens=100, recomputed=15)
        chunks.note_drift(0.5)
        async with asyncio.timeout(20):
            # Nobody tells when they are published.
            while not (path / "stats").exists() or not json.loads(run(path, "--json").output)["compared"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        output = (await asyncio.to_thread(run, path)).output
    rows = {line.split("  ")[0].strip(): line.rstrip() for line in output.splitlines()}
    assert "is running" in output
    assert "other" not in rows
    assert rows["fix-up share"].endswith("15.0%")
    assert rows["drift"].endswith("0.5000 nats, 1 compared")
    assert rows["puts"].endswith("go on")
    assert float(rows["missed: boundary"].split()[-1].rstrip("%")) > 0
    assert verify_chunks(path).faults == []
    [line] = CliRunner().invoke(dump, [str(path), "--file", "stats", "--json"]).output.splitlines()
    assert json.loads(line)["values"]["puts"] == 4


async def test_damaged_or_strange_statistics_of_a_chunk_store_are_a_warning(tmp_path):
    async with chunks_in(tmp_path / "s") as chunks:
        await fill(chunks, [1])
    async with chunks_in(tmp_path / "other"):
        pass
    file = tmp_path / "s" / "stats"
    whole = file.read_bytes()
    for content, code in (
        (whole[:60] + b"?" + whole[61:], "stats-checksum"),
        (whole[:20], "stats-truncated"),
        ((tmp_path / "other" / "stats").read_bytes(), "uuid"),
    ):
        file.write_bytes(content)
        assert [(fault.file, fault.code) for fault in verify_chunks(tmp_path / "s").faults] == [("stats", code)]
        assert CliRunner().invoke(verify, [str(tmp_path / "s")]).exit_code == 1
    file.write_bytes(b"")  # a power cut may leave that
    assert verify_chunks(tmp_path / "s").faults == []
    file.write_bytes(whole[:60] + b"?" + whole[61:])
    [line] = CliRunner().invoke(dump, [str(tmp_path / "s"), "--file", "stats", "--json"]).output.splitlines()
    assert json.loads(line)["kind"] == "damage"
