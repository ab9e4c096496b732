"""What compaction has to know of the log files on the disk: their sizes, and where each ends.

A file that a crash cut short ends where the next file's header says; what follows there is void, and only that header
says so (format-spec/recovery.md, section 2). So such a file must go before the one that names its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from sarpstore import _format as fmt
from sarpstore._errors import CorruptionError, StorageError
from sarpstore._log.header import LogHeader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sarpstore._files import Folder

__all__ = ["LogFiles", "read_file_facts"]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Of one log file: bytes, and the end that its header names, of what came before; 0: its header is damaged."""

    bytes: int
    previous_end: int


@dataclass(slots=True)
class LogFiles:
    """The log files that are known to be on the disk, by number."""

    facts: dict[int, FileFacts] = field(default_factory=dict)

    def ends(self) -> dict[int, int]:
        """The offset behind each file's last accepted page; at most `LOG_HEADER_BYTES`: there is none."""
        out, lowest = {}, fmt.position(fmt.FILE_NUMBER_END, 0)
        for number in sorted(self.facts, reverse=True):
            facts = self.facts[number]
            if fmt.position_file(lowest) > number:
                out[number] = facts.bytes // fmt.PAGE * fmt.PAGE
            else:
                out[number] = fmt.position_offset(lowest) if fmt.position_file(lowest) == number else 0
            lowest = min(lowest, facts.previous_end or lowest)
        return out

    def before(self) -> dict[int, int]:
        """The file that must be deleted before each of those of which there is one."""
        ends, numbers = self.ends(), sorted(self.facts)
        return {number: lower for lower, number in pairwise(numbers) if ends[lower] != self.facts[lower].bytes}

    def previous(self) -> dict[int, int]:
        """The file that each file's header goes on from."""
        return {number: fmt.position_file(facts.previous_end) for number, facts in self.facts.items()}


def read_file_facts(folder: Folder, numbers: Iterable[int]) -> dict[int, FileFacts]:
    """The facts of these files; those that are not there are left out. Blocks: for a thread."""
    found = {}
    for number in numbers:
        name = fmt.log_name(number)
        try:
            file = folder.open(name)
        except StorageError:
            continue
        try:
            data = bytearray(fmt.LOG_HEADER_BYTES)
            file.read_into(0, data)
            found[number] = FileFacts(file.size(), _previous_end(bytes(data), name))
        finally:
            file.close()
    return found


def _previous_end(data: bytes, name: str) -> int:
    try:
        return LogHeader.decode(data, name).previous_end
    except CorruptionError:
        return 0
