"""What a store of chunks has to know of a model: the layout of its keys and values, and a digest of its weights."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import torch

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DTYPES", "decoder_config", "fingerprint_of", "layout_of", "rotate_half_of"]

DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The dtypes that keys and values may be stored in."""


def decoder_config(model: Any) -> Any:
    """The config of the part of the model that generates text."""
    return model.config.get_text_config(decoder=True)


def layout_of(
    model: Any, *, dtype: str | None = None, payload: Literal["exact", "int8", "fp8"] = "exact"
) -> sarpstore.KVLayout:
    """The layout of a causal language model of transformers, from its config: what to open a store of chunks with.

    Args:
        model: A `PreTrainedModel`.
        dtype: What to store keys and values in: "float32", "float16" or "bfloat16"; None: the model's own dtype.
        payload: Whether they are stored in a byte an element instead, as `sarpstore.KVLayout` says.

    Raises:
        sarpstore.InputError: The model's rotary encoding changes with the length of the input, differs from layer to
            layer or is of a kind that is not known, or the dtype is none of these. Such a model's keys cannot be moved.
        sarpstore.OptionError: The config states a number that is not possible; the message names it.
    """
    config = decoder_config(model)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype = dtype or str(model.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise sarpstore.InputError(f"dtype={dtype!r}: keys and values are stored in one of {', '.join(DTYPES)}")
    return sarpstore.KVLayout(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        dtype=cast("Any", dtype),
        rope=_rope_of(model, config, head_dim),
        windows=_windows_of(config),
        payload=payload,
    )


def rotate_half_of(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model's own function that gives each channel the one it is paired with, with its sign."""
    found = getattr(sys.modules[type(model.get_decoder()).__module__], "rotate_half", None)
    return found or _rotate_half


def _rotate_half(channels: torch.Tensor) -> torch.Tensor:
    first, second = channels.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rope_of(model: Any, config: Any, head_dim: int) -> sarpstore.Rope:
    stated = getattr(config, "rope_parameters", None)
    if not stated or "rope_theta" not in stated:
        raise sarpstore.InputError(f"{config.model_type}: its config states no single rotary encoding for all layers")
    share = float(stated.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None) or 1.0))
    return sarpstore.Rope(
        theta=float(stated["rope_theta"]),
        style=_style_of(model),
        rotary_dim=int(head_dim * share),
        scaling=_scaling_of(config, stated),
    )


def _style_of(model: Any) -> Literal["neox", "interleaved"]:
    paired = rotate_half_of(model)(torch.arange(4.0)).abs().tolist()
    styles: dict[tuple[float, ...], Literal["neox", "interleaved"]] = {
        (2, 3, 0, 1): "neox",
        (1, 0, 3, 2): "interleaved",
    }
    if tuple(paired) not in styles:
        raise sarpstore.InputError(f"{type(model).__name__}: its rotary encoding pairs channels in an unknown way")
    return styles[tuple(paired)]


def _scaling_of(
    config: Any, stated: dict[str, Any]
) -> sarpstore.LinearScaling | sarpstore.Llama3Scaling | sarpstore.YarnScaling | None:
    kind = stated.get("rope_type", "default")
    if kind == "default":
        return None
    if kind == "linear":
        return sarpstore.LinearScaling(factor=stated["factor"])
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return sarpstore.Llama3Scaling(**{name: stated[name] for name in names})
    if kind == "yarn":
        original = stated["original_max_position_embeddings"]
        return sarpstore.YarnScaling(
            factor=stated["factor"] or config.max_position_embeddings / original,
            original_max_position_embeddings=original,
            beta_fast=stated.get("beta_fast") or 32,
            beta_slow=stated.get("beta_slow") or 1,
            attention_factor=stated.get("attention_factor"),
            mscale=stated.get("mscale"),
            mscale_all_dim=stated.get("mscale_all_dim"),
            truncate=stated.get("truncate", True),
        )
    raise sarpstore.InputError(f"{config.model_type}: rope_type={kind!r} is none of default, linear, llama3, yarn")


def _windows_of(config: Any) -> tuple[int | None, ...] | None:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window:
        return None
    if kinds is None:
        kinds = ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else None


def fingerprint_of(model: Any, tokenizer: Any) -> bytes:
    """A digest of everything that turns text into keys and values: weights, config and tokenizer. 32 bytes (SHA-256).

    The weights are read once: about a second for each GB. A model in another dtype, or with another tokenizer revision,
    has another fingerprint.
    """
    digest = hashlib.sha256(_stated(decoder_config(model)))
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(memoryview(plain.view(torch.uint8).numpy()))
    digest.update(_described(tokenizer))
    return digest.digest()


def _stated(config: Any) -> bytes:
    """The config as JSON, without what depends on where the model lies and who reads it."""
    stated = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    for name in ("transformers_version", "quantization_config"):
        stated.pop(name, None)
    return json.dumps(stated, sort_keys=True, default=str).encode()


def _described(tokenizer: Any) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.to_str()).encode()
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return repr((type(tokenizer).__name__, words)).encode()
