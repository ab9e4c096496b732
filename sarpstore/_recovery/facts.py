"""What the log says beside segments: namespaces, removals, holders, counts, retired files.

    accepted changes ──► places of such records ──► their pages, a run of a file at a time ──► tables

The scan gives places alone (a sealed file's summary has no more), so these few records are read again, on a thread.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._checkpoint.head import CheckpointHead, NamespaceEntry
from sarpstore._errors import StorageError
from sarpstore._kernel import FEATURES, ffi, lib, selected
from sarpstore._recovery.accept import Damage

if TYPE_CHECKING:
    from sarpstore._files import Folder
    from sarpstore._log.removals import Removals

__all__ = ["IS_FACT", "Facts", "read_facts"]

IS_FACT: Final = np.zeros(256, np.bool_)
"""By record type: whether it is read again for what it says."""
IS_FACT[
    [
        fmt.RECORD_REMOVE,
        fmt.RECORD_CLEAR_HOLDER,
        fmt.RECORD_NAMESPACE,
        fmt.RECORD_RETIRE_FILE,
        fmt.RECORD_COUNT,
    ]
] = True
# A run of a file that is read at once.
_RUN_PAGES: Final = 1024
_PLACE_DTYPE: Final = np.dtype([("position", "<u8"), ("page", "<u4"), ("reserved", "<u4")])
_BATCHED: Final = (fmt.RECORD_REMOVE, fmt.RECORD_COUNT)
"""What the kernel takes many of at once."""

assert _PLACE_DTYPE.itemsize == ffi.sizeof("sarp_place")


@dataclass(slots=True)
class Facts:
    """What a head and the accepted records say; `removals` is filled in by the way."""

    removals: Removals
    namespaces: dict[int, NamespaceEntry] = field(default_factory=dict)
    retired: set[int] = field(default_factory=set)
    """Numbers of log files whose absence is no damage."""
    damage: list[Damage] = field(default_factory=list)

    def take_head(self, head: CheckpointHead) -> None:
        """What the head says, as of the time at which its checkpoint began."""
        self.namespaces = {entry.name_space: entry for entry in head.namespaces}
        self.removals.load(head.markers, head.epochs, head.counts)


def read_facts(folder: Folder, uuid: bytes, facts: Facts, changes: npt.NDArray[Any]) -> None:
    """Add what the records of `changes` (accepted ones, in order of position) say. Blocks: for a thread.

    A record that can't be read, or is damaged, is damage: what it said is not known any more.
    """
    clearing = changes["type"] == fmt.RECORD_CLEAR_HOLDER
    # Epochs first: compaction may have moved a clear-holder record behind counts that were said after it took effect.
    _read(folder, uuid, facts, changes[clearing])
    _read(folder, uuid, facts, selected(changes, IS_FACT[changes["type"]] & ~clearing))


def _read(folder: Folder, uuid: bytes, facts: Facts, own: npt.NDArray[Any]) -> None:
    runs = own["position"] // np.uint64(_RUN_PAGES * fmt.PAGE_UNITS)
    for begin, end in _equal_runs(runs):
        part = own[begin:end]
        first = int(part["position"][0]) >> 6
        pages = int(part["position"][-1]) // fmt.PAGE_UNITS - first + 1
        _Reader(uuid, facts, part, first, _read_pages(folder, first, pages)).take_all()


def _equal_runs(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """(begin, end) of runs of equal values."""
    if not len(values):
        return []
    cuts = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(values)], strict=True))


def _read_pages(folder: Folder, first: int, pages: int) -> bytearray:
    """`pages` pages of one file; `first` is a position in pages. What can't be read stays zero, which is no record."""
    data = bytearray(pages * fmt.PAGE)
    at = fmt.position_offset(first << 6)
    try:
        file = folder.open(fmt.log_name(fmt.position_file(first << 6)))
    except StorageError:
        return data
    try:
        file.read_into(at, data)
    except StorageError:
        _read_singly(folder, first, data)
    finally:
        file.close()
    return data


