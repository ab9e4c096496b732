"""This store, by its public API."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import sarpstore
from sarpstore_tools.bench.compare.engine import Engine, NotAvailableError, Usage

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

NAMESPACE = "bench"


class _Ours(Engine):
    """Directory and page cache share the memory budget: the cache gets what the directory is expected to leave.

    The directory's expected bytes are `directory_bytes_a_block` times the blocks of the whole workload, an upper bound
    of what replays of traces show; what it took in the end is reported beside.
    """

    routing: ClassVar[Literal["divergence", "sarp"]] = "divergence"
    with_locations: ClassVar[bool] = True
    directory_bytes_a_block: ClassVar[float] = 1.0

    async def open(self, folder: Path, *, create: bool) -> None:
        # A torn tail is what a kill leaves: no news here.
        logging.getLogger("sarpstore").setLevel(logging.ERROR)
        cache_bytes = max(0, self.budget_bytes - int(self.directory_bytes_a_block * self.blocks))
        try:
            self._store = await sarpstore.open(
                folder / "store", create=create, routing=self.routing, cache_bytes=cache_bytes, direct_io="auto"
            )
        except sarpstore.OptionError as error:
            raise NotAvailableError(str(error)) from error
        self._namespace = self._store.namespace(NAMESPACE)

    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:
        return ids[:history], ids, locations.view(sarpstore.LOCATION).reshape(-1)

    async def match(self, native: Any) -> tuple[int, Any]:
        found = await self._namespace.match_ids(native[0], locations=self.with_locations)
        return found.blocks, found

    async def insert(self, native: Any) -> None:
        await self._namespace.insert_ids(native[1], native[2])

    def locations(self, found: Any) -> bytes:
        rows: bytes = found.locations.tobytes()
        return rows

    async def persist(self, folder: Path) -> None:  # noqa: ARG002 (the engine's own is enough)
        await self._store.sync()

    async def close(self) -> None:
        await self._store.close()

    def is_loaded(self) -> bool | None:
        return self._store.stats().unloaded_partitions == 0

    def usage(self) -> Usage:
        stats = self._store.stats()
        return Usage(reads=stats.reads, directory_bytes=stats.directory_bytes, resident_bytes=stats.resident_bytes)


class Divergence(_Ours):
    """The default: exact."""


class DivergenceLength(_Ours):
    """The default, asked for lengths alone: what can be compared with an index that keeps no locations."""

    with_locations = False
    keeps_locations = False


class Sarp(_Ours):
    """The paper's method: it may lose tokens."""

    routing = "sarp"
    exact = False
    directory_bytes_a_block = 2.5
