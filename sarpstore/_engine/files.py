"""Open files of a store: log files by slot, image files by number, opened when first needed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from sarpstore import _format as fmt
from sarpstore._errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler

__all__ = ["OpenFiles"]


class OpenFiles:
    """Descriptors of log files and of image files: at most `open_max` of each, the least recently used closed first.

    `direct`: opened for direct reads, past the system's cache.
    """

    def __init__(self, folder: Folder, scheduler: Scheduler, open_max: int, *, direct: bool = False) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._open_max = open_max
        self.direct = direct
        self._logs: dict[int, File] = {}
        self._images: OrderedDict[str, File] = OrderedDict()
        self._opening: dict[str, asyncio.Task[File]] = {}
        self._pinned: dict[str, File] = {}
        self.closed = False

    @property
    def path(self) -> str:
        """The folder's."""
        return self._folder.path

    async def open_slot(self, slot: int, file_number: int) -> None:
        """Have the log file of a slot attached to the scheduler; StorageError if it can't be opened."""
        if not self._scheduler.attached(slot):
            name = fmt.log_name(file_number)
            await self._once(name, self._open_log(slot, name))

    def open_soon(self, slot: int, file_number: int) -> None:
        """Open a new log file before anybody asks for it. What keeps it from that, whoever asks will be told."""
        if not self.closed and not self._scheduler.attached(slot):
            name = fmt.log_name(file_number)
            self._opening_of(name, self._open_log(slot, name)).add_done_callback(_look)

    async def images(self, number: int) -> File:
        """The .images file with that number; StorageError if it can't be opened."""
        name = fmt.images_name(number)
        if name in self._pinned:
            return self._pinned[name]
        file = self._images.get(name)
        if file is not None:
            self._images.move_to_end(name)
            return file
        return await self._once(name, self._open_images(name))

    async def pinned_images(self, number: int) -> None:
        """Open an .images file and keep it open whatever happens to its name."""
        name = fmt.images_name(number)
        self._pinned[name] = await self._open(name)

    async def _once(self, name: str, opening: Coroutine[Any, Any, File]) -> File:
        """The file that `opening` opens, or that another call is opening already."""
        return await asyncio.shield(self._opening_of(name, opening))

    def _opening_of(self, name: str, opening: Coroutine[Any, Any, File]) -> asyncio.Task[File]:
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.create_task(opening)
            task.add_done_callback(lambda _: self._opening.pop(name))
        else:
            opening.close()
        return task

    async def _open(self, name: str) -> File:
        file: File = await self._scheduler.run(self._folder.open_direct if self.direct else self._folder.open, name)
        self._check_open(file)
        return file

    def _check_open(self, file: File) -> None:
        """ClosedError, with the file closed, where `close` has begun: it would not see this one any more."""
        if self.closed:
            file.close()
            raise ClosedError(f"{self._folder.path} is closed")

    async def _open_log(self, slot: int, name: str) -> File:
        file = await self._open(name)
        while len(self._logs) >= self._open_max and (oldest := self._scheduler.least_used()) is not None:
            # Reads that are wanted already finish first; whoever wants more has the file opened again, even meanwhile.
            closing = self._logs.pop(oldest)
            await self._scheduler.detach(oldest)
            await self._scheduler.run(closing.close)
        self._check_open(file)
        self._logs[slot] = file
        self._scheduler.attach(slot, file)
        return file

    async def drop_slot(self, slot: int, file_number: int) -> None:
        """Close the slot's file, which is to be deleted, once its reads have ended. Nobody asks for it any more.

        One that was cut short is gone on with by the next.
        """
        opening = self._opening.get(fmt.log_name(file_number))
        if opening is not None:
            await asyncio.wait([opening])
        await self._scheduler.detach(slot)
        file = self._logs.pop(slot, None)
        if file is not None:
            await self._scheduler.run(file.close)

    async def _open_images(self, name: str) -> File:
        file = await self._open(name)
        self._images[name] = file
        while len(self._images) > self._open_max:
            _, oldest = self._images.popitem(last=False)
            # Reads in progress finish first.
            await self._scheduler.run(oldest.close)
        return file

    async def close(self) -> None:
        """Close all files once their reads have ended. One that was cut short is gone on with by the next."""
        self.closed = True
        while self._logs:
            slot, file = next(iter(self._logs.items()))
            await self._scheduler.detach(slot)
            self._logs.pop(slot, None)
            file.close()
        for files in (self._images, self._pinned):
            while files:
                files.popitem()[1].close()


def _look(task: asyncio.Task[File]) -> None:
    """So that nobody complains that an error was never looked at."""
    if not task.cancelled():
        task.exception()
