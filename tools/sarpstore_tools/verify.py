"""`sarpstore verify`: checks a store against the specification, byte by byte, without the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from .specreader.folder import NotAStoreError
from .specreader.store import Report, verify_store
from .specreader.structures import shown

if TYPE_CHECKING:
    from .specreader.faults import Fault


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: faults, notes, then the summary.")
@click.option("--quick", is_flag=True, help="Do not replay the log to compare it with the newest checkpoint.")
def verify(store: Path, as_json: bool, quick: bool) -> None:
    """Check every byte of STORE and say what is wrong, with file, offset and meaning.

    Works while a writer has the store open. Exit status: 0 clean (torn tails and void regions are clean), 1 faults,
    2 not a store.
    """
    try:
        report = verify_store(store, compare=not quick)
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


def _json_lines(report: Report) -> list[str]:
    found = [_fault_object(fault) for fault in report.faults + report.notes]
    summary = {
        "summary": {
            "files": report.files,
            "records": report.records,
            "segments": report.segments,
            "blocks": report.blocks,
            "bytes": report.bytes_checked,
            "synced_position": report.synced,
            "live": report.live,
            "faults": len(report.faults),
            "notes": len(report.notes),
        }
    }
    return [msgspec.json.encode(item).decode() for item in (*found, summary)]


def _text_lines(report: Report) -> list[str]:
    lines = [
        f"{fault.severity.value:<10}  {fault.file} @ {fault.offset}  [{fault.code}] {fault.meaning}"
        for fault in report.faults
    ]
    lines += [
        f"note        {note.file} @ {note.offset}  {note.severity.value}: {note.meaning}" for note in report.notes
    ]
    verdict = f"{len(report.faults)} faults" if report.faults else "clean"
    counted = f"{report.files} files, {report.records} records, {report.segments} segments, {report.blocks} blocks"
    live = ", live" if report.live else ""
    lines.append(f"{verdict}: {counted}, {report.bytes_checked} bytes checked, synced to {shown(report.synced)}{live}")
    return lines
