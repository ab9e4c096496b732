"""Finding the state: newest checkpoint head, then the log behind its start (format-spec/recovery.md).

    survey the folder (head, headers, what is to be read) → scan the log's tail → accept

Nothing is written here, and no partition is read: opening costs the head and the tail, at any size of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._directory import Directory
from sarpstore._errors import CorruptionError
from sarpstore._io import together
from sarpstore._kernel import selected
from sarpstore._log.gather import LogEnd
from sarpstore._log.header import LogHeader, Shape
from sarpstore._log.removals import Removals
from sarpstore._log.scan import FileScan, PageScanner, scan_file, scan_summary
from sarpstore._recovery.accept import Accepted, Damage, accept
from sarpstore._recovery.facts import IS_FACT, Facts, read_facts
from sarpstore._recovery.survey import Part, Survey, survey

if TYPE_CHECKING:
    from sarpstore._checkpoint.head import CheckpointHead
    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler
    from sarpstore._options import Options, Progress

__all__ = ["Recovered", "read_log_changes", "recover"]

MakeDirectory = Callable[[Shape], Directory]

# Files that are scanned side by side, and from how many pages on a summary is looked for.
_FILES_AT_ONCE: Final = 16
# Changes that are accepted without a thread: about a millisecond.
_ACCEPT_ON_LOOP: Final = 16_384
_SUMMARY_PAGES_MIN: Final = 64


@dataclass(slots=True)
class Recovered:
    """What an open found."""

    shape: Shape
    directory: Directory
    """Its slots are set; entries are not."""
    head: CheckpointHead | None
    changes: npt.NDArray[Any]
    """Accepted changes of the directory behind the head's start, in order of position."""
    facts: Facts
    """Namespaces, and what was removed."""
    end: LogEnd
    unsynced_files: list[str]
    retired_before: list[int] = field(default_factory=list)
    """Numbers of log files that are there, and were retired before the head's checkpoint."""
    headers: list[LogHeader] = field(default_factory=list)
    """Of the files that the tail lies in, ascending."""
    damage: list[Damage] = field(default_factory=list)
    tail_bytes: int = 0
    """Bytes of log behind the head's start."""
    replayed_bytes: int = 0
    """What was read of them: records, or summaries."""


async def recover(
    folder: Folder, scheduler: Scheduler, options: Options, make_directory: MakeDirectory
) -> Recovered | None:
    """The state of the store in `folder`; None if the folder holds no store.

    MismatchError or VersionError where it must not be opened with these options or by this version.
    """
    seen = await scheduler.run(survey, folder)
    if seen is None:
        return None
    shape = seen.shape
    shape.check(options, folder.path)
    if not options.read_only:
        seen.check_writable()
    directory = make_directory(shape)
    slots = _slots(seen)
    for slot, number in slots.items():
        directory.base.add_slot(slot, number)
    scans = await _scan_parts(folder, scheduler, directory, seen, options.progress)
    # A long tail takes a while: not on the loop.
    long_tail = sum(len(scan.changes) for scan in scans) > _ACCEPT_ON_LOOP
    accepted = await scheduler.run(_accept, scans, seen) if long_tail else _accept(scans, seen)
    facts = await _facts(folder, scheduler, options, seen, accepted.changes)
    directory.base.attach(facts.removals)
    gone = facts.retired.intersection(seen.missing)
    for slot, number in slots.items():
        if number in gone:  # what an older checkpoint has of it is a miss, and no damage
            directory.base.drop_slot(slot)
    return Recovered(
        shape=shape,
        directory=directory,
        head=seen.head,
        changes=_directory_changes(accepted.changes),
        facts=facts,
        end=_log_end(seen, accepted, scans),
        unsynced_files=_unsynced_files(seen, accepted),
        retired_before=seen.retired_before(),
        headers=seen.headers,
        damage=seen.damage + _missing(seen, facts) + accepted.damage + facts.damage,
        tail_bytes=sum(part.end - part.begin for part in seen.parts),
        replayed_bytes=sum(scan.read_bytes for scan in scans),
    )


async def read_log_changes(
    folder: Folder, scheduler: Scheduler, found: Recovered, progress: Progress | None = None
) -> npt.NDArray[Any]:
    """All accepted changes of the log up to the recovered end: what rebuilds a partition without its image.

    The log brings back what was removed long ago, so its removals count again, too, until the next mark pass.
    """
    seen = await scheduler.run(survey, folder, found.end.position)
    if seen is None:
        raise CorruptionError(folder.path, None, "the log files are gone")
    scans = await _scan_parts(folder, scheduler, found.directory, seen, progress)
    changes = _accept(scans, seen).changes
    removals = found.facts.removals
    facts = Facts(Removals(removals.markers_max, 0, removals.holders_max))
    await scheduler.run(read_facts, folder, seen.shape.uuid, facts, changes)
    removals.take_back(facts.removals.marker_rows())
    return _directory_changes(changes)


