"""Request files: what all engines play, block ids included, so that no engine's time has hashing in it.

Little-endian. Header: 8 bytes `SRPQ0001`, u64 number of requests. A request: u32 session, u32 blocks of the history h,
u32 blocks of the whole sequence n (n >= h), u32 blocks of the history that a sequential oracle holds at that moment,
then n ids of 16 bytes. A request is matched with ids[:h] and inserts ids[:n]. A block's location is the first 14 bytes
of its id. Beside it, `.ordinals` has one u32 a block of every request: the oracle's number of that block, for checks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from sarpstore_tools.bench.compare.model import LOCATION_BYTES

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from sarpstore_tools.bench.shapes import Ids

MAGIC = b"SRPQ0001"
HEADER = struct.Struct("<8sQ")
REQUEST = struct.Struct("<4I")

Ordinals = npt.NDArray[np.uint32]


class RequestFileError(ValueError):
    """A file that is no request file, or is cut short."""


class RequestWriter:
    """Writes a request file and its ordinals, request by request; `with` completes the header."""

    def __init__(self, path: Path) -> None:
        self.requests = 0
        self._file = path.open("wb")
        self._ordinals = ordinals_path(path).open("wb")
        self._file.write(HEADER.pack(MAGIC, 0))

    def add(self, session: int, history: int, expected: int, ids: Ids, ordinals: npt.NDArray[Any]) -> None:
        """One more request: `ids` (n, 16) of the whole sequence, `ordinals` (n,)."""
        assert 0 <= expected <= history <= len(ids) == len(ordinals)
        self._file.write(REQUEST.pack(session, history, len(ids), expected))
        self._file.write(ids.tobytes())
        self._ordinals.write(ordinals.astype("<u4").tobytes())
        self.requests += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.seek(0)
        self._file.write(HEADER.pack(MAGIC, self.requests))
        self._file.close()
        self._ordinals.close()


def ordinals_path(path: Path) -> Path:
    """The file of ordinals that goes with a request file."""
    return path.with_name(path.name + ".ordinals")


@dataclass(frozen=True, slots=True)
class Requests:
    """A request file in memory. `starts[i]` to `starts[i + 1]` are the rows of request i in `ids` and `ordinals`."""

    session: npt.NDArray[np.int64]
    history: npt.NDArray[np.int64]
    expected: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ids: Ids
    locations: npt.NDArray[np.uint8]
    ordinals: Ordinals

    def __len__(self) -> int:
        return len(self.session)

    def ids_of(self, request: int) -> Ids:
        """The ids of the whole sequence, (n, 16)."""
        return self.ids[self.starts[request] : self.starts[request + 1]]

    def locations_of(self, request: int) -> npt.NDArray[np.uint8]:
        """The locations of the whole sequence, (n, 14)."""
        return self.locations[self.starts[request] : self.starts[request + 1]]

    def ordinals_of(self, request: int) -> Ordinals:
        """The oracle's numbers of the whole sequence's blocks, (n,)."""
        return self.ordinals[self.starts[request] : self.starts[request + 1]]


def read_requests(path: Path) -> Requests:
    """Read a request file whole, with its ordinals where there are any.

    Raises:
        RequestFileError: it is none.
    """
    data = path.read_bytes()
    heads, places = _heads(data, path)
    lengths = heads[:, 2]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.empty((int(starts[-1]), 16), np.uint8)
    flat = np.frombuffer(data, np.uint8)
    for i, place in enumerate(places):
        ids[starts[i] : starts[i + 1]] = flat[place : place + 16 * int(lengths[i])].reshape(-1, 16)
    beside = ordinals_path(path)
    ordinals = np.fromfile(beside, "<u4") if beside.exists() else np.zeros(len(ids), np.uint32)
    if len(ordinals) != len(ids):
        raise RequestFileError(f"{beside}: {len(ordinals)} ordinals for {len(ids)} blocks")
    return Requests(
        session=heads[:, 0],
        history=heads[:, 1],
        expected=heads[:, 3],
        starts=starts,
        ids=ids,
        locations=np.ascontiguousarray(ids[:, :LOCATION_BYTES]),
        ordinals=ordinals,
    )


def _heads(data: bytes, path: Path) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The four numbers of each request, and where its ids begin."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise RequestFileError(f"{path}: no request file ({MAGIC.decode()} is missing)")
    _, count = HEADER.unpack_from(data)
    found: list[tuple[int, ...]] = []
    places: list[int] = []
    place = HEADER.size
    for number in range(count):
        if place + REQUEST.size > len(data):
            raise RequestFileError(f"{path}: ends at request {number} of {count}")
        head = REQUEST.unpack_from(data, place)
        place += REQUEST.size
        found.append(head)
        places.append(place)
        place += 16 * head[2]
        if head[1] > head[2] or place > len(data):
            raise RequestFileError(f"{path}: request {number} of {count} is impossible or cut short")
    return np.array(found, np.int64).reshape(-1, 4), places
