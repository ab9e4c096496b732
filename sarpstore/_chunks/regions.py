"""The files of a chunk store, opened when needed: payloads and entries appended, regions made and removed.

All but the reads block: they are for a thread, one at a time. The order of writes and syncs is format-spec/chunks.md's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sarpstore import _format as fmt
from sarpstore._chunks.encoding import (
    CHUNKS_SUFFIX,
    ENTRIES_HEADER_BYTES,
    Chunk,
    chunks_name,
    encode_entries_header,
    encode_entry,
    entries_name,
    is_own_temporary,
    region_name,
)
from sarpstore._errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sarpstore._chunks.encoding import Table
    from sarpstore._chunks.policy import Extent
    from sarpstore._files import File, Folder

__all__ = ["RegionFiles"]


class RegionFiles:
    """The regions of one store; `entries` has the valid length of each region's entries file. `direct`: for reads."""

    def __init__(self, folder: Folder, uuid: bytes, entries: dict[int, int], *, direct: bool) -> None:
        self._folder = folder
        self._uuid = uuid
        self._direct = direct
        self.entries = entries
        self._reading: dict[int, File] = {}
        self._writing: dict[int, File] = {}
        self.bytes_written = 0
        """Bytes of payloads, entries and tables."""

    def reader(self, number: int) -> File | None:
        """The region's file, for reads, if it is open; does not block."""
        return self._reading.get(number)

    def open_reader(self, number: int) -> None:
        """Open it, if it is there. Not returned: who waits for this may be cancelled, and others use the file too."""
        if number in self.entries and number not in self._reading:
            name = region_name(number)
            self._reading[number] = self._folder.open_direct(name) if self._direct else self._folder.open(name)

    def write(self, extents: Iterable[Extent], data: memoryview) -> None:
        """Write a payload to its extents, and sync them; a region that is not there is made."""
        files, at = [], 0
        for extent in extents:
            file = self._writer(extent.region)
            file.write(extent.offset, data[at : at + extent.bytes])
            at += extent.bytes
            files.append(file)
        for file in dict.fromkeys(files):
            file.sync()
        self.bytes_written += at

    def note(self, chunk: Chunk) -> None:
        """Write the entry of a payload that is synced, and sync it."""
        number = chunk.extents[0].region
        at = self.entries[number]
        entry = encode_entry(chunk, self._uuid, number, at)
        file = self._folder.open(entries_name(number), writable=True)
        try:
            file.write(at, entry)
            file.sync()
        finally:
            file.close()
        self.entries[number] = at + len(entry)
        self.bytes_written += len(entry)

    def _writer(self, number: int) -> File:
        file = self._writing.get(number)
        if file is None:
            file = self._writing[number] = self._made(number)
        return file

    def _made(self, number: int) -> File:
        name = region_name(number)
        if number in self.entries:
            return self._folder.open(name, writable=True)
        file = self._folder.create(name)
        try:
            _publish(self._folder, entries_name(number), encode_entries_header(self._uuid, number))
        except BaseException:
            file.close()
            raise
        self.entries[number] = ENTRIES_HEADER_BYTES
        self.bytes_written += ENTRIES_HEADER_BYTES
        return file

    def close_writers(self, but: set[int]) -> None:
        """Close the files of regions that nothing more is written to."""
        for number in [number for number in self._writing if number not in but]:
            self._writing.pop(number).close()

    def remove(self, number: int) -> None:
        """Remove a region: its entries first, and for sure, so that no crash leaves entries without it."""
        self.close_writers({other for other in self._writing if other != number})
        names = self._folder.names()
        if entries_name(number) in names:
            self._folder.remove(entries_name(number))
            self._folder.sync()
        if region_name(number) in names:
            self._folder.remove(region_name(number))
        self.entries.pop(number, None)
        reading = self._reading.pop(number, None)
        if reading is not None:
            reading.close()

    def publish(self, table: Table) -> int:
        """Write a table, and remove all but it and the one before; its bytes."""
        data = table.encode()
        _publish(self._folder, chunks_name(table.number), data)
        for number in fmt.numbered(self._folder.names(), CHUNKS_SUFFIX)[:-2]:
            self._folder.remove(chunks_name(number))
        self.bytes_written += len(data)
        return len(data)

    def clean(self, remains: Iterable[str], changed: Iterable[int]) -> None:
        """Remove what a crash left, and cut off what it left behind the last entry of these entries files.

        A killed process may not have synced the names and the entries that it wrote, nor the names that it removed.
        What is put into a file would be lost with its name; what is found now would be lost later, when a table says
        that it is there; and a region that goes now would leave entries behind whose name came back.
        """
        self._folder.sync()
        for name in [*remains, *filter(is_own_temporary, self._folder.names())]:
            self._folder.remove(name)
        for number in changed:
            file = self._folder.open(entries_name(number), writable=True)
            try:
                if file.size() > self.entries[number]:
                    file.truncate(self.entries[number])
                file.sync()
            finally:
                file.close()

    def close(self) -> None:
        """Close all files; reads that are in progress finish first."""
        for file in [*self._reading.values(), *self._writing.values()]:
            file.close()
        self._reading.clear()
        self._writing.clear()


def _publish(folder: Folder, name: str, data: bytes) -> None:
    """A file under this name once all of it is synced."""
    temporary = name + fmt.TEMPORARY_SUFFIX
    try:
        file = folder.create(temporary)
    except StorageError:
        folder.remove(temporary)
        file = folder.create(temporary)
    try:
        file.write(0, data)
        file.sync()
    finally:
        file.close()
    folder.rename(temporary, name)
    folder.sync()
