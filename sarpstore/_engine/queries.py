"""Queries in the kernel's form, many at a time: what a batch costs in Python is a few steps a query.

    sequences ──► Queries ──► kernel ──► Queries.answers ──► Match

Small queries share one array of ids and one of locations, which their answers are views of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._engine.results import Match
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GROUP_MAX", "Key", "Queries", "Sequenced"]

GROUP_MAX: Final = 128
"""Sequences that `Queries.add` is given at once, at most: about half a millisecond."""

# Queries that share arrays: at least so many, of so many blocks together at most.
_TOGETHER_MIN: Final = 4
_TOGETHER_BLOCKS: Final = 32_768
# Blocks that one kernel call goes through before the event loop gets its turn: about half a millisecond. One query is
# never split.
_SLICE_BLOCKS: Final = 32_768

_FIELDS: Final = {
    "ids": "<u8",
    "locations": "<u8",
    "name_space": "<u8",
    "blocks": "<u4",
    "holder": "<u4",
    "matched": "<u4",
    "records": "<u4",
    "status": "|i1",
}
_QUERY_DTYPE: Final = np.dtype(
    {
        "names": list(_FIELDS),
        "formats": list(_FIELDS.values()),
        "offsets": [ffi.offsetof("sarp_query", name) for name in _FIELDS],
        "itemsize": ffi.sizeof("sarp_query"),
    }
)
"""What of `sarp_query` is filled in, and what is read of its answer; the pointers as numbers."""


class Key(NamedTuple):
    """A namespace as the engine knows it."""

    name_space: int
    name: str
    adapter: str

    def __str__(self) -> str:
        return f"namespace {self.name!r}" + (f" (adapter {self.adapter!r})" if self.adapter else "")


class Sequenced(NamedTuple):
    """One sequence of block ids, (blocks, 16), and how many bytes its keys had before they became ids (0: no keys)."""

    key: Key
    ids: npt.NDArray[np.uint8]
    key_bytes: int


class Queries:
    """`count` queries of one holder, with the buffers that they point into; locations are asked for with a dtype."""

    __slots__ = ("_bases", "_holder", "_keep", "_location_dtype", "_rows", "blocks", "c", "count")

    def __init__(self, count: int, holder: int = 0, location_dtype: np.dtype[Any] | None = None) -> None:
        self.count = count
        self.c: Any = ffi.new("sarp_query[]", max(1, count))
        """`sarp_query[]`."""
        self.blocks: list[int] = []
        self._holder = holder
        self._location_dtype = location_dtype
        self._rows: npt.NDArray[Any] | None = None
        self._bases: list[tuple[npt.NDArray[np.uint8], npt.NDArray[Any] | None, int]] = []
        """Of each query: the arrays of its ids and locations, and where its own begin in them."""
        self._keep: list[Any] = []

    def add(self, sequences: Sequence[Sequenced], *, borrowed: bool = False) -> None:
        """Add queries. Ids that are `borrowed` may be changed by the caller once this returns."""
        blocks = [len(sequenced.ids) for sequenced in sequences]
        first = len(self.blocks)
        self.blocks += blocks
        if len(blocks) >= _TOGETHER_MIN and sum(blocks) <= _TOGETHER_BLOCKS:
            self._add_together(first, blocks, sequences)
            return
        for index, sequenced in enumerate(sequences, first):
            ids = sequenced.ids.copy() if borrowed else sequenced.ids  # which is in C's order, too
            self._add_one(index, ids, sequenced.key.name_space)

    def _add_one(self, index: int, ids: npt.NDArray[np.uint8], name_space: int) -> None:
        query = self.c[index]
        query.status = lib.SARP_NEED
        query.blocks = blocks = len(ids)
        query.holder = self._holder
        query.name_space = name_space
        locations = None
        if blocks:
            query.ids = self._pointer(ids)
        if self._location_dtype is not None:
            locations = np.empty(blocks, self._location_dtype)
            if blocks:
                query.locations = self._pointer(locations)
        self._bases.append((ids, locations, 0))

    def _pointer(self, array: npt.NDArray[Any]) -> Any:
        data = ffi.from_buffer("uint8_t[]", array)
        self._keep.append(data)
        return data

    def _add_together(self, first: int, blocks: list[int], sequences: Sequence[Sequenced]) -> None:
        rows = self._view()[first : first + len(blocks)]
        ends = np.cumsum(blocks, dtype=np.uint64)
        starts = ends - np.array(blocks, np.uint64)
        # Not concatenate alone: of arrays in Fortran's order it would make another.
        ids = np.empty((sum(blocks), fmt.ID_BYTES), np.uint8)
        np.concatenate([sequenced.ids for sequenced in sequences], out=ids)
        self._keep.append(ids)
        rows["status"] = lib.SARP_NEED
        rows["blocks"] = blocks
        rows["holder"] = self._holder
        rows["name_space"] = [sequenced.key.name_space for sequenced in sequences]
        rows["ids"] = np.uint64(ids.ctypes.data) + starts * np.uint64(fmt.ID_BYTES)
        locations = None
        if self._location_dtype is not None:
            locations = np.empty(len(ids), self._location_dtype)
            self._keep.append(locations)
            rows["locations"] = np.uint64(locations.ctypes.data) + starts * np.uint64(locations.itemsize)
        self._bases += [(ids, locations, start) for start in starts.tolist()]

    def add_for_holders(self, sequenced: Sequenced, holders: Sequence[int]) -> None:
        """The same sequence once for each of these holders; they share its ids."""
        for index, holder in enumerate(holders):
            self._add_one(index, sequenced.ids, sequenced.key.name_space)
            self.c[index].holder = holder
            self.blocks.append(len(sequenced.ids))

    def matched(self) -> list[int]:
        """Blocks matched, of each query."""
        return [self.c[0].matched] if self.count == 1 else self._view()["matched"].tolist()

    def _view(self) -> npt.NDArray[Any]:
        if self._rows is None:
            self._rows = np.frombuffer(ffi.buffer(self.c), _QUERY_DTYPE)
        return self._rows

    def slices(self) -> list[tuple[int, int]]:
        """(first, count) of runs of queries that one kernel call may take."""
        if sum(self.blocks) <= _SLICE_BLOCKS:
            return [(0, self.count)]
        out, first, blocks = [], 0, 0
        for i, count in enumerate(self.blocks):
            if blocks and blocks + count > _SLICE_BLOCKS:
                out.append((first, i - first))
                first, blocks = i, 0
            blocks += count
        out.append((first, self.count - first))
        return out

    def totals(self) -> tuple[int, int]:
        """(blocks matched, records that the answers rest on) of all queries."""
        if self.count == 1:
            return self.c[0].matched, self.c[0].records
        rows = self._view()
        return int(rows["matched"].sum()), int(rows["records"].sum())

    def answers(self, first: int, count: int, block_tokens: int) -> list[Match]:
        """The answers of `count` queries from `first` on."""
        if count == 1:
            return [Match(self.c[first].matched, *self._bases[first], block_tokens)]
        matched = self._view()["matched"][first : first + count].tolist()
        bases = self._bases[first : first + count]
        return [
            Match(blocks, ids, locations, begin, block_tokens)
            for blocks, (ids, locations, begin) in zip(matched, bases, strict=True)
        ]
