"""Reads and calls without threads: what is due is done on the loop, a few turns later, in an order of its own choice.

A life is then the same each time that it is lived, and takes a third of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sarpstore._errors import ClosedError, StorageError
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from random import Random

    from sarpstore._io.backend import CallJob
    from sarpstore._io.table import ReadTable


class LoopBackend:
    """A `Backend`. Calls of one kind keep their order; `random` says how many turns of the loop each job takes."""

    name = "threads"

    def __init__(self, random: Random) -> None:
        self._random = random
        self._calls: dict[bool, list[CallJob]] = {False: [], True: []}

    def start(
        self, loop: asyncio.AbstractEventLoop, table: ReadTable, ended: Callable[[Sequence[CallJob]], None]
    ) -> None:
        self._loop, self._table, self._ended = loop, table, ended

    def turn(self) -> None:
        table = self._table.c
        if lib.sarp_reads_hand(table):
            runs = ffi.unpack(table.handed, table.handed_count)
            table.handed_count = 0
            for run in runs:
                self._later(self._read, run)

    def opened(self, file: int) -> None:
        pass

    def closed(self, file: int) -> None:
        pass

    def call(self, job: CallJob) -> None:
        jobs = self._calls[job.background]
        jobs.append(job)
        if len(jobs) == 1:
            self._later(self._run, jobs)

    def stop(self) -> None:
        pass

    def _later(self, function: Callable[..., None], *args: Any) -> None:
        """Call it after a few turns of the loop."""

        def wait(turns: int) -> None:
            if turns:
                self._loop.call_soon(wait, turns - 1)
            else:
                function(*args)

        wait(self._random.choice([1, 1, 2, 5]))

    def _read(self, run: int) -> None:
        file, offset, buffers = self._table.run_buffers(run)
        try:
            result = file.read_into(offset, *buffers)
        except (StorageError, ClosedError) as error:
            result = -(error.errno or 5) if isinstance(error, StorageError) else -9
        self._table.complete(run, result)
        self.turn()
        self._ended(())

    def _run(self, jobs: list[CallJob]) -> None:
        job = jobs[0]
        try:
            job.result = job.function(*job.args)
        except BaseException as error:
            job.error = error
        del jobs[0]
        if jobs:
            self._later(self._run, jobs)
        self._ended([job])
