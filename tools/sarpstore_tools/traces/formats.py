"""The record formats that traces come in: the types of their records, and how a format is recognized.

A format is recognized by a file's first record. Every record is then decoded against that format's type, so a
malformed one is refused with its file, its line, and what was expected there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from sarpstore_tools.traces.model import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable

HashId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 54)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Length = Annotated[int, msgspec.Meta(ge=0)]


class MooncakeRecord(msgspec.Struct):
    """A request of the Mooncake traces: `hash_ids` name 512-token blocks, `input_length` counts tokens."""

    hash_ids: list[HashId]
    input_length: Length


class TokensRecord(msgspec.Struct):
    """A request as token ids."""

    tokens: list[Token]
    session: str | int | None = None
    namespace: str = ""


class ChatPart(msgspec.Struct):
    """A part of an OpenAI message's content; only text parts have tokens of their own."""

    type: str = "text"
    text: str = ""


class ChatMessage(msgspec.Struct):
    """A message as the OpenAI chat API has it."""

    role: str
    content: str | list[ChatPart] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")


class ChatRecord(msgspec.Struct):
    """An OpenAI-style conversation."""

    messages: list[ChatMessage]
    id: str | int | None = None


class ChatConversationRecord(msgspec.Struct):
    """The same under the name that LMSYS-Chat and WildChat give it."""

    conversation: list[ChatMessage]
    conversation_id: str | int | None = None


class ShareMessage(msgspec.Struct, rename={"role": "from"}):
    """A message as ShareGPT exports have it."""

    role: str
    value: str


class ShareRecord(msgspec.Struct):
    """A ShareGPT-style conversation."""

    conversations: list[ShareMessage]
    id: str | int | None = None


class Exchange(msgspec.Struct):
    """A question and its answer (empty: not answered) as MT-Eval has them."""

    user: str
    sys: str = ""


class EvalRecord(msgspec.Struct):
    """An MT-Eval conversation."""

    conv: list[Exchange]
    id: str | int | None = None


class EvalConversationRecord(msgspec.Struct):
    """The same as its extended MT-Bench file has it."""

    conversation: list[Exchange]
    question_id: str | int | None = None


class AgentRecord(msgspec.Struct):
    """A request of the LMCache agent traces: the whole prompt and its answer as text, at `timestamp` microseconds."""

    timestamp: int | float
    input: str
    output: str = ""
    session_id: str | int | None = None


class HistoryState(msgspec.Struct):
    """What MINT (CodeAct) keeps of a trajectory."""

    history: list[ChatMessage]


class HistoryRecord(msgspec.Struct):
    """A MINT (CodeAct) trajectory."""

    state: HistoryState


@dataclass(frozen=True, slots=True)
class Format:
    """A format: `types` are tried in order; `expected` completes "expected …"; `fits` looks at one decoded value."""

    name: str
    expected: str
    types: tuple[Any, ...]
    fits: Callable[[Any], bool]

    def decode(self, data: bytes | msgspec.Raw, where: str) -> Any:
        """Decode one record.

        Raises:
            TraceError: it is not JSON or not of this format; the message names the place and what was expected.
        """
        reason = ""
        for record_type in self.types:
            try:
                return msgspec.json.decode(data, type=record_type)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                # The type that came furthest into the record says best what is wrong with it.
                reason = str(error) if not reason or "- at `$" in str(error) else reason
        raise TraceError(f"{where}: {reason}; expected {self.expected} (format {self.name})")


def _has_key(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(name in value for name in names)


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and fits(value[0])


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _messages_under(fits: Callable[[Any], bool], *names: str) -> Callable[[Any], bool]:
    listed = _is_list_of(fits)
    return lambda value: listed(value) or (isinstance(value, dict) and any(listed(value.get(name)) for name in names))


def _fits_state(value: Any) -> bool:
    return isinstance(value, dict) and _has_key("history")(value.get("state"))


MOONCAKE = Format(
    "mooncake",
    'an object like {"input_length": 700, "hash_ids": [0, 1]}',
    (MooncakeRecord,),
    _has_key("hash_ids", "input_length"),
)
TOKENS = Format(
    "tokens",
    'a list of token ids, or an object like {"tokens": [1, 2, 3], "session": "a", "namespace": "m"}',
    (TokensRecord, list[Token]),
    lambda value: _has_key("tokens")(value) or _is_list_of(_is_token)(value),
)
OPENAI = Format(
    "openai",
    'an object like {"messages": [{"role": "user", "content": "…"}, …]}',
    (ChatRecord, ChatConversationRecord, list[ChatMessage]),
    _messages_under(_has_key("role"), "messages", "conversation"),
)
SHAREGPT = Format(
    "sharegpt",
    'an object like {"conversations": [{"from": "human", "value": "…"}, …]}',
    (ShareRecord, list[ShareMessage]),
    _messages_under(_has_key("from", "value"), "conversations"),
)
MT_EVAL = Format(
    "mt-eval",
    'an object like {"conv": [{"user": "…", "sys": "…"}, …]}, or such a list',
    (EvalRecord, EvalConversationRecord, list[Exchange]),
    _messages_under(_has_key("user"), "conv", "conversation"),
)
LMCACHE_AGENT = Format(
    "lmcache-agent",
    'an object like {"timestamp": 1760428436442742, "input": "…", "output": "…", "session_id": "…"}',
    (AgentRecord,),
    _has_key("timestamp", "input"),
)
CODEACT = Format(
    "codeact",
    'an object like {"state": {"history": [{"role": "user", "content": "…"}, …]}}',
    (HistoryRecord,),
    _fits_state,
)

FORMATS = {f.name: f for f in (MOONCAKE, TOKENS, LMCACHE_AGENT, CODEACT, OPENAI, SHAREGPT, MT_EVAL)}
"""Every format by the name that `--format` takes, in the order in which a first record is tried."""


def recognize(value: Any) -> Format | None:
    """The format whose record `value` (one decoded JSON value) looks like, or None."""
    return next((each for each in FORMATS.values() if each.fits(value)), None)
