"""Keys and values between a model, its cache and the arrays of a store.

    k_proj ──hook──► unrotated keys ──► put                 (capture)
    load ──► rotated keys and values ──► DynamicCache        (filled_cache)

Keys are taken where they leave the projection (or the norm behind it), before the rotary encoding: what a cache is
handed later is rotated already, and undoing that costs accuracy.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import sarpstore
from sarpstore.integrations._hf.facts import DTYPES, decoder_config, rotate_half_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "KV",
    "Capture",
    "array_of",
    "check_capture",
    "empty_cache",
    "filled_cache",
    "forward",
    "rotated",
    "scatter_cache",
    "tensor_of",
]


# Far enough for what scales long wavelengths to show.
_PROBE_BEGIN: Final = 4001
_PROBE_TOKENS: Final = 8
# Kernels of accelerators may round otherwise; a wrong pairing of channels is off by about 1.
_PROBE_ERROR_MAX: Final = 0.03


class KV(NamedTuple):
    """Keys and values of some tokens in all layers, each [layers, kv_heads, tokens, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor

    def part(self, begin: int, end: int) -> KV:
        """Those of the tokens from `begin` up to `end`."""
        return KV(self.keys[:, :, begin:end], self.values[:, :, begin:end])


def array_of(tensor: torch.Tensor, dtype: str) -> np.ndarray[Any, Any]:
    """A tensor in the dtype of the store, as an array; bfloat16 as its bits in uint16."""
    plain = tensor.detach().to("cpu", DTYPES[dtype]).contiguous()
    return np.asarray((plain.view(torch.uint16) if dtype == "bfloat16" else plain).numpy())


def tensor_of(array: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """The tensor of an array of the store; uint16 holds the bits of bfloat16. Shares its memory where it may."""
    usable = array if array.flags.writeable else array.copy()
    tensor = torch.from_numpy(np.ascontiguousarray(usable))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def rotated(model: Any, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Keys with the model's own rotary encoding applied, in the model's dtype: bit for bit what the model computes.

    Args:
        model: A causal language model of transformers.
        keys: Unrotated, [layers, kv_heads, tokens, head_dim].
        positions: Of the tokens, int64 [tokens].

    The method is RoFormer's (Su et al. 2021), its channels paired as the model pairs them.
    """
    keys = keys.to(model.device, model.dtype)
    cos, sin = model.get_decoder().rotary_emb(keys, position_ids=positions.to(model.device)[None])
    width = cos.shape[-1]
    turned, rest = keys[..., :width], keys[..., width:]
    turned = turned * cos + rotate_half_of(model)(turned) * sin
    return torch.cat((turned, rest), dim=-1)


class Capture:
    """Takes unrotated keys, and values, from each forward pass of a model while it is entered.

    After a pass, `take()` gives those of its tokens and forgets them. One pass at a time, batch of one.
    """

    def __init__(self, model: Any, layout: sarpstore.KVLayout) -> None:
        self._layout = layout
        self._attentions: list[Any] = [getattr(layer, "self_attn", None) for layer in model.get_decoder().layers]
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        for attention in self._attentions:
            if not hasattr(attention, "k_proj") or not hasattr(attention, "v_proj"):
                raise sarpstore.InputError(f"{type(attention).__name__} has no k_proj and v_proj to take keys from")

    @contextmanager
    def hooked(self) -> Iterator[Capture]:
        """While it is entered, every forward pass of the model is captured."""
        with ExitStack() as stack:
            for layer, attention in enumerate(self._attentions):
                keys = getattr(attention, "k_norm", None) or attention.k_proj
                for module, kept in ((keys, self._keys), (attention.v_proj, self._values)):
                    stack.callback(module.register_forward_hook(self._hook(kept, layer)).remove)
            yield self

    def take(self) -> KV:
        """Keys, unrotated, and values of the last pass, [layers, kv_heads, tokens, head_dim], in the model's dtype."""
        parts = [torch.stack([kept.pop(i) for i in sorted(kept)]) for kept in (self._keys, self._values)]
        return KV(*parts)

    def _hook(self, kept: dict[int, torch.Tensor], layer: int) -> Any:
        heads, width = self._layout.kv_heads, self._layout.head_dim

        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:  # noqa: ARG001 (torch's signature)
            if output.shape[0] != 1 or (output.ndim == 4 and output.shape[2] != heads):
                shape = tuple(output.shape)
                raise sarpstore.InputError(f"{type(module).__name__} gives {shape}: not [1, tokens, heads]")
            kept[layer] = output.detach().view(output.shape[1], heads, width).transpose(0, 1).clone()

        return hook


def forward(
    model: Any, tokens: Sequence[int], cache: Any, *, positions: torch.Tensor | None = None, **rest: Any
) -> torch.Tensor:
    """One pass over `tokens` on top of `cache`, which takes their keys and values. The logits, [tokens, vocabulary]."""
    ids = torch.tensor([list(tokens)], dtype=torch.long, device=model.device)
    places = None if positions is None else positions.to(model.device)[None]
    with torch.inference_mode():
        return model(ids, cache=cache, use_cache=True, position_ids=places, **rest).logits[0]


def check_capture(model: Any, capture: Capture, layout: sarpstore.KVLayout) -> None:
    """Check on a few tokens that captured keys, rotated, are those that the model puts into its cache.

    They are rotated both as the model does and as a store of this layout does.

    Raises:
        sarpstore.InputError: They are not: the model's keys are not made as this module knows it (a fused projection,
            keys scaled behind the rotary encoding), and reuse would be wrong.
    """
    begin = min(_PROBE_BEGIN, decoder_config(model).max_position_embeddings - _PROBE_TOKENS)
    places = torch.arange(begin, begin + _PROBE_TOKENS)
    cache = empty_cache(model)
    with torch.inference_mode(), capture.hooked():
        forward(model, [1] * _PROBE_TOKENS, cache, positions=places, logits_to_keep=1)
        own = capture.take()
        keys = rotated(model, own.keys, places)
    plain = replace(layout, dtype="float32")
    turned = np.empty(own.keys.shape, np.float32)
    sarpstore.rotate_keys(plain, array_of(own.keys, "float32"), turned, begin)
    stored = tensor_of(turned, "float32").to(model.device)
    for index, layer in enumerate(cache.layers):
        pairs = ((keys, layer.keys), (stored, layer.keys), (own.values, layer.values))
        for found, true in ((ours[index], theirs[0].float()) for ours, theirs in pairs):
            last = found[:, -true.shape[1] :].float()
            if not (last - true).norm() <= _PROBE_ERROR_MAX * true.norm():
                raise sarpstore.InputError(f"{type(model).__name__}: keys of layer {index} cannot be taken unrotated")


def empty_cache(model: Any) -> Any:
    """A `DynamicCache` without tokens, with the model's sliding windows."""
    return DynamicCache(config=decoder_config(model))


def filled_cache(model: Any, kv: KV) -> Any:
    """A `DynamicCache` that holds these keys, rotated, and values from position 0 on."""
    cache = empty_cache(model)
    for layer in range(len(kv.keys)):
        keys, values = (part[layer][None].to(model.device, model.dtype) for part in kv)
        cache.update(keys, values, layer)
    return cache


class _ScatterLayer(DynamicLayer):  # type: ignore[misc]
    """A layer whose tokens are all there; an update replaces those at `places`."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values, self._places = keys, values, places

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 (the base's signature)
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, :, self._places] = key_states
        self.values[:, :, self._places] = value_states
        return self.keys, self.values


def scatter_cache(model: Any, kv: KV, places: torch.Tensor) -> Any:
    """A cache of these keys, rotated, and values, in which a pass replaces those at `places` (int64) in place.

    Changes the tensors of `kv`, which must be in the model's dtype and on its device.
    """
    cache = empty_cache(model)
    places = places.to(model.device)
    pairs = zip(kv.keys, kv.values, strict=True)
    cache.layers = [_ScatterLayer(keys[None], values[None], places) for keys, values in pairs]
    return cache