def _read_singly(folder: Folder, first: int, data: bytearray) -> None:
    """The same page by page: one that can't be read does not cost its neighbours."""
    view = memoryview(data)
    file = folder.open(fmt.log_name(fmt.position_file(first << 6)))
    try:
        for at in range(0, len(data), fmt.PAGE):
            view[at : at + fmt.PAGE] = bytes(fmt.PAGE)
            try:
                file.read_into(fmt.position_offset(first << 6) + at, view[at : at + fmt.PAGE])
            except StorageError:
                continue
    finally:
        file.close()


class _Reader:
    """Takes the records of one run of pages, in order."""

    def __init__(self, uuid: bytes, facts: Facts, changes: npt.NDArray[Any], first: int, data: bytearray) -> None:
        self._uuid = ffi.new("uint8_t[16]", uuid)
        self._facts = facts
        self._types = changes["type"].tolist()
        self._positions = changes["position"].tolist()
        self._places = np.zeros(len(changes), _PLACE_DTYPE)
        self._places["position"] = changes["position"]
        self._places["page"] = changes["position"] // np.uint64(fmt.PAGE_UNITS) - np.uint64(first)
        self._data = data
        self._pages = ffi.from_buffer("uint8_t[]", data)

    def take_all(self) -> None:
        at = 0
        while at < len(self._places):
            if self._types[at] in _BATCHED:
                at = self._take_batch(at)
            else:
                self._take_one(at)
                at += 1

    def _take_batch(self, at: int) -> int:
        """Remove and count records from there on; where the next of another type is, or behind a damaged one."""
        end = at
        while end < len(self._types) and self._types[end] in _BATCHED:
            end += 1
        full = ffi.new("int32_t *")
        while at < end:
            places = ffi.cast("sarp_place *", ffi.from_buffer(self._places[at:end]))
            removals = self._facts.removals
            at += lib.sarp_removals_replay(removals.c, self._uuid, FEATURES, self._pages, places, end - at, full)
            if full[0]:
                removals.grow()
            elif at < end:
                self._damaged(at)
                at += 1
        return at

    def _take_one(self, at: int) -> None:
        record = self._record(at)
        if record is None:
            self._damaged(at)
        elif self._types[at] == fmt.RECORD_NAMESPACE:
            with contextlib.suppress(UnicodeDecodeError):  # as if it were damaged
                self._take_namespace(record)
        elif self._types[at] == fmt.RECORD_RETIRE_FILE:
            self._facts.retired.add(fmt.RETIRE_FIELDS.unpack_from(record, fmt.RECORD.size)[0])
        else:
            holder, _, effect = fmt.REMOVAL_FIELDS.unpack_from(record, fmt.RECORD.size)
            self._facts.removals.clear(holder, effect)

    def _record(self, at: int) -> memoryview | None:
        position = self._positions[at]
        page = int(self._places["page"][at]) * fmt.PAGE
        length = lib.sarp_record_at(self._uuid, FEATURES, position, self._pages + page)
        begin = page + position % fmt.PAGE_UNITS * fmt.UNIT
        return memoryview(self._data)[begin : begin + length] if length else None

    def _take_namespace(self, record: memoryview) -> None:
        key_bytes, name, adapter, name_space = fmt.NAMESPACE_FIELDS.unpack_from(record, fmt.RECORD.size)
        text = bytes(record[fmt.NAMESPACE_HEADER_BYTES :])
        names = text[:name].decode(), text[name : name + adapter].decode()
        self._facts.namespaces[name_space] = NamespaceEntry(name_space, key_bytes, *names)

    def _damaged(self, at: int) -> None:
        if self._types[at] == fmt.RECORD_NAMESPACE:
            return  # it is written anew when the namespace is used
        name, offset = fmt.log_name(fmt.position_file(self._positions[at])), fmt.position_offset(self._positions[at])
        meaning = "a damaged record of a removal: what it removed may be found again"
        self._facts.damage.append(Damage(name, offset, meaning, True, self._positions[at]))
