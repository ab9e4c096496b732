"""Commit buffers: where records gather before they are written (format-spec/log.md, sections 2 and 2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, ffi, lib, pointer, reserve

if TYPE_CHECKING:
    from sarpstore._log.base import Base

__all__ = [
    "COMMIT_PAGES_MAX",
    "EFFECT_HERE",
    "CommitBuffer",
    "clear_record",
    "count_record",
    "namespace_record",
    "remove_record",
    "retire_record",
    "seal_record",
    "summary_of",
    "summary_record",
]

EFFECT_HERE: Final = (1 << 64) - 1
"""Of a removal that takes effect where its record comes to stand."""

COMMIT_PAGES_MAX: Final = 1024
"""Pages of one commit: 4 MiB, what one write and one sync carry."""


class CommitBuffer:
    """Pages of one commit, used again and again.

    `begin` gives it its place in the log; the kernel places and encodes records in it; `finish` ends it with the
    commit record. From then on it is only read.
    """

    def __init__(self, uuid: bytes, location_bytes: int, page_limit: int = COMMIT_PAGES_MAX) -> None:
        self.page_limit = page_limit
        self._memory = reserve(page_limit * fmt.PAGE, "a commit buffer")
        self._next = reserve(page_limit * 2, "a commit buffer")
        self._used = reserve(page_limit, "a commit buffer")
        self._uuid = ffi.new("uint8_t[16]", uuid)
        self.c: Any = ffi.new("sarp_commit *")
        self.c.pages = pointer("uint8_t *", self._memory)
        self.c.next = pointer("uint16_t *", self._next)
        self.c.used = pointer("uint8_t *", self._used)
        self.c.uuid = self._uuid
        self.c.location_bytes = location_bytes
        self.c.features = FEATURES
        self._page_limit = self._change_limit = 0
        self.number = 0
        """The commit's number."""
        self.offset = 0
        """Where it begins in its file, in bytes."""
        self.changes: npt.NDArray[Any] = np.empty(0, CHANGE_DTYPE)
        """Once finished: the changes of all records but the commit record."""

    def begin(
        self,
        file_number: int,
        slot: int,
        offset: int,
        number: int,
        sequence: int,
        page_limit: int,
        change_limit: int = (1 << 32) - 1,
    ) -> None:
        """Start an empty commit of at most `page_limit` pages and `change_limit` changes."""
        self.number = number
        self.offset = offset
        self.c.file_number = file_number
        self.c.slot = slot
        self.c.first_page = offset // fmt.PAGE
        self.c.number = number
        self.c.sequence = sequence
        self._page_limit, self._change_limit = min(page_limit, self.page_limit), change_limit
        self.keep(0)
        lib.sarp_commit_begin(self.c)

    def part(self) -> None:
        """Have what is added from now on stand, and be born, behind all that is there."""
        lib.sarp_commit_part(self.c)

    def keep(self, records: int) -> None:
        """From now on leave room for so many records, of a page and one change each; 0: what was kept may be taken."""
        self.c.page_limit = max(0, self._page_limit - records)
        self.c.change_limit = max(0, self._change_limit - records)

    def append(self, record: bytes, *, rule: int = lib.SARP_PLACE_BEST) -> int:
        """Add a record (see the `*_record` functions) by a SARP_PLACE rule; its position, or 0 without room."""
        return int(lib.sarp_commit_append(self.c, ffi.from_buffer("uint8_t[]", record), rule))

    def append_removal(self, record: bytes) -> int:
        """Add a `remove_record` or `clear_record` behind all records; its position, or 0 where there is no room."""
        return int(lib.sarp_commit_append_removal(self.c, ffi.from_buffer("uint8_t[]", record)))

    def finish(self, base: Base, synced: int, flags: int = 0) -> None:
        """Add the commit record; `base` makes the changes' keys."""
        expected = int(self.c.changes)
        changes = np.zeros(max(1, expected), CHANGE_DTYPE)
        out = pointer("sarp_change *", changes)
        count = lib.sarp_commit_finish(self.c, base.c, synced, flags, out, len(changes))
        assert count == expected
        self.changes = changes[:count]

    def has_room(self, records: int) -> bool:
        """Whether so many records, of one change each, are sure to find room."""
        c = self.c
        return bool(c.page_count + records + 1 <= c.page_limit and c.changes + records <= c.change_limit)

    @property
    def records(self) -> int:
        return int(self.c.records)

    @property
    def pages(self) -> int:
        return int(self.c.page_count)

    @property
    def next_sequence(self) -> int:
        return int(self.c.sequence)

    @property
    def file_number(self) -> int:
        return int(self.c.file_number)

    @property
    def begin_position(self) -> int:
        return fmt.position(self.file_number, self.offset)

    @property
    def end_position(self) -> int:
        """The position behind its last page."""
        return fmt.position(self.file_number, self.offset + self.pages * fmt.PAGE)

    @property
    def first_key(self) -> int:
        """The page key of its first page."""
        return int(self.c.slot) << 18 | self.offset // fmt.PAGE

    def data(self) -> memoryview:
        """The bytes to write."""
        return memoryview(self._memory)[: self.pages * fmt.PAGE]


