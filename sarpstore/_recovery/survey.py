"""Looking at a folder: the newest checkpoint head, the log headers, and which parts of which files are to be read.

All of it is a few small reads, made in one go on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt
from sarpstore._checkpoint.head import CheckpointHead
from sarpstore._errors import CorruptionError, NotAStoreError, StorageError
from sarpstore._files import read_whole
from sarpstore._log.header import LogHeader, Shape, check_writable
from sarpstore._recovery.accept import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sarpstore._files import Folder

__all__ = ["Part", "Survey", "holds_store", "read_header", "survey"]

# Of 2^20 partitions, all slots and 10^6 namespaces: more than any head of this version has.
_HEAD_BYTES_MAX: Final = 1 << 28


@dataclass(slots=True)
class Part:
    """The part of a log file that is to be scanned."""

    header: LogHeader
    begin: int
    end: int
    """Bytes; behind the end everything is void."""
    previous_commit: int


@dataclass(slots=True)
class Survey:
    """What a folder holds, as far as its heads and headers say."""

    numbers: list[int]
    """Of the log files, ascending."""
    head: CheckpointHead | None
    headers: list[LogHeader]
    """Of the files that the tail lies in, ascending; at least one."""
    parts: list[Part]
    damage: list[Damage]
    missing: list[int]
    """Numbers of log files that are named, and not there: retired, or lost."""

    @property
    def shape(self) -> Shape:
        return self.headers[-1].shape

    @property
    def synced(self) -> int:
        """Everything before this position is synced, by what heads and headers say."""
        named = max(header.previous_end for header in self.headers)
        return max(named, self.head.synced if self.head else 0)

    def slots(self) -> Iterator[tuple[int, int]]:
        """(slot, file number) of all files that are known."""
        if self.head is not None:
            yield from self.head.slots.items()
        for header in self.headers:
            yield header.slot, header.file_number

    def retired_before(self) -> list[int]:
        """Numbers of log files that are there, but were retired before the checkpoint: it has no slot for them."""
        if self.head is None:
            return []
        known, first = set(self.head.slots.values()), fmt.position_file(self.head.start)
        return [number for number in self.numbers if number < first and number not in known]

    def check_writable(self) -> None:
        """VersionError if a file has features that forbid this version to write."""
        for header in self.headers:
            check_writable(fmt.log_name(header.file_number), header.read_only_features)
        if self.head is not None:
            check_writable(fmt.checkpoint_name(self.head.number), self.head.read_only_features)


def holds_store(names: list[str]) -> bool:
    """Whether a folder with these names is a store, whole or damaged."""
    return bool(fmt.numbered(names, fmt.LOG_SUFFIX) or fmt.numbered(names, fmt.CHECKPOINT_SUFFIX))


def survey(folder: Folder, end: int | None = None) -> Survey | None:
    """Look at the folder; None if it holds no store. CorruptionError if nothing in it can be relied on.

    With `end`, a position in the log: the whole log up to there, as if there were no checkpoint.
    """
    names = folder.names()
    numbers = fmt.numbered(names, fmt.LOG_SUFFIX)
    heads = fmt.numbered(names, fmt.CHECKPOINT_SUFFIX)
    if not numbers:
        if not heads:
            return None
        raise CorruptionError(fmt.checkpoint_name(heads[-1]), None, "the log files that it belongs to are gone")
    damage: list[Damage] = []
    head = None
    if end is None:
        head = _newest_head(folder, heads, damage)
    else:
        numbers = [n for n in numbers if n <= fmt.position_file(end)]
    headers = _read_headers(folder, numbers, head, damage)
    if not headers:
        raise CorruptionError(damage[-1].file, damage[-1].offset, damage[-1].meaning)
    _check_uuids(folder, headers, head)
    damage += _cut_short(folder, numbers, headers, head)
    parts = _parts(folder, headers, head)
    if end is not None and parts[-1].header.file_number == fmt.position_file(end):
        parts[-1].end = min(parts[-1].end, fmt.position_offset(end))
    return Survey(numbers, head, headers, parts, damage, _missing(numbers, headers, head))


def _newest_head(folder: Folder, heads: list[int], damage: list[Damage]) -> CheckpointHead | None:
    for number in reversed(heads):
        name = fmt.checkpoint_name(number)
        try:
            return CheckpointHead.decode(read_whole(folder, name, _HEAD_BYTES_MAX), name, number)
        except (CorruptionError, StorageError) as error:
            damage.append(_damage_of(error, name))
    return None


def _damage_of(error: CorruptionError | StorageError, name: str) -> Damage:
    if isinstance(error, CorruptionError):
        return Damage(error.file, error.offset or 0, error.meaning, True)
    return Damage(name, 0, str(error), True)


def _read_headers(
    folder: Folder, numbers: list[int], head: CheckpointHead | None, damage: list[Damage]
) -> list[LogHeader]:
    """Headers of the files that the tail lies in, ascending; of an older file if none of those is valid."""
    first = fmt.position_file(head.start) if head else 0
    headers: list[LogHeader] = []
    for number in reversed(numbers):
        if number < first and headers:
            break
        name = fmt.log_name(number)
        try:
            headers.append(read_header(folder, name))
        except CorruptionError as error:
            # An error of the system is not damage: it may be gone the next time, and what is left out here is lost.
            damage.append(_damage_of(error, name))
    return headers[::-1]


def read_header(folder: Folder, name: str) -> LogHeader:
    """A log file's header. CorruptionError where neither of its copies is valid."""
    file = folder.open(name)
    try:
        data = bytearray(fmt.LOG_HEADER_BYTES)
        try:
            read = file.read_into(0, data)
        except StorageError:
            # Perhaps one of the two copies can be read.
            pages = memoryview(data)
            read = fmt.PAGE + file.read_into(fmt.PAGE, pages[fmt.PAGE :])
        return LogHeader.decode(bytes(data[:read]), name)
    finally:
        file.close()


