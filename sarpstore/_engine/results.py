"""What calls return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Match", "Stats"]


class Match:
    """How far a sequence is held, and where."""

    __slots__ = ("_block_tokens", "_ids", "_locations", "blocks")

    def __init__(
        self, blocks: int, ids: npt.NDArray[np.uint8], locations: npt.NDArray[Any] | None, block_tokens: int
    ) -> None:
        self.blocks = blocks
        """Blocks held, from the sequence's start on."""
        self._ids = ids
        self._locations = locations
        self._block_tokens = block_tokens

    @property
    def tokens(self) -> int:
        """Tokens held: `blocks` times the store's block size."""
        return self.blocks * self._block_tokens

    @property
    def ids(self) -> npt.NDArray[np.uint8]:
        """Ids of the held blocks, (blocks, 16) uint8."""
        return self._ids[: self.blocks]

    @property
    def locations(self) -> npt.NDArray[Any]:
        """Locations of the held blocks, (blocks,) of the store's dtype. AttributeError if none were asked for."""
        if self._locations is None:
            raise AttributeError("this match was made with locations=False")
        return self._locations[: self.blocks]

    def __repr__(self) -> str:
        return f"Match(blocks={self.blocks}, tokens={self.tokens})"


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A store's counters since it was opened, and its sizes now."""

    blocks: int
    """Blocks held."""
    segments: int
    """Directory entries: one a segment."""
    holders: int
    """Holders that this process has inserted for."""
    directory_bytes: int
    """Memory of the directory, slack included."""
    cache_bytes: int
    """Memory of cached log pages."""
    resident_bytes: int
    """Memory of directory, cache and commit buffers together."""
    reads: int
    """Read operations issued to the device."""
    reads_coalesced: int
    """Pages that came along in a neighbour's read."""
    reads_joined: int
    """Pages that were already on their way for somebody else."""
    cache_hits: int
    """Pages found in the cache."""
    records_read: int
    """Records that matches rest on, cached or not."""
    matches: int
    matched_blocks: int
    inserts: int
    inserted_blocks: int
    """Blocks that were new when inserted."""
    log_bytes: int
    """Bytes of the log files."""
    dead_bytes: int
    """Bytes of superseded records written by this process."""
    commits: int
    """Commits written."""
    written_bytes: int
    """Bytes of log and checkpoints written by this process."""
    synced_position: int
    """Everything in the log before this position survives a crash."""
    checkpoint_position: int
    """Replay after a crash starts here."""
    checkpoints: int
    """Checkpoints published by this process."""
    unloaded_partitions: int
    """Directory partitions that are still on disk only."""
    recovery_ms: float
    """Time that opening took, in milliseconds."""
    io_backend: str
    loop_hold_ms_max: float
    """Longest time that one step of ours held the event loop, in milliseconds."""
    damaged_records: int
    """Records, images and runs of bytes found damaged; their blocks miss."""
    failed: str
    """Why writes stopped; empty: they have not."""
