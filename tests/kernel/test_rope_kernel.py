"""The rotary kernel: scalar and SIMD bit for bit, both against float64, rounding, strides, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rope_twin as twin
from hypothesis import given
from hypothesis import strategies as st

from sarpstore._kernel import FEATURES, ffi, lib

PATHS = sorted({0, FEATURES & (lib.SARP_CPU_AVX2 | lib.SARP_CPU_F16C), FEATURES})
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 70), st.integers(2, 140))
ALL = [(dtype, style) for dtype in twin.DTYPES for style in twin.STYLES]


def placed(values: np.ndarray[Any, Any], gap: int, offset: int) -> np.ndarray[Any, Any]:
    """The values (layers, heads, tokens, head_dim) in new memory, `gap` bytes after each row, begun at `offset`."""
    layers, heads, tokens, head_dim = values.shape
    token = head_dim * values.itemsize + gap
    head, layer = tokens * token + 2 * gap, heads * (tokens * token + 2 * gap) + gap
    memory = np.full(offset + layers * layer + 64, 0xEE, np.uint8)
    view = np.ndarray(values.shape, values.dtype, memory, offset, (layer, head, token, values.itemsize))
    view[...] = values
    return view


def tables(rng: np.random.Generator, tokens: int, half: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    angles = rng.uniform(-10, 10, (tokens, half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_same(dtype: int, left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> None:
    """Bit for bit; of NaNs only that they are."""
    nan = np.isnan(twin.values_of(dtype, left))
    np.testing.assert_array_equal(nan, np.isnan(twin.values_of(dtype, right)))
    np.testing.assert_array_equal(np.where(nan, 0, bits(left)), np.where(nan, 0, bits(right)))


@pytest.mark.parametrize(("dtype", "style"), ALL)
@given(shape=SHAPES, seed=st.integers(0, 2**32), data=st.data())
def test_scalar_and_simd_give_the_same_bits(
    dtype: int, style: int, shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    """Any bit pattern, so NaNs, infinities and denormals too; any alignment and gaps; in place too."""
    rng = np.random.default_rng(seed)
    half = data.draw(st.integers(1, shape[3] // 2))
    raw = rng.integers(0, 256, (*shape, twin.DTYPES[dtype].itemsize), np.uint8).view(twin.DTYPES[dtype])[..., 0]
    cos, sin = tables(rng, shape[2], half)
    gap, offset = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 33))
    outcomes = []
    for features in PATHS:
        source, target = placed(raw, gap, offset), placed(np.zeros_like(raw), data.draw(st.integers(0, 9)), offset)
        assert twin.call(features, dtype, style, source, target, cos, sin) == lib.SARP_OK
        np.testing.assert_array_equal(bits(source), bits(raw))
        assert twin.call(features, dtype, style, source, source, cos, sin) == lib.SARP_OK
        outcomes += [np.array(target), np.array(source)]
    for outcome in outcomes[1:]:
        assert_same(dtype, outcomes[0], outcome)
        np.testing.assert_array_equal(bits(outcome[..., 2 * half :]), bits(raw[..., 2 * half :]))


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize(("dtype", "style"), ALL)
@given(shape=SHAPES, seed=st.integers(0, 2**32), scale=st.sampled_from([1e-42, 1e-6, 1.0, 100.0, 3e4]))
def test_results_are_within_the_bound_of_float64(
    features: int, dtype: int, style: int, shape: tuple[int, ...], seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    keys = twin.stored_of(dtype, (rng.uniform(-1, 1, shape) * scale).astype(np.float32))
    cos, sin = tables(rng, shape[2], int(rng.integers(1, shape[3] // 2 + 1)))
    out = np.zeros_like(keys)
    assert twin.call(features, dtype, style, keys, out, cos, sin) == lib.SARP_OK
    values, wide = twin.values_of(dtype, keys), (cos.astype(np.float64), sin.astype(np.float64))
    error = np.abs(twin.values_of(dtype, out) - twin.rotated(style, values, *wide))
    assert (error <= twin.bound(dtype, style, values, *wide)).all()


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize(("dtype", "style"), ALL)
def test_results_are_the_rounded_fp32_ones(features: int, dtype: int, style: int) -> None:
    """fp32 by numpy, whose operations are IEEE's, then rounded: the very bits, so at most half an ulp is added."""
    rng = np.random.default_rng(5)
    keys = twin.stored_of(dtype, rng.standard_normal((2, 3, 50, 128)).astype(np.float32))
    cos, sin = tables(rng, 50, 64)
    out = np.zeros_like(keys)
    assert twin.call(features, dtype, style, keys, out, cos, sin) == lib.SARP_OK
    in_fp32 = twin.rotated(style, twin.values_of(dtype, keys).astype(np.float32), cos, sin)
    np.testing.assert_array_equal(bits(out), bits(twin.stored_of(dtype, in_fp32)))


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("style", twin.STYLES)
@pytest.mark.parametrize("dtype", [lib.SARP_ROPE_FLOAT16, lib.SARP_ROPE_BFLOAT16])
@pytest.mark.parametrize("place", [0, 1])
def test_rotation_by_zero_keeps_every_pattern(features: int, style: int, dtype: int, place: int) -> None:
    """All 65,536 of them, as first and as second element of a pair whose other one takes nothing from a zero's sign."""
    patterns = np.arange(65_536).astype(np.uint16)
    other = twin.stored_of(dtype, np.float32([1.0, -1.0][place : place + 1])).view(np.uint16)[0]
    keys = np.full((1, 1, 1024, 128), other, np.uint16)
    own = slice(64 * place, 64 * place + 64) if style == lib.SARP_ROPE_NEOX else slice(place, None, 2)
    keys[0, 0, :, own] = patterns.reshape(1024, 64)
    keys = keys.view(twin.DTYPES[dtype])
    out = np.zeros_like(keys)
    one, zero = np.ones((1024, 64), np.float32), np.zeros((1024, 64), np.float32)
    assert twin.call(features, dtype, style, keys, out, one, zero) == lib.SARP_OK
    assert_same(dtype, out[..., own], keys[..., own])


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("style", twin.STYLES)
@pytest.mark.parametrize("dtype", [lib.SARP_ROPE_FLOAT16, lib.SARP_ROPE_BFLOAT16])
def test_ties_go_to_even_for_every_pattern(features: int, style: int, dtype: int) -> None:
    """Every finite pattern times 1 + 2^-8 and 1 + 2^-11, which end in ties often, and times 2^k down into denormals."""
    patterns = np.arange(65_536).astype(np.uint16).reshape(1, 1, 1024, 64).view(twin.DTYPES[dtype])
    values = twin.values_of(dtype, patterns)
    patterns = np.where(np.isfinite(values), patterns, np.zeros_like(patterns))
    zero = np.zeros((1024, 32), np.float32)
    for factor in [1 + 2.0**-8, 1 + 2.0**-11, 1.5, 0.5, 2.0**-9, 2.0**-12, 3 * 2.0**-14, 2.0**9]:
        cos = np.full((1024, 32), factor, np.float32)
        out = np.zeros_like(patterns)
        assert twin.call(features, dtype, style, patterns, out, cos, zero) == lib.SARP_OK
        with np.errstate(over="ignore"):
            wide = twin.values_of(dtype, patterns).astype(np.float32)
            expected = twin.stored_of(dtype, twin.rotated(style, wide, cos, zero))
        np.testing.assert_array_equal(bits(out), bits(expected))


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("dtype", twin.DTYPES)
def test_no_style_copies_rows(features: int, dtype: int) -> None:
    rng = np.random.default_rng(6)
    raw = rng.integers(0, 256, (2, 3, 17, 24 * twin.DTYPES[dtype].itemsize), np.uint8).view(twin.DTYPES[dtype])
    for gap in (0, 3):
        source, target = placed(raw, gap, 1), placed(np.zeros_like(raw), 0, 5)
        assert twin.call(features, dtype, lib.SARP_ROPE_NONE, source, target) == lib.SARP_OK
        assert twin.call(features, dtype, lib.SARP_ROPE_NONE, source, source) == lib.SARP_OK
        np.testing.assert_array_equal(bits(target), bits(raw))
        np.testing.assert_array_equal(bits(source), bits(raw))


