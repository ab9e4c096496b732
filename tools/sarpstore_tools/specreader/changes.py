"""How records change the directory of posting lists (postings.md, section 4): one row of `CHANGE` a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .faults import DamagedError
from .folder import read_at
from .log import POSTINGS, SEGMENT, Rows, offset_of
from .points import OFFSETS, point_facts

if TYPE_CHECKING:
    from .accept import Log

ADD: Final = 1
DROP: Final = 2
OPERATIONS: Final = ("", "add", "drop")

# A change as a postings record holds it.
STORED: Final = np.dtype(
    [("word0", "<u8"), ("position", "<u8"), ("filter", "<u8"), ("operation", "u1"), ("reserved", "u1", (7,))]
)
# `position` is that of the posting's segment record, 0 of a state, whose flags are in `filter`. `place` is the position
# of the record that says so, `order` the change's number in it; `type` that record's, `odd` bit 0 of word 0.
CHANGE: Final = np.dtype(
    [
        *(("key", "<u8"), ("filter", "<u8"), ("position", "<u8"), ("place", "<u8"), ("n", "u1"), ("d", "u1")),
        *(("point", "u1"), ("operation", "u1"), ("type", "u1"), ("order", "u1"), ("odd", "u1"), ("reserved", "u1")),
    ]
)
_HEADER: Final = 64


def segment_changes(segments: Rows, facts: Rows) -> Rows:
    """What segment records change: at each of their points, the superseded posting goes and their own comes."""
    parts = [np.zeros(0, dtype=CHANGE)]
    for point, offset in enumerate(OFFSETS):
        posted = (segments["points"] >> np.uint8(point) & np.uint8(1)).astype(np.bool_)
        dropped = posted & (segments["supersedes"] != 0) & (segments["old_n"] > offset)
        for operation, some in ((DROP, dropped), (ADD, posted)):
            rows, own = segments[some], facts[some]
            out = np.zeros(len(rows), dtype=CHANGE)
            out["key"], out["place"], out["d"] = own["keys"][:, point], rows["position"], rows["d"]
            out["filter"] = own["filters" if operation == ADD else "old_filters"][:, point]
            out["position"] = rows["position" if operation == ADD else "supersedes"]
            out["n"] = rows["n" if operation == ADD else "old_n"]
            out["point"], out["operation"], out["type"] = point, operation, SEGMENT
            out["order"] = 2 * point + (operation == ADD)
            parts.append(out)
    return in_order(np.concatenate(parts))


def parse_changes(data: bytes, place: int) -> Rows:
    """The changes in the bytes of a postings record, which stands at the position `place`."""
    stored = np.frombuffer(data, dtype=STORED, offset=_HEADER)
    out = np.zeros(len(stored), dtype=CHANGE)
    word0 = stored["word0"]
    out["key"], out["filter"], out["position"] = word0 >> np.uint64(16), stored["filter"], stored["position"]
    out["n"] = (word0 >> np.uint64(10) & np.uint64(63)) + np.uint64(1)
    out["d"], out["point"] = word0 >> np.uint64(4) & np.uint64(63), word0 >> np.uint64(1) & np.uint64(7)
    out["odd"], out["reserved"] = word0 & np.uint64(1), stored["reserved"].any(axis=1)
    out["operation"], out["place"], out["type"] = stored["operation"], place, POSTINGS
    out["order"] = np.arange(len(stored))
    return out


def record_changes(log: Log) -> Rows:
    """The changes in the accepted postings records, in order."""
    parts = [np.zeros(0, dtype=CHANGE)]
    for row in log.rows[log.rows["type"] == POSTINGS]:
        file = log.file(int(row["position"]) >> 24)
        try:
            data = read_at(file.descriptor, int(row["length"]), offset_of(row)) if file else b""
        except DamagedError:
            continue  # reported where the file was walked
        if len(data) == int(row["length"]):
            parts.append(parse_changes(data, int(row["position"])))
    return np.concatenate(parts)


def in_order(changes: Rows) -> Rows:
    return changes[np.lexsort((changes["order"], changes["place"]))]


class Changes:
    """All that the accepted log says of posting lists: `segments` with their `facts`, and `all` changes in order."""

    def __init__(self, log: Log) -> None:
        self.segments = log.rows[log.rows["type"] == SEGMENT]
        self.facts = point_facts(log, self.segments)
        self.of_records = record_changes(log)
        self.all = in_order(np.concatenate([segment_changes(self.segments, self.facts), self.of_records]))
