"""A checkpoint head together with what was read of its images, and what the rules of both routings share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from .log import CLEAR_HOLDER, REMOVE, Rows
from .structures import SLOT, UNIT, Head, entry_type, partition_type, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from .accept import Log
    from .faults import Faults
    from .structures import Image

HEAD_BYTES: Final = 192
DIFFERENCES_MAX: Final = 100  # reported of one checkpoint; a wrong image differs everywhere

Problem = tuple[bool, str, str]
"""Whether it is as it should be, the code's end, and what to say if it is not."""


@dataclass(slots=True)
class Checked:
    """A head with what was read of its images; `whole` says that all of them could be used."""

    head: Head
    name: str
    placed: Rows
    origins: list[tuple[str, int, int]] = field(default_factory=list)  # images file, offset, entries: as in `placed`
    whole: bool = True
    bytes_checked: int = 0

    def origin(self, index: int) -> tuple[str, int]:
        """File and byte offset of an entry of `placed`."""
        for name, offset, count in self.origins:
            if index < count:
                return name, offset + UNIT + entry_type(self.head.routing).itemsize * index
            index -= count
        return self.name, 0

    def partition_at(self, index: int) -> int:
        """Byte offset of a partition's row in the head; of the first namespace, if there is no such partition."""
        return HEAD_BYTES + SLOT.itemsize * len(self.head.slots) + partition_type(self.head.routing).itemsize * index


class ImageRules(Protocol):
    """What a routing demands of the partitions, images and entries of a checkpoint.

    `nameless` is what an entry is called that names no record.
    """

    nameless: str

    def placed(self, entries: Rows, files_by_slot: NDArray[np.uint64]) -> Rows:
        """Stored entries taken apart."""
        ...

    def blocks(self, rows: Rows) -> int:
        """The blocks that the entries hold."""
        ...

    def cover(self, one: Checked, faults: Faults) -> None:
        """Partitions cover the directory's order once."""
        ...

    def problems(self, one: Checked, index: int, image: Image, rows: Rows) -> list[Problem]:
        """What a partition's image and entries must be like."""
        ...

    def check_entries(self, one: Checked, log: Log, faults: Faults) -> None:
        """Every entry of the newest checkpoint names an accepted record, before its synced position, and agrees."""
        ...

    def differences(self, one: Checked) -> Iterator[tuple[int, int, str]]:
        """Where the images with the log's tail differ from the log alone: key, position and meaning."""
        ...


def is_whole_state(log: Log) -> bool:
    """Whether the log alone says all, and nothing that version 1.0 does not define."""
    first = log.header
    incomplete = log.damaged or log.retired or first is None or first.previous_commit
    return not incomplete and not np.isin(log.rows["type"], (REMOVE, CLEAR_HOLDER)).any()


@dataclass(slots=True)
class Named:
    """The records that entries name: `at` are their indexes, `found` says for which there is one."""

    entries: Rows
    at: NDArray[np.int64]
    found: NDArray[np.bool_]


def named_records(entries: Rows, segments: Rows) -> Named:
    at = np.minimum(np.searchsorted(segments["position"], entries["position"]), max(0, len(segments) - 1))
    if not len(segments):
        return Named(entries, at, np.zeros(len(entries), dtype=np.bool_))
    return Named(entries, at, segments["position"][at] == entries["position"])


def report_entries(
    one: Checked, log: Log, indexes: Any, named: Named, differs: NDArray[np.bool_], what: str, faults: Faults
) -> None:
    """Entries that name no record, one that is behind the checkpoint, or one that says otherwise (`differs`)."""
    entries = named.entries
    retired = np.isin(entries["position"] >> np.uint64(24), np.array(sorted(log.retired), dtype=np.uint64))
    behind = entries["position"] >= np.uint64(one.head.synced)
    lost = ~named.found & ~retired & ~behind
    for broken, code, meaning in (
        (behind, "entry-behind", "names a record behind the checkpoint's synced position"),
        (named.found & differs, "entry-differs", f"differs from its record in {what}"),
        (lost, "entry-lost", "names a place where no accepted segment record is"),
    ):
        add = faults.warning if log.damaged and code == "entry-lost" else faults.corruption
        for index in np.nonzero(broken)[0][:DIFFERENCES_MAX].tolist():
            name, offset = one.origin(int(indexes[index]))
            where = shown(int(entries["position"][index]))
            add(name, offset, code, f"entry {int(entries['key'][index]):012x} {meaning}: {where} (named by {one.name})")
