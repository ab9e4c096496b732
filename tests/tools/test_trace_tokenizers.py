"""Tokenizers that the user names, and what is said when one is missing or wrong."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from sarpstore_tools.traces import TraceError
from sarpstore_tools.traces.tokenizers import load_tokenizer

SENTENCES = ["the store holds what was computed before", "a match tells how far a prefix is held", "one read"]


@pytest.fixture
def sentencepiece_model(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=model,
        vocab_size=40,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = tmp_path / "t.model"
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture
def tokenizers_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<s>": 0, "<unk>": 1, "one": 2, "read": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "t.json"
    made.save(str(path))
    return path


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sentencepiece_model_encodes_each_text_by_itself(sentencepiece_model):
    tokenizer = load_tokenizer(str(sentencepiece_model))
    both = tokenizer.encode(SENTENCES[:2])
    assert [tokens.dtype for tokens in both] == [np.uint32] * 2
    assert np.array_equal(both[1], tokenizer.encode(SENTENCES[1:2])[0])
    assert tokenizer.start.tolist() == [1]


@pytest.mark.extra
def test_a_tokenizers_file_encodes_each_text_by_itself(tokenizers_file):
    tokenizer = load_tokenizer(str(tokenizers_file))
    assert [tokens.tolist() for tokens in tokenizer.encode(["one read", "", "read that"])] == [[2, 3], [], [3, 1]]
    assert tokenizer.start.tolist() == [0]


def test_text_without_a_tokenizer_asks_for_one():
    with pytest.raises(TraceError, match="--tokenizer FILE"):
        load_tokenizer(None)


@pytest.mark.parametrize(("suffix", "module"), [(".model", "sentencepiece"), (".json", "tokenizers")])
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, suffix, module):
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"t{suffix}"
    path.write_bytes(b"")
    with pytest.raises(TraceError, match=r"sarpstore\[tokenizers\]"):
        load_tokenizer(str(path))


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("suffix", "module"), [(".model", "sentencepiece"), (".json", "tokenizers")])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, suffix, module):
    pytest.importorskip(module)
    path = tmp_path / f"t{suffix}"
    path.write_bytes(b"no tokenizer")
    with pytest.raises(TraceError, match="not a "):
        load_tokenizer(str(path))


def test_an_unknown_suffix_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no such tokenizer"):
        load_tokenizer(str(tmp_path / "t.model"))
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(TraceError, match="unknown kind"):
        load_tokenizer(str(tmp_path / "t.txt"))
