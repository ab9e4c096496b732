"""What was removed, in memory: markers, epochs, expiries, counts (format-spec/removal.md, sections 1 and 4). No I/O.

The kernel looks ids up in these tables whenever it proves a record. Checkpoint heads have them as they stand here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._errors import LimitError
from sarpstore._kernel import ffi, lib, pointer, reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Removals"]

# Of a query's windows, so many have a place for what the windows before them say: 268 million blocks.
_NEWEST_WINDOWS: Final = 1 << 22
_POSITIONS_AT_ONCE: Final = 16_384
# Markers that are copied, or looked at whether they retire, in one turn of the loop: some 0.2 ms.
_COPIED_AT_ONCE: Final = 8192
_RETIRED_AT_ONCE: Final = 2048
_SCOPE_DTYPE: Final = np.dtype(
    [
        ("key", "<u8"),
        ("epoch", "<u8"),
        ("expiry", "<u8"),
        ("markers", "<u4"),
        ("kind", "|u1"),
        ("reserved", "|u1", (3,)),
    ]
)
_SCOPE_KINDS: Final = {"holder": lib.SARP_SCOPE_HOLDER, "namespace": lib.SARP_SCOPE_NAMESPACE}
_MARK_DTYPE: Final = fmt.MARKER_DTYPE
"""`sarp_mark`: its value stands where a marker's position does."""

assert _SCOPE_DTYPE.itemsize == ffi.sizeof("sarp_scope")
assert _MARK_DTYPE.itemsize == ffi.sizeof("sarp_mark")


