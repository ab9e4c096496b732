"""The interface of a compared engine that runs inside a worker process, and the list of all engines."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

ENGINES: dict[str, str] = {
    "divergence": "ours:Divergence",
    "divergence-length": "ours:DivergenceLength",
    "sarp": "ours:Sarp",
    "dict": "dictionary:Dictionary",
    "dynamo": "dynamo:Dynamo",
    "lmdb": "lmdb_engine:Lmdb",
    "redis": "redis_engine:Redis",
}
"""Name → where it is, below this package. The RocksDB designs are programs of their own: see `rocks`."""

DESCRIPTIONS = {
    "divergence": "sarpstore, the default routing; with locations",
    "divergence-length": "sarpstore, the same, matches ask for the length alone",
    "sarp": "sarpstore, the routing of the SARP paper as published; with locations",
    "dict": "a Python dict of 16-byte ids, keyed as vLLM's block pool is (DRAM-BlockHash)",
    "dynamo": "Dynamo's RadixTree (ai-dynamo-runtime); lengths only, it keeps no locations",
    "lmdb": "LMDB (py-lmdb), a key a block; a transaction a match and an insertion; NOSYNC and WRITEMAP",
    "redis": "Redis on a unix socket, a key a block; MGET and MSET, appendonly, fsync each second",
}


class NotAvailableError(RuntimeError):
    """An engine cannot run here; the message says what is missing."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of an engine now; None where it has no such thing."""

    reads: int | None = None
    directory_bytes: int | None = None
    resident_bytes: int | None = None


class Engine(ABC):
    """One engine. Everything but `prepare`, `prepare_insert` and `locations` is timed.

    `exact`: finds all that is held. `keeps_locations`: matches give locations, which are checked.
    """

    exact: ClassVar[bool] = True
    keeps_locations: ClassVar[bool] = True

    def __init__(self, budget_bytes: int, blocks: int, concurrency: int = 1) -> None:
        self.budget_bytes = budget_bytes
        self.blocks = blocks
        self.concurrency = concurrency

    @abstractmethod
    async def open(self, folder: Path, *, create: bool) -> None:
        """Open or make a store in `folder`.

        Raises:
            NotAvailableError: what it needs is not here.
        """

    @abstractmethod
    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:
        """A request in the engine's native form: ids (n, 16), locations (n, 14), of which `history` are matched."""

    @abstractmethod
    async def match(self, native: Any) -> tuple[int, Any]:
        """Blocks of the history that are held, and their locations in whatever form they come."""

    def prepare_insert(self, native: Any, matched: int) -> Any:  # noqa: ARG002 (for others)
        """What `insert` takes, once it is known how many blocks matched."""
        return native

    @abstractmethod
    async def insert(self, native: Any) -> None:
        """Hold the whole sequence."""

    def locations(self, found: Any) -> bytes:
        """The locations of a match, 14 bytes a block, joined."""
        return b"".join(found)

    @abstractmethod
    async def persist(self, folder: Path) -> None:
        """Make everything outlive this process, as far as the engine can; what it reads again goes to `folder`."""

    @abstractmethod
    async def close(self) -> None:
        """Close, in order."""

    def is_loaded(self) -> bool | None:
        """Whether all that is loaded after opening is there; None: nothing is loaded in the background."""
        return None

    def usage(self) -> Usage:
        """Counters and sizes now."""
        return Usage()

    def processes(self) -> list[int]:
        """Ids of other processes that belong to the engine."""
        return []


def engine_class(name: str) -> type[Engine]:
    """The class of an engine of `ENGINES`.

    Raises:
        NotAvailableError: a library that it needs is not installed.
    """
    module, _, attribute = ENGINES[name].partition(":")
    try:
        found: type[Engine] = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
    except ImportError as error:
        raise NotAvailableError(f"not installed here: {error}") from error
    return found
