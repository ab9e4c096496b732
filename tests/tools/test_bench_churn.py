"""A small store through several times its capacity; the sessions that come and go; what is seen from outside."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sarpstore_tools.bench import churning
from sarpstore_tools.bench.churning import Churn
from sarpstore_tools.bench.population import Path as SessionPath
from sarpstore_tools.bench.population import Population, locations_of_tokens, record_bytes_at, tokens_of
from sarpstore_tools.bench.times import Times
from sarpstore_tools.bench.usage import UsageWatch, disk_use, resident_bytes
from sarpstore_tools.main import main

import sarpstore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("routing", ["divergence", "sarp"])
def test_churn_inserts_many_times_the_capacity_and_finds_no_wrong_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], routing: str
) -> None:
    report = tmp_path / "report.json"
    arguments = ("--capacity-blocks", "2e4", "--turns", "2", "--bytes-max", "24_000_000", "--routing", routing)
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "churn", *arguments, "--no-targets", "--json", str(report)])
    out = capsys.readouterr().out
    assert exit_info.value.code == 0, out
    found = json.loads(report.read_bytes())
    values = {figure["name"]: figure["value"] for figure in found["figures"]}
    assert values["inserted"] >= 40_000
    assert values["removed"] > 10_000
    assert values["wrong answers"] == 0
    assert values["most disk use, allocated"] > 1
    assert values["write amplification"] >= 1
    assert values["slowest insert"] >= values["insert, p99.9"] > 0
    assert {f"memory at {percent} %" for percent in (25, 50, 75, 100)} <= set(values)


@pytest.mark.parametrize(
    "arguments", [("--capacity-blocks", "1e3"), ("--bytes-max", "x"), ("--turns", "0"), ("--routing", "bogus")]
)
def test_a_wrong_call_is_status_2(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "churn", *arguments])
    assert exit_info.value.code == 2


async def test_an_answer_that_names_what_was_removed_is_found(tmp_path: Path) -> None:
    churn = Churn(Population(0), 20_000)
    async with sarpstore.open(tmp_path / "s") as store:
        churn.use(store)
        for _ in range(3):
            await churn.step()
        path = churn.population.sessions[0].path
        await churn._ask_removed(path, path.shared)
        assert churn.answers.failures == [
            f"{path.blocks} blocks match of a path of which {path.shared} were left by a removal"
        ]
        await churn._ask_held(SessionPath(path.holder, (*path.parts, (1 << 40, 3))))
        assert "that are held, and nothing was evicted" in churn.answers.failures[1]
        assert churn.answers.wrong == 2


async def test_sessions_go_in_every_way_and_never_match_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churning, "ASK_EVERY", 1)
    churn = Churn(Population(1), 20_000)
    async with sarpstore.open(tmp_path / "s") as store:
        churn.use(store)
        while churn.cleared < 2 or churn.removed < 20_000:
            await churn.step()
        await churn.ask_all(100)
        assert store.stats().holders > 1
    assert churn.answers.failures == []
    assert churn.answers.held == churn.answers.held_whole > 100
    assert churn.answers.removed > 100


def test_a_population_counts_what_it_holds() -> None:
    population = Population(3)
    for turn in range(400):
        session = population.next_turn()
        if turn % 7 == 0:
            population.remove(population.oldest())
        elif turn % 11 == 0:
            population.cut(session, session.path.shared + 1)
        if turn % 150 == 149:
            holder = session.path.holder
            assert session in population.clear(holder)
            assert all(one.path.holder != holder for one in population.sessions)
        own = sum(one.path.own for one in population.sessions)
        prompts = sum(blocks for _, (_, blocks) in population._prompted)
        assert population.held == own + prompts
        assert all(population.sessions[one.place] is one for one in population.sessions)


def test_tokens_are_the_same_whenever_they_are_asked_for() -> None:
    path = SessionPath(0, ((5, 3), (6, 2)))
    tokens = path.tokens()
    assert (path.blocks, path.shared, path.own, len(tokens)) == (5, 3, 2, 80)
    assert np.array_equal(tokens[:48], tokens_of([(5, 3)]))
    assert np.array_equal(path.cut(4).tokens(), tokens[:64])
    assert path.cut(3).own == 0
    assert len(set(locations_of_tokens(tokens)["address"].tolist())) == 5


async def test_the_bytes_of_records_are_what_a_store_needs_at_the_least(tmp_path: Path) -> None:
    needed = record_bytes_at(20_000, 0)
    population = Population(0)
    async with sarpstore.open(tmp_path / "s") as store:
        while population.held < 20_000:
            population.next_turn()
        for session in population.sessions:
            tokens = session.path.tokens()
            namespace = store.namespace("x")
            await namespace.insert(tokens, locations_of_tokens(tokens), holder=session.path.holder)
        await store.sync()
        log_bytes = store.stats().log_bytes
    assert 0.95 * log_bytes < needed * 1.2 < 1.3 * log_bytes


def test_disk_use_and_memory_are_seen_from_outside(tmp_path: Path) -> None:
    watch = UsageWatch(tmp_path)
    with watch.watching():
        (tmp_path / "a").write_bytes(bytes(10_000))
        (tmp_path / "b").write_bytes(b"1")
        while watch.samples < 2 or watch.most.rounded < 16_384:
            time.sleep(0.01)
        (tmp_path / "a").unlink()
    assert watch.most.rounded == 16_384
    assert disk_use(tmp_path).rounded == 4096
    assert resident_bytes() > 1 << 20
    assert watch.mark() > 1 << 20


def test_times_know_quantiles_the_slowest_and_what_the_slow_took() -> None:
    times = Times(slow_ms=10.0)
    assert times.quantile(0.5) == 0.0
    for ms in range(1, 1001):
        times.add(ms / 10)
    assert times.quantile(0.5) == pytest.approx(50, rel=0.03)
    assert times.quantile(0.99) == pytest.approx(99, rel=0.03)
    assert times.quantile(1.0) == times.slowest_ms == 100.0
    assert times.slow_ms_total == pytest.approx(sum(ms / 10 for ms in range(101, 1001)))
    times.add(0.0)
    times.add(1e12)
    assert times.quantile(0.0) <= 0.001
