"""Chunk reuse with a real model: captured keys, exact round trips, the ladder, the gate and shadow sampling."""

from __future__ import annotations

from typing import Any

import pytest

import sarpstore

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from sarpstore.integrations import transformers as hf  # noqa: E402
from sarpstore.integrations._hf.kv import array_of, empty_cache, forward, tensor_of  # noqa: E402

DOCUMENTS = [
    "The Harbour Bridge of Varn was opened in 1932 after nine years of work. It carries two railway tracks.",
    "Lake Oru lies 412 metres above the sea. Its water is cold, and it freezes over in most winters.",
]
ASKED = "When was the bridge opened?"


def relative_error(found: Any, true: Any) -> float:
    return float((found.float() - true.float()).norm() / true.float().norm())


def test_the_layout_is_the_models(model: Any) -> None:
    layout = hf.layout_of(model, dtype="bfloat16")
    assert (layout.layers, layout.kv_heads, layout.head_dim, layout.windows) == (30, 3, 64, None)
    assert (layout.rope.theta, layout.rope.style, layout.rope.rotary_dim) == (100_000.0, "neox", 64)
    assert layout.rope.scaling is None
    assert layout.token_bytes == 30 * 2 * 3 * 64 * 2
    with pytest.raises(sarpstore.InputError, match="float64"):
        hf.layout_of(model, dtype="float64")


