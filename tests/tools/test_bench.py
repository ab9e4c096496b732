"""Benchmarks at tiny sizes: they measure what they say, mark targets, and set the exit status."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from sarpstore_tools.bench import figures, killing, recovery, shapes, sizes
from sarpstore_tools.bench.killing import Samples, read_samples
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.main import main


def bench(capsys, tmp_path, *arguments):
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", *arguments, "--json", str(report)])
    captured = capsys.readouterr()
    found = json.loads(report.read_bytes() or b"{}") if report.exists() else {}
    return exit_info.value.code, captured.out, found


def values(found):
    return {figure["name"]: figure["value"] for figure in found["figures"]}


def test_core_measures_every_kind_of_call(capsys, tmp_path):
    status, out, found = bench(
        capsys, tmp_path, "core", "--repeats", "2", "--blocks", "6400", "--no-targets", "--store", str(tmp_path / "s")
    )
    assert status == 0
    assert "machine: " in out
    measured = values(found)
    assert set(measured) == {
        "reference: memcpy",
        "reference: sha256",
        "reference: mmh3",
        "hash sha256",
        "hash mmh3",
        "insert, runs of 64",
        "match, 64 x 256 blocks, with locations",
        "match, 64 x 256 blocks, length only",
    }
    assert all(value > 0 for value in measured.values())
    assert any((tmp_path / "s" / "match").glob("*.log"))


def test_directory_finds_the_greatest_slack_and_bytes_a_block(capsys, tmp_path):
    status, _, found = bench(capsys, tmp_path, "directory", "--min-entries", "1e3", "--max-entries", "3e3")
    measured = values(found)
    steps = [value for name, value in measured.items() if name.startswith("slack at ")]
    assert len(steps) >= 8
    assert measured["greatest slack"] >= max(steps) >= min(steps) >= 1
    assert 0.25 <= measured["bytes a block, runs of 64 blocks"] < 1
    assert status == (0 if found["passed"] else 1)


def test_recovery_opens_a_killed_store_again_and_again(capsys, tmp_path):
    status, out, found = bench(
        capsys,
        tmp_path,
        *("recovery", "--blocks", "1e4", "--shape", "branching", "--kills", "2", "--repeats", "1", "--no-targets"),
    )
    assert (status, found["failures"]) == (0, []), out
    measured = {figure["name"].removeprefix("branching 1e4: "): figure for figure in found["figures"]}
    assert measured["first answer"]["value"] >= measured["open() alone"]["value"] > 0
    assert (measured["first answer"]["repeats"], measured["log to replay"]["repeats"]) == (2, 2)
    assert measured["blocks found"]["greatest"] > measured["blocks found"]["least"] >= 1e4
    assert measured["answer, log alone"]["value"] > 0
    assert "posix_fadvise" in out
    kills = next(line for line in found["method"] if line.startswith("branching 1e4: kills "))
    assert kills.count(" ms") == 2
    assert f"- {kills}" in out.splitlines()
    for name, figure in measured.items():
        line = next(line for line in out.splitlines() if f" branching 1e4: {name} " in line)
        assert figures.number(figure["value"]) in line


def test_the_moments_of_kills_depend_on_the_seed_alone(tmp_path):
    class Writer:
        process = type("Process", (), {"poll": lambda self: None})()

        def kill(self):
            pass

    def moments(seed):
        killed = recovery._Killed(tmp_path, "plain", 1000, seed, None, keep=False)
        return [killed.kill(Writer(), (0.0, 0.01)) for _ in range(3)]

    assert moments(1) == moments(1) != moments(2)
    assert all(0 <= moment <= 0.01 for moment in moments(1))


def test_kills_must_agree_among_their_openings_and_lose_nothing(tmp_path):
    def opening(blocks, answer_ms=1.0):
        opened = killing.Opened(0.5, answer_ms, wrong="", checkpoint_position=0, unloaded=0, resident=1)
        return opened, killing.Loaded(2.0, blocks, 16, [], 1)

    killed = recovery._Killed(tmp_path, "plain", 1000, 0, None, keep=False)
    first = killed._checked(0, 0.1, [opening(10, 7.0), opening(10, 1.0), opening(10, 2.0)], [opening(10)], [])
    second = killed._checked(1, 0.1, [opening(12, 4.0)], [], [first])
    assert (first.answer_ms, second.answer_ms, killed.failures) == (2.0, 4.0, [])
    killed._checked(0, 0.1, [opening(10)], [opening(9)], [])
    killed._checked(2, 0.1, [opening(11)], [], [first, second])
    killed._checked(2, 0.1, [opening(12), opening(13)], [], [first, second])
    assert [text.split(":")[0] for text in killed.failures] == [f"plain 1e3, kill {i}" for i in (1, 3, 3)]


def test_a_figure_of_groups_is_the_median_of_medians():
    figure = figures.measured_in_groups("x", "ms", [[1.0, 9.0, 2.0], [5.0, 5.0, 5.0], [0.5, 30.0, 30.0]])
    assert (figure.value, figure.least, figure.greatest, figure.repeats) == (5.0, 0.5, 30.0, 9)


def test_short_sizes_are_read_as_they_are_shown():
    shown = {1: "1", 100: "100", 1000: "1e3", 10**7: "1e7", 2_500_000: "2.5e6", 12_000: "1.2e4", 12_345: "12345"}
    for size, text in shown.items():
        assert sizes.short(size) == text
        assert sizes.several_sizes(None, None, text) == [size]


@pytest.mark.parametrize(
    "arguments",
    [
        ("recovery", "--blocks", "none"),
        ("recovery", "--blocks", "0"),
        ("recovery", "--shape", "bogus"),
        ("recovery", "--kills", "0"),
        ("recovery", "--seed", "-1"),
        ("core", "--repeats", "0"),
        ("directory", "--max-entries", "1e3", "--min-entries", "1e4"),
        ("directory", "--store", "/dev/null"),
        ("bogus",),
    ],
)
def test_a_wrong_call_is_status_2(capsys, tmp_path, arguments):
    status, out, _ = bench(capsys, tmp_path, *arguments)
    assert (status, out) == (2, "")


def test_a_missed_target_is_status_1_unless_told_otherwise(tmp_path):
    class Context:
        status = None

        def exit(self, status):
            self.status = status

    slow = figures.measured("speed", "blocks/s", [1.0, 3.0, 2.0], target=5.0, more_is_better=True)
    small = figures.measured("size", "B", [1.0], target=1.0)
    assert (slow.value, slow.least, slow.greatest, slow.passed, small.passed) == (2.0, 1.0, 3.0, False, True)
    machine = this_machine(tmp_path)

    def status_of(found, failures=(), *, targets=True):
        context, file = Context(), io.BytesIO()
        report = figures.Report(command="x", machine=machine, method=["[how]"], figures=found, failures=list(failures))
        figures.finish(context, report, file, targets=targets)
        assert (
            json.loads(file.getvalue())["passed"] == (context.status == 0 or (not targets and not failures))
            or slow in found
        )
        return context.status

    assert status_of([small]) == 0
    assert status_of([small, slow]) == 1
    assert status_of([small, slow], targets=False) == 0
    assert status_of([small], ["a wrong answer"], targets=False) == 1


def test_forks_share_a_prefix_with_an_earlier_sequence_and_add_new_blocks():
    members = shapes.family(np.random.default_rng(0), 512, 80, (20, 60))
    seen = {bytes(row) for row in members[0]}
    assert len(seen) == 512
    for ids in members[1:]:
        known = [bytes(row) in seen for row in ids]
        new = known.count(False)
        assert 20 <= new <= 60
        assert known == [True] * (len(ids) - new) + [False] * new
        seen |= {bytes(row) for row in ids}


def test_samples_are_read_as_they_were_written(tmp_path):
    rng = np.random.default_rng(0)
    samples = Samples(rng)
    sequences = [shapes.random_ids(rng, 300) for _ in range(100)]
    for ids in sequences:
        samples.add(ids)
    samples.write(str(tmp_path / "samples.npz"))
    queries = read_samples(str(tmp_path / "samples.npz"))
    assert len(queries) == 16
    starts = {ids[:256].tobytes() for ids in sequences}
    assert all(query[: -shapes.UNKNOWN_BLOCKS].tobytes() in starts for query in queries)


def test_reads_compares_with_the_device(capsys, tmp_path):
    status, out, found = bench(
        capsys, tmp_path, "reads", "--megabytes", "8", "--repeats", "1", "--seconds", "0.1", "--no-targets"
    )
    assert (status, found["failures"]) == (0, []), out
    measured = values(found)
    for name in ("scheduler, depth 32", "scheduler, depth 128", "match, one window"):
        assert measured[name] > 0
        assert measured[f"{name}, CPU"] > 0
        assert (f"{name}, of the device" in measured) == ("device, depth 32" in measured)
