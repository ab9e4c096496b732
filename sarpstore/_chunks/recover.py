"""Finding what a chunk store holds: the newest table, and what entries files have behind it (format-spec/chunks.md, 3).

Blocks: for a thread. Nothing is written here, and no payload is read: the cost is that of the table and of a look at
each region's files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._chunks.encoding import (
    CHUNKS_SUFFIX,
    ENTRIES_HEADER_BYTES,
    ENTRIES_SUFFIX,
    ENTRY_BYTES_MAX,
    REGION_SUFFIX,
    Chunk,
    Table,
    chunks_name,
    decode_entries,
    decode_entries_header,
    entries_name,
    region_name,
)
from sarpstore._errors import CorruptionError, StorageError
from sarpstore._files import read_whole

if TYPE_CHECKING:
    from sarpstore._files import Folder

__all__ = ["Found", "find", "holds_chunks"]

_TABLE_BYTES_MAX: Final = 1 << 32


@dataclass(slots=True)
class Found:
    """What an open found."""

    table: Table
    rows: npt.NDArray[np.bool_]
    """Which rows of the table are held, as far as regions say."""
    entries: dict[int, int] = field(default_factory=dict)
    """By region, the length of its entries file as far as it is valid."""
    late: list[Chunk] = field(default_factory=list)
    """What was put behind the table and is held, in the order of that."""
    changed: set[int] = field(default_factory=set)
    """Of these the files that go on behind what the table knows: with entries, or with what a crash left of one."""
    remains: list[str] = field(default_factory=list)
    """Names of what a crash or damage left, and nothing is read from, to be removed."""
    damage: list[str] = field(default_factory=list)
    """What is not as it should be, and no crash explains."""
    closed: set[int] = field(default_factory=set)
    """Regions whose entries files are damaged: nothing is added to them."""
    table_read: bool = True


def holds_chunks(names: list[str]) -> bool:
    """Whether a folder with these names is a chunk store, whole or damaged."""
    return any(fmt.numbered(names, suffix) for suffix in (CHUNKS_SUFFIX, ENTRIES_SUFFIX, REGION_SUFFIX))


def find(folder: Folder, sizes: dict[str, int]) -> Found | None:
    """What the chunk store in the folder, with files of these sizes, holds; None if it holds none.

    CorruptionError: nothing says whose it is.
    """
    names = list(sizes)
    if not holds_chunks(names):
        return None
    damage: list[str] = []
    table = _newest_table(folder, names, damage)
    regions, entries = set(fmt.numbered(names, REGION_SUFFIX)), fmt.numbered(names, ENTRIES_SUFFIX)
    read = table is not None
    if table is None:
        table = Table(_uuid_of(folder, entries), 0, 0, 0, 1, 1)
    there = {number for number in entries if number in regions}
    found = Found(table, _rows_held(table, there), damage=damage, table_read=read)
    found.remains = [region_name(number) for number in sorted(regions - set(entries))]
    lengths = {row.number: row.entries for row in table.regions}
    late: list[Chunk] = []
    for number in sorted(there):
        late += _read_entries(folder, number, sizes[entries_name(number)], lengths.get(number, 0), found)
    named = {extent.region for chunk in late for extent in chunk.extents}
    for number in sorted(set(entries) - there):
        # If nothing is in it a crash came while it was made.
        in_use = number in named or np.any(table.extents["region"] == number)
        if in_use or sizes[entries_name(number)] > ENTRIES_HEADER_BYTES:
            found.damage.append(f"{region_name(number)} is gone, and its entries are there")
        found.remains.append(entries_name(number))
    late.sort(key=lambda chunk: chunk.sequence)
    found.late = [chunk for chunk in late if all(extent.region in there for extent in chunk.extents)]
    _raise_numbers(found, entries, regions, late)
    # The next table is newer than those that are damaged, or it would be removed as older than these.
    table.number = max([table.number, *fmt.numbered(names, CHUNKS_SUFFIX)])
    return found


def _newest_table(folder: Folder, names: list[str], damage: list[str]) -> Table | None:
    for number in reversed(fmt.numbered(names, CHUNKS_SUFFIX)):
        name = chunks_name(number)
        try:
            return Table.decode(_read(folder, name), name, number)
        except (CorruptionError, StorageError) as error:
            damage.append(str(error))
    return None


def _uuid_of(folder: Folder, entries: list[int]) -> bytes:
    """Of the newest entries file that says it."""
    error: CorruptionError | None = None
    for number in reversed(entries):
        name = entries_name(number)
        try:
            return decode_entries_header(read_whole(folder, name, ENTRIES_HEADER_BYTES), name, number, None)
        except CorruptionError as damaged:
            error = damaged
    raise error or CorruptionError(folder.path, None, "there is no valid table and no entries file: nothing says more")


def _rows_held(table: Table, there: set[int]) -> npt.NDArray[np.bool_]:
    """Of each row whether all of its regions are there."""
    missing = {row.number for row in table.regions} - there
    if not missing:
        return np.ones(len(table.rows), np.bool_)
    gone = np.append(0, np.cumsum(np.isin(table.extents["region"], list(missing))))
    first = table.rows["first"].astype(np.int64)
    held: npt.NDArray[np.bool_] = gone[first + table.rows["extents"]] == gone[first]
    return held


def _read(folder: Folder, name: str) -> memoryview:
    """All of a file, which may be large: without a copy."""
    file = folder.open(name)
    try:
        data: memoryview = np.empty(min(file.size(), _TABLE_BYTES_MAX), np.uint8).data
        return data[: file.read_into(0, data)]
    finally:
        file.close()


def _read_entries(folder: Folder, number: int, size: int, known: int, found: Found) -> list[Chunk]:
    """The entries behind what the table knows of the file."""
    name = entries_name(number)
    if known and size == known:
        found.entries[number] = size
        return []
    data = _read(folder, name)
    try:
        decode_entries_header(data, name, number, found.table.uuid)
    except CorruptionError as error:
        found.damage.append(str(error))
        found.entries[number] = max(known, ENTRIES_HEADER_BYTES)
        found.closed.add(number)
        return []
    begin = max(known, ENTRIES_HEADER_BYTES)
    if size < begin:
        found.damage.append(f"{name} ends at byte {size:,}, and the table has {begin:,} bytes of it")
        found.closed.add(number)
    chunks, end = decode_entries(data[begin:], found.table.uuid, number, begin)
    found.entries[number] = end
    if size != begin:
        found.changed.add(number)
    if end < size and not _is_torn(data[end:], found.table.uuid, number, end):
        found.damage.append(f"{name} has a damaged entry at byte {end:,}; it and those behind it are lost")
    return chunks


def _is_torn(tail: memoryview, uuid: bytes, number: int, offset: int) -> bool:
    """Whether a crash leaves this: at most one entry that is not whole, and so none behind it."""
    later = (decode_entries(tail[at:], uuid, number, offset + at)[0] for at in range(16, len(tail), 16))
    return len(tail) <= ENTRY_BYTES_MAX and not any(later)


def _raise_numbers(found: Found, entries: list[int], regions: set[int], late: list[Chunk]) -> None:
    """No number that anything names is used again, whatever the table knows.

    Of a payload in several regions the last may be gone, and with it all files of its number.
    """
    table = found.table
    named = regions.union(entries, (extent.region for chunk in late for extent in chunk.extents))
    table.next_region = max([table.next_region, *(number + 1 for number in named)])
    table.next_sequence = max([table.next_sequence, *(chunk.sequence + 1 for chunk in late)])
    if not found.table_read:
        ends = [extent.offset + extent.bytes for chunk in late for extent in chunk.extents]
        table.region_bytes = max(ends, default=0)
