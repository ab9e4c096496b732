"""The log's reading end for recovery: what one file holds, page by page or by its summary."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._errors import StorageError, VersionError
from sarpstore._io import MATCHING
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, FOUND_COMMIT_DTYPE, ffi, joined, lib, pointer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._files import File
    from sarpstore._io import Scheduler
    from sarpstore._log.base import Base
    from sarpstore._log.header import Shape

__all__ = ["FileScan", "PageScanner", "read_slice", "scan_file", "scan_summary"]

_SLICE_BYTES: Final = 1 << 20
_SLICES_AHEAD: Final = 4
_NEAR_END_BYTES: Final = 128 << 10
_UNREADABLE: Final = b"\xff" * fmt.PAGE


@dataclass(slots=True)
class FileScan:
    """What a part of a log file holds, in order of place."""

    changes: npt.NDArray[Any]
    """`sarp_change`, those of all valid records but commit records."""
    commits: npt.NDArray[Any]
    """`sarp_found_commit`; incomplete ones too."""
    damaged: npt.NDArray[np.uint64]
    """Positions of bytes that are neither a record nor free."""
    sequence: int
    """The highest sequence number seen."""
    tail: int
    """Where the pages begin that no commit record ends; the scan's end if there are none."""
    end: int
    """Position of the scan's end."""
    read_bytes: int
    previous_commit: int = 0
    """Number of the last commit before it, as its file's header or the checkpoint says."""
    sealed: bool = False
    """Taken from a summary: `commits` has the sealing commit alone, and stands for all of the file's."""


class PageScanner:
    """Collects what the kernel finds in one file's pages, handed over in order."""

    def __init__(self, shape: Shape, base: Base, file_number: int, page: int, previous_commit: int) -> None:
        self._base = base
        self._previous_commit = previous_commit
        self._uuid = ffi.new("uint8_t[16]", shape.uuid)
        self._file_number = file_number
        self._read_bytes = 0
        self._scan = ffi.new("sarp_scan *")
        self._scan.uuid = self._uuid
        self._scan.file_number = file_number
        self._scan.previous_number = previous_commit
        self._scan.location_bytes = shape.location_bytes
        self._scan.features = FEATURES
        self._scan.begin_page = self._scan.next_page = page
        self._changes: list[npt.NDArray[Any]] = []
        self._commits: list[npt.NDArray[Any]] = []
        self._damaged: list[npt.NDArray[Any]] = []

    def feed(self, data: memoryview) -> None:
        """Scan whole pages. VersionError for a record that this version may not pass over."""
        pages = len(data) // fmt.PAGE
        self._read_bytes += pages * fmt.PAGE
        while pages:
            room = pages * fmt.PAGE_UNITS
            change_room = room + lib.SARP_PAGE_CHANGES_MAX
            changes, commits = np.empty(change_room, CHANGE_DTYPE), np.empty(pages, FOUND_COMMIT_DTYPE)
            damaged = np.empty(room, "<u8")
            found = ffi.new("sarp_found *")
            found.changes, found.change_limit = pointer("sarp_change *", changes), change_room
            found.commits, found.commit_limit = pointer("sarp_found_commit *", commits), pages
            found.damaged, found.damaged_limit = pointer("uint64_t *", damaged), room
            done = lib.sarp_scan_pages(self._scan, self._base.c, pointer("uint8_t *", data), pages, found)
            if found.unknown_at:
                name, offset = fmt.log_name(self._file_number), fmt.position_offset(found.unknown_at)
                raise VersionError(f"{name} at byte {offset}: a record of a type that this sarpstore does not know")
            self._changes.append(changes[: found.change_count].copy())
            self._commits.append(commits[: found.commit_count].copy())
            self._damaged.append(damaged[: found.damaged_count].copy())
            data, pages = data[done * fmt.PAGE :], pages - done

    def result(self) -> FileScan:
        return FileScan(
            joined(self._changes, CHANGE_DTYPE),
            joined(self._commits, FOUND_COMMIT_DTYPE),
            joined(self._damaged, np.dtype("<u8")),
            int(self._scan.sequence),
            fmt.position(self._file_number, self._scan.begin_page * fmt.PAGE),
            fmt.position(self._file_number, self._scan.next_page * fmt.PAGE),
            self._read_bytes,
            self._previous_commit,
        )


async def scan_file(
    scheduler: Scheduler,
    file: File,
    scanner: PageScanner,
    begin: int,
    end: int,
    progress: Callable[[int], None] = lambda _: None,
) -> FileScan:
    """Scan the pages from byte `begin` to `end` of a file, reading ahead; `progress` is told of bytes when done."""
    starts = iter(range(begin, end, _SLICE_BYTES))
    ahead: list[asyncio.Task[memoryview]] = []

    def read_on() -> None:
        for start in starts:
            length = min(_SLICE_BYTES, end - start)
            ahead.append(asyncio.create_task(read_slice(scheduler, file, start, length)))
            if len(ahead) == _SLICES_AHEAD:
                return

    try:
        read_on()
        while ahead:
            data = await ahead.pop(0)
            read_on()
            scanner.feed(data)
            progress(len(data))
    finally:
        for task in ahead:
            task.cancel()
    return scanner.result()


