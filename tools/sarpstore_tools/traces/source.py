"""From what the user names to a stream of turns: which files, which format, which reader, which shape."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from sarpstore_tools.traces import formats, generator, mooncake, shapes
from sarpstore_tools.traces.agent_requests import AgentTrace
from sarpstore_tools.traces.conversations import CONVERSATION_FORMATS, read_conversations, tokenize
from sarpstore_tools.traces.files import RecordFile, list_files, open_records
from sarpstore_tools.traces.model import Session, Trace, TraceError, Turn, round_robin, session_turns
from sarpstore_tools.traces.token_lists import token_list_turns
from sarpstore_tools.traces.tokenizers import Tokenizer, load_tokenizer

_TEXT_FORMATS = CONVERSATION_FORMATS | {formats.LMCACHE_AGENT.name}


class TraceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay: a file or folder (`path`), or a generated shape (`generate`, with `sessions` and `turns`)."""

    label: str
    path: str | None = None
    generate: str | None = None
    sessions: int | None = None
    turns: int | None = None
    seed: int = 0
    tokenizer: str | None = None
    format: str | None = None
    system_prompt: int = 0
    strip_reasoning: bool = False
    limit: int | None = None


def open_trace(spec: TraceSpec) -> Trace:
    """The trace that `spec` names.

    Raises:
        TraceError: a file or the tokenizer is missing or of no known format. What is wrong further down in a file
            is raised while its turns are read.
    """
    trace = _generated(spec) if spec.path is None else _from_files(spec, Path(spec.path))
    return _shaped(trace, spec)


def _shaped(trace: Trace, spec: TraceSpec) -> Trace:
    def turns() -> Iterator[Turn]:
        stream = trace.turns()
        if spec.system_prompt:
            stream = shapes.with_system_prompt(stream, spec.system_prompt)
        return itertools.islice(stream, spec.limit)

    total = trace.total
    if spec.limit is not None:
        total = spec.limit if total is None else min(total, spec.limit)
    return Trace(trace.label, turns, total, trace.notes)


def _generated(spec: TraceSpec) -> Trace:
    shape = spec.generate or "chat"
    sessions, turns = generator.DEFAULT_SIZES[shape]
    size = (spec.sessions or sessions, spec.turns or turns)
    strip = spec.strip_reasoning or shape == "stripped"

    def stream() -> Iterator[Turn]:
        made = generator.sessions_of(shape, *size, spec.seed)
        return round_robin(session_turns(_with_kept(s) if strip else s, strip_reasoning=strip) for s in made)

    note = f"generated: {generator.DESCRIPTIONS[shape]}"
    return Trace(spec.label, stream, generator.turn_total(shape, *size, spec.seed), (note,))


def _with_kept(session: Session) -> Session:
    """Work out what is kept of answers that do not say it."""
    messages = [
        m if m.kept is not None or not m.is_answer else dataclasses.replace(m, kept=shapes.kept_tokens(m.body))
        for m in session.messages
    ]
    return Session(session.name, messages, session.namespace, session.start)


def _from_files(spec: TraceSpec, path: Path) -> Trace:
    files, notes = _open_files(path, spec.format)
    names = {file.format.name for file in files}
    if spec.strip_reasoning and not names <= CONVERSATION_FORMATS:
        others = ", ".join(sorted(names - CONVERSATION_FORMATS))
        raise TraceError(f"{path}: --strip-reasoning needs conversations; {others} has no messages to strip")
    tokenizer = load_tokenizer(spec.tokenizer) if names & _TEXT_FORMATS else None
    parts = [_part(name, list(group), tokenizer, spec) for name, group in itertools.groupby(files, _format_name)]
    totals = [total for _, total, _ in parts]
    known = [total for total in totals if total is not None]
    return Trace(
        spec.label,
        lambda: itertools.chain.from_iterable(stream() for stream, _, _ in parts),
        sum(known) if len(known) == len(totals) else None,
        (*notes, *dict.fromkeys(note for _, _, note in parts if note)),
    )


def _format_name(file: RecordFile) -> str:
    return file.format.name


def _open_files(path: Path, format_name: str | None) -> tuple[list[RecordFile], list[str]]:
    """The files at `path`, grouped by format. Those of a folder that hold no trace are left out, with a note."""
    if not path.is_dir():
        return [dataclasses.replace(open_records(each, format_name), name=each.stem) for each in list_files(path)], []
    opened: list[RecordFile] = []
    refused: list[str] = []
    for each in list_files(path):
        try:
            name = str(each.relative_to(path).with_suffix(""))
            opened.append(dataclasses.replace(open_records(each, format_name), name=name))
        except TraceError as error:
            refused.append(str(error))
    if not opened:
        raise TraceError(refused[0])
    return sorted(opened, key=_format_name), [f"left out: {reason}" for reason in refused]


Part = tuple[Callable[[], Iterator[Turn]], int | None, str]
"""How to start a stream of turns, their number where it is known, and what to say about them."""


def _part(name: str, files: Sequence[RecordFile], tokenizer: Tokenizer | None, spec: TraceSpec) -> Part:
    if name == formats.MOONCAKE.name:
        return lambda: itertools.chain.from_iterable(map(mooncake.mooncake_turns, files)), _lines(files), mooncake.NOTE
    if name == formats.TOKENS.name:
        return lambda: itertools.chain.from_iterable(map(token_list_turns, files)), _lines(files), ""
    assert tokenizer is not None, "text formats are opened with a tokenizer"
    if name == formats.LMCACHE_AGENT.name:
        trace = AgentTrace(files, tokenizer)
        return trace.turns, len(trace), ""
    return _conversations(files, tokenizer, strip=spec.strip_reasoning), None, ""


def _conversations(files: Sequence[RecordFile], tokenizer: Tokenizer, *, strip: bool) -> Callable[[], Iterator[Turn]]:
    def stream() -> Iterator[Turn]:
        texts = itertools.chain.from_iterable(map(read_conversations, files))
        sessions = tokenize(texts, tokenizer, strip_reasoning=strip)
        return round_robin(session_turns(session, strip_reasoning=strip) for session in sessions)

    return stream


def _lines(files: Sequence[RecordFile]) -> int | None:
    counts = [file.line_count() for file in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
