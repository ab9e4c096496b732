"""The interface of the file layer: what a store asks of the medium, and nothing more.

Calls are synchronous: they run on threads of the I/O backend, several at once. A refusal by the operating
system is a `StorageError` (`DiskFullError` where space is out) that names the operation and the file; a call
on something closed is a `ClosedError`. What we assume of the medium:

- written bytes survive a crash once `File.sync` returned; before that any 512-byte sector of them may or
  may not, and so may the file's growth;
- a created, renamed or removed name survives a crash once `Folder.sync` returned; a rename is atomic;
- syncing a file does not make its name durable, and syncing a folder does not make its files' bytes durable.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["LOCK_NAME", "File", "Folder", "ReadableBuffer", "WritableBuffer", "read_whole"]

LOCK_NAME = "LOCK"

ReadableBuffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview


class File(Protocol):
    """An open file. Offsets and sizes are in bytes."""

    @property
    def name(self) -> str:
        """The name in its folder under which the file was opened."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def direct(self) -> bool:
        """Whether reads bypass the system's cache: offset, length and address of each must be multiples of 4,096."""

    def size(self) -> int:
        """The file's size now."""

    def read_into(self, offset: int, *buffers: WritableBuffer) -> int:
        """Fill the buffers one after another from `offset` on; return the bytes read, fewer only at end of file."""

    def write(self, offset: int, data: ReadableBuffer) -> None:
        """Write all of `data` at `offset`; where this raises, any part of it may have been written."""

    def sync(self) -> None:
        """Return once the file's bytes and size are durable. After a failure what is durable is unknown."""

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size`."""

    def close(self) -> None:
        """Close without syncing. Reads that are in progress finish first; closing again does nothing."""

    def fileno(self) -> int | None:
        """The descriptor, for a backend that hands it to the kernel; None where there is none."""

    def hold(self) -> int | None:
        """As `fileno`, and the descriptor stays open until `release`, whoever closes the file meanwhile."""

    def release(self) -> None:
        """End a `hold`."""


class Folder(Protocol):
    """The folder that holds a store. Names are plain file names."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    def names(self) -> list[str]:
        """The names in the folder, sorted, without the lock file's."""

    def size(self, name: str) -> int:
        """The size of a file that need not be open; a StorageError with ENOENT where there is none of that name."""

    def sizes(self) -> dict[str, int]:
        """The sizes of all files by name, without the lock file: cheaper than one by one. Folders are no files."""

    def create(self, name: str) -> File:
        """Create a file for reading and writing; a StorageError with EEXIST where the name is taken."""

    def open(self, name: str, *, writable: bool = False) -> File:
        """Open a file that exists; a StorageError with ENOENT where it does not."""

    def open_direct(self, name: str) -> File:
        """Open a file that exists for direct reads; only called where `takes_direct` said yes."""

    def takes_direct(self) -> bool:
        """Whether files of this folder can be read directly, past the system's cache."""

    def rename(self, old: str, new: str) -> None:
        """Give the file another name, atomically replacing the file that has it."""

    def remove(self, name: str) -> None:
        """Remove the name; whoever has the file open can go on reading it."""

    def sync(self) -> None:
        """Return once the names (created, renamed, removed) are durable."""

    def lock(self) -> None:
        """Become the folder's one writer, or raise LockedError at once."""

    def unlock(self) -> None:
        """Give up the lock; does nothing without it."""

    def close(self) -> None:
        """Give up the lock and the folder; its files stay open. Closing again does nothing."""


def read_whole(folder: Folder, name: str, bytes_max: int = 1 << 30) -> bytes:
    """All bytes of a small file; of one that is longer than `bytes_max`, so many."""
    file = folder.open(name)
    try:
        data = bytearray(min(file.size(), bytes_max))
        return bytes(data[: file.read_into(0, data)])
    finally:
        file.close()
