"""A sealed file's summary against the records that it stands for (log.md, section 2.5; postings.md, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .faults import DamagedError
from .folder import log_name
from .log import POSTINGS, SEGMENT, Rows

if TYPE_CHECKING:
    from .changes import Changes
    from .faults import Faults

SUMMARY_ENTRY: Final = np.dtype(
    [("word0", "<u8"), ("word1", "<u8"), ("supersedes", "<u8"), ("units", "<u4"), ("reserved", "<u4")]
)
LIST_SUMMARY_ENTRY: Final = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("position", "<u8"), ("word3", "<u8")])
_UNITS: Final = np.uint64(0xFFFFFF)
_NO_ENTRY: Final = "the file's summary has no entry for this record"
_NO_RECORD: Final = "the file's summary has an entry for this place, where no sound record is"


def check_summary(said: bytes, rows: Rows, seal: Any, whole: bool, changes: Changes | None, faults: Faults) -> None:
    """Holds the bytes of the entries against the file's records; `changes` are not None under `sarp`.

    In a file that is not whole, entries of records that were found damaged stand alone.
    """
    if changes is None:
        _compare(np.frombuffer(said, dtype=SUMMARY_ENTRY), rows, seal, whole, faults)
    else:
        _compare_lists(np.frombuffer(said, dtype=LIST_SUMMARY_ENTRY), rows, seal, whole, changes, faults)


def _compare(said: Rows, rows: Rows, seal: Any, whole: bool, faults: Faults) -> None:
    """Entry by entry: one a record."""
    expected = summary_of(rows)
    number = int(seal["position"]) >> 24
    if (said["units"][1:] <= said["units"][:-1]).any():
        raise DamagedError("summary", "its summary's entries are not in ascending order of place")
    for units in np.setdiff1d(expected["units"], said["units"]).tolist():
        _report(faults, number, units, _NO_ENTRY)
    for units in np.setdiff1d(said["units"], expected["units"]).tolist() if whole else ():
        _report(faults, number, units, _NO_RECORD)
    _, ours, theirs = np.intersect1d(expected["units"], said["units"], return_indices=True)
    for name in ("word0", "word1", "supersedes"):
        for units in expected["units"][ours][expected[name][ours] != said[name][theirs]].tolist():
            _report(faults, number, units, f"the file's summary entry differs from the record ({name})")


def _report(faults: Faults, number: int, units: int, meaning: str) -> None:
    faults.corruption(log_name(number), units * 64, "summary", meaning)


def summary_of(rows: Rows) -> Rows:
    """The entries that a summary must have for these records (log.md, section 2.5)."""
    out = np.zeros(len(rows), dtype=SUMMARY_ENTRY)
    segment = (rows["type"] == SEGMENT).astype(np.uint64)
    n, d, dp, kind = (rows[name].astype(np.uint64) for name in ("n", "d", "dp", "type"))
    out["word0"] = (rows["key"] | n << np.uint64(48) | d << np.uint64(56)) * segment
    out["word1"] = (rows["root_key"] | dp << np.uint64(48)) * segment | kind << np.uint64(56)
    out["supersedes"] = rows["supersedes"] * segment
    out["units"] = rows["position"] & _UNITS
    return out


def _compare_lists(said: Rows, rows: Rows, seal: Any, whole: bool, changes: Changes, faults: Faults) -> None:
    """Record by record: one entry a change, in order."""
    number = int(seal["position"]) >> 24
    places = said["word3"] & _UNITS
    if (places[1:] < places[:-1]).any():
        raise DamagedError("summary", "its summary's entries are not in ascending order of place")
    expected = _by_place(list_summary_of(rows, changes))
    found = _by_place(said)
    for units in expected.keys() - found.keys():
        _report(faults, number, units, _NO_ENTRY)
    for units in found.keys() - expected.keys() if whole else ():
        _report(faults, number, units, _NO_RECORD)
    for units in expected.keys() & found.keys():
        if expected[units] != found[units]:
            _report(faults, number, units, "the file's summary entries differ from what the record says")


def _by_place(entries: Rows) -> dict[int, bytes]:
    """The entries' bytes by the units of their record."""
    out: dict[int, bytes] = {}
    size, data = entries.dtype.itemsize, entries.tobytes()
    for at, units in enumerate((entries["word3"] & _UNITS).tolist()):
        out[units] = out.get(units, b"") + data[size * at : size * at + size]
    return out


def list_summary_of(rows: Rows, changes: Changes) -> Rows:
    """The entries that a summary must have for these records under `sarp` (postings.md, section 4)."""
    own = changes.all[np.isin(changes.all["place"], rows["position"])]
    listed = np.zeros(len(own), dtype=LIST_SUMMARY_ENTRY)
    n, d, kind, point, operation = (own[name].astype(np.uint64) for name in ("n", "d", "type", "point", "operation"))
    listed["word0"] = own["key"] | n << np.uint64(48) | d << np.uint64(56)
    listed["word1"], listed["position"] = own["filter"], own["position"]
    listed["word3"] = (
        own["place"] & _UNITS | kind << np.uint64(24) | point << np.uint64(32) | operation << np.uint64(40)
    )
    others = rows[(rows["type"] != SEGMENT) & (rows["type"] != POSTINGS)]
    bare = np.frombuffer(summary_of(others).tobytes(), dtype=LIST_SUMMARY_ENTRY)
    out = np.concatenate([listed, bare])
    return out[np.argsort(out["word3"] & _UNITS, kind="stable")]
