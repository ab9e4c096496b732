"""Everything that can go wrong, on one page.

::

    SarpError
    ├── OptionError (also ValueError)     an option's value, or the combination, is not possible
    ├── InputError (also ValueError)      an argument of a call is not possible
    │   └── NamespaceError                the namespace's ids were made by another scheme
    ├── UsageError                        the call is fine, but not here or not now
    │   ├── ClosedError                   the store, file or folder is closed
    │   ├── WrongLoopError                called from another event loop than the one that opened
    │   ├── ForkedError                   called in a child process after a fork
    │   └── ReadOnlyError                 a write to a store that was opened read-only
    ├── OpenError                         the store cannot be opened as asked
    │   ├── NotAStoreError                the path does not hold a store
    │   ├── LockedError                   another process writes to it
    │   ├── VersionError                  its format is newer than this version reads
    │   └── MismatchError                 its files were made with other options
    ├── CorruptionError                   damage below the synced position prevents serving
    ├── StorageError (also OSError)       the operating system refused a file operation
    │   └── DiskFullError                 no space, or no quota, is left
    ├── FailedError                       writes stopped after a failed append or sync
    └── LimitError                        a bound from the options is reached

Every message names what is wrong and where. Errors can be pickled.
"""

from __future__ import annotations

import os
from errno import EDQUOT, ENOSPC

__all__ = [
    "ClosedError",
    "CorruptionError",
    "DiskFullError",
    "FailedError",
    "ForkedError",
    "InputError",
    "LimitError",
    "LockedError",
    "MismatchError",
    "NamespaceError",
    "NotAStoreError",
    "OpenError",
    "OptionError",
    "ReadOnlyError",
    "SarpError",
    "StorageError",
    "UsageError",
    "VersionError",
    "WrongLoopError",
]

_DISK_FULL = (ENOSPC, EDQUOT)


class SarpError(Exception):
    __doc__ = __doc__  # the tree above: users see this class, not this module


class OptionError(SarpError, ValueError):
    """An option has a value that is out of its bounds, contradicts another, or asks for a part that is not built.

    Change the option that the message names.
    """


class InputError(SarpError, ValueError):
    """An argument has the wrong dtype, length or range, or locations do not fit the tokens. Nothing was changed."""


class NamespaceError(InputError):
    """The namespace already holds ids of another scheme. Use another name, or the scheme that the message names."""


class UsageError(SarpError):
    """The call is not possible here or now: a mistake in the calling program, which has to be changed."""


class ClosedError(UsageError):
    """The store, or one of its files, was closed before the call. Open it again."""


class WrongLoopError(UsageError):
    """The call came from another event loop than the one that opened the store. Open one store a loop."""


class ForkedError(UsageError):
    """The call came from a child process that inherited the store by a fork. Open it after forking."""


class ReadOnlyError(UsageError):
    """A write to a store that was opened with `read_only=True`. Open it for writing."""


class OpenError(SarpError):
    """The store cannot be opened as asked; nothing in it was changed."""


class NotAStoreError(OpenError):
    """The path is a file, its parent is missing, or it holds no store and `create=False`. Check the path."""


class LockedError(OpenError):
    """Another process (or this one) has the store open for writing. End it, or open with `read_only=True`.

    `pid` is the writer's process id, or None where it is not known.
    """

    def __init__(self, path: str, pid: int | None = None) -> None:
        super().__init__(path, pid)
        self.path = path
        self.pid = pid

    def __str__(self) -> str:
        writer = "another process" if self.pid is None else f"process {self.pid}"
        return f"{self.path} is open for writing in {writer}; stop it, or open with read_only=True"


class VersionError(OpenError):
    """The files have a later format version, or features that this version does not know. Upgrade sarpstore."""


class MismatchError(OpenError):
    """An option differs from the one that the store's files were made with. Open with the stored value."""

    def __init__(self, option: str, stored: object, given: object, path: str = "") -> None:
        super().__init__(option, stored, given, path)
        self.option = option
        self.stored = stored
        self.given = given
        self.path = path

    def __str__(self) -> str:
        store = self.path or "the store"
        return f"{store} was made with {self.option}={self.stored!r}, but was opened with {self.option}={self.given!r}"


class CorruptionError(SarpError):
    """Bytes that had been synced are damaged, and the store cannot serve without them. Restore or rebuild it.

    `offset` is in bytes; None where the file as a whole is meant.
    """

    def __init__(self, file: str, offset: int | None, meaning: str) -> None:
        super().__init__(file, offset, meaning)
        self.file = file
        self.offset = offset
        self.meaning = meaning

    def __str__(self) -> str:
        where = self.file if self.offset is None else f"{self.file} at byte {self.offset}"
        return f"{where} is corrupt: {self.meaning}"


class StorageError(SarpError, OSError):
    """The operating system refused a file operation. `errno` and `filename` are as in OSError.

    `operation` is the failed call's name (such as "read" or "sync"). Check the device and the permissions.
    """

    def __init__(self, operation: str, file: str, errno: int) -> None:
        super().__init__(errno, os.strerror(errno), file)
        self.operation = operation
        self.file = file

    def __str__(self) -> str:
        return f"{self.operation} of {self.file} failed: {self.strerror} (errno {self.errno})"

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str, int | None]]:
        # OSError's own __reduce__ would rebuild it from (errno, text), which is not how it is constructed.
        return type(self), (self.operation, self.file, self.errno)

    @staticmethod
    def of(operation: str, file: str, errno: int) -> StorageError:
        """The error for this errno: DiskFullError where space or quota has run out, else StorageError."""
        return (DiskFullError if errno in _DISK_FULL else StorageError)(operation, file, errno)


class DiskFullError(StorageError):
    """No space, or no quota, is left on the device. Free some; then open the store again."""


class FailedError(SarpError):
    """The store takes no more writes since an append or a sync failed; matches go on. Open it again.

    `cause` is that first failure: a retried sync may claim success for pages that the kernel has already dropped.
    """

    def __init__(self, path: str, cause: BaseException) -> None:
        super().__init__(path, cause)
        self.path = path
        self.cause = cause
        self.__cause__ = cause

    def __str__(self) -> str:
        cause = str(self.cause) or repr(self.cause)
        return f"{self.path} takes no more writes, because one failed: {cause}; open it again"


class LimitError(SarpError):
    """A bound such as `directory_bytes_max` is reached. Raise the option that the message names."""
