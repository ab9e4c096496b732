"""The store's folder: names, sizes and bytes, read so that neither hostile nor vanishing files do harm."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .faults import DamagedError

if TYPE_CHECKING:
    from pathlib import Path

# Numbers are from 1 and below 2^40; a name that says another is not the store's (format-spec/README.md).
_KINDS: Final = ("log", "images", "checkpoint", "region", "entries", "chunks")
_NUMBERED: Final = re.compile(rf"(?!0{{16}})(0{{6}}[0-9a-f]{{10}})\.({'|'.join(_KINDS)})")
PAGE_BYTES: Final = 4096
WHOLE_BYTES_MAX: Final = 1 << 30  # no head is larger: it has 40 bytes a partition of up to 4,092 entries


def log_name(number: int) -> str:
    return f"{number:016x}.log"


def images_name(number: int) -> str:
    return f"{number:016x}.images"


def head_name(number: int) -> str:
    return f"{number:016x}.checkpoint"


def region_name(number: int) -> str:
    return f"{number:016x}.region"


def entries_name(number: int) -> str:
    return f"{number:016x}.entries"


def table_name(number: int) -> str:
    return f"{number:016x}.chunks"


def kind_of(name: str) -> str:
    """What its name ends with, `stats`, or empty for a name that is not the store's."""
    if name == "stats":
        return name
    found = _NUMBERED.fullmatch(name)
    return found[2] if found else ""


class NotAStoreError(Exception):
    """The path is missing, unreadable, or not a store's folder."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What the folder held when it was listed: numbers by kind, ascending."""

    path: Path
    logs: tuple[int, ...]
    images: tuple[int, ...]
    heads: tuple[int, ...]
    has_stats: bool


@dataclass(frozen=True, slots=True)
class ChunkFolder:
    """The same of a chunk store."""

    path: Path
    regions: tuple[int, ...]
    entries: tuple[int, ...]
    tables: tuple[int, ...]
    has_stats: bool
    disk_bytes: int
    """Pages of all files but `LOCK`, and one of the folder."""


def list_folder(path: Path) -> Folder:
    """The store's files; `NotAStoreError` if there is no such folder or nothing of a store in it."""
    names = _names(path)
    numbers = _numbers(names)
    if not (numbers["log"] or numbers["checkpoint"]):
        raise NotAStoreError(f"{path}: not a store (neither a log file nor a checkpoint head)")
    return Folder(path, numbers["log"], numbers["images"], numbers["checkpoint"], "stats" in names)


def list_chunks(path: Path) -> ChunkFolder | None:
    """The files of the chunk store; None if there are none. `NotAStoreError`: no such folder."""
    names = _names(path)
    numbers = _numbers(names)
    if not (numbers["entries"] or numbers["chunks"] or numbers["region"]):
        return None
    taken = PAGE_BYTES + sum(-(-_size(path / name) // PAGE_BYTES) * PAGE_BYTES for name in names if name != "LOCK")
    return ChunkFolder(path, numbers["region"], numbers["entries"], numbers["chunks"], "stats" in names, taken)


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise NotAStoreError(f"{path}: {error.strerror or error}") from None


def _numbers(names: list[str]) -> dict[str, tuple[int, ...]]:
    """Numbers by kind, ascending."""
    numbers: dict[str, list[int]] = {kind: [] for kind in _KINDS}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found:
            numbers[found[2]].append(int(found[1], 16))
    return {kind: tuple(sorted(each)) for kind, each in numbers.items()}


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # it went meanwhile


def signature(path: Path) -> frozenset[tuple[str, int, int]]:
    """Names, sizes and times of the store's numbered files: two equal ones mean that no writer was at work between."""
    found = set()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if _NUMBERED.fullmatch(entry.name):
                    status = entry.stat()
                    found.add((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:
        return frozenset()
    return frozenset(found)


def open_regular(path: Path) -> int:
    """A descriptor for reading; `DamagedError` for what is missing or not a regular file (a pipe would block)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DamagedError("missing", "file is missing") from None
    except OSError as error:
        raise DamagedError("unreadable", f"file cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError("not-a-file", "not a regular file")
    return descriptor


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Up to `count` bytes; fewer at the file's end. `DamagedError` if the medium fails."""
    parts: list[bytes] = []
    while count > 0:
        try:
            part = os.pread(descriptor, count, offset)
        except OSError as error:
            raise DamagedError("unreadable", f"reading failed: {error.strerror}") from None
        if not part:
            break
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return b"".join(parts)


def read_whole(path: Path) -> bytes:
    """All bytes of a small file."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > WHOLE_BYTES_MAX:
            raise DamagedError("length", f"file of {size} bytes is larger than any of its kind")
        return read_at(descriptor, size, 0)
    finally:
        os.close(descriptor)
