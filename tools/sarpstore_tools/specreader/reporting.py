"""What the checks of the log share: findings at a record's place, and how records lead to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import DamagedError
from .folder import log_name, read_at
from .log import holders, namespaces, offset_of, windows
from .structures import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .accept import Log
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


def bytes_of(log: Log, row: Any, at: int, size: int) -> bytes:
    """Bytes of a record from its byte `at` on; fewer or none if they cannot be read any more."""
    file = log.file(int(row["position"]) >> 24)
    try:
        return read_at(file.descriptor, size, offset_of(row) + at) if file else b""
    except DamagedError:
        return b""  # reported where the file was walked


def links(rows: Rows, ids: str, ahead: int) -> Iterator[tuple[int, ...]]:
    """(holder, namespace, window that follows, id before it) a row."""
    low, high = (rows[ids][:, -2].tolist(), rows[ids][:, -1].tolist())
    window = [number + ahead for number in windows(rows).tolist()]
    return zip(holders(rows).tolist(), namespaces(rows).tolist(), window, low, high, strict=True)


def block_ids(log: Log, row: Any) -> list[bytes]:
    """The block ids of a segment record."""
    data = bytes_of(log, row, 128, 16 * int(row["n"]))
    return [data[at : at + 16] for at in range(0, len(data), 16)]
