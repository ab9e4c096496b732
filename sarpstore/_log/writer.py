"""The log's writing end: group commit by durability, in one task.

A commit is gathered (gather.py), frozen, written by one write, and synced; `format-spec/recovery.md`, section 1 orders
it all. One commit is on its way at a time, while the next one gathers: whoever waits for durability shares a sync
with everyone else who does.

A failed write or sync stops the writer for good: nothing is retried, whoever waits gets that error, later callers a
FailedError that names it, and what the buffers hold stays readable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt
from sarpstore._errors import ClosedError, FailedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler
    from sarpstore._log.commits import CommitBuffer
    from sarpstore._log.gather import Frozen, Gatherer, LogEnd, Seal
    from sarpstore._log.header import LogHeader

__all__ = ["LogWriter"]

_RECOVERED_SYNC_S: Final = 0.5
_MARK_PAGES: Final = 1


class LogWriter:
    """Writes what `gatherer` gathers to the log files of `folder`.

    `recovered` is where recovery found the log's end, and `unsynced_files` names the log files in which it accepted
    commits behind the synced position: they are synced before anything is written. With `create` the first log file is
    made at once, so that a new store is one; otherwise it is made when there is something to write.
    """

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        gatherer: Gatherer,
        *,
        recovered: LogEnd,
        unsynced_files: Sequence[str],
        durability: str,
        sync_interval_ms: int,
        create: bool = False,
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._gatherer = gatherer
        self._durability = durability
        self._interval = sync_interval_ms / 1e3
        self._unsynced_files = unsynced_files
        self._first_header = gatherer.take_header() if create else None
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Frozen] = deque()
        self._file: File | None = None
        self._written = recovered.position
        self._written_commit = recovered.commit
        self._synced_commit = -1 if unsynced_files else recovered.commit
        self._wanted = self._synced_commit
        self._records_since_mark = False
        self._gathered_at: float | None = None
        self._written_at = 0.0
        self._opened_at = self._loop.time()
        self._closing = self._ended = False
        self._last_seal: Seal | None = None
        self._wake = asyncio.Event()
        self._progress: asyncio.Future[None] = self._loop.create_future()
        self.began: Callable[[LogHeader], None] | None = None
        """Told of each log file that has been made."""
        self.failure: BaseException | None = None
        """The failed write or sync that stopped the writer."""
        self.synced_position = recovered.synced
        """Everything before this position survives a crash."""
        self.bytes_written = 0
        """Bytes of headers, commits and seals written."""
        self.newest_file = recovered.file_number
        """The highest number of a log file that exists."""
        self.file_bytes = 0
        """Bytes written to the file that is being written now."""
        self.seal_bytes = 0
        """Bytes of seals written."""
        self.commits = 0
        """Commits written, marks and seals included."""
        self._task = asyncio.create_task(self._run(), name="sarpstore log writer")

    # --- for callers

    def check(self) -> None:
        """FailedError after a failed write or sync, ClosedError once the log is being closed."""
        if self._closing:
            raise ClosedError(f"{self._folder.path} is closed")
        if self.failure is not None:
            raise FailedError(self._folder.path, self.failure) from self.failure

    @property
    def promised_bytes(self) -> int:
        """Bytes that what has been gathered will take beyond what is written: commits, headers, seals, a mark."""
        pages = self._gatherer.promised_pages + _MARK_PAGES
        for frozen in self._ready:
            pages += 0 if frozen.header is None else fmt.LOG_HEADER_BYTES // fmt.PAGE
            pages += 0 if frozen.written else frozen.buffer.pages
            pages += 0 if frozen.seal is None else frozen.seal.summaries + 1
        return pages * fmt.PAGE

    @property
    def complete_below(self) -> int:
        """Log files with a lower number are written to their end."""
        for frozen in self._ready:
            if frozen.seal is None or frozen.seal.number > self._synced_commit:
                return frozen.buffer.file_number
        return self._gatherer.buffer.file_number

    def gathered(self) -> None:
        """A record was added to the gathering commit: it will be written in due time."""
        if self._gathered_at is None:
            self._gathered_at = self._loop.time()
            self._keep_running()

    async def started(self) -> None:
        """Return once a new store's first log file exists; raise what kept it from being made."""
        while self._first_header is not None:
            if self.failure is not None:
                raise self.failure
            self._keep_running()
            await asyncio.shield(self._progress)

    async def make_room(self) -> None:
        """Return once another commit gathers, the present one being full."""
        number = self._gatherer.buffer.number
        while self._gatherer.buffer.number == number:
            self.check()
            if self._gatherer.can_freeze:
                self._freeze()
                self._keep_running()
            else:
                self._keep_running()
                await asyncio.shield(self._progress)

    async def end_file(self) -> None:
        """End the present log file, full or not, and return once that is synced: what comes goes into another."""
        await self._until_can_freeze()
        if not self._gatherer.file_is_new:
            await self._end_commit(end_file=True)

    async def begin_file(self) -> None:
        """Return once the present log file exists, if only with a mark: a checkpoint may start in it then."""
        await self._until_can_freeze()
        if self._gatherer.file_is_unborn:
            await self._end_commit()

    async def _until_can_freeze(self) -> None:
        while not self._gatherer.can_freeze:
            self.check()
            self._keep_running()
            await asyncio.shield(self._progress)
        self.check()

    async def _end_commit(self, *, end_file: bool = False) -> None:
        """End the gathering commit, which is a mark if nothing has been gathered, and return once it is synced."""
        commit = self._gatherer.buffer.number
        self._freeze(0 if self._gatherer.records else fmt.COMMIT_MARK, end_file=end_file)
        seal = self._ready[-1].seal
        self._keep_running()
        await self.durable(commit if seal is None else seal.number)

    async def durable(self, number: int) -> None:
        """Return once the commit with that number is synced; raise what kept it from being."""
        while self._synced_commit < number:
            if self.failure is not None:
                raise (
                    self.failure
                    if isinstance(self.failure, StorageError)
                    else FailedError(self._folder.path, self.failure)
                )
            self._wanted = max(self._wanted, number)
            self._keep_running()
            await asyncio.shield(self._progress)

    async def sync(self) -> None:
        """Everything gathered so far is written and synced on return."""
        self.check()
        await self.durable(self._gatherer.newest_commit)

    async def close(self) -> None:
        """Write and sync everything, and end the file with a seal that says so. Raises what kept it from that."""
        self._closing = True
        while not self._ended and self.failure is None:
            self._keep_running()
            # Not `await self._task`: a caller that is cancelled must not take the writer along.
            await asyncio.wait([self._task])
        if self._file is not None:
            file, self._file = self._file, None
            await self._scheduler.run(file.close)
        if self.failure is not None:
            raise self.failure

    async def abandon(self) -> None:
        """End the task without writing anything: the open that made it has failed."""
        self._ended = True
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep_running(self) -> None:
        """Wake the task. One that was cancelled, as at the end of `asyncio.run`, goes on where it stood."""
        self._wake.set()
        if self._task.done() and not self._ended and self.failure is None:
            self._task = asyncio.create_task(self._run(), name="sarpstore log writer")

    # --- when

    @property
    def _mark_due(self) -> bool:
        """The last records are synced, and nothing on the disk says so yet."""
        return self._records_since_mark and self._synced_commit == self._written_commit

    def _due_at(self) -> float | None:
        """When there is something to do, on the loop's clock; None: nothing will be until somebody calls."""
        if self._closing or self._ready or self._wanted > self._synced_commit:
            return 0.0
        if self._gathered_at is not None:
            return self._gathered_at + self._interval
        if self._mark_due:
            return self._written_at + self._interval
        # What recovery accepted waits a little, so that the first answers after a crash have the device to themselves.
        return self._opened_at + _RECOVERED_SYNC_S if self._unsynced_files else None

    async def _wait_until_due(self) -> None:
        while (due := self._due_at()) is None or due > self._loop.time():
            self._wake.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                return

    # --- what, in order, by one task

    async def _run(self) -> None:
        try:
            if self._first_header is not None:
                await self._begin_file(self._first_header)
                self._first_header = None
                self._tell()
            while not self._closing or self._gatherer.records or self._ready:
                await self._wait_until_due()
                await self._sync_recovered()
                self._freeze_if_due()
                while self._ready:
                    await self._carry_out(self._ready[0])
                if self._wanted > self._synced_commit:
                    await self._sync_written()
            await self._sync_recovered()
            if self._file is not None and self._last_seal is None:
                self._last_seal = self._gatherer.seal_last(self.synced_position)
            if self._file is not None and self._last_seal is not None:
                await self._end_file(self._file, self._last_seal)
            self._ended = True
        except asyncio.CancelledError:
            self._tell()  # whoever waits starts the task again
            raise
        except Exception as error:  # whatever it is, nothing may be written behind it
            self.failure = error
            self._tell()

    async def _sync_recovered(self) -> None:
        if self._unsynced_files:
            await self._scheduler.run(_sync_files, self._folder, self._unsynced_files)
            self._unsynced_files = []
            self._note_synced(self._written, self._written_commit)

    def _freeze_if_due(self) -> None:
        if not self._gatherer.can_freeze:
            return
        if self._gatherer.records:
            self._freeze()
        elif self._mark_due and not self._closing and self._wanted <= self._synced_commit:
            self._freeze(fmt.COMMIT_MARK)

    def _freeze(self, flags: int = 0, *, end_file: bool = False) -> None:
        self._ready.append(self._gatherer.freeze(self.synced_position, flags, end_file=end_file))
        self._gathered_at = None

    async def _carry_out(self, frozen: Frozen) -> None:
        """Steps that may be cut short and done again: the same bytes go to the same place."""
        buffer = frozen.buffer
        if frozen.header is not None:
            await self._begin_file(frozen.header)
            frozen.header = None
        if not frozen.written:
            assert self._file is not None
            sync = self._durability != "never" or self._wanted >= buffer.number or frozen.seal is not None
            await self._write(self._file, buffer, sync=sync)
            frozen.written = True
            # A mark says what was synced before it; nobody needs to say that the mark is.
            self._records_since_mark = buffer.records > 0
            self._tell()
        for _ in self._gatherer.release(frozen):
            await asyncio.sleep(0)
        self._tell()
        if frozen.seal is not None and self._file is not None:
            await self._end_file(self._file, frozen.seal)
        self._ready.popleft()

    async def _begin_file(self, header: LogHeader) -> None:
        self._file = await self._scheduler.run(_create_log_file, self._folder, header)
        self.newest_file = header.file_number
        self.bytes_written += fmt.LOG_HEADER_BYTES
        self.file_bytes = fmt.LOG_HEADER_BYTES
        if self.began is not None:
            self.began(header)
        self._note_synced(header.previous_end, header.previous_commit)

    async def _write(self, file: File, buffer: CommitBuffer, *, sync: bool) -> None:
        await self._scheduler.run(_write_commit, file, buffer.offset, buffer.data(), sync)
        self.bytes_written += buffer.pages * fmt.PAGE
        self.file_bytes += buffer.pages * fmt.PAGE
        self.commits += 1
        self._written, self._written_commit = buffer.end_position, buffer.number
        self._written_at = self._loop.time()
        if sync:
            self._note_synced(self._written, self._written_commit)

    async def _sync_written(self) -> None:
        """What was written without a sync, and is now wanted."""
        if self._file is not None:
            await self._scheduler.run(self._file.sync)
        self._note_synced(self._written, self._written_commit)

    async def _end_file(self, file: File, seal: Seal) -> None:
        buffer = await self._scheduler.run(seal.encode)
        await self._write(file, buffer, sync=True)
        self.seal_bytes += buffer.pages * fmt.PAGE
        self.file_bytes = 0
        self._records_since_mark = False
        self._file = None
        await self._scheduler.run(file.close)

    def _note_synced(self, position: int, commit: int) -> None:
        self.synced_position = max(self.synced_position, position)
        self._synced_commit = max(self._synced_commit, commit)
        self._tell()

    def _tell(self) -> None:
        """Wake whoever waits for a sync or for room."""
        done, self._progress = self._progress, self._loop.create_future()
        done.set_result(None)


def _sync_files(folder: Folder, names: Sequence[str]) -> None:
    for name in names:
        file = folder.open(name, writable=True)
        try:
            file.sync()
        finally:
            file.close()


def _create_log_file(folder: Folder, header: LogHeader) -> File:
    """A log file appears under its name only once its header is synced (format-spec/README.md, section 1)."""
    name = fmt.log_name(header.file_number)
    temporary = name + fmt.TEMPORARY_SUFFIX
    if temporary in folder.names():
        folder.remove(temporary)
    file = folder.create(temporary)
    try:
        file.write(0, header.encode())
        file.sync()
        folder.rename(temporary, name)
        folder.sync()
    except BaseException:
        file.close()
        raise
    return file


def _write_commit(file: File, offset: int, data: memoryview, sync: bool) -> None:
    file.write(offset, data)
    if sync:
        file.sync()
