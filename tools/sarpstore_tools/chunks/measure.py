"""What is measured of chunk reuse: agreement with full prefill over the tokens of its answer, and what it saves."""

from __future__ import annotations

import copy
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import sarpstore
from sarpstore.integrations.prompts import PromptBuilder
from sarpstore.integrations.transformers import RUNGS, FixUp, Reuse, divergence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from sarpstore.integrations.transformers import Prefilled
    from sarpstore_tools.chunks.samples import Case

DELIMITERS = ("<file_sep>", "<|file_sep|>", "<|reserved_special_token_0|>", "<|endoftext|>")
"""The first of these that a tokenizer has ends the chunks."""

_ATTEMPTS = 4
"""Prefills after which all chunks must hit: a full store admits what it was asked for more than once."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request, with reuse and with full prefill. Token counts are of the prompt, as in `Prefilled`.

    chunk_tokens: Of the prompt, without the question.
    top1, kl: Over the answer with reuse, as in `Sample`.
    answer, full_answer: Token ids.
    """

    tokens: int
    chunk_tokens: int
    hit_tokens: int
    computed_tokens: int
    first_token_ms: float
    full_first_token_ms: float
    top1: float
    kl: float
    answer: list[int]
    full_answer: list[int]


async def serve(reuse: Reuse, prompt: list[int], fixup: FixUp, answer_tokens: int) -> Served:
    """Answer a prompt both ways, greedily, with at most so many tokens."""
    full = await reuse.prefill(prompt, fixup="full")
    # Decoding changes the cache; the answer with reuse goes on top of it, too.
    again = replace(full, cache=copy.deepcopy(full.cache))
    found = await reuse.prefill(prompt, fixup=fixup)
    full_answer, _ = await reuse.with_model(answered, reuse.model, full, answer_tokens)
    answer, logits = await reuse.with_model(answered, reuse.model, found, answer_tokens)
    true = await reuse.with_model(continued, reuse.model, again, answer)
    return Served(
        tokens=found.tokens,
        chunk_tokens=found.tokens - found.question_tokens,
        hit_tokens=found.hit_tokens,
        computed_tokens=found.computed_tokens,
        first_token_ms=found.seconds * 1e3,
        full_first_token_ms=full.seconds * 1e3,
        top1=float((logits.argmax(dim=-1) == true.argmax(dim=-1)).float().mean()),
        kl=float(divergence(true, logits).mean()),
        answer=answer,
        full_answer=full_answer,
    )


def answered(model: Any, prefilled: Prefilled, tokens_max: int) -> tuple[list[int], torch.Tensor]:
    """(tokens of the greedy answer, its end token included; the logits that each was taken from)"""
    answer: list[int] = []
    logits = [prefilled.logits[-1]]
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    while len(answer) < tokens_max:
        answer.append(int(logits[-1].argmax()))
        if answer[-1] in ends or len(answer) == tokens_max:
            break
        logits.append(_step(model, [answer[-1]], prefilled.cache)[-1])
    return answer, torch.stack(logits)


def continued(model: Any, prefilled: Prefilled, answer: list[int]) -> torch.Tensor:
    """The logits before each token of an answer that is given."""
    first = prefilled.logits[-1:]
    return torch.cat((first, _step(model, answer[:-1], prefilled.cache))) if len(answer) > 1 else first


def _step(model: Any, tokens: list[int], cache: Any) -> torch.Tensor:
    ids = torch.tensor([tokens], device=model.device)
    with torch.inference_mode():
        logits: torch.Tensor = model(ids, cache=cache, use_cache=True).logits[0]
    return logits


class Measurement:
    """A model whose rungs are compared with full prefill. `chunks`: an open store, or `MemoryChunks`."""

    def __init__(self, model: Any, builder: PromptBuilder, chunks: Any, *, answer_tokens: int, fixup: FixUp) -> None:
        self.model = model
        self.builder = builder
        self.reuse = Reuse(model, chunks, system=builder.system_tokens)
        self._answer_tokens = answer_tokens
        self._fixup = fixup

    async def run(self, cases: Iterable[Case]) -> AsyncIterator[list[Sample]]:
        """Measure each case at every rung: the samples of a case as soon as it is measured."""
        for case in cases:
            yield await self._case(case)

    async def _case(self, case: Case) -> list[Sample]:
        prompt = self.builder.build(case.documents, case.question).tokens
        full, full_ms = await self._timed(prompt, FixUp("full"))
        answer, true = await self.reuse.with_model(answered, self.model, full, self._answer_tokens)
        samples = []
        for rung in RUNGS[:-1]:
            fixup = FixUp(rung, first=self._fixup.first, share=self._fixup.share)
            found, ms = await self._timed(prompt, fixup)
            for _ in range(_ATTEMPTS):
                if found.hit_tokens + found.question_tokens == found.tokens:
                    break
                found, ms = await self._timed(prompt, fixup)
            else:
                raise sarpstore.InputError("the store does not keep the chunks: is it too small?")
            logits = await self.reuse.with_model(continued, self.model, found, answer)
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
