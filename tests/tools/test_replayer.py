"""The replay's checks and counts, on a store in memory that answers rightly, or in a way that must be found wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sarpstore_tools.counters import reads_of, stat
from sarpstore_tools.oracle import Oracle
from sarpstore_tools.replayer import Checker, Replayer, waves
from sarpstore_tools.samples import LAST_TURNS, Sampler, read_samples, write_samples
from sarpstore_tools.traces import TraceSpec, Turn, open_trace

LOCATION = np.dtype([("address", "<u8"), ("length", "<u4"), ("tier", "u1"), ("flags", "u1")])


class MemoryStore:
    """A store as the contract has it, on the oracle; `fault` makes each answer wrong in one way."""

    def __init__(self, fault=None):
        self.oracle, self.fault, self.matches, self.namespaces = Oracle(), fault, 0, 0
        self.rows = np.zeros(0, LOCATION)

    def namespace(self, name):
        self.namespaces += 1
        return MemoryNamespace(self, name)

    def stats(self):
        return SimpleNamespace(records_read=self.matches, segments=3, directory_bytes=60, log_bytes=4096)


class MemoryNamespace:
    def __init__(self, store, name):
        self.store, self.name = store, name

    async def match(self, tokens, *, locations=True):
        self.store.matches += 3 if locations else 1
        ordinals = self.store.oracle.ordinals(self.name, tokens)
        if self.store.fault == "short":
            ordinals = ordinals[:-1]
        elif self.store.fault == "long":
            ordinals = np.append(ordinals, 10**6)
        rows = self.store.rows[ordinals[ordinals < len(self.store.rows)]] if locations else None
        if self.store.fault == "location" and rows is not None and len(rows):
            rows["flags"][-1] ^= 1
        return SimpleNamespace(blocks=len(ordinals), tokens=16 * len(ordinals), locations=rows)

    async def insert(self, tokens, rows):
        assert rows.dtype == LOCATION
        assert len(rows) == len(tokens) // 16
        held = self.store.oracle.blocks
        ordinals = self.store.oracle.insert(self.name, tokens)
        new = ordinals >= (0 if self.store.fault == "overwritten" else held)
        self.store.rows = np.resize(self.store.rows, self.store.oracle.blocks)
        self.store.rows[ordinals[new]] = rows[new]


async def replayed(store, *, concurrency=1, locations=True):
    replayer = Replayer(store, LOCATION, locations=locations)
    trace = open_trace(TraceSpec(label="chat", generate="chat", sessions=8, turns=4))
    for wave in waves(trace.turns(), concurrency):
        await replayer.play(wave)
    return replayer.result()


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_right_answers_lose_nothing_and_reads_are_counted_by_kind(concurrency):
    store = MemoryStore()
    result = await replayed(store, concurrency=concurrency)
    assert (result.wrong, result.lost_tokens, result.mismatches) == (0, 0, [])
    assert result.matched_tokens == result.oracle_tokens > 0
    assert result.unique_blocks == store.oracle.blocks
    assert (result.reads_length, result.reads_locations) == (1, 3)
    assert result.match_length.calls + result.match_locations.calls == result.turns == result.insert.calls
    assert store.namespaces == 1


async def test_length_only_matches_once_a_turn():
    store = MemoryStore()
    result = await replayed(store, locations=False)
    assert store.matches == result.turns == result.match_length.calls
    assert result.match_locations.calls == 0


@pytest.mark.parametrize(
    ("fault", "is_wrong"), [("short", False), ("long", True), ("location", True), ("overwritten", True)]
)
async def test_each_way_to_be_wrong_is_found(fault, is_wrong):
    result = await replayed(MemoryStore(fault))
    assert bool(result.wrong) == is_wrong
    assert bool(result.lost_tokens) == (not is_wrong)
    assert result.mismatches
    assert "session chat:" in result.mismatches[0]


def test_a_checker_refuses_another_dtype():
    checker = Checker(LOCATION)
    answer = SimpleNamespace(blocks=1, tokens=16, locations=np.zeros(1, dtype="V14"))
    assert not checker.check(answer, np.zeros(1, dtype=np.int64), "query", locations=True)


def turn(session, tokens=32):
    made = np.full(tokens, hash(session) % 100, dtype=np.uint32)
    return Turn(session, made, made)


def test_a_wave_holds_a_session_once():
    cut = [[t.session for t in wave] for wave in waves(map(turn, "abcabb"), 4)]
    assert cut == [["a", "b", "c"], ["a", "b"], ["b"]]


def test_samples_survive_their_file_and_hold_the_last_turns(tmp_path):
    oracle, sampler = Oracle(), Sampler(10)
    for number in range(200):
        one = Turn(str(number), np.full(40, number, dtype=np.uint32), np.full(40, number, dtype=np.uint32))
        oracle.insert("", one.insert)
        sampler.add(one)
    samples = list(sampler.samples(oracle))
    assert len(samples) == 10 + LAST_TURNS
    write_samples(str(tmp_path / "s"), samples)
    back = read_samples(str(tmp_path / "s"))
    assert [s.ordinals.tolist() for s in back] == [s.ordinals.tolist() for s in samples]
    assert [2 * int(s.tokens[0]) for s in back] == [int(s.ordinals[0]) for s in back]
    assert {int(s.tokens[0]) for s in back} >= set(range(200 - LAST_TURNS, 200))


def test_counters_are_read_from_objects_and_mappings():
    assert stat({"reads": 3}, "reads") == stat(SimpleNamespace(reads=3), "reads") == 3
    assert stat({}, "reads") == stat({"reads": None}, "reads") == 0
    assert reads_of({"records_read": 5, "reads": 1}) == 5
    assert reads_of({"reads": 1, "cache_hits": 2, "reads_coalesced": 4}) == 7
