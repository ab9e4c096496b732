"""KV layouts: what they refuse, sizes and shapes, frequencies by the papers' formulas, tables, the canonical form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from sarpstore._chunks.layout import KVLayout, LinearScaling, Llama3Scaling, Rope, YarnScaling
from sarpstore._errors import InputError, OptionError

LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192)
YARN = YarnScaling(factor=32, original_max_position_embeddings=4096, truncate=False)
SMALL: dict[str, Any] = {"layers": 30, "kv_heads": 3, "head_dim": 64, "rope": Rope()}


def small(**changes: Any) -> KVLayout:
    return KVLayout(**(SMALL | changes))


def test_sizes_and_shapes() -> None:
    layout = small(dtype="bfloat16")
    assert layout.token_bytes == 2 * 30 * 3 * 64 * 2
    assert layout.numpy_dtype == np.uint16
    assert layout.shape(7) == (30, 2, 3, 7, 64)
    assert [small(dtype=dtype).numpy_dtype for dtype in ("float32", "float16")] == [np.float32, np.float16]
    assert small().token_bytes == 2 * layout.token_bytes == np.zeros(small().shape(1), np.float32).nbytes


def test_sliding_windows_keep_the_last_tokens() -> None:
    layout = small(layers=3, windows=(None, 128, 1))
    assert [layout.kept_tokens(layer, 500) for layer in range(3)] == [500, 128, 1]
    assert [layout.kept_tokens(layer, 0) for layer in range(3)] == [0, 0, 0]
    assert small().kept_tokens(29, 500) == 500
    for layer, tokens in ((3, 1), (-1, 1), (0, -1)):
        with pytest.raises(InputError, match="out of its bounds"):
            layout.kept_tokens(layer, tokens)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"layers": 0}, "layers=0"),
        ({"kv_heads": True}, "kv_heads=True"),
        ({"head_dim": 4_097}, "head_dim=4097"),
        ({"head_dim": 64.0}, "head_dim=64.0"),
        ({"head_dim": 63}, "head_dim=63"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"rope": 10_000}, "rope=10000"),
        ({"rope": Rope(rotary_dim=66)}, "rotary_dim=66"),
        ({"windows": (1,)}, r"windows=\(1,\)"),
        ({"windows": [None] * 30}, "windows="),
        ({"windows": (0,) * 30}, "windows="),
        ({"windows": (1.5,) * 30}, "windows="),
    ],
)
def test_a_layout_that_cannot_be_is_refused(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        small(**bad)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "named"),
    [
        (Rope, {}, {"theta": 1}, "theta=1.0"),
        (Rope, {}, {"theta": math.inf}, "theta=inf"),
        (Rope, {}, {"theta": "1e4"}, "theta='1e4'"),
        (Rope, {}, {"style": "gptj"}, "style='gptj'"),
        (Rope, {}, {"rotary_dim": 31}, "rotary_dim=31"),
        (Rope, {}, {"rotary_dim": 0}, "rotary_dim=0"),
        (Rope, {}, {"scaling": 2.0}, "scaling=2.0"),
        (LinearScaling, {"factor": 2}, {"factor": 0}, "factor=0"),
        (LinearScaling, {"factor": 2}, {"factor": False}, "factor=False"),
        (LinearScaling, {"factor": 2}, {"factor": math.nan}, "factor=nan"),
        (Llama3Scaling, dataclasses.asdict(LLAMA3), {"low_freq_factor": 4}, "high_freq_factor=4.0"),
        (Llama3Scaling, dataclasses.asdict(LLAMA3), {"original_max_position_embeddings": 8192.5}, "original_max"),
        (YarnScaling, dataclasses.asdict(YARN), {"beta_fast": 0.5}, "beta_fast=0.5"),
        (YarnScaling, dataclasses.asdict(YARN), {"attention_factor": 0}, "attention_factor=0"),
        (YarnScaling, dataclasses.asdict(YARN), {"mscale": -1}, "mscale=-1"),
        (YarnScaling, dataclasses.asdict(YARN), {"truncate": 0}, "truncate=0"),
    ],
)
def test_an_encoding_that_cannot_be_is_refused(kind: Any, good: Any, bad: Any, named: str) -> None:
    kind(**good)
    with pytest.raises(OptionError, match=named):
        kind(**(good | bad))


def test_frequencies_are_roformers() -> None:
    expected = [10_000.0 ** (-2 * i / 64) for i in range(32)]
    np.testing.assert_allclose(Rope().inverse_frequencies(64), expected, rtol=1e-15)
    partial = Rope(theta=25_000, rotary_dim=32).inverse_frequencies(80)
    np.testing.assert_allclose(partial, [25_000.0 ** (-2 * i / 32) for i in range(16)], rtol=1e-15)
    linear = Rope(scaling=LinearScaling(factor=4)).inverse_frequencies(64)
    np.testing.assert_allclose(linear, np.array(expected) / 4, rtol=1e-15)


def test_llama3_keeps_short_wavelengths_and_divides_long_ones() -> None:
    plain = Rope(theta=500_000).inverse_frequencies(128)
    scaled = Rope(theta=500_000, scaling=LLAMA3).inverse_frequencies(128)
    wavelengths = 2 * np.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-15)
    between = ~short & ~long
    assert between.any()
    smooth = (8192 / wavelengths[between] - 1) / (4 - 1)
    np.testing.assert_allclose(scaled[between], plain[between] * ((1 - smooth) / 8 + smooth), rtol=1e-14)


def test_yarn_ramps_over_the_dimensions() -> None:
    """gpt-oss: its ramp is from dimension 8.1 to 17.4 of 32, its magnitude 0.1 ln 32 + 1, whose square is 1.81."""
    rope = Rope(theta=150_000, scaling=YARN)
    plain, scaled = Rope(theta=150_000).inverse_frequencies(64), rope.inverse_frequencies(64)
    np.testing.assert_array_equal(scaled[:9], plain[:9])
    np.testing.assert_allclose(scaled[18:], plain[18:] / 32, rtol=1e-15)
    assert ((plain[9:18] / 32 < scaled[9:18]) & (scaled[9:18] < plain[9:18])).all()
    assert rope.magnitude == pytest.approx(0.1 * math.log(32) + 1, rel=1e-15)
    assert rope.magnitude**2 == pytest.approx(1.81, abs=0.005)


@pytest.mark.parametrize(
    ("options", "magnitude"),
    [
        ({"attention_factor": 1.25, "mscale": 2}, 1.25),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 1, "mscale_all_dim": 0.5}, (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        ({"mscale": 1}, 0.1 * math.log(40) + 1),
        ({"mscale": 1, "mscale_all_dim": 0}, 0.1 * math.log(40) + 1),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarns_magnitude(options: dict[str, Any], magnitude: float) -> None:
    scaling = YarnScaling(**({"factor": 40, "original_max_position_embeddings": 4096} | options))
    assert Rope(scaling=scaling).magnitude == pytest.approx(magnitude, rel=1e-15)
    assert Rope(scaling=LinearScaling(factor=2)).magnitude == 1.0


@pytest.mark.parametrize("scaling", [None, LinearScaling(factor=2), LLAMA3, YARN])
@pytest.mark.parametrize("begin", [0, 1, 63, 64, 8_000, 131_071, 1_000_003])
def test_tables_are_cosine_and_sine_rounded_once(scaling: Any, begin: int) -> None:
    rope = Rope(theta=150_000, scaling=scaling, rotary_dim=48)
    cos, sin = rope.tables(64, begin, 130)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (130, 24)
    assert cos.flags.c_contiguous
    assert sin.flags.c_contiguous
    angles = np.arange(begin, begin + 130, dtype=np.longdouble)[:, None] * rope.inverse_frequencies(64)
    for table, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        # Half an ulp of fp32, and what an angle in float64 is off by.
        error = np.abs(table - exact * rope.magnitude)
        assert (error <= 2.0**-24 * rope.magnitude * np.abs(exact) * 1.001 + 1e-9).all()


def test_a_position_has_the_same_values_in_every_table() -> None:
    rope = Rope(scaling=YARN)
    whole = rope.tables(64, 0, 1000)
    for begin, count in ((0, 1), (1, 1), (64, 64), (63, 130), (999, 1), (500, 0), (100, 900)):
        for table, part in zip(whole, rope.tables(64, begin, count), strict=True):
            np.testing.assert_array_equal(part, table[begin : begin + count])


@pytest.mark.parametrize(("begin", "count"), [(-1, 2), (0, -1), (2**32, 1)])
def test_positions_out_of_their_bounds_are_refused(begin: int, count: int) -> None:
    with pytest.raises(InputError, match="positions"):
        Rope().tables(64, begin, count)


DISTINCT = [
    small(),
    small(layers=31),
    small(kv_heads=33, layers=0 + 3),
    small(head_dim=128),
    small(dtype="bfloat16"),
    small(rope=None),
    small(rope=Rope(theta=500_000)),
    small(rope=Rope(style="interleaved")),
    small(rope=Rope(rotary_dim=32)),
    small(rope=Rope(scaling=LinearScaling(factor=2))),
    small(rope=Rope(scaling=LLAMA3)),
    small(rope=Rope(scaling=YARN)),
    small(rope=Rope(scaling=dataclasses.replace(YARN, truncate=True))),
    small(rope=Rope(scaling=dataclasses.replace(YARN, attention_factor=1.0))),
    small(windows=(128,) * 30),
    small(windows=(None,) * 29 + (128,)),
]


def test_the_canonical_form_tells_layouts_apart() -> None:
    forms = [layout.canonical() for layout in DISTINCT]
    assert len(set(forms)) == len(forms)


def test_what_means_the_same_has_one_canonical_form() -> None:
    assert small(rope=Rope(theta=10_000, rotary_dim=64)).canonical() == small().canonical()
    assert small(windows=(None,) * 30).canonical() == small().canonical()
    assert Rope(scaling=LinearScaling(factor=2)) == Rope(scaling=LinearScaling(factor=2.0))


def test_the_canonical_form_stays_as_it_is() -> None:
    """Chunk keys are made of it: a change makes every stored chunk unfindable, and needs another version."""
    tag = b"sarpstore kv layout 1"
    plain = (
        b'{"dtype":"float32","head_dim":64,"kv_heads":3,"layers":30,"rope":{"rotary_dim":64,'
        b'"scaling":{"factor":2.0,"name":"LinearScaling"},"style":"neox","theta":10000.0},"windows":null}'
    )
    parts = [len(part).to_bytes(4, "little") + part for part in (tag, plain)]
    assert small(rope=Rope(scaling=LinearScaling(factor=2))).canonical() == b"".join(parts)
