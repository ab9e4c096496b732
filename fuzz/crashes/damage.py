"""What devices do to files that nobody writes: bits rot, writes land elsewhere, sectors read as something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sarpstore._files import read_whole

if TYPE_CHECKING:
    from random import Random

    from sarpstore._files import MemoryFolder

__all__ = ["KINDS", "Damage", "spoil"]

_SECTOR: Final = 512
_PAGE: Final = 4096
KINDS: Final = ("bit", "noise", "sector of zeros", "misdirected write", "stale page", "file cut", "file lost")


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that was done to a file; offsets and lengths in bytes. `also`: the file that a write should be in."""

    kind: str
    name: str
    offset: int
    length: int
    also: str = ""


def spoil(folder: MemoryFolder, kind: str, random: Random) -> Damage | None:
    """Damage one file, or, where a write went astray, two places; None if there is nothing to damage."""
    files = {name: data for name in folder.names() if (data := read_whole(folder, name))}
    if not files:
        return None
    name = random.choices(list(files), [len(data) for data in files.values()])[0]
    data = files[name]
    at = random.randrange(len(data))
    if kind == "bit":
        return _write(folder, kind, name, at, bytes([data[at] ^ 1 << random.randrange(8)]))
    if kind == "noise":
        return _write(folder, kind, name, at, random.randbytes(min(64, len(data) - at)))
    if kind == "sector of zeros":
        at -= at % _SECTOR
        return _write(folder, kind, name, at, bytes(min(_SECTOR, len(data) - at)))
    if kind == "file cut":
        return _cut(folder, kind, name, at, len(data))
    if kind == "file lost":
        folder.remove(name)
        folder.sync()
        return Damage(kind, name, 0, len(data))
    other = random.choice(list(files))
    start = random.randrange(len(files[other])) // _PAGE * _PAGE
    page = files[other][start : start + _PAGE]
    at -= at % _PAGE
    if kind == "misdirected write":
        _write(folder, kind, other, start, bytes(len(page)))
        return replace(_write(folder, kind, name, at, page[: len(data) - at]), also=other)
    return _write(folder, kind, name, at, page[: len(data) - at])


def _write(folder: MemoryFolder, kind: str, name: str, offset: int, data: bytes) -> Damage:
    file = folder.open(name, writable=True)
    file.write(offset, data)
    file.sync()
    file.close()
    return Damage(kind, name, offset, len(data))


def _cut(folder: MemoryFolder, kind: str, name: str, size: int, length: int) -> Damage:
    file = folder.open(name, writable=True)
    file.truncate(size)
    file.sync()
    file.close()
    return Damage(kind, name, size, length - size)
