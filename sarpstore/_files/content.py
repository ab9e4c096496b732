"""The content of a simulated file, and what a power cut may leave of it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SECTOR_BYTES", "Choice", "Content"]

SECTOR_BYTES = 512
"""What the medium writes whole or not at all."""

Choice = Callable[[], bool]
"""Asked for each thing that a crash may lose: whether it is kept."""


class Content:
    """What an inode is: bytes now, bytes that are durable, and the changes that lead from these to those."""

    __slots__ = ("changes", "durable", "now")

    def __init__(self) -> None:
        self.now = bytearray()
        self.durable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []  # (offset, data), or (size, None) for a truncation

    def write(self, offset: int, data: bytes) -> None:
        self.changes.append((offset, data))
        _apply(self.now, offset, data)

    def truncate(self, size: int) -> None:
        self.changes.append((size, None))
        _apply(self.now, size, None)

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.durable, *change)
        self.changes.clear()

    def copy(self) -> Content:
        copy = Content()
        copy.now[:] = self.now
        copy.durable[:] = self.durable
        copy.changes[:] = self.changes
        return copy

    def after_crash(self, keep: Choice) -> Content:
        """The inode as a crash may leave it; `keep` is asked for each sector written and each change of size.

        A file system journals sizes in order, so of the size changes a first part is kept, while written
        sectors reach the device in any order: those beyond the kept size are lost, and below it a lost one
        leaves what stood there before, or zeros.
        """
        image = bytearray(self.durable)
        size = reached = len(image)
        ordered = True
        for offset, data in self.changes:
            end = offset if data is None else max(reached, offset + len(data))
            if end != reached and ordered:
                ordered = keep()
                size = end if ordered else size
            reached = end
            if data is not None:
                _apply_torn(image, offset, data, keep)
            elif ordered:
                _resize(image, offset)
        _resize(image, size)
        content = Content()
        content.now[:] = content.durable[:] = image
        return content


def _resize(image: bytearray, size: int) -> None:
    del image[size:]
    image.extend(bytes(size - len(image)))


def _apply(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        _resize(image, offset)
    elif data:
        image.extend(bytes(max(0, offset - len(image))))
        image[offset : offset + len(data)] = data


def _apply_torn(image: bytearray, offset: int, data: bytes, keep: Choice) -> None:
    """Apply those of the write's sectors that `keep` keeps."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        if keep():
            _apply(image, offset + start, data[start:end])
        start = end
