"""Room on the disk: what is used, promised and reserved under `bytes_max`, and who waits for it.

    bytes_max ─ used (CountedFolder) ─ promised (gathered, not written) ─ reserved (checkpoints, compaction) = free

An insertion or a removal goes in only where its worst case fits in what is free, so the bound holds whatever is written
later. Checkpoints and compaction have room reserved, and still ask before each write: what is reserved for a checkpoint
is what the directory has now, and entries whose images are written already may go, and others come, meanwhile.
Where it does not fit, it waits for maintenance, which evicts and compacts; where that can't free anything any more, it
is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt
from sarpstore._errors import LimitError, SarpError
from sarpstore._files import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sarpstore._directory import Directory
    from sarpstore._files import CountedFolder
    from sarpstore._log.gather import Gatherer
    from sarpstore._log.writer import LogWriter

__all__ = [
    "Pressure",
    "Space",
    "checkpoint_reserve",
    "counting_bytes",
    "images_bytes_max",
    "insertion_bytes",
    "pressure",
]

# Checkpoints that may be there at a time: two are kept, one is being written.
_CHECKPOINTS: Final = 3
# Log files that a compaction may fill before it can delete one.
_COMPACTION_FILES: Final = 2
# `stats` and its successor, for which nobody asks.
_STATS_BYTES: Final = 4 * fmt.PAGE
# `stats`, its successor, and some growth of a few partitions' images in one insertion, three times each.
_SMALL_BYTES: Final = _STATS_BYTES + _CHECKPOINTS * 32 * fmt.PAGE
# Live bytes, of those that logs may have: eviction begins above the one, and goes down to the other.
_EVICT_FROM: Final = 0.70
_EVICT_TO: Final = 0.65
# Compaction begins where less than this share is free, and never with less than a log file free.
_COMPACT_BELOW: Final = 1 / 16
# Rounds of maintenance without anything freed, after which a waiting insertion gives up.
_FRUITLESS_ROUNDS: Final = 2
_CHECK_S: Final = 0.02

# Worst cases of an insertion, in pages: one a window; postings records; one of summaries for so many others; a commit
# record and a mark; the header and the seal of a file that it begins.
_LISTED_PAGES: Final = 16
_SUMMARY_SHARE: Final = {"divergence": 6, "sarp": 3}
_COMMIT_PAGES: Final = 2
_FILE_PAGES: Final = fmt.LOG_HEADER_BYTES // fmt.PAGE + 2
# New entries a window, and beyond: of other records, in longer lists.
_ENTRIES: Final = {"divergence": (2, 0), "sarp": (8, 2016)}


def images_bytes_max(entries: int, partitions: int, entry_bytes: int) -> int:
    """Bytes that images of all partitions take at most: each has a header, and ends at a page's end."""
    return entries * entry_bytes + partitions * (fmt.IMAGE_HEADER.size + fmt.PAGE)


def checkpoint_reserve(whole: int, present: int, writing: int | None) -> int:
    """Bytes to be kept free for checkpoints, of which each takes `whole` at most and all now `present`.

    `writing`: what there is of the one that is being written; None: none is.
    """
    next_one = whole if writing is None else max(0, whole - writing)
    return max(_CHECKPOINTS * whole - present, next_one)


def insertion_bytes(blocks: int, routing: str, entry_bytes: int) -> int:
    """Bytes that inserting a sequence of so many blocks takes at most, with what checkpoints will have of it."""
    windows = blocks // fmt.WINDOW + 2
    pages = windows + (_LISTED_PAGES if routing == "sarp" else 0)
    pages += pages // _SUMMARY_SHARE[routing] + 1 + _COMMIT_PAGES + _FILE_PAGES
    each, beyond = _ENTRIES[routing]
    return pages * fmt.PAGE + _CHECKPOINTS * (windows * each + beyond) * entry_bytes


