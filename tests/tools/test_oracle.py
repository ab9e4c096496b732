"""The replay's oracle against a brute-force one: a set of whole prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sarpstore_tools.oracle import Oracle, decoys_of, locations_of

BLOCK = 16

LOCATION = np.dtype([("address", "<u8"), ("length", "<u4"), ("tier", "u1"), ("flags", "u1")])


class BruteForce:
    """Every prefix that was inserted, as text, and the ordinal of its last block."""

    def __init__(self):
        self.held = {}

    def ordinals(self, namespace, tokens):
        found = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            ordinal = self.held.get((namespace, tokens[:end].tobytes()))
            if ordinal is None:
                break
            found.append(ordinal)
        return found

    def insert(self, namespace, tokens):
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        return [self.held.setdefault((namespace, tokens[:end].tobytes()), len(self.held)) for end in ends]


blocks = st.lists(st.sampled_from([0, 1, 70_000]), max_size=7)
operations = st.lists(
    st.tuples(st.sampled_from(["match", "insert"]), st.sampled_from("ab"), blocks, st.integers(0, BLOCK - 1)),
    max_size=30,
)


def sequence(kinds, tail):
    """A block a kind, alike but for its last token, and `tail` tokens more."""
    tokens = np.ones((len(kinds), BLOCK), dtype=np.uint32)
    tokens[:, -1] = kinds
    return np.concatenate([tokens.reshape(-1), np.ones(tail, dtype=np.uint32)])


@settings(max_examples=300)
@given(operations)
def test_the_oracle_agrees_with_brute_force(steps):
    oracle, brute = Oracle(), BruteForce()
    for kind, namespace, kinds, tail in steps:
        tokens = sequence(kinds, tail)
        if kind == "insert":
            assert oracle.insert(namespace, tokens).tolist() == brute.insert(namespace, tokens)
        expected = brute.ordinals(namespace, tokens)
        assert oracle.ordinals(namespace, tokens).tolist() == expected
        assert oracle.match(namespace, tokens) == len(expected)
        assert oracle.blocks == len(brute.held)


def test_held_blocks_keep_their_ordinals():
    oracle = Oracle()
    first = oracle.insert("", sequence([0, 1, 0], 0))
    second = oracle.insert("", sequence([0, 1, 1, 1], 3))
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [0, 1, 3, 4]


def test_locations_depend_on_the_ordinal_alone_and_differ():
    rows = locations_of(np.arange(1000, dtype=np.int64), LOCATION)
    assert rows.dtype == LOCATION
    assert len({row.tobytes() for row in rows}) == 1000
    assert rows[7].tobytes() == locations_of(np.array([7]), LOCATION)[0].tobytes()
    assert locations_of(np.arange(3), np.dtype("V46")).shape == (3,)
    assert len(locations_of(np.zeros(0, dtype=np.int64), LOCATION)) == 0


def test_a_decoy_is_no_block_s_location():
    ordinals = np.arange(1000, dtype=np.int64)
    real = {row.tobytes() for row in locations_of(ordinals, LOCATION)}
    decoys = {row.tobytes() for row in decoys_of(ordinals, LOCATION)}
    assert len(decoys) == 1000
    assert not real & decoys
