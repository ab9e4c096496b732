"""A folder that tells of each change of its files, at which a power cut may leave an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sarpstore._files.forwarding import ForwardingFile, ForwardingFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._files import File, Folder, ReadableBuffer

__all__ = ["WatchedFolder"]


class WatchedFile(ForwardingFile):
    """A file of such a folder."""

    __slots__ = ("_changed",)

    def __init__(self, file: File, changed: Callable[[], None]) -> None:
        super().__init__(file)
        self._changed = changed

    def write(self, offset: int, data: ReadableBuffer) -> None:
        try:
            super().write(offset, data)
        finally:
            self._changed()

    def sync(self) -> None:
        try:
            super().sync()
        finally:
            self._changed()

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._changed()


class WatchedFolder(ForwardingFolder):
    """A folder that calls `changed` after each write, sync, truncation and change of a name, failed ones too."""

    def __init__(self, inner: Folder, changed: Callable[[], None]) -> None:
        super().__init__(inner)
        self._changed = changed

    def create(self, name: str) -> WatchedFile:
        file = self.inner.create(name)
        self._changed()
        return WatchedFile(file, self._changed)

    def open(self, name: str, *, writable: bool = False) -> WatchedFile:
        return WatchedFile(self.inner.open(name, writable=writable), self._changed)

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)
        self._changed()

    def remove(self, name: str) -> None:
        self.inner.remove(name)
        self._changed()

    def sync(self) -> None:
        try:
            self.inner.sync()
        finally:
            self._changed()
