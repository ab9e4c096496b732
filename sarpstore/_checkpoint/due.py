"""When a checkpoint is due. Pure functions of sizes and times."""

from __future__ import annotations

from typing import Final

__all__ = ["checkpoint_due", "replay_ms", "slowness"]

_LOG_BYTES_MIN: Final = 256 << 10
_LOG_BYTES_MIN_FAST: Final = 4 << 20
_PAUSE_MS: Final = 500.0
_LOG_SHARE: Final = 4
# Opening files, reading the head, the first partitions and the first record.
_FIXED_MS: Final = 10
# What replaying is taken to cost until an open has measured it: reading, and accepting and sorting changes of the
# directory (measured: 0.4 microseconds each, on an AMD EPYC of 2022).
_BYTES_PER_MS: Final = 500_000.0
_CHANGES_PER_MS: Final = 2_500.0
# An open that took so long, or less, was measured at other things; and no machine is so much faster or slower.
_MEASURED_MS_MIN: Final = 5.0
_SLOWNESS: Final = (0.5, 16.0)


def replay_ms(read_bytes: int, changes: int) -> float:
    """What going through a log takes, of which so many bytes are read, with so many changes of the directory."""
    return read_bytes / _BYTES_PER_MS + changes / _CHANGES_PER_MS


def slowness(read_bytes: int, changes: int, recovery_ms: float) -> float:
    """How many times as long as `replay_ms` says a recovery took; 1 where it went through too little to tell."""
    expected = replay_ms(read_bytes, changes)
    if expected < _MEASURED_MS_MIN:
        return 1.0
    least, most = _SLOWNESS
    return min(most, max(least, (recovery_ms - _FIXED_MS) / expected))


def checkpoint_due(log_bytes: int, expected_ms: float, directory_bytes: int, target_ms: int, since_ms: float) -> bool:
    """Whether the log since the last checkpoint has passed four times the directory's size, or recovery its target.

    Hashed keys dirty every partition quickly, so a checkpoint costs about the directory's size (with what its head has
    beside): by the first rule checkpoints write a quarter of what the log does at most. `expected_ms` is what a
    recovery would take for that log. Half the target is left for what comes while it is written. Below a quarter of
    the directory's size none is due, nor below 4 MiB of log, or 256 KiB where the last one began half a second ago
    (`since_ms`): at a server's pace little is left to replay, and a fast load is not held up.
    """
    least = _LOG_BYTES_MIN if since_ms >= _PAUSE_MS else _LOG_BYTES_MIN_FAST
    if log_bytes < max(least, directory_bytes / 4):
        return False
    return log_bytes >= _LOG_SHARE * directory_bytes or expected_ms >= max(1, target_ms - _FIXED_MS) / 2
