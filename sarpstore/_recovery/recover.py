"""Finding the state: newest checkpoint head, then the log behind its start (format-spec/recovery.md).

    list the folder → newest valid head → newest log header (the store's shape) → scan the tail → accept

Nothing is written here, and no partition is read: opening costs the head and the tail, at any size of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._checkpoint.head import CheckpointHead, NamespaceEntry
from sarpstore._directory import DivergenceDirectory
from sarpstore._errors import CorruptionError, NotAStoreError, StorageError
from sarpstore._files import read_whole
from sarpstore._log.gather import LogEnd
from sarpstore._log.header import LogHeader, Shape, check_writable
from sarpstore._log.scan import FileScan, PageScanner, scan_file, scan_summary
from sarpstore._recovery.accept import Accepted, Damage, accept

if TYPE_CHECKING:
    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler
    from sarpstore._options import Options, Progress

__all__ = ["Recovered", "holds_store", "read_log_changes", "recover"]

MakeDirectory = Callable[[Shape], DivergenceDirectory]

_NO_HEAD: Final = CheckpointHead(b"", 0, 0, 0, 0, 1)


@dataclass(slots=True)
class Recovered:
    """What an open found."""

    shape: Shape
    directory: DivergenceDirectory
    """Its slots are set; entries are not."""
    head: CheckpointHead | None
    changes: npt.NDArray[Any]
    """Accepted segment records behind the head's start, in order of position."""
    namespaces: dict[int, NamespaceEntry]
    end: LogEnd
    unsynced_files: list[str]
    damage: list[Damage] = field(default_factory=list)
    tail_bytes: int = 0
    """Bytes of log behind the head's start."""
    replayed_bytes: int = 0
    """What was read of them: records, or summaries."""
    clean: bool = False
    """The last process closed the store in order."""


@dataclass(slots=True)
class _Part:
    """The part of a log file that is to be scanned."""

    header: LogHeader
    begin: int
    end: int
    """Bytes; behind the end everything is void."""
    previous_commit: int


def holds_store(names: list[str]) -> bool:
    """Whether a folder with these names is a store, whole or damaged."""
    return bool(fmt.numbered(names, fmt.LOG_SUFFIX) or fmt.numbered(names, fmt.CHECKPOINT_SUFFIX))


async def recover(
    folder: Folder, scheduler: Scheduler, options: Options, make_directory: MakeDirectory
) -> Recovered | None:
    """The state of the store in `folder`; None if the folder holds no store.

    MismatchError or VersionError where it must not be opened with these options or by this version.
    """
    names = await scheduler.run(folder.names)
    numbers = fmt.numbered(names, fmt.LOG_SUFFIX)
    heads = fmt.numbered(names, fmt.CHECKPOINT_SUFFIX)
    if not numbers:
        if not heads:
            return None
        raise CorruptionError(fmt.checkpoint_name(heads[-1]), None, "the log files that it belongs to are gone")
    damage: list[Damage] = []
    head = await scheduler.run(_newest_head, folder, heads, damage)
    headers = await scheduler.run(_read_headers, folder, numbers, head, damage)
    if not headers:
        raise CorruptionError(damage[-1].file, damage[-1].offset, damage[-1].meaning)
    damage += await scheduler.run(_missing, folder, numbers, headers, head)
    shape = headers[-1].shape
    shape.check(options, folder.path)
    _check_uuids(folder, headers, head)
    if not options.read_only:
        for header in headers:
            check_writable(fmt.log_name(header.file_number), header.read_only_features)
        if head is not None:
            check_writable(fmt.checkpoint_name(head.number), head.read_only_features)
    directory = make_directory(shape)
    for slot, number in (*(head or _NO_HEAD).slots.items(), *((h.slot, h.file_number) for h in headers)):
        directory.add_slot(slot, number)
    parts = await scheduler.run(_parts, folder, headers, head)
    scans = await _scan_parts(folder, scheduler, shape, directory, parts, (head or _NO_HEAD).synced, options.progress)
    accepted = _accept(scans, parts, head)
    found = await _finish(folder, scheduler, headers, head, accepted, scans, numbers, directory)
    found.damage = damage + accepted.damage
    found.tail_bytes = sum(part.end - part.begin for part in parts)
    found.replayed_bytes = sum(scan.read_bytes for scan in scans)
    return found


