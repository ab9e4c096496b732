"""LMCache's agent traces: the whole prompt and the answer of each request as text, replayed in order of time.

The prompt stands as it was sent, so nothing is assumed about what an agent keeps of its history (one of the two
agents drops all its answers from it). To tokenize a prefix the same way wherever it stands, text is cut
before every run of two or more line feeds and each paragraph is tokenized by itself, once (a bounded cache
remembers it). What is inserted is the prompt, "assistant:" on a paragraph of its own as the traces have it, and the
answer.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sarpstore_tools.traces.model import Tokens, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sarpstore_tools.traces.files import RecordFile
    from sarpstore_tools.traces.formats import AgentRecord
    from sarpstore_tools.traces.tokenizers import Tokenizer

PARAGRAPHS_MAX = 65_536
"""Paragraphs that the cache remembers; the one used longest ago goes first."""

_BREAK = re.compile(r"\n\n+")


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a request stands: ordered by time, and by file and line where times are equal."""

    timestamp_us: float
    file: int
    line: int
    offset: int


class AgentTrace:
    """The requests of several files, merged by time. Making one reads the files once, for the times alone."""

    def __init__(self, files: Sequence[RecordFile], tokenizer: Tokenizer) -> None:
        self._files = files
        self._paragraphs = ParagraphTokenizer(tokenizer)
        self._places = sorted(place for number, file in enumerate(files) for place in _places(number, file))

    def __len__(self) -> int:
        return len(self._places)

    def turns(self) -> Iterator[Turn]:
        """A turn for every request, in order of time."""
        for place in self._places:
            file = self._files[place.file]
            yield self._turn(file, _read_at(file, place))

    def _turn(self, file: RecordFile, record: AgentRecord) -> Turn:
        prompt = self._paragraphs.encode(record.input, first=True)
        session = file.name if record.session_id is None else str(record.session_id)
        if not record.output:
            return Turn(session, prompt, prompt)
        answer = self._paragraphs.encode(f"\n\nassistant: {record.output}")
        return Turn(session, prompt, np.concatenate([prompt, answer]))


class ParagraphTokenizer:
    """Tokenizes text by paragraphs, each by itself and remembered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[str, Tokens] = OrderedDict()

    def encode(self, text: str, *, first: bool = False) -> Tokens:
        """The tokens of `text`; after the begin-of-text token if it comes `first`."""
        paragraphs = split_paragraphs(text)
        missing = [p for p in dict.fromkeys(paragraphs) if p not in self._known]
        encoded = dict(zip(missing, self._tokenizer.encode(missing), strict=True)) if missing else {}
        parts = [self._tokenizer.start] if first else []
        for paragraph in paragraphs:
            tokens = encoded[paragraph] if paragraph in encoded else self._known[paragraph]
            parts.append(tokens)
            encoded[paragraph] = tokens
        for paragraph, tokens in encoded.items():
            self._known[paragraph] = tokens
            self._known.move_to_end(paragraph)
        while len(self._known) > PARAGRAPHS_MAX:
            self._known.popitem(last=False)
        return np.concatenate(parts) if parts else self._tokenizer.start[:0]


def split_paragraphs(text: str) -> list[str]:
    """Cut `text` before every run of two or more line feeds; the parts joined give it back."""
    starts = [0, *(match.start() for match in _BREAK.finditer(text) if match.start()), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts) if end > start]


def _places(number: int, file: RecordFile) -> Iterator[_Place]:
    if file.is_document:
        for line, record in file.records():
            yield _Place(record.timestamp, number, line, -1)
        return
    offset = 0
    with file.path.open("rb") as lines:
        for line, data in enumerate(lines, start=1):
            if not data.isspace():
                record = file.format.decode(data, file.where(line))
                yield _Place(record.timestamp, number, line, offset)
            offset += len(data)


def _read_at(file: RecordFile, place: _Place) -> AgentRecord:
    if place.offset < 0:
        return _record_of_document(file, place.line)
    with Path(file.path).open("rb") as lines:
        lines.seek(place.offset)
        record: AgentRecord = file.format.decode(lines.readline(), file.where(place.line))
    return record


def _record_of_document(file: RecordFile, number: int) -> AgentRecord:
    record: AgentRecord = next(record for n, record in file.records() if n == number)
    return record
