"""`sarpstore replay` end to end: the real command, engine and kill, its output, and that a wrong answer fails it."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys

import msgspec
import pytest
from rich.console import Console
from sarpstore_tools import main as command_line
from sarpstore_tools import replay, report
from sarpstore_tools.protocol import Finished, Latency, ServeJob, StoreOptions
from sarpstore_tools.replayer import Replayer, waves
from sarpstore_tools.traces import TraceSpec, open_trace

import sarpstore

TINY = ("--generate", "chat", "--sessions", "6", "--turns", "3")


def run(*arguments, cwd):
    command = [sys.executable, "-P", "-c", "from sarpstore_tools.main import main; main()", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_a_replay_with_a_kill_answers_everything_rightly(tmp_path):
    done = run(*TINY, "--json", "--store", "stores", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    row = json.loads(line)
    replayed, recovery = row["replay"], row["recovery"]
    assert row["clean"]
    assert replayed["matched_tokens"] == replayed["oracle_tokens"] > 0
    assert (replayed["wrong"], replayed["lost_tokens"], recovery["wrong"], recovery["lost_tokens"]) == (0, 0, 0, 0)
    assert replayed["unique_blocks"] == replayed["stats"]["blocks"] > 0
    assert replayed["answers"] == 2 * replayed["turns"]
    assert recovery["checked"] > replayed["turns"]
    assert recovery["answers_before_kill"] > 0
    assert (recovery["tries"], recovery["stats"]["damaged_records"]) == (1, 0)
    assert replayed["reads_length"] <= report.READS_LENGTH_MAX
    assert row["derived"]["log_over_full_segments"] > 1
    assert "chat" in done.stderr
    assert list((tmp_path / "stores" / "00-chat").glob("*.log")), "--store keeps the store"


def test_the_summary_fits_its_width_and_ends_with_the_verdict(tmp_path):
    (tmp_path / "sarpstore.py").write_text("raise SystemExit('taken for the package')")
    done = run(*TINY, "--limit", "8", "--system-prompt", "600", "--concurrency", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= report.WIDTH
    for title in ("Answers", "Speed (", "Reads and memory", "Bytes written", "Recovery after kill -9"):
        assert any(line.startswith(title) for line in lines)
    assert lines[-1].startswith("Every answer was right: ")


def big_row(label, **changed):
    latency = Latency(1000, 152.3, 10_815.2, 21_233.2)
    stats = {"directory_bytes": 1.8e6, "log_bytes": 2e8, "written_bytes": 3e8, "segments": 98_707, "commits": 500}
    found = {"turns": 12_031, "answers": 24_062, "inserted_tokens": 1, "lost_tokens": 0, "wrong": 0, "mismatches": []}
    found |= {"prompt_tokens": 144_793_823, "matched_tokens": 54_096_384, "oracle_tokens": 54_096_384}
    found |= {"unique_blocks": 5_662_916, "seconds": 8.0, "reads_length": 1.0, "reads_locations": 10.86, "stats": stats}
    found |= {"match_length": latency, "match_locations": latency, "insert": latency}
    return report.Row(label=label, notes=["a note"], replay=Finished(**(found | changed)), recovery=None)


@pytest.mark.parametrize("width", [80, 100])
def test_figures_are_never_cut_short_however_long_the_trace_s_name_is(width):
    console = Console(width=width, file=io.StringIO())
    for table in report.tables([big_row("a_trace_with_a_long_name")], width):
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    figures = [line.split("…", 1)[1] for line in lines if line.startswith(" a_trace")]
    assert len(figures) == 4
    assert not any("…" in line for line in figures)
    assert "152/10815/21233" in figures[1]
    assert "98,707" in figures[2]


def test_the_verdict_counts_what_is_wrong_and_names_where():
    rows = [big_row("one"), big_row("two", wrong=3, lost_tokens=32)]
    assert report.verdict(rows[:1]).startswith("Every answer was right: 24,062 answers")
    assert report.verdict(rows) == "NOT every answer was right: of 48,124 answers, 3 wrong; 32 tokens lost (two)."
    assert report.notes(rows) == ["one, two: a note"]


def test_length_only_without_a_kill_asks_once_a_turn(tmp_path):
    done = run(*TINY, "--json", "--no-kill", "--length-only", cwd=tmp_path)
    row = json.loads(done.stdout)
    assert done.returncode == 0
    assert row["recovery"] is None
    assert row["replay"]["answers"] == row["replay"]["turns"]


@pytest.mark.parametrize("text", ["", '{"input_length": 512, "hash_ids": [1]}\nnot JSON\n'])
def test_a_trace_that_cannot_be_read_is_one_line_and_status_2(tmp_path, text):
    (tmp_path / "trace.jsonl").write_text(text)
    done = run("trace.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert "trace.jsonl" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_store_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "stores" / "00-chat").mkdir(parents=True)
    (tmp_path / "stores" / "00-chat" / "precious").touch()
    done = run(*TINY, "--store", "stores", cwd=tmp_path)
    assert done.returncode == 2
    assert "not empty" in done.stderr


# --- planted faults: an engine that is wrong in one way, in this process


def too_long(real):
    async def match(namespace, tokens, **options):
        answer = await real(namespace, tokens, **options)
        answer.blocks = len(tokens) // 16
        return answer

    return match


def too_short(real):
    async def match(namespace, tokens, **options):
        return await real(namespace, tokens[: len(tokens) // 2], **options)

    return match


def other_location(real):
    async def match(namespace, tokens, **options):
        answer = await real(namespace, tokens, **options)
        if answer.blocks and options["locations"]:
            answer.locations["flags"][-1] ^= 1
        return answer

    return match


class Overwriting:
    """Inserts as if a block took the location of its latest insertion."""

    def __init__(self):
        self.latest = {}

    def insert(self, real):
        async def insert(namespace, tokens, rows):
            for key, row in zip(map(bytes, namespace.block_ids(tokens)), rows, strict=True):
                self.latest[key] = row
            return await real(namespace, tokens, rows)

        return insert

    def match(self, real):
        async def match(namespace, tokens, **options):
            answer = await real(namespace, tokens, **options)
            if options["locations"]:
                for number, key in enumerate(map(bytes, answer.ids)):
                    answer.locations[number] = self.latest[key]
            return answer

        return match


async def replayed(path):
    trace = open_trace(TraceSpec(label="chat", generate="chat", sessions=6, turns=3))
    async with sarpstore.open(path) as store:
        replayer = Replayer(store, sarpstore.LOCATION, locations=True)
        for wave in waves(trace.turns(), 2):
            await replayer.play(wave)
        return replayer.result()


@pytest.mark.parametrize(
    ("fault", "is_wrong"), [(None, False), (too_long, True), (too_short, False), (other_location, True)]
)
def test_the_command_fails_where_an_answer_is_wrong_or_lost(tmp_path, monkeypatch, capsys, fault, is_wrong):
    if fault is not None:
        monkeypatch.setattr(sarpstore.Namespace, "match", fault(sarpstore.Namespace.match))
    status, out = command_in_process(tmp_path, monkeypatch, capsys)
    assert status == (0 if fault is None else 1)
    last = out.splitlines()[-1]
    assert last.startswith("Every answer was right" if fault is None else "NOT every answer was right")
    assert (" 0 wrong" not in last and "none wrong" not in last) == is_wrong


def test_an_engine_that_overwrites_held_locations_is_found_out(tmp_path, monkeypatch, capsys):
    overwriting = Overwriting()
    monkeypatch.setattr(sarpstore.Namespace, "insert", overwriting.insert(sarpstore.Namespace.insert))
    monkeypatch.setattr(sarpstore.Namespace, "match", overwriting.match(sarpstore.Namespace.match))
    status, out = command_in_process(tmp_path, monkeypatch, capsys)
    assert status == 1
    assert "not the one that was inserted" in " ".join(out.split())


def command_in_process(tmp_path, monkeypatch, capsys):
    """The command with its serving process's work done in this process, where the engine can be changed."""

    def serve(spec, options, store, samples_path, progress):
        return report.Row(label=spec.label, notes=[], replay=asyncio.run(replayed(store)), recovery=None)

    monkeypatch.setattr(replay, "_serve", serve)
    with pytest.raises(SystemExit) as end:
        command_line.main(["replay", *TINY, "--store", str(tmp_path / "stores")])
    return end.value.code, capsys.readouterr().out


def test_what_the_user_asks_for_reaches_the_serving_process(monkeypatch):
    jobs = []

    class StopError(Exception):
        pass

    def child(job):
        jobs.append(job)
        raise StopError

    monkeypatch.setattr(replay, "Child", child)
    arguments = [*TINY, "--durability", "always", "--sync-interval-ms", "7", "--hash", "mmh3", "--concurrency", "9"]
    with pytest.raises(StopError):
        replay.replay.main(arguments, standalone_mode=False)
    (job,) = jobs
    assert isinstance(job, ServeJob)
    assert job.options == StoreOptions(hash="mmh3", durability="always", sync_interval_ms=7)
    assert (job.concurrency, job.locations, job.kill, job.trace.sessions) == (9, True, True, 6)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=ServeJob) == job
