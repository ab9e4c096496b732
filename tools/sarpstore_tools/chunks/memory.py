"""Chunks in memory, behind the calls of a store of chunks: what measures a model needs no disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sarpstore.integrations.transformers import rotated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import sarpstore

QUESTION = "question"


@dataclass(slots=True, kw_only=True)
class MemorySpan:
    """A chunk of a plan: tokens from `begin` up to `end`, and whether its keys and values are there."""

    begin: int
    end: int
    hit: bool
    why: str
    key: bytes
    bytes: int


@dataclass(slots=True, kw_only=True)
class MemoryPlan:
    """The chunks of a prompt in order; the last is the question."""

    tokens: int
    spans: list[MemorySpan]

    @property
    def hits(self) -> list[MemorySpan]:
        """Those that `load` fills in."""
        return [span for span in self.spans if span.hit]

    @property
    def misses(self) -> list[MemorySpan]:
        """Those that have to be computed."""
        return [span for span in self.spans if not span.hit]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is claimed: requests take turns."""


@dataclass(slots=True)
class MemoryChunks:
    """Keys, unrotated, and values by content. Rotates with the model's own encoding, so float32 is exact."""

    model: Any
    layout: sarpstore.KVLayout
    delimiters: tuple[int, ...]
    held: dict[bytes, tuple[Any, Any]] = field(default_factory=dict)
    puts: int = 0
    used: list[tuple[int, int]] = field(default_factory=list)
    """(tokens of hits, those of them computed again) of each request."""
    drift: list[float] = field(default_factory=list)
    """Of each request that was compared, in nats."""

    async def plan(
        self, tokens: Sequence[int], *, conditioning: bytes = b"", salt: bytes = b"", adapter: str = ""
    ) -> MemoryPlan:
        """Split behind each delimiter, and look every chunk but the last up."""
        ends = [i + 1 for i, token in enumerate(tokens) if token in self.delimiters]
        if not ends or ends[-1] != len(tokens):
            ends.append(len(tokens))
        spans = []
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            packed = np.asarray(tokens[begin:end], "<u4").tobytes()
            apart = (packed, conditioning, salt, adapter.encode())
            key = b"".join(hashlib.sha256(part).digest() for part in apart)
            last = end == len(tokens)
            hit = not last and key in self.held
            why = "" if hit else QUESTION if last else "new"
            size = (end - begin) * self.layout.token_bytes if hit else 0
            spans.append(MemorySpan(begin=begin, end=end, hit=hit, why=why, bytes=size, key=key))
        return MemoryPlan(tokens=len(tokens), spans=spans)

    async def load(self, plan: MemoryPlan) -> np.ndarray[Any, Any]:
        """[layers, 2, kv_heads, tokens, head_dim], hits filled in, keys rotated for where they stand."""
        layout = self.layout
        kv = np.zeros(layout.shape(plan.tokens), layout.numpy_dtype)
        for span in plan.hits:
            keys, values = self.held[span.key]
            kv[:, 0, :, span.begin : span.end] = self._turned(keys, span)
            kv[:, 1, :, span.begin : span.end] = values
        return kv

    async def put(self, span: MemorySpan, keys_unrotated: Any, values: Any) -> bool:
        """Keep a chunk's keys and values, each [layers, kv_heads, tokens, head_dim]."""
        shape = (self.layout.layers, self.layout.kv_heads, span.end - span.begin, self.layout.head_dim)
        if keys_unrotated.shape != shape or values.shape != shape:
            raise ValueError(f"{keys_unrotated.shape} and {values.shape}: must be {shape}")
        self.held[span.key] = (keys_unrotated.copy(), values.copy())
        self.puts += 1
        return True

    def note_use(self, *, tokens: int, recomputed: int = 0) -> None:
        """A request used hits of so many tokens, of which some were computed again."""
        self.used.append((tokens, recomputed))

    def note_drift(self, nats: float) -> None:
        """A request was compared with a full prefill."""
        self.drift.append(nats)

    def _turned(self, keys: np.ndarray[Any, Any], span: MemorySpan) -> np.ndarray[Any, Any]:
        tensor = torch.from_numpy(keys)
        if self.layout.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        turned = rotated(self.model, tensor, torch.arange(span.begin, span.end)).to(tensor.dtype).cpu()
        return np.asarray((turned.view(torch.uint16) if self.layout.dtype == "bfloat16" else turned).numpy())
