"""What calls return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sarpstore._log.published import read_published

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt

__all__ = ["Match", "PublishedStats", "Stats", "published_stats"]


class Match:
    """How far a sequence is held, and where.

    `ids` and `locations` of a batch's answers are views of arrays that up to 128 answers share: copy what is kept long.
    """

    __slots__ = ("_begin", "_block_tokens", "_ids", "_locations", "blocks")

    def __init__(
        self,
        blocks: int,
        ids: npt.NDArray[np.uint8],
        locations: npt.NDArray[Any] | None,
        begin: int,
        block_tokens: int,
    ) -> None:
        # `ids` and `locations` are a batch's; this sequence's begin at `begin`.
        self.blocks = blocks
        """Blocks held, from the sequence's start on."""
        self._ids = ids
        self._locations = locations
        self._begin = begin
        self._block_tokens = block_tokens

    @property
    def tokens(self) -> int:
        """Tokens held: `blocks` times the store's block size."""
        return self.blocks * self._block_tokens

    @property
    def ids(self) -> npt.NDArray[np.uint8]:
        """Ids of the held blocks, (blocks, 16) uint8."""
        return self._ids[self._begin : self._begin + self.blocks]

    @property
    def locations(self) -> npt.NDArray[Any]:
        """Locations of the held blocks, (blocks,) of the store's dtype. AttributeError if none were asked for."""
        if self._locations is None:
            raise AttributeError("this match was made with locations=False")
        return self._locations[self._begin : self._begin + self.blocks]

    def __repr__(self) -> str:
        return f"Match(blocks={self.blocks}, tokens={self.tokens})"


class PublishedStats(msgspec.Struct, frozen=True, kw_only=True):
    """What `published_stats` returns.

    stats: the counters. process: id of the process that published them, which may have ended since. published_ms: when,
    in milliseconds since 1970-01-01 UTC.
    """

    stats: Stats
    process: int
    published_ms: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A store's counters since it was opened, and its sizes now.

    blocks: Blocks held.
    segments: Directory entries: one a segment record; under sarp its postings, one to eight a record.
    holders: Holders that have ever been inserted for.
    markers: Removals that are remembered one by one; a mark pass makes them needless.
    counts: Blocks that are remembered as announced more than once.
    removed: Blocks that this process has removed, held or not.
    directory_bytes: Memory of the directory, slack included.
    cache_bytes: Memory of cached log pages.
    resident_bytes: Memory of directory, cache and commit buffers together.
    reads: Read operations issued to the device.
    reads_coalesced: Pages that came along in a neighbour's read.
    reads_joined: Pages that were already on their way for somebody else.
    cache_hits: Pages found in the cache.
    records_read: Records that matches rest on, cached or not; under sarp also the candidates that were not the best.
    inserted_blocks: Blocks that were new when inserted.
    log_bytes: Bytes of the log files.
    dead_bytes: Bytes of log files that are no record in use: superseded, removed, evicted; marks and summaries too.
        0 until all partitions are in memory.
    live_bytes: Bytes of the records in use. 0 until all partitions are in memory.
    disk_bytes: Bytes of all files of the store, each rounded up to 4 KiB: what `bytes_max` bounds. Without that bound,
        the log's alone.
    bytes_max: That bound; 0: none.
    evicted: Blocks evicted by this process.
    mark_passes: Mark passes that this process has ended.
    compacted_files: Log files that compaction has emptied and retired in this process.
    copied_bytes: Bytes of records that compaction has copied in this process.
    record_bytes: Bytes of records that insertions and removals have written in this process.
    checkpoint_lag_bytes: Bytes of log behind the last checkpoint's start.
    commits: Commits written.
    written_bytes: Bytes of log and checkpoints written by this process.
    synced_position: Everything in the log before this position survives a crash.
    checkpoint_position: Replay after a crash starts here.
    checkpoints: Checkpoints published by this process.
    unloaded_partitions: Directory partitions that are still on disk only.
    io_backend: What reads: "uring" or "threads".
    direct_io: Whether reads bypass the system's cache.
    recovery_ms: Time that opening took, in milliseconds.
    loop_hold_ms_max: Longest kernel call on the event loop, in milliseconds.
    damaged_records: Records, images and runs of bytes found damaged; their blocks miss.
    failed: Why writes stopped; empty: they have not.
    """

    blocks: int
    segments: int
    holders: int
    markers: int
    counts: int
    removed: int
    directory_bytes: int
    cache_bytes: int
    resident_bytes: int
    reads: int
    reads_coalesced: int
    reads_joined: int
    cache_hits: int
    records_read: int
    matches: int
    matched_blocks: int
    inserts: int
    inserted_blocks: int
    log_bytes: int
    dead_bytes: int
    live_bytes: int
    disk_bytes: int
    bytes_max: int
    evicted: int
    mark_passes: int
    compacted_files: int
    copied_bytes: int
    record_bytes: int
    checkpoint_lag_bytes: int
    commits: int
    written_bytes: int
    synced_position: int
    checkpoint_position: int
    checkpoints: int
    unloaded_partitions: int
    recovery_ms: float
    io_backend: str
    direct_io: bool
    loop_hold_ms_max: float
    damaged_records: int
    failed: str


async def published_stats(path: str | os.PathLike[str]) -> PublishedStats:
    """What the writer of the store in folder `path` last published about it; a second ago at most, while it lives.

    For another process, such as a metrics exporter: it opens nothing of the store but this file, and does not hold the
    event loop. NotAStoreError if nothing was published, or by a chunk store; CorruptionError for a damaged file.
    """
    stats, process, published_ms = await read_published(path, Stats)
    return PublishedStats(stats=stats, process=process, published_ms=published_ms)