async def _scan_parts(
    folder: Folder, scheduler: Scheduler, directory: Directory, seen: Survey, progress: Progress | None
) -> list[FileScan]:
    total = sum(part.end - part.begin for part in seen.parts)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    scans: list[FileScan] = []
    for i in range(0, len(seen.parts), _FILES_AT_ONCE):
        parts = seen.parts[i : i + _FILES_AT_ONCE]
        files = await scheduler.run(_open_all, folder, [fmt.log_name(part.header.file_number) for part in parts])
        try:
            scans += await together(
                *(
                    _scan_part(scheduler, file, directory, part, seen.synced, advance)
                    for file, part in zip(files, parts, strict=True)
                )
            )
        finally:
            await scheduler.run(_close_all, files)
    return scans


def _slots(seen: Survey) -> dict[int, int]:
    """The file number of each slot. CorruptionError where two files have the same one, which no writer gives them."""
    slots: dict[int, int] = {}
    for slot, number in seen.slots():
        if slots.setdefault(slot, number) != number:
            other = fmt.log_name(slots[slot])
            raise CorruptionError(fmt.log_name(number), 64, f"the header says slot {slot}, which is that of {other}")
    return slots


def _open_all(folder: Folder, names: list[str]) -> list[File]:
    files: list[File] = []
    try:
        files.extend(map(folder.open, names))
    except BaseException:
        _close_all(files)
        raise
    return files


def _close_all(files: list[File]) -> None:
    for file in files:
        file.close()


async def _scan_part(
    scheduler: Scheduler,
    file: File,
    directory: Directory,
    part: Part,
    synced: int,
    advance: Callable[[int], None],
) -> FileScan:
    number, shape = part.header.file_number, part.header.shape
    if part.end - part.begin > _SUMMARY_PAGES_MIN * fmt.PAGE:
        summary = await scan_summary(scheduler, file, shape, directory.base, number, part.end, synced=synced)
        if summary is not None:
            before = np.searchsorted(summary.changes["position"], np.uint64(fmt.position(number, part.begin)))
            summary.changes = summary.changes[int(before) :]
            advance(part.end - part.begin)
            return summary
    scanner = PageScanner(shape, directory.base, number, part.begin // fmt.PAGE, part.previous_commit)
    return await scan_file(scheduler, file, scanner, part.begin, part.end, advance)


def _accept(scans: list[FileScan], seen: Survey) -> Accepted:
    first = seen.parts[0]
    begin = fmt.position(first.header.file_number, first.begin)
    return accept(scans, begin=begin, commit=first.previous_commit, synced=seen.synced)


def _directory_changes(changes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kinds = changes["type"]
    wanted = (kinds == fmt.RECORD_SEGMENT) | (kinds == fmt.RECORD_POSTINGS)
    return changes if wanted.all() else selected(changes, wanted)


async def _facts(
    folder: Folder, scheduler: Scheduler, options: Options, seen: Survey, changes: npt.NDArray[Any]
) -> Facts:
    facts = Facts(Removals(options.markers_max, options.counts_max, options.holders_max))
    if seen.head is not None:
        try:
            facts.take_head(seen.head)
        except ValueError as error:
            raise CorruptionError(fmt.checkpoint_name(seen.head.number), None, str(error)) from None
    if IS_FACT[changes["type"]].any():
        await scheduler.run(read_facts, folder, seen.shape.uuid, facts, changes)
    return facts


def _missing(seen: Survey, facts: Facts) -> list[Damage]:
    """Files that should be there, and that nobody retired."""
    meaning = "the log file is gone, and was not retired"
    return [Damage(fmt.log_name(n), 0, meaning, True) for n in seen.missing if n not in facts.retired]


def _log_end(seen: Survey, accepted: Accepted, scans: list[FileScan]) -> LogEnd:
    sequences = [h.first_sequence for h in seen.headers] + [scan.sequence + 1 for scan in scans]
    if seen.head is not None:
        sequences.append(seen.head.sequence)
    return LogEnd(
        commit=accepted.commit,
        position=accepted.end,
        synced=min(accepted.synced, accepted.end),
        sequence=max(sequences),
        # No number is used twice, not even that of a file that is gone.
        file_number=max([*seen.numbers, *(n for _, n in seen.slots()), fmt.position_file(accepted.synced)]),
    )


def _unsynced_files(seen: Survey, accepted: Accepted) -> list[str]:
    """Names of the files that hold accepted commits behind the synced position."""
    if accepted.synced >= accepted.end:
        return []
    first, last = fmt.position_file(max(accepted.synced, 1 << fmt.UNIT_BITS)), fmt.position_file(accepted.end)
    return [fmt.log_name(n) for n in seen.numbers if first <= n <= last]
