"""What is measured of chunk reuse: agreement with full prefill over the tokens of its answer, and what it saves."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sarpstore.integrations.prompts import PromptBuilder
from sarpstore.integrations.transformers import RUNGS, FixUp, Reuse, divergence, fingerprint_of, layout_of
from sarpstore_tools.chunks.memory import MemoryChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sarpstore.integrations.transformers import Prefilled
    from sarpstore_tools.chunks.samples import Case

DELIMITERS = ("<file_sep>", "<|file_sep|>", "<|reserved_special_token_0|>", "<|endoftext|>")
"""The first of these that a tokenizer has ends the chunks."""

DOCUMENT = "{text}\n"
MESSAGES = ("Answer from the documents, in a few words.", "Documents and question:\n", "Question: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request at one rung.

    kind, rung: What was asked, and how chunks were reused.
    top1: Share of the answer's tokens that would be likeliest here too; kl: mean KL(full || reused) in nats.
    saved: Share of the prompt's tokens that did not pass through the model, all chunks being held.
    first_token_ms, full_first_token_ms: From the request to the logits of the first token, here and without reuse.
    tokens: Of the prompt.
    """

    kind: str
    rung: str
    top1: float
    kl: float
    saved: float
    first_token_ms: float
    full_first_token_ms: float
    tokens: int


def builder_for(tokenizer: Any) -> PromptBuilder:
    """Prompts in the chat form of this model: system and user in the first chunk, then documents, then the question."""
    ids = [
        i for text in DELIMITERS if (i := tokenizer.convert_tokens_to_ids(text)) not in (None, tokenizer.unk_token_id)
    ]
    system, opening, question = MESSAGES
    mark = "\0"
    roles = [{"role": "system", "content": system}, {"role": "user", "content": f"{opening}{mark}{question}"}]
    form = tokenizer.apply_chat_template(roles, tokenize=False, add_generation_prompt=True)
    before, after = form.split(mark)
    return PromptBuilder(tokenizer, delimiter=ids[0], system=before, document=DOCUMENT, question=after)


class Measurement:
    """A model whose rungs are compared with full prefill, its chunks held in memory."""

    def __init__(self, model: Any, tokenizer: Any, *, dtype: str | None, answer_tokens: int, fixup: FixUp) -> None:
        self.model = model
        self.layout = layout_of(model, dtype=dtype)
        self.builder = builder_for(tokenizer)
        self.fingerprint = fingerprint_of(model, tokenizer)
        self.chunks = MemoryChunks(model, self.layout, (self.builder.delimiter,))
        self.reuse = Reuse(model, self.chunks, system=self.builder.system_tokens)
        self._answer_tokens = answer_tokens
        self._fixup = fixup

    async def run(self, cases: Iterable[Case], told: Callable[[], None]) -> list[Sample]:
        """Measure each case at every rung; `told` is called after each case."""
        samples = []
        for case in cases:
            samples += await self._case(case)
            told()
        return samples

    async def _case(self, case: Case) -> list[Sample]:
        prompt = self.builder.build(case.documents, case.question).tokens
        full, full_ms = await self._timed(prompt, FixUp("full"))
        answer, true = await self.reuse.with_model(self._answered, full)
        samples = []
        for rung in RUNGS[:-1]:
            fixup = FixUp(rung, first=self._fixup.first, share=self._fixup.share)
            found, ms = await self._timed(prompt, fixup)
            while found.hit_tokens + found.question_tokens < found.tokens:
                found, ms = await self._timed(prompt, fixup)
            logits = await self.reuse.with_model(self._continued, found, answer)
            samples.append(
                Sample(
                    kind=case.kind,
                    rung=rung,
                    top1=float((logits.argmax(dim=-1) == true.argmax(dim=-1)).float().mean()),
                    kl=float(divergence(true, logits).mean()),
                    saved=1 - found.computed_tokens / found.tokens,
                    first_token_ms=ms,
                    full_first_token_ms=full_ms,
                    tokens=len(prompt),
                )
            )
        return samples

    async def _timed(self, prompt: list[int], fixup: FixUp) -> tuple[Prefilled, float]:
        found = await self.reuse.prefill(prompt, fixup=fixup)
        return found, found.seconds * 1e3

    def _answered(self, full: Prefilled) -> tuple[list[int], torch.Tensor]:
        """(tokens that full prefill answers with, greedily; the logits that each was taken from)"""
        answer: list[int] = []
        logits = [full.logits[-1]]
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        while len(answer) < self._answer_tokens:
            answer.append(int(logits[-1].argmax()))
            if answer[-1] in ends or len(answer) == self._answer_tokens:
                break
            logits.append(self._step([answer[-1]], full.cache)[-1])
        return answer, torch.stack(logits)

    def _continued(self, found: Prefilled, answer: list[int]) -> torch.Tensor:
        """The logits before each token of an answer that is given."""
        first = found.logits[-1:]
        return torch.cat((first, self._step(answer[:-1], found.cache))) if len(answer) > 1 else first

    def _step(self, tokens: list[int], cache: Any) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self.model.device)
        with torch.inference_mode():
            logits: torch.Tensor = self.model(ids, cache=cache, use_cache=True).logits[0]
        return logits


def summarised(samples: list[Sample]) -> list[dict[str, Any]]:
    """Means of each kind and rung, in their order; times are medians."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.kind, sample.rung), []).append(sample)
    kinds = list(dict.fromkeys(sample.kind for sample in samples))
    rows = []
    for kind, rung in ((kind, rung) for kind in kinds for rung in RUNGS if (kind, rung) in groups):
        own = groups[kind, rung]
        row: dict[str, Any] = {"kind": kind, "rung": rung, "requests": len(own)}
        for name in ("top1", "kl", "saved", "tokens"):
            row[name] = statistics.fmean(getattr(sample, name) for sample in own)
        for name in ("first_token_ms", "full_first_token_ms"):
            row[name] = statistics.median(getattr(sample, name) for sample in own)
        rows.append(row)
    return rows
