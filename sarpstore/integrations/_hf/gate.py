"""The gate of a model: reuse is switched on only where it was seen to agree with full prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sarpstore
from sarpstore.integrations._hf.fixup import FixUp
from sarpstore.integrations._hf.generator import divergence
from sarpstore.integrations._hf.kv import empty_cache, forward

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from sarpstore.integrations._hf.reuse import Prefilled, Reuse

__all__ = ["GateReport", "gate"]

_SALT: Final = b"sarpstore gate"

_ROUND_TRIP_MAX: Final = {"float32": 0.001, "float16": 0.02, "bfloat16": 0.1, "int8": 0.4, "fp8": 1.1}
"""By the dtype of the store, or its payload: what rounding the keys and values alone may do to the logits.

SmolLM2-135M, questions on four documents: int8 up to .13, fp8 up to .37, in float32 and in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What a gate found.

    passed: Whether reuse may be switched on.
    round_trip: Greatest difference of the question's logits, over their standard deviation, where a chunk was read back
        at the position, and after the prefix, that it was computed at; `round_trip_max` is its bound.
    moved_kl: Mean KL(full || reused) over the question's tokens, in nats, where the chunk stands behind another;
        `moved_kl_max` is its bound.
    moved_top1: Share of the question's tokens after which both find the same token likeliest.
    why: What did not hold, for people; empty where it passed.
    """

    passed: bool
    round_trip: float
    round_trip_max: float
    moved_kl: float
    moved_kl_max: float
    moved_top1: float
    why: str

    @property
    def exact(self) -> bool:
        """Whether the round trip gave the same logits bit for bit."""
        return self.round_trip == 0.0


async def gate(
    reuse: Reuse,
    *,
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    fixup: FixUp | str = "conditioned",
    round_trip_max: float | None = None,
    moved_kl_max: float = 0.5,
) -> GateReport:
    """Check that reused chunks give the logits that full prefill gives.

    First a chunk is stored, loaded again at its original position after its original prefix (the system prompt), and
    the question's logits are compared with those on the keys and values as the model left them. Then the chunks stand
    one behind the other, loaded, and are compared with a full prefill. Stores the chunks under a salt of its own.

    Args:
        reuse: The model and its store.
        chunks: At least two chunks of token ids as they will be served, each ending with its delimiter.
        question: Token ids, without a delimiter.
        fixup: The fix-up that will be served; none that is "full".
        round_trip_max: Bound of `GateReport.round_trip`. None: .001 where the store keeps float32, .02 for float16, .1
            for bfloat16, .4 for int8 payloads and 1.1 for fp8.
        moved_kl_max: Bound of `GateReport.moved_kl`, in nats.

    Raises:
        sarpstore.InputError: Fewer than two chunks, no question, or a store that did not keep what was put.
    """
    if len(chunks) < 2 or not len(question):
        raise sarpstore.InputError("a gate needs two chunks and a question")
    wanted = FixUp.of(fixup)
    layout = reuse.layout
    stored = layout.dtype if layout.payload == "exact" else layout.payload
    bound = _ROUND_TRIP_MAX[stored] if round_trip_max is None else round_trip_max
    trip = await _round_trip(reuse, chunks[0], question)
    kl, top1 = await _moved(reuse, chunks, question, wanted)
    reasons = []
    if not trip <= bound:
        reasons.append(f"a chunk read back where it was computed changes the logits by {trip:.2g} (bound {bound:g})")
    if not kl <= moved_kl_max:
        reasons.append(f"a moved chunk changes the distributions by {kl:.2g} nats (bound {moved_kl_max:g})")
    return GateReport(
        passed=not reasons,
        round_trip=trip,
        round_trip_max=bound,
        moved_kl=kl,
        moved_kl_max=moved_kl_max,
        moved_top1=top1,
        why="; ".join(reasons),
    )


async def _round_trip(reuse: Reuse, chunk: Sequence[int], question: Sequence[int]) -> float:
    prompt = [*reuse.system, *chunk, *question]
    loaded = await _from_store(reuse, prompt, FixUp("conditioned"))

    def computed() -> torch.Tensor:
        cache = empty_cache(reuse.model)
        for part in (reuse.system, chunk):
            if len(part):
                forward(reuse.model, part, cache)
        return forward(reuse.model, question, cache)

    true = await reuse.with_model(computed)
    return float((true - loaded.logits).abs().max() / true.float().std())


async def _moved(
    reuse: Reuse, chunks: Sequence[Sequence[int]], question: Sequence[int], wanted: FixUp
) -> tuple[float, float]:
    """(mean KL, share of equal likeliest tokens) over the question's tokens."""
    # The first chunk was stored before, so the others go before it.
    prompt = [*reuse.system, *(token for chunk in (*chunks[1:], chunks[0]) for token in chunk), *question]
    loaded = await _from_store(reuse, prompt, wanted)

    def computed() -> torch.Tensor:
        return forward(reuse.model, prompt, empty_cache(reuse.model), logits_to_keep=len(question))

    true = await reuse.with_model(computed)
    same = (true.argmax(dim=-1) == loaded.logits.argmax(dim=-1)).float().mean()
    return float(divergence(true, loaded.logits).mean()), float(same)


async def _from_store(reuse: Reuse, prompt: list[int], wanted: FixUp) -> Prefilled:
    """A prefill all of whose chunks come from the store, which a first one has put there."""
    for _ in range(2):
        prefill: Any = await reuse.prefill(prompt, fixup=wanted, salt=_SALT, all_logits=True)
    if prefill.hit_tokens + prefill.question_tokens != prefill.tokens:
        raise sarpstore.InputError("the store did not keep the gate's chunks: is it read-only, or too small?")
    return prefill  # type: ignore[no-any-return]
