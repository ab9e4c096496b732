"""Parsed structures as plain objects (for JSON) and as text (for people). Offsets and lengths are in bytes."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from .describe_lists import change_items, list_partition_item, points_of, posting_item
from .log import (
    CLEAR_HOLDER,
    COMMIT,
    COUNT,
    FLAG_COPY,
    NAMESPACE,
    POSTINGS,
    PROBLEMS,
    REMOVE,
    RETIRE_FILE,
    SEAL,
    SEGMENT,
    SOUND,
    SUMMARY,
    TYPE_NAMES,
    offset_of,
)
from .removed import parse_counts
from .structures import HASHES, ROUTINGS, SARP, Head, Image, LogHeader, Namespace, Statistics, location_bytes, shown

Item = dict[str, Any]

_POSITIONS: Final = frozenset(
    {"born", "root_born", "supersedes", "synced", "effect", "first_page", "previous_end", "start", "record", "position"}
)
_QUOTED: Final = frozenset({"name", "adapter", "meaning", "problem", "locations"})
# What a line of text leaves out: it is shown elsewhere on it, or says nothing while it has this value.
_ELSEWHERE: Final = frozenset(
    {
        *("kind", "file", "offset", "type", "length", "checksum", "prefix_id", "parent_key"),
        *("ids", "locations", "counted", "changes"),
    }
)
_SHORT: Final = {"sequence": "seq", "namespace": "ns"}
_SAYS_NOTHING: Final[dict[str, Any]] = {
    "flags": 0,
    "supersedes": 0,
    "old_n": 0,
    "commit_flags": [],
    "adapter": "",
    "mask": 0,
    "recency": 0,
    "placeholder": False,
    "copy": False,
    "introduces": False,
    "root_born": 0,
}
_JOINED: Final = frozenset({"commit_flags", "points", "state"})
_COMMIT_FLAGS: Final = ((1, "mark"), (2, "closed"))


def type_name(kind: int) -> str:
    return TYPE_NAMES[kind] if kind < len(TYPE_NAMES) else f"type {kind}"


def header_item(header: LogHeader) -> Item:
    options = header.options
    return {
        "version": f"{header.major}.{header.minor}",
        "features": list(header.features),
        "uuid": options.uuid.hex(),
        "file_number": header.file,
        "slot": header.slot,
        "block_tokens": options.block_tokens,
        "hash": HASHES[options.hash],
        "routing": ROUTINGS[options.routing],
        "location_bytes": options.location_bytes,
        "locations": options.locations,
        "previous_commit": header.previous_commit,
        "previous_end": header.previous_end,
        "first_sequence": header.first_sequence,
        "created_ms": header.created_ms,
    }


def record_item(row: Any, data: bytes, header: LogHeader, ids: bool) -> Item:
    """A record from its row of facts and its bytes; the fields of its type only if the record is sound."""
    kind = int(row["type"])
    item: Item = {"offset": offset_of(row), "type": type_name(kind)}
    for name in ("sequence", "commit", "length", "flags"):
        item[name] = int(row[name])
    if row["problem"] != SOUND:
        item["problem"] = PROBLEMS[int(row["problem"])]
        return item
    if kind == SEGMENT:
        return item | _segment_item(row, data, header, ids)
    return item | _fields(kind, [int(word) for word in row["words"]], data, int(row["n"]), ids)


def _fields(kind: int, words: list[int], data: bytes, n: int, ids: bool) -> Item:
    """The fields of a record that is not a segment; `words` are the u64 from offset 32 on."""
    low, high = words[0] & 0xFFFFFFFF, words[0] >> 32
    if kind == REMOVE:
        item: Item = {"holder": low, "namespace": f"{words[1]:016x}", "effect": words[2], "entries": n}
        return item | {"ids": _ids(data[64:], n)} if ids else item
    if kind == COUNT:
        item = {"holder": low, "namespace": f"{words[1]:016x}", "entries": n}
        return item | _counts(data) if ids else item
    if kind == NAMESPACE:
        name = high & 0xFFFF
        return namespace_item(Namespace(words[1], low, data[64 : 64 + name], data[64 + name :]))
    if kind == COMMIT:
        flags = [name for bit, name in _COMMIT_FLAGS if words[1] >> 32 & bit]
        checksum = words[1] & 0xFFFFFFFF
        return {"pages": low, "records": high, "checksum": checksum, "synced": words[2], "commit_flags": flags}
    bare: dict[int, Item] = {
        CLEAR_HOLDER: {"holder": low, "effect": words[2], "introduces": words[2] == 0},
        RETIRE_FILE: {"retired_file": words[1]},
        SEAL: {"summaries": low, "entries": high, "first_page": words[1]},
        SUMMARY: {"entries": n},
        POSTINGS: {"entries": n, "changes": change_items(data)} if ids else {"entries": n},
    }
    return bare.get(kind, {})


def _segment_item(row: Any, data: bytes, header: LogHeader, ids: bool) -> Item:
    holder, window, namespace, prefix = struct.unpack_from("<IIQ16s", data, 32)
    item: Item = {name: int(row[name]) for name in ("n", "d", "dp")}
    item |= {"holder": holder, "window": window, "namespace": f"{namespace:016x}", "prefix_id": prefix.hex()}
    item |= {"key": f"{int(row['key']):012x}", "parent_key": f"{int(row['parent_key']):012x}"}
    item |= {name: int(row[name]) for name in ("born", "root_born", "supersedes")}
    item["copy"] = bool(row["flags"] & FLAG_COPY)
    if header.options.routing == SARP:
        item |= {"points": points_of(int(row["points"])), "old_n": int(row["old_n"])}
    if ids:
        n = int(row["n"])
        item["ids"] = _ids(data[128:], n)
        item["locations"] = _locations(data[128 + 16 * n :], header)
    return item


def _ids(data: bytes, count: int) -> list[str]:
    return [data[16 * at : 16 * at + 16].hex() for at in range(count)]


def _counts(data: bytes) -> Item:
    pairs = parse_counts(data)
    return {"ids": [one.hex() for one, _ in pairs], "counted": [count for _, count in pairs]}


def _locations(data: bytes, header: LogHeader) -> list[Any]:
    size = header.options.location_bytes
    try:
        location_bytes(header.options.locations)
        kind = np.dtype([(str(name), numpy_type) for name, numpy_type in json.loads(header.options.locations)])
        values = np.frombuffer(data, dtype=kind).tolist()
        json.dumps(values)
    except (ValueError, TypeError):
        return [data[at : at + size].hex() for at in range(0, len(data), size)]
    return [list(row) for row in values]


def namespace_item(named: Namespace) -> Item:
    return {
        "namespace": f"{named.namespace:016x}",
        "key_bytes": named.key_bytes,
        "name": named.name.decode(errors="replace"),
        "adapter": named.adapter.decode(errors="replace"),
    }


def head_item(head: Head) -> Item:
    names = ("number", "length", "start", "synced", "commit", "sequence", "entries", "blocks")
    item: Item = {"version": f"{head.major}.{head.minor}", "features": list(head.features), "uuid": head.uuid.hex()}
    item |= {name: getattr(head, name) for name in names}
    item["routing"] = ROUTINGS[head.routing] if head.routing < len(ROUTINGS) else head.routing
    tables = ("slots", "partitions", "namespaces", "markers", "epochs", "counts", "moments")
    return item | {name: len(getattr(head, name)) for name in tables}


def table_items(head: Head) -> list[Item]:
    """The rows of a head's tables of removals."""
    items: list[Item] = []
    for kind, rows, value in (("marker", head.markers, "position"), ("count", head.counts, "count")):
        columns = (rows[name].tolist() for name in ("holder", "namespace", "id", value))
        for holder, namespace, one, said in zip(*columns, strict=True):
            block = {"holder": holder, "namespace": f"{namespace:016x}", "id": one.hex()}
            items.append({"kind": kind, **block, value: said})
    items += [{"kind": "epoch", "holder": holder, "position": position} for holder, _, position in head.epochs.tolist()]
    items += [{"kind": "moment", "position": position, "time_ms": time} for position, time in head.moments.tolist()]
    return items


