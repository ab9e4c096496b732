"""The built-in generator: traffic of four shapes from a seed, so that a replay needs no file.

| shape | a session |
|---|---|
| chat | a question, an answer of about 300 tokens, and so on; one in five opens with a popular question (Zipf) |
| agent | 600 tokens of system prompt that all agents share, 1,876 of tools that a kind shares, many short turns |
| stripped | chat whose answers begin with about 400 tokens of reasoning, which later turns do not see |
| rag | 200 tokens of system prompt, four documents drawn by Zipf from 2,000, and questions about them |

Lengths are log-normal (the median is given below), which is the long tail that real chats show. The shared prompts
end inside a window of 1,024 tokens on purpose. Each session has a generator of its own, seeded by (seed, shape,
session): sessions are the same however they are interleaved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.traces.model import NO_TOKENS, Message, Session, Tokens
from sarpstore_tools.traces.random_tokens import token_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH_MAX = 4_096
"""Tokens of one generated message at most."""

SPREAD = 0.8
"""Standard deviation of a length's logarithm."""

POPULAR_QUESTIONS = 200
POPULAR_SHARE = 0.2

AGENT_SYSTEM_TOKENS = 600
AGENT_TOOLS_TOKENS = 1_876
AGENT_KINDS = 4

RAG_SYSTEM_TOKENS = 200
RAG_DOCUMENTS = 2_000
RAG_DOCUMENTS_A_SESSION = 4

DEFAULT_SIZES = {"chat": (700, 6), "agent": (140, 20), "stripped": (500, 6), "rag": (800, 3)}
"""(sessions, turns a session on average) of each shape: together about 25 seconds on a quiet machine with two cores."""

DESCRIPTIONS = {
    "chat": "questions and answers; one session in five opens with a popular question",
    "agent": "many short turns behind a system prompt that all share and tools that a kind of agents shares",
    "stripped": "chat of a reasoning model, whose reasoning later turns do not see",
    "rag": "questions about four documents each, drawn from 2,000",
}
"""What each shape is, for the summary."""

SHAPES = tuple(DEFAULT_SIZES)


def sessions_of(shape: str, sessions: int, turns: int, seed: int = 0) -> Iterator[Session]:
    """`sessions` sessions of `shape`, `turns` turns each on average (between half and one and a half times that)."""
    make = _MAKERS[shape]
    for number in range(sessions):
        rng = _session_rng(shape, number, seed)
        count = _turn_count(rng, turns)
        yield Session(f"{shape}:{number}", make(rng, count, seed), namespace="generated")


def turn_total(shape: str, sessions: int, turns: int, seed: int = 0) -> int:
    """How many turns `sessions_of` gives for the same arguments."""
    return sum(_turn_count(_session_rng(shape, number, seed), turns) for number in range(sessions))


def _session_rng(shape: str, number: int, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, SHAPES.index(shape), number]))


def _turn_count(rng: np.random.Generator, turns: int) -> int:
    return int(rng.integers(max(1, turns - turns // 2), turns + turns // 2 + 1))


def _length(rng: np.random.Generator, median: int) -> int:
    return int(np.clip(rng.lognormal(np.log(median), SPREAD), 1, LENGTH_MAX))


def _fresh(rng: np.random.Generator, median: int) -> Tokens:
    return token_run(int(rng.integers(1 << 63)), _length(rng, median))


def _shared(what: str, number: int, seed: int, length: int) -> Tokens:
    """The tokens of something that many sessions share: they depend on its name and number, and the seed."""
    key = int.from_bytes(what.encode()[:4].ljust(4, b"\0"), "little") << 32
    return token_run(key ^ (seed << 24) ^ number, length)


def _zipf(rng: np.random.Generator, count: int) -> int:
    """A number below `count`, number k with weight 1 / (k + 1) (by the inverse of the continuous distribution)."""
    return min(int((count + 1) ** rng.random()) - 1, count - 1)


def _asked(body: Tokens) -> Message:
    return Message(NO_TOKENS, body, is_answer=False)


def _answered(body: Tokens, kept: Tokens | None = None) -> Message:
    return Message(NO_TOKENS, body, is_answer=True, kept=kept)


def _first_question(rng: np.random.Generator, seed: int) -> Tokens:
    if rng.random() < POPULAR_SHARE:
        number = _zipf(rng, POPULAR_QUESTIONS)
        return _shared("question", number, seed, 20 + 7 * number % 300)
    return _fresh(rng, 60)


def _chat(rng: np.random.Generator, turns: int, seed: int) -> list[Message]:
    messages: list[Message] = []
    for turn in range(turns):
        question = _fresh(rng, 60) if turn else _first_question(rng, seed)
        messages += [_asked(question), _answered(_fresh(rng, 300))]
    return messages


def _stripped(rng: np.random.Generator, turns: int, seed: int) -> list[Message]:
    messages: list[Message] = []
    for turn in range(turns):
        question = _fresh(rng, 60) if turn else _first_question(rng, seed)
        reasoning, answer = _fresh(rng, 400), _fresh(rng, 300)
        messages += [_asked(question), _answered(np.concatenate([reasoning, answer]), kept=answer)]
    return messages


def _agent(rng: np.random.Generator, turns: int, seed: int) -> list[Message]:
    kind = _zipf(rng, AGENT_KINDS)
    system = _shared("system", 0, seed, AGENT_SYSTEM_TOKENS)
    tools = _shared("tools", kind, seed, AGENT_TOOLS_TOKENS)
    messages = [_asked(np.concatenate([system, tools, _fresh(rng, 150)]))]
    for _ in range(turns):
        messages += [_answered(_fresh(rng, 80)), _asked(_fresh(rng, 200))]
    return messages[:-1]


def _rag(rng: np.random.Generator, turns: int, seed: int) -> list[Message]:
    documents = [_zipf(rng, RAG_DOCUMENTS) for _ in range(RAG_DOCUMENTS_A_SESSION)]
    texts = [_shared("document", number, seed, 300 + 97 * number % 700) for number in documents]
    messages = [_asked(np.concatenate([_shared("rag", 0, seed, RAG_SYSTEM_TOKENS), *texts]))]
    for _ in range(turns):
        messages += [_asked(_fresh(rng, 30)), _answered(_fresh(rng, 200))]
    return messages


_MAKERS: dict[str, Callable[[np.random.Generator, int, int], list[Message]]] = {
    "chat": _chat,
    "agent": _agent,
    "stripped": _stripped,
    "rag": _rag,
}
