"""Reads and checks a whole chunk store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .check_chunk_tables import check_tables
from .check_chunks import check_entries, check_payloads
from .chunk_files import read_chunks
from .faults import Fault, Faults
from .folder import NotAStoreError, list_chunks
from .store import check_stats, verify_twice

if TYPE_CHECKING:
    from pathlib import Path

    from .chunk_structures import Stored


@dataclass(frozen=True, slots=True)
class ChunksReport:
    """What a verification found; sizes in bytes. `held` is what a reader finds, by key, whole or not."""

    faults: list[Fault]
    notes: list[Fault]
    files: int
    entries: int
    held: dict[bytes, Stored]
    bytes_checked: int
    disk_bytes: int
    bytes_max: int
    live: bool = False

    @property
    def tokens(self) -> int:
        return sum(stored.tokens for stored in self.held.values())


def holds_chunks(path: Path) -> bool:
    """Whether the folder is a chunk store. Raises `NotAStoreError` where there is no folder."""
    return list_chunks(path) is not None


def verify_chunks(path: Path, payloads: bool = True) -> ChunksReport:
    """Checks everything that the specification says. Raises `NotAStoreError`.

    A store that changes meanwhile is checked a second time if there are faults, as `verify_store` does.
    """
    return verify_twice(path, lambda: _verify_once(path, payloads))


def _verify_once(path: Path, payloads: bool) -> ChunksReport:
    faults = Faults()
    folder = list_chunks(path)
    if folder is None:
        raise NotAStoreError(f"{path}: not a chunk store (no table, no entries file, no region)")
    files = read_chunks(folder, faults)
    check_tables(files, faults)
    check_entries(files, faults)
    held = files.held()
    taken = check_payloads(files, held, faults, quick=not payloads)
    stats_bytes = check_stats(path, files.uuid, faults) if folder.has_stats else 0
    return ChunksReport(
        [fault for fault in faults.found if not fault.is_note],
        [fault for fault in faults.found if fault.is_note],
        len(folder.tables) + len(folder.entries) + len(folder.regions) + folder.has_stats,
        len(files.standing()),
        held,
        files.bytes_read + taken + stats_bytes,
        folder.disk_bytes,
        files.table.bytes_max if files.table else 0,
    )
