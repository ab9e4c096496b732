"""What is held, before and after its rows are indexed: as a dict would have it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sarpstore._chunks.encoding import Chunk, Table
from sarpstore._chunks.held import Held
from sarpstore._chunks.policy import Extent

# Keys that share their first 8 bytes are told apart by the rest.
KEYS = [bytes([number % 3]) * 8 + bytes([number]) * 24 for number in range(12)]


def chunk_of(key, sequence):
    return Chunk(key, sequence, 100, 5, 7, 20, (Extent(1, 4096 * sequence, 4096),))


class HeldMachine(RuleBasedStateMachine):
    @initialize(rows=st.lists(st.sampled_from(KEYS), unique=True), gone=st.sets(st.integers(0, 11)))
    def begin(self, rows, gone):
        chunks = [chunk_of(key, number) for number, key in enumerate(rows, 1)]
        table = Table(bytes(16), 1, 1, 1, 1, 1)
        table.fill(table, [], [(chunk, 1.0) for chunk in chunks])
        mask = np.array([number not in gone for number in range(len(rows))], np.bool_)
        self.model = {chunk.key: chunk for chunk, there in zip(chunks, mask, strict=True) if there}
        self.causes = {}
        self.sequence = len(rows)
        late = [self._next(key) for key in KEYS[:2]]
        self.held = Held(table, mask, late)
        self.model |= {chunk.key: chunk for chunk in late}
        self.at, self.indexed = 0, False

    def _next(self, key):
        self.sequence += 1
        return chunk_of(key, self.sequence)

    @rule(count=st.integers(1, 5))
    def index(self, count):
        if not self.indexed:
            self.indexed = not self.held.index(self.at, self.at + count)
            self.at += count

    @rule(key=st.sampled_from(KEYS))
    def add(self, key):
        chunk = self._next(key)
        self.held.add(chunk)
        self.model[key] = chunk
        self.causes.pop(key, None)

    @rule(key=st.sampled_from(KEYS), why=st.sampled_from(["evicted", "damaged"]))
    def drop(self, key, why):
        self.held.drop(key, why)
        self.model.pop(key, None)
        self.causes[key] = why

    @invariant()
    def agrees(self):
        assert len(self.held) == len(self.model)
        for key in KEYS:
            assert (key in self.held) == (key in self.model)
            assert self.held.chunk(key) == self.model.get(key)
            assert self.held.why_not(key) == self.causes.get(key, "new")
        if self.indexed:
            assert set(self.held) == self.model.keys()


HeldMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestHeld = HeldMachine.TestCase


def test_causes_are_remembered_of_so_many_keys():
    table = Table(bytes(16), 1, 1, 1, 1, 1)
    held = Held(table, np.empty(0, np.bool_), [])
    for number in range(65_537):
        held.note(number.to_bytes(32, "little"), "evicted")
    assert held.why_not(bytes(32)) == "new"
    assert held.why_not((1).to_bytes(32, "little")) == "evicted"


@pytest.mark.parametrize("chunks", [0, 3])
def test_the_keys_are_not_told_before_all_rows_are_indexed(chunks):
    table = Table(bytes(16), 1, 1, 1, 1, 1)
    table.fill(table, [], [(chunk_of(key, 1), 1.0) for key in KEYS[:chunks]])
    held = Held(table, np.ones(chunks, np.bool_), [])
    if chunks:
        with pytest.raises(AssertionError):
            iter(held)
    held.index(0, 10)
    assert list(held) == KEYS[:chunks]
