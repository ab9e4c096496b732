"""How elements of keys and values are stored: as they are, or as codes of a byte (format-spec/chunks.md, 1). No I/O.

Keys are encoded before they are rotated: the channels of unrotated keys are alike from token to token, and rotation
would mix those of a pair (KIVI: Liu et al., "A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024, takes keys
by channel, too).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from sarpstore._chunks.rotation import DTYPES, rotate, rotate_keys, rows_of
from sarpstore._errors import InputError
from sarpstore._kernel import FEATURES, ffi, lib

if TYPE_CHECKING:
    from sarpstore._chunks.layout import KVLayout

__all__ = ["Encoding", "encoding_of"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_KINDS: Final = {"int8": lib.SARP_CODES_INT8, "fp8": lib.SARP_CODES_FP8}
_SCALE_BYTES: Final = 4


class Encoding(Protocol):
    """The bytes of some layers, all of which keep as many tokens."""

    def bytes(self, layers: int, kept: int) -> int:
        """How many there are."""

    def store(self, data: Bytes, keys: Array, values: Array) -> None:
        """Fill them with keys, unrotated, and values, each (layers, kv_heads, kept, head_dim)."""

    def load(self, data: Bytes, target: Array, begin: int) -> None:
        """Write to (layers, 2, kv_heads, kept, head_dim), the keys rotated for the positions from `begin` on."""


def encoding_of(layout: KVLayout) -> Encoding:
    """How payloads of this layout are stored."""
    return _Exact(layout) if layout.payload == "exact" else _Codes(layout)


class _Exact:
    """The array (layers, 2, kv_heads, kept, head_dim)."""

    def __init__(self, layout: KVLayout) -> None:
        self._layout = layout

    def bytes(self, layers: int, kept: int) -> int:
        layout = self._layout
        return layers * 2 * layout.kv_heads * kept * layout.head_dim * layout.numpy_dtype.itemsize

    def store(self, data: Bytes, keys: Array, values: Array) -> None:
        both = self._array(data, keys.shape[2])
        both[:, 0], both[:, 1] = keys, values

    def load(self, data: Bytes, target: Array, begin: int) -> None:
        rotate(self._layout, self._array(data, target.shape[3]), target, begin)

    def _array(self, data: Bytes, kept: int) -> Array:
        layout = self._layout
        return data.view(layout.numpy_dtype).reshape(-1, 2, layout.kv_heads, kept, layout.head_dim)


class _Codes:
    """Keys, then values: scales (layers, kv_heads, head_dim), codes (layers, kv_heads, kept, head_dim), zeros to 4."""

    def __init__(self, layout: KVLayout) -> None:
        self._layout = layout
        self._kind = _KINDS[layout.payload]
        self._dtype = DTYPES[layout.dtype]

    def bytes(self, layers: int, kept: int) -> int:
        channels = layers * self._layout.kv_heads * self._layout.head_dim
        return 2 * (channels * _SCALE_BYTES + _padded(channels * kept))

    def store(self, data: Bytes, keys: Array, values: Array) -> None:
        for part, source in zip(np.split(data, 2), (keys, values), strict=True):
            scales, codes = self._views(part, source.shape)
            if source.strides[-1] != source.itemsize or min(source.strides) < 0:
                source = np.ascontiguousarray(source)
            shape = (rows_of(source), *source.shape)
            status = lib.sarp_quantize(FEATURES, self._dtype, self._kind, *shape, *_places(scales, codes))
            if status == lib.SARP_INFINITE:
                payload = self._layout.payload
                raise InputError(f"keys or values have infinities or NaNs, which payload={payload!r} can't hold")
            assert status == lib.SARP_OK
            codes[source.size :] = 0

    def load(self, data: Bytes, target: Array, begin: int) -> None:
        for kind, part in enumerate(np.split(data, 2)):
            place = target[:, kind]
            codes = _places(*self._views(part, place.shape))
            shape = (rows_of(place), *place.shape)
            status = lib.sarp_dequantize(FEATURES, self._dtype, self._kind, *codes, *shape)
            assert status == lib.SARP_OK
        rotate_keys(self._layout, target[:, 0], target[:, 0], begin)

    @staticmethod
    def _views(part: Bytes, shape: tuple[int, ...]) -> tuple[Array, Bytes]:
        """Scales, and codes with what fills them up."""
        end = _SCALE_BYTES * math.prod((shape[0], shape[1], shape[3]))
        return part[:end].view("<f4"), part[end:]


def _padded(size: int) -> int:
    return -(-size // _SCALE_BYTES) * _SCALE_BYTES


def _places(scales: Array, codes: Bytes) -> tuple[Any, Any]:
    return ffi.from_buffer("float[]", scales), ffi.from_buffer("uint8_t[]", codes)
