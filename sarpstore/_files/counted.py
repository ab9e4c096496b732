"""A folder that knows how many bytes its files take: every byte that is written passes through here.

Sizes are rounded up to whole pages of 4 KiB, as a file system gives them out. A file counts what it is about to have
before it is written, and no longer once its name is removed.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from sarpstore._files.forwarding import ForwardingFile, ForwardingFolder

if TYPE_CHECKING:
    from sarpstore._files.interface import File, Folder, ReadableBuffer

__all__ = ["CountedFolder", "rounded"]

_PAGE: Final = 4096
_TEMPORARY: Final = ".tmp"


def rounded(size: int) -> int:
    """Bytes of disk for a file of `size` bytes."""
    return -(-size // _PAGE) * _PAGE


def _kind(name: str) -> str:
    """What files are summed up by: the last suffix, that of a temporary file being its final name's."""
    return name.removesuffix(_TEMPORARY).rpartition(".")[2]


class _Counted:
    """What is counted of one file, whatever its name is by now."""

    __slots__ = ("bytes", "kind")

    def __init__(self, kind: str) -> None:
        self.kind: str | None = kind
        """None: the name was removed, and nothing of it counts any more."""
        self.bytes = 0


class CountedFolder(ForwardingFolder):
    """`folder`, and the bytes of its files. `survey` comes first; any thread may call."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._lock = threading.Lock()
        self._counted: dict[str, _Counted] = {}
        self._kinds: Counter[str] = Counter()
        # The lock file, which `names` leaves out.
        self.bytes = _PAGE
        """Bytes of all files."""
        self.bytes_highest = _PAGE
        """The most that they have been."""

    def survey(self) -> dict[str, int]:
        """Count what is there; the sizes of all files."""
        sizes = self.inner.sizes()
        for name, size in sizes.items():
            self._resize(self._entry(name), size)
        return sizes

    def bytes_of(self, suffix: str) -> int:
        """Bytes of the files whose names end with a suffix, those that have yet to get their name included."""
        return self._kinds[_kind(suffix)]

    def _entry(self, name: str) -> _Counted:
        with self._lock:
            return self._counted.setdefault(name, _Counted(_kind(name)))

    def _resize(self, entry: _Counted, size: int) -> None:
        with self._lock:
            self._set(entry, rounded(size))

    def _grow(self, entry: _Counted, size: int) -> None:
        with self._lock:
            self._set(entry, max(entry.bytes, rounded(size)))

    def _set(self, entry: _Counted, size: int) -> None:
        if entry.kind is not None:
            self._kinds[entry.kind] += size - entry.bytes
            self.bytes += size - entry.bytes
            self.bytes_highest = max(self.bytes_highest, self.bytes)
            entry.bytes = size

    def _forget(self, name: str) -> None:
        entry = self._counted.pop(name, None)
        if entry is not None:
            self._set(entry, 0)
            entry.kind = None

    # --- a folder

    def create(self, name: str) -> File:
        return _CountedFile(self, self._entry(name), self.inner.create(name))

    def open(self, name: str, *, writable: bool = False) -> File:
        file = self.inner.open(name, writable=writable)
        return _CountedFile(self, self._entry(name), file) if writable else file

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)
        with self._lock:
            if old == new or old not in self._counted:
                return
            self._forget(new)
            entry = self._counted[new] = self._counted.pop(old)
            size = entry.bytes
            self._set(entry, 0)
            entry.kind = _kind(new)
            self._set(entry, size)

    def remove(self, name: str) -> None:
        self.inner.remove(name)
        with self._lock:
            self._forget(name)


class _CountedFile(ForwardingFile):
    """A file that may be written; see the interface for the contract."""

    __slots__ = ("_entry", "_folder")

    def __init__(self, folder: CountedFolder, entry: _Counted, file: File) -> None:
        self._folder = folder
        super().__init__(file)
        self._entry = entry

    def write(self, offset: int, data: ReadableBuffer) -> None:
        self._folder._grow(self._entry, offset + len(data))  # noqa: SLF001 - the two are one
        self.inner.write(offset, data)

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)
        self._folder._resize(self._entry, size)  # noqa: SLF001
