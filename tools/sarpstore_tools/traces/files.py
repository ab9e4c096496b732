"""Files of records: JSON lines, or one JSON document that lists records.

JSON lines stream. A JSON document is read whole, but its records stay raw bytes until each is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from sarpstore_tools.traces.formats import FORMATS, Format, recognize
from sarpstore_tools.traces.model import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIXES = (".jsonl", ".json", ".ndjson")
"""What is taken from a folder; a file that is named itself may be called anything."""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A trace file, its format, and whether it is one JSON document (`is_document`) or JSON lines.

    `name` is its path below the folder that the user named, without the suffix: what sessions are named after.
    """

    path: Path
    format: Format
    is_document: bool
    is_one_record: bool = False
    name: str = ""

    def records(self) -> Iterator[tuple[int, Any]]:
        """(number, decoded record) of every record; the number is its line, or in a document its place, from 1.

        Raises:
            TraceError: at the first record that is not of this file's format.
        """
        for number, data in self._raw_records():
            yield number, self.format.decode(data, self.where(number))

    def where(self, number: int) -> str:
        """How a message names the record `number`."""
        return f"{self.path}, record {number}" if self.is_document else f"{self.path}:{number}"

    def _raw_records(self) -> Iterator[tuple[int, bytes | msgspec.Raw]]:
        if self.is_document:
            data = self.path.read_bytes()
            listed = [msgspec.Raw(data)] if self.is_one_record else msgspec.json.decode(data, type=list[msgspec.Raw])
            yield from enumerate(listed, start=1)
            return
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield number, line

    def line_count(self) -> int | None:
        """Lines that hold a record, without decoding them; None for a document."""
        if self.is_document:
            return None
        with self.path.open("rb") as lines:
            return sum(not line.isspace() for line in lines)


def list_files(path: Path) -> list[Path]:
    """The trace files at `path`: itself, or all below a folder in the order of their names.

    Raises:
        TraceError: there is none.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        if not found:
            raise TraceError(f"{path}: this folder holds no {', '.join(SUFFIXES)} file")
        return found
    if not path.is_file():
        raise TraceError(f"{path}: no such file or folder")
    return [path]


def open_records(path: Path, format_name: str | None = None) -> RecordFile:
    """Look at the first record of `path` and say how to read it; `format_name` overrides recognition.

    Raises:
        TraceError: the file is empty, not JSON, or of no known format.
    """
    line, first = _first_line(path)
    wanted = FORMATS[format_name] if format_name else None
    known = wanted or recognize(first)
    if known is not None and known.fits(first):
        return RecordFile(path, known, is_document=False)
    if first is _NOT_JSON and path.suffix == ".jsonl":
        raise TraceError(f"{path}:{line}: not JSON; expected a JSON record a line")
    document = _decode_document(path, line) if first is _NOT_JSON else first
    known = wanted or recognize(document)
    if known is not None and known.fits(document):
        return RecordFile(path, known, is_document=True, is_one_record=True)
    element = document[0] if isinstance(document, list) and document else None
    known = wanted or recognize(element)
    if known is not None and known.fits(element):
        return RecordFile(path, known, is_document=True)
    expected = wanted.expected if wanted else "a record of one of " + ", ".join(FORMATS)
    raise TraceError(f"{path}:{line}: unknown record; expected {expected}")


_NOT_JSON = object()


def _first_line(path: Path) -> tuple[int, Any]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                try:
                    return number, msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    return number, _NOT_JSON
    raise TraceError(f"{path}: this file is empty; expected records of JSON")


def _decode_document(path: Path, line: int) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}:{line}: neither JSON lines nor one JSON document ({error})") from error
