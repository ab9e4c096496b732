"""Prompts: the same ids alone and in place, whole documents as chunks, and texts that would break that."""

from __future__ import annotations

from typing import Any

import pytest

import sarpstore

pytest.importorskip("transformers")

from sarpstore.integrations.prompts import PromptBuilder

DOCUMENTS = ["The bridge opened in 1932.", "  leading blanks, \n\n and\ttabs ", "Ünïcödé · 漢字", "\n", "1 2 3\n"]


def test_a_document_has_the_same_ids_alone_and_in_place(builder: Any, loaded: tuple[Any, Any]) -> None:
    prompt = builder.build(DOCUMENTS, "When did it open?")
    assert loaded[1].encode(prompt.text, add_special_tokens=False) == prompt.tokens
    begins = [0, *prompt.ends[:-1]]
    chunks = [prompt.tokens[begin:end] for begin, end in zip(begins, prompt.ends, strict=True)]
    assert chunks[0] == builder.system_tokens
    assert chunks[1:-1] == [builder.document_tokens(text) for text in DOCUMENTS]
    assert chunks[-1] == builder.question_tokens("When did it open?")


async def test_chunks_of_a_store_are_whole_documents(builder: Any, memory: Any) -> None:
    prompt = builder.build(DOCUMENTS, "When did it open?")
    plan = await memory.plan(prompt.tokens)
    assert [span.end for span in plan.spans] == prompt.ends
    assert [span.why for span in plan.spans] == ["new"] * (len(DOCUMENTS) + 1) + ["question"]


def test_documents_keep_their_ids_in_any_order(builder: Any) -> None:
    one, other = builder.build(DOCUMENTS, "?"), builder.build(DOCUMENTS[::-1], "?")
    assert sorted(one.tokens) == sorted(other.tokens)
    assert one.ends[-1] == other.ends[-1]


def test_what_would_be_cut_or_melt_is_refused(builder: Any, loaded: tuple[Any, Any]) -> None:
    with pytest.raises(sarpstore.InputError, match="has the delimiter"):
        builder.build(["one<file_sep>two"], "?")
    newline = loaded[1].encode("\n", add_special_tokens=False)[0]
    with pytest.raises(sarpstore.InputError, match="melts"):
        PromptBuilder(loaded[1], delimiter=newline)
    with pytest.raises(sarpstore.InputError, match="once"):
        PromptBuilder(loaded[1], delimiter=5, document="no place for it")
