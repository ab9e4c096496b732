"""`sarpstore chunks agreement`: its cases, and one small run with its table, CSV file and plot."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from sarpstore_tools.chunks import agreement
from sarpstore_tools.chunks.samples import KINDS, OWN, Asked, cases_of, read_questions
from sarpstore_tools.main import main

if TYPE_CHECKING:
    from pathlib import Path


def test_cases_have_their_documents_shuffled_and_no_others() -> None:
    cases = cases_of(OWN, 20, 4, seed=1)
    assert [case.kind for case in cases] == list(KINDS) * 20
    assert [len(case.documents) for case in cases[:4]] == [1, 2, 4, 4]
    orders = set()
    for two, among, summary in zip(cases[1::4], cases[2::4], cases[3::4], strict=True):
        assert two.question == among.question
        assert set(two.documents) < set(among.documents)
        assert len(set(among.documents)) == 4
        assert set(summary.documents) == set(among.documents)
        assert "Summarize" in summary.question
        orders.add(tuple(among.documents.index(text) for text in two.documents))
    assert len(orders) > 6
    assert cases == cases_of(OWN, 20, 4, seed=1)
    assert cases != cases_of(OWN, 20, 4, seed=2)


def test_a_file_in_the_squad_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    paragraphs = [{"context": "It is red.", "qas": [{"question": "Which colour?"}, {"question": "What?"}]}]
    path.write_text(json.dumps({"data": [{"paragraphs": [*paragraphs, {"context": "Nothing.", "qas": []}]}]}))
    assert read_questions(path) == [Asked("It is red.", "Which colour?")]
    path.write_text("[1]")
    with pytest.raises(click.ClickException, match="SQuAD"):
        read_questions(path)


def test_too_many_documents_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["chunks", "agreement", "--documents", "60"])
    assert exit_info.value.code == 2
    assert "there are 6 documents" in capsys.readouterr().err


def test_a_small_run_shows_every_rung(
    loaded: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "load_model", lambda path: loaded)
    arguments = ["--questions", "1", "--answer-tokens", "2", "--kind", KINDS[1], "--csv", str(tmp_path / "a.csv")]
    with pytest.raises(SystemExit) as exit_info:
        main(["chunks", "agreement", *arguments])
    out = capsys.readouterr().out
    assert exit_info.value.code == 0, out
    with (tmp_path / "a.csv").open() as file:
        rows = {row["rung"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["none", "conditioned", "first-k", "deviation"]
    assert all(rung in out for rung in rows)
    assert all(0 <= float(row["top1"]) <= 1 and float(row["kl"]) >= 0 for row in rows.values())
    saved = [float(row["saved"]) for row in rows.values()]
    assert saved[0] == saved[1] > max(saved[2:]) > 0
