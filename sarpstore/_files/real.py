"""Files and folders of the operating system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sarpstore._errors import ClosedError, LockedError, NotAStoreError, StorageError
from sarpstore._files.interface import LOCK_NAME, ReadableBuffer, WritableBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RealFile", "RealFolder"]

_Result = TypeVar("_Result")

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE_MODE = 0o644
_PID_BYTES_MAX = 32
_SECTOR = 512
_DIRECT_BYTES = 4096


class _Descriptor:
    """A file descriptor that is closed when nobody uses it any more.

    Closing at once would let the kernel give the same number to the next file that is opened, and a read that
    another thread is about to start would silently read that one. So calls hold the descriptor, and `close`
    leaves the closing to the last of them.
    """

    __slots__ = ("_closing", "_fd", "_lock", "_users", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        self._fd = fd
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False

    def hold(self) -> int:
        with self._lock:
            if self._closing:
                raise ClosedError(f"{self.path} is closed")
            self._users += 1
            return self._fd

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closing and self._users == 0
        if last:
            self._close()

    def close(self) -> None:
        with self._lock:
            idle = not self._closing and self._users == 0
            self._closing = True
        if idle:
            self._close()

    def call(self, operation: str, function: Callable[[int], _Result], path: str = "") -> _Result:
        """`function` of the descriptor; an OSError is translated and names `path`, by default the descriptor's."""
        fd = self.hold()
        try:
            return function(fd)
        except OSError as error:
            raise _storage_error(operation, path or self.path, error) from error
        finally:
            self.release()

    def _close(self) -> None:
        # An error here is about bytes that were never synced, which nobody was promised; and after EINTR
        # Linux has closed the descriptor all the same.
        with contextlib.suppress(OSError):
            os.close(self._fd)


class RealFile:
    """A `File` of the operating system; see the interface for the contract."""

    __slots__ = ("_descriptor", "_name", "direct")

    def __init__(self, fd: int, path: str, name: str, *, direct: bool = False) -> None:
        self._name = name
        self.direct = direct
        self._descriptor = _Descriptor(fd, path)

    @property
    def name(self) -> str:
        return self._name

    @property
    def path(self) -> str:
        return self._descriptor.path

    def __repr__(self) -> str:
        return f"RealFile({self._descriptor.path!r})"

    def size(self) -> int:
        return self._descriptor.call("stat", lambda fd: os.fstat(fd).st_size)

    def read_into(self, offset: int, *buffers: WritableBuffer) -> int:
        fd = self._descriptor.hold()
        try:
            _check_offset(offset)
            wanted = sum(map(len, buffers))
            count = os.preadv(fd, buffers, offset)
            # A direct read ends between sectors only at the end of the file, and could not go on there.
            if count in (wanted, 0) or (self.direct and count % _SECTOR):
                return count
            return _read_on(fd, offset, buffers, count)
        except OSError as error:
            raise _storage_error("read", self._descriptor.path, error) from error
        finally:
            self._descriptor.release()

    def write(self, offset: int, data: ReadableBuffer) -> None:
        self._descriptor.call("write", lambda fd: _write_all(fd, offset, memoryview(data).cast("B")))

    def sync(self) -> None:
        self._descriptor.call("sync", os.fdatasync)

    def truncate(self, size: int) -> None:
        self._descriptor.call("truncate", lambda fd: os.ftruncate(fd, size))

    def close(self) -> None:
        self._descriptor.close()

    def fileno(self) -> int | None:
        fd = self._descriptor.hold()
        self._descriptor.release()
        return fd

    def hold(self) -> int:
        """Keep the descriptor, which this returns, open until `release`: for I/O that the kernel does by itself."""
        return self._descriptor.hold()

    def release(self) -> None:
        """End a `hold`; closes the descriptor where `close` was called meanwhile and no other hold is left."""
        self._descriptor.release()


