"""Compaction: what sealed log files still have that is live moves to the log's end, and the files are deleted."""

from sarpstore._compaction.compactor import Compactor
from sarpstore._compaction.ledger import FileLedger
from sarpstore._compaction.policy import (
    AT_REST,
    FILE_BYTES,
    SETTLING,
    UNDER_PRESSURE,
    Choice,
    Eagerness,
    FileRow,
    choose,
    few_removals,
    settled,
    together,
)

__all__ = [
    "AT_REST",
    "FILE_BYTES",
    "SETTLING",
    "UNDER_PRESSURE",
    "Choice",
    "Compactor",
    "Eagerness",
    "FileLedger",
    "FileRow",
    "choose",
    "few_removals",
    "settled",
    "together",
]
