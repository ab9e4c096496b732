"""`sarpstore bench compare` as a command: what it shows, writes and says is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from sarpstore_tools.bench.compare import cells, model, plots, recovery, tables
from sarpstore_tools.bench.compare.command import read_comparison, show
from sarpstore_tools.bench.compare.figures import cell_of
from sarpstore_tools.bench.compare.requests import read_requests
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.main import main


def compare(capsys, tmp_path, *arguments):
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "compare", *arguments, "--json", str(report)])
    captured = capsys.readouterr()
    data = report.read_bytes() if report.exists() else b""
    return exit_info.value.code, captured.out, read_comparison(data) if data else None


def token_trace(path):
    """Four sessions of three turns each, as token lists."""
    rng = np.random.default_rng(0)
    starts = [rng.integers(0, 1000, 400).tolist() for _ in range(4)]
    lines = [
        {"session_id": f"s{number}", "tokens": start[: 100 * turn]}
        for turn in range(1, 4)
        for number, start in enumerate(starts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


QUICK = ("--repeats", "1", "--concurrency", "2", "--no-recovery", "--no-cached", "--no-device")


def test_engines_are_compared_on_one_trace_and_a_missing_peer_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no redis-server
    trace = token_trace(tmp_path / "turns.jsonl")
    status, out, found = compare(capsys, tmp_path, trace, "--engines", "divergence,dict,redis", *QUICK)
    assert (status, found.failures) == (0, []), out
    assert [(cell.engine, cell.concurrency) for cell in found.cells] == [("divergence", 2), ("dict", 2)]
    assert list(found.left_out) == ["redis"]
    assert "Left out" in out
    assert "not installed here" in out
    assert "machine: " in out
    for cell in found.cells:
        assert cell.figures["wrong"].median == cell.figures["lost_percent"].median == 0
        assert cell.figures["requests_per_second"].median > 0
        assert not cell.cut
    assert found.workloads[0].requests == 12


def test_a_killed_engine_is_opened_again(tmp_path):
    runner = cells.Runner(["divergence"])
    told = []
    (ours,) = recovery.RecoveryRun(tmp_path, 4000, 10.0, runner).run(runner.engines, 1, told.append)
    assert (runner.failures, runner.left_out, len(told)) == ([], {}, 1)
    assert (ours.engine, ours.blocks) == ("divergence", 4000)
    assert 0 < ours.open_ms.median <= ours.answer_ms.median <= ours.loaded_ms.median
    assert not list(tmp_path.iterdir())


def test_the_fill_says_how_much_of_each_sequence_is_held(tmp_path):
    recovery.write_fill(tmp_path / "fill", tmp_path / "probe", 3000)
    fill, probe = read_requests(tmp_path / "fill"), read_requests(tmp_path / "probe")
    held: set[bytes] = set()
    for i in range(len(fill)):
        keys = [row.tobytes() for row in fill.ids_of(i)]
        assert [key in held for key in keys] == [n < fill.expected[i] for n in range(len(keys))]
        held.update(keys)
    assert len(held) >= 3000
    asked = [row.tobytes() in held for row in probe.ids_of(0)]
    assert asked == [n < probe.expected[0] for n in range(len(asked))]
    assert 0 < probe.expected[0] < len(asked) == probe.history[0]


def test_processes_are_killed_and_waited_for():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        recovery._kill_all([process.pid])
        assert process.wait() == -signal.SIGKILL
    recovery._kill_all([process.pid])
    assert recovery._lives(os.getpid())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engines", "bogus"),
        ("--shapes", "plain,bogus"),
        ("--concurrency", "0"),
        ("--repeats", "0"),
        ("--seconds-max", "0"),
        ("--cached-blocks", "1"),
        ("nowhere.jsonl",),
    ],
)
def test_a_wrong_call_is_status_2(capsys, tmp_path, arguments):
    assert compare(capsys, tmp_path, *arguments)[:2] == (2, "")


def result(requests=10, seconds=1.0, **rest):
    figures = {
        "latency_us": model.Latency(10.0, 9.0, 20.0, 30.0),
        "cpu_seconds": 0.5,
        "rss_bytes": 1000,
        "written_bytes": 3000,
        "folder_bytes": 4000,
        "blocks": 100,
        "wrong": 0,
        "matched_blocks": 99,
        "history_blocks": 120,
        "lost_blocks": 1,
    }
    return model.CellResult(requests=requests, seconds=seconds, **(figures | rest))


def comparison(tmp_path):
    made = [
        cell_of("divergence", "chat", 1, [result(), result(seconds=2.0), result(seconds=4.0)], 10),
        cell_of("dict", "chat", 1, [result(5, 1.0, blocks=0)], 10),
    ]
    spread = model.Spread(2.0, 1.0, 3.0)
    recovered = [
        model.Recovered(engine=e, blocks=b, open_ms=spread, answer_ms=spread, loaded_ms=loaded, page_cache="dropped")
        for e, loaded in (("divergence", spread), ("dict", None))
        for b in (100, 1000)
    ]
    return model.Comparison(
        machine=this_machine(tmp_path),
        method=["so"],
        engines=["divergence", "dict", "lmdb"],
        left_out={"lmdb": "not installed here"},
        workloads=[model.Workload(label="chat", requests=10, sessions=2, blocks=100, budget_bytes=300)],
        cells=made,
        recovery=recovered,
        cached=[],
        device=[],
        failures=["dict: 1 answer was wrong"],
    )


def test_figures_are_medians_of_the_runs(tmp_path):
    ours, dictionary = comparison(tmp_path).cells
    assert ours.figures["requests_per_second"] == model.Spread(5.0, 2.5, 10.0)
    assert ours.figures["cpu_us_a_request"].median == 50_000
    assert ours.figures["rss_bytes_a_block"].median == 10
    assert ours.figures["lost_percent"].median == 1.0
    assert "reads_a_match" not in ours.figures
    assert "rss_bytes_a_block" not in dictionary.figures  # how many blocks it holds is not known
    assert (ours.cut, dictionary.cut) == (False, True)
    assert tables.ratio(dictionary, ours, "requests_per_second") == 1.0


def test_a_comparison_survives_json(tmp_path):
    found = comparison(tmp_path)
    assert read_comparison(found.as_json()) == found


def test_a_comparison_is_shown_whole(tmp_path, capsys):
    show(comparison(tmp_path))
    out = capsys.readouterr().out
    for text in ("chat: 10 requests", "5 cut", "Recovery after SIGKILL", "Over ours", "lmdb", "✗ dict: 1 answer"):
        assert text in out


@pytest.mark.extra
def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    written = plots.write_plots(comparison(tmp_path), tmp_path / "plots")
    assert sorted(path.name for path in written) == [
        "match_latency.png",
        "memory_a_block.png",
        "recovery.png",
        "requests_per_second.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_a_failing_peer_is_left_out_and_our_failure_fails_the_command():
    runner = cells.Runner(["divergence", "dict"])

    def fail():
        raise cells.WorkerError("it died")

    assert runner.attempt("dict", "chat", fail) is None
    assert (runner.engines, runner.failures) == (["divergence"], [])
    assert runner.attempt("divergence", "chat", fail) is None
    assert runner.failures == ["divergence, chat: it died"]
    assert runner.left_out["dict"] == "failed in chat: it died"
