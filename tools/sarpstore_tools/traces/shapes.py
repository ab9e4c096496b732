"""Shapes that are hard on a sparse directory, made from any trace.

- `--system-prompt N` puts the same N tokens before every request. Where N is not a multiple of a window (1,024
  tokens), every session diverges inside the same window and becomes a candidate there.
- `--strip-reasoning` drops an answer's reasoning from all later prompts, as reasoning models' templates do:
  every turn then diverges inside the window in which the last one ended. In real text the spans `<think>…</think>`,
  `<thinking>…`, `<thought>…` and `<reasoning>…` are dropped where there are any; in an answer without one, **the
  first third of its tokens stands for the reasoning**, since the traces at hand were made by models that show none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.traces.model import Tokens, Turn
from sarpstore_tools.traces.random_tokens import token_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SYSTEM_PROMPT_KEY = 0x5359_5354_454D
"""The key of the system prompt's tokens ("SYSTEM"): every trace gets the same ones."""

REASONING_SHARE = 3
"""One answer token in this many counts as reasoning where none is marked."""

_REASONING = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>\s*", re.DOTALL)


def with_system_prompt(turns: Iterable[Turn], length: int) -> Iterator[Turn]:
    """The same turns behind one system prompt of `length` tokens."""
    prompt = token_run(SYSTEM_PROMPT_KEY, length)
    for turn in turns:
        match = np.concatenate([prompt, turn.match])
        insert = match if turn.insert is turn.match else np.concatenate([prompt, turn.insert])
        yield Turn(turn.session, match, insert, turn.namespace)


def kept_text(answer: str) -> str | None:
    """What is kept of an answer once its marked reasoning is dropped; None if none is marked."""
    kept, spans = _REASONING.subn("", answer)
    return kept if spans else None


def kept_tokens(answer: Tokens) -> Tokens:
    """What is kept of an answer whose reasoning is not marked: all but the first third of its tokens."""
    return answer[len(answer) // REASONING_SHARE :]
