"""Chained block hashing (format-spec/log.md, section 4)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

import mmh3
import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import FEATURES, ffi, lib, pointer

__all__ = ["BlockHasher", "canonical_root"]

_TAG: Final = b"sarpstore namespace 1"
# Blocks of 16 tokens hashed before the event loop gets its turn: about 0.5 ms of the slowest hash.
_SLICE_FAST: Final = 4096
_SLICE_PORTABLE: Final = 512


def canonical_root(hash_name: str, name: str, adapter: str, salt: bytes) -> bytes:
    """The digest that a namespace's chains begin with; empty for the empty namespace."""
    if not (name or adapter or salt):
        return b""
    parts = [name.encode(), adapter.encode(), salt]
    return digest(hash_name, _TAG + b"".join(len(part).to_bytes(4, "little") + part for part in parts))


def digest(hash_name: str, data: bytes) -> bytes:
    """The store's hash of a few bytes."""

    return hashlib.sha256(data).digest() if hash_name == "sha256" else mmh3.mmh3_x64_128_digest(data, 0)


class BlockHasher:
    """Hashes tokens (1-D uint32) into block ids; the last partial block is left out."""

    def __init__(self, hash_name: str, block_tokens: int, features: int = FEATURES) -> None:
        self._hash = fmt.HASHES.index(hash_name)
        self._block_tokens = block_tokens
        self._features = features
        fast = hash_name == "mmh3" or features & lib.SARP_CPU_SHA_NI
        self._slice = max(1, (_SLICE_FAST if fast else _SLICE_PORTABLE) * 16 // block_tokens)
        self._digest_bytes = lib.sarp_hash_state_bytes(self._hash)

    def blocks(self, tokens: npt.NDArray[np.uint32]) -> int:
        """Whole blocks in the tokens."""
        return len(tokens) // self._block_tokens

    def hash(self, root: bytes, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """The ids (blocks, 16), in one go."""
        blocks = self.blocks(tokens)
        ids = np.empty((blocks, fmt.ID_BYTES), np.uint8)
        state = ffi.new("uint8_t[32]", root)
        self._run(state, len(root), tokens, ids, 0, blocks)
        return ids

    async def hash_in_slices(self, root: bytes, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """The same, letting the event loop run between slices of about a millisecond."""
        blocks = self.blocks(tokens)
        ids = np.empty((blocks, fmt.ID_BYTES), np.uint8)
        state, state_bytes = ffi.new("uint8_t[32]", root), len(root)
        for begin in range(0, blocks, self._slice):
            if begin:
                await asyncio.sleep(0)
            self._run(state, state_bytes, tokens, ids, begin, min(blocks, begin + self._slice))
            state_bytes = self._digest_bytes
        return ids

    def fits_one_slice(self, tokens: npt.NDArray[np.uint32]) -> bool:
        return self.blocks(tokens) <= self._slice

    def _run(self, state: Any, state_bytes: int, tokens: Any, ids: Any, begin: int, end: int) -> None:
        if begin == end:
            return
        source = pointer("uint32_t *", tokens) + begin * self._block_tokens
        target = pointer("uint8_t *", ids) + begin * fmt.ID_BYTES
        status = lib.sarp_hash_chain(
            self._features, self._hash, state, state_bytes, source, end - begin, self._block_tokens, target, state
        )
        assert status == 0