def test_a_fingerprint_changes_with_one_weight(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    before = hf.fingerprint_of(model, tokenizer)
    assert len(before) == 32
    weight = model.base_model.layers[7].self_attn.k_proj.weight
    kept = weight[3, 5].item()
    with torch.no_grad():
        weight[3, 5] = kept + 1
        changed = hf.fingerprint_of(model, tokenizer)
        weight[3, 5] = kept
    assert changed != before
    assert hf.fingerprint_of(model, tokenizer) == before


@pytest.mark.parametrize("begin", [0, 1, 997, 8000])
def test_keys_captured_unrotated_and_then_rotated_are_the_models_own(model: Any, builder: Any, begin: int) -> None:
    tokens = builder.document_tokens(DOCUMENTS[0])
    places = torch.arange(begin, begin + len(tokens))
    cache = empty_cache(model)
    capture = hf.Capture(model, hf.layout_of(model))
    with capture.hooked():
        forward(model, tokens, cache, positions=places)
        own = capture.take()
    true = torch.stack([layer.keys[0] for layer in cache.layers])
    assert torch.equal(hf.rotated(model, own.keys, places), true)
    assert torch.equal(own.values, torch.stack([layer.values[0] for layer in cache.layers]))
    stored = tensor_of(array_of(own.keys, "bfloat16"), "bfloat16")
    assert relative_error(hf.rotated(model, stored, places), true) <= 0.003


async def test_a_chunk_at_its_original_place_behind_its_original_prefix_gives_equal_logits(
    reuse: Any, memory: Any, builder: Any
) -> None:
    prompt = builder.build(DOCUMENTS[:1], ASKED)
    first = await reuse.prefill(prompt.tokens, all_logits=True)
    second = await reuse.prefill(prompt.tokens, all_logits=True)
    assert (first.hit_tokens, second.hit_tokens) == (0, prompt.ends[1])
    assert second.computed_tokens == len(prompt.tokens) - prompt.ends[1]
    assert memory.puts == 2
    cache = empty_cache(reuse.model)
    parts = (builder.system_tokens, builder.document_tokens(DOCUMENTS[0]), builder.question_tokens(ASKED))
    for part in parts:
        logits = forward(reuse.model, part, cache)
    assert torch.equal(second.logits, logits)
    assert torch.equal(first.logits, logits)


async def test_a_chunk_is_found_wherever_it_stands(reuse: Any, memory: Any, builder: Any) -> None:
    await reuse.prefill(builder.build(DOCUMENTS, ASKED).tokens)
    moved = await reuse.prefill(builder.build(DOCUMENTS[::-1], ASKED).tokens)
    assert moved.tokens - moved.hit_tokens == moved.computed_tokens == len(builder.question_tokens(ASKED))
    other = await reuse.prefill(builder.build(DOCUMENTS, ASKED).tokens, salt=b"another tenant")
    assert other.hit_tokens == 0
    assert memory.puts == 6


async def test_recomputing_everything_is_full_prefill(reuse: Any, builder: Any) -> None:
    prompt = builder.build(DOCUMENTS, ASKED).tokens
    full = await reuse.prefill(prompt, fixup="full")
    for fixup in (hf.FixUp("first-k", first=10_000), hf.FixUp("deviation", share=1.0)):
        found = await reuse.prefill(prompt, fixup=fixup)
        assert float(hf.divergence(full.logits, found.logits[-1:])[0]) < 1e-6
        assert relative_error(found.logits[-1], full.logits[-1]) < 1e-3


async def test_a_question_runs_over_every_rung(reuse: Any, builder: Any) -> None:
    report = hf.GateReport(
        passed=True, round_trip=0, round_trip_max=0, moved_kl=0, moved_kl_max=1, moved_top1=1, why=""
    )
    generator = hf.ChunkedGenerator(reuse, gate=report, shadow=hf.Shadow(share=1.0, kl_max=50.0))
    prompt = builder.build(DOCUMENTS, ASKED).tokens
    for rung in hf.RUNGS:
        answer = await generator.generate(prompt, fixup=rung, new_tokens_max=3)
        assert answer.prefill.rung == rung
        assert 0 < len(answer.tokens) <= 3
        assert (answer.kl is None) == (rung == "full")
        assert (answer.prefill.fixed_tokens > 0) == (rung in ("first-k", "deviation"))
    stats = generator.stats()
    assert (stats.requests, stats.reused, stats.shadowed, stats.reuse_on) == (5, 4, 4, True)
    assert 0 < stats.saved_share < 1


async def test_the_gate_opens_for_a_store_that_gives_back_what_it_got(reuse: Any, builder: Any) -> None:
    chunks = [builder.document_tokens(text) for text in DOCUMENTS]
    report = await hf.gate(reuse, chunks=chunks, question=builder.question_tokens(ASKED), moved_kl_max=2.0)
    assert report.exact
    assert report.passed, report.why
    assert 0 < report.moved_kl < 2


async def test_the_gate_stays_shut_where_keys_are_turned_wrongly(
    reuse: Any, memory: Any, builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(memory), "_turned", lambda self, keys, span: keys)
    chunks = [builder.document_tokens(text) for text in DOCUMENTS]
    report = await hf.gate(reuse, chunks=chunks, question=builder.question_tokens(ASKED))
    assert not report.passed
    assert "read back" in report.why
    generator = hf.ChunkedGenerator(reuse, gate=report)
    answer = await generator.generate(builder.build(DOCUMENTS[:1], ASKED).tokens, new_tokens_max=1)
    assert answer.prefill.rung == "full"
    assert not generator.stats().reuse_on


async def test_shadow_samples_above_the_bound_switch_reuse_off(reuse: Any, builder: Any) -> None:
    report = hf.GateReport(
        passed=True, round_trip=0, round_trip_max=0, moved_kl=0, moved_kl_max=1, moved_top1=1, why=""
    )
    generator = hf.ChunkedGenerator(reuse, gate=report, shadow=hf.Shadow(share=1.0, kl_max=1e-9, samples=1))
    prompt = builder.build(DOCUMENTS, ASKED).tokens
    sampled = await generator.generate(prompt, fixup="none", new_tokens_max=2)
    assert sampled.kl is not None
    assert sampled.kl > 0
    after = await generator.generate(prompt, fixup="none", new_tokens_max=2)
    assert after.prefill.rung == "full"
    assert not generator.reuse_on


async def test_prompts_that_cannot_be_reused_are_prefilled_or_refused(reuse: Any, builder: Any) -> None:
    alone = await reuse.prefill(builder.question_tokens(ASKED))
    assert alone.rung == "full"
    with pytest.raises(sarpstore.InputError, match="no tokens"):
        await reuse.prefill([])
    with pytest.raises(sarpstore.OptionError, match="must be one of"):
        await reuse.prefill([1, 2], fixup="some")
    split = hf.Reuse(reuse.model, reuse._chunks, system=[9, 5, 9, 5])
    with pytest.raises(sarpstore.InputError, match="not one chunk"):
        await split.prefill([9, 5, 9, 5, 9])