async def read_slice(scheduler: Scheduler, file: File, start: int, length: int, priority: int = MATCHING) -> memoryview:
    """A slice of a file; a page that can't be read comes as bytes that are no record, which the scan calls damage."""
    with contextlib.suppress(StorageError):
        return await scheduler.read(file, start, length, priority)
    pages = range(start // fmt.PAGE, (start + length) // fmt.PAGE)
    read = await scheduler.try_read_many([(file, page * fmt.PAGE, fmt.PAGE) for page in pages], priority)
    for page in read:
        if isinstance(page, BaseException) and getattr(page, "errno", None) != errno.EIO:
            raise page  # not a bad page: the system may be able to read it the next time
    return memoryview(b"".join(bytes(p) if isinstance(p, memoryview) else _UNREADABLE for p in read))


async def scan_summary(
    scheduler: Scheduler, file: File, shape: Shape, base: Base, file_number: int, end: int, *, synced: int
) -> FileScan | None:
    """What the summary of a sealed file that ends at byte `end` says; None if it has none that can be relied on.

    `synced`: everything before this position is known to be synced. A seal that is newer must itself say that all
    before it was.
    """
    last_at = end - fmt.PAGE
    if last_at < fmt.LOG_HEADER_BYTES or end % fmt.PAGE:
        return None
    with contextlib.suppress(StorageError):  # unreadable: the records themselves may be readable
        return await _scan_summary(scheduler, file, shape, base, file_number, end, synced)
    return None


async def _scan_summary(
    scheduler: Scheduler, file: File, shape: Shape, base: Base, file_number: int, end: int, synced: int
) -> FileScan | None:
    last_at = end - fmt.PAGE
    # One read mostly has the whole summary: some 60 KB where the file has 4 MiB.
    near_at = max(fmt.LOG_HEADER_BYTES, end - _NEAR_END_BYTES)
    near = await scheduler.read(file, near_at, end - near_at, 0)
    last = near[last_at - near_at :]
    seal = _seal_in(_scan_pages(last, shape, base, file_number, last_at, 0), last)
    if seal is None:
        return None
    summaries, entries, first, commit = seal
    begin = fmt.position_offset(first)
    if fmt.position_file(first) != file_number or begin + summaries * fmt.PAGE != last_at:
        return None
    data = near[begin - near_at :] if begin >= near_at else await scheduler.read(file, begin, end - begin, 0)
    scan = _scan_pages(data, shape, base, file_number, begin, commit - 1)
    # What follows would not be known to be sound.
    whole = scan.commits[(scan.commits["begin"] == first) & (scan.commits["end"] == fmt.position(file_number, end))]
    complete = whole[whole["flags"] & lib.SARP_COMMIT_COMPLETE > 0]
    if len(complete) != 1 or (fmt.position(file_number, end) > synced and complete[0]["synced"] < first):
        return None
    changes = _summary_changes(data[: summaries * fmt.PAGE], base, file_number, entries)
    return (
        None
        if changes is None
        else FileScan(
            changes, scan.commits, scan.damaged, scan.sequence, scan.tail, scan.end, scan.read_bytes, sealed=True
        )
    )


def _scan_pages(
    data: memoryview, shape: Shape, base: Base, file_number: int, offset: int, previous_commit: int
) -> FileScan:
    scanner = PageScanner(shape, base, file_number, offset // fmt.PAGE, previous_commit)
    scanner.feed(data)
    return scanner.result()


def _seal_in(scan: FileScan, page: memoryview) -> tuple[int, int, int, int] | None:
    """(summary records, entries, first summary's position, commit number) of the seal in a file's last page."""
    seals = scan.changes[scan.changes["type"] == fmt.RECORD_SEAL]
    if len(seals) != 1 or len(scan.commits) != 1 or not seals[0]["commit"]:
        return None
    at = fmt.position_offset(int(seals[0]["position"])) % fmt.PAGE
    summaries, entries, first = fmt.SEAL_FIELDS.unpack_from(page, at + fmt.RECORD.size)
    return summaries, entries, first, int(seals[0]["commit"])


def _summary_changes(data: memoryview, base: Base, file_number: int, entries: int) -> npt.NDArray[Any] | None:
    parts = []
    for at in range(0, len(data), fmt.PAGE):
        kind, n = fmt.RECORD.unpack_from(data, at)[3:6:2]
        if kind != fmt.RECORD_SUMMARY:
            return None
        parts.append(np.frombuffer(data, fmt.SUMMARY_DTYPE, n, at + fmt.SUMMARY_HEADER_BYTES))
    table = joined(parts, fmt.SUMMARY_DTYPE)
    changes = np.zeros(len(table), CHANGE_DTYPE)
    if len(table) != entries:
        return None
    if entries:
        source, out = pointer("uint8_t *", table), pointer("sarp_change *", changes)
        if lib.sarp_summary_changes(base.c, file_number, source, entries, out) != lib.SARP_OK:
            return None
    return changes
