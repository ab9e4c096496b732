"""Larger reads, cut into pieces that are read side by side into one buffer."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._errors import StorageError
from sarpstore._io.table import aligned_buffer, read_error
from sarpstore._kernel import pointer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore._files import File

__all__ = ["PIECE_BYTES", "Pieces"]

PIECE_BYTES: Final = 1 << 20


class Pieces:
    """`length` bytes of a file from `offset` on, in pieces of at most 1 MiB.

    Of a file that was opened for direct reads whole pages are read, of which the range is a part.
    """

    __slots__ = ("_buffer", "_file", "_length", "_skip", "_start", "pages")

    def __init__(self, file: File, offset: int, length: int) -> None:
        if offset < 0:
            raise StorageError.of("read", file.path, errno.EINVAL)
        self._file = file
        self._length = max(0, length)
        self._skip = offset % fmt.PAGE if file.direct else 0
        self._start = offset - self._skip
        room = self._skip + self._length
        if file.direct:
            room = -(-room // fmt.PAGE) * fmt.PAGE
        self._buffer = aligned_buffer(room) if self._length else memoryview(b"")
        self.pages: list[int] = []
        """The pieces' numbers in the table, once they are there."""

    def parts(self) -> Iterator[tuple[int, Any, int]]:
        """(offset in the file, pointer, bytes) of each piece."""
        for start in range(0, len(self._buffer), PIECE_BYTES):
            part = self._buffer[start : start + PIECE_BYTES]
            yield self._start + start, pointer("uint8_t *", part), len(part)

    def result(self, reads: Any) -> memoryview | BaseException:
        """What was read without a gap: pieces after the first short one do not count. Or the first error."""
        done = 0
        results = [int(reads.pages[page].result) for page in self.pages]
        for result in results:
            if result < 0:
                return read_error(self._file, -result)
        for result in results:
            done += result
            if result < PIECE_BYTES:
                break
        return self._buffer[self._skip : max(self._skip, min(done, self._skip + self._length))].toreadonly()
