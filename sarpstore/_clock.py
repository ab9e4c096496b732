"""Time: one place that reads the clocks."""

from __future__ import annotations

import time

__all__ = ["monotonic_ms", "wall_ms"]


def monotonic_ms() -> float:
    """Milliseconds of a clock that never goes back; for durations."""
    return time.perf_counter() * 1e3


def wall_ms() -> int:
    """Milliseconds since 1970-01-01 UTC; for what other processes read."""
    return time.time_ns() // 1_000_000