def _record(kind: int, fields: bytes, body: bytes = b"", n: int = 0) -> bytes:
    """A record without its sequence, commit number and checksums."""
    length = fmt.RECORD.size + len(fields) + len(body)
    return fmt.RECORD.pack(0, 0, length, kind, 0, n, 0, 0, 1, 0, 0) + fields + body


def namespace_record(key_bytes: int, name: str, adapter: str, name_space: int) -> bytes:
    """format-spec/log.md, 2.3."""
    names = name.encode(), adapter.encode()
    fields = fmt.NAMESPACE_FIELDS.pack(key_bytes, len(names[0]), len(names[1]), name_space)
    return _record(fmt.RECORD_NAMESPACE, fields, b"".join(names))


def remove_record(holder: int, name_space: int, ids: bytes, effect: int = EFFECT_HERE) -> bytes:
    """format-spec/log.md, 2.2; `ids` are 1 to `REMOVE_IDS_MAX`, 16 bytes each."""
    fields = fmt.REMOVAL_FIELDS.pack(holder, name_space, effect)
    return _record(fmt.RECORD_REMOVE, fields, ids, len(ids) // fmt.ID_BYTES)


def clear_record(holder: int, effect: int = EFFECT_HERE) -> bytes:
    """format-spec/log.md, 2.2; with effect 0 it says that the holder is there."""
    return _record(fmt.RECORD_CLEAR_HOLDER, fmt.REMOVAL_FIELDS.pack(holder, 0, effect))


def count_record(holder: int, name_space: int, counts: npt.NDArray[Any]) -> bytes:
    """format-spec/log.md, 2.7; `counts` (`_format.COUNT_ENTRY_DTYPE`) are 1 to `COUNT_ENTRIES_MAX`."""
    fields = fmt.REMOVAL_FIELDS.pack(holder, name_space, 0)
    return _record(fmt.RECORD_COUNT, fields, counts.tobytes(), len(counts))


def retire_record(file_number: int) -> bytes:
    """format-spec/log.md, 2.6."""
    return _record(fmt.RECORD_RETIRE_FILE, fmt.RETIRE_FIELDS.pack(file_number))


def postings_record(changes: npt.NDArray[Any]) -> bytes:
    """format-spec/postings.md, 4; `changes` (`CHANGE_DTYPE`) are 1 to 126 of states."""
    entries = np.zeros(len(changes), fmt.POSTINGS_ENTRY_DTYPE)
    entries["word0"] = changes["key"] << np.uint64(16) | changes["point"].astype("<u8") << np.uint64(1)
    entries["filter"], entries["operation"] = changes["root_key"], changes["operation"]
    return _record(fmt.RECORD_POSTINGS, bytes(fmt.UNIT - fmt.RECORD.size), entries.tobytes(), len(entries))


def summary_of(changes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The summary entries of a commit's changes: format-spec/log.md, 2.5, or postings.md, 4."""
    out = np.zeros(len(changes), fmt.SUMMARY_DTYPE)
    out["word0"] = changes["key"] | changes["n"].astype("<u8") << 48 | changes["d"].astype("<u8") << 56
    out["word1"] = changes["root_key"] | changes["dp"].astype("<u8") << 48 | changes["type"].astype("<u8") << 56
    out["supersedes"] = changes["supersedes"]
    out["units"] = changes["position"] & ((1 << fmt.UNIT_BITS) - 1)
    listed = changes["operation"] > 0
    if listed.any():
        own = changes[listed]
        out["word1"][listed] = own["root_key"]
        out["units"][listed] |= own["type"].astype("<u4") << fmt.UNIT_BITS
        out["reserved"][listed] = own["point"].astype("<u4") | own["operation"].astype("<u4") << 8
    return out


def summary_record(entries: npt.NDArray[Any]) -> bytes:
    """One page's worth of summary entries, at most `SUMMARY_ENTRIES_MAX`."""
    return _record(fmt.RECORD_SUMMARY, bytes(32), entries.tobytes(), len(entries))


def seal_record(summaries: int, entries: int, first: int) -> bytes:
    return _record(fmt.RECORD_SEAL, fmt.SEAL_FIELDS.pack(summaries, entries, first))
