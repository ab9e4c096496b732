"""`kernels/format.h` and `sarpstore/_format.py` define the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

from sarpstore import _format as fmt

HEADER = (Path(__file__).resolve().parents[2] / "kernels" / "format.h").read_text()
C = {name: int(value) for name, value in re.findall(r"^\s*(SARP_\w+) = (\d+)", HEADER, re.MULTILINE)}


def test_sizes_and_record_types_agree() -> None:
    pairs = {
        "SARP_UNIT": fmt.UNIT,
        "SARP_PAGE": fmt.PAGE,
        "SARP_PAGE_UNITS": fmt.PAGE_UNITS,
        "SARP_WINDOW": fmt.WINDOW,
        "SARP_ID": fmt.ID_BYTES,
        "SARP_LOG_HEADER": fmt.LOG_HEADER_BYTES,
        "SARP_SEGMENT": fmt.RECORD_SEGMENT,
        "SARP_REMOVE": fmt.RECORD_REMOVE,
        "SARP_CLEAR_HOLDER": fmt.RECORD_CLEAR_HOLDER,
        "SARP_NAMESPACE": fmt.RECORD_NAMESPACE,
        "SARP_COMMIT": fmt.RECORD_COMMIT,
        "SARP_RETIRE_FILE": fmt.RECORD_RETIRE_FILE,
        "SARP_SEAL": fmt.RECORD_SEAL,
        "SARP_SUMMARY": fmt.RECORD_SUMMARY,
        "SARP_CHUNK_PAYLOAD": fmt.RECORD_CHUNK_PAYLOAD,
        "SARP_POSTINGS": fmt.RECORD_POSTINGS,
        "SARP_COUNT": fmt.RECORD_COUNT,
        "SARP_FLAG_COPY": fmt.FLAG_COPY,
        "SARP_REMOVE_IDS_MAX": fmt.REMOVE_IDS_MAX,
        "SARP_COUNT_ENTRIES_MAX": fmt.COUNT_ENTRIES_MAX,
        "SARP_COUNT_ENTRY": fmt.COUNT_ENTRY_DTYPE.itemsize,
        "SARP_ROUTING_DIVERGENCE": fmt.ROUTINGS.index("divergence"),
        "SARP_ROUTING_SARP": fmt.ROUTINGS.index("sarp"),
        "SARP_FLAG_IGNORABLE": fmt.FLAG_IGNORABLE,
        "SARP_COMMIT_MARK": fmt.COMMIT_MARK,
        "SARP_COMMIT_CLOSED": fmt.COMMIT_CLOSED,
        "SARP_SEGMENT_HEADER": fmt.SEGMENT_HEADER_BYTES,
        "SARP_SUMMARY_HEADER": fmt.SUMMARY_HEADER_BYTES,
        "SARP_SUMMARY_ENTRY": fmt.SUMMARY_DTYPE.itemsize,
        "SARP_SUMMARY_ENTRIES_MAX": fmt.SUMMARY_ENTRIES_MAX,
    }
    assert {name: C[name] for name in pairs} == pairs


def test_record_fields_stand_where_the_structures_say() -> None:
    # RECORD: header crc, body crc, length, type, flags, n, d, dp, header units, sequence, commit
    data = fmt.RECORD.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    fields = {
        "HEADER_CRC": (1, 4), "BODY_CRC": (2, 4), "LENGTH": (3, 2), "TYPE": (4, 1), "FLAGS": (5, 1), "N": (6, 1),
        "D": (7, 1), "DP": (8, 1), "HEADER_UNITS": (9, 1), "SEQUENCE": (10, 8), "COMMIT": (11, 8),
    }  # fmt: skip
    for name, (value, size) in fields.items():
        at = C[f"SARP_AT_{name}"]
        assert int.from_bytes(data[at : at + size], "little") == value, name
    commit = bytes(32) + fmt.COMMIT_FIELDS.pack(1, 2, 3, 4, 5)
    for value, (name, size) in enumerate(
        [("PAGES", 4), ("RECORDS", 4), ("CHECKSUM", 4), ("FLAGS", 4), ("SYNCED", 8)], start=1
    ):
        at = C[f"SARP_AT_COMMIT_{name}"]
        assert int.from_bytes(commit[at : at + size], "little") == value, name
    seal = bytes(32) + fmt.SEAL_FIELDS.pack(1, 2, 3)
    for value, (name, size) in enumerate([("SUMMARIES", 4), ("ENTRIES", 4), ("FIRST", 8)], start=1):
        at = C[f"SARP_AT_SEAL_{name}"]
        assert int.from_bytes(seal[at : at + size], "little") == value, name


def test_a_full_default_segment_is_half_a_page() -> None:
    import sarpstore

    assert fmt.SEGMENT_HEADER_BYTES + 64 * (16 + sarpstore.LOCATION.itemsize) == fmt.PAGE // 2
    assert fmt.SEGMENT_HEADER_BYTES + 64 * (16 + fmt.LOCATION_BYTES_MAX) == fmt.PAGE
