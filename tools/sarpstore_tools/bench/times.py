"""Durations of any number of calls in memory that does not grow."""

from __future__ import annotations

import math

import numpy as np

BUCKETS = 1024
BUCKETS_A_DOUBLING = 32
"""Two neighbours are 2.2 % apart; 1,024 of them reach from 100 ns to 430 s."""
LEAST_MS = 1e-4


class Times:
    """How often calls took how long, in milliseconds. What takes longer than `slow_ms` is also added up."""

    def __init__(self, slow_ms: float) -> None:
        self.slowest_ms = 0.0
        self.slow_ms_total = 0.0
        self.count = 0
        self._slow_ms = slow_ms
        self._counts = np.zeros(BUCKETS, np.int64)

    def add(self, ms: float) -> None:
        """One more call."""
        bucket = int(math.log2(max(ms, LEAST_MS) / LEAST_MS) * BUCKETS_A_DOUBLING)
        self._counts[min(bucket, BUCKETS - 1)] += 1
        self.count += 1
        self.slowest_ms = max(self.slowest_ms, ms)
        if ms > self._slow_ms:
            self.slow_ms_total += ms

    def quantile(self, share: float) -> float:
        """The duration that this share of all calls did not exceed, 2.2 % too high at most; 0 without any."""
        if not self.count:
            return 0.0
        bucket = int(np.searchsorted(self._counts.cumsum(), share * self.count))
        return float(min(self.slowest_ms, LEAST_MS * 2 ** ((bucket + 1) / BUCKETS_A_DOUBLING)))
