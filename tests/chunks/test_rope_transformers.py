"""Rotary positions against transformers' own models: their frequencies, magnitude and rotated queries and keys."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

from sarpstore._chunks.layout import KVLayout, LinearScaling, Llama3Scaling, Rope, YarnScaling
from sarpstore._chunks.rotation import apply

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HEADS = 2
POSITIONS = [0, 1, 500, 4_095, 7_990]
"""Where runs of ten tokens begin."""

LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GPT_OSS: dict[str, Any] = {
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
DEEPSEEK: dict[str, Any] = {
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}

CASES: dict[str, tuple[str, str, dict[str, Any], int, Rope]] = {
    # name: (module, prefix of its classes, rope_parameters, head_dim, ours)
    "llama": ("llama", "Llama", {"rope_type": "default", "rope_theta": 10_000.0}, 128, Rope()),
    "qwen2": ("qwen2", "Qwen2", {"rope_type": "default", "rope_theta": 1e6}, 64, Rope(theta=1e6)),
    "phi": (
        "phi",
        "Phi",
        {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.4},
        80,
        Rope(rotary_dim=32),
    ),
    "gpt-neox": (
        "gpt_neox",
        "GPTNeoX",
        {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        64,
        Rope(rotary_dim=16),
    ),
    "llama3": (
        "llama",
        "Llama",
        {"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA3},
        128,
        Rope(theta=500_000, scaling=Llama3Scaling(**LLAMA3)),
    ),
    "linear": (
        "llama",
        "Llama",
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
        64,
        Rope(scaling=LinearScaling(factor=4)),
    ),
    "yarn, gpt-oss": (
        "gpt_oss",
        "GptOss",
        {"rope_type": "yarn", "rope_theta": 150_000.0, **GPT_OSS},
        64,
        Rope(theta=150_000, scaling=YarnScaling(**GPT_OSS)),
    ),
    "yarn, truncated": (
        "qwen2",
        "Qwen2",
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768},
        128,
        Rope(theta=1e6, scaling=YarnScaling(factor=4, original_max_position_embeddings=32_768)),
    ),
    "yarn, mscale": (
        "llama",
        "Llama",
        {"rope_type": "yarn", "rope_theta": 10_000.0, **DEEPSEEK},
        64,
        Rope(scaling=YarnScaling(**DEEPSEEK)),
    ),
    "yarn, attention factor": (
        "llama",
        "Llama",
        {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 2048,
            "attention_factor": 1.25,
            "beta_fast": 64.0,
            "beta_slow": 2.0,
        },
        64,
        Rope(
            scaling=YarnScaling(
                factor=16, original_max_position_embeddings=2048, attention_factor=1.25, beta_fast=64, beta_slow=2
            )
        ),
    ),
}


def random_vectors(head_dim: int, tokens: int = 10) -> np.ndarray[Any, Any]:
    """Queries and keys, (2, heads, tokens, head_dim)."""
    return np.random.default_rng(9).standard_normal((2, HEADS, tokens, head_dim)).astype(np.float32)


def ours(rope: Rope, vectors: np.ndarray[Any, Any], begin: int) -> np.ndarray[Any, Any]:
    layout = KVLayout(layers=2, kv_heads=HEADS, head_dim=vectors.shape[-1], rope=rope)
    return apply(layout, vectors, begin)


def tolerance(rope: Rope, vectors: np.ndarray[Any, Any], begin: int) -> float:
    """transformers has frequencies and angles in fp32: errors grow with the angle, by some ulps of the frequency.

    The power theta^x carries the rounding of x, ln(theta) times.
    """
    angle = rope.inverse_frequencies(vectors.shape[-1]).max() * (begin + vectors.shape[-2])
    return float(np.abs(vectors).max() * rope.magnitude * 2.0**-24 * (angle * (math.log(rope.theta) + 4) + 8))


@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_magnitude_are_the_models(name: str) -> None:
    module, rope = rotary_of(name)
    *_, head_dim, _ = CASES[name]
    expected = module.inv_freq.double().numpy()
    np.testing.assert_allclose(rope.inverse_frequencies(head_dim), expected, rtol=2.0**-24 * (math.log(rope.theta) + 4))
    assert module.attention_scaling == pytest.approx(rope.magnitude, rel=1e-12)


@pytest.mark.parametrize("begin", POSITIONS)
@pytest.mark.parametrize("name", CASES)
def test_queries_and_keys_are_rotated_as_in_the_model(name: str, begin: int) -> None:
    module, rope = rotary_of(name)
    file, _, _, head_dim, _ = CASES[name]
    vectors = random_vectors(head_dim)
    apply_rotary = importlib.import_module(f"transformers.models.{file}.modeling_{file}").apply_rotary_pos_emb
    queries, keys = (torch.from_numpy(v.copy())[None] for v in vectors)
    with torch.no_grad():
        cos, sin = module(queries, torch.arange(begin, begin + vectors.shape[2])[None])
        rotated = rope.rotated_dimensions(head_dim)
        turned = apply_rotary(queries[..., :rotated], keys[..., :rotated], cos, sin)
    expected = vectors.copy()
    for i in range(2):
        expected[i, ..., :rotated] = turned[i][0].numpy()
    np.testing.assert_allclose(ours(rope, vectors, begin), expected, rtol=0, atol=tolerance(rope, vectors, begin))


def rotary_of(name: str) -> tuple[Any, Rope]:
    """The model's own rotary module, and our description of it."""
    file, prefix, parameters, head_dim, rope = CASES[name]
    config = getattr(transformers, f"{prefix}Config")(
        hidden_size=HEADS * head_dim,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters=dict(parameters),
    )
    modeling = importlib.import_module(f"transformers.models.{file}.modeling_{file}")
    return getattr(modeling, f"{prefix}RotaryEmbedding")(config), rope


@pytest.mark.parametrize("begin", POSITIONS)
def test_gptj_pairs_neighbours_of_a_part(begin: int) -> None:
    modeling = importlib.import_module("transformers.models.gptj.modeling_gptj")
    rope = Rope(style="interleaved", rotary_dim=64)
    vectors = random_vectors(256)
    sinusoids = modeling.create_sinusoidal_positions(begin + 10, 64)[None, begin:]
    sin, cos = torch.split(sinusoids, 32, dim=-1)
    expected = vectors.copy()
    for i in range(2):
        # GPT-J has (batch, tokens, heads, head_dim).
        rows = torch.from_numpy(vectors[i].copy()).transpose(0, 1)[None]
        turned = modeling.apply_rotary_pos_emb(rows[..., :64], sin, cos)
        expected[i, ..., :64] = turned[0].transpose(0, 1).numpy()
    np.testing.assert_allclose(ours(rope, vectors, begin), expected, rtol=0, atol=tolerance(rope, vectors, begin))
