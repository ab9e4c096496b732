"""Latencies at rest and beside maintenance; arrivals that do not wait for those before."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.bench import maintaining, maintenance
from sarpstore_tools.bench.arrivals import arrive
from sarpstore_tools.bench.loop import Holds
from sarpstore_tools.bench.maintaining import MAINTAINING, REST, WHEN, WRITING, Load, Phase
from sarpstore_tools.main import main

import sarpstore

if TYPE_CHECKING:
    from pathlib import Path


def test_phases_at_rest_and_beside_maintenance_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintaining, "QUIET_S", 0.05)
    report = tmp_path / "report.json"
    arguments = ("--blocks", "2e4", "--rounds", "1", "--seconds", "0.6", "--load", "20", "--rewritten", "2000")
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "maintenance", *arguments, "--no-targets", "--json", str(report)])
    out = capsys.readouterr().out
    assert exit_info.value.code == 0, out
    values = {figure["name"]: figure["value"] for figure in json.loads(report.read_bytes())["figures"]}
    assert values["arrivals"] > 0
    assert values["checkpoints"] >= 1
    assert values["maintenance at rest"] == 0
    for kind in ("one window", "16 windows"):
        for when in WHEN:
            assert 0 < values[f"{kind}, p50 {when}"] <= values[f"{kind}, p99 {when}"] <= values[f"{kind}, p99.9 {when}"]
        ratio = values[f"{kind}, p99 maintaining"] / values[f"{kind}, p99 at rest"]
        assert values[f"{kind}, p99, ratio"] == pytest.approx(ratio)
        ratio = values[f"{kind}, p99 maintaining"] / values[f"{kind}, p99 writing"]
        assert values[f"{kind}, p99, ratio to writing"] == pytest.approx(ratio)


async def test_arrivals_that_are_missed_while_the_loop_is_held_come_late_and_are_told_when_they_were_due() -> None:
    waited: list[float] = []

    def start(due: int) -> None:
        waited.append((time.perf_counter_ns() - due) / 1e6)
        if len(waited) == 5:
            time.sleep(0.05)  # the loop is held

    began = time.perf_counter()
    assert await arrive(500.0, 0.2, start) == 100
    assert time.perf_counter() - began >= 0.199
    assert len(waited) == 100
    assert min(waited) >= 0
    assert max(waited[5:]) > 40


async def test_a_load_notices_wrong_answers(tmp_path: Path) -> None:
    load = Load(4096, 0)
    async with sarpstore.open(tmp_path / "s") as store:
        load.use(store)
        await load.fill()
        assert await load.closed_loop(0.05) > 0
        assert load.failures == []
        sequences = [ids for pool in load._pools.values() for ids in pool if ids is not None]
        await store.namespace("bench").remove_ids(sequences[0][:1])
        for _ in range(200):
            await load._ask(time.perf_counter_ns())
        assert load.failures[0] == "0 blocks match of 64 that are held"


async def test_what_is_replaced_while_it_is_asked_for_is_no_failure(tmp_path: Path) -> None:
    load = Load(4096, 0)
    async with sarpstore.open(tmp_path / "s") as store:
        load.use(store)
        await load.fill()
        phase = await load.phase(200.0, 0.3, Holds(), MAINTAINING, rewritten=20_000)
        assert load.failures == []
        assert phase.when == MAINTAINING
        assert sum(map(len, phase.ms.values())) == 60
        assert store.stats().removed > 0


async def test_while_writing_nothing_is_compacted(tmp_path: Path) -> None:
    load = Load(4096, 0)
    async with sarpstore.open(tmp_path / "s") as store:
        load.use(store)
        await load.fill()
        phase = await load.phase(200.0, 0.3, Holds(), WRITING, rewritten=2000)
        assert (phase.when, phase.maintenance["compacted_files"], phase.maintenance["mark_passes"]) == (WRITING, 0, 0)
        assert store.stats().removed > 0


def phase(when: str, ms: float, **maintenance_: int) -> Phase:
    did = dict.fromkeys(maintaining.COUNTERS, 0) | maintenance_
    latencies = {kind: [ms] * 100 for kind in maintaining.KINDS}
    over = [(3.0, "x")] if when == MAINTAINING else []
    return Phase(
        when=when,
        ms=latencies,
        longest_hold_ms=ms,
        holds_over=over,
        maintenance=did,
        reads=1,
        cache_hits=1,
        unanswered=9,
        core_share=0.5,
    )


def test_the_ratio_is_of_all_phases_and_its_spread_of_the_rounds() -> None:
    phases = [phase(REST, 1.0), phase(WRITING, 1.2), phase(MAINTAINING, 1.5, mark_passes=2)]
    phases += [phase(REST, 2.0), phase(WRITING, 4.0), phase(MAINTAINING, 5.0, checkpoints=3)]
    figures = {figure.name: figure for figure in maintenance._latencies(phases)}
    ratio = figures["one window, p99, ratio"]
    assert (ratio.value, ratio.least, ratio.greatest, ratio.passed) == (2.5, 1.5, 2.5, False)
    ratio = figures["one window, p99, ratio to writing"]
    assert (ratio.value, ratio.least, ratio.greatest, ratio.target) == (1.25, 1.25, 1.25, None)
    assert (figures["16 windows, p50 maintaining"].least, figures["16 windows, p50 maintaining"].greatest) == (1.5, 5.0)
    assert maintenance._backlog(phases, 1000.0).value == 9.0
    assert not maintenance._backlog(phases, 100.0).passed
    held = {figure.name: figure for figure in maintenance._holds(phases)}
    assert (held["longest hold maintaining"].value, held["longest hold maintaining"].note) == (5.0, "2 over 2 ms")
    assert [figure.value for figure in maintenance._core_shares(phases)] == [50.0, 50.0, 50.0]
    did = {figure.name: figure for figure in maintenance._maintenance(phases)}
    assert did["mark passes"].value == 2
    assert not did["files compacted"].passed
    assert did["maintenance at rest"].passed


async def test_holds_of_what_led_to_a_phase_are_not_of_it(tmp_path: Path) -> None:
    load, holds = Load(2048, 0), Holds()
    async with sarpstore.open(tmp_path / "s") as store:
        load.use(store)
        await load.fill()
        holds.ms.append(1000.0)
        holds.longest.append((1000.0, "before"))
        found = await load.phase(100.0, 0.05, holds, None)
        await asyncio.sleep(0)
    assert (found.longest_hold_ms, found.holds_over) == (0.0, [])
