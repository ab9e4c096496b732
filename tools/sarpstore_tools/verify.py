"""`sarpstore verify`: checks a store of either kind against the specification, byte by byte, without the engine."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from .specreader.chunk_store import ChunksReport, holds_chunks, verify_chunks
from .specreader.faults import Severity
from .specreader.folder import NotAStoreError
from .specreader.store import Report, verify_store
from .specreader.structures import shown

if TYPE_CHECKING:
    from .specreader.faults import Fault

_WIDTH: Final = 120  # columns; a path or a single long word may go over it
_ALIKE_MAX: Final = 20  # findings of one code in one file that the text shows; JSON has all
_TITLES: Final = {
    Severity.CORRUPTION: "corruption: what the format does not allow, and no crash explains",
    Severity.WARNING: "warnings: not as it should be, but no answer is wrong for it",
    Severity.TORN_TAIL: "torn tail (no fault): what a crash left behind the last accepted commit",
    Severity.VOID: "void (no fault): a later log file says that the log ended before it",
    Severity.REMOVED: "removed (no fault): what removals leave in a checkpoint, or take from it; what was given up",
}


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: faults, notes, then the summary.")
@click.option(
    "--quick", is_flag=True, help="Neither replay the log to compare it with the newest checkpoint, nor read payloads."
)
def verify(store: Path, as_json: bool, quick: bool) -> None:
    """Check every byte of STORE and say what is wrong, as FILE:OFFSET (in bytes), code and meaning.

    Works while a writer has the store open. Changes nothing. Where blocks may have been removed, a checkpoint may hold
    less than the log says, never more. Of a chunk store, payloads are compared with their checksums. Exit status: 0
    clean (torn tails, void regions and removed entries are clean), 1 faults, 2 not a store.
    """
    try:
        report = verify_chunks(store, not quick) if holds_chunks(store) else verify_store(store, compare=not quick)
    except NotAStoreError as error:
        click.echo(f"sarpstore verify: {error}", err=True)
        raise SystemExit(2) from None
    lines = _json_lines(report) if as_json else _text_lines(report)
    for line in lines:
        click.echo(line)
    raise SystemExit(1 if report.faults else 0)


def _fault_object(fault: Fault) -> dict[str, object]:
    return {
        "severity": fault.severity.value,
        "file": fault.file,
        "offset": fault.offset,
        "code": fault.code,
        "meaning": fault.meaning,
    }


def _json_lines(report: Report | ChunksReport) -> list[str]:
    found = [_fault_object(fault) for fault in report.faults + report.notes]
    counted = _chunk_counts(report) if isinstance(report, ChunksReport) else _index_counts(report)
    tail = {"live": report.live, "faults": len(report.faults), "notes": len(report.notes)}
    summary = {"summary": {"files": report.files, **counted, **tail}}
    return [msgspec.json.encode(item).decode() for item in (*found, summary)]


def _index_counts(report: Report) -> dict[str, int]:
    return {
        "records": report.records,
        "segments": report.segments,
        "blocks": report.blocks,
        "bytes": report.bytes_checked,
        "synced_position": report.synced,
    }


def _chunk_counts(report: ChunksReport) -> dict[str, int]:
    return {
        "entries": report.entries,
        "chunks": len(report.held),
        "tokens": report.tokens,
        "bytes": report.bytes_checked,
        "disk_bytes": report.disk_bytes,
        "bytes_max": report.bytes_max,
    }


def _text_lines(report: Report | ChunksReport) -> list[str]:
    """Findings by severity, then by place; the verdict last, where a terminal shows it."""
    lines: list[str] = []
    for severity, title in _TITLES.items():
        found = [one for one in (*report.faults, *report.notes) if one.severity is severity]
        if found:
            lines += [title, *_finding_lines(sorted(found, key=lambda one: (one.file, one.offset))), ""]
    lines.append(f"{_verdict(report)}: {_counted(report)}, {report.bytes_checked:,} bytes")
    changed = ", the store changed while it was checked" if report.live else ""
    if isinstance(report, ChunksReport):
        lines.append(f"{report.disk_bytes:,} of {report.bytes_max:,} bytes of disk{changed}")
    else:
        lines.append(f"synced up to {shown(report.synced)}{changed}")
    return lines


def _counted(report: Report | ChunksReport) -> str:
    if isinstance(report, ChunksReport):
        held = f"{len(report.held)} chunks of {report.tokens:,} tokens"
        return f"{report.files} files, {report.entries} entries, {held}"
    return f"{report.files} files, {report.records} records, {report.segments} segments, {report.blocks} blocks"


def _finding_lines(found: list[Fault]) -> list[str]:
    places = max(len(f"{one.file}:{one.offset}") for one in found)
    codes = max(len(one.code) for one in found)
    more: Counter[tuple[str, str]] = Counter()
    lines: list[str] = []
    for one in found:
        more[one.file, one.code] += 1
        if more[one.file, one.code] <= _ALIKE_MAX:
            lead = f"  {f'{one.file}:{one.offset}':<{places}}  {one.code:<{codes}}  "
            hanging = " " * len(lead)
            lines += textwrap.wrap(one.meaning, _WIDTH, initial_indent=lead, subsequent_indent=hanging)
    for (file, code), count in more.items():
        if count > _ALIKE_MAX:
            lines.append(f"  {file}: {count - _ALIKE_MAX} more of code {code}; --json shows all")
    return lines


def _verdict(report: Report | ChunksReport) -> str:
    corrupt = sum(one.severity is Severity.CORRUPTION for one in report.faults)
    warnings = len(report.faults) - corrupt
    if not report.faults:
        return "clean"
    return f"FAULTS ({corrupt} of corruption, {warnings} warning{'s' * (warnings != 1)})"