async def read_log_changes(
    folder: Folder, scheduler: Scheduler, found: Recovered, progress: Progress | None = None
) -> npt.NDArray[Any]:
    """All accepted segment records of the log up to the recovered end: what rebuilds a partition without its image."""
    names = await scheduler.run(folder.names)
    numbers = [n for n in fmt.numbered(names, fmt.LOG_SUFFIX) if n <= fmt.position_file(found.end.position)]
    headers = await scheduler.run(_read_headers, folder, numbers, None, [])
    parts = await scheduler.run(_parts, folder, headers, None)
    for part in parts:
        if part.header.file_number == fmt.position_file(found.end.position):
            part.end = min(part.end, fmt.position_offset(found.end.position))
    scans = await _scan_parts(folder, scheduler, found.shape, found.directory, parts, found.end.synced, progress)
    accepted = _accept(scans, parts, None)
    return _segments(accepted.changes)


def _newest_head(folder: Folder, heads: list[int], damage: list[Damage]) -> CheckpointHead | None:
    for number in reversed(heads):
        name = fmt.checkpoint_name(number)
        try:
            return CheckpointHead.decode(read_whole(folder, name), name, number)
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
            headers.append(_read_header(folder, name))
        except (CorruptionError, StorageError) as error:
            damage.append(_damage_of(error, name))
    return headers[::-1]


def _read_header(folder: Folder, name: str) -> LogHeader:
    file = folder.open(name)
    try:
        data = bytearray(fmt.LOG_HEADER_BYTES)
        return LogHeader.decode(bytes(data[: file.read_into(0, data)]), name)
    finally:
        file.close()


def _missing(folder: Folder, numbers: list[int], headers: list[LogHeader], head: CheckpointHead | None) -> list[Damage]:
    """Files that are gone, or shorter than what was synced: no crash does that."""
    ends = {fmt.position_file(h.previous_end): fmt.position_offset(h.previous_end) for h in headers}
    if head is not None:
        at = fmt.position_file(head.synced)
        ends[at] = max(ends.get(at, 0), fmt.position_offset(head.synced))
        ends = dict.fromkeys(head.slots.values(), 0) | ends
    out = []
    for number, end in sorted(ends.items()):
        name = fmt.log_name(number)
        if number and number not in numbers:
            out.append(Damage(name, 0, "the log file is gone, and was not retired", True))
        elif number and end and (size := _size(folder, name)) < end:
            out.append(Damage(name, size, f"the log file ends here, but was synced up to byte {end:,}", True))
    return out


def _size(folder: Folder, name: str) -> int:
    file = folder.open(name)
    try:
        return file.size()
    finally:
        file.close()


def _check_uuids(folder: Folder, headers: list[LogHeader], head: CheckpointHead | None) -> None:
    shape = headers[-1].shape
    for header in headers:
        if header.shape != shape:
            name = fmt.log_name(header.file_number)
            raise NotAStoreError(
                f"{folder.path}: {name} belongs to another store, or has other options, than the newest file"
            )
    if head is not None and head.uuid != shape.uuid:
        raise NotAStoreError(f"{folder.path}: {fmt.checkpoint_name(head.number)} belongs to another store than the log")


def _parts(folder: Folder, headers: list[LogHeader], head: CheckpointHead | None) -> list[_Part]:
    parts = []
    for i, header in enumerate(headers):
        number = header.file_number
        end = _size(folder, fmt.log_name(number)) // fmt.PAGE * fmt.PAGE
        named = min((later.previous_end for later in headers[i + 1 :]), default=fmt.position(number + 1, 0))
        if fmt.position_file(named) <= number:
            end = min(end, fmt.position_offset(named) if fmt.position_file(named) == number else 0)
        begin, commit = fmt.LOG_HEADER_BYTES, header.previous_commit
        if head is not None and fmt.position_file(head.start) == number:
            begin, commit = fmt.position_offset(head.start), head.commit
        elif head is not None and fmt.position_file(head.start) > number:
            # The start's file is gone, which is reported as damage: what is left ends before it.
            begin, commit = end, head.commit
        parts.append(_Part(header, begin, max(begin, end), commit))
    return parts


async def _scan_parts(
    folder: Folder,
    scheduler: Scheduler,
    shape: Shape,
    directory: DivergenceDirectory,
    parts: list[_Part],
    synced: int,
    progress: Progress | None,
) -> list[FileScan]:
    total = sum(part.end - part.begin for part in parts)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    scans = []
    synced = max([synced, *(part.header.previous_end for part in parts)])
    for part in parts:
        file = await scheduler.run(folder.open, fmt.log_name(part.header.file_number))
        try:
            scans.append(await _scan_part(scheduler, file, shape, directory, part, synced, advance))
        finally:
            await scheduler.run(file.close)
    return scans


