"""What a store of chunks has to know of a model: the layout of its keys and values, and a digest of its weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import torch

import sarpstore

__all__ = ["DTYPES", "LayoutFacts", "RopeFacts", "decoder_config", "fingerprint_of", "layout_of"]

DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The dtypes that keys and values may be stored in."""

_SCALINGS: Final = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFacts:
    """A rotary encoding as the model's config states it.

    theta: Base of the frequencies.
    style: "neox": channel i is paired with i + rotary_dim / 2, as all models of transformers that this module takes do.
    rotary_dim: Channels of a head that are rotated, the first ones.
    scaling: "default", "linear", "llama3" or "yarn", by the names of the config.
    parameters: What else the scaling needs, by the names of the config, sorted.
    """

    theta: float
    style: str
    rotary_dim: int
    scaling: str
    parameters: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFacts:
    """The shape of a token's keys and values: `layers` of `kv_heads` heads of `head_dim` channels, keys and values.

    dtype: What they are stored in: "float32", "float16" or "bfloat16".
    windows: Tokens that each layer's attention sees back, 0 where it sees all; None where all layers see all.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    rope: RopeFacts
    windows: tuple[int, ...] | None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * int(DTYPES[self.dtype].itemsize)


def decoder_config(model: Any) -> Any:
    """The config of the part of the model that generates text."""
    return model.config.get_text_config(decoder=True)


def layout_of(model: Any, *, dtype: str | None = None) -> LayoutFacts:
    """The layout of a causal language model of transformers, from its config.

    Args:
        model: A `PreTrainedModel`.
        dtype: What to store keys and values in; None: the model's own dtype.

    Raises:
        sarpstore.InputError: The model's rotary encoding changes with the length of the input or is of a kind that is
            not known, or the dtype is none of `DTYPES`. Such a model's keys cannot be moved.
    """
    config = decoder_config(model)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype = dtype or str(model.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise sarpstore.InputError(f"dtype={dtype!r}: keys and values are stored in one of {', '.join(DTYPES)}")
    return LayoutFacts(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        dtype=dtype,
        rope=_rope_of(config, head_dim),
        windows=_windows_of(config),
    )


def _rope_of(config: Any, head_dim: int) -> RopeFacts:
    stated = getattr(config, "rope_parameters", None)
    if not stated or "rope_theta" not in stated:
        raise sarpstore.InputError(f"{config.model_type}: its config states no single rotary encoding for all layers")
    kind = stated.get("rope_type", "default")
    if kind not in _SCALINGS:
        raise sarpstore.InputError(f"{config.model_type}: rope_type={kind!r} is none of {', '.join(_SCALINGS)}")
    share = float(stated.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None) or 1.0))
    apart = ("rope_theta", "rope_type", "partial_rotary_factor")
    rest = {name: float(value) for name, value in stated.items() if name not in apart and value is not None}
    return RopeFacts(
        theta=float(stated["rope_theta"]),
        style="neox",
        rotary_dim=int(head_dim * share),
        scaling=kind,
        parameters=tuple(sorted(rest.items())),
    )


def _windows_of(config: Any) -> tuple[int, ...] | None:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window:
        return None
    if kinds is None:
        kinds = ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
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
