"""Tokenizers that the user names: a sentencepiece `.model` file or a `tokenizers` `.json` file.

Both libraries are optional: the extra `sarpstore[tokenizers]`. Texts are encoded in batches, on both libraries' own
threads. Special tokens are never added to a text; the begin-of-text token stands once, at the start of a session.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sarpstore_tools.traces.model import NO_TOKENS, Tokens, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXTRA = "pip install 'sarpstore[tokenizers]'"
THREADS = 2

_BEGIN_NAMES = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]")


class Tokenizer(Protocol):
    """What traces need of a tokenizer."""

    start: Tokens
    """The begin-of-text token, or nothing where the vocabulary has none."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text by itself."""


class SentencePieceTokenizer:
    """A sentencepiece model. It puts its usual space before every text that it encodes, so before every message."""

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise TraceError(f"{path}: a .model file needs sentencepiece: {EXTRA}") from error
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise TraceError(f"{path}: not a sentencepiece model ({_first_line(error)})") from error
        begin = self._model.bos_id()
        self.start = NO_TOKENS if begin < 0 else np.array([begin], dtype=np.uint32)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text by itself."""
        encoded = self._model.encode(list(texts), out_type=int, num_threads=THREADS)
        return [np.array(ids, dtype=np.uint32) for ids in encoded]


class FastTokenizer:
    """A `tokenizers` file (Hugging Face's tokenizer.json)."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise TraceError(f"{path}: a .json tokenizer needs tokenizers: {EXTRA}") from error
        try:
            self._model: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise TraceError(f"{path}: not a tokenizers file ({_first_line(error)})") from error
        found = [self._model.token_to_id(name) for name in _BEGIN_NAMES]
        known = [token for token in found if token is not None]
        self.start = np.array(known[:1], dtype=np.uint32)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text by itself."""
        encoded = self._model.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint32) for each in encoded]


def load_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer at `path`, by its suffix.

    Raises:
        TraceError: none was given, it is not there, its kind is unknown or its library is not installed.
    """
    if path is None:
        raise TraceError("this trace holds text: name a tokenizer with --tokenizer FILE (.model or .json)")
    file = Path(path)
    if not file.is_file():
        raise TraceError(f"{file}: no such tokenizer file")
    if file.suffix == ".model":
        return SentencePieceTokenizer(file)
    if file.suffix == ".json":
        return FastTokenizer(file)
    raise TraceError(f"{file}: unknown kind of tokenizer; expected .model (sentencepiece) or .json (tokenizers)")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
