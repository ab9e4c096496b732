"""A folder in memory that keeps the image which a power cut would leave in the middle of what is done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sarpstore._files import rounded

if TYPE_CHECKING:
    from sarpstore._files import CrashMode, MemoryFolder


class CutFolder:
    """A folder whose writes, syncs and changes of names are counted, and cut where it was told to."""

    def __init__(self, inner: MemoryFolder, *, measured: bool = False) -> None:
        self.inner = inner
        self.bytes_highest = 0
        """The most that all files took at any time, in whole pages, where that is `measured`."""
        self._measured = measured
        self.image: MemoryFolder | None = None
        """What the power cut left."""
        self._left = 0
        self._seed = 0
        self._mode: CrashMode = "keep"

    def cut_after(self, changes: int, seed: int, mode: CrashMode) -> None:
        """Keep an image as of so many changes from now on."""
        self.image, self._left, self._seed, self._mode = None, changes, seed, mode

    def cut_now(self) -> MemoryFolder:
        """The image, taken now if it was not before."""
        if self.image is None:
            self.image = self.inner.crash(self._seed, self._mode)
        self._left = 0
        return self.image

    def changed(self) -> None:
        """Count a change."""
        if self._measured:
            self.bytes_highest = max(self.bytes_highest, self.bytes)
        if self._left:
            self._left -= 1
            if not self._left:
                self.cut_now()

    @property
    def bytes(self) -> int:
        """What all files take now, in whole pages, and the lock file."""
        return rounded(1) + sum(rounded(len(content.now)) for content in self.inner._disk.names.values())

    def create(self, name: str) -> CutFile:
        file = CutFile(self.inner.create(name), self)
        self.changed()
        return file

    def open(self, name: str, *, writable: bool = False) -> CutFile:
        return CutFile(self.inner.open(name, writable=writable), self)

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)
        self.changed()

    def remove(self, name: str) -> None:
        self.inner.remove(name)
        self.changed()

    def sync(self) -> None:
        self.inner.sync()
        self.changed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class CutFile:
    """A file of such a folder."""

    def __init__(self, inner: Any, folder: CutFolder) -> None:
        self._inner = inner
        self._folder = folder

    def write(self, offset: int, data: Any) -> None:
        self._inner.write(offset, data)
        self._folder.changed()

    def sync(self) -> None:
        self._inner.sync()
        self._folder.changed()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)
        self._folder.changed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
