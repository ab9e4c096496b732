"""A head's tables of removals: markers, epochs, counts and moments (checkpoint.md, section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .log import CLEAR_HOLDER, holders
from .structures import place, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .accept import Log
    from .checked import Checked
    from .faults import Faults
    from .log import Rows
    from .removed import Block, Removed

_COUNT_MIN: Final = 2
_AGAIN: Final = "stands in the head's table a second time"
_BEHIND: Final = "is behind the head's synced position"


def check_tables(one: Checked, log: Log, removed: Removed, faults: Faults) -> None:
    """All checks of this module: of the rows alone, and of the records that they come from."""
    head = one.head
    _check_feature(one, log, faults)
    tables = [
        ("marker", head.markers, _markers(one, log, removed)),
        ("epoch", head.epochs, _epochs(one, log, removed)),
        ("count", head.counts, _counts(one, log, removed)),
        ("moment", head.moments, _moments(one)),
    ]
    at = head.length - sum(rows.nbytes for _, rows, _ in tables)  # they end the file, in this order
    for what, rows, problems in tables:
        for index, meaning in problems:
            faults.corruption(one.name, at + rows.itemsize * index, what, f"{what} {index} {meaning}")
        at += rows.nbytes
    _named_holders(one, log, faults)


def _check_feature(one: Checked, log: Log, faults: Faults) -> None:
    """The feature bit goes with the version, and a head has it if a file has that it speaks of."""
    head = one.head
    if head.removals != (head.minor > 0):
        meaning = f"version 1.{head.minor} {'with' if head.removals else 'without'} the feature bit of version 1.1"
        faults.corruption(one.name, 32, "version", meaning)
    known = [file for file in log.files if file.header and file.header.removals]
    named = [file.name for file in known if file.number <= place(head.synced)[0]]
    if named and not head.removals:
        faults.corruption(one.name, 32, "features", f"lacks the feature removals, which {named[0]} has")


def _blocks_of(rows: Rows) -> list[Block]:
    """Block ids, holders and namespaces of markers or counts."""
    return list(zip(*(rows[name].tolist() for name in ("id", "holder", "namespace")), strict=True))


def _repeated(keys: Iterable[object]) -> Iterator[tuple[int, str]]:
    seen = set()
    for index, key in enumerate(keys):
        if key in seen:
            yield index, _AGAIN
        seen.add(key)


def _markers(one: Checked, log: Log, removed: Removed) -> Iterator[tuple[int, str]]:
    head, blocks = one.head, _blocks_of(one.head.markers)
    yield from _repeated(blocks)
    for index, (block, at) in enumerate(zip(blocks, head.markers["position"].tolist(), strict=True)):
        if at >= head.synced:
            yield index, f"{_BEHIND}: {shown(at)}"
        elif at not in removed.removals.get(block, ()) and not _may_be_lost(log):
            yield index, f"is of a removal at {shown(at)}, of which there is no record"


def _epochs(one: Checked, log: Log, removed: Removed) -> Iterator[tuple[int, str]]:
    head = one.head
    yield from _repeated(head.epochs["holder"].tolist())
    cleared = set(_clears(log))
    before_start: dict[int, int] = {}
    for holder, effect in _clears(log, head.start):
        before_start[holder] = max(effect, before_start.get(holder, 0))
    for index, (holder, _, at) in enumerate(head.epochs.tolist()):
        if at and at >= head.synced:
            yield index, f"{_BEHIND}: {shown(at)}"
        elif at and (holder, at) not in cleared and not _may_be_lost(log):
            yield index, f"is of holder {holder}, cleared at {shown(at)}, of which there is no record"
        elif holder not in removed.epochs and not _may_be_lost(log):
            yield index, f"is of holder {holder}, which no record names"
        elif at < before_start.get(holder, 0):
            yield index, f"is of holder {holder}, which was cleared later, before the head's start"


def _counts(one: Checked, log: Log, removed: Removed) -> Iterator[tuple[int, str]]:
    blocks = _blocks_of(one.head.counts)
    yield from _repeated(blocks)
    for index, (block, count) in enumerate(zip(blocks, one.head.counts["count"].tolist(), strict=True)):
        if count < _COUNT_MIN:
            yield index, f"is {count}: only counts above 1 are kept"
        elif block not in removed.counted and not _may_be_lost(log):
            yield index, "is of a block that no record counts"


def _moments(one: Checked) -> Iterator[tuple[int, str]]:
    before = (0, 0)
    for index, moment in enumerate(one.head.moments.tolist()):
        if moment[0] > one.head.synced:
            yield index, f"{_BEHIND}: {shown(moment[0])}"
        if moment[0] < before[0] or moment[1] < before[1]:
            yield index, "does not ascend from the one before it"
        before = moment


def _may_be_lost(log: Log) -> bool:
    """Whether records that the head's tables come from may not be there any more."""
    return log.shortened or log.damaged


def _clears(log: Log, end: int = 1 << 64) -> Iterator[tuple[int, int]]:
    """(holder, effect) of the clear-holder records before a position."""
    rows = log.rows[log.rows["type"] == CLEAR_HOLDER]
    for holder, effect, at in zip(
        holders(rows).tolist(), rows["words"][:, 2].tolist(), rows["position"].tolist(), strict=True
    ):
        if at < end:
            yield holder, effect


def _named_holders(one: Checked, log: Log, faults: Faults) -> None:
    """Every holder that has been named has an epoch."""
    if not one.head.removals:
        return
    known = set(one.head.epochs["holder"].tolist())
    for holder in sorted({holder for holder, _ in _clears(log, one.head.start)} - known):
        add = faults.warning if log.damaged else faults.corruption
        add(one.name, 136, "epoch", f"holder {holder}, which was named before its start, has no epoch in the head")
