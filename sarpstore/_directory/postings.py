"""The directory of posting lists (SARP, format-spec/postings.md): memory for the kernel's, and its calls.

A few routing points a segment, each with a sorted list of the segments that share its prefix; 64-bit filters say which
are worth reading. The kernel does the work; this class owns the memory that it works in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._directory.divergence import DIRTY, LOADED
from sarpstore._errors import LimitError
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, POSTING_PARTITION_DTYPE, ffi, lib, pointer, reserve
from sarpstore._log.base import Base

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._directory.interface import Cursor
    from sarpstore._directory.recency import Evicted, Recency, Threshold

__all__ = ["LIST_GROWN_MAX", "READ_CAP_MAX", "PostingsDirectory"]

READ_CAP_MAX: Final = int(lib.SARP_READ_CAP_MAX)
"""The highest `read_cap`; what `exact` makes of it."""
LIST_GROWN_MAX: Final = int(lib.SARP_LIST_GROWN_MAX)
"""`refine_at` and `prune_at` must be below this: longer lists are not expanded or refined."""

_PAGE: Final = int(lib.SARP_ARENA_PAGE)
_PAGE_POSTINGS: Final = _PAGE // fmt.POSTING_DTYPE.itemsize
_TIE_CAP: Final = 8192
# Their change is one record, and takes some 0.1 ms.
_STATES_AT_ONCE: Final = 64
# Half as many records are evicted by one pair of sweeps.
_CONDEMNED: Final = 1 << 18


Low: TypeAlias = tuple[int, int, int]
"""(key, filter, reference): where a partition begins."""


class _Dropping(NamedTuple):
    """How far the postings of condemned records have been taken out, and from where on others are looked for then."""

    low: Low
    found_to: Low | None


class PostingsDirectory:
    """Postings by partition, in at most `bytes_max` bytes.

    The bound is on pages of postings, which are all but some 2 % of the memory; `bytes` counts everything. `read_cap`
    records are read in a window at most, 64 with `exact`; `refine_at` and `prune_at` are lengths of lists, section 3.
    """

    routing: Final = "sarp"
    entry_bytes: Final = fmt.POSTING_DTYPE.itemsize
    row_dtype: Final = fmt.POSTING_PARTITION_DTYPE
    insert_windows_max: Final = 32

    def __init__(
        self,
        secret: bytes,
        bytes_max: int,
        features: int = FEATURES,
        *,
        read_cap: int = 4,
        refine_at: int = 16,
        prune_at: int = 3,
        exact: bool = False,
        location_bytes: int = 14,
    ) -> None:
        self.bytes_max = bytes_max
        pages = bytes_max // _PAGE
        self._partition_limit = pages + 1
        self._arena = reserve(pages * _PAGE, "directory_bytes_max")
        self._partitions_space = reserve(
            self._partition_limit * POSTING_PARTITION_DTYPE.itemsize, "directory_bytes_max"
        )
        self._order_space = reserve(self._partition_limit * 4, "directory_bytes_max")
        self._plan = reserve(lib.SARP_PLAN_MAX * CHANGE_DTYPE.itemsize, "an insertion's plan")
        self._members = reserve(LIST_GROWN_MAX * self.entry_bytes, "an insertion's plan")
        self.base = Base(secret, fmt.ROUTINGS.index(self.routing), features, location_bytes=location_bytes)
        self.c: Any = ffi.new("sarp_postings *")
        self.c.base = self.base.c
        self.c.arena.memory = pointer("uint8_t *", self._arena)
        self.c.arena.page_limit = pages
        self.c.partitions = pointer("sarp_posting_partition *", self._partitions_space)
        self.c.order = pointer("uint32_t *", self._order_space)
        self.c.plan = pointer("sarp_change *", self._plan)
        self.c.members = pointer("sarp_posting *", self._members)
        self.c.partition_limit = self._partition_limit
        self.c.read_cap = READ_CAP_MAX if exact else max(1, min(read_cap, READ_CAP_MAX))
        self.c.refine_at = min(refine_at, LIST_GROWN_MAX - 1)
        self.c.prune_at = min(prune_at, LIST_GROWN_MAX - 1)
        self.c.tie_cap = _TIE_CAP
        self._condemned_space = reserve(_CONDEMNED * 8, "eviction")
        self._condemned: Any = ffi.new("sarp_condemned *")
        self._condemned.references = pointer("uint64_t *", self._condemned_space)
        self._condemned.size = _CONDEMNED
        self._done = ffi.new("size_t *")
        self._bounds = ffi.new("uint32_t[2]")

    def start_empty(self) -> None:
        """One partition, empty and loaded."""
        self._check(lib.sarp_postings_init(self.c))

    def start_unloaded(self, partitions: npt.NDArray[Any]) -> None:
        """Partitions (`_format.POSTING_PARTITION_DTYPE`, in order) whose entries are in images, none loaded yet.

        ValueError if their lows do not ascend from (0, 0, 0).
        """
        if (partitions["entries"] > lib.SARP_PARTITION_POSTINGS_MAX).any():
            raise ValueError("not a directory that any writer makes: a partition with too many entries")
        needed = int((-(-partitions["entries"].astype(int) // _PAGE_POSTINGS)).sum())
        if len(partitions) > self._partition_limit or needed > int(self.c.arena.page_limit):
            raise self.full_error()
        if (partitions["key"] >> 48).any() or (partitions["reference"] >> 40).any():
            raise ValueError("not a directory that any writer makes: a partition begins beyond all keys")
        own = np.frombuffer(self._partitions_space, POSTING_PARTITION_DTYPE, len(partitions))
        own["word0"], own["word1"] = partitions["key"] << 16, partitions["reference"] << 24
        for name in ("filter", "entries", "blocks"):
            own[name] = partitions[name]
        self._check(lib.sarp_postings_init_unloaded(self.c, len(partitions)))

    @property
    def partitions(self) -> npt.NDArray[Any]:
        """The partitions now (kernel's `sarp_posting_partition`), a view."""
        return np.frombuffer(self._partitions_space, POSTING_PARTITION_DTYPE, self.c.partition_count)

    @property
    def order(self) -> npt.NDArray[np.uint32]:
        """The partitions' numbers in order, a view."""
        return np.frombuffer(self._order_space, "<u4", self.c.partition_count)

    def load(self, partition: int, entries: npt.NDArray[Any]) -> None:
        """Enter a partition's image. ValueError if its entries break the rules or the counts."""
        data = pointer("sarp_posting *", entries) if len(entries) else ffi.NULL
        self._check(lib.sarp_postings_load(self.c, partition, data, len(entries)))

    def load_empty(self, partition: int) -> None:
        """Call a partition loaded, with no entries: the log will fill it."""
        self._check(lib.sarp_postings_load_empty(self.c, partition))

    def image(self, partition: int) -> npt.NDArray[Any]:
        """A copy of a loaded partition's entries (`_format.POSTING_DTYPE`), in order."""
        out = np.empty(lib.SARP_PARTITION_POSTINGS_MAX, fmt.POSTING_DTYPE)
        count = lib.sarp_postings_image(self.c, partition, pointer("sarp_posting *", out))
        self._check(min(count, 0))
        return out[:count]

    def steps(self, changes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """One step a change: each concerns one element of one list."""
        order = np.flatnonzero(changes["operation"]).astype("<u4")
        return self.partition_of(changes[order]), order

    def apply(self, changes: npt.NDArray[Any], order: npt.NDArray[np.uint32] | None = None) -> None:
        """Apply changes in order, or those that `order` names.

        LimitError if `directory_bytes_max` is reached (what came before is applied).
        """
        assert changes.dtype == CHANGE_DTYPE
        count = len(changes) if order is None else len(order)
        if not count:
            return
        steps = ffi.NULL if order is None else pointer("uint32_t *", order)
        self._check(lib.sarp_postings_apply(self.c, pointer("sarp_change *", changes), steps, count, self._done))

    def partition_of(self, changes: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        """The number of the partition that each change concerns."""
        out = np.empty(len(changes), "<u4")
        if len(changes):
            source = pointer("sarp_change *", np.ascontiguousarray(changes))
            lib.sarp_postings_partition_of(self.c, source, len(changes), pointer("uint32_t *", out))
        return out

    def match(self, pages: Any, queries: Any, count: int, needs: Any) -> int:
        """How many of the queries are still open."""
        return int(lib.sarp_postings_match(self.c, pages, queries, count, needs))

    def insert(self, pages: Any, query: Any, locations: Any, commit: Any, needs: Any) -> int:
        """The kernel's status."""
        return int(lib.sarp_postings_insert(self.c, pages, query, locations, commit, needs))

    def compact(self, commit: Any, compaction: Any, records: int) -> int:
        """Go on through at most `records` records of a log file (kernel's compact.h); the kernel's status."""
        return int(lib.sarp_postings_compact(self.c, commit, compaction, records))

    def forget(self, first_partition: int, count: int, slot: int) -> int:
        """Drop what names a slot from `count` partitions that are loaded; how many entries."""
        return int(lib.sarp_postings_forget(self.c, first_partition, count, slot))

    def estimate(self, query: Any) -> tuple[int, int]:
        """At least and at most so many blocks match, from memory alone; a capped search may find less."""
        lib.sarp_postings_estimate(self.c, query, self._bounds, self._bounds + 1)
        return int(self._bounds[0]), int(self._bounds[1])

    def find(self, key: int) -> npt.NDArray[Any]:
        """The list of a key (`_format.POSTING_DTYPE`), its state included."""
        count = lib.sarp_postings_find(self.c, key, ffi.NULL, 0)
        self._check(min(count, 0))
        out = np.empty(count, fmt.POSTING_DTYPE)
        if count:
            lib.sarp_postings_find(self.c, key, pointer("sarp_posting *", out), count)
        return out

    # The mark pass

    def note_masks(self, fresh: Any) -> None:
        """There are none."""

    def mark_rows(self, scan: Any, pages: Any, count: int) -> int:
        """How many of the pages were read."""
        return int(lib.sarp_mark_rows_listed(scan, self.c, pages, count))

    def hold_growth(self, hold: bool) -> None:
        """While held, lists are neither expanded nor refined: the next record that enters one is the next occasion."""
        self.c.growth_held = hold

    def sweeps(self, plan: Any) -> list[Callable[[int], bool]]:
        """One: verdicts. The states of lists that they have emptied are left."""

        def sweep(partition: int) -> bool:
            return bool(lib.sarp_postings_sweep(self.c, partition, plan))

        return [sweep]

    @property
    def states(self) -> int:
        """Lists in memory that are expanded or refined."""
        return int(self.c.states)

    def empty_states(self, partition: int) -> npt.NDArray[Any]:
        """The changes (`CHANGE_DTYPE`) that take out states of lists without postings, some of a partition's."""
        changes = np.zeros(_STATES_AT_ONCE, CHANGE_DTYPE)
        out = pointer("sarp_change *", changes)
        return changes[: lib.sarp_postings_empty_states(self.c, partition, out, _STATES_AT_ONCE)]

    # Eviction

    def age(self, begin: Low, partitions: int) -> Low | None:
        """Keep what is at the lowest level from falling through it."""
        cursor = _cursor_at(begin)
        return _low_at(cursor) if lib.sarp_postings_age(self.c, cursor, partitions) else None

    def recency(self, begin: Low, partitions: int, out: Recency) -> Low | None:
        """Add up the bytes of records by level."""
        cursor = _cursor_at(begin)
        return _low_at(cursor) if lib.sarp_postings_recency(self.c, cursor, partitions, out.c) else None

    def evict(self, begin: Cursor, partitions: int, threshold: Threshold, evicted: Evicted) -> Cursor | None:
        """Take out the records that a threshold says: one sweep finds some, another takes out all their postings."""
        if isinstance(begin, _Dropping):
            return self._drop(begin, partitions, evicted)
        cursor = _cursor_at(begin)
        more = bool(lib.sarp_postings_condemn(self.c, cursor, partitions, threshold.c, self._condemned))
        full = more and _low_at(cursor) == begin
        if more and not full:
            return _low_at(cursor)
        if not self._condemned.count:
            return None
        self.c.condemned = self._condemned
        return _Dropping(self.begin_of(self.first()), begin if full else None)

    def _drop(self, at: _Dropping, partitions: int, evicted: Evicted) -> Cursor | None:
        cursor = _cursor_at(at.low)
        if lib.sarp_postings_evict(self.c, cursor, partitions, self._condemned, evicted.c):
            return _Dropping(_low_at(cursor), at.found_to)
        self.c.condemned = ffi.NULL
        lib.sarp_condemned_clear(self._condemned)
        return at.found_to

    # Partitions in order of their lows

    def row(self, partition: int) -> Any:
        """A partition's row in a head (`_format.POSTING_PARTITION_DTYPE`) without its image's place."""
        row, own = np.zeros(1, self.row_dtype)[0], self.partitions[partition]
        row["key"], row["filter"], row["reference"] = self.begin_of(partition)
        row["entries"], row["blocks"] = own["entries"], own["blocks"]
        return row

    @staticmethod
    def row_ranges(rows: npt.NDArray[Any]) -> list[tuple[int, int, int]]:
        """`row_range` of each."""
        return list(zip(*(rows[name].tolist() for name in ("key", "filter", "reference")), strict=True))

    @staticmethod
    def row_range(row: Any) -> tuple[int, int, int]:
        """(key, filter, reference) of its low."""
        return int(row["key"]), int(row["filter"]), int(row["reference"])

    @staticmethod
    def image_range(row: Any) -> tuple[int, int, int]:
        """An image header's prefix, depth, filter."""
        return int(row["key"]), 0, int(row["filter"])

    def first(self) -> int:
        """The partition that begins at (0, 0, 0)."""
        return int(self.order[0])

    def begin_of(self, partition: int) -> tuple[int, int, int]:
        """Its low."""
        own = self.partitions[partition]
        return int(own["word0"]) >> 16, int(own["filter"]), int(own["word1"]) >> 24

    def end_of(self, partition: int) -> tuple[int, int, int] | None:
        """The next partition's low."""
        # Looked for by its low: the order is sorted by them.
        rank = int(lib.sarp_postings_rank_of(self.c, partition)) + 1
        return self.begin_of(int(self.order[rank])) if rank < self.c.partition_count else None

    def at(self, begin: tuple[int, int, int]) -> int:
        """The partition of that low."""
        return int(lib.sarp_postings_partition_at(self.c, *begin))

    def mark_dirty_from(self, begin: tuple[int, int, int]) -> None:
        """Call all loaded partitions from that low on changed."""
        rank = int(lib.sarp_postings_rank_of(self.c, self.at(begin)))
        chosen = self.order[rank:]
        flags = self.partitions["flags"]
        flags[chosen] |= np.where(flags[chosen] & LOADED, np.uint8(DIRTY), np.uint8(0))

    @property
    def entries_all(self) -> int:
        """Postings and states, those of partitions that are not loaded included."""
        return int(self.c.entries)

    @property
    def entries(self) -> int:
        """Postings."""
        return int(self.c.entries - self.c.states)

    @property
    def blocks(self) -> int:
        """Blocks that the postings at point 0 introduced."""
        return int(self.c.blocks)

    @property
    def bytes(self) -> int:
        """Memory in use: pages, partition records, order."""
        return int(lib.sarp_postings_bytes(self.c))

    def full_error(self) -> LimitError:
        """What an insertion past the bound raises."""
        return LimitError(f"the directory has reached directory_bytes_max={self.bytes_max:,}")

    def _check(self, status: int) -> None:
        if status == lib.SARP_FULL:
            raise self.full_error()
        if status != lib.SARP_OK:
            raise ValueError("not a directory that any writer makes")


def _cursor_at(low: Low) -> Any:
    """A sweep's place in the kernel's form."""
    key, value, reference = low
    return ffi.new("sarp_posting *", {"word0": key << 16, "word1": reference << 24, "filter": value})


def _low_at(cursor: Any) -> Low:
    return int(cursor.word0) >> 16, int(cursor.filter), int(cursor.word1) >> 24
