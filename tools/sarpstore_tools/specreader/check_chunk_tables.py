"""Checks of a chunk store's tables, by themselves and against the entries files (chunks.md, section 3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .check_chunks import rule_breaks, shown_chunk
from .chunk_structures import ENTRIES_START, REGION
from .folder import table_name
from .structures import PAGE

if TYPE_CHECKING:
    from .chunk_files import ChunkFiles
    from .chunk_structures import Stored, Table
    from .faults import Faults

_REGIONS_AT = 128


def check_tables(files: ChunkFiles, faults: Faults) -> None:
    """All valid tables, and the cap that the newest one says."""
    if not files.folder.tables:
        faults.corruption("", 0, "table-missing", "there are other files of the store and no table")
    entries = {(number, e.sequence): e for number, f in files.entries.items() for e, _ in f.placed.values()}
    ends = {number: file.run(0)[1] for number, file in files.entries.items() if file.front}
    for table in files.tables:
        _check_head(table, faults)
        _check_region_rows(table, faults)
        _check_chunk_rows(table, faults)
        _compare(files, table, entries, ends, faults)
    newest = files.table
    if newest and files.folder.disk_bytes > newest.bytes_max:
        meaning = f"the store takes {files.folder.disk_bytes} bytes of disk, the table says at most {newest.bytes_max}"
        faults.warning(table_name(newest.front.number), 72, "cap", meaning)


def _check_head(table: Table, faults: Faults) -> None:
    name = table_name(table.front.number)
    if not table.region_bytes or table.region_bytes % PAGE:
        faults.corruption(name, 80, "region-bytes", f"regions of {table.region_bytes} bytes")
    if not (table.next_sequence and table.next_region):
        faults.corruption(name, 88, "numbers", "sequence numbers and regions are from 1")


def _check_region_rows(table: Table, faults: Faults) -> None:
    name, last = table_name(table.front.number), 0
    for row, (number, entries, used) in enumerate(table.regions.tolist()):
        at = _REGIONS_AT + REGION.itemsize * row
        if not last < number < table.next_region:
            meaning = f"region {number} stands behind {last}, and the next one is to be {table.next_region}"
            faults.corruption(name, at, "table-regions", meaning)
        if entries < ENTRIES_START or used > table.region_bytes or used % PAGE:
            meaning = f"region {number} has {entries} bytes of entries and is filled up to {used}"
            faults.corruption(name, at, "table-regions", meaning)
        last = number


def _check_chunk_rows(table: Table, faults: Faults) -> None:
    name, last, keys = table_name(table.front.number), 0, set[bytes]()
    filled = table.regions_with("used")
    for row, weight in enumerate(table.chunks["weight"].tolist()):
        stored, at = table.stored(row), table.chunk_at(row)
        breaks = list(rule_breaks(stored, table.region_bytes))
        if not last < stored.sequence < table.next_sequence:
            breaks.append(("table-order", f"stands behind sequence {last}, the next is {table.next_sequence}"))
        if stored.key in keys:
            breaks.append(("table-key", "the key has a row already"))
        if not (math.isfinite(weight) and weight >= 0):
            breaks.append(("weight", f"has weight {weight}"))
        if any((e.page + e.pages) * PAGE > filled.get(e.region, 0) for e in stored.extents):
            breaks.append(("table-extents", "is not in what the table's regions are filled with"))
        for code, meaning in breaks:
            faults.corruption(name, at, code, f"{shown_chunk(stored)}: {meaning}")
        keys.add(stored.key)
        last = stored.sequence


def _compare(
    files: ChunkFiles, table: Table, entries: dict[tuple[int, int], Stored], ends: dict[int, int], faults: Faults
) -> None:
    """Each row is that of an entry, where the entries of its region can be read."""
    name, lengths = table_name(table.front.number), table.regions_with("entries")
    for row in range(len(table.chunks)):
        stored = table.stored(row)
        region = stored.extents[0].region
        entry = entries.get((region, stored.sequence))
        readable = ends.get(region, 0) >= lengths.get(region, 0)
        if entry is None and readable and files.has_all(stored):
            faults.corruption(name, table.chunk_at(row), "entry-missing", f"{shown_chunk(stored)} has no entry")
        elif entry is not None and entry != stored:
            faults.corruption(name, table.chunk_at(row), "entry-differs", f"{shown_chunk(stored)} has another entry")
