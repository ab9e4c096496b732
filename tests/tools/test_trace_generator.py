"""The built-in generator and the shapes: the same traffic from the same seed, and as hard as they claim."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from sarpstore_tools.oracle import Oracle
from sarpstore_tools.traces import TraceError, TraceSpec, open_trace
from sarpstore_tools.traces.conversations import TextMessage, TextSession, tokenize
from sarpstore_tools.traces.generator import SHAPES, sessions_of
from sarpstore_tools.traces.model import session_turns
from sarpstore_tools.traces.shapes import kept_text, kept_tokens

WINDOW_TOKENS = 1024


def turns_of(shape, **options):
    return list(open_trace(TraceSpec(label=shape, generate=shape, sessions=12, turns=4, **options)).turns())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_gives_the_same_turns_and_another_seed_others(shape):
    first, second, other = turns_of(shape), turns_of(shape), turns_of(shape, seed=1)
    assert len(first) == len(second)
    for one, two in zip(first, second, strict=True):
        assert one.session == two.session
        assert np.array_equal(one.insert, two.insert)
    assert [turn.insert.tolist() for turn in first] != [turn.insert.tolist() for turn in other]


def test_generated_tokens_do_not_change_between_versions():
    checksums = {shape: zlib.crc32(turns_of(shape)[-1].insert.astype("<u4").tobytes()) for shape in SHAPES}
    assert checksums == EXPECTED_CHECKSUMS


@pytest.mark.parametrize("shape", SHAPES)
def test_the_total_is_what_is_generated(shape):
    trace = open_trace(TraceSpec(label=shape, generate=shape, sessions=9, turns=5))
    assert trace.total == sum(1 for _ in trace.turns())
    limited = open_trace(TraceSpec(label=shape, generate=shape, sessions=9, turns=5, limit=3))
    assert limited.total == sum(1 for _ in limited.turns()) == 3


def test_sessions_take_turns():
    sessions = [turn.session for turn in turns_of("chat")]
    assert sessions[:12] == [f"chat:{number}" for number in range(12)]


def test_agents_share_a_prompt_that_ends_inside_a_window():
    first, *others = [next(session_turns(session)).match for session in sessions_of("agent", 30, 2)]
    shared = min(_common(first, other) for other in others)
    assert shared == 600
    longest = max(_common(a, b) for a, b in itertools.combinations([first, *others], 2))
    assert longest % WINDOW_TOKENS not in (0, 1)


def test_stripped_chat_diverges_from_its_own_history_at_every_turn():
    for session in sessions_of("stripped", 5, 4):
        turns = list(session_turns(session, strip_reasoning=True))
        for before, after in itertools.pairwise(turns):
            assert _common(before.insert, after.match) < len(before.insert)
            assert _common(before.match, after.match) == len(before.match)


def test_chat_hits_most_of_its_history():
    oracle, prompt, matched = Oracle(), 0, 0
    for turn in turns_of("chat"):
        matched += 16 * oracle.match(turn.namespace, turn.match)
        prompt += len(turn.match)
        oracle.insert(turn.namespace, turn.insert)
    assert matched > prompt / 2


def test_a_system_prompt_stands_before_every_request():
    plain, prompted = turns_of("chat"), turns_of("chat", system_prompt=600)
    start = prompted[0].match[:600]
    for one, two in zip(plain, prompted, strict=True):
        assert np.array_equal(two.match[:600], start)
        assert np.array_equal(two.match[600:], one.match)
        assert np.array_equal(two.insert[600:], one.insert)


def test_stripping_a_generated_chat_drops_the_first_third_of_each_answer():
    plain, stripped = turns_of("chat"), turns_of("chat", strip_reasoning=True)
    assert sum(len(turn.match) for turn in stripped) < sum(len(turn.match) for turn in plain)
    assert kept_tokens(np.arange(9, dtype=np.uint32)).tolist() == [3, 4, 5, 6, 7, 8]


def test_marked_reasoning_is_dropped_and_only_that():
    assert kept_text("<think>why\nnot</think>\nyes <thought>x</thought>no") == "yes no"
    assert kept_text("yes") is None
    assert kept_text("<think>never ends") is None


def test_stripping_drops_reasoning_from_later_prompts_but_not_from_what_is_inserted():
    messages = [
        TextMessage("user", "q"),
        TextMessage("assistant", "<think>t</think>a"),
        TextMessage("user", "r"),
        TextMessage("assistant", "b"),
    ]
    (session,) = tokenize([TextSession("s", messages)], _Letters(), strip_reasoning=True)
    first, second = session_turns(session, strip_reasoning=True)
    assert _text(first.insert).endswith("<think>t</think>a\n")
    assert _text(second.match) == "<|user|>\nq\n<|assistant|>\na\n<|user|>\nr\n<|assistant|>\n"


def test_stripping_needs_conversations(tmp_path):
    (tmp_path / "t.jsonl").write_text("[1, 2]\n")
    with pytest.raises(TraceError, match="--strip-reasoning needs conversations"):
        open_trace(TraceSpec(label="t", path=str(tmp_path / "t.jsonl"), strip_reasoning=True))


class _Letters:
    start = np.zeros(0, dtype=np.uint32)

    def encode(self, texts):
        return [np.array([ord(letter) for letter in text], dtype=np.uint32) for text in texts]


def _text(tokens):
    return "".join(map(chr, tokens))


def _common(one, two):
    length = min(len(one), len(two))
    same = one[:length] == two[:length]
    return length if same.all() else int(same.argmin())


EXPECTED_CHECKSUMS = {"chat": 3664880445, "agent": 207670982, "stripped": 3059781760, "rag": 58345854}
