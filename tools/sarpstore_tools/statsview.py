"""What an index's published counters mean: rows for people, of one sample and of what grew since the one before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from .specreader.folder import kind_of
from .statstables import NONE, Groups, Growth, Meaning, Meanings, count, decimal, percent, signed

if TYPE_CHECKING:
    from pathlib import Path

GROUPS: Final[Groups] = (
    ("held", ("blocks", "segments", "holders", "markers", "counts", "removed")),
    ("memory", ("directory_bytes", "cache_bytes", "resident_bytes", "unloaded_partitions")),
    ("matching", ("matches", "matched_blocks", "inserts", "inserted_blocks")),
    (
        "reads",
        ("reads", "reads_coalesced", "reads_joined", "records_read", "cache_hits", "io_backend", "direct_io")
        + ("loop_hold_ms_max",),
    ),
    ("disk", ("disk_bytes", "bytes_max", "log_bytes", "live_bytes", "dead_bytes", "evicted")),
    ("written", ("written_bytes", "record_bytes", "commits", "synced_position")),
    ("compaction", ("mark_passes", "compacted_files", "copied_bytes")),
    ("checkpoint", ("checkpoints", "checkpoint_position", "checkpoint_lag_bytes", "recovery_ms")),
    ("state", ("damaged_records", "failed")),
)
"""All counters by what they speak of, in the order of the table."""


def checkpoint_age(store: Path) -> float | None:
    """Seconds since the newest checkpoint's head was written; None where there is none."""
    newest = 0.0
    try:
        for path in store.iterdir():
            if kind_of(path.name) == "checkpoint":
                newest = max(newest, _changed(path))
    except OSError:
        return None  # the folder is gone
    return time.time() - newest if newest else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # replaced by a newer one just now


def meanings(values: dict[str, Any], growth: Growth | None, age: float | None) -> list[Meaning]:
    """What follows from the counters; `age`: of the checkpoint, in seconds."""
    rows = Meanings(values, growth)
    return [
        rows.counted("matches", "matches"),
        rows.share("blocks a match", "matched_blocks", ("matches",), decimal),
        rows.share("cache hit rate", "cache_hits", ("cache_hits", "reads"), percent),
        rows.counted("cache hits", "cache_hits"),
        rows.counted("reads", "reads"),
        rows.counted("reads coalesced", "reads_coalesced"),
        rows.counted("reads joined", "reads_joined"),
        rows.counted("inserts", "inserts"),
        rows.counted("blocks inserted", "inserted_blocks"),
        rows.counted("blocks removed", "removed"),
        rows.counted("blocks evicted", "evicted"),
        Meaning("markers", count(rows.now("markers")), signed(rows.grown("markers"))),
        rows.counted("mark passes", "mark_passes"),
        rows.disk_use(),
        Meaning("live / dead", _live_and_dead(rows)),
        rows.sized("log", "log_bytes"),
        rows.counted("files compacted", "compacted_files"),
        rows.sized("copied by compaction", "copied_bytes"),
        Meaning("checkpoint lag", _lag(rows)),
        Meaning("checkpoint age", NONE if age is None else f"{age:,.1f} s"),
        rows.counted("damaged records", "damaged_records"),
        rows.goes_on("writes"),
    ]


def _live_and_dead(rows: Meanings) -> str:
    live, dead = rows.now("live_bytes"), rows.now("dead_bytes")
    if live is None or dead is None or not live + dead:
        return NONE
    return f"{live / (live + dead):.1%} / {dead / (live + dead):.1%}"


def _lag(rows: Meanings) -> str:
    """How much log stands behind the last checkpoint; of an older writer, how much of it as far as positions tell."""
    lag = rows.now("checkpoint_lag_bytes")
    if lag is not None:
        return f"{lag:,.0f} bytes"
    synced, checkpoint = rows.now("synced_position"), rows.now("checkpoint_position")
    if not isinstance(synced, int) or not isinstance(checkpoint, int):
        return NONE
    files = (synced >> 24) - (checkpoint >> 24)
    if files == 0:
        return f"{max(0, synced - checkpoint) * 64:,} bytes"
    return f"{files} files" if checkpoint else "no checkpoint"
