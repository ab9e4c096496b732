"""Reads and checks a whole store; the entry point of the specification's reader."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from .accept import accept
from .changes import Changes
from .check_checkpoint import check_heads, read_heads
from .check_records import check_records
from .faults import DamagedError, Fault, Faults
from .files import close_logs, open_logs
from .folder import list_folder, read_whole, signature
from .removed import Removed
from .structures import SARP, Head, parse_statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .chunk_store import ChunksReport
    from .files import LogFile

_SETTLE_SECONDS: Final = 0.2

AnyReport = TypeVar("AnyReport", "Report", "ChunksReport")


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification found; sizes in bytes. `live` says that the store changed meanwhile."""

    faults: list[Fault]
    notes: list[Fault]
    files: int
    records: int
    segments: int
    blocks: int
    bytes_checked: int
    synced: int
    live: bool


def verify_store(path: Path, compare: bool = True) -> Report:
    """Checks everything that the specification says. Raises `NotAStoreError`.

    A store that changes meanwhile is checked a second time if there are faults, and only what is found both times is
    reported: a file may vanish, or a head be replaced, between listing and reading.
    """
    return verify_twice(path, lambda: _verify_once(path, compare))


def verify_twice(path: Path, verify: Callable[[], AnyReport]) -> AnyReport:
    """A report of `verify`; if the store changed meanwhile, with the faults alone that a second one has, too."""
    before = signature(path)
    report = verify()
    live = signature(path) != before
    if not (live and report.faults):
        return _with(report, report.faults, live)
    time.sleep(_SETTLE_SECONDS)
    seen = {_identity(fault) for fault in report.faults}
    again = verify()
    return _with(again, [fault for fault in again.faults if _identity(fault) in seen], live)


def _identity(fault: Fault) -> tuple[str, ...]:
    """What makes it the same fault. A checkpoint or table may have been replaced meanwhile by one with the same fault,
    but what is missing must be the same file."""
    replaced = fault.file.endswith((".checkpoint", ".images", ".chunks")) and not fault.code.endswith("missing")
    return (fault.code,) if replaced else (fault.code, fault.file, str(fault.offset))


def _with(report: AnyReport, found: list[Fault], live: bool) -> AnyReport:
    return replace(report, faults=list(dict.fromkeys(found)), notes=list(dict.fromkeys(report.notes)), live=live)


def _verify_once(path: Path, compare: bool) -> Report:
    faults = Faults()
    folder = list_folder(path)
    # Heads before logs: a head never speaks of more log than was synced when it was published.
    heads = read_heads(folder, faults)
    folder = list_folder(path)
    files = open_logs(folder, faults)
    try:
        log = accept(files, _own_heads(heads, files), faults)
        changes = Changes(log) if log.header and log.header.options.routing == SARP else None
        removed = Removed(log)
        check_records(log, changes, removed, faults)
        image_bytes = check_heads(folder, heads, log, changes, removed, faults, compare)
    finally:
        close_logs(files)
    uuid = log.header.options.uuid if log.header else None
    stats_bytes = check_stats(folder.path, uuid, faults) if folder.has_stats else 0
    head_bytes = sum(head.length for head in heads)
    return Report(
        [fault for fault in faults.found if not fault.is_note],
        [fault for fault in faults.found if fault.is_note],
        len(folder.logs) + len(folder.images) + len(folder.heads) + folder.has_stats,
        len(log.rows),
        len(removed.segments),
        removed.blocks,
        log.bytes_checked + image_bytes + head_bytes + stats_bytes,
        log.synced,
        False,
    )


def _own_heads(heads: list[Head], files: list[LogFile]) -> list[Head]:
    """Heads of another store, which are reported, say nothing about this log."""
    uuid = next((file.header.options.uuid for file in files if file.header), None)
    return [head for head in heads if uuid in (None, head.uuid)]


def check_stats(path: Path, uuid: bytes | None, faults: Faults) -> int:
    """The statistics file of a store of either kind, and its size. No fsync covers it: a power cut may empty it."""
    try:
        data = read_whole(path / "stats")
        if not any(data):
            faults.torn("stats", 0, "holds nothing: a power cut may leave that")
            return len(data)
        statistics = parse_statistics(data)
        if uuid is not None and statistics.uuid != uuid:
            faults.warning("stats", 16, "uuid", "the statistics are those of another store")
        return len(data)
    except DamagedError as error:
        if error.code != "missing":
            faults.warning("stats", 0, f"stats-{error.code}", error.meaning)
        return 0


def is_alive(process: int) -> bool:
    """Whether a process with that id runs on this machine."""
    if not 0 < process < 1 << 31:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
