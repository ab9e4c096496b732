"""The `stats` file: what a store's writer says about itself, for other processes (format-spec/checkpoint.md, 3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import aiofiles
import msgspec

from sarpstore import _format as fmt
from sarpstore._clock import wall_ms
from sarpstore._engine.results import PublishedStats, Stats
from sarpstore._errors import CorruptionError, NotAStoreError, StorageError
from sarpstore._kernel import crc32c
from sarpstore._log.header import check_version

if TYPE_CHECKING:
    from sarpstore._files import Folder

__all__ = ["publish_stats", "published_stats"]


def publish_stats(folder: Folder, uuid: bytes, stats: Stats) -> None:
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


async def published_stats(path: str | os.PathLike[str]) -> PublishedStats:
    """What the writer of the store in folder `path` last published about it; a second ago at most, while it lives.

    For another process, such as a metrics exporter: it opens nothing of the store but this file, and does not hold the
    event loop. NotAStoreError if nothing was published, CorruptionError for a damaged file.
    """
    name = os.path.join(os.fspath(path), fmt.STATS_NAME)  # noqa: PTH118 - a string is what the errors name
    try:
        async with aiofiles.open(name, "rb") as file:
            data = await file.read()
    except FileNotFoundError:
        raise NotAStoreError(f"{name}: no writer has published statistics here") from None
    except OSError as error:
        raise StorageError.of("read", name, error.errno or 0) from error
    if len(data) < fmt.STATS_HEADER.size or data[:8] != fmt.MAGIC_STATS:
        raise CorruptionError(name, 0, "not a statistics file")
    _, crc, major, _, _, process, length, published_ms = fmt.STATS_HEADER.unpack_from(data)
    check_version(name, major, (0, 0, 0))
    if len(data) != fmt.STATS_HEADER.size + length or crc32c(data[fmt.CRC_FROM :]) != crc:
        raise CorruptionError(name, fmt.CRC_AT, "the statistics' checksum or length does not hold")
    try:
        stats = msgspec.json.decode(data[fmt.STATS_HEADER.size :], type=Stats)
    except msgspec.DecodeError as error:
        raise CorruptionError(name, fmt.STATS_HEADER.size, f"the statistics are of another version ({error})") from None
    return PublishedStats(stats=stats, process=process, published_ms=published_ms)
