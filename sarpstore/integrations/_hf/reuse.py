"""Prefill of a prompt from stored chunks: plan, load, compute what is missing, fix up, and the question on top.

tokens ─► plan ─► load ─► misses: computed alone or behind the system prompt ─► fix-up ─► question ─► logits
                               └► put, once the first token is known
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import torch

import sarpstore
from sarpstore.integrations._hf.facts import layout_of
from sarpstore.integrations._hf.fixup import LAYERS_COMPARED, FixUp, first_places, most_deviating, recompute
from sarpstore.integrations._hf.kv import (
    KV,
    Capture,
    array_of,
    check_capture,
    empty_cache,
    filled_cache,
    forward,
    rotated,
    tensor_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["Prefilled", "Reuse", "as_token_list", "full_prefill"]

_log = logging.getLogger("sarpstore")

_T = TypeVar("_T")

_STORE_FAILURES: Final = (
    sarpstore.StorageError,
    sarpstore.FailedError,
    sarpstore.LimitError,
    sarpstore.CorruptionError,
)
"""What a store may say that is no mistake of the caller: the request is served without it."""


@dataclass(slots=True, kw_only=True)
class Prefilled:
    """A prompt whose keys and values stand in a cache.

    cache: A `DynamicCache` of all prompt tokens.
    logits: Of the last token, [1, vocabulary] in the model's dtype; of all of the question's tokens where asked for.
    rung: What was done; "full" also where nothing could be reused.
    tokens: Of the prompt.
    question_tokens: Of them, those behind the last delimiter; all of them where nothing was reused.
    hit_tokens: Of them, loaded.
    computed_tokens: Passed through the model for this request: misses, question, and what was fixed up; what chooses
        the deviating tokens passes all of them through two layers, which counts as that share of them.
    fixed_tokens: Of them, those that were fixed up.
    seconds: From the call to the logits.
    """

    cache: Any
    logits: torch.Tensor
    rung: str
    tokens: int
    question_tokens: int
    hit_tokens: int = 0
    computed_tokens: int = 0
    fixed_tokens: int = 0
    seconds: float = 0.0


class _Missing(NamedTuple):
    """A chunk that was computed: where it stands, and what the store is to keep."""

    span: Any
    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]


@dataclass(slots=True)
class _Work:
    """A request on its way through the model. `kv` has keys, rotated, and values up to the question."""

    tokens: list[int]
    question: int
    spans: list[Any]
    kv: KV
    conditioned: bool
    adapter: str
    fixed: int = 0
    fixed_hits: int = 0
    computed: int = 0
    missing: list[_Missing] = field(default_factory=list)


def as_token_list(tokens: Sequence[int]) -> list[int]:
    """Token ids as a list of integers. InputError where there are none."""
    plain = [int(token) for token in tokens]
    if not plain:
        raise sarpstore.InputError("a prompt of no tokens has no next token")
    return plain


def full_prefill(model: Any, tokens: Sequence[int]) -> Prefilled:
    """Prefill without any reuse; `logits` are of the last token alone."""
    began = time.perf_counter()
    cache = empty_cache(model)
    logits = forward(model, tokens, cache, logits_to_keep=1)
    return Prefilled(
        cache=cache,
        logits=logits,
        rung="full",
        tokens=len(tokens),
        question_tokens=len(tokens),
        computed_tokens=len(tokens),
        seconds=time.perf_counter() - began,
    )


class Reuse:
    """A model and a store of chunks. One request at a time has the model, so a chunk is never computed twice at once.

    Args:
        model: A causal language model of transformers whose attention has `k_proj` and `v_proj`.
        chunks: What `sarpstore.open_chunks` gives, opened with `layout_of` this model, in any of its dtypes and
            payloads.
        system: Token ids of the constant system prompt: one chunk, which ends with a delimiter. Prompts that begin with
            it have their chunks computed behind it, in all rungs but "none". Empty: there is none.

    store_failures: Calls of the store that failed; their requests were served without it.

    Raises:
        sarpstore.InputError: The model's keys cannot be moved, or not be taken before their rotary encoding, or the
            store has another layout.
    """

    def __init__(self, model: Any, chunks: Any, *, system: Sequence[int] = ()) -> None:
        self.model = model
        self.layout: sarpstore.KVLayout = chunks.layout
        own = layout_of(model, dtype=self.layout.dtype, payload=self.layout.payload)
        if own.canonical() != self.layout.canonical():
            raise sarpstore.InputError(f"the store of chunks has another layout than {type(model).__name__}")
        self.system = [int(token) for token in system]
        self._chunks = chunks
        self.store_failures = 0
        self._capture = Capture(model, self.layout)
        check_capture(model, self._capture, self.layout)
        self._turn = asyncio.Lock()
        packed = np.asarray(self.system, "<u4").tobytes()
        self._conditioning = hashlib.sha256(packed).digest() if self.system else b""
        # Of the adapter that was active last.
        self._system_kv: tuple[str, KV] | None = None

    async def prefill(
        self,
        tokens: Sequence[int],
        *,
        fixup: FixUp | str = "conditioned",
        salt: bytes = b"",
        adapter: str = "",
        all_logits: bool = False,
    ) -> Prefilled:
        """Prefill a prompt; its last chunk is the question, which is always computed.

        Args:
            tokens: Token ids of the whole prompt, with delimiters and system prompt.
            fixup: What is computed again of reused chunks.
            salt: The tenant's.
            adapter: The adapter's name that the model has active.
            all_logits: Whether the logits of all of the question's tokens are kept, not of the last alone.

        Raises:
            sarpstore.InputError: No tokens, a system prompt that is not exactly the first chunk, or a rung that
                computes single tokens again on a model with sliding windows.
        """
        prompt, wanted = as_token_list(tokens), FixUp.of(fixup)
        self._check(wanted)
        began = time.perf_counter()
        conditioned = wanted.conditioned and bool(self.system) and prompt[: len(self.system)] == self.system
        key = self._conditioning if conditioned else b""
        async with self._turn:
            plan = None
            if wanted.rung != "full":
                plan = await self._stored(
                    "plan", self._chunks.plan(prompt, conditioning=key, salt=salt, adapter=adapter)
                )
            if plan is None:
                return await _in_thread(full_prefill, self.model, prompt)
            # What the plan has claimed is given up on every way out.
            with plan:
                work = await self._loaded(prompt, plan, adapter, conditioned=conditioned)
                if work is None:
                    return await _in_thread(full_prefill, self.model, prompt)
                cache, logits = await _in_thread(self._computed, work, wanted, 0 if all_logits else 1)
                seconds = time.perf_counter() - began
                self._note_use(work)
                for each in work.missing:
                    await self._put(each)
        missed = sum(each.span.end - each.span.begin for each in work.missing)
        return Prefilled(
            cache=cache,
            logits=logits,
            rung=wanted.rung,
            tokens=len(prompt),
            question_tokens=len(prompt) - work.question,
            hit_tokens=work.question - missed,
            computed_tokens=work.computed,
            fixed_tokens=work.fixed,
            seconds=seconds,
        )

    async def _put(self, missing: _Missing) -> None:
        # What a model computes is not always what a store can take: a payload of a byte an element has no infinities.
        with_input = (*_STORE_FAILURES, sarpstore.InputError)
        await self._stored("put", self._chunks.put(missing.span, missing.keys, missing.values), with_input)

    async def with_model(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """`call(*arguments)` in a thread, while no request uses the model."""
        async with self._turn:
            return await _in_thread(call, *arguments)

    def note_drift(self, kl: float) -> None:
        """Tell the store how far an answer was from that of a full prefill: mean KL(full || reused) in nats."""
        self._told("note_drift", lambda: self._chunks.note_drift(kl))

    def _note_use(self, work: _Work) -> None:
        """Tell the store what it was good for, if it was."""
        hits = sum(span.end - span.begin for span in work.spans if span.hit)
        if hits:
            self._told("note_use", lambda: self._chunks.note_use(tokens=hits, recomputed=work.fixed_hits))

    def _told(self, name: str, call: Callable[[], None]) -> None:
        """A call that only counts: whatever the store says to it, even that it was closed, harms no request."""
        try:
            call()
        except sarpstore.SarpError as error:
            self.store_failures += 1
            _log.warning("chunks: %s failed: %s", name, error)

    def _check(self, wanted: FixUp) -> None:
        if not wanted.recomputes:
            return
        if self.layout.windows is not None:
            raise sarpstore.InputError(f"fixup={wanted.rung!r} is not possible for a model with sliding windows")
        if wanted.rung == "deviation" and self.layout.layers <= LAYERS_COMPARED:
            raise sarpstore.InputError(f"fixup='deviation' compares {LAYERS_COMPARED} layers: the model has no more")

    async def _stored(
        self, name: str, call: Awaitable[_T], failures: tuple[type[sarpstore.SarpError], ...] = _STORE_FAILURES
    ) -> _T | None:
        """What a call of the store returns; None where the store fails: the request is served without it."""
        try:
            return await call
        except failures as error:
            self.store_failures += 1
            _log.warning("chunks: %s failed, the request is served without it: %s", name, error)
            return None

    async def _loaded(self, prompt: list[int], plan: Any, adapter: str, *, conditioned: bool) -> _Work | None:
        """What the store has of a prompt; None where it is a single chunk, or the store fails."""
        if len(plan.spans) < 2:
            return None
        if conditioned and plan.spans[0].end != len(self.system):
            raise sarpstore.InputError("the system prompt is not one chunk: it must have one delimiter, at its end")
        loaded = await self._stored("load", self._chunks.load(plan))
        if loaded is None:
            return None
        question = plan.spans[-1].begin
        # A load may find a payload damaged: which spans are hits is asked after it.
        both = tensor_of(loaded, self.layout.dtype)[:, :, :, :question]
        kv = KV(*(both[:, i].to(self.model.device, self.model.dtype) for i in (0, 1)))
        return _Work(prompt, question, list(plan.spans[:-1]), kv, conditioned, adapter)

    def _computed(self, work: _Work, wanted: FixUp, logits_to_keep: int) -> tuple[Any, torch.Tensor]:
        """Everything that the model does for a request: (cache, logits of the question's last tokens; 0: of all)."""
        with torch.inference_mode():
            for span in work.spans:
                if not span.hit:
                    self._fill(work, span)
            if wanted.recomputes:
                self._fix_up(work, wanted)
            cache = filled_cache(self.model, work.kv)
            logits = forward(self.model, work.tokens[work.question :], cache, logits_to_keep=logits_to_keep)
        work.computed += len(work.tokens) - work.question
        return cache, logits

    def _fix_up(self, work: _Work, wanted: FixUp) -> None:
        places = self._places(work, wanted)
        recompute(self.model, work.tokens[: work.question], work.kv, places)
        work.fixed = len(places)
        loaded = [(places >= span.begin) & (places < span.end) for span in work.spans if span.hit]
        work.fixed_hits = sum(int(own.sum()) for own in loaded)
        work.computed += work.fixed
        if wanted.rung == "deviation":
            work.computed += work.question * LAYERS_COMPARED // self.layout.layers

    def _fill(self, work: _Work, span: Any) -> None:
        """Compute a missing chunk and put it into its place, as the store would give it."""
        behind_system = work.conditioned and span.begin > 0
        tokens = work.tokens[span.begin : span.end]
        own = self._captured(tokens, self._system_cache(work.adapter) if behind_system else empty_cache(self.model))
        keys, values = (array_of(part, self.layout.dtype) for part in own)
        places = torch.arange(span.begin, span.end)
        stored = tensor_of(keys, self.layout.dtype)
        work.kv.keys[:, :, span.begin : span.end] = rotated(self.model, stored, places)
        work.kv.values[:, :, span.begin : span.end] = tensor_of(values, self.layout.dtype)
        work.missing.append(_Missing(span, keys, values))
        work.computed += span.end - span.begin

    def _captured(self, tokens: Sequence[int], cache: Any) -> KV:
        """Keys, unrotated, and values of tokens that are computed on top of `cache`."""
        with self._capture.hooked():
            forward(self.model, tokens, cache, logits_to_keep=1)
        return self._capture.take()

    def _system_cache(self, adapter: str) -> Any:
        """A cache that holds the system prompt, which is computed once for an adapter."""
        if self._system_kv is None or self._system_kv[0] != adapter:
            own = self._captured(self.system, empty_cache(self.model))
            places = torch.arange(len(self.system))
            self._system_kv = adapter, KV(rotated(self.model, own.keys, places), own.values)
        return filled_cache(self.model, self._system_kv[1])

    def _places(self, work: _Work, wanted: FixUp) -> torch.Tensor:
        # The first chunk stands where it was computed, with nothing before it.
        moved = [(span.begin, span.end) for span in work.spans if span.begin > 0]
        if wanted.rung == "first-k" or not moved:
            return first_places(moved, wanted.first)
        return most_deviating(self.model, work.tokens[: work.question], work.kv, moved[0][0], wanted.share)


async def _in_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    """As `asyncio.to_thread`, but a caller that is cancelled waits for the thread: it is still using the model."""
    thread = asyncio.create_task(asyncio.to_thread(call, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return thread.result()
