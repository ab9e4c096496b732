"""Chunks that begin as another does: told by their first tokens, by tenant, for a bounded number of them."""

from __future__ import annotations

import numpy as np
import pytest
from chunk_helpers import END, LAYOUT, chunks_in, document, put_all
from hypothesis import given, settings
from hypothesis import strategies as st

from sarpstore._chunks.boundaries import Boundaries
from sarpstore._chunks.keys import HEAD_TOKENS, KeyMaker
from sarpstore._files import MemoryFolder

MAKER = KeyMaker(b"a model", LAYOUT, "", b"", b"")
TEXTS = [np.random.default_rng(seed).integers(3, 1000, 700).astype(np.uint32) for seed in range(3)]
TEXTS.append(np.concatenate([TEXTS[0][:100], TEXTS[1][:600]]))  # the same head as the first one's
LENGTHS = [5, 32, 33, 34, 64, 65, 66, 129, 130, 200, 300, 513, 600]


def chunk(text, length):
    return np.append(TEXTS[text][: length - 1], END).astype(np.uint32)


def compared(one, other):
    """As many tokens as are compared of two chunks; 0: none."""
    shorter, count = min(len(one), len(other)) - 1, 0
    while max(HEAD_TOKENS, 2 * count) <= shorter:
        count = max(HEAD_TOKENS, 2 * count)
    return count


class Model:
    """The last chunk that was noted of each first 32 tokens, whole."""

    def __init__(self, held):
        self.held, self.known = held, {}

    def look(self, tokens):
        key, head = tokens.tobytes(), tokens[:HEAD_TOKENS].tobytes()
        if len(tokens) <= HEAD_TOKENS:
            return False
        other = self.known.get(head)
        if key in self.held or other is None or other.tobytes() == key or other.tobytes() not in self.held:
            self.known[head] = tokens
            return False
        count = compared(tokens, other)
        return bool(np.array_equal(tokens[:count], other[:count]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(LENGTHS), st.booleans()), max_size=40))
def test_it_is_as_if_whole_chunks_were_compared(steps):
    held = set()
    boundaries, model = Boundaries(held.__contains__), Model(held)
    for text, length, put in steps:
        tokens = chunk(text, length)
        key, head = tokens.tobytes(), MAKER.head(tokens)
        expected = model.look(tokens)
        if key in held:
            boundaries.hit(head, key, tokens)
        else:
            assert boundaries.is_cut_elsewhere(head, key, tokens) == expected
        if put:
            held.add(key)


def test_no_more_than_so_many_are_remembered_those_that_were_looked_up_last():
    boundaries = Boundaries(lambda _: True, remembered=50)
    heads = [number.to_bytes(8, "little") for number in range(200)]
    for head in heads:
        boundaries.hit(head, head, chunk(0, 200))
        boundaries.hit(heads[0], heads[0], chunk(0, 200))
        assert len(boundaries) <= 50
    found = [boundaries.is_cut_elsewhere(head, b"another", chunk(0, 100)) for head in (heads[0], heads[-1], heads[9])]
    assert found == [True, True, False]


@pytest.mark.parametrize(
    "other",
    [
        KeyMaker(b"another model", LAYOUT, "", b"", b""),
        KeyMaker(b"a model", LAYOUT, "x", b"", b""),
        KeyMaker(b"a model", LAYOUT, "", b"x", b""),
        KeyMaker(b"a model", LAYOUT, "", b"", b"x"),
    ],
    ids=["fingerprint", "adapter", "conditioning", "salt"],
)
def test_what_is_not_shared_is_not_known(other):
    boundaries = Boundaries(lambda _: True)
    whole, cut = chunk(0, 300), chunk(0, 200)
    boundaries.hit(MAKER.head(whole), MAKER.key(whole), whole)
    assert not boundaries.is_cut_elsewhere(other.head(cut), other.key(cut), cut)
    assert boundaries.is_cut_elsewhere(MAKER.head(cut), MAKER.key(cut), cut)


def test_a_head_is_of_the_first_tokens_alone_and_no_key():
    assert MAKER.head(chunk(0, HEAD_TOKENS)) == b""
    heads = {MAKER.head(chunk(0, length)) for length in LENGTHS if length > HEAD_TOKENS}
    assert len(heads) == 1
    assert {len(head) for head in heads} == {8}
    assert MAKER.head(chunk(1, 200)) not in heads
    assert MAKER.key(chunk(0, HEAD_TOKENS))[:8] not in heads


async def whys(chunks, tokens, **more):
    with await chunks.plan([*tokens, 7], **more) as plan:
        return [span.why for span in plan.spans[:-1]]


async def stored(chunks, tokens):
    with await chunks.plan([*tokens, 7]) as plan:
        await put_all(chunks, plan)


async def test_a_store_tells_a_changed_split_from_a_new_text():
    one, two = document(1, 200), document(2, 200)
    async with chunks_in(MemoryFolder()) as chunks:
        assert await whys(chunks, one[:-1] + two) == ["new"]
        assert await whys(chunks, one + two) == ["new", "new"]  # nothing of them is held
        await stored(chunks, one + two)
        assert await whys(chunks, one + two) == ["", ""]
        assert await whys(chunks, one[:-1] + two) == ["boundary"]  # its delimiter is missing
        assert await whys(chunks, [*one[:150], END, *two]) == ["boundary", ""]  # cut short
        assert await whys(chunks, [*one[:150], END, *one[150:]]) == ["boundary", "new"]
        assert await whys(chunks, [*one[:60], *two]) == ["new"]  # what it shares is less than half of the shorter one
        assert await whys(chunks, [*one[:20], END]) == ["new"]
        assert await whys(chunks, document(3, 200)) == ["new"]
        for more in ({"salt": b"x"}, {"adapter": "x"}, {"conditioning": b"x"}):
            assert await whys(chunks, [*one[:150], END], **more) == ["new"]
        chunks._puts.drop(next(iter(chunks._held)), "evicted")
        assert "boundary" in await whys(chunks, [*one[:150], END, *two[:150], END])
        await stored(chunks, [*one[:150], END])
        assert await whys(chunks, [*one[:150], END]) == [""]


async def test_it_is_known_of_what_was_looked_up_since_the_open():
    folder, one = MemoryFolder(), document(1, 200)
    async with chunks_in(folder) as chunks:
        await stored(chunks, one)
    async with chunks_in(folder) as chunks:
        assert await whys(chunks, [*one[:150], END]) == ["new"]
        assert await whys(chunks, one) == [""]
        assert await whys(chunks, [*one[:150], END]) == ["boundary"]
