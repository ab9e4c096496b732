"""What the engine asks of a directory, whichever it is. No I/O.

Pages, queries, locations, commits and needs are the kernel's structures: C pointers to memory that the caller keeps
alive for the length of the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from sarpstore._directory.recency import Evicted, Recency, Threshold
    from sarpstore._errors import LimitError
    from sarpstore._log.base import Base

__all__ = ["Cursor", "Directory"]

Cursor: TypeAlias = Any
"""A place in the order of a directory's partitions: where a range begins or ends. Hashable, and ordered."""


class Directory(Protocol):
    """Entries in partitions; each partition has a range of one order, is imaged and loaded alone, and may split."""

    base: Base
    bytes_max: int

    @property
    def routing(self) -> str:
        """The option's name, of `_format.ROUTINGS`."""
        ...

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry, in memory and in an image."""
        ...

    @property
    def insert_windows_max(self) -> int:
        """Windows that one call of `insert` should be given, so that it takes no more than a millisecond."""
        ...

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """A partition's row in a checkpoint's head."""
        ...

    @property
    def entries_all(self) -> int:
        """All entries of images, those that stand for no record too."""
        ...

    @property
    def entries(self) -> int:
        """Entries that stand for a record, those of partitions that are not loaded included."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks that the entries introduced."""
        ...

    @property
    def bytes(self) -> int:
        """Memory in use."""
        ...

    @property
    def partitions(self) -> npt.NDArray[Any]:
        """The partitions now, a view with fields `entries`, `blocks` and `flags` (LOADED, DIRTY) at least."""
        ...

    def start_empty(self) -> None:
        """One partition, empty and loaded."""
        ...

    def start_unloaded(self, partitions: npt.NDArray[Any]) -> None:
        """Partitions (`row_dtype`, in order) whose entries are in images, none loaded yet.

        ValueError if their ranges do not cover everything once.
        """
        ...

    def load(self, partition: int, entries: npt.NDArray[Any]) -> None:
        """Enter a partition's image. ValueError if its entries break the rules or the counts."""
        ...

    def load_empty(self, partition: int) -> None:
        """Call a partition loaded, with no entries: the log will fill it."""
        ...

    def image(self, partition: int) -> npt.NDArray[Any]:
        """A copy of a loaded partition's entries, in order."""
        ...

    def steps(self, changes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """The steps of changes, in order: the partition that each concerns now, and its code for `apply`'s order."""
        ...

    def apply(self, changes: npt.NDArray[Any], order: npt.NDArray[np.uint32] | None = None) -> None:
        """Apply changes in order, or the steps that `order` names.

        LimitError if `directory_bytes_max` is reached (what came before is applied).
        """
        ...

    def match(self, pages: Any, queries: Any, count: int, needs: Any) -> int:
        """Answer those of `count` queries whose status is SARP_NEED; how many still are: `needs` says why."""
        ...

    def insert(self, pages: Any, query: Any, locations: Any, commit: Any, needs: Any) -> int:
        """Match the query and insert what is not held; the kernel's status. Decided and entered in one step."""
        ...

    def compact(self, commit: Any, compaction: Any, records: int) -> int:
        """Go on through at most `records` records of a log file (kernel's compact.h); the kernel's status."""
        ...

    def forget(self, first_partition: int, count: int, slot: int) -> int:
        """Drop what names a slot from `count` partitions that are loaded; how many entries."""
        ...

    def estimate(self, query: Any) -> tuple[int, int]:
        """At least and at most so many blocks match, from memory alone."""
        ...

    def row(self, partition: int) -> Any:
        """One row (`row_dtype`) of a partition as it is now: its range and counts. Where its image is stays zero."""
        ...

    def row_ranges(self, rows: npt.NDArray[Any]) -> Sequence[Cursor]:
        """`row_range` of each of many rows."""
        ...

    def row_range(self, row: Any) -> Cursor:
        """What tells a row's range from all others': equal for equal ranges, until the partition is changed."""
        ...

    def first(self) -> int:
        """The partition whose range comes first."""
        ...

    def begin_of(self, partition: int) -> Cursor:
        """Where a partition's range begins."""
        ...

    def end_of(self, partition: int) -> Cursor | None:
        """Where a partition's range ends now; None: with the order itself. It begins another's for ever after."""
        ...

    def at(self, begin: Cursor) -> int:
        """The partition whose range begins there."""
        ...

    def mark_dirty_from(self, begin: Cursor) -> None:
        """Call all loaded partitions from there on changed."""
        ...

    def image_range(self, row: Any) -> tuple[int, int, int]:
        """The image header's prefix, depth and filter (format-spec/checkpoint.md, 2) for a row's partition."""
        ...

    def note_masks(self, fresh: Any) -> None:
        """Note all mask bits that are set from now on in this `sarp_fresh_masks`; NULL: no longer."""
        ...

    def mark_rows(self, scan: Any, pages: Any, count: int) -> int:
        """Add rows for the records of log pages that entries name, to a `sarp_mark_scan`; how many pages were read."""
        ...

    def hold_growth(self, hold: bool) -> None:
        """While a sweep goes on, what it has not come to yet must not be copied to where it has been."""
        ...

    def sweeps(self, plan: Any) -> list[Callable[[int], bool]]:
        """What applies a `sarp_mark_plan`: each is called for all partitions in order, before the next is.

        One call takes less than half a millisecond; False: call it again for this partition.
        """
        ...

    @property
    def states(self) -> int:
        """Lists in memory that lead on to others; 0 where there are no lists."""
        ...

    def empty_states(self, partition: int, /) -> npt.NDArray[Any]:
        """The changes (`CHANGE_DTYPE`) that take out what lists without postings have left, some of a partition's.

        They have to be written down in the step in which they are applied.
        """
        ...

    # Eviction's sweeps over some partitions, in the order of their ranges, from one on: where the next begins, or None
    # at the end. Those that are not loaded are passed over, and one that splits meanwhile is met once.

    def age(self, begin: Cursor, partitions: int) -> Cursor | None:
        """Keep what is at the lowest level from falling through it: over all, before `Base.tick`."""
        ...

    def recency(self, begin: Cursor, partitions: int, out: Recency) -> Cursor | None:
        """Add up the bytes of records by level."""
        ...

    def evict(self, begin: Cursor, partitions: int, threshold: Threshold, evicted: Evicted) -> Cursor | None:
        """Take out the entries that a threshold says; what went is added to `evicted`.

        What was begun is gone on with to its end: a record may have entries that only a later call takes out.
        """
        ...

    def full_error(self) -> LimitError:
        """What an insertion past the bound raises."""
        ...
