"""What a chunk store counts, and says of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sarpstore._log.published import read_published

if TYPE_CHECKING:
    import os

    from sarpstore._chunks.plan import Span

__all__ = ["ChunkStats", "PublishedChunkStats", "Tally", "published_chunk_stats"]


class ChunkStats(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk store's counters since it was opened, and its sizes now. Questions count apart from all other tokens.

    chunks: Chunks held.
    regions: Regions that hold them.
    disk_bytes: Bytes of all files, each rounded up to 4 KiB: what `bytes_max` bounds.
    bytes_max: That bound.
    tokens: Tokens that were looked up.
    hit_tokens: Tokens of these that hit: whose prefill was saved.
    missed_tokens: Tokens of these that missed, by cause, as `ChunkSpan.why` names them.
    question_tokens: Tokens of questions, which are not looked up.
    loaded_bytes: Bytes of payloads loaded.
    load_seconds: Time that loads took, in seconds; of those that went on side by side, each counts.
    put_bytes: Bytes of payloads put, in whole pages.
    again_bytes: Bytes of payloads that were written again when their region went.
    written_bytes: Bytes of payloads, entries and tables written.
    damaged_payloads: Payloads that were found damaged; their chunks miss.
    puts: Chunks put.
    refused_puts: Chunks that were not admitted.
    evicted_chunks: Chunks that went with their regions.
    table_lag: Entries that the newest table does not have: what the next open reads besides it.
    used_tokens: Tokens of hits that answers were computed from, as `note_use` was told.
    recomputed_tokens: Tokens of these that a fix-up computed again.
    compared: Answers that were compared with those of a full prefill, as `note_drift` was told.
    drift: How far they were from it, in nats: the mean of those lately.
    recovery_ms: Time that opening took, in milliseconds.
    io_backend: What reads: "uring" or "threads".
    failed: Why puts stopped; empty: they have not.
    """

    chunks: int
    regions: int
    disk_bytes: int
    bytes_max: int
    tokens: int
    hit_tokens: int
    missed_tokens: dict[str, int]
    question_tokens: int
    loaded_bytes: int
    load_seconds: float
    put_bytes: int
    again_bytes: int
    written_bytes: int
    damaged_payloads: int
    puts: int
    refused_puts: int
    evicted_chunks: int
    table_lag: int
    used_tokens: int
    recomputed_tokens: int
    compared: int
    drift: float
    recovery_ms: float
    io_backend: str
    failed: str

    @property
    def hit_rate(self) -> float:
        """The share of tokens looked up that hit."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def load_bandwidth(self) -> float:
        """Bytes of payloads that one load loads in a second."""
        return self.loaded_bytes / self.load_seconds if self.load_seconds else 0.0

    @property
    def fix_up_share(self) -> float:
        """The share of used tokens that was computed again."""
        return self.recomputed_tokens / self.used_tokens if self.used_tokens else 0.0

    @property
    def write_amplification(self) -> float:
        """All bytes written over those of payloads put."""
        return self.written_bytes / self.put_bytes if self.put_bytes else 1.0


class PublishedChunkStats(msgspec.Struct, frozen=True, kw_only=True):
    """What `published_chunk_stats` returns.

    stats: the counters. process: id of the process that published them, which may have ended since. published_ms: when,
    in milliseconds since 1970-01-01 UTC.
    """

    stats: ChunkStats
    process: int
    published_ms: int


async def published_chunk_stats(path: str | os.PathLike[str]) -> PublishedChunkStats:
    """What the process that has the chunk store in folder `path` open last published about it; as `published_stats`.

    NotAStoreError if nothing was published, or by an index; CorruptionError for a damaged file.
    """
    stats, process, published_ms = await read_published(path, ChunkStats)
    return PublishedChunkStats(stats=stats, process=process, published_ms=published_ms)


# What a comparison counts for the mean, against all before it.
_LATELY = 1 / 64


@dataclass(slots=True)
class Tally:
    """What is counted of plans, loads and uses, since the open."""

    tokens: int = 0
    hit_tokens: int = 0
    question_tokens: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    damaged: int = 0
    used_tokens: int = 0
    recomputed_tokens: int = 0
    compared: int = 0
    drift: float = 0.0

    def looked(self, span: Span) -> None:
        """A chunk was looked up."""
        tokens = span.end - span.begin
        self.tokens += tokens
        if span.hit:
            self.hit_tokens += tokens
        else:
            self.missed[span.why] += tokens

    def missed_late(self, span: Span) -> None:
        """A hit turned out to be a miss."""
        tokens = span.end - span.begin
        self.hit_tokens -= tokens
        self.missed[span.why] += tokens

    def used(self, tokens: int, recomputed: int) -> None:
        """An answer was computed from hits."""
        self.used_tokens += tokens
        self.recomputed_tokens += recomputed

    def differed(self, nats: float) -> None:
        """An answer was compared."""
        self.compared += 1
        self.drift += (nats - self.drift) * max(_LATELY, 1 / self.compared)
