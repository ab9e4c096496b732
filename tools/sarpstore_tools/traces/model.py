"""The trace model: what a replay asks of a store, turn by turn.

A *session* is one conversation: messages that follow each other. A *turn* is one request of it: the prompt
is matched first, then the sequence that the server holds after it answered (prompt and answer, where the
trace has the answer, else the prompt alone) is inserted. Nothing here reads a file or knows a tokenizer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TOKEN_BLOCK = 16
"""Tokens a block: the store's default, which every replay uses."""

ACTIVE_SESSIONS_MAX = 4096
"""Sessions advanced at once: the bound on what a replay of conversations holds in memory."""

Tokens = npt.NDArray[np.uint32]

NO_TOKENS: Tokens = np.zeros(0, dtype=np.uint32)


class TraceError(ValueError):
    """A trace that cannot be read. The message names the file, the line and what was expected there."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `match` is its prompt, `insert` what is cached once it is answered; `match` is a prefix of it."""

    session: str
    match: Tokens
    insert: Tokens
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a session, in tokens.

    `opening` is what the chat template puts before the content (an answer's opening belongs to its prompt),
    `body` the content. `kept` is what later turns see of an answer once its reasoning is stripped; None: all of it.
    """

    opening: Tokens
    body: Tokens
    is_answer: bool
    kept: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation in tokens; `start` is what precedes its first message (a begin-of-text token, or nothing)."""

    name: str
    messages: list[Message]
    namespace: str = ""
    start: Tokens = field(default_factory=lambda: NO_TOKENS)


@dataclass(frozen=True, slots=True)
class Trace:
    """A stream of turns. `turns()` starts it anew; `total` is the number of turns where that is cheaply known."""

    label: str
    turns: Callable[[], Iterator[Turn]]
    total: int | None = None
    notes: tuple[str, ...] = ()


def session_turns(session: Session, *, strip_reasoning: bool = False) -> Iterator[Turn]:
    """The turns of one session: one for every answer that has a prompt, and one for an unanswered end.

    Every message is tokenized by itself, so a turn's insertion is a true token prefix of the next prompt, unless
    `strip_reasoning` replaces answers by what is kept of them.
    """
    history = [session.start]
    asked = False
    for message in session.messages:
        if message.is_answer and asked:
            prompt = np.concatenate([*history, message.opening])
            yield Turn(session.name, prompt, np.concatenate([prompt, message.body]), session.namespace)
        asked = asked or not message.is_answer
        stripped = strip_reasoning and message.kept is not None
        history += [message.opening, message.kept if stripped and message.kept is not None else message.body]
    if session.messages and not session.messages[-1].is_answer:
        prompt = np.concatenate(history)
        yield Turn(session.name, prompt, prompt, session.namespace)


def round_robin(sessions: Iterable[Iterator[Turn]], active_max: int = ACTIVE_SESSIONS_MAX) -> Iterator[Turn]:
    """Advance sessions round-robin, as the SARP paper's experiments do: a turn of each, then the next of each.

    At most `active_max` sessions are open at a time; where one ends the next of `sessions` takes its place.
    """
    source = iter(sessions)
    active: deque[Iterator[Turn]] = deque()
    while True:
        while len(active) < active_max and (admitted := next(source, None)) is not None:
            active.append(admitted)
        if not active:
            return
        session = active.popleft()
        if (turn := next(session, None)) is not None:
            yield turn
            active.append(session)
