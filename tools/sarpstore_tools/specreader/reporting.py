"""What the checks of the log share: findings at a record's place, and records by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .folder import log_name
from .structures import place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .faults import Faults
    from .log import Rows


def report(faults: Faults, row: Any, code: str, meaning: str, warning: bool = False) -> None:
    """A finding at the place of the record that `row` stands for."""
    number, offset = place(int(row["position"]))
    add = faults.warning if warning else faults.corruption
    add(log_name(number), offset, code, f"record {int(row['sequence'])}: {meaning}")


def find(rows: Rows, positions: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Indexes of the rows at these positions, -1 for those that have none; `rows` ascend by position."""
    if not len(rows):
        return np.full(len(positions), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(rows["position"], positions), len(rows) - 1)
    return np.where(rows["position"][at] == positions, at, -1).astype(np.int64)
