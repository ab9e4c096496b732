"""Conversations as text: OpenAI chat, ShareGPT, MT-Eval and CodeAct (MINT) trajectories, tokenized message by message.

The chat template is a plain one: the line `<|role|>`, then the content and a line feed. Role line and content are
tokenized by themselves and joined, after one begin-of-text token: so the history of a turn is a true token
prefix of the next turn. An answer's role line ends the prompt that asks for it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sarpstore_tools.traces import formats
from sarpstore_tools.traces.formats import ChatMessage, Exchange, HistoryRecord, ShareMessage
from sarpstore_tools.traces.model import NO_TOKENS, Message, Session, Tokens
from sarpstore_tools.traces.shapes import kept_text, kept_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sarpstore_tools.traces.files import RecordFile
    from sarpstore_tools.traces.tokenizers import Tokenizer

ANSWER = "assistant"

SESSIONS_A_BATCH = 32
"""Conversations that one call of the tokenizer encodes."""

_ROLES = {"human": "user", "gpt": ANSWER, "chatgpt": ANSWER, "bing": ANSWER, "bard": ANSWER, "model": ANSWER}

_SESSION_FIELDS = ("id", "conversation_id", "question_id")


@dataclass(frozen=True, slots=True)
class TextMessage:
    """One message: `role` is "assistant" for answers."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class TextSession:
    """One conversation."""

    name: str
    messages: list[TextMessage]


def read_conversations(file: RecordFile) -> Iterator[TextSession]:
    """The conversations of `file`, in its order; empty ones are left out."""
    for number, record in file.records():
        messages = _messages(record)
        if messages:
            yield TextSession(f"{file.name}:{number}{_own_name(record)}", messages)


def tokenize(sessions: Iterable[TextSession], tokenizer: Tokenizer, *, strip_reasoning: bool) -> Iterator[Session]:
    """Conversations in tokens, a few at a time. `kept` of answers is worked out only if `strip_reasoning`."""
    source = iter(sessions)
    openings: dict[str, Tokens] = {}
    while batch := list(itertools.islice(source, SESSIONS_A_BATCH)):
        roles = {message.role for session in batch for message in session.messages} - openings.keys()
        missing = sorted(roles)
        openings.update(zip(missing, tokenizer.encode([f"<|{role}|>\n" for role in missing]), strict=True))
        yield from _tokenize_batch(batch, tokenizer, openings, strip_reasoning)


def _tokenize_batch(
    batch: list[TextSession], tokenizer: Tokenizer, openings: dict[str, Tokens], strip_reasoning: bool
) -> Iterator[Session]:
    messages = [message for session in batch for message in session.messages]
    kept = [kept_text(m.text) if strip_reasoning and m.role == ANSWER else None for m in messages]
    texts = [_content(message.text) for message in messages]
    encoded = iter(tokenizer.encode(texts + [_content(text) for text in kept if text is not None]))
    bodies = list(itertools.islice(encoded, len(texts)))
    made: list[Message] = []
    for message, body, text in zip(messages, bodies, kept, strict=True):
        is_answer = message.role == ANSWER
        left = next(encoded) if text is not None else kept_tokens(body) if strip_reasoning and is_answer else None
        # An answer that the trace does not have (empty text) has no tokens at all, not even a line feed.
        made.append(Message(openings[message.role], body if message.text else NO_TOKENS, is_answer, left))
    rest = iter(made)
    for session in batch:
        own = list(itertools.islice(rest, len(session.messages)))
        yield Session(session.name, own, start=tokenizer.start)


def _content(text: str) -> str:
    return f"{text}\n"


def _own_name(record: Any) -> str:
    names = (getattr(record, field, None) for field in _SESSION_FIELDS)
    return next((f":{name}" for name in names if name is not None), "")


def _messages(record: Any) -> list[TextMessage]:
    if isinstance(record, HistoryRecord):
        record = record.state.history
    for field in ("messages", "conversations", "conversation", "conv"):
        record = getattr(record, field, record)
    return [text for message in record for text in _texts(message)]


def _texts(message: ChatMessage | ShareMessage | Exchange) -> list[TextMessage]:
    if isinstance(message, Exchange):
        return [TextMessage("user", message.user), TextMessage(ANSWER, message.sys)]
    text = message.value if isinstance(message, ShareMessage) else _chat_text(message)
    return [TextMessage(_ROLES.get(message.role, message.role), text)]


def _chat_text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        text = "".join(part.text for part in message.content)
    else:
        text = message.content or ""
    calls = bytes(message.tool_calls).decode()
    return text if calls == "null" else text + calls


CONVERSATION_FORMATS = frozenset(f.name for f in (formats.OPENAI, formats.SHAREGPT, formats.MT_EVAL, formats.CODEACT))
