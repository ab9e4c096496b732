"""`sarpstore chunks simulate`: traces are what they say, caches count what they do, and the command says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sarpstore_tools.chunks import chunks
from sarpstore_tools.chunks.caches import CACHES, run
from sarpstore_tools.chunks.workload import WORKLOADS, Request, Trace

WORKLOAD = WORKLOADS["C"]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_trace_is_of_its_workload(name):
    workload = WORKLOADS[name]
    trace = workload.trace(3)
    assert len(trace.requests) == 2500
    assert trace.requests == workload.trace(3).requests != workload.trace(4).requests
    assert abs(trace.tokens.mean() / workload.mean_tokens - 1) < 0.05
    assert abs(np.log(trace.tokens).std() / workload.sigma - 1) < 0.05
    for request in trace.requests:
        assert len(set(request.documents)) == workload.documents_each
    repeated = 1 - len({request.head for request in trace.requests}) / 2500
    assert abs(repeated - workload.repeated) < 0.03
    popular = np.bincount([d for r in trace.requests for d in r.documents], minlength=workload.documents)
    assert popular[:10].sum() > 20 * popular[1000:1010].sum()


def trace_of(*requests, tokens=(10, 20, 30, 40)):
    made = [Request(tuple(documents), number) for number, documents in enumerate(requests)]
    return Trace(WORKLOAD, np.array(tokens), made)


@pytest.mark.parametrize("name", CACHES)
def test_what_was_asked_for_before_hits_where_there_is_room(name):
    trace = trace_of([0, 1], [1, 0], [0, 1])
    cache = CACHES[name](10**12)
    share = run(cache, trace)
    chunks, prefix = 30 + 30, 30
    expected = prefix if name.startswith("prefix") else chunks
    assert cache.hit_tokens == expected
    assert share == expected / (3 * (30 + WORKLOAD.question_tokens))
    assert cache.misses["new"] == 90 - expected
    assert cache.written_bytes >= (90 - expected) * WORKLOAD.token_bytes


def test_every_missed_token_has_a_cause():
    trace = WORKLOAD.trace(0, 300)
    for name, make in CACHES.items():
        cache = make(10**9)
        run(cache, trace)
        documents = sum(int(trace.tokens[list(request.documents)].sum()) for request in trace.requests)
        assert cache.hit_tokens + cache.misses.total() == documents, name
        assert (cache.misses["not admitted"] > 0) == (name == "chunks")


@pytest.mark.extra
def test_the_command_shows_figures_and_writes_plots(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.json"
    arguments = ["simulate", "--workload", "C", "--requests", "60", "--seeds", "1", "--no-targets"]
    result = CliRunner().invoke(chunks, [*arguments, "--plot", str(tmp_path / "plots"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "not admitted" in result.output
    assert "Calculated, not measured" in result.output
    names = [figure["name"] for figure in json.loads(out.read_text())["figures"]]
    assert "workload C, 30 GB: chunks" in names
    assert (tmp_path / "plots" / "simulate-C.png").stat().st_size > 10_000
