"""What a chunk store holds, by key, and why it does not hold what it held.

Rows of the table are looked for among all of them until `index` has gone through them: to make a dict of a hundred
thousand keys takes longer than an open may.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from sarpstore._chunks.encoding import Chunk, Table

__all__ = ["Held"]

_CAUSES_REMEMBERED: Final = 65_536


class Held:
    """The chunks of one store: rows of the table, those that `rows` says, and what was put behind it."""

    def __init__(self, table: Table, rows: npt.NDArray[np.bool_], late: Iterable[Chunk]) -> None:
        self._table = table
        self._found: dict[bytes, int | Chunk] = {}
        self._causes: OrderedDict[bytes, str] = OrderedDict()
        # A column of its own: rows are wide, and a look goes over all of them.
        self._heads = table.key_heads()
        self._unindexed = rows.copy()
        self._left = int(rows.sum())
        for chunk in late:
            self.add(chunk)

    def __len__(self) -> int:
        return len(self._found) + self._left

    def __contains__(self, key: bytes) -> bool:
        return key in self._found or self._row(key) is not None

    def __iter__(self) -> Iterator[bytes]:
        """The keys. All rows must be indexed."""
        assert not self._left
        return iter(self._found)

    def get(self, key: bytes) -> int | Chunk | None:
        """The row of the table, or the chunk."""
        found = self._found.get(key)
        return self._row(key) if found is None else found

    def chunk(self, key: bytes) -> Chunk | None:
        """The chunk of a key, equal to what this gave before if it is held where it was."""
        found = self.get(key)
        return self._table.chunk(found) if isinstance(found, int) else found

    def index(self, begin: int, end: int) -> bool:
        """Index these rows; whether any are behind them."""
        rows = begin + np.flatnonzero(self._unindexed[begin:end])
        for row, key in zip(rows.tolist(), self._table.keys(rows), strict=True):
            self._found[key] = row
        self._unindexed[rows] = False
        self._left -= len(rows)
        return end < len(self._unindexed)

    def add(self, chunk: Chunk) -> None:
        """It was put, or put again elsewhere."""
        self._forget(chunk.key)
        self._found[chunk.key] = chunk
        self._causes.pop(chunk.key, None)

    def drop(self, key: bytes, why: str) -> None:
        """It is not held any more, if it was."""
        self._forget(key)
        self.note(key, why)

    def _forget(self, key: bytes) -> None:
        self._found.pop(key, None)
        if (row := self._row(key)) is not None:
            self._unindexed[row] = False
            self._left -= 1

    def note(self, key: bytes, why: str) -> None:
        """Why it is not held, until it is."""
        self._causes[key] = why
        self._causes.move_to_end(key)
        if len(self._causes) > _CAUSES_REMEMBERED:
            self._causes.popitem(last=False)

    def why_not(self, key: bytes) -> str:
        """The last cause that is remembered."""
        return self._causes.get(key, "new")

    def was_held(self, key: bytes) -> bool:
        """Whether it is held, or was, as far as is remembered."""
        return key in self or self._causes.get(key) in ("evicted", "damaged")

    def _row(self, key: bytes) -> int | None:
        """The row of a key that is held and not indexed."""
        if not self._left:
            return None
        alike = np.flatnonzero(self._heads == int.from_bytes(key[:8], "little"))
        alike = alike[self._unindexed[alike]]
        for row, found in zip(alike.tolist(), self._table.keys(alike), strict=True):
            if found == key:
                return int(row)
        return None
