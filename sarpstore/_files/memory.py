"""A simulated folder in memory that knows what a power cut may leave of it.

A file is its durable bytes and the writes since its last sync; a folder is its durable names and the changes
since its last sync. `MemoryFolder.crash` draws from these what is found afterwards, which is how the crash
fuzzer gets thousands of power cuts a second without a device.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from errno import EBADF, EEXIST, EINVAL, ENOENT
from typing import TYPE_CHECKING, Literal

from sarpstore._errors import ClosedError, LockedError, StorageError
from sarpstore._files.content import PAGE_BYTES, SECTOR_BYTES, Choice, Content, Fill, zeros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sarpstore._files.interface import ReadableBuffer, WritableBuffer

__all__ = ["CrashMode", "MemoryFile", "MemoryFolder"]

CrashMode = Literal["lose", "keep", "tear", "pages", "junk", "kill"]

# Where a file has grown and its data did not come, a medium may show an older file's bytes, or noise.
_STALE_SHARE = 0.5

# A change of names is what it makes each name mean: atomic, and well defined whether or not others are kept.
_NameChange = dict[str, Content | None]


class _Disk:
    """What all handles of one simulated folder share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.names: dict[str, Content] = {}
        self.durable: dict[str, Content] = {}
        self.changes: list[_NameChange] = []
        self.writer: MemoryFolder | None = None

    def change(self, change: _NameChange) -> None:
        self.changes.append(change)
        _apply_names(self.names, change)

    def sync(self) -> None:
        for change in self.changes:
            _apply_names(self.durable, change)
        self.changes.clear()

    def map_contents(self, function: Callable[[Content], Content]) -> _Disk:
        """The same names, durable names and changes, of which each content is replaced once and everywhere."""
        done: dict[int, Content] = {}

        def replaced(content: Content) -> Content:
            if id(content) not in done:
                done[id(content)] = function(content)
            return done[id(content)]

        disk = _Disk()
        disk.durable = {name: replaced(content) for name, content in self.durable.items()}
        for change in self.changes:
            disk.changes.append({name: None if old is None else replaced(old) for name, old in change.items()})
        disk.names = {name: replaced(content) for name, content in self.names.items()}
        return disk


def _apply_names(names: dict[str, Content], change: _NameChange) -> None:
    for name, content in change.items():
        if content is None:
            names.pop(name, None)
        else:
            names[name] = content


class MemoryFile:
    """A `File` in memory; see the interface for the contract."""

    __slots__ = ("_closed", "_content", "_disk", "_name", "_path", "_writable")

    def __init__(self, disk: _Disk, content: Content, path: str, name: str, *, writable: bool) -> None:
        self._disk = disk
        self._content = content
        self._path = f"{path}/{name}"
        self._name = name
        self._writable = writable
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def path(self) -> str:
        return self._path

    @property
    def direct(self) -> bool:
        return False

    def size(self) -> int:
        self._check("stat")
        return len(self._content.now)

    def read_into(self, offset: int, *buffers: WritableBuffer) -> int:
        self._check("read", offset)
        with self._disk.lock:
            start = offset
            for buffer in buffers:
                data = self._content.now[offset : offset + len(buffer)]
                buffer[: len(data)] = data
                offset += len(data)
            return offset - start

    def write(self, offset: int, data: ReadableBuffer) -> None:
        self._check("write", offset, writes=True)
        with self._disk.lock:
            self._content.write(offset, bytes(data))

    def sync(self) -> None:
        self._check("sync")
        with self._disk.lock:
            self._content.sync()

    def truncate(self, size: int) -> None:
        self._check("truncate", size, writes=True)
        with self._disk.lock:
            self._content.truncate(size)

    def fail_sync(self) -> None:
        """As a sync that fails: what was not durable reads as before, and never will be."""
        self._check("sync")
        with self._disk.lock:
            self._content.fail_sync()

    def close(self) -> None:
        self._closed = True

    def fileno(self) -> int | None:
        self._check("stat")
        return None

    def hold(self) -> int | None:
        return self.fileno()

    def release(self) -> None:
        pass

    def _check(self, operation: str, offset: int = 0, *, writes: bool = False) -> None:
        if self._closed:
            raise ClosedError(f"{self._path} is closed")
        if offset < 0:
            raise StorageError(operation, self._path, EINVAL)
        if writes and not self._writable:
            raise StorageError(operation, self._path, EBADF)


