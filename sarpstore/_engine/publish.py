"""The `stats` file: what a store's writer says about itself, for other processes (format-spec/checkpoint.md, 3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from sarpstore import _format as fmt
from sarpstore._clock import wall_ms
from sarpstore._kernel import crc32c

if TYPE_CHECKING:
    from sarpstore._engine.results import Stats
    from sarpstore._files import Folder

__all__ = ["publish_stats"]


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