def _named_ends(headers: list[LogHeader], head: CheckpointHead | None) -> dict[int, int]:
    """How many bytes of each log file were synced, as far as later headers and the head say."""
    ends = {fmt.position_file(h.previous_end): fmt.position_offset(h.previous_end) for h in headers}
    if head is not None:
        at = fmt.position_file(head.synced)
        ends[at] = max(ends.get(at, 0), fmt.position_offset(head.synced))
    ends.pop(0, None)
    return ends


def _cut_short(
    folder: Folder, numbers: list[int], headers: list[LogHeader], head: CheckpointHead | None
) -> list[Damage]:
    """Files that are shorter than what was synced: no crash does that."""
    out = []
    for number, end in sorted(_named_ends(headers, head).items()):
        name = fmt.log_name(number)
        if number in numbers and end and (size := folder.size(name)) < end:
            out.append(Damage(name, size, f"the log file ends here, but was synced up to byte {end:,}", True))
    return out


def _missing(numbers: list[int], headers: list[LogHeader], head: CheckpointHead | None) -> list[int]:
    """Files that the head has slots for, or that a header goes on from, and that are not there.

    A file before the head's start that the head has no slot for was retired before the checkpoint.
    """
    lowest = fmt.position_file(head.start) if head else 0
    named = {number for number in _named_ends(headers, head) if number >= lowest}
    return sorted((named | set(head.slots.values() if head else ())) - set(numbers))


def _check_uuids(folder: Folder, headers: list[LogHeader], head: CheckpointHead | None) -> None:
    shape = headers[-1].shape
    for header in headers:
        if header.shape != shape:
            name = fmt.log_name(header.file_number)
            raise NotAStoreError(
                f"{folder.path}: {name} belongs to another store, or has other options, than the newest file"
            )
    if head is not None and fmt.ROUTINGS[head.routing : head.routing + 1] != (shape.routing,):
        name = fmt.checkpoint_name(head.number)
        raise CorruptionError(name, 139, f"the head is of routing {head.routing}, the log's is {shape.routing!r}")
    if head is not None and head.uuid != shape.uuid:
        raise NotAStoreError(f"{folder.path}: {fmt.checkpoint_name(head.number)} belongs to another store than the log")


def _parts(folder: Folder, headers: list[LogHeader], head: CheckpointHead | None) -> list[Part]:
    """What is to be scanned of each file: from the head's start, or from its first commit, to its end."""
    parts = []
    for i, header in enumerate(headers):
        number = header.file_number
        end = min(folder.size(fmt.log_name(number)), fmt.LOG_FILE_BYTES_MAX) // fmt.PAGE * fmt.PAGE
        named = min((later.previous_end for later in headers[i + 1 :]), default=fmt.position(number + 1, 0))
        if fmt.position_file(named) <= number:
            end = min(end, fmt.position_offset(named) if fmt.position_file(named) == number else 0)
        begin, commit = fmt.LOG_HEADER_BYTES, header.previous_commit
        if head is not None and fmt.position_file(head.start) == number:
            begin, commit = fmt.position_offset(head.start), head.commit
        elif head is not None and fmt.position_file(head.start) > number:
            # The start's file is gone, which is reported as damage: what is left ends before it.
            begin, commit = end, head.commit
        parts.append(Part(header, begin, max(begin, end), commit))
    return parts
