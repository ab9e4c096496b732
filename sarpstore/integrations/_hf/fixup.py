"""What is computed again of chunks that stand in another context than the one they were computed in.

none          every chunk was computed alone                              (the published system)
conditioned   every chunk was computed behind the constant system prompt  (costs nothing when serving)
first-k       and the first tokens of each chunk are computed again       (EPIC, Hu et al. 2024)
deviation     and the tokens whose keys and values deviate most           (CacheBlend, Yao et al. 2024)
full          nothing is reused
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

import sarpstore
from sarpstore.integrations._hf.kv import KV, empty_cache, forward, scatter_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LAYERS_COMPARED", "RUNGS", "FixUp", "Rung", "first_places", "most_deviating", "recompute"]

Rung = Literal["none", "conditioned", "first-k", "deviation", "full"]

RUNGS: Final[tuple[Rung, ...]] = ("none", "conditioned", "first-k", "deviation", "full")
"""From the cheapest to the most exact."""

# The layer whose keys and values are compared: they follow from the input and layer 0 alone, which two layers compute.
_COMPARED_LAYER: Final = 1
LAYERS_COMPARED: Final = _COMPARED_LAYER + 1
"""Layers that choosing the deviating tokens computes."""


@dataclass(frozen=True, slots=True)
class FixUp:
    """How much of the reused chunks is computed again, for one request.

    rung ("conditioned"): One of `RUNGS`.
    first (16): Tokens at the beginning of each chunk, for "first-k".
    share (0.15): Of all reused tokens, above 0 and at most 1, for "deviation".
    """

    rung: Rung = "conditioned"
    first: int = 16
    share: float = 0.15

    def __post_init__(self) -> None:
        if self.rung not in RUNGS:
            raise sarpstore.OptionError(f"fixup={self.rung!r}: must be one of {', '.join(RUNGS)}")
        if isinstance(self.first, bool) or not isinstance(self.first, int) or self.first < 1:
            raise sarpstore.OptionError(f"first={self.first!r}: must be a number of tokens, at least 1")
        if not 0 < self.share <= 1:
            raise sarpstore.OptionError(f"share={self.share!r}: must be above 0 and at most 1")

    @classmethod
    def of(cls, given: FixUp | str) -> FixUp:
        """A fix-up, or the one of a rung by its name with its defaults. OptionError where there is no such rung."""
        return given if isinstance(given, FixUp) else cls(rung=given)  # type: ignore[arg-type]

    @property
    def conditioned(self) -> bool:
        """Whether chunks are to be computed behind the system prompt."""
        return self.rung not in ("none", "full")

    @property
    def recomputes(self) -> bool:
        """Whether tokens of reused chunks are computed again."""
        return self.rung in ("first-k", "deviation")


def first_places(spans: Sequence[tuple[int, int]], count: int) -> torch.Tensor:
    """Positions, int64, of the first `count` tokens of each (begin, end)."""
    places = [place for begin, end in spans for place in range(begin, min(begin + count, end))]
    return torch.tensor(places, dtype=torch.long)


class _EnoughError(Exception):
    """Ends a forward pass behind the layers that are needed."""


def most_deviating(model: Any, tokens: Sequence[int], kv: KV, begin: int, share: float) -> torch.Tensor:
    """Positions, int64 and ascending, of the tokens whose keys and values are furthest from those of a full prefill.

    Two layers are computed over all of `tokens`; the distance is that of layer 1, over keys and over values in units of
    their mean length, as in CacheBlend. Its further selection from layer to layer is left out: the tokens that are
    chosen here are computed again in all layers.

    Args:
        model: A causal language model of transformers, of more than two layers.
        tokens: From position 0 on; `kv` has keys, rotated, and values of them all.
        kv: What would be reused.
        begin: The first position that may be chosen.
        share: How many are chosen, of those from `begin` on; rounded up.
    """
    fresh = _first_layers(model, tokens)
    distance = torch.zeros(len(tokens) - begin, device=model.device)
    for reused, true in zip(kv, fresh, strict=True):
        mine, full = reused[_COMPARED_LAYER, :, begin:].float(), true[:, begin:].float()
        distance += (mine - full).square().sum(dim=(0, 2)) / full.square().sum(dim=(0, 2)).mean()
    count = min(len(distance), -int(-share * len(distance) // 1))
    return begin + distance.topk(count).indices.sort().values.cpu()


def _first_layers(model: Any, tokens: Sequence[int]) -> KV:
    """Keys, rotated, and values of `_COMPARED_LAYER`, each [kv_heads, tokens, head_dim]."""

    def stop(*_: Any) -> None:
        raise _EnoughError

    cache = empty_cache(model)
    handle = model.get_decoder().layers[_COMPARED_LAYER + 1].register_forward_pre_hook(stop)
    try:
        forward(model, tokens, cache)
    except _EnoughError:
        pass
    finally:
        handle.remove()
    layer = cache.layers[_COMPARED_LAYER]
    return KV(layer.keys[0], layer.values[0])


def recompute(model: Any, tokens: Sequence[int], kv: KV, places: torch.Tensor) -> None:
    """Compute keys and values of the tokens at `places` again, in place: each sees those before it as they then are.

    `kv` has keys, rotated, and values of all of `tokens`, in the model's dtype and on its device.
    """
    if not len(places):
        return
    seen = torch.arange(len(tokens))[None] <= places[:, None]
    mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, torch.finfo(model.dtype).min)
    chosen = [tokens[place] for place in places.tolist()]
    cache = scatter_cache(model, kv, places)
    forward(model, chosen, cache, positions=places, attention_mask=mask[None, None].to(model.device), logits_to_keep=1)