def partition_item(row: Any, routing: int) -> Item:
    if routing == SARP:
        return list_partition_item(row)
    item: Item = {"prefix": f"{int(row['prefix']):012x}"}
    return item | {name: int(row[name]) for name in ("depth", "images", "page", "entries", "blocks", "crc")}


def image_item(image: Image, routing: int) -> Item:
    low = {"filter": f"{image.filter:016x}"} if routing == SARP else {"depth": image.depth}
    return {
        "uuid": image.uuid.hex(),
        "number": image.number,
        "prefix": f"{image.prefix:012x}",
        **low,
        "entries": len(image.entries),
        "blocks": image.blocks,
        "crc": image.crc,
    }


def entry_item(row: Any, routing: int) -> Item:
    """A directory entry as stored: its reference is a slot and a byte offset."""
    if routing == SARP:
        return posting_item(row)
    word0, word1 = int(row["word0"]), int(row["word1"])
    reference = word1 >> 24
    return {
        "key": f"{word0 >> 16:012x}",
        "mask": word0 & 0xFFFF,
        "slot": reference >> 24,
        "at": (reference & 0xFFFFFF) * 64,
        "n": (word1 >> 18 & 63) + 1,
        "d": word1 >> 12 & 63,
        "dp": word1 >> 6 & 63,
        "recency": word1 >> 1 & 31,
        "placeholder": bool(word1 & 1),
    }


