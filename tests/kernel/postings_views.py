"""What the directory of posting lists holds, as plain values to be compared, and what a machine of it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sarpstore import _format as fmt
from sarpstore._kernel.twin_postings import ListChange, TwinPostings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

Element = tuple[int, ...]
Low = tuple[int, int, int]
SIZE = 14
FIRST_PAGE = fmt.LOG_HEADER_BYTES // fmt.PAGE


@dataclass(frozen=True)
class Setup:
    """Options of the directory, where partitions begin at the start, and sizes of the log."""

    read_cap: int = 4
    refine_at: int = 16
    prune_at: int = 3
    tie_cap: int = 8192
    lows: tuple[Low, ...] = ((0, 0, 0),)
    commit_pages: int = 64
    file_pages: int = 4096
    scalar: bool = False
    directory_bytes: int = 1 << 20


@dataclass(slots=True)
class Images:
    """A checkpoint that is being written: where its tail starts, what has been imaged, and where to go on."""

    start: int
    cursor: Low | None
    rows: list[Any]
    entries: list[npt.NDArray[Any]]


def changes_list(changes: npt.NDArray[Any]) -> list[tuple[int, ...]]:
    names = ("position", "type", "operation", "point", "key", "root_key", "supersedes", "n", "d")
    return list(zip(*(changes[name].tolist() for name in names), strict=True))


def list_changes(changes: npt.NDArray[Any]) -> list[ListChange]:
    names = ("operation", "point", "key", "root_key", "supersedes", "n", "d")
    rows = zip(*(changes[name].tolist() for name in names), strict=True)
    return [ListChange(*row) for row in rows if row[0]]


def rows_of(lows: Sequence[Low]) -> npt.NDArray[Any]:
    """Rows of a head's partition table for empty partitions that begin there."""
    rows = np.zeros(len(lows), fmt.POSTING_PARTITION_DTYPE)
    for row, low in zip(rows, lows, strict=True):
        row["key"], row["filter"], row["reference"] = low
    return rows


def twin_of(images: Sequence[npt.NDArray[Any]], files: Mapping[int, int]) -> TwinPostings:
    """The twin's directory with what images hold; `files`: file number by slot."""
    twin = TwinPostings()
    for word0, word1, value in (row for entries in images for row in entries.tolist()):
        key, n, d, point = word0 >> 16, (word0 >> 10 & 63) + 1, word0 >> 4 & 63, word0 >> 1 & 7
        position = files[word1 >> 48] << 24 | word1 >> 24 & 0xFFFFFF if word1 >> 24 else 0
        twin.apply(ListChange(1, point, key, value if position else word1, position, n, d))
    return twin
