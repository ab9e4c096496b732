"""Small random models of several architectures: keys normed, scaled, partly rotated, or seen through windows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sarpstore

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

from sarpstore_tools.chunks.memory import MemoryChunks  # noqa: E402

from sarpstore.integrations import transformers as hf  # noqa: E402
from sarpstore.integrations._hf.kv import array_of, check_capture, empty_cache, forward, tensor_of  # noqa: E402

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
PARTIAL = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
ARCHITECTURES = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "partial": ("StableLm", {"rope_parameters": PARTIAL}),
    "biased": ("Qwen2", {}),
    "normed": ("Qwen3", {}),
    "windows": ("Mistral", {"sliding_window": 8}),
    "interleaved": ("Cohere", {}),
    "linear": ("Llama", {"rope_parameters": LINEAR}),
}
SYSTEM, FIRST, SECOND = [9, 10, 11, 1], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 1], [30, 31, 32, 33, 34, 1]
ASKED = [40, 41, 42]


def made(name: str, dtype: str = "float32") -> Any:
    kind, rest = ARCHITECTURES[name]
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **rest)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def reuse_of(model: Any) -> hf.Reuse:
    return hf.Reuse(model, MemoryChunks(model, hf.layout_of(model), (1,)), system=SYSTEM)


@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_a_round_trip_is_exact(name: str) -> None:
    report = await hf.gate(reuse_of(made(name)), chunks=[FIRST, SECOND], question=ASKED, moved_kl_max=10.0)
    assert report.exact
    assert report.passed


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "windows"])
async def test_recomputing_everything_is_full_prefill(name: str) -> None:
    reuse = reuse_of(made(name))
    prompt = [*SYSTEM, *FIRST, *SECOND, *ASKED]
    true = forward(reuse.model, prompt, empty_cache(reuse.model))[-len(ASKED) :]
    for fixup in (hf.FixUp("first-k", first=100), hf.FixUp("deviation", share=1.0)):
        found = await reuse.prefill(prompt, fixup=fixup, all_logits=True)
        assert torch.allclose(found.logits, true, atol=1e-5)
    moved = await reuse.prefill(prompt, fixup="none", all_logits=True)
    assert not torch.allclose(moved.logits, true, atol=1e-5)


def test_layouts_state_scaling_partial_rotation_and_windows() -> None:
    assert hf.layout_of(made("partial")).rope.rotary_dim == 8
    assert hf.layout_of(made("windows")).windows == (8, 8, 8, 8)
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    llama3 = sarpstore.Llama3Scaling(**{name: LLAMA3[name] for name in names})
    assert hf.layout_of(made("llama3")).rope == sarpstore.Rope(rotary_dim=16, scaling=llama3)
    yarn = sarpstore.YarnScaling(factor=4.0, original_max_position_embeddings=1024)
    assert hf.layout_of(made("yarn")).rope == sarpstore.Rope(rotary_dim=16, scaling=yarn)
    assert hf.layout_of(made("linear")).rope.scaling == sarpstore.LinearScaling(factor=4)
    assert hf.layout_of(made("interleaved")).rope.style == "interleaved"


@pytest.mark.parametrize(
    ("model_dtype", "dtype", "error_max"),
    [
        # transformers has its angles in float32, the store in float64.
        ("float32", "float32", 1e-4),
        ("float32", "bfloat16", 0.003),
        # This model rounds cosine, sine and both products itself.
        ("bfloat16", "bfloat16", 0.006),
    ],
)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_store_rotates_keys_as_the_model_does(name: str, model_dtype: str, dtype: str, error_max: float) -> None:
    model = made(name, model_dtype)
    layout = hf.layout_of(model, dtype=dtype)
    tokens = torch.randint(64, (96,), generator=torch.Generator().manual_seed(3)).tolist()
    capture = hf.Capture(model, layout)
    for begin in (0, 1, 997, 8000 - len(tokens)):
        cache = empty_cache(model)
        with capture.hooked():
            forward(model, tokens, cache, positions=torch.arange(begin, begin + len(tokens)))
            own = array_of(capture.take().keys, dtype)
        turned = np.empty_like(own)
        sarpstore.rotate_keys(layout, own, turned, begin)
        for layer, found in zip(cache.layers, tensor_of(turned, dtype), strict=True):
            true = layer.keys[0].double()
            last = found[:, -true.shape[1] :].double()
            assert float((last - true).norm() / true.norm()) <= error_max


def test_a_model_whose_frequencies_were_rounded_is_refused() -> None:
    # `.to()` rounds them with the weights; transformers keeps them in float32 when it loads a model.
    with pytest.raises(sarpstore.InputError, match="cannot be taken unrotated"):
        reuse_of(made("llama").to(torch.bfloat16))


async def test_single_tokens_are_not_computed_again_behind_windows() -> None:
    reuse = reuse_of(made("windows"))
    with pytest.raises(sarpstore.InputError, match="sliding windows"):
        await reuse.prefill([*SYSTEM, *FIRST, *ASKED], fixup="first-k")


def test_models_whose_keys_cannot_be_taken_are_refused() -> None:
    torch.manual_seed(5)
    fused = transformers.Phi3ForCausalLM(transformers.Phi3Config(**SHAPE))
    with pytest.raises(sarpstore.InputError, match="k_proj"):
        reuse_of(fused)
    model = made("llama")
    layout = replace(hf.layout_of(model), rope=sarpstore.Rope(theta=10_500.0))
    with pytest.raises(sarpstore.InputError, match="cannot be taken unrotated"):
        check_capture(model, hf.Capture(model, layout), layout)
    with pytest.raises(sarpstore.InputError, match="another layout"):
        hf.Reuse(model, MemoryChunks(model, layout, (1,)))
    growing = transformers.LlamaConfig(**SHAPE, rope_parameters={**YARN, "rope_type": "dynamic"})
    with pytest.raises(sarpstore.InputError, match="rope_type='dynamic'"):
        hf.layout_of(transformers.LlamaForCausalLM(growing))


async def test_requests_at_the_same_time_compute_a_chunk_once() -> None:
    reuse = reuse_of(made("llama"))
    prompt = [*SYSTEM, *FIRST, *ASKED]
    found = await asyncio.gather(*(reuse.prefill(prompt) for _ in range(4)))
    assert sorted(each.hit_tokens for each in found) == [0, 15, 15, 15]
    assert reuse._chunks.puts == 2
    assert all(torch.equal(each.logits, found[0].logits) for each in found)


async def test_a_cancelled_request_keeps_its_turn_until_it_has_left_the_model() -> None:
    reuse = reuse_of(made("llama"))
    began, may_end, order = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        may_end.wait()
        order.append("left")

    first = asyncio.create_task(reuse.with_model(work))
    await asyncio.to_thread(began.wait)
    first.cancel()
    second = asyncio.create_task(reuse.with_model(order.append, "next"))
    await asyncio.sleep(0.02)
    assert order == []
    may_end.set()
    await second
    assert order == ["left", "next"]
    assert first.cancelled()


async def test_the_system_prompt_is_computed_again_for_another_adapter() -> None:
    reuse = reuse_of(made("llama"))
    prompt = [*SYSTEM, *FIRST, *ASKED]
    await reuse.prefill(prompt)
    # What an adapter does to the model.
    with torch.no_grad():
        reuse.model.get_decoder().layers[0].self_attn.v_proj.weight.mul_(1.5)
    changed = await reuse.prefill(prompt, adapter="other", all_logits=True)
    assert changed.hit_tokens == 0
    cache = empty_cache(reuse.model)
    for part in (SYSTEM, FIRST, ASKED):
        true = forward(reuse.model, part, cache)
    assert torch.equal(changed.logits, true)


async def test_a_store_that_fails_costs_its_hits_alone(caplog: pytest.LogCaptureFixture) -> None:
    reuse = reuse_of(made("llama"))
    prompt = [*SYSTEM, *FIRST, *ASKED]

    async def fails(*_: Any, **__: Any) -> Any:
        raise sarpstore.DiskFullError("write", "chunks.log", 28)

    chunks: Any = reuse._chunks
    kept, chunks.held = chunks.held, {}
    reuse._chunks = type("Full", (), {"plan": chunks.plan, "load": chunks.load, "put": staticmethod(fails)})()
    found = await reuse.prefill(prompt)
    assert (found.rung, found.hit_tokens, reuse.store_failures) == ("conditioned", 0, 2)
    reuse._chunks = type("Gone", (), {"plan": staticmethod(fails)})()
    assert (await reuse.prefill(prompt)).rung == "full"
    assert reuse.store_failures == 3
    assert "served without it" in caplog.text
    assert kept == {}


OPEN_GATE = hf.GateReport(passed=True, round_trip=0, round_trip_max=0, moved_kl=0, moved_kl_max=1, moved_top1=1, why="")


async def test_the_store_is_told_what_each_request_used_and_how_far_its_answer_was() -> None:
    reuse = reuse_of(made("llama"))
    chunks: Any = reuse._chunks
    generator = hf.ChunkedGenerator(reuse, gate=OPEN_GATE, shadow=hf.Shadow(share=1.0, kl_max=1e9))
    prompt = [*SYSTEM, *FIRST, *ASKED]
    first = await generator.generate(prompt, new_tokens_max=2)
    assert chunks.used == []  # all of it was computed
    second = await generator.generate(prompt, new_tokens_max=2)
    assert chunks.used == [(second.prefill.hit_tokens, 0)] == [(len(SYSTEM) + len(FIRST), 0)]
    # Of what is computed again, tokens that this very request has computed do not count.
    both = await generator.generate([*SYSTEM, *FIRST, *SECOND, *ASKED], fixup=hf.FixUp("first-k", first=3))
    assert both.prefill.fixed_tokens == 6
    assert chunks.used[1:] == [(len(SYSTEM) + len(FIRST), 3)]
    await generator.generate(prompt, fixup="full")
    assert len(chunks.used) == 2
    assert chunks.drift == [first.kl, second.kl, both.kl]


async def test_a_store_that_cannot_be_told_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    reuse = reuse_of(made("llama"))
    generator = hf.ChunkedGenerator(reuse, gate=OPEN_GATE, shadow=hf.Shadow(share=1.0, kl_max=1e9))
    prompt = [*SYSTEM, *FIRST, *ASKED]
    before = [await generator.generate(prompt, new_tokens_max=2) for _ in range(2)][-1]

    def fails(*_: Any, **__: Any) -> Any:
        raise sarpstore.ClosedError("it is closed")

    chunks: Any = reuse._chunks
    calls = {"plan": chunks.plan, "load": chunks.load, "put": chunks.put}
    reuse._chunks = type("Closed", (), {**calls, "note_use": fails, "note_drift": fails})()
    after = await generator.generate(prompt, new_tokens_max=2)
    assert (after.tokens, after.prefill.hit_tokens) == (before.tokens, before.prefill.hit_tokens)
    assert reuse.store_failures == 2
    assert "note_use failed" in caplog.text
    assert "note_drift failed" in caplog.text
