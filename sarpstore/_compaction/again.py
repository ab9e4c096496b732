"""Which records beside segments are written again when their file is compacted (format-spec/removal.md, 5). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore import _format as fmt
from sarpstore._log.commits import count_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import numpy.typing as npt

    from sarpstore._log.removals import Removals

__all__ = ["Context", "written_again"]

_U32_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Context:
    """What decides, beside what is remembered at the moment at which a record is written again."""

    removals: Removals | None
    """None: nothing is known, everything is needed."""
    floor: int
    """Removals up to here kill nothing that is in another file."""
    files: Collection[int]
    """Numbers of the log files that will be left."""
    number: int
    """The file that is compacted."""
    previous: Mapping[int, int]
    """Of those of them whose header is known, the file that it goes on from."""
    may_be_named: Callable[[int], bool]
    """Whether a kept checkpoint may name that file, which is deleted."""

    @property
    def oldest(self) -> int:
        """The lowest number of the log files that will be left; a higher one than the file's if none will be."""
        return min(self.files, default=self.number + 1)


def written_again(record: memoryview, kind: int, context: Context) -> bytes | None:
    """The record to write, whose sequence, commit and checksums are not valid any more; None if it is dead."""
    match kind:
        case fmt.RECORD_NAMESPACE:
            return bytes(record)
        case fmt.RECORD_CLEAR_HOLDER:
            return bytes(record) if _clear_needed(record, context) else None
        case fmt.RECORD_REMOVE:
            _, _, effect = _removal_fields(record)
            return bytes(record) if effect > context.floor else None
        case fmt.RECORD_COUNT:
            return _remembered(record, context)
        case fmt.RECORD_RETIRE_FILE:
            return bytes(record) if _retirement_needed(record, context) else None
    raise AssertionError(f"a record of type {kind} is nobody's to write again")


def _removal_fields(record: memoryview) -> tuple[int, int, int]:
    """(holder, namespace, effect)."""
    holder, name_space, effect = fmt.REMOVAL_FIELDS.unpack_from(record, fmt.RECORD.size)
    return holder, name_space, effect


def _clear_needed(record: memoryview, context: Context) -> bool:
    """It is the holder's epoch. Effect 0 (the holder is there) is the epoch of one that was never cleared."""
    holder, _, effect = _removal_fields(record)
    return context.removals is None or context.removals.holders.get(holder) == effect


def _remembered(record: memoryview, context: Context) -> bytes | None:
    """The counts that are still what is remembered, and those that say that nothing is, while a file is left that may
    say more: one that is not newer than the file in which they stood first.
    """
    if context.removals is None:
        return bytes(record)
    holder, name_space, _ = _removal_fields(record)
    body = record[fmt.RECORD.size + fmt.REMOVAL_FIELDS.size :]
    entries: npt.NDArray[Any] = np.frombuffer(body, fmt.COUNT_ENTRY_DTYPE)
    ids = np.frombuffer(entries["id"].tobytes(), np.uint8).reshape(-1, fmt.ID_BYTES)
    known = context.removals.get_counts(ids, holder, name_space)
    first = np.where(entries["forgotten"] > 0, entries["forgotten"], np.uint32(min(context.number, _U32_MAX)))
    stays = (entries["count"] <= 1) & (known <= 1) & ((first >= context.oldest) | (first == _U32_MAX))
    said = entries.copy()
    said["forgotten"] = np.where(stays, first, 0)
    kept = said[((said["count"] == known) & (known > 1)) | stays]
    return count_record(holder, name_space, kept) if len(kept) else None


def _retirement_needed(record: memoryview, context: Context) -> bool:
    """A reader that goes through the files that are left, or begins with an older checkpoint, would miss the one that
    it names.
    """
    (named,) = fmt.RETIRE_FIELDS.unpack_from(record, fmt.RECORD.size)
    return context.may_be_named(named) or any(
        number < named or context.previous.get(number) == named for number in context.files
    )
