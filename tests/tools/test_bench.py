"""Benchmarks at tiny sizes: they measure what they say, mark targets, and set the exit status."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from sarpstore_tools.bench import figures, shapes
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
        capsys, tmp_path, "recovery", "--blocks", "1e4", "--shape", "branching", "--repeats", "2", "--no-targets"
    )
    assert (status, found["failures"]) == (0, []), out
    measured = values(found)
    assert measured["branching, 10,000: first answer"] >= measured["branching, 10,000: open() alone"] > 0
    assert measured["branching, 10,000: first answer, no checkpoint"] > 0
    assert "posix_fadvise" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("recovery", "--blocks", "none"),
        ("recovery", "--blocks", "0"),
        ("recovery", "--shape", "bogus"),
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