class RealFolder:
    """A `Folder` of the operating system, held by a descriptor: renaming it does not mislead an open store."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a folder that exists; NotAStoreError where the path is missing or no folder."""
        self._path = str(Path(path))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except FileNotFoundError as error:
            raise NotAStoreError(f"{self._path} does not exist") from error
        except NotADirectoryError as error:
            raise NotAStoreError(f"{self._path} is a file, not a folder that holds a store") from error
        except OSError as error:
            raise _storage_error("open", self._path, error) from error
        self._descriptor = _Descriptor(fd, self._path)
        self._lock_fd: int | None = None
        self._listing = threading.Lock()
        _folders.add(self)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str], *, create: bool) -> RealFolder:
        """Open the folder; with `create`, make it durably where it is missing."""
        if create:
            _make_folder(Path(path).absolute())
        return cls(path)

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"RealFolder({self._path!r})"

    def names(self) -> list[str]:
        # Copies of a folder's descriptor share one reading position: two threads must not list it at once.
        with self._listing:
            names = self._descriptor.call("list", os.listdir)
        return sorted(name for name in names if name != LOCK_NAME)

    def size(self, name: str) -> int:
        found = self._call("stat", name, lambda folder: os.stat(name, dir_fd=folder))
        if not stat.S_ISREG(found.st_mode):
            raise StorageError.of("stat", self._of(name), errno.EINVAL)
        return found.st_size

    def sizes(self) -> dict[str, int]:
        with self._listing:
            return dict(sorted(self._descriptor.call("list", _scan).items()))

    def create(self, name: str) -> RealFile:
        return self._open("create", name, _CREATE)

    def open(self, name: str, *, writable: bool = False) -> RealFile:
        return self._open("open", name, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def open_direct(self, name: str) -> RealFile:
        return self._open("open", name, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC, direct=True)

    def takes_direct(self) -> bool:
        """Asked by a read of any file that is there, since some file systems refuse direct reads only then."""
        for name in [LOCK_NAME, *self.names()]:
            with contextlib.suppress(StorageError):
                file = self.open_direct(name)
                try:
                    file.read_into(0, memoryview(mmap.mmap(-1, _DIRECT_BYTES)))
                finally:
                    file.close()
                return True
        return False

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old, lambda fd: os.replace(old, new, src_dir_fd=fd, dst_dir_fd=fd))

    def remove(self, name: str) -> None:
        self._call("remove", name, lambda fd: os.unlink(name, dir_fd=fd))

    def sync(self) -> None:
        self._descriptor.call("sync", os.fsync)

    def lock(self) -> None:
        """Lock the file LOCK with flock, which the kernel gives up when the process ends in whatever way."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = self._call("lock", LOCK_NAME, lambda folder: os.open(LOCK_NAME, flags, _FILE_MODE, dir_fd=folder))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            pid = _pid_in(fd)
            os.close(fd)
            raise LockedError(self._path, pid) from error
        except OSError as error:
            os.close(fd)
            raise _storage_error("lock", self._of(LOCK_NAME), error) from error
        self._lock_fd = fd

    def unlock(self) -> None:
        fd, self._lock_fd = self._lock_fd, None
        if fd is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)  # or the next who is refused would be told this process's id
        os.close(fd)

    def close(self) -> None:
        self.unlock()
        self._descriptor.close()

    def _open(self, operation: str, name: str, flags: int, *, direct: bool = False) -> RealFile:
        # O_NONBLOCK: a pipe under one of our names must not make the open wait for ever.
        fd = self._call(operation, name, lambda folder: os.open(name, flags | os.O_NONBLOCK, _FILE_MODE, dir_fd=folder))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StorageError.of(operation, self._of(name), errno.EINVAL)
        return RealFile(fd, self._of(name), name, direct=direct)

    def _call(self, operation: str, name: str, function: Callable[[int], _Result]) -> _Result:
        return self._descriptor.call(operation, function, self._of(name))

    def _of(self, name: str) -> str:
        # Path would take a hundred times as long, which counts where an open looks at a thousand files.
        return f"{self._path.rstrip(os.sep)}{os.sep}{name}"

    def _forget_lock(self) -> None:
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            os.close(fd)


_folders: weakref.WeakSet[RealFolder] = weakref.WeakSet()


def _forget_locks() -> None:
    # A child shares the parent's lock through its copy of the descriptor: were it kept, a worker that outlives
    # its parent would keep the store locked. Closing the copy leaves the parent's lock in place.
    for folder in list(_folders):
        folder._forget_lock()  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_locks)


def _storage_error(operation: str, path: str, error: OSError) -> StorageError:
    return StorageError.of(operation, path, error.errno or errno.EIO)


def _scan(fd: int) -> dict[str, int]:
    with os.scandir(fd) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file() and entry.name != LOCK_NAME}


def _read_on(fd: int, offset: int, buffers: tuple[WritableBuffer, ...], count: int) -> int:
    """Continue a read that stopped after `count` bytes until the buffers are full or the file ends."""
    while rest := _after(buffers, count):
        more = os.preadv(fd, rest, offset + count)
        if more == 0:
            break
        count += more
    return count


def _after(buffers: tuple[WritableBuffer, ...], count: int) -> list[memoryview]:
    """What is left of the buffers after their first `count` bytes."""
    rest = []
    for buffer in buffers:
        if count < len(buffer):
            rest.append(memoryview(buffer)[count:])
        count = max(0, count - len(buffer))
    return rest


def _check_offset(offset: int) -> None:
    # The kernel takes -1 for "the current position" (preadv2): a lost offset would write somewhere.
    if offset < 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _write_all(fd: int, offset: int, data: memoryview) -> None:
    _check_offset(offset)
    while data:
        count = os.pwritev(fd, [data], offset)
        if count == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        offset += count
        data = data[count:]


def _pid_in(fd: int) -> int | None:
    try:
        return int(os.pread(fd, _PID_BYTES_MAX, 0))
    except (OSError, ValueError):
        return None


def _make_folder(path: Path) -> None:
    """Make the folder, synced into its parent, or a crash could lose it whole.

    The parent must be there: where a device is not mounted, a new, empty store on another one would be a poor surprise.
    """
    try:
        if not path.exists():
            path.mkdir(exist_ok=True)
            _sync_folder(path.parent)
    except FileNotFoundError as error:
        raise NotAStoreError(f"{path.parent}, in which the store is to be made, does not exist") from error
    except NotADirectoryError as error:
        raise NotAStoreError(f"{path.parent} is a file, not a folder that holds a store") from error
    except OSError as error:
        raise _storage_error("create", str(path), error) from error


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