def counting_bytes(blocks: int) -> int:
    """Bytes that counting so many blocks takes beside their insertion, with what checkpoints' heads will have of it."""
    return -(-blocks // fmt.COUNT_ENTRIES_MAX) * fmt.PAGE + _CHECKPOINTS * blocks * fmt.COUNT_DTYPE.itemsize


def removing_bytes(markers: int) -> int:
    """Bytes that a removal that makes so many markers takes at most beside an insertion of nothing."""
    return counting_bytes(markers) + fmt.PAGE + _CHECKPOINTS * markers * fmt.MARKER_DTYPE.itemsize


@dataclass(frozen=True, slots=True)
class Pressure:
    """What maintenance should do now."""

    evict_bytes: int
    """Bytes of live records to be evicted; 0: none."""
    compact: bool
    """Log files are to be emptied, the deadest first."""


def pressure(live: int, log_bytes_max: int, free: int, log_file_bytes: int) -> Pressure:
    """What is due, when records have `live` bytes, log files may have `log_bytes_max`, and `free` bytes are free.

    With at most 70 % alive there is always a file that gives back a third of what is copied out of it.
    """
    evict = live - int(_EVICT_TO * log_bytes_max) if live > _EVICT_FROM * log_bytes_max else 0
    return Pressure(evict, free < max(log_file_bytes, int(_COMPACT_BELOW * log_bytes_max)))


class Space:
    """The disk's share of a store that has a bound. `head_bytes()` is how long a checkpoint's head would be now."""

    def __init__(
        self,
        folder: CountedFolder,
        directory: Directory,
        gatherer: Gatherer,
        log: LogWriter,
        *,
        bytes_max: int,
        log_file_bytes: int,
        head_bytes: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._directory = directory
        self._gatherer = gatherer
        self._log = log
        self._head_bytes = head_bytes
        self._log_file_bytes = log_file_bytes
        self._before_checkpoint: int | None = None
        self._begun_bytes = 0
        """What the checkpoint that is being written took at most when it began."""
        self._taken = 0
        """Bytes that a checkpoint has on their way to the disk."""
        self._fruitless = 0
        self._ended: SarpError | None = None
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.bytes_max = bytes_max
        self.maintained = False
        """Somebody makes room: there is a point in waiting."""
        self.wake: Callable[[], None] = lambda: None
        """Called when somebody begins to wait."""
        self.wanted = asyncio.Event()
        """Somebody waits for room."""

    # --- how much there is

    @property
    def used(self) -> int:
        """Bytes of all files of the folder, in whole pages, with those that are about to be written."""
        return self._folder.bytes + self._taken

    @property
    def log_bytes_max(self) -> int:
        """Bytes that log files may have together."""
        others = self._folder.bytes_of(fmt.CHECKPOINT_SUFFIX) + self._folder.bytes_of(fmt.IMAGES_SUFFIX)
        return self.bytes_max - others - self._reserved

    @property
    def free(self) -> int:
        """Bytes that insertions may take; below 0 where more is there than may be."""
        return self.bytes_max - self.used - self._log.promised_bytes - self._reserved

    @property
    def free_for_copies(self) -> int:
        """Bytes that compaction may take, which has a reserve, and goes into others' before it stops to make room."""
        writing = self._writing
        return self._unpromised - (0 if writing is None else max(0, self._checkpoint_bytes - writing))

    @property
    def _unpromised(self) -> int:
        """What is left of the bound, for whomever it is reserved."""
        return self.bytes_max - self.used - self._log.promised_bytes - _STATS_BYTES

    @property
    def _writing(self) -> int | None:
        """What there is of the checkpoint that is being written; None: none is."""
        return None if self._before_checkpoint is None else self._checkpoints_present - self._before_checkpoint

    @property
    def _headroom(self) -> int:
        return _COMPACTION_FILES * self._log_file_bytes

    @property
    def _reserved(self) -> int:
        reserve = checkpoint_reserve(self._checkpoint_bytes, self._checkpoints_present, self._writing)
        return reserve + self._headroom + _SMALL_BYTES

    @property
    def _checkpoint_bytes(self) -> int:
        """What a whole checkpoint takes at most; the one that is being written, at least what it did when it began."""
        directory = self._directory
        images = images_bytes_max(directory.entries_all, len(directory.partitions), directory.entry_bytes)
        return max(self._begun_bytes, images + rounded(self._head_bytes()))

    @property
    def _checkpoints_present(self) -> int:
        return self._folder.bytes_of(fmt.CHECKPOINT_SUFFIX) + self._folder.bytes_of(fmt.IMAGES_SUFFIX)

    def pressure(self, live: int) -> Pressure:
        """What maintenance should do, when live records have `live` bytes (the sum of `Base.slot_live`)."""
        return pressure(live, self.log_bytes_max, self.free, self._log_file_bytes)

    def head_share(self, head_bytes: int) -> float:
        """The share of the bound that so many bytes of a checkpoint's head take in all for which room is kept."""
        return _CHECKPOINTS * head_bytes / self.bytes_max

    # --- for insertions

    def admits(self, blocks: int, *, counted: int = 0, markers: int = 0) -> bool:
        """Whether so many blocks can be inserted, so many counted, and so many markers made, now.

        To be asked in one step with that.
        """
        needed = insertion_bytes(blocks, self._directory.routing, self._directory.entry_bytes)
        return self.free >= needed + counting_bytes(counted) + (removing_bytes(markers) if markers else 0)

    async def wait_for_room(self, blocks: int, *, counted: Callable[[], int] = lambda: 0, markers: int = 0) -> None:
        """Return once so many blocks can be inserted, and so many counted as it says then, and so many markers made;
        LimitError where that will not be.

        Others may have taken the room by the time that the caller goes on: ask `admits` again.
        """
        seen = self._fruitless
        while not self.admits(blocks, counted=counted(), markers=markers):
            self._log.check()
            if self._ended is not None:
                raise self._ended
            if not self.maintained or self._fruitless - seen >= _FRUITLESS_ROUNDS:
                raise self._full()
            self.wanted.set()
            self.wake()
            # A commit that has been written frees what it was promised at most, and tells nobody.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await asyncio.shield(self._told)

    def _full(self) -> LimitError:
        return LimitError(
            f"bytes_max={self.bytes_max:,} is reached: files have {self.used:,} bytes, and no more can be evicted or "
            "compacted to make room"
        )

    # --- for maintenance

    def end(self, error: SarpError) -> None:
        """Nobody makes room any more: who waits is told why."""
        self.maintained = False
        self._ended = error
        self.round_ended(freed=False)

    def round_ended(self, *, freed: bool) -> None:
        """A round of eviction and compaction has ended; whether it freed, or evicted, anything."""
        self.wanted.clear()
        self._fruitless += not freed
        told, self._told = self._told, asyncio.get_running_loop().create_future()
        told.set_result(None)

    # --- for checkpoints

    @property
    def fits_checkpoint(self) -> bool:
        """Whether a whole checkpoint fits in what is left beside those that are there."""
        return self._unpromised >= self._checkpoint_bytes

    @property
    def may_share_images(self) -> bool:
        """Whether images may be shared: one whole checkpoint is there at most, so none ever needs three of them."""
        return self._folder.bytes_of(fmt.IMAGES_SUFFIX) <= self._checkpoint_bytes

    def checkpoint_begins(self) -> None:
        """What checkpoints take from now on is the one that is being written."""
        self._before_checkpoint, self._begun_bytes = self._checkpoints_present, self._checkpoint_bytes

    @contextlib.contextmanager
    def taking(self, length: int) -> Iterator[None]:
        """While so many bytes of a checkpoint are written. LimitError where the bound leaves no room for them."""
        if self._unpromised < rounded(length):
            raise LimitError(f"bytes_max={self.bytes_max:,} leaves no room for the rest of a checkpoint")
        self._taken += rounded(length)
        try:
            yield
        finally:
            self._taken -= rounded(length)

    def checkpoint_ended(self) -> None:
        """It is published, or given up."""
        self._before_checkpoint, self._begun_bytes = None, 0
