"""The divergence directory (format-spec/method.md, directory.md): memory for the kernel's, and its calls.

A segment is keyed once, at the block where it left what was already held: one 16-byte entry a segment, one read to
prove how far a query is held, nothing lost. The kernel does the work; this class owns the memory that it works in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._errors import LimitError
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, PARTITION_DTYPE, ffi, lib, pointer, reserve
from sarpstore._log.base import Base

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._directory.recency import Evicted, Recency, Threshold

__all__ = ["DIRTY", "LOADED", "PARTITION_BYTES_MAX", "DivergenceDirectory"]

LOADED: Final = int(lib.SARP_PARTITION_LOADED)
DIRTY: Final = int(lib.SARP_PARTITION_DIRTY)
PARTITION_BYTES_MAX: Final = lib.SARP_PARTITION_PAGES * lib.SARP_ARENA_PAGE

_PAGE: Final = int(lib.SARP_ARENA_PAGE)
# Room that a partition's bucket index takes, in entries.
_INDEX_ENTRIES: Final = 17


class DivergenceDirectory:
    """Entries by partition, in at most `bytes_max` bytes.

    The bound is on pages of entries, which are all but some 3 % of the memory; `bytes` counts everything.
    """

    routing: Final = "divergence"
    entry_bytes: Final = fmt.ENTRY_DTYPE.itemsize
    row_dtype: Final = fmt.PARTITION_DTYPE
    insert_windows_max: Final = 128

    def __init__(self, secret: bytes, bytes_max: int, features: int = FEATURES, *, location_bytes: int = 14) -> None:
        self.bytes_max = bytes_max
        pages = bytes_max // _PAGE
        partitions = pages + 1
        # Uniform keys keep the partitions' depths within two of each other; eight times as many is never reached.
        table = 1 << (partitions * 8 - 1).bit_length()
        self._arena = reserve(pages * _PAGE, "directory_bytes_max")
        self._partitions_space = reserve(partitions * PARTITION_DTYPE.itemsize, "directory_bytes_max")
        self._table = reserve(table * 4, "directory_bytes_max")
        self.base = Base(secret, fmt.ROUTINGS.index(self.routing), features, location_bytes=location_bytes)
        self._partition_limit = partitions
        self.c: Any = ffi.new("sarp_directory *")
        self.c.arena.memory = pointer("uint8_t *", self._arena)
        self.c.partitions = pointer("sarp_partition *", self._partitions_space)
        self.c.table = pointer("uint32_t *", self._table)
        self.c.base = self.base.c
        self.c.arena.page_limit = pages
        self.c.partition_limit = partitions
        self.c.table_limit = table
        self._done = ffi.new("size_t *")
        self._bounds = ffi.new("uint32_t[2]")

    def start_empty(self) -> None:
        """One partition, empty and loaded."""
        self._check(lib.sarp_directory_init(self.c))

    def start_unloaded(self, partitions: npt.NDArray[Any]) -> None:
        """Partitions (`_format.PARTITION_DTYPE`, in order of prefix) whose entries are in images, none loaded yet.

        ValueError if they do not cover all keys once.
        """
        if len(partitions) > self._partition_limit or self._pages_of(partitions) > int(self.c.arena.page_limit):
            raise self._full()
        if (partitions["entries"] > lib.SARP_PARTITION_ENTRIES_MAX).any():
            raise ValueError("not a directory that any writer makes: a partition with too many entries")
        own = np.frombuffer(self._partitions_space, PARTITION_DTYPE, len(partitions))
        for name in ("prefix", "depth", "entries", "blocks"):
            own[name] = partitions[name]
        self._check(lib.sarp_directory_init_unloaded(self.c, len(partitions)))

    @staticmethod
    def _pages_of(partitions: npt.NDArray[Any]) -> int:
        """Pages that these partitions will need once they are all loaded. The kernel refuses impossible counts."""
        entries = np.minimum(partitions["entries"], lib.SARP_PARTITION_ENTRIES_MAX)
        return int((-(-(entries.astype(int) + _INDEX_ENTRIES) // (_PAGE // 16))).sum())

    @property
    def partitions(self) -> npt.NDArray[Any]:
        """The partitions now (kernel's `sarp_partition`), a view."""
        return np.frombuffer(self._partitions_space, PARTITION_DTYPE, self.c.partition_count)

    def load(self, partition: int, entries: npt.NDArray[Any]) -> None:
        """Enter a partition's image. ValueError if its entries break the rules or the counts."""
        data = pointer("sarp_entry *", entries) if len(entries) else ffi.NULL
        self._check(lib.sarp_directory_load(self.c, partition, data, len(entries)))

    def load_empty(self, partition: int) -> None:
        """Call a partition loaded, with no entries: the log will fill it."""
        self._check(lib.sarp_directory_load_empty(self.c, partition))

    def image(self, partition: int) -> npt.NDArray[Any]:
        """A copy of a loaded partition's entries (`_format.ENTRY_DTYPE`), in order of key."""
        out = np.empty(lib.SARP_PARTITION_ENTRIES_MAX, fmt.ENTRY_DTYPE)
        count = lib.sarp_directory_image(self.c, partition, pointer("sarp_entry *", out))
        self._check(min(count, 0))
        return out[:count]

    def apply(self, changes: npt.NDArray[Any], order: npt.NDArray[np.uint32] | None = None) -> None:
        """Apply changes in order, or the steps that `order` names (change * 2 + step).

        LimitError if `directory_bytes_max` is reached (what came before is applied).
        """
        assert changes.dtype == CHANGE_DTYPE
        count = len(changes) if order is None else len(order)
        if not count:
            return
        steps = ffi.NULL if order is None else pointer("uint32_t *", order)
        self._check(lib.sarp_directory_apply(self.c, pointer("sarp_change *", changes), steps, count, self._done))

    def steps(self, changes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Two steps a change: its key's, and its root's where it diverges (d > 0)."""
        keys = np.stack([changes["key"], changes["root_key"]], axis=1).reshape(-1)
        order = np.arange(2 * len(changes), dtype="<u4")
        # Step 1 of a record with d = 0 does nothing, so its root's partition need not be loaded for it.
        wanted = (order % 2 == 0) | np.repeat(changes["d"] > 0, 2)
        return self.partition_of(keys[wanted]), order[wanted]

    def match(self, pages: Any, queries: Any, count: int, needs: Any) -> int:
        """How many of the queries are still open."""
        return int(lib.sarp_match(self.c, pages, queries, count, needs))

    def insert(self, pages: Any, query: Any, locations: Any, commit: Any, needs: Any) -> int:
        """The kernel's status."""
        return int(lib.sarp_insert(self.c, pages, query, locations, commit, needs))

    def compact(self, commit: Any, compaction: Any, records: int) -> int:
        """Go on through at most `records` records of a log file (kernel's compact.h); the kernel's status."""
        return int(lib.sarp_compact(self.c, commit, compaction, records))

    def forget(self, first_partition: int, count: int, slot: int) -> int:
        """Drop what names a slot from `count` partitions that are loaded; how many entries."""
        return int(lib.sarp_directory_forget(self.c, first_partition, count, slot))

    def estimate(self, query: Any) -> tuple[int, int]:
        """At least and at most so many blocks match, from memory alone."""
        lib.sarp_estimate(self.c, query, self._bounds, self._bounds + 1)
        return int(self._bounds[0]), int(self._bounds[1])

    # The mark pass

    def note_masks(self, fresh: Any) -> None:
        """Note the mask bits that are set from now on."""
        self.c.fresh = fresh

    def mark_rows(self, scan: Any, pages: Any, count: int) -> int:
        """How many of the pages were read."""
        return int(lib.sarp_mark_rows(scan, self.c, pages, count))

    def hold_growth(self, hold: bool) -> None:
        """No entry is ever copied."""

    def sweeps(self, plan: Any) -> list[Callable[[int], bool]]:
        """One: verdicts and masks."""

        def sweep(partition: int) -> bool:
            lib.sarp_directory_sweep(self.c, partition, plan)
            return True

        return [sweep]

    @property
    def states(self) -> int:
        """There are no lists."""
        return 0

    def empty_states(self, _: int) -> npt.NDArray[Any]:
        """There are none."""
        return np.empty(0, CHANGE_DTYPE)

    # Eviction

    def age(self, begin: int, partitions: int) -> int | None:
        """Keep what is at the lowest level from falling through it."""
        return _cursor(lib.sarp_directory_age(self.c, begin, partitions))

    def recency(self, begin: int, partitions: int, out: Recency) -> int | None:
        """Add up the bytes of records by level."""
        return _cursor(lib.sarp_directory_recency(self.c, begin, partitions, out.c))

    def evict(self, begin: int, partitions: int, threshold: Threshold, evicted: Evicted) -> int | None:
        """Take out the entries that a threshold says."""
        return _cursor(lib.sarp_directory_evict(self.c, begin, partitions, threshold.c, evicted.c))

    # Partitions in order of prefix

    def row(self, partition: int) -> Any:
        """A partition's row in a head (`_format.PARTITION_DTYPE`) without its image's place."""
        row, own = np.zeros(1, self.row_dtype)[0], self.partitions[partition]
        for name in ("prefix", "depth", "entries", "blocks"):
            row[name] = own[name]
        return row

    @staticmethod
    def row_ranges(rows: npt.NDArray[Any]) -> list[tuple[int, int]]:
        """`row_range` of each."""
        return list(zip(rows["prefix"].tolist(), rows["depth"].tolist(), strict=True))

    @staticmethod
    def row_range(row: Any) -> tuple[int, int]:
        """(prefix, depth)."""
        return int(row["prefix"]), int(row["depth"])

    @staticmethod
    def image_range(row: Any) -> tuple[int, int, int]:
        """An image header's prefix, depth, filter."""
        return int(row["prefix"]), int(row["depth"]), 0

    def first(self) -> int:
        """The partition of key 0."""
        return self.at(0)

    def begin_of(self, partition: int) -> int:
        """Its prefix."""
        return int(self.partitions[partition]["prefix"])

    def end_of(self, partition: int) -> int | None:
        """The prefix behind its range."""
        own = self.partitions[partition]
        end = int(own["prefix"]) + (1 << (48 - int(own["depth"])))
        return end if end < 1 << 48 else None

    def at(self, begin: int) -> int:
        """The partition of that prefix."""
        return int(self.partition_of(np.array([begin], "<u8"))[0])

    def mark_dirty_from(self, begin: int) -> None:
        """Call all loaded partitions from that prefix on changed."""
        parts = self.partitions
        chosen = (parts["prefix"] >= begin) & (parts["flags"] & LOADED > 0)
        parts["flags"] |= np.where(chosen, np.uint8(DIRTY), np.uint8(0))

    def partition_of(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The number of each key's partition."""
        keys = np.ascontiguousarray(keys, "<u8")
        out = np.empty(len(keys), "<u4")
        if len(keys):
            out_pointer = pointer("uint32_t *", out)
            lib.sarp_directory_partition_of(self.c, pointer("uint64_t *", keys), len(keys), out_pointer)
        return out

    def find(self, key: int) -> list[tuple[int, int]]:
        """The entries under a key, as (word 0, word 1)."""
        out = ffi.new("sarp_entry[64]")
        count = lib.sarp_directory_find(self.c, key, out, 64)
        self._check(min(count, 0))
        return [(out[i].word0, out[i].word1) for i in range(min(count, 64))]

    @property
    def entries(self) -> int:
        """Entries, those of partitions that are not loaded included, placeholders not."""
        return int(self.c.entries - self.c.placeholders)

    @property
    def entries_all(self) -> int:
        """The same with placeholders."""
        return int(self.c.entries)

    @property
    def blocks(self) -> int:
        """Blocks that the entries introduced."""
        return int(self.c.blocks)

    @property
    def bytes(self) -> int:
        """Memory in use: pages, partition records, table."""
        return int(lib.sarp_directory_bytes(self.c))

    def full_error(self) -> LimitError:
        """What an insertion past the bound raises."""
        return self._full()

    def _full(self) -> LimitError:
        return LimitError(f"the directory has reached directory_bytes_max={self.bytes_max:,}")

    def _check(self, status: int) -> None:
        if status == lib.SARP_FULL:
            raise self._full()
        if status != lib.SARP_OK:
            raise ValueError("not a directory that any writer makes")


def _cursor(prefix: int) -> int | None:
    """Where a sweep goes on; None behind all keys."""
    return int(prefix) if prefix < 1 << 48 else None
