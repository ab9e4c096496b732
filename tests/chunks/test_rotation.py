"""Rotation from array to array: against float64, slices of a longer target, layers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sarpstore._chunks import rotation
from sarpstore._chunks.layout import KVLayout, LinearScaling, Llama3Scaling, Rope, YarnScaling
from sarpstore._chunks.rotation import apply, rotate, rotate_keys
from sarpstore._errors import InputError

LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192)
YARN = YarnScaling(factor=32, original_max_position_embeddings=4096, truncate=False)
ROPES = [
    Rope(),
    Rope(style="interleaved"),
    Rope(rotary_dim=20),
    Rope(style="interleaved", rotary_dim=32),
    Rope(scaling=LinearScaling(factor=4)),
    Rope(theta=500_000, scaling=LLAMA3),
    Rope(theta=150_000, scaling=YARN),
]


def layout_of(dtype: Any = "float32", rope: Rope | None = ROPES[0]) -> KVLayout:
    return KVLayout(layers=3, kv_heads=2, head_dim=40, dtype=dtype, rope=rope)


def random_kv(layout: KVLayout, tokens: int, seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(layout.shape(tokens), np.float32)
    if layout.dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(layout.numpy_dtype)


def wide(layout: KVLayout, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if layout.dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def exact(rope: Rope, keys: np.ndarray[Any, Any], begin: int) -> np.ndarray[Any, Any]:
    """float64 keys as complex numbers, each multiplied by m * exp(i * angle)."""
    frequencies = rope.inverse_frequencies(keys.shape[-1])
    half = len(frequencies)
    angles = np.arange(begin, begin + keys.shape[-2])[:, None] * frequencies
    neox = rope.style == "neox"
    first = slice(0, half) if neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
    turned = (keys[..., first] + 1j * keys[..., second]) * rope.magnitude * np.exp(1j * angles)
    out = keys.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize(("dtype", "half_ulp"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("begin", [0, 7_950])
def test_keys_are_rotated_as_in_float64(rope: Rope, dtype: Any, half_ulp: float, begin: int) -> None:
    """fp32 within 1e-6 of the greatest key; narrower dtypes add half an ulp."""
    layout = layout_of(dtype, rope)
    keys = random_kv(layout, 50)[:, 0]
    expected = exact(rope, wide(layout, keys), begin)
    error = np.abs(wide(layout, apply(layout, keys, begin)) - expected)
    assert (error <= 1e-6 * np.abs(expected).max() + half_ulp * np.abs(expected)).all()


@pytest.mark.parametrize("rope", [*ROPES, None])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_chunk_goes_into_a_slice_of_the_prompts_kv(rope: Rope | None, dtype: Any) -> None:
    layout = layout_of(dtype, rope)
    source, target = random_kv(layout, 30), random_kv(layout, 100, seed=1)
    before = target.copy()
    rotate(layout, source, target[:, :, :, 60:90], 60)
    np.testing.assert_array_equal(target[:, :, :, :60], before[:, :, :, :60])
    np.testing.assert_array_equal(target[:, :, :, 90:], before[:, :, :, 90:])
    np.testing.assert_array_equal(target[:, 1, :, 60:90], source[:, 1])
    np.testing.assert_array_equal(target[:, 0, :, 60:90], apply(layout, source[:, 0], 60))
    if rope is None:
        np.testing.assert_array_equal(target[:, 0, :, 60:90], source[:, 0])


def test_rotation_in_place_is_rotation() -> None:
    layout = layout_of()
    source = random_kv(layout, 30)
    expected = np.empty_like(source)
    rotate(layout, source, expected, 11)
    rotate(layout, source, source, 11)
    np.testing.assert_array_equal(source, expected)


def test_layers_may_have_other_numbers_of_tokens() -> None:
    """As where sliding windows keep the last tokens of a chunk: they are rotated for their own positions."""
    layout = layout_of()
    source = random_kv(layout, 30)
    whole, part = np.empty_like(source), np.zeros_like(source)
    rotate(layout, source, whole, 500)
    rotate(layout, source[1:2, :, :, 20:], part[1:2, :, :, 20:], 520)
    np.testing.assert_array_equal(part[1, :, :, 20:], whole[1, :, :, 20:])
    assert not part[[0, 2]].any()
    assert not part[1, :, :, :20].any()


def test_long_chunks_are_rotated_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of()
    keys = random_kv(layout, 100)[:, 0]
    whole = apply(layout, keys, 77)
    monkeypatch.setattr(rotation, "_TABLE_TOKENS", 9)
    np.testing.assert_array_equal(apply(layout, keys, 77), whole)


def test_no_tokens_are_no_work() -> None:
    layout = layout_of()
    empty = np.empty(layout.shape(0), np.float32)
    rotate(layout, empty, np.empty_like(empty), 5)
    assert apply(layout, empty[:, 0], 5).shape == (3, 2, 0, 40)


def test_a_rotated_sum_of_positions_is_a_rotation_of_a_rotation() -> None:
    layout = layout_of()
    keys = random_kv(layout, 1)[:, 0]
    twice, once = apply(layout, apply(layout, keys, 300), 41), apply(layout, keys, 341)
    np.testing.assert_allclose(twice, once, atol=2e-6)


LAYOUT = layout_of()
GOOD = random_kv(LAYOUT, 4)


@pytest.mark.parametrize(
    ("source", "target", "begin", "message"),
    [
        (GOOD.astype(np.float64), GOOD.copy(), 0, "dtype float64"),
        (GOOD, GOOD.astype(np.float16), 0, "target has dtype float16"),
        (GOOD[:, 0], GOOD[:, 0].copy(), 0, "not 5 axes"),
        (GOOD[:, :, :1], GOOD.copy(), 0, "kv_heads"),
        (GOOD[..., :20], GOOD.copy(), 0, "head_dim"),
        (np.repeat(GOOD, 2, axis=0), np.repeat(GOOD, 2, axis=0), 0, "layers"),
        (GOOD[:, :1], GOOD[:, :1].copy(), 0, "keys and values"),
        (GOOD, np.empty(LAYOUT.shape(5), np.float32), 0, "target \\(3, 2, 2, 5, 40\\)"),
        (GOOD[:, :, :, ::-1], GOOD.copy(), 0, "reversed"),
        (np.asfortranarray(GOOD), GOOD.copy(), 0, "strides"),
        (GOOD, np.broadcast_to(GOOD, GOOD.shape), 0, "read-only"),
        (GOOD, GOOD.copy(), -1, "positions"),
        (GOOD, GOOD.copy(), 2**32 - 3, "positions"),
        (GOOD, np.lib.stride_tricks.as_strided(np.zeros(4000, np.float32), GOOD.shape, (4,) * 5), 0, "rows overlap"),
    ],
)
def test_what_does_not_fit_is_refused(source: Any, target: Any, begin: int, message: str) -> None:
    before = target.copy()
    with pytest.raises(InputError, match=message):
        rotate(LAYOUT, source, target, begin)
    np.testing.assert_array_equal(target, before)


def test_arrays_that_share_memory_are_refused() -> None:
    kv = random_kv(LAYOUT, 20)
    before = kv.copy()
    for source, target in ((slice(0, 10), slice(5, 15)), (slice(0, 10), slice(10, 20)), (slice(5, 15), slice(0, 10))):
        with pytest.raises(InputError, match="share memory"):
            rotate(LAYOUT, kv[:, :, :, source], kv[:, :, :, target], 0)
    with pytest.raises(InputError, match="share memory"):
        rotate_keys(LAYOUT, kv[:, 0], kv[:, 1], 0)
    np.testing.assert_array_equal(kv, before)
