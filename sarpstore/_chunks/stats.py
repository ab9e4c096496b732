"""What a chunk store counts, and says of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sarpstore._chunks.plan import Span

__all__ = ["ChunkStats", "Tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStats:
    """Counters since the open, and what there is. Tokens and bytes are those of chunks, questions apart."""

    chunks: int
    regions: int
    disk_bytes: int
    """Bytes of all files, in whole pages."""
    bytes_max: int
    tokens: int
    """Looked up."""
    hit_tokens: int
    missed_tokens: dict[str, int]
    """By cause, as `Span.why` names them."""
    question_tokens: int
    loaded_bytes: int
    """Of payloads: what was not computed again."""
    load_seconds: float
    """That loads took, those that went on side by side each counted."""
    put_bytes: int
    """Of payloads put, in whole pages."""
    again_bytes: int
    """Of payloads written again when their region went."""
    written_bytes: int
    """All bytes written: payloads, entries, tables."""
    damaged_payloads: int
    puts: int
    refused_puts: int
    """Not admitted."""
    evicted_chunks: int
    table_lag: int
    """Entries that the newest table does not have: what the next open reads besides it."""
    used_tokens: int
    """Of hits that were used for an answer, as `note_use` was told."""
    recomputed_tokens: int
    """Of these, what a fix-up computed again."""
    compared: int
    """Answers that were compared with those of a full prefill, as `note_drift` was told."""
    drift: float
    """How far they were from it: the mean of those lately, in nats."""
    recovery_ms: float
    io_backend: str
    failed: str = ""
    """Why puts have stopped; empty while they go on."""

    @property
    def hit_rate(self) -> float:
        """The share of tokens looked up that hit."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def fix_up_share(self) -> float:
        """The share of used tokens that was computed again."""
        return self.recomputed_tokens / self.used_tokens if self.used_tokens else 0.0

    @property
    def write_amplification(self) -> float:
        """All bytes written over those of payloads put."""
        return self.written_bytes / self.put_bytes if self.put_bytes else 1.0


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

    def differed(self, nats: float) -> None:
        """An answer was compared."""
        self.compared += 1
        self.drift += (nats - self.drift) * max(_LATELY, 1 / self.compared)