def statistics_item(statistics: Statistics) -> Item:
    return {
        "version": f"{statistics.major}.{statistics.minor}",
        "uuid": statistics.uuid.hex(),
        "process": statistics.process,
        "time_ms": statistics.time_ms,
        "values": statistics.values,
    }


def text_line(item: Item) -> str:
    """A record, entry or other small thing on one line; ids, locations and changes, if any, on lines of their own."""
    kind = item.get("type", item["kind"])
    where = f"{_short(item['file'])}:{item['offset']}" if "offset" in item else ""
    line = f"{where:<14}  {kind:<9}  {'  '.join(_line_fields(item))}".rstrip()
    ids, locations = item.get("ids", ()), item.get("locations", item.get("counted", ()))
    rows = [f"{'':<16}{at:>4}  {one}  {_of(locations, at)}".rstrip() for at, one in enumerate(ids)]
    rows += [f"{'':<16}{at:>4}  {_change_text(change)}" for at, change in enumerate(item.get("changes", ()))]
    return "\n".join([line, *rows])


def _change_text(change: Item) -> str:
    return "  ".join([change["operation"], *_line_fields({**change, "kind": "change"}, but="operation")])


def _of(locations: Any, at: int) -> str:
    return json.dumps(locations[at]) if at < len(locations) else ""


def _line_fields(item: Item, but: str = "") -> list[str]:
    fields = []
    for name, value in item.items():
        if name in _ELSEWHERE or name == but or (name in _SAYS_NOTHING and value == _SAYS_NOTHING[name]):
            continue
        if _goes_without_saying(name, value, item):
            continue
        label = _SHORT.get(name, name)
        fields.append(label if value is True else f"{label} {_shown(name, value)}")
    return fields


def _goes_without_saying(name: str, value: Any, item: Item) -> bool:
    """Whether another field of the line, or its place, says this too."""
    if name == "born":
        return bool(value == _own_position(item))
    if name == "holder":  # 0 is the holder of who names none, but for who is cleared
        return value == 0 and item.get("type") != "clear-holder" and item["kind"] != "epoch"
    if name == "root_born":
        return bool(value == item["born"])
    return name == "flags" and value == FLAG_COPY and item.get("copy") is True


def _short(file: str) -> str:
    """A file's name as positions show it."""
    return file.lstrip("0")


def _own_position(item: Item) -> int:
    return int(item["file"][:16], 16) << 24 | int(item["offset"]) // 64


def text_block(item: Item) -> str:
    """A header or head: a title and a line a field."""
    title = f"{item['file']}: {item['kind']}" + (f" at {item['offset']}" if item.get("offset") else "")
    fields = [
        f"  {name:<16}  {_shown(name, value)}" for name, value in item.items() if name not in ("kind", "file", "offset")
    ]
    return "\n".join([title, *fields])


def _shown(name: str, value: Any) -> str:
    if name in _POSITIONS and isinstance(value, int):
        return shown(value)
    if name in ("created_ms", "time_ms"):
        return f"{value}  ({_utc(value)})"
    if name == "retired_file":
        return f"{value:x}.log"
    if name in _JOINED:
        return ",".join(map(str, value))
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False) if name in _QUOTED and name != "locations" else str(value)


def _utc(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return "no date"
