"""Prompts whose chunks are whole: the system prompt, each document, and the question.

A delimiter is a token id of its own, one that tokenizers cut their input at (a special token). So each part has the
same ids alone as between its neighbours, which no delimiter that is text gives: blank lines melt with what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Prompt", "PromptBuilder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt in both forms.

    text: What the tokenizer gives `tokens` for, without special tokens added.
    tokens: Token ids: system prompt, documents, question.
    ends: Where each chunk ends in `tokens`: the system prompt's (where there is one), each document's, the question's.
    """

    text: str
    tokens: list[int]
    ends: list[int]


class PromptBuilder:
    """Joins a system prompt, documents and a question with a delimiter.

    Args:
        tokenizer: A tokenizer of transformers.
        delimiter: Token id that ends the system prompt and each document. The store of chunks has to be opened with it.
        system: The constant system prompt with the model's own markup; empty: there is none.
        document: Markup of a document; "{text}" stands for it.
        question: Markup of the question, and of what follows it up to the answer.

    Raises:
        sarpstore.InputError: The delimiter is no single special token of this tokenizer, a form has no "{text}", or the
            markup itself has the delimiter.
    """

    def __init__(
        self, tokenizer: Any, *, delimiter: int, system: str = "", document: str = "{text}", question: str = "{text}"
    ) -> None:
        self._tokenizer = tokenizer
        self.delimiter = delimiter
        self._delimiter_text = str(tokenizer.convert_ids_to_tokens(delimiter))
        if self._ids(f"a{self._delimiter_text}b").count(delimiter) != 1 or len(self._ids(self._delimiter_text)) != 1:
            raise sarpstore.InputError(f"token {delimiter} ({self._delimiter_text!r}) is no special token: it melts")
        for form in (document, question):
            if form.count("{text}") != 1:
                raise sarpstore.InputError(f"{form!r}: must have {{text}} once")
        self._document, self._question = document, question
        self.system_tokens = self.chunk(system) if system else []
        self._system = system + self._delimiter_text if system else ""

    def chunk(self, text: str) -> list[int]:
        """Token ids of a chunk as it stands in a prompt: the text's, as it is, and the delimiter.

        Raises:
            sarpstore.InputError: The text has the delimiter's token.
        """
        return [*self._part(text), self.delimiter]

    def document_tokens(self, text: str) -> list[int]:
        """Token ids of a document's chunk, with its markup and delimiter."""
        return self.chunk(self._document.replace("{text}", text))

    def question_tokens(self, text: str) -> list[int]:
        """Token ids of the question with its markup, which no delimiter ends."""
        return self._part(self._question.replace("{text}", text))

    def build(self, documents: Sequence[str], question: str) -> Prompt:
        """A prompt of these documents, in this order, and a question.

        Raises:
            sarpstore.InputError: A text has the delimiter's token, or the question is empty.
        """
        chunks = [self.system_tokens] if self.system_tokens else []
        chunks += [self.document_tokens(text) for text in documents]
        asked = self.question_tokens(question)
        if not asked:
            raise sarpstore.InputError("the question has no tokens")
        tokens: list[int] = []
        ends = []
        for chunk in (*chunks, asked):
            tokens += chunk
            ends.append(len(tokens))
        marked = [self._document.replace("{text}", text) + self._delimiter_text for text in documents]
        text = "".join((self._system, *marked, self._question.replace("{text}", question)))
        return Prompt(text=text, tokens=tokens, ends=ends)

    def _part(self, text: str) -> list[int]:
        ids = self._ids(text)
        if self.delimiter in ids:
            raise sarpstore.InputError(f"a text has the delimiter {self._delimiter_text!r}: it would be cut there")
        return ids

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids
