"""Samples of a replay: sequences to ask again after the crash, with the answers that an exact oracle expects.

A sample is drawn evenly from all turns (reservoir sampling, fixed seed), and the last turns are always in it: they are
the log's tail, which recovery has to replay. The file is read by the process that recovers.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore_tools.oracle import Oracle, Ordinals
    from sarpstore_tools.traces.model import Tokens, Turn

LAST_TURNS = 64
"""Turns at the end of a replay that are always asked again."""


class _Stored(msgspec.Struct, array_like=True):
    namespace: str
    tokens: bytes
    ordinals: bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """A sequence and the ordinals of its blocks that are held (see `oracle`)."""

    namespace: str
    tokens: Tokens
    ordinals: Ordinals


class Sampler:
    """Keeps at most `samples_max` turns and the last `LAST_TURNS`."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._random = random.Random(0)  # noqa: S311 (no secret)
        self._seen = 0
        self._kept: list[tuple[str, Tokens]] = []
        self._last: deque[tuple[str, Tokens]] = deque(maxlen=LAST_TURNS)

    def add(self, turn: Turn) -> None:
        """Look at one more turn; what it inserts is what would be asked again."""
        sequence = (turn.namespace, turn.insert)
        self._last.append(sequence)
        self._seen += 1
        if len(self._kept) < self._samples_max:
            self._kept.append(sequence)
        elif (place := self._random.randrange(self._seen)) < self._samples_max:
            self._kept[place] = sequence

    def samples(self, oracle: Oracle) -> Iterator[Sample]:
        """The samples with what `oracle` expects now."""
        for namespace, tokens in [*self._last, *self._kept]:
            yield Sample(namespace, tokens, oracle.ordinals(namespace, tokens))


def write_samples(path: str, samples: list[Sample]) -> None:
    """Write `samples` to a file."""
    stored = [_Stored(s.namespace, s.tokens.tobytes(), s.ordinals.tobytes()) for s in samples]
    Path(path).write_bytes(msgspec.msgpack.encode(stored))


def read_samples(path: str) -> list[Sample]:
    """Read what `write_samples` wrote."""
    stored = msgspec.msgpack.decode(Path(path).read_bytes(), type=list[_Stored])
    return [
        Sample(s.namespace, np.frombuffer(s.tokens, dtype=np.uint32), np.frombuffer(s.ordinals, dtype=np.int64))
        for s in stored
    ]
