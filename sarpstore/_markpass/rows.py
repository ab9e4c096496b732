"""Reading the log for a mark pass: a row for each record that an entry names.

Memory: 48 bytes a row, and 256 KiB of log at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._io import BACKGROUND, give_way
from sarpstore._kernel import FEATURES, MARK_ROW_DTYPE, ffi, pointer, reserve
from sarpstore._log.commits import COMMIT_PAGES_MAX
from sarpstore._log.scan import read_slice

if TYPE_CHECKING:
    from sarpstore._directory import Directory
    from sarpstore._files import File
    from sarpstore._io import Scheduler, Turns
    from sarpstore._log.header import Shape

__all__ = ["FileSeen", "RowReader"]

# A larger read keeps the device from the matches' pages for a millisecond and more.
_READ_BYTES: Final = 256 << 10
# Pages that the kernel reads in one call: some 0.1 ms, or 0.2 where markers are looked for.
_PAGES_AT_ONCE: Final = 12
# The kernel stops where fewer rows than a page could bring have room.
_PAGE_ROWS_MAX: Final = 28


@dataclass(frozen=True, slots=True)
class FileSeen:
    """What there was in one log file."""

    number: int
    slot: int
    segments: int
    """Valid segment records, those that no entry names included."""
    damaged: int
    """Places that are neither a valid record nor free."""


class RowReader:
    """Collects the rows of `directory`, whose partitions are all loaded."""

    def __init__(self, directory: Directory, shape: Shape) -> None:
        # An entry has one row; those that come later are of records that go into the commit that gathers now.
        self._limit = directory.entries_all + (COMMIT_PAGES_MAX + 1) * _PAGE_ROWS_MAX
        self._space = reserve(self._limit * MARK_ROW_DTYPE.itemsize, "the rows of a mark pass")
        self._count = 0
        self._directory = directory
        self._location_bytes = shape.location_bytes
        self._uuid = ffi.new("uint8_t[16]", shape.uuid)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The rows so far (`MARK_ROW_DTYPE`), a view."""
        return np.frombuffer(self._space, MARK_ROW_DTYPE, self._count)

    def take(self) -> npt.NDArray[Any]:
        """The rows, whose memory is given back with this array; the reader is of no use after it."""
        rows = self.rows
        del self._space
        return rows

    async def read(self, scheduler: Scheduler, file: File, number: int, slot: int, end: int) -> FileSeen:
        """Add the rows of a log file up to byte `end`, a page's end."""
        scan = ffi.new("sarp_mark_scan *")
        scan.uuid = self._uuid
        scan.file_number, scan.slot = number, slot
        scan.location_bytes, scan.features = self._location_bytes, FEATURES
        scan.rows = pointer("sarp_mark_row *", self._space)
        scan.row_limit, scan.row_count = self._limit, self._count
        scan.next_page = fmt.LOG_HEADER_BYTES // fmt.PAGE
        for begin in range(fmt.LOG_HEADER_BYTES, end, _READ_BYTES):
            data = await read_slice(scheduler, file, begin, min(_READ_BYTES, end - begin), BACKGROUND)
            await self._take(scan, data, scheduler.turns)
        return FileSeen(number, slot, int(scan.segments), int(scan.damaged))

    async def _take(self, scan: Any, data: memoryview, turns: Turns) -> None:
        pages = pointer("uint8_t *", data)
        count = len(data) // fmt.PAGE
        for first in range(0, count, _PAGES_AT_ONCE):
            wanted = min(_PAGES_AT_ONCE, count - first)
            done = self._directory.mark_rows(scan, pages + first * fmt.PAGE, wanted)
            assert done == wanted, "an entry has one row, and there is room for all"
            self._count = int(scan.row_count)
            await give_way(turns)
