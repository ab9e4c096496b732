"""The `stats` file: what a store's writer says about itself, for other processes (format-spec/checkpoint.md, 3)."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiofiles
import msgspec

from sarpstore import _format as fmt
from sarpstore._clock import wall_ms
from sarpstore._errors import CorruptionError, NotAStoreError, SarpError, StorageError
from sarpstore._kernel import crc32c
from sarpstore._log.header import check_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from sarpstore._files import Folder
    from sarpstore._io import Scheduler

__all__ = ["Publisher", "publish", "read_published"]

_log = logging.getLogger("sarpstore")

_Stats = TypeVar("_Stats", bound=msgspec.Struct)

_START_AFTER_S: Final = 0.05
_PUBLISH_S: Final = 1.0
# By the key that tells them apart: whose statistics these are, and what reads them.
_KINDS: Final = {
    "blocks": ("an index", "sarpstore.published_stats"),
    "chunks": ("a chunk store", "sarpstore.published_chunk_stats"),
}


def publish(folder: Folder, uuid: bytes, stats: msgspec.Struct) -> None:
    """Replace the folder's `stats` file. Not synced: it speaks of a living process."""
    body = msgspec.json.encode(stats)
    head = fmt.STATS_HEADER.pack(fmt.MAGIC_STATS, 0, fmt.MAJOR, fmt.MINOR, uuid, os.getpid(), len(body), wall_ms())
    data = bytearray(head + body)
    data[fmt.CRC_AT : fmt.CRC_FROM] = crc32c(data[fmt.CRC_FROM :]).to_bytes(4, "little")
    temporary = fmt.STATS_NAME + fmt.TEMPORARY_SUFFIX
    if temporary in folder.names():
        folder.remove(temporary)
    file = folder.create(temporary)
    try:
        file.write(0, data)
    finally:
        file.close()
    folder.rename(temporary, fmt.STATS_NAME)


class Publisher:
    """Publishes what `stats` returns each second. What fails is tried again a second later, and harms nothing else."""

    def __init__(self, scheduler: Scheduler, folder: Folder, uuid: bytes, stats: Callable[[], msgspec.Struct]) -> None:
        self._scheduler = scheduler
        self._folder = folder
        self._uuid = uuid
        self._stats = stats

    def start(self) -> asyncio.Task[None]:
        """Publish until the task is cancelled."""
        return asyncio.create_task(self._run(), name="sarpstore statistics")

    async def _run(self) -> None:
        # The first answers after an open have the device, and the loop, to themselves.
        await asyncio.sleep(_START_AFTER_S)
        try:
            while True:
                await self.publish()
                await asyncio.sleep(_PUBLISH_S)
        except Exception:
            _log.exception("sarpstore statistics stopped")

    async def publish(self) -> None:
        """Publish now, after what is being published."""
        try:
            await self._scheduler.run_background(publish, self._folder, self._uuid, self._stats())
        except SarpError as error:
            _log.debug("the statistics were not published: %s", error)


async def read_published(path: str | os.PathLike[str], kind: type[_Stats]) -> tuple[_Stats, int, int]:
    """(statistics, the process that published them, when in ms) of the store in folder `path`, which are of this kind.

    Does not hold the event loop. NotAStoreError where nothing was published or the store is of the other kind,
    CorruptionError for a damaged file, VersionError, StorageError.
    """
    name = os.path.join(os.fspath(path), fmt.STATS_NAME)  # noqa: PTH118 - a string is what the errors name
    data = await _read(name)
    if len(data) < fmt.STATS_HEADER.size or data[:8] != fmt.MAGIC_STATS:
        raise CorruptionError(name, 0, "not a statistics file")
    _, crc, major, _, _, process, length, published_ms = fmt.STATS_HEADER.unpack_from(data)
    check_version(name, major, (0, 0, 0))
    if len(data) != fmt.STATS_HEADER.size + length or crc32c(data[fmt.CRC_FROM :]) != crc:
        raise CorruptionError(name, fmt.CRC_AT, "the statistics' checksum or length does not hold")
    return _decoded(name, data[fmt.STATS_HEADER.size :], kind), process, published_ms


async def _read(name: str) -> bytes:
    try:
        async with aiofiles.open(name, "rb") as file:
            data: bytes = await file.read()
            return data
    except FileNotFoundError:
        raise NotAStoreError(f"{name}: no writer has published statistics here") from None
    except OSError as error:
        raise StorageError.of("read", name, error.errno or 0) from error


def _decoded(name: str, body: bytes, kind: type[_Stats]) -> _Stats:
    try:
        values: Any = msgspec.json.decode(body)
        for key, (whose, reader) in _KINDS.items():
            if isinstance(values, dict) and key in values and key not in kind.__struct_fields__:
                raise NotAStoreError(f"{name}: these are statistics of {whose}; {reader} reads them")
        return msgspec.convert(values, kind)
    except msgspec.DecodeError as error:
        raise CorruptionError(name, fmt.STATS_HEADER.size, f"the statistics are of another version ({error})") from None
