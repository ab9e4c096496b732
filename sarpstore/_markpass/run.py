"""One mark pass, from the position that it takes to the last sweep."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from sarpstore import _format as fmt
from sarpstore._clock import monotonic_ms
from sarpstore._errors import StorageError
from sarpstore._markpass.plan import Plan, make_plan
from sarpstore._markpass.rows import FileSeen, RowReader
from sarpstore._markpass.states import drop_states
from sarpstore._markpass.sweep import FreshMasks, sweep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import numpy.typing as npt

    from sarpstore._directory import Directory
    from sarpstore._files import Folder
    from sarpstore._io import Scheduler
    from sarpstore._log.gather import Gatherer
    from sarpstore._log.header import Shape
    from sarpstore._log.removals import Removals
    from sarpstore._log.writer import LogWriter

__all__ = ["MarkPass", "PassResult"]

_FILES_AT_ONCE: Final = 1024  # that are compared with what the plan counted: some 0.3 ms


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a finished pass did."""

    position: int
    """No entry is dead by a removal up to here any more."""
    dropped: int
    cut: int
    unreadable: int
    """Entries whose record could not be read; among the dropped."""
    rows: int
    """Records that entries named."""
    seconds: float
    masks_cleared: bool
    """False: too much was inserted meanwhile for masks to lose what nothing alive has set."""
    intact_files: tuple[int, ...]
    """Numbers of complete log files all of whose segment records are alive, to their last block."""


class MarkPass:
    """Runs mark passes over a store's directory and log.

    Insertions, removals, matches and checkpoints go on meanwhile; compaction and eviction do not: the caller sees to
    it, and to there being one pass at a time. `load_all` returns once every partition is in memory.

    Memory: 48 bytes a segment for its row, at most 50 more while the plan is made, then 8 (see plan.py); and 9 MiB.
    """

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        shape: Shape,
        directory: Directory,
        removals: Removals,
        gatherer: Gatherer,
        log: LogWriter,
        *,
        load_all: Callable[[], Awaitable[None]],
        direct: bool = False,
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._shape = shape
        self._directory = directory
        self._removals = removals
        self._gatherer = gatherer
        self._log = log
        self._load_all = load_all
        self._open = folder.open_direct if direct else folder.open

    async def run(self) -> PassResult:
        """One pass. Cancelled or failed, what it did is right by itself; another one begins anew."""
        began = monotonic_ms()
        await self._load_all()
        with FreshMasks(self._directory) as fresh:
            # Together with the noting of masks: what is entered from here on is noted, what was before is read.
            position = self._gatherer.highest
            await self._log.sync()
            plan, rows, files = await self._plan(position)
            swept = await sweep(self._directory, plan, position, self._scheduler.turns)
            await self.drop_states()
            intact = await _intact_files(files, plan, fmt.position_file(position))
            await asyncio.to_thread(plan.give_up)
            return PassResult(
                position,
                swept.dropped,
                swept.cut,
                swept.unreadable,
                rows,
                (monotonic_ms() - began) / 1e3,
                not fresh.full,
                intact,
            )

    async def drop_states(self) -> None:
        """Take out what lists without postings have left, as passes and evictions make them."""
        await drop_states(self._directory, self._gatherer, self._log, self._scheduler.turns)

    async def _plan(self, position: int) -> tuple[Plan, int, list[FileSeen]]:
        """The plan, of how many rows, and what the files had. The rows themselves are given up here."""
        reader = RowReader(self._directory, self._shape)
        files = await self._read_log(reader, position)
        removals = await self._removal_positions()
        plan, rows = await asyncio.to_thread(_plan_of, reader, removals, position)
        return plan, rows, files

    async def _read_log(self, reader: RowReader, position: int) -> list[FileSeen]:
        """All files up to the page of that position. One that is not there is passed over: its entries are misses."""
        numbers = self._directory.base.slot_files[: self._directory.base.slot_count].copy()
        seen: list[FileSeen] = []
        # There may be as many files as slots, too many to be sorted here.
        for slot in map(int, await asyncio.to_thread(_in_order, numbers)):
            number = int(numbers[slot])
            if number > fmt.position_file(position):
                break
            try:
                file = await self._scheduler.run_background(self._open, fmt.log_name(number))
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    continue
                raise
            try:
                end = await self._scheduler.run_background(file.size) // fmt.PAGE * fmt.PAGE
                if number == fmt.position_file(position):
                    end = min(end, (fmt.position_offset(position) // fmt.PAGE + 1) * fmt.PAGE)
                seen.append(await reader.read(self._scheduler, file, number, slot, end))
            finally:
                file.close()
        return seen

    async def _removal_positions(self) -> list[npt.NDArray[np.uint64]]:
        """Positions of all markers and epochs, in parts.

        Those that come meanwhile are newer than the pass and may be missing: a removal that is repeated has its entries
        decided by the next pass, and its marker, being newer, does not retire before.
        """
        while True:
            retirements, parts = self._removals.retirements, []
            for part in self._removals.positions():
                parts.append(part)
                await asyncio.sleep(0)
            if self._removals.retirements == retirements:
                return parts


def _in_order(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Of file numbers by slot, 0: free, the slots that are not free, by number. Called on a thread."""
    slots = np.flatnonzero(numbers)
    return slots[np.argsort(numbers[slots])]


def _plan_of(reader: RowReader, removals: list[npt.NDArray[np.uint64]], position: int) -> tuple[Plan, int]:
    """The plan, of how many rows. Called on a thread, which also gives their memory back: that may take long."""
    rows = reader.take()
    positions = np.concatenate([np.empty(0, np.uint64), *removals])
    removals.clear()
    return make_plan(rows, positions, position), len(rows)


async def _intact_files(files: list[FileSeen], plan: Plan, before: int) -> tuple[int, ...]:
    """Numbers of the files below `before` in which all that was seen is alive. `files` ascends; it is emptied."""
    alive, intact = plan.intact.data, []
    while files:
        part = files[-_FILES_AT_ONCE:]
        del files[-_FILES_AT_ONCE:]
        intact += [
            file.number
            for file in reversed(part)
            if file.number < before and not file.damaged and alive[file.slot] == file.segments
        ]
        await asyncio.sleep(0)
    intact.reverse()
    return tuple(intact)
