"""What posting lists say, as plain objects (postings.md): changes, partitions, postings and states."""

from __future__ import annotations

from typing import Any, Final

from .changes import OPERATIONS, parse_changes
from .points import FLAG_EXPANDED, FLAG_REFINED, POINTS
from .structures import UNIT

_FLAGS: Final = ((FLAG_EXPANDED, "expanded"), (FLAG_REFINED, "refined"))
_LOW_24: Final = 0xFFFFFF


def points_of(mask: int) -> list[int]:
    """The points that a segment record was posted at."""
    return [point for point in range(POINTS) if mask >> point & 1]


def change_items(data: bytes) -> list[dict[str, Any]]:
    """The changes of a postings record, from its bytes."""
    return [_change_item(row) for row in parse_changes(data, 0)]


def _change_item(row: Any) -> dict[str, Any]:
    operation, position = int(row["operation"]), int(row["position"])
    said = OPERATIONS[operation] if 0 < operation < len(OPERATIONS) else f"operation {operation}"
    item: dict[str, Any] = {"operation": said, "key": f"{int(row['key']):012x}", "point": int(row["point"])}
    if not position:
        return item | {"state": _flags(int(row["filter"]))}
    return item | {"filter": f"{int(row['filter']):016x}", "n": int(row["n"]), "d": int(row["d"]), "record": position}


def _flags(flags: int) -> list[str]:
    return [name for bit, name in _FLAGS if flags & bit]


def _reference(reference: int) -> dict[str, int]:
    return {"slot": reference >> 24, "at": (reference & _LOW_24) * UNIT}


def list_partition_item(row: Any) -> dict[str, Any]:
    """A partition's row in a head: where its range begins, and its image."""
    item: dict[str, Any] = {"key": f"{int(row['prefix']):012x}", "filter": f"{int(row['filter']):016x}"}
    item |= _reference(int(row["reference"]))
    return item | {name: int(row[name]) for name in ("images", "page", "entries", "blocks", "crc")}


def posting_item(row: Any) -> dict[str, Any]:
    """A posting or a state as stored."""
    word0, word1 = int(row["word0"]), int(row["word1"])
    item: dict[str, Any] = {"key": f"{word0 >> 16:012x}", "point": word0 >> 1 & 7}
    if not word1 >> 24:
        return item | {"state": _flags(word1)}
    item |= {"filter": f"{int(row['filter']):016x}", **_reference(word1 >> 24)}
    return item | {"n": (word0 >> 10 & 63) + 1, "d": word0 >> 4 & 63, "recency": word1 >> 1 & 31}
