"""What stands in front of a file or folder: every call passes through, but for those that a subclass overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sarpstore._files.interface import File, Folder, ReadableBuffer, WritableBuffer

__all__ = ["ForwardingFile", "ForwardingFolder"]


class ForwardingFile:
    """A `File` in front of `inner`."""

    __slots__ = ("inner",)

    def __init__(self, inner: File) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def direct(self) -> bool:
        return self.inner.direct

    def size(self) -> int:
        return self.inner.size()

    def read_into(self, offset: int, *buffers: WritableBuffer) -> int:
        return self.inner.read_into(offset, *buffers)

    def write(self, offset: int, data: ReadableBuffer) -> None:
        self.inner.write(offset, data)

    def sync(self) -> None:
        self.inner.sync()

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)

    def close(self) -> None:
        self.inner.close()

    def fileno(self) -> int | None:
        return self.inner.fileno()

    def hold(self) -> int | None:
        return self.inner.hold()

    def release(self) -> None:
        self.inner.release()


class ForwardingFolder:
    """A `Folder` in front of `inner`."""

    def __init__(self, inner: Folder) -> None:
        self.inner = inner

    @property
    def path(self) -> str:
        return self.inner.path

    def names(self) -> list[str]:
        return self.inner.names()

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def sizes(self) -> dict[str, int]:
        return self.inner.sizes()

    def create(self, name: str) -> File:
        return self.inner.create(name)

    def open(self, name: str, *, writable: bool = False) -> File:
        return self.inner.open(name, writable=writable)

    def open_direct(self, name: str) -> File:
        return self.inner.open_direct(name)

    def takes_direct(self) -> bool:
        return self.inner.takes_direct()

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)

    def remove(self, name: str) -> None:
        self.inner.remove(name)

    def sync(self) -> None:
        self.inner.sync()

    def lock(self) -> None:
        self.inner.lock()

    def unlock(self) -> None:
        self.inner.unlock()

    def close(self) -> None:
        self.inner.close()
