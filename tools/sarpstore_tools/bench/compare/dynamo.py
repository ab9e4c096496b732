"""Dynamo's RadixTree: the index of its KV router, in Rust, in memory; it answers lengths, not locations.

Its native form is 64-bit hashes: the first 8 bytes of our ids, for both of its hashes of a block (the tree has the same
shape either way). Insertions are its own events, as JSON bytes that are made beforehand. Recovery: the events of
`dump_tree_as_events` from a file, one a line, applied one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from dynamo._core import RadixTree

from sarpstore_tools.bench.compare.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

DUMP = "events.jsonl"
WORKER = 0


class _Dumped(msgspec.Struct):
    event: msgspec.Raw


class Dynamo(Engine):
    """`find_matches` and `apply_event` of the tree."""

    keeps_locations = False

    async def open(self, folder: Path, *, create: bool) -> None:
        self._tree: Any = new_tree()
        self._events = 0
        if not create:
            apply = self._tree.apply_event
            for line in (folder / DUMP).read_bytes().splitlines():
                apply(WORKER, line)

    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:  # noqa: ARG002
        hashes = hashes_of(ids)
        return hashes[:history], hashes

    async def match(self, native: Any) -> tuple[int, Any]:
        scores = self._tree.find_matches(native[0]).scores
        return (max(scores.values()) if scores else 0), None

    def prepare_insert(self, native: Any, matched: int) -> Any:
        hashes = native[1]
        self._events += 1
        return stored_event(self._events, hashes[matched - 1] if matched else None, hashes[matched:])

    async def insert(self, native: Any) -> None:
        if native:
            self._tree.apply_event(WORKER, native)

    async def persist(self, folder: Path) -> None:
        events = [msgspec.json.decode(event, type=_Dumped).event for event in self._tree.dump_tree_as_events()]
        (folder / DUMP).write_bytes(b"\n".join(map(bytes, events)) + b"\n")

    async def close(self) -> None:
        self._tree = None


def new_tree() -> Any:
    """An empty tree."""
    return RadixTree()


def hashes_of(ids: Ids) -> list[int]:
    """The first 8 bytes of each id, as unsigned integers."""
    hashes: list[int] = ids.reshape(-1, 16)[:, :8].copy().view("<u8").reshape(-1).tolist()
    return hashes


def stored_event(number: int, parent: int | None, hashes: list[int]) -> bytes:
    """The event that blocks were stored behind `parent`; empty if there is none."""
    if not hashes:
        return b""
    blocks = [{"block_hash": each, "tokens_hash": each} for each in hashes]
    stored = {"parent_hash": parent, "blocks": blocks}
    return msgspec.json.encode({"event_id": number, "data": {"stored": stored}, "dp_rank": 0})
