"""A checkpoint head together with what was read of its images, and what the rules of both routings share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from .structures import SLOT, UNIT, Head, entry_type, partition_type, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from .accept import Log
    from .faults import Faults
    from .log import Rows
    from .removed import Removed
    from .structures import Image

HEAD_BYTES: Final = 192
DIFFERENCES_MAX: Final = 100  # reported of one checkpoint; a wrong image differs everywhere

Difference = tuple[int, int, str]
"""Key, position (0 of what names no record) and meaning."""

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

    def check_entries(self, one: Checked, log: Log, removed: Removed, faults: Faults) -> None:
        """Every entry of the newest checkpoint names an accepted record, before its synced position, and agrees."""
        ...

    def differences(self, one: Checked) -> Iterator[Difference]:
        """Where the images with the log's tail differ from the log alone."""
        ...

    def excess(self, one: Checked, log: Log, removed: Removed) -> tuple[list[Difference], int]:
        """Where removals take entries without a word: what the images with the log's tail have that the log alone does
        not give, and how many entries they lack."""
        ...


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


def other_n(entries: Rows, records: Rows, log: Log) -> NDArray[np.bool_]:
    """Whose n is not their record's, nor what a removal may have left of it."""
    return entries["n"] > records["n"] if log.removals else entries["n"] != records["n"]


def report_entries(
    one: Checked, log: Log, indexes: Any, named: Named, differs: NDArray[np.bool_], what: str, faults: Faults
) -> None:
    """Entries that name no record, one that is behind the checkpoint, or one that says otherwise (`differs`)."""
    entries = named.entries
    behind = entries["position"] >= np.uint64(one.head.synced)
    lost = ~named.found & ~log.are_gone(entries["position"]) & ~behind
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


def note_dead(one: Checked, named: Named, removed: Removed, faults: Faults) -> None:
    """Whoever meets an entry whose record is dead may delete it: until then it is there."""
    dead = int(np.isin(named.entries["position"], removed.dead["position"]).sum())
    if dead:
        faults.removed(one.name, 0, "dead", f"{dead} entries name records that are dead")
