"""A Python dict from block id to location: an index as vLLM's block pool keeps it (DRAM-BlockHash).

Recovery: ids and locations are in two files, which it reads (`numpy.fromfile`) and puts into a dict again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sarpstore_tools.bench.compare.engine import Engine
from sarpstore_tools.bench.compare.model import LOCATION_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

IDS, LOCATIONS = "ids.bin", "locations.bin"


class Dictionary(Engine):
    """A lookup a block until the first miss."""

    async def open(self, folder: Path, *, create: bool) -> None:
        self._held: dict[bytes, bytes] = {}
        if not create:
            ids = np.fromfile(folder / IDS, "V16").tolist()
            rows = np.fromfile(folder / LOCATIONS, f"V{LOCATION_BYTES}").tolist()
            self._held = dict(zip(ids, rows, strict=True))

    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:
        return keys_of(ids), keys_of(locations), history

    async def match(self, native: Any) -> tuple[int, Any]:
        keys, _, history = native
        held = self._held
        found: list[bytes] = []
        for key in keys[:history]:
            row = held.get(key)
            if row is None:
                break
            found.append(row)
        return len(found), found

    def prepare_insert(self, native: Any, matched: int) -> Any:
        keys, rows, _ = native
        return keys[matched:], rows[matched:]

    async def insert(self, native: Any) -> None:
        self._held.update(zip(*native, strict=True))

    async def persist(self, folder: Path) -> None:
        (folder / IDS).write_bytes(b"".join(self._held))
        (folder / LOCATIONS).write_bytes(b"".join(self._held.values()))

    async def close(self) -> None:
        self._held = {}


def keys_of(rows: npt.NDArray[np.uint8]) -> list[bytes]:
    """The rows of an array (n, bytes a row) as bytes."""
    keys: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").reshape(-1).tolist()
    return keys
