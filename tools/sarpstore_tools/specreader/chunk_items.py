"""What `sarpstore dump` shows of a chunk store: tables, entries files, regions, and what is damaged of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chunk_files import ChunkFiles, EntriesFile, read_chunks
from .chunk_structures import ENTRIES_START
from .faults import Faults
from .folder import NotAStoreError, entries_name, list_chunks, region_name, table_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .chunk_structures import Front, Stored, Table

Item = dict[str, Any]


def store_items(path: Path, only: str | None, entries: bool, chunks: bool) -> Iterator[Item]:
    """All files in turn, or one: a table's head and, if wanted, its rows; an entries file's header and entries."""
    faults = Faults()
    folder = list_chunks(path)
    if folder is None:
        raise NotAStoreError(f"{path}: not a chunk store (no table, no entries file, no region)")
    files = read_chunks(folder, faults)
    tables = {table_name(table.front.number): table for table in files.tables}
    names = [*map(table_name, folder.tables), *map(entries_name, folder.entries), *map(region_name, folder.regions)]
    for name in names if only is None else [only]:
        for fault in faults.found:
            if fault.file == name:
                yield {"kind": "damage", "file": name, "offset": fault.offset, "meaning": fault.meaning}
        if name in tables:
            yield from _table_items(name, tables[name], chunks)
        number = int(name[:16], 16)
        if name == entries_name(number) and number in files.entries:
            yield from _entries_items(files, files.entries[number], entries)
        if name == region_name(number) and number in files.regions:
            yield {"kind": "region", "file": name, "size": files.regions[number], "entries": number in files.entries}


def _front_item(front: Front) -> Item:
    return {
        "version": f"{front.major}.{front.minor}",
        "features": list(front.features),
        "uuid": front.uuid.hex(),
        "number": front.number,
    }


def _stored_item(stored: Stored) -> Item:
    """An entry or a table's chunk; its extents are (region, first page, pages)."""
    return {
        "sequence": stored.sequence,
        "key": stored.key.hex(),
        "tokens": stored.tokens,
        "bytes": stored.bytes,
        "checksum": stored.crc,
        "strip": stored.strip,
        "extents": [(extent.region, extent.page, extent.pages) for extent in stored.extents],
    }


def _table_items(name: str, table: Table, rows: bool) -> Iterator[Item]:
    yield {
        "kind": "table",
        "file": name,
        "size": table.length,
        **_front_item(table.front),
        "bytes_max": table.bytes_max,
        "region_bytes": table.region_bytes,
        "next_sequence": table.next_sequence,
        "next_region": table.next_region,
        "regions": len(table.regions),
        "chunks": len(table.chunks),
        "extents": len(table.extents),
    }
    if not rows:
        return
    for number, entries, used in table.regions.tolist():
        yield {"kind": "row", "file": name, "region": number, "entries": entries, "used": used}
    for row, weight in enumerate(table.chunks["weight"].tolist()):
        item = {"kind": "chunk", "file": name, "offset": table.chunk_at(row), **_stored_item(table.stored(row))}
        yield item | {"weight": weight}


def _entries_items(files: ChunkFiles, file: EntriesFile, entries: bool) -> Iterator[Item]:
    """The header, then entries and the stretches between them that hold none."""
    if file.front:
        yield {"kind": "entries header", "file": file.name, "size": file.size, **_front_item(file.front)}
    if not entries:
        return
    standing, at = files.standing(), ENTRIES_START
    for offset, (stored, length) in sorted(file.placed.items()):
        if offset > at:
            yield _stretch(file.name, at, offset)
        void = {} if (file.number, offset) in standing else {"void": True}
        yield {"kind": "entry", "file": file.name, "offset": offset, **_stored_item(stored), **void}
        at = offset + length
    if at < file.size:
        yield _stretch(file.name, at, file.size)


def _stretch(name: str, begin: int, end: int) -> Item:
    return {"kind": "damage", "file": name, "offset": begin, "size": end - begin, "meaning": "no valid entry"}
