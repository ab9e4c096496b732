"""A life without threads and without a clock: the same each time that it is lived, and nothing waits in it.

Reads and calls are done on the loop, a few turns after they were asked for. A turn of the loop takes no time but what
it says it takes, and where nothing is left to do, it is later at once.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, Final

from sarpstore._errors import ClosedError, StorageError
from sarpstore._kernel import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from sarpstore._io.backend import CallJob
    from sarpstore._io.table import ReadTable


TURN_S: Final = 0.0002
"""What a turn takes: some hundred of them make up a life, in which background work is to have its place."""


class _NothingToHear(selectors.SelectSelector):
    """Hears of nothing: waiting is over at once, and has taken as long as it should."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left that could go on")
        self.now += max(timeout, TURN_S)
        return []


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that makes its own time."""

    def __init__(self) -> None:
        self._heard = _NothingToHear()
        super().__init__(self._heard)

    def time(self) -> float:
        return self._heard.now

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What would be done by a thread, a turn later."""
        future = self.create_future()

        def run() -> None:
            try:
                result = function(*args)
            except Exception as error:  # whoever waits for the call gets it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():  # nobody waits any more
                    future.set_result(result)

        self.call_soon(run)
        return future


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

        wait(self._random.choice([1, 1, 1, 4]))

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
        except BaseException as error:  # whoever waits for the call gets it
            job.error = error
        del jobs[0]
        if jobs:
            self._later(self._run, jobs)
        self._ended([job])
