"""The content of a simulated file, and what a power cut may leave of it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PAGE_BYTES", "SECTOR_BYTES", "Choice", "Content", "Fill", "zeros"]

SECTOR_BYTES = 512
"""What the medium writes whole or not at all."""
PAGE_BYTES = 4096
"""What a system's cache hands to the medium, and many media write whole."""

Choice = Callable[[], bool]
"""Asked for each thing that a crash may lose: whether it is kept."""
Fill = Callable[[int], bytes]
"""Asked for so many bytes that a file has grown by, and that were never written: what stands there."""

zeros: Fill = bytes


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

    def fail_sync(self) -> None:
        """What a failed fsync leaves: pages that read as they were written, count as clean, and are on no medium."""
        self.changes.clear()

    def copy(self) -> Content:
        copy = Content()
        copy.now[:] = self.now
        copy.durable[:] = self.durable
        copy.changes[:] = self.changes
        return copy

    def after_crash(self, keep: Choice, unit: int = SECTOR_BYTES, fill: Fill = zeros) -> Content:
        """The inode as a crash may leave it; `keep` is asked for each `unit` bytes written and each change of size.

        A file system journals sizes in order, so of the size changes a first part is kept, while written
        sectors reach the device in any order: those beyond the kept size are lost, and below it a lost one
        leaves what stood there before, or what `fill` gives: zeros, or whatever the medium had there.
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
                _apply_torn(image, offset, data, keep, unit, fill)
            elif ordered:
                _resize(image, offset)
        _resize(image, size, fill)
        content = Content()
        content.now[:] = content.durable[:] = image
        return content


def _resize(image: bytearray, size: int, fill: Fill = zeros) -> None:
    del image[size:]
    image.extend(fill(size - len(image)))


def _apply(image: bytearray, offset: int, data: bytes | None, fill: Fill = zeros) -> None:
    if data is None:
        _resize(image, offset)
    elif data:
        image.extend(fill(max(0, offset - len(image))))
        image[offset : offset + len(data)] = data


def _apply_torn(image: bytearray, offset: int, data: bytes, keep: Choice, unit: int, fill: Fill) -> None:
    """Apply those of the write's sectors, or pages, that `keep` keeps."""
    start = 0
    while start < len(data):
        end = min(len(data), start + unit - (offset + start) % unit)
        if keep():
            _apply(image, offset + start, data[start:end], fill)
        start = end
