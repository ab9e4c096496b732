"""The table of reads that scheduler and backend share: the kernel's `sarp_reads`, its memory, and its files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore import _format as fmt
from sarpstore._errors import ClosedError, LimitError, StorageError
from sarpstore._kernel import ffi, lib, pointer, reserve

if TYPE_CHECKING:
    import mmap

    from sarpstore._files import File

__all__ = ["PAGES_HELD_MAX", "ReadTable", "aligned_buffer"]

PAGES_HELD_MAX: Final = 1 << 18
"""Pages that are wanted or held at once, at most: 1 GiB, of which only as much becomes memory as is read."""

_TICKETS_MAX: Final = 1 << 16
_FILES_MAX: Final = 4095  # with place 0, which stands for none, as many as a ring's registered files


class ReadTable:
    """`sarp_reads` with room for `pages` pages; `frames` is where they are read to."""

    def __init__(self, *, queue_depth: int = 1, coalesce_pages: int = 1, pages: int = PAGES_HELD_MAX) -> None:
        limits = ffi.new("sarp_read_limits *")
        limits.page_limit = pages
        limits.ticket_limit = _TICKETS_MAX
        limits.file_limit = _FILES_MAX
        limits.queue_depth = queue_depth
        limits.coalesce = coalesce_pages
        self._memory = reserve(lib.sarp_reads_bytes(limits), "the table of reads")
        self.frames: mmap.mmap = reserve(pages * fmt.PAGE, "the pages that reads hold")
        self.c: Any = ffi.new("sarp_reads *")
        status = lib.sarp_reads_init(self.c, limits, pointer("void *", self._memory), pointer("uint8_t *", self.frames))
        assert status == lib.SARP_OK, "impossible limits"
        self.files: dict[int, File] = {}
        """Open files by their number in the table."""

    @property
    def outstanding(self) -> int:
        """Pages and pieces that are wanted and not done."""
        return int(self.c.pages_live - self.c.pages_held)

    def open(self, file: File) -> int:
        """Put a file into the table, and keep it open until `free`. ClosedError or LimitError where it can't be."""
        fd = file.hold()
        number = int(lib.sarp_reads_open(self.c, -1 if fd is None else fd, file.direct))
        if not number:
            file.release()
            raise LimitError(f"more than {_FILES_MAX:,} files are being read at once")
        self.files[number] = file
        return number

    def free(self, number: int) -> None:
        """Give up a file that was closed in the table and has no read left."""
        status = lib.sarp_reads_free(self.c, number)
        assert status == lib.SARP_OK, "reads of the file are under way"
        self.files.pop(number).release()

    def run_buffers(self, run: int) -> tuple[File, int, list[memoryview]]:
        """(file, offset, buffers) of a run in flight, for who reads by `File.read_into`."""
        entry = self.c.runs[run]
        vectors = self.c.vectors + entry.first
        buffers = [memoryview(ffi.buffer(vectors[i].data, vectors[i].length)) for i in range(entry.count)]
        return self.files[entry.file], int(entry.offset), buffers

    def complete(self, run: int, result: int) -> None:
        """Say what came of a run: bytes, 0 at end of file, or a negative errno."""
        status = lib.sarp_reads_complete(self.c, run, result)
        assert status == lib.SARP_OK, "no such run, or more bytes than it asked for"


def read_error(file: File, number: int) -> Exception:
    """The error that a read of the file ended with."""
    if number == errno.EBADF:  # only of files without a descriptor: others are held open
        return ClosedError(f"{file.path} is closed")
    return StorageError.of("read", file.path, number)


def aligned_buffer(length: int) -> memoryview:
    """A writable buffer that begins at a page boundary, as direct reads need it."""
    room = np.empty(length + fmt.PAGE, np.uint8)
    skip = -room.ctypes.data % fmt.PAGE
    return room[skip : skip + length].data
