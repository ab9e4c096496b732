"""Mooncake's production traces: `hash_ids` of 512-token blocks, one request a line, in the order of arrival.

Source: the traces that accompany "Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving"
(kvcache-ai/Mooncake). They hold no tokens, so two things here are assumptions:

- **Expansion.** Each id stands for 32 token blocks of 16 whose tokens are derived from the id alone
  (splitmix64 of id * 512 + position, modulo 32,000). So two different ids are taken to differ from their
  first block of 16 on; in the real prompts they may share some.
- **Answers.** Their tokens are unknown: a turn inserts its prompt, and nothing of its answer.

`input_length` trims the last block. Ids mean the same only within one file: its name is the namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.traces.model import Tokens, TraceError, Turn
from sarpstore_tools.traces.random_tokens import VOCABULARY, splitmix64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.traces.files import RecordFile
    from sarpstore_tools.traces.formats import MooncakeRecord

HASH_BLOCK = 512
"""Tokens that one hash id stands for."""

NOTE = "Mooncake: each hash id stands for 32 blocks of 16 tokens derived from it (an assumption); answers are unknown"

_POSITIONS = np.arange(HASH_BLOCK, dtype=np.uint64)


def expand(hash_ids: list[int], input_length: int) -> Tokens:
    """The `input_length` tokens that `hash_ids` stand for (see this module's docstring)."""
    starts = np.array(hash_ids, dtype=np.uint64)[:, None] * np.uint64(HASH_BLOCK)
    mixed = splitmix64((starts + _POSITIONS).reshape(-1)[:input_length])
    return (mixed % np.uint64(VOCABULARY)).astype(np.uint32)


def mooncake_turns(file: RecordFile) -> Iterator[Turn]:
    """A turn for every request of `file`."""
    for number, record in file.records():
        yield _turn(file, number, record)


def _turn(file: RecordFile, number: int, record: MooncakeRecord) -> Turn:
    most = HASH_BLOCK * len(record.hash_ids)
    if record.input_length > most:
        raise TraceError(
            f"{file.where(number)}: input_length {record.input_length}; expected at most {most}, "
            f"which is {HASH_BLOCK} tokens for each of {len(record.hash_ids)} hash_ids"
        )
    tokens = expand(record.hash_ids, record.input_length)
    return Turn(f"{file.name}:{number}", tokens, tokens, file.name)
