"""Pure-Python twin of the kernel's hashing and checksums: slow, short, and what the C is tested against.

It shares nothing with the kernel: SHA-256 is the standard library's, MurmurHash3 the `mmh3` package's, and
CRC32C is computed a byte at a time from the polynomial.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import mmh3

if TYPE_CHECKING:
    from collections.abc import Sequence

SHA256 = 0
MMH3 = 1
ID_BYTES = 16

CASTAGNOLI_REFLECTED = 0x82F63B78

_U64 = (1 << 64) - 1


def _crc_of_byte(byte: int) -> int:
    crc = byte
    for _ in range(8):
        crc = crc >> 1 ^ (CASTAGNOLI_REFLECTED if crc & 1 else 0)
    return crc


_CRC_OF_BYTE = tuple(_crc_of_byte(byte) for byte in range(256))


def crc32c(crc: int, data: bytes) -> int:
    """The CRC32C of `data`, continued from the checksum `crc` (0: from the beginning). RFC 3720, appendix B.4."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_OF_BYTE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def state_bytes(hash_: int) -> int:
    """Bytes of a full digest: 32 for SHA256, 16 for MMH3. Raises ValueError for an unknown hash."""
    return len(digest(hash_, b""))


def digest(hash_: int, message: bytes) -> bytes:
    """The full digest of `message`. Raises ValueError for an unknown hash."""
    if hash_ == SHA256:
        return hashlib.sha256(message).digest()
    if hash_ == MMH3:
        return bytes(mmh3.hash_bytes(message, 0, True))
    raise ValueError(f"unknown hash {hash_}")


def hash_chain(hash_: int, previous: bytes, tokens: Sequence[int], block_tokens: int) -> tuple[bytes, bytes]:
    """The ids of the whole blocks of `tokens`, 16 bytes each, and the last block's full digest.

    `previous` is the full digest before the first block, or empty where nothing stands before it; it is the last
    digest where there is no block. A partial block at the end is left out. Raises ValueError for an unknown hash, a
    `previous` of another length, or a `block_tokens` below 1.
    """
    if len(previous) not in (0, state_bytes(hash_)):
        raise ValueError(f"the previous digest has {len(previous)} bytes, not {state_bytes(hash_)}")
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}, below 1")
    ids = bytearray()
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = struct.pack(f"<{block_tokens}I", *tokens[end - block_tokens : end])
        previous = digest(hash_, previous + block)
        ids += previous[:ID_BYTES]
    return bytes(ids), previous


def fmix64(value: int) -> int:
    """murmur3's 64-bit finalizer."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _U64
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _U64
    return value ^ value >> 33


def directory_key(block_id: bytes, holder: int, namespace: int, secret: bytes) -> int:
    """The 48-bit directory key of a 16-byte block id (directory.md, section 1); `secret` has 16 bytes."""
    a = int.from_bytes(block_id[:8], "little") ^ int.from_bytes(secret[:8], "little") ^ namespace
    b = int.from_bytes(block_id[8:], "little") ^ int.from_bytes(secret[8:], "little")
    b ^= holder * 0x9E3779B97F4A7C15 & _U64
    product = a * b
    return fmix64((product & _U64) ^ product >> 64) >> 16
