"""LMDB through py-lmdb: a key a block, a read transaction a match, a write transaction an insertion.

Settings are the fastest that are fair: MDB_NOSYNC (a killed process loses nothing, a power failure may: this store's
default loses at most 50 ms there) and MDB_WRITEMAP. Its memory is the page cache, which no option bounds: the memory
budget does not hold it, and its mapped pages count in its resident set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lmdb

from sarpstore_tools.bench.compare.dictionary import keys_of
from sarpstore_tools.bench.compare.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

MAP_BYTES_A_BLOCK = 400
MAP_BYTES_MIN = 64 << 20
"""The map, which is also the file's (sparse) size: several times what a tree of random keys needs."""


class Lmdb(Engine):
    """A get a block until the first miss, in one transaction."""

    async def open(self, folder: Path, *, create: bool) -> None:
        map_bytes = MAP_BYTES_MIN + MAP_BYTES_A_BLOCK * self.blocks
        self._env = lmdb.open(
            str(folder / "lmdb"), map_size=map_bytes, sync=False, metasync=False, writemap=True, create=create
        )

    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:
        return keys_of(ids), keys_of(locations), history

    async def match(self, native: Any) -> tuple[int, Any]:
        keys, _, history = native
        found: list[bytes] = []
        with self._env.begin() as transaction:
            get = transaction.get
            for key in keys[:history]:
                row = get(key)
                if row is None:
                    break
                found.append(row)
        return len(found), found

    def prepare_insert(self, native: Any, matched: int) -> Any:
        keys, rows, _ = native
        return list(zip(keys[matched:], rows[matched:], strict=True))

    async def insert(self, native: Any) -> None:
        if native:
            with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(native)

    async def persist(self, folder: Path) -> None:  # noqa: ARG002 (the engine's own is enough)
        self._env.sync(True)

    async def close(self) -> None:
        self._env.close()
