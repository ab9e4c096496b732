"""Which missed chunks begin as another one does that is, or was, held: their text is known, and cut elsewhere.

A document without its delimiter runs into the next one; one that was cut short, or got a delimiter in its middle,
ends early. Either way its key is new, and its KV would have been found but for that. What is told:

    head: hash of the first 32 tokens ─► the chunk that begins so, and checksums of its first 32, 64, 128, … tokens

A chunk that misses is cut elsewhere if its head is another's, and both are alike as far as the longest beginning that
both have: half of the shorter one at least. So a text that many documents begin with does not make them one another.
Pieces from the middle of a chunk are not recognized, nor chunks of 32 tokens and fewer.

Heads are hashed behind what keys are hashed behind: no tenant, adapter or model learns of another's chunks. They are
in memory alone, of the chunks that were looked up since the open, a bounded number: some hundred bytes each.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from sarpstore._chunks.keys import HEAD_TOKENS
from sarpstore._kernel import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["Boundaries"]

_REMEMBERED: Final = 16_384
_TOKEN_BYTES: Final = 4
_CRC_BYTES: Final = 4


class Boundaries:
    """The beginnings of one store's chunks. `was_held`: whether the chunk of a key is held, or was."""

    def __init__(self, was_held: Callable[[bytes], bool], remembered: int = _REMEMBERED) -> None:
        self._was_held = was_held
        self._remembered = remembered
        self._known: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def hit(self, head: bytes, key: bytes, tokens: npt.NDArray[np.uint32]) -> None:
        """A chunk was looked up and is held. `head`: of `KeyMaker.head`; empty of a chunk too short for one."""
        if not head:
            return
        known = self._known.get(head)
        if known is None or known[0] != key:
            self._note(head, key, tokens)
        else:
            self._known.move_to_end(head)

    def is_cut_elsewhere(self, head: bytes, key: bytes, tokens: npt.NDArray[np.uint32]) -> bool:
        """Whether a chunk that was looked up, and never held as far as is known, begins as another that is or was."""
        if not head:
            return False
        known = self._known.get(head)
        if known is None or known[0] == key or not self._was_held(known[0]):
            self._note(head, key, tokens)  # it may be put
            return False
        return _alike(known[1], _checksums(tokens))

    def _note(self, head: bytes, key: bytes, tokens: npt.NDArray[np.uint32]) -> None:
        self._known[head] = key, _checksums(tokens)
        self._known.move_to_end(head)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)


def _alike(one: bytes, other: bytes) -> bool:
    """Whether the longest beginnings that both have are the same."""
    at = min(len(one), len(other))
    return one[at - _CRC_BYTES : at] == other[at - _CRC_BYTES : at]


def _checksums(tokens: npt.NDArray[np.uint32]) -> bytes:
    """Of the first 32, 64, 128, … tokens of a chunk, its last, the delimiter, left out."""
    data = np.ascontiguousarray(tokens, "<u4").view(np.uint8).data
    sums, crc, begin, count = bytearray(), 0, 0, HEAD_TOKENS
    while count < len(tokens):
        crc = crc32c(data[begin * _TOKEN_BYTES : count * _TOKEN_BYTES], crc)
        sums += crc.to_bytes(_CRC_BYTES, "little")
        begin, count = count, 2 * count
    return bytes(sums)