class MemoryFolder:
    """A `Folder` in memory. `reopen` gives further handles of it, `clone` and `crash` independent copies."""

    def __init__(self, path: str = "memory:", *, _disk: _Disk | None = None) -> None:
        self._path = path
        self._disk = _Disk() if _disk is None else _disk
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def names(self) -> list[str]:
        with self._open_disk() as disk:
            return sorted(disk.names)

    def size(self, name: str) -> int:
        with self._open_disk() as disk:
            return len(self._content(disk, "stat", name).now)

    def sizes(self) -> dict[str, int]:
        with self._open_disk() as disk:
            return {name: len(disk.names[name].now) for name in sorted(disk.names)}

    def create(self, name: str) -> MemoryFile:
        with self._open_disk() as disk:
            if name in disk.names:
                raise StorageError("create", f"{self._path}/{name}", EEXIST)
            content = Content()
            disk.change({name: content})
            return MemoryFile(disk, content, self._path, name, writable=True)

    def open(self, name: str, *, writable: bool = False) -> MemoryFile:
        with self._open_disk() as disk:
            content = self._content(disk, "open", name)
            return MemoryFile(disk, content, self._path, name, writable=writable)

    def open_direct(self, name: str) -> MemoryFile:
        return self.open(name)

    def takes_direct(self) -> bool:
        return False

    def rename(self, old: str, new: str) -> None:
        with self._open_disk() as disk:
            content = self._content(disk, "rename", old)
            if old != new:
                disk.change({old: None, new: content})

    def remove(self, name: str) -> None:
        with self._open_disk() as disk:
            self._content(disk, "remove", name)
            disk.change({name: None})

    def sync(self) -> None:
        with self._open_disk() as disk:
            disk.sync()

    def lock(self) -> None:
        with self._open_disk() as disk:
            if disk.writer is not None:
                raise LockedError(self._path, os.getpid())
            disk.writer = self

    def unlock(self) -> None:
        with self._disk.lock:
            if self._disk.writer is self:
                self._disk.writer = None

    def close(self) -> None:
        self.unlock()
        self._closed = True

    def reopen(self) -> MemoryFolder:
        """Another handle of the same folder: how a second process would see it."""
        return MemoryFolder(self._path, _disk=self._disk)

    def clone(self) -> MemoryFolder:
        """An exact, independent copy that nobody has locked: what is not synced here is not synced there."""
        with self._disk.lock:
            return MemoryFolder(self._path, _disk=self._disk.map_contents(Content.copy))

    def crash(self, source: random.Random | int = 0, mode: CrashMode = "tear") -> MemoryFolder:
        """A copy of the folder as it may be found after a power cut now. This one goes on undisturbed.

        `lose` drops whatever is not synced, `keep` keeps everything, and the others decide by `source` (a generator, or
        a seed: the same seed, the same crash) of each change of size and of a name, and of what was written: `tear`
        each 512-byte sector, `pages` each 4,096 bytes, and `junk` each sector, where what a file has grown by
        and lost is not zeros but noise, or bytes of another file. `kill` is a `clone`, as if only the process had gone:
        what was not synced is there, and a later crash may take it.
        """
        if mode == "kill":
            return self.clone()
        generator = random.Random(source) if isinstance(source, int) else source  # noqa: S311
        choices: dict[CrashMode, Choice] = {"lose": lambda: False, "keep": lambda: True}
        keep = choices.get(mode, lambda: generator.random() < 0.5)
        unit = PAGE_BYTES if mode == "pages" else SECTOR_BYTES
        with self._disk.lock:
            fill = self._junk(generator) if mode == "junk" else zeros
            disk = self._disk.map_contents(lambda content: content.after_crash(keep, unit, fill))
        for change in disk.changes:
            if keep():
                _apply_names(disk.durable, change)
        disk.changes.clear()
        disk.names = dict(disk.durable)
        return MemoryFolder(self._path, _disk=disk)

    def _junk(self, generator: random.Random) -> Fill:
        """Noise, or what stands somewhere in a file, at the sector."""
        files = [bytes(content.now) for content in self._disk.names.values() if content.now]

        def fill(count: int) -> bytes:
            if not files or generator.random() >= _STALE_SHARE:
                return generator.randbytes(count)
            file = generator.choice(files)
            start = generator.randrange(-(-len(file) // SECTOR_BYTES)) * SECTOR_BYTES
            found = file[start : start + count]
            return found + bytes(count - len(found))

        return fill

    @contextlib.contextmanager
    def _open_disk(self) -> Iterator[_Disk]:
        if self._closed:
            raise ClosedError(f"{self._path} is closed")
        with self._disk.lock:
            yield self._disk

    def _content(self, disk: _Disk, operation: str, name: str) -> Content:
        if name not in disk.names:
            raise StorageError(operation, f"{self._path}/{name}", ENOENT)
        return disk.names[name]