@pytest.mark.parametrize(("dtype", "style"), ALL)
@pytest.mark.parametrize("offset", [0, 8, 16])
def test_large_targets_are_written_whole(dtype: int, style: int, offset: int) -> None:
    """Past the caches or not, aligned or not: the same bits as the scalar path's, and nothing beside the rows."""
    rng = np.random.default_rng(7)
    shape = (2, 2, (5 << 20) // (4 * 72 * twin.DTYPES[dtype].itemsize), 72)
    raw = twin.stored_of(dtype, rng.standard_normal(shape, np.float32))
    cos, sin = tables(rng, shape[2], 32)
    made = []
    for features in (0, FEATURES):
        target = placed(np.zeros_like(raw), 16, 16 - placed(raw[:1, :1, :1], 0, 0).ctypes.data % 16 + offset)
        assert twin.call(features, dtype, style, raw, target, cos, sin) == lib.SARP_OK
        made.append(target)
    np.testing.assert_array_equal(bits(made[0].base), bits(made[1].base))


def test_gaps_are_left_alone() -> None:
    rng = np.random.default_rng(8)
    keys = rng.standard_normal((2, 2, 5, 20), np.float32)
    cos, sin = tables(rng, 5, 8)
    for features in PATHS:
        target = placed(np.zeros_like(keys), 7, 3)
        written = np.zeros(len(target.base), bool)
        marks = np.ndarray((*target.shape[:3], 80), bool, written, 3, (*target.strides[:3], 1))
        marks[...] = True
        assert twin.call(features, lib.SARP_ROPE_FLOAT32, lib.SARP_ROPE_NEOX, keys, target, cos, sin) == lib.SARP_OK
        assert (target.base[~written] == 0xEE).all()


def refused(**changes: object) -> bool:
    """Whether the kernel refuses a good call with this changed; then it must not have written."""
    keys = np.ones((2, 3, 5, 16), np.float32)
    target = np.full_like(keys, 9)
    cos = np.ones((5, 8), np.float32)
    source_rows, target_rows = twin.rows(keys), twin.rows(target)
    good: dict[str, object] = {
        "dtype": lib.SARP_ROPE_FLOAT32,
        "style": lib.SARP_ROPE_NEOX,
        "source": source_rows,
        "target": target_rows,
        "cos": ffi.cast("float *", ffi.from_buffer(cos)),
        "sin": ffi.cast("float *", ffi.from_buffer(cos)),
        "layers": 2,
        "heads": 3,
        "tokens": 5,
        "head_dim": 16,
        "rotary_dim": 16,
    }
    for name, value in changes.items():
        if name in good:
            good[name] = value
            continue
        owner, field = name.split("__")
        setattr({"source": source_rows, "target": target_rows}[owner], field, value)
    status = lib.sarp_rope(FEATURES, *good.values())
    if status == lib.SARP_INVALID:
        assert (target == 9).all()
    return bool(status == lib.SARP_INVALID)


@pytest.mark.parametrize(
    "bad",
    [
        {"dtype": 3},
        {"dtype": -1},
        {"style": 3},
        {"style": -1},
        {"style": 0},
        {"style": 0, "rotary_dim": 2},
        {"source": ffi.NULL},
        {"target": ffi.NULL},
        {"cos": ffi.NULL},
        {"sin": ffi.NULL},
        {"rotary_dim": 0},
        {"rotary_dim": 7},
        {"rotary_dim": 18},
        {"rotary_dim": 2**63},
        {"head_dim": 0},
        {"head_dim": 2**63},
        {"layers": 3},
        {"layers": 2**63},
        {"heads": 2**62},
        {"tokens": 6},
        {"tokens": 2**61},
        {"source__bytes": 1919},
        {"target__bytes": 1919},
        {"source__token": 2**63},
        {"target__layer": 2**64 - 1},
        {"target__token": 63},
        {"target__head": 0},
        {"source__memory": ffi.NULL},
        {"target__memory": ffi.NULL},
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(bad: dict[str, object]) -> None:
    assert not refused()
    assert refused(**bad)


def test_no_rows_are_no_work() -> None:
    for name in ("layers", "heads", "tokens"):
        assert not refused(**{name: 0})


@pytest.mark.parametrize("shift", [1, 64, 100, 640])
def test_rows_that_overlap_are_refused(shift: int) -> None:
    memory = np.arange(4000, dtype=np.uint8)
    before = memory.copy()
    cos = np.ones((5, 8), np.float32)
    views = [np.ndarray((1, 3, 5, 16), np.float32, memory, offset, (960, 320, 64, 4)) for offset in (0, shift)]
    for source, target in (views, views[::-1]):
        status = twin.call(FEATURES, lib.SARP_ROPE_FLOAT32, lib.SARP_ROPE_NEOX, source, target, cos, cos)
        assert status == lib.SARP_INVALID
    np.testing.assert_array_equal(memory, before)


def test_tables_add_angles() -> None:
    rng = np.random.default_rng(10)
    coarse, fine = rng.uniform(-9, 9, (3, 7)), rng.uniform(-9, 9, (4, 7))
    angles = (coarse[:, None] + fine).reshape(12, 7)
    given = [np.cos(coarse), np.sin(coarse), np.cos(fine), np.sin(fine)]
    doubles = [ffi.cast("double *", ffi.from_buffer(table)) for table in given]
    for first in range(13):
        for tokens in range(14 - first):
            cos, sin = np.full((14, 7), 9, np.float32), np.full((14, 7), 9, np.float32)
            floats = [ffi.cast("float *", ffi.from_buffer(table)) for table in (cos, sin)]
            status = lib.sarp_rope_tables(*doubles[:2], 3, *doubles[2:], 4, first, tokens, 7, *floats)
            written = tokens if first + tokens <= 12 else 0
            assert status == (lib.SARP_OK if first + tokens <= 12 else lib.SARP_INVALID)
            for table, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
                np.testing.assert_allclose(table[:written], exact[first : first + written], rtol=2.0**-24, atol=1e-14)
                assert (table[written:] == 9).all()


def test_tables_without_memory_are_refused() -> None:
    doubles, floats = ffi.new("double[4]"), ffi.new("float[4]")
    good = [doubles, doubles, 1, doubles, doubles, 1, 0, 1, 2, floats, floats]
    assert lib.sarp_rope_tables(*good) == lib.SARP_OK
    for missing in (0, 1, 3, 4, 9, 10):
        bad = [ffi.NULL if i == missing else value for i, value in enumerate(good)]
        assert lib.sarp_rope_tables(*bad) == lib.SARP_INVALID
    assert lib.sarp_rope_tables(*good[:2], 2**63, *good[3:5], 2, *good[6:]) == lib.SARP_INVALID
    assert lib.sarp_rope_tables(*good[:5], 0, *good[6:]) == lib.SARP_INVALID
