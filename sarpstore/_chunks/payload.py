"""Payloads: keys and values of a chunk as the bytes that are stored, and back into a prompt's KV. No I/O.

Packing and unpacking touch every byte: they are for threads. The kernel releases the GIL where they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._chunks.elements import encoding_of
from sarpstore._chunks.encoding import Chunk, strip_checksums
from sarpstore._errors import InputError
from sarpstore._files import rounded
from sarpstore._kernel import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore._chunks.layout import KVLayout

__all__ = ["Packed", "check_kv", "is_whole", "pack", "payload_bytes", "unpack_whole"]

_STRIP: Final = 20
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """A payload to be written: `data` is whole pages, of which the first `bytes` count."""

    data: memoryview
    bytes: int
    crc: int
    strip: int


def payload_bytes(layout: KVLayout, tokens: int) -> int:
    """Bytes of a chunk's payload, its checksums included."""
    sums_at = _sums_at(layout, tokens)
    return sums_at + _CRC_BYTES * -(-sums_at // (1 << _STRIP))


def check_kv(layout: KVLayout, keys: npt.NDArray[Any], values: npt.NDArray[Any], tokens: int) -> None:
    """InputError unless both are (layers, kv_heads, tokens, head_dim) of the layout's dtype."""
    shape = (layout.layers, layout.kv_heads, tokens, layout.head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != layout.numpy_dtype:
            found = f"{array.shape} of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(f"{name}: {found}, not {shape} of {layout.numpy_dtype} as the layout and the span say")


def pack(layout: KVLayout, keys: npt.NDArray[Any], values: npt.NDArray[Any], key: bytes) -> Packed:
    """The payload of keys and values, each (layers, kv_heads, tokens, head_dim), the keys unrotated.

    Raises:
        InputError: the layout's payloads have codes, and an element is infinite or no number.
    """
    tokens = keys.shape[2]
    size, sums_at = payload_bytes(layout, tokens), _sums_at(layout, tokens)
    data = np.empty(rounded(size), np.uint8)
    data[sums_at - fmt.UNIT if sums_at > fmt.UNIT else 0 :] = 0
    encoding = encoding_of(layout)
    for layers, kept, part in _parts(layout, tokens, data):
        last = slice(tokens - kept, tokens)
        encoding.store(part, keys[layers, :, last], values[layers, :, last])
    sums = strip_checksums(key, memoryview(data.data)[:sums_at], _STRIP).tobytes()
    data[sums_at:size] = np.frombuffer(sums, np.uint8)
    return Packed(data.data, size, crc32c(sums), _STRIP)


def is_whole(layout: KVLayout, chunk: Chunk, data: memoryview) -> bool:
    """Whether what was read is the payload that was put under this key."""
    sums_at = _sums_at(layout, chunk.tokens)
    if chunk.bytes != payload_bytes(layout, chunk.tokens) or chunk.strip != _STRIP or len(data) < chunk.bytes:
        return False
    sums = data[sums_at : chunk.bytes]
    return crc32c(sums) == chunk.crc and strip_checksums(chunk.key, data[:sums_at], _STRIP).tobytes() == sums


def unpack(layout: KVLayout, chunk: Chunk, data: memoryview, target: npt.NDArray[Any], begin: int) -> None:
    """Write a whole payload to a prompt's KV (layers, 2, kv_heads, tokens, head_dim), rotated, from token `begin` on.

    Of layers with a sliding window that is shorter than the chunk, the last tokens alone are written.
    """
    end = begin + chunk.tokens
    source = np.frombuffer(data, np.uint8)
    encoding = encoding_of(layout)
    for layers, kept, part in _parts(layout, chunk.tokens, source):
        encoding.load(part, target[layers, :, :, end - kept : end], end - kept)


def unpack_whole(layout: KVLayout, chunk: Chunk, data: memoryview, target: npt.NDArray[Any], begin: int) -> bool:
    """`unpack`, of what `is_whole`; whether it is."""
    if not is_whole(layout, chunk, data):
        return False
    unpack(layout, chunk, data, target, begin)
    return True


def _sums_at(layout: KVLayout, tokens: int) -> int:
    size = encoding_of(layout).bytes
    total = sum(size(layers.stop - layers.start, kept) for layers, kept in _runs(layout, tokens))
    return -(-total // _CRC_BYTES) * _CRC_BYTES


def _runs(layout: KVLayout, tokens: int) -> Iterator[tuple[slice, int]]:
    """Layers side by side that keep as many tokens."""
    first = 0
    for layer in range(1, layout.layers + 1):
        if layer == layout.layers or layout.kept_tokens(layer, tokens) != layout.kept_tokens(first, tokens):
            yield slice(first, layer), layout.kept_tokens(first, tokens)
            first = layer


def _parts(
    layout: KVLayout, tokens: int, data: npt.NDArray[np.uint8]
) -> Iterator[tuple[slice, int, npt.NDArray[np.uint8]]]:
    """(layers, kept tokens, their part of a payload)."""
    at, size = 0, encoding_of(layout).bytes
    for layers, kept in _runs(layout, tokens):
        end = at + size(layers.stop - layers.start, kept)
        yield layers, kept, data[at:end]
        at = end
