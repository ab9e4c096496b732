"""Reads the tables and entries files of a chunk store, and says what is held (chunks.md, sections 2 and 3)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .chunk_structures import ENTRIES_START, ENTRY_STEP, parse_entries_header, parse_entry, parse_table
from .faults import DamagedError
from .folder import entries_name, open_regular, read_whole, region_name, table_name

if TYPE_CHECKING:
    from .chunk_structures import Front, Stored, Table
    from .faults import Faults
    from .folder import ChunkFolder

_GAP_MAX: Final = 1 << 20  # bytes behind a damaged entry that are searched for the next one


@dataclass(slots=True)
class EntriesFile:
    """An entries file; `placed` has every entry that is valid where it stands, also behind damage, by its offset."""

    number: int
    size: int = 0
    front: Front | None = None
    placed: dict[int, tuple[Stored, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return entries_name(self.number)

    def run(self, begin: int) -> tuple[dict[int, Stored], int]:
        """The entries that follow one another from `begin` on, by offset, and where they end."""
        found, at = {}, max(begin, ENTRIES_START)
        while self.front and at in self.placed:
            found[at], length = self.placed[at]
            at += length
        return found, at


@dataclass(slots=True)
class ChunkFiles:
    """All that was read; `tables` those that are valid, the newest last; `regions` the files' sizes."""

    folder: ChunkFolder
    uuid: bytes | None
    tables: list[Table]
    entries: dict[int, EntriesFile]
    regions: dict[int, int]
    bytes_read: int

    @property
    def table(self) -> Table | None:
        """What a reader takes."""
        return self.tables[-1] if self.tables else None

    def known(self) -> dict[int, int]:
        """Up to where the table has each region's entries file."""
        return self.table.regions_with("entries") if self.table else {}

    def has_all(self, stored: Stored) -> bool:
        """Whether its regions are there."""
        return all(each.region in self.regions and each.region in self.entries for each in stored.extents)

    def standing(self) -> dict[tuple[int, int], Stored]:
        """Entries that are neither void nor torn, by (region, offset)."""
        known, found = self.known(), {}
        for number, file in self.entries.items():
            for begin in {ENTRIES_START, known.get(number, ENTRIES_START)}:
                found.update({(number, at): stored for at, stored in file.run(begin)[0].items()})
        return dict(sorted(found.items()))

    def late(self) -> list[Stored]:
        """Entries behind what the table has, in their order."""
        known = self.known()
        late = [each for file in self.entries.values() for each in file.run(known.get(file.number, 0))[0].values()]
        return sorted(late, key=lambda stored: stored.sequence)

    def held(self) -> dict[bytes, Stored]:
        """What a reader finds, by key."""
        rows = map(self.table.stored, range(len(self.table.chunks))) if self.table else ()
        return {stored.key: stored for stored in (*rows, *self.late()) if self.has_all(stored)}


def read_chunks(folder: ChunkFolder, faults: Faults) -> ChunkFiles:
    """Tables first: none of them speaks of entries that were not there."""
    tables = [table for number in folder.tables if (table := _read_table(folder, number, faults))]
    contents = {number: _read_file(folder, number, faults) for number in folder.entries}
    files = {number: EntriesFile(number, len(data)) for number, data in contents.items()}
    for number, data in contents.items():
        files[number].front = _front_of(number, data, faults)
    fronts = [*(table.front for table in reversed(tables)), *(files[n].front for n in sorted(files, reverse=True))]
    uuid = next((front.uuid for front in fronts if front), None)
    for file in files.values():
        if file.front and file.front.uuid != uuid:
            faults.corruption(file.name, 40, "uuid", "the file belongs to another store")
            file.front = None
        if uuid is not None:
            _place(file, contents[file.number], uuid)
    for table in tables:
        if table.front.uuid != uuid:
            faults.corruption(table_name(table.front.number), 40, "uuid", "the file belongs to another store")
    tables = [table for table in tables if table.front.uuid == uuid]
    taken = sum(table.length for table in tables) + sum(map(len, contents.values()))
    return ChunkFiles(folder, uuid, tables, files, _region_sizes(folder, faults), taken)


def _read_table(folder: ChunkFolder, number: int, faults: Faults) -> Table | None:
    name = table_name(number)
    try:
        table = parse_table(read_whole(folder.path / name))
    except DamagedError as error:
        faults.corruption(name, 0, f"table-{error.code}", error.meaning)
        return None
    if table.front.number != number:
        faults.corruption(name, 56, "number", f"the table is number {table.front.number}")
        return None
    return table


def _read_file(folder: ChunkFolder, number: int, faults: Faults) -> bytes:
    try:
        return read_whole(folder.path / entries_name(number))
    except DamagedError as error:
        faults.corruption(entries_name(number), 0, f"entries-{error.code}", error.meaning)
        return b""


def _front_of(number: int, data: bytes, faults: Faults) -> Front | None:
    name = entries_name(number)
    try:
        front = parse_entries_header(data)
    except DamagedError as error:
        faults.corruption(name, 0, f"header-{error.code}", error.meaning)
        return None
    if front.number != number:
        faults.corruption(name, 56, "number", f"the header is that of region {front.number}")
        return None
    return front


def _place(file: EntriesFile, data: bytes, uuid: bytes) -> None:
    view, at, sound = memoryview(data), ENTRIES_START, ENTRIES_START
    while at < len(data) and at - sound <= _GAP_MAX:
        found = parse_entry(view[at:], uuid, file.number, at)
        if found:
            file.placed[at] = found
            at = sound = at + found[1]
        else:
            at += ENTRY_STEP


def _region_sizes(folder: ChunkFolder, faults: Faults) -> dict[int, int]:
    sizes = {}
    for number in folder.regions:
        try:
            descriptor = open_regular(folder.path / region_name(number))
        except DamagedError as error:
            faults.corruption(region_name(number), 0, f"region-{error.code}", error.meaning)
            continue
        sizes[number] = os.fstat(descriptor).st_size
        os.close(descriptor)
    return sizes
