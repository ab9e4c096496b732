"""What the rotary kernel does, in numpy and float64: only the rounding to the dtype is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sarpstore._kernel import ffi, lib

DTYPES = {
    lib.SARP_ROPE_FLOAT32: np.dtype("<f4"),
    lib.SARP_ROPE_FLOAT16: np.dtype("<f2"),
    lib.SARP_ROPE_BFLOAT16: np.dtype("<u2"),
}
STYLES = [lib.SARP_ROPE_NEOX, lib.SARP_ROPE_INTERLEAVED]
EPSILON = {lib.SARP_ROPE_FLOAT32: 2.0**-24, lib.SARP_ROPE_FLOAT16: 2.0**-11, lib.SARP_ROPE_BFLOAT16: 2.0**-8}
"""Half an ulp, relative: what rounding to the dtype may add."""
TINY = {lib.SARP_ROPE_FLOAT32: 2.0**-149, lib.SARP_ROPE_FLOAT16: 2.0**-24, lib.SARP_ROPE_BFLOAT16: 2.0**-133}
"""The least denormal."""


def values_of(dtype: int, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Stored elements as float64."""
    if dtype == lib.SARP_ROPE_BFLOAT16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is told
        return stored.astype(np.float64)


def bfloats_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to the bit patterns of bfloat16, to nearest, ties to even, in exact integers."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept, rest = bits >> 16, bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (kept & 1 == 1))
    return np.where(np.isnan(values), kept | 0x40, kept + up).astype(np.uint16)


def stored_of(dtype: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 elements as they are stored."""
    return bfloats_of(values) if dtype == lib.SARP_ROPE_BFLOAT16 else values.astype(DTYPES[dtype])


def rotated(
    style: int, keys: np.ndarray[Any, Any], cos: np.ndarray[Any, Any], sin: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """float64 keys (..., tokens, head_dim), the first 2 * cos.shape[1] elements of each row rotated."""
    half = cos.shape[1]
    out = keys.copy()
    neox = style == lib.SARP_ROPE_NEOX
    first = slice(0, half) if neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
    x, y = keys[..., first], keys[..., second]
    out[..., first] = x * cos - y * sin
    out[..., second] = y * cos + x * sin
    return out


def bound(
    dtype: int, style: int, keys: np.ndarray[Any, Any], cos: np.ndarray[Any, Any], sin: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """How far the kernel may be from `rotated`: two products and a sum rounded in fp32, then the dtype."""
    terms = rotated(style, np.abs(keys), np.abs(cos), -np.abs(sin))
    terms = np.maximum(terms, rotated(style, np.abs(keys), np.abs(cos), np.abs(sin)))
    exact = np.abs(rotated(style, keys, cos, sin))
    return 2 * 2.0**-24 * terms * (1 + EPSILON[dtype]) + EPSILON[dtype] * exact + TINY[dtype]


def rows(array: np.ndarray[Any, Any]) -> Any:
    """`sarp_rows` of a view (layers, heads, tokens, head_dim)."""
    made = ffi.new("sarp_rows *")
    made.memory = ffi.cast("uint8_t *", array.ctypes.data)
    made.layer, made.head, made.token = array.strides[:3]
    made.bytes = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return made


def call(
    features: int,
    dtype: int,
    style: int,
    source: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    cos: np.ndarray[Any, Any] | None = None,
    sin: np.ndarray[Any, Any] | None = None,
) -> int:
    """The kernel's status for views (layers, heads, tokens, head_dim)."""
    tables = [ffi.NULL if t is None else ffi.cast("float *", ffi.from_buffer(t)) for t in (cos, sin)]
    rotary_dim = 0 if cos is None else 2 * cos.shape[1]
    return int(lib.sarp_rope(features, dtype, style, rows(source), rows(target), *tables, *source.shape, rotary_dim))
