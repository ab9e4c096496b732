"""Chunk reuse with models of Hugging Face transformers (extra `hf`: torch, transformers from 5.24 on).

    layout, fingerprint = layout_of(model), fingerprint_of(model, tokenizer)
    async with sarpstore.open_chunks(path, layout=layout, fingerprint=fingerprint,
                                     delimiters=(builder.delimiter,), bytes_max=30 * 10**9) as chunks:
        reuse = Reuse(model, chunks, system=builder.system_tokens)
        report = await gate(reuse, chunks=[...], question=[...])      # does this model agree with full prefill?
        generator = ChunkedGenerator(reuse, gate=report)
        answer = await generator.generate(tokens, fixup="first-k")

Chunks are found by their own content, wherever they stand. Their keys are stored before the rotary encoding, and turned
to the position where they stand now. What a chunk then lacks is attention to what stands before it; the fix-up ladder
(`FixUp`) computes some of that again, per request.
"""

from sarpstore.integrations._hf.facts import fingerprint_of, layout_of
from sarpstore.integrations._hf.fixup import RUNGS, FixUp
from sarpstore.integrations._hf.gate import GateReport, gate
from sarpstore.integrations._hf.generator import Answer, ChunkedGenerator, GeneratorStats, Shadow, divergence
from sarpstore.integrations._hf.kv import KV, Capture, rotated
from sarpstore.integrations._hf.reuse import Prefilled, Reuse

__all__ = [
    "KV",
    "RUNGS",
    "Answer",
    "Capture",
    "ChunkedGenerator",
    "FixUp",
    "GateReport",
    "GeneratorStats",
    "Prefilled",
    "Reuse",
    "Shadow",
    "divergence",
    "fingerprint_of",
    "gate",
    "layout_of",
    "rotated",
]
