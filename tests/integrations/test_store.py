"""Chunk reuse from a real store on disk: hits, before and after it is reopened, with the answers of the double."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sarpstore

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from sarpstore_tools.chunks import demo
from sarpstore_tools.chunks.memory import MemoryChunks
from sarpstore_tools.chunks.samples import OWN
from sarpstore_tools.main import main

from sarpstore.integrations import transformers as hf
from sarpstore.integrations._hf import reuse as reuse_module
from sarpstore.integrations._hf.kv import array_of

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
OPEN_GATE = hf.GateReport(passed=True, round_trip=0, round_trip_max=0, moved_kl=0, moved_kl_max=1, moved_top1=1, why="")


async def answers(model: Any, chunks: Any, builder: Any) -> list[hf.Answer]:
    generator = hf.ChunkedGenerator(hf.Reuse(model, chunks, system=builder.system_tokens), gate=OPEN_GATE)
    prompt = builder.build([each.document for each in OWN[:2]], OWN[0].question).tokens
    return [await generator.generate(prompt, new_tokens_max=6) for _ in range(2)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_prompt_hits_the_second_time_and_after_reopening(
    loaded: tuple[Any, Any], builder: Any, tmp_path: Path, dtype: str
) -> None:
    model, tokenizer = loaded
    layout = hf.layout_of(model, dtype=dtype)
    expected = await answers(model, MemoryChunks(model, layout, (builder.delimiter,)), builder)
    options: dict[str, Any] = {
        "layout": layout,
        "fingerprint": hf.fingerprint_of(model, tokenizer),
        "delimiters": (builder.delimiter,),
        "bytes_max": 256 * MIB,
        "region_bytes": 32 * MIB,
    }
    found = []
    for _ in range(2):
        async with sarpstore.open_chunks(tmp_path / "chunks", **options) as chunks:
            own = await answers(model, chunks, builder)
            assert not chunks._computing
            assert chunks.stats().used_tokens == sum(each.prefill.hit_tokens for each in own)
            found += own
    assert [each.tokens for each in found] == [expected[0].tokens] * 4
    hits = [each.prefill.hit_tokens for each in found]
    assert hits == [0, *[expected[1].prefill.hit_tokens] * 3]
    assert hits[1] > 0


def opened(path: Path, layout: sarpstore.KVLayout, builder: Any) -> Any:
    return sarpstore.open_chunks(
        path,
        layout=layout,
        fingerprint=b"a model",
        delimiters=(builder.delimiter,),
        bytes_max=256 * MIB,
        region_bytes=32 * MIB,
    )


@pytest.mark.parametrize(
    ("dtype", "payload"), [("float32", "exact"), ("bfloat16", "exact"), ("bfloat16", "int8"), ("bfloat16", "fp8")]
)
async def test_the_gate_opens_for_a_real_store(
    model: Any, builder: Any, tmp_path: Path, dtype: str, payload: Any
) -> None:
    async with opened(tmp_path, hf.layout_of(model, dtype=dtype, payload=payload), builder) as chunks:
        reuse = hf.Reuse(model, chunks, system=builder.system_tokens)
        documents = [builder.document_tokens(each.document) for each in OWN[:2]]
        report = await hf.gate(reuse, chunks=documents, question=builder.question_tokens(OWN[0].question))
        assert report.passed, report.why


async def test_what_a_store_cannot_take_is_served_without_it(
    model: Any, builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload of a byte an element has no infinities."""
    monkeypatch.setattr(reuse_module, "array_of", lambda part, dtype: np.full_like(array_of(part, dtype), np.inf))
    async with opened(tmp_path, hf.layout_of(model, dtype="float32", payload="int8"), builder) as chunks:
        reuse = hf.Reuse(model, chunks, system=builder.system_tokens)
        prompt = builder.build([OWN[0].document], OWN[0].question).tokens
        found = await reuse.prefill(prompt)
        assert (found.rung, found.hit_tokens) == ("conditioned", 0)
        assert reuse.store_failures == 2
        assert chunks.stats().chunks == 0


def test_a_demo_hits_on_its_second_run(
    loaded: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "load_model", lambda path: loaded)
    arguments = ["--requests", "1", "--documents", "2", "--answer-tokens", "2", "--store", str(tmp_path / "chunks")]
    for rate in ("0.0 %", "100.0 %"):
        with pytest.raises(SystemExit) as exit_info:
            main(["chunks", "demo", *arguments])
        out = capsys.readouterr().out
        assert exit_info.value.code == 0, out
        row = next(line for line in out.splitlines() if line.count("│") > 1 and line.split("│")[1].strip() == "all")
        assert rate in row
