"""Generation on top of reused chunks, behind a gate and a switch that shadow sampling throws."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import sarpstore
from sarpstore.integrations._hf.fixup import FixUp
from sarpstore.integrations._hf.kv import forward
from sarpstore.integrations._hf.reuse import Prefilled, Reuse, as_token_list, full_prefill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sarpstore.integrations._hf.gate import GateReport

__all__ = ["Answer", "ChunkedGenerator", "GeneratorStats", "Shadow", "divergence"]


def divergence(full: torch.Tensor, reused: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence KL(full || reused) of next-token distributions, in nats, [tokens].

    Both are logits, [tokens, vocabulary].
    """
    true, other = (torch.log_softmax(logits.float(), dim=-1) for logits in (full, reused))
    return (true.exp() * (true - other)).sum(dim=-1).clamp_min(0)


class Shadow:
    """Shadow sampling: on some requests a full prefill is computed beside the reuse, and the answers are compared.

    share: Of the requests that reused something, from 0 to 1.
    kl_max: Bound of the mean KL, in nats, over the latest samples. Above it `on` becomes False and stays so.
    samples: How many samples the mean is over; fewer than a quarter of them decide nothing.
    seed: Of the choice.
    """

    def __init__(self, *, share: float = 0.01, kl_max: float = 0.5, samples: int = 32, seed: int = 0) -> None:
        if not 0 <= share <= 1:
            raise sarpstore.OptionError(f"share={share!r}: must be from 0 to 1")
        if not kl_max > 0 or samples < 1:
            raise sarpstore.OptionError(f"kl_max={kl_max!r}, samples={samples!r}: must be above 0")
        self.on = True
        self.sampled = 0
        self._share, self._kl_max = share, kl_max
        self._least = max(1, samples // 4)
        self._latest: deque[float] = deque(maxlen=samples)
        self._random = random.Random(seed)  # noqa: S311 - a sample, not a secret

    @property
    def kl_mean(self) -> float:
        """Of the latest samples, in nats; 0.0 before the first."""
        return sum(self._latest) / len(self._latest) if self._latest else 0.0

    def chosen(self) -> bool:
        """Whether this request is sampled."""
        return self._random.random() < self._share

    def note(self, kl: float) -> None:
        """Take a sample's mean KL, in nats; switches off where the mean of the latest is above the bound."""
        self.sampled += 1
        self._latest.append(kl)
        if len(self._latest) >= self._least and self.kl_mean > self._kl_max:
            self.on = False


@dataclass(slots=True)
class GeneratorStats:
    """Counters since the generator was made.

    requests: All of them.
    reused: Those whose prefill used chunks; the others were prefilled in full.
    prompt_tokens, hit_tokens, computed_tokens, fixed_tokens: As in `Prefilled`, summed.
    shadowed, shadow_kl: Requests that were compared with a full prefill, and the mean KL of the latest, in nats.
    reuse_on: Whether the gate is open and shadow sampling has not switched reuse off.
    """

    requests: int = 0
    reused: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    fixed_tokens: int = 0
    shadowed: int = 0
    shadow_kl: float = 0.0
    reuse_on: bool = False

    @property
    def saved_share(self) -> float:
        """Share of the prompts' tokens that did not pass through the model; 0.0 before the first request."""
        return 1 - self.computed_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was generated.

    tokens: Token ids, without the end token.
    prefill: How the prompt was prefilled; `prefill.seconds` is the time to the first token. Its cache holds the prompt
        and all but the last of the tokens that were passed on.
    kl: Mean KL(full || reused) over the generated tokens, in nats, where the request was sampled; else None.
    """

    tokens: list[int]
    prefill: Prefilled
    kl: float | None


class ChunkedGenerator:
    """Answers prompts whose chunks are reused wherever they stand.

    Without a gate's report that passed, every prompt is prefilled in full: see `gate`.

    Args:
        reuse: The model and its store.
        gate: What `gate` found for this model and store; None: reuse stays off.
        shadow: Which requests are compared with a full prefill; None: 1 % of them, bound 0.5 nats.
    """

    def __init__(self, reuse: Reuse, *, gate: GateReport | None, shadow: Shadow | None = None) -> None:
        self._reuse = reuse
        self._model = reuse.model
        self._gate = gate
        self._shadow = shadow or Shadow()
        self._stats = GeneratorStats()

    @property
    def reuse_on(self) -> bool:
        """Whether the gate is open and shadow sampling has not switched reuse off."""
        return self._gate is not None and self._gate.passed and self._shadow.on

    def stats(self) -> GeneratorStats:
        """The counters as they are now."""
        shadow = self._shadow
        return replace(self._stats, shadowed=shadow.sampled, shadow_kl=shadow.kl_mean, reuse_on=self.reuse_on)

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        fixup: FixUp | str = "conditioned",
        new_tokens_max: int = 64,
        salt: bytes = b"",
        adapter: str = "",
    ) -> Answer:
        """Generate greedily until the model's end token. Requests take turns at the model.

        Args:
            tokens: Token ids of the prompt; its last chunk is the question.
            fixup: What is computed again of reused chunks: a `FixUp`, or a rung's name.
            new_tokens_max: Bound of the answer, at least 1.
            salt: The tenant's: chunks of different salts are never shared.
            adapter: The adapter's name that the model has active.

        Raises:
            sarpstore.InputError: See `Reuse.prefill`.
        """
        prompt, wanted = as_token_list(tokens), FixUp.of(fixup)
        used = wanted if self.reuse_on else FixUp("full")
        prefill = await self._reuse.prefill(prompt, fixup=used, salt=salt, adapter=adapter)
        answer, logits = await self._reuse.with_model(self._decoded, prefill, new_tokens_max)
        self._count(prefill)
        kl = None
        if prefill.rung != "full" and self._shadow.chosen():
            kl = await self._reuse.with_model(self._shadowed, prompt, answer, logits)
            self._shadow.note(kl)
            self._reuse.note_drift(kl)
        return Answer(tokens=answer, prefill=prefill, kl=kl)

    def _count(self, prefill: Prefilled) -> None:
        stats = self._stats
        stats.requests += 1
        stats.reused += prefill.rung != "full"
        stats.prompt_tokens += prefill.tokens
        stats.hit_tokens += prefill.hit_tokens
        stats.computed_tokens += prefill.computed_tokens
        stats.fixed_tokens += prefill.fixed_tokens

    def _decoded(self, prefill: Prefilled, new_tokens_max: int) -> tuple[list[int], torch.Tensor]:
        """(tokens, logits that each of them, and the end token if there is one, was taken from)."""
        ends = _end_tokens(self._model)
        logits = [prefill.logits[-1]]
        answer: list[int] = []
        while (token := int(logits[-1].argmax())) not in ends:
            answer.append(token)
            if len(answer) >= new_tokens_max:
                break
            logits.append(forward(self._model, [token], prefill.cache)[-1])
        return answer, torch.stack(logits)

    def _shadowed(self, prompt: list[int], answer: list[int], logits: torch.Tensor) -> float:
        full = full_prefill(self._model, prompt)
        others = [full.logits]
        following = answer[: len(logits) - 1]
        if following:
            others.append(forward(self._model, following, full.cache))
        return float(divergence(torch.cat(others), logits).mean())


def _end_tokens(model: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set() if ends is None else {ends} if isinstance(ends, int) else set(ends)
