"""Chunks of a prompt, and their keys (format-spec/chunks.md, 1): by content, wherever they stand. Pure."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sarpstore._errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sarpstore._chunks.layout import KVLayout

__all__ = ["HEAD_TOKENS", "KeyMaker", "delimiters_of", "split"]

HEAD_TOKENS: Final = 32

_TAG = b"sarpstore chunk 1"
_TOKEN_MAX = 0xFFFF_FFFF


def delimiters_of(ids: Iterable[int]) -> npt.NDArray[np.uint32]:
    """Delimiter token ids, checked. OptionError: there is none, or one is no token id."""
    values = list(ids)
    if not values or not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _TOKEN_MAX for v in values):
        raise OptionError(f"delimiters={ids!r}: must be token ids, at least one")
    return np.array(sorted(set(values)), np.uint32)


def split(tokens: npt.NDArray[np.uint32], delimiters: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
    """(begin, end) of each chunk of the tokens, in order, without gaps: a chunk ends with its delimiter.

    Of delimiters right behind one another the last one ends it. What follows the last of all is the last chunk.
    """
    is_end = np.append(np.isin(tokens, delimiters), False)
    ends = np.flatnonzero(is_end[:-1] & ~is_end[1:]) + 1
    bounds = [0, *ends.tolist()]
    if bounds[-1] != len(tokens):
        bounds.append(len(tokens))
    return list(pairwise(bounds))


class KeyMaker:
    """Keys of chunks of one model, adapter, conditioning prefix and tenant."""

    def __init__(self, fingerprint: bytes, layout: KVLayout, adapter: str, conditioning: bytes, salt: bytes) -> None:
        parts = (_TAG, fingerprint, layout.canonical(), adapter.encode(), conditioning, salt)
        self._begun = hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts))

    def key(self, tokens: npt.NDArray[np.uint32]) -> bytes:
        """The key of a chunk, 32 bytes."""
        digest = self._begun.copy()
        data = np.ascontiguousarray(tokens, "<u4").tobytes()
        digest.update(len(data).to_bytes(4, "little") + data)
        return digest.digest()

    def head(self, tokens: npt.NDArray[np.uint32]) -> bytes:
        """A hash of the first tokens of a chunk, 8 bytes; empty where there are no more than `HEAD_TOKENS`.

        It costs what the key of so short a chunk does.
        """
        if len(tokens) <= HEAD_TOKENS:
            return b""
        digest = self._begun.copy()
        digest.update(b"head" + np.ascontiguousarray(tokens[:HEAD_TOKENS], "<u4").tobytes())
        return digest.digest()[:8]