class _Marks:
    """A table of at most `limit` marks."""

    def __init__(self, c: Any, limit: int, what: str) -> None:
        self._what = what
        self.c = c
        self.resize(limit)

    def resize(self, limit: int) -> None:
        """Have room for `limit` marks, which are not fewer than there are."""
        before = self.rows if self.c.count else np.empty(0, _MARK_DTYPE)
        size = 1 << max(1, (2 * limit - 1).bit_length())
        self.limit = limit
        self._rows = reserve(limit * _MARK_DTYPE.itemsize, self._what)
        self._index = reserve(size * 4, self._what)
        self.c.marks = pointer("sarp_mark *", self._rows)
        self.c.index = pointer("uint32_t *", self._index)
        self.c.index_size = size
        self.c.limit = limit
        if len(before):  # else the index is as it should be, and none of its memory is touched
            self.load(before)

    def load(self, rows: npt.NDArray[Any]) -> bool:
        """Have these marks; False if one of them stands there twice."""
        if len(rows) > self.limit:
            self.c.count = 0
            self.resize(len(rows))
        np.frombuffer(self._rows, _MARK_DTYPE, len(rows))[:] = rows
        self.c.count = len(rows)
        return bool(lib.sarp_marks_index(self.c))

    @property
    def count(self) -> int:
        return int(self.c.count)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The marks now (`_format.MARKER_DTYPE`; of counts the position is the count), a copy."""
        return np.frombuffer(self._rows, _MARK_DTYPE, self.count).copy()

    def part(self, first: int, count: int) -> npt.NDArray[Any]:
        """At most `count` marks from number `first` on, a view that holds until one is dropped."""
        return np.frombuffer(self._rows, _MARK_DTYPE, self.count)[first : first + count]


class Removals:
    """Markers and counts, at most `markers_max` and `counts_max`, and what concerns each of `holders_max` holders.

    Namespaces have a place only where they have a time to live: as many as holders at most.
    """

    def __init__(self, markers_max: int, counts_max: int, holders_max: int) -> None:
        self.c: Any = ffi.new("sarp_removals *")
        self.markers_max = markers_max
        self.counts_max = counts_max
        self._markers = _Marks(ffi.addressof(self.c, "markers"), markers_max, "markers_max")
        self._counts = _Marks(ffi.addressof(self.c, "counts"), counts_max, "counts_max")
        self.holders_max = holders_max
        size = 1 << (4 * holders_max - 1).bit_length()
        self._scopes = reserve(size * _SCOPE_DTYPE.itemsize, "holders_max")
        self._newest = reserve(_NEWEST_WINDOWS * 8, "a query's windows")
        self.c.scopes = pointer("sarp_scope *", self._scopes)
        self.c.scope_size = size
        self.c.newest = pointer("uint64_t *", self._newest)
        self.c.newest_limit = _NEWEST_WINDOWS
        self.cleared = 0
        """Holders cleared since a mark pass began."""
        self._newest_bound = 0
        """The newest epoch or expiry."""
        self.holders: dict[int, int] = {}
        """The epoch of each holder that has been named; 0: it was never cleared."""
        self.retirements = 0
        """How often markers were retired, and so moved in their table."""

    # --- markers

    @property
    def markers(self) -> int:
        """Markers now."""
        return self._markers.count

    @property
    def room(self) -> int:
        """Markers that can be added; none where recovery found more than the bound."""
        return max(0, self.markers_max - self._markers.count)

    @property
    def bytes(self) -> int:
        """Memory in use, but for the indexes' empty pages."""
        return (self._markers.count + self._counts.count) * (_MARK_DTYPE.itemsize + 8) + len(self.holders) * 64

    def mark(self, ids: Any, count: int, holder: int, name_space: int, position: int) -> None:
        """Markers at `position` for `count` ids (a C pointer, 16 bytes each). There must be room."""
        if self._markers.limit < self._markers.count + count:
            self._markers.resize(self._markers.count + count)
        done = lib.sarp_removals_mark(self.c, ids, fmt.ID_BYTES, count, holder, name_space, position)
        assert done == count, "a holder that has been named has a place"

    def retiring(self, position: int) -> Iterator[int]:
        """Forget the markers up to `position`, some at a time; how many each time. More may come in between."""
        following = ffi.new("uint32_t *", self._markers.count)
        while following[0]:
            self.retirements += 1
            yield int(lib.sarp_removals_retire(self.c, position, following, _RETIRED_AT_ONCE))

    def marker_parts(self) -> Iterator[npt.NDArray[Any]]:
        """The markers that there are now (`_format.MARKER_DTYPE`), some at a time: views that hold until the next.

        Between two parts markers may come, and be moved to a later position; none may retire.
        """
        count, retirements = self._markers.count, self.retirements
        for first in range(0, count, _COPIED_AT_ONCE):
            assert self.retirements == retirements, "markers retired while they were copied"
            yield self._markers.part(first, min(_COPIED_AT_ONCE, count - first))

    def marker_rows(self) -> npt.NDArray[Any]:
        """The markers now (`_format.MARKER_DTYPE`), a copy."""
        return self._markers.rows

    def positions(self) -> Iterator[npt.NDArray[np.uint64]]:
        """The positions of all markers and epochs, in parts of some 0.1 ms each.

        Removals may come between the parts; where `retirements` has changed at the end, some were missed.
        """
        first = 0
        while first < self._markers.count:
            yield self._markers.part(first, _POSITIONS_AT_ONCE)["position"].copy()
            first += _POSITIONS_AT_ONCE
        scopes = np.frombuffer(self._scopes, _SCOPE_DTYPE)
        for first in range(0, len(scopes), _POSITIONS_AT_ONCE):
            epochs = scopes["epoch"][first : first + _POSITIONS_AT_ONCE]
            yield epochs[epochs > 0]

    # --- what recovery does

    def load(self, markers: npt.NDArray[Any], epochs: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
        """Begin with the tables of a checkpoint's head. ValueError for tables that no writer makes."""
        for holder, position in zip(epochs["holder"].tolist(), epochs["position"].tolist(), strict=True):
            self.clear(holder, position)
        rows = np.zeros(len(counts), _MARK_DTYPE)
        for name in ("id", "name_space", "holder"):
            rows[name] = counts[name]
        rows["position"] = counts["count"]
        if not self._markers.load(markers) or not self._counts.load(rows) or not lib.sarp_removals_recount(self.c):
            raise ValueError("a marker or a count stands there twice")

    def take_back(self, markers: npt.NDArray[Any]) -> None:
        """Have these markers (`_format.MARKER_DTYPE`) again: what they kill may be in the directory again."""
        self.c.settled = 0
        if self._markers.limit < self._markers.count + len(markers):
            self._markers.resize(self._markers.count + len(markers))
        if len(markers):
            done = lib.sarp_removals_merge(self.c, pointer("sarp_mark *", markers), len(markers))
            assert done == len(markers), "there is room"

    def grow(self) -> None:
        """Make room for more marks than the bounds allow: the log may have them, and a mark pass will thin them out."""
        for table in (self._markers, self._counts):
            if table.count == table.limit:
                table.resize(2 * table.limit + 64)

    # --- holders

    def check_holders(self, holder: int) -> None:
        """LimitError if this new holder would be one too many."""
        if len(self.holders) >= self.holders_max:
            raise LimitError(f"holder {holder} would be one more than holders_max={self.holders_max:,}")

    def clear(self, holder: int, position: int) -> None:
        """Everything of the holder that was born below `position` is cleared, and so are its counts. 0: it is there."""
        known = self.holders.setdefault(holder, 0)
        if position <= known:
            return
        self.holders[holder] = position
        scope = self._scope(lib.SARP_SCOPE_HOLDER, holder)
        scope.epoch = position
        self.cleared += 1
        self._newest_bound = max(self._newest_bound, position)
        lib.sarp_marks_clear(self._counts.c, holder)

    def expire(self, position: int, kind: str = "store", key: int = 0) -> None:
        """What was born below `position` has outlived its time: of the "store", or a "holder" or "namespace".

        An expiry does not go back: what was found dead may have left the directory.
        """
        where = self.c if kind == "store" else self._scope(_SCOPE_KINDS[kind], key)
        where.expiry = max(int(where.expiry), position)
        self._newest_bound = max(self._newest_bound, position)

    def _scope(self, kind: int, key: int) -> Any:
        scope = lib.sarp_scope_of(self.c, kind, key, True)
        if scope == ffi.NULL:
            raise LimitError(f"more holders and namespaces with a time to live than holders_max={self.holders_max:,}")
        return scope

    @property
    def unsettled(self) -> bool:
        """Whether the directory may have entries of what was removed, cleared or has expired since the last pass."""
        return bool(self.markers) or self._newest_bound > int(self.c.settled)

    def concern(self, holder: int, name_space: int) -> bool:
        """Whether anything of this holder and namespace may be dead and still be in the directory."""
        return bool(lib.sarp_removals_concern(self.c, holder, name_space))

    # --- counts

    @property
    def counts(self) -> int:
        """Blocks that were announced more than once."""
        return self._counts.count

    def get_counts(self, ids: npt.NDArray[np.uint8], holder: int, name_space: int) -> npt.NDArray[np.uint64]:
        """What is remembered of ids (count, 16), C-ordered; 0: nothing."""
        out = np.zeros(len(ids), "<u8")
        if self.counts:
            source, target = ffi.from_buffer("uint8_t[]", ids), pointer("uint64_t *", out)
            lib.sarp_marks_get(self._counts.c, source, fmt.ID_BYTES, len(ids), holder, name_space, target)
        return out

    def set_counts(self, entries: npt.NDArray[Any], holder: int, name_space: int) -> None:
        """Remember counts (`_format.COUNT_ENTRY_DTYPE`); 0 and 1 are nothing to remember.

        Past the bound old ones are forgotten: the next removal of such a block is taken for the last.
        """
        more = self.counts + len(entries) - self.counts_max
        if more > 0:
            lib.sarp_marks_forget(self._counts.c, max(more, self.counts_max // 16))
        for entry in entries[-self.counts_max :] if self.counts_max else ():
            source = ffi.from_buffer("uint8_t[]", entry["id"].tobytes())
            count = int(entry["count"])
            if count > 1:
                lib.sarp_marks_set(self._counts.c, source, fmt.ID_BYTES, 1, holder, name_space, count, False)
            else:
                lib.sarp_marks_drop(self._counts.c, source, fmt.ID_BYTES, 1, holder, name_space)

    def epoch_rows(self) -> npt.NDArray[Any]:
        """The holders and their epochs now (`_format.EPOCH_DTYPE`)."""
        rows = np.zeros(len(self.holders), fmt.EPOCH_DTYPE)
        rows["holder"], rows["position"] = list(self.holders), list(self.holders.values())
        return rows

    def count_rows(self) -> npt.NDArray[Any]:
        """The counts now (`_format.COUNT_DTYPE`), a copy."""
        rows = self._counts.rows
        out = np.zeros(len(rows), fmt.COUNT_DTYPE)
        for name in ("id", "name_space", "holder"):
            out[name] = rows[name]
        out["count"] = rows["position"]
        return out