async def _scan_part(
    scheduler: Scheduler,
    file: File,
    shape: Shape,
    directory: DivergenceDirectory,
    part: _Part,
    synced: int,
    advance: Callable[[int], None],
) -> FileScan:
    number = part.header.file_number
    if part.end - part.begin > 16 * fmt.PAGE:
        summary = await scan_summary(scheduler, file, shape, directory.c, number, part.end, synced=synced)
        if summary is not None:
            summary.changes = summary.changes[summary.changes["position"] >= fmt.position(number, part.begin)]
            advance(part.end - part.begin)
            return summary
    scanner = PageScanner(shape, directory.c, number, part.begin // fmt.PAGE, part.previous_commit)
    return await scan_file(scheduler, file, scanner, part.begin, part.end, advance)


def _accept(scans: list[FileScan], parts: list[_Part], head: CheckpointHead | None) -> Accepted:
    synced = max([(head or _NO_HEAD).synced, *(part.header.previous_end for part in parts)])
    begin = fmt.position(parts[0].header.file_number, parts[0].begin)
    return accept(scans, begin=begin, commit=parts[0].previous_commit, synced=synced)


def _segments(changes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(changes[changes["type"] == fmt.RECORD_SEGMENT])


async def _finish(
    folder: Folder,
    scheduler: Scheduler,
    headers: list[LogHeader],
    head: CheckpointHead | None,
    accepted: Accepted,
    scans: list[FileScan],
    numbers: list[int],
    directory: DivergenceDirectory,
) -> Recovered:
    changes = accepted.changes
    namespaces = {entry.name_space: entry for entry in (head or _NO_HEAD).namespaces}
    places = changes[changes["type"] == fmt.RECORD_NAMESPACE]["position"].tolist()
    shape = headers[-1].shape
    for at in places:
        entry = await scheduler.run(_read_namespace, folder, shape, directory, at)
        if entry is not None:
            namespaces[entry.name_space] = entry
    sequences = [(head or _NO_HEAD).sequence, *(h.first_sequence for h in headers), *(s.sequence + 1 for s in scans)]
    end = LogEnd(
        commit=accepted.commit,
        position=accepted.end,
        synced=min(accepted.synced, accepted.end),
        sequence=max(sequences),
        # No number is used twice, not even that of a file that is gone.
        file_number=max([*numbers, *(head or _NO_HEAD).slots.values(), fmt.position_file(accepted.synced)]),
        slot=int(directory.c.slot_count),
    )
    last = scans[-1].commits[-1:]
    clean = bool((last["end"] == accepted.end).any() and (last["flags"] >> 8 & fmt.COMMIT_CLOSED).any())
    unsynced = range(fmt.position_file(max(end.synced, 1 << fmt.UNIT_BITS)), fmt.position_file(end.position) + 1)
    return Recovered(
        shape=shape,
        directory=directory,
        head=head,
        changes=_segments(changes),
        namespaces=namespaces,
        end=end,
        unsynced_files=[fmt.log_name(n) for n in unsynced if n in numbers] if end.synced < end.position else [],
        clean=clean,
    )


def _read_namespace(folder: Folder, shape: Shape, directory: DivergenceDirectory, at: int) -> NamespaceEntry | None:
    """The namespace record at a position; None if it is damaged: then it is written anew when the namespace is used."""
    number, offset = fmt.position_file(at), fmt.position_offset(at)
    page = bytearray(fmt.PAGE)
    try:
        file = folder.open(fmt.log_name(number))
        try:
            file.read_into(offset // fmt.PAGE * fmt.PAGE, page)
        finally:
            file.close()
    except StorageError:
        return None
    scanner = PageScanner(shape, directory.c, number, offset // fmt.PAGE, 0)
    scanner.feed(memoryview(page))
    valid = scanner.result().changes
    if not ((valid["position"] == at) & (valid["type"] == fmt.RECORD_NAMESPACE)).any():
        return None
    data = memoryview(page)[offset % fmt.PAGE :]
    key_bytes, name, adapter, name_space = fmt.NAMESPACE_FIELDS.unpack_from(data, fmt.RECORD.size)
    text = bytes(data[fmt.NAMESPACE_HEADER_BYTES : fmt.NAMESPACE_HEADER_BYTES + name + adapter])
    return NamespaceEntry(name_space, key_bytes, text[:name].decode(), text[name:].decode())
