"""Open files of a store: log files by slot, image files by number, opened when first needed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from sarpstore import _format as fmt

if TYPE_CHECKING:
    from sarpstore._files import File, Folder
    from sarpstore._io import Scheduler

__all__ = ["OpenFiles"]


class OpenFiles:
    """Descriptors by file name: at most `open_max`, the least recently used closed first."""

    def __init__(self, folder: Folder, scheduler: Scheduler, open_max: int) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._opening: dict[str, asyncio.Task[File]] = {}
        self._pinned: dict[str, File] = {}
        self.closed = False

    async def log(self, file_number: int) -> File:
        """The log file with that number; StorageError if it can't be opened."""
        return await self._get(fmt.log_name(file_number))

    async def images(self, number: int) -> File:
        """The .images file with that number; StorageError if it can't be opened."""
        return await self._get(fmt.images_name(number))

    async def pinned_images(self, number: int) -> None:
        """Open an .images file and keep it open whatever happens to its name."""
        name = fmt.images_name(number)
        self._pinned[name] = await self._scheduler.run(self._folder.open, name)

    async def _get(self, name: str) -> File:
        if name in self._pinned:
            return self._pinned[name]
        file = self._files.get(name)
        if file is not None:
            self._files.move_to_end(name)
            return file
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.create_task(self._open(name))
            task.add_done_callback(lambda _: self._opening.pop(name))
        return await asyncio.shield(task)

    async def _open(self, name: str) -> File:
        file = await self._scheduler.run(self._folder.open, name)
        self._files[name] = file
        while len(self._files) > self._open_max:
            _, oldest = self._files.popitem(last=False)
            # Reads in progress finish first; whoever has the file but has not begun to read asks for it again.
            await self._scheduler.run(oldest.close)
        return file

    async def close(self) -> None:
        self.closed = True
        files = [*self._files.values(), *self._pinned.values()]
        self._files.clear()
        self._pinned.clear()
        for file in files:
            await self._scheduler.run(file.close)
