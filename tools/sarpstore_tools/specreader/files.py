"""Opens a folder's log files, reads their headers, finds where each one's log ends (recovery.md, section 2)."""

from __future__ import annotations

import os
import resource
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .faults import DamagedError, Faults
from .folder import Folder, log_name, open_regular, read_at
from .structures import (
    FILE_NUMBER_END,
    LOG_BYTES_MAX,
    LOG_START,
    PAGE,
    LogHeader,
    Options,
    parse_header,
    place,
    position,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class LogFile:
    """A log file that is kept open. `end` (bytes) is where its log ends at the latest; `bounded` says that a later
    header named that end; `header` is None if none can be used."""

    number: int
    descriptor: int
    size: int
    header: LogHeader | None
    end: int = LOG_START
    bounded: bool = False

    @property
    def name(self) -> str:
        return log_name(self.number)

    @property
    def end_position(self) -> int:
        return position(self.number, self.end)


def open_logs(folder: Folder, faults: Faults) -> list[LogFile]:
    """All log files, opened before any is read, in ascending order; those that cannot be opened are reported."""
    _allow_many_files(len(folder.logs))
    opened: list[LogFile] = []
    for number in folder.logs:
        if not 0 < number < FILE_NUMBER_END:
            faults.corruption(log_name(number), 0, "number", "file numbers are 1 to 2^40 - 1")
            continue
        try:
            descriptor = open_regular(folder.path / log_name(number))
        except DamagedError as error:
            faults.corruption(log_name(number), 0, error.code, error.meaning)
            continue
        opened.append(LogFile(number, descriptor, os.fstat(descriptor).st_size, None))
    for file in opened:
        file.header = _header_of(file, faults)
    _compare_options(opened, faults)
    _set_ends(opened)
    return opened


def close_logs(files: Iterable[LogFile]) -> None:
    for file in files:
        os.close(file.descriptor)


def _allow_many_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _header_of(file: LogFile, faults: Faults) -> LogHeader | None:
    """The first valid copy; a copy that is not valid, or not equal to the other, is reported."""
    copies: list[bytes] = []
    headers: list[LogHeader] = []
    for offset in (0, PAGE):
        try:
            data = read_at(file.descriptor, PAGE, offset)
            headers.append(parse_header(data))
            copies.append(data)
        except DamagedError as error:
            faults.corruption(file.name, offset, f"header-{error.code}", error.meaning)
    if not headers:
        faults.corruption(file.name, 0, "header", "no valid header: the file cannot be used")
        return None
    if len(copies) == 2 and copies[0] != copies[1]:
        faults.corruption(file.name, PAGE, "header-copies", "the two valid header copies differ")
    header = headers[0]
    if header.file != file.number:
        faults.corruption(file.name, 56, "number", f"the header is that of log file {header.file}")
        return None
    if header.previous_end >= position(file.number, 0):
        faults.corruption(file.name, 80, "previous-end", f"names an end before it at {shown(header.previous_end)}")
        return None
    if file.size > LOG_BYTES_MAX:
        faults.corruption(
            file.name, LOG_BYTES_MAX, "size", f"{file.size} bytes, a log file has at most {LOG_BYTES_MAX}"
        )
    return header


def _compare_options(files: list[LogFile], faults: Faults) -> None:
    """Files whose uuid or options are not those of most files are reported and not used; slots are given once."""
    counts: Counter[Options] = Counter(file.header.options for file in files if file.header)
    if not counts:
        return
    options = counts.most_common(1)[0][0]
    slots: dict[int, str] = {}
    for file in files:
        if file.header is None:
            continue
        if file.header.options != options:
            what = "uuid" if file.header.options.uuid != options.uuid else "options"
            faults.corruption(file.name, 40, what, f"{what} differ from those of the store's other files")
            file.header = None
            continue
        other = slots.setdefault(file.header.slot, file.name)
        if other != file.name:
            faults.corruption(file.name, 64, "slot", f"slot {file.header.slot} is also that of {other}")


def _set_ends(files: list[LogFile]) -> None:
    """A file's log ends at the lowest end that a later header names, if that is not behind it; else with the file."""
    earliest: int | None = None
    for file in reversed(files):
        file.end = max(LOG_START, min(file.size, LOG_BYTES_MAX) // PAGE * PAGE)
        if earliest is not None:
            named, offset = place(earliest)
            if named < file.number:
                file.end, file.bounded = LOG_START, True
            elif named == file.number:
                file.end, file.bounded = max(LOG_START, offset), True
        if file.header is not None:
            end = file.header.previous_end
            earliest = end if earliest is None else min(earliest, end)
