"""When the log stood where: what a time to live is measured with (format-spec/removal.md, section 1; checkpoint.md).

A moment (position, time) says that everything below the position was written before that time. No I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore import _format as fmt

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MOMENTS_MAX", "Moments"]

MOMENTS_MAX: Final = 4096


class Moments:
    """Moments in ascending order, `MOMENTS_MAX` at most: of more, every other one of the older half goes."""

    def __init__(self, rows: npt.NDArray[Any] | None = None) -> None:
        self._positions: list[int] = [] if rows is None else rows["position"].tolist()
        self._times_ms: list[int] = [] if rows is None else rows["time_ms"].tolist()

    def add(self, position: int, time_ms: int) -> None:
        """Everything below `position` was written before `time_ms`. A clock that was set back adds nothing."""
        last_position, last_ms = (self._positions[-1], self._times_ms[-1]) if self._times_ms else (0, -1)
        if position <= last_position or time_ms <= last_ms:
            return
        self._positions.append(position)
        self._times_ms.append(time_ms)
        if len(self._positions) > MOMENTS_MAX:
            half = MOMENTS_MAX // 2
            self._positions[:half] = self._positions[:half:2]
            self._times_ms[:half] = self._times_ms[:half:2]

    def before(self, time_ms: int) -> int:
        """The highest position below which everything was written before `time_ms`, as far as is known; else 0."""
        at = bisect_right(self._times_ms, time_ms)
        return self._positions[at - 1] if at else 0

    def rows(self) -> npt.NDArray[Any]:
        """The moments (`_format.MOMENT_DTYPE`)."""
        rows = np.zeros(len(self._positions), fmt.MOMENT_DTYPE)
        rows["position"], rows["time_ms"] = self._positions, self._times_ms
        return rows
