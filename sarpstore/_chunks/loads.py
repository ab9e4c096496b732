"""Payloads on their way from regions into a prompt's KV: read, checked, rotated. A payload that fails is a miss."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore._chunks.payload import unpack_whole
from sarpstore._errors import ClosedError, InputError, StorageError
from sarpstore._io import MATCHING
from sarpstore._kernel import reserve

if TYPE_CHECKING:
    import numpy.typing as npt

    from sarpstore._chunks.encoding import Chunk
    from sarpstore._chunks.held import Held
    from sarpstore._chunks.layout import KVLayout
    from sarpstore._chunks.plan import Plan, Span
    from sarpstore._chunks.regions import RegionFiles
    from sarpstore._io import Scheduler

__all__ = ["Loads", "read_payload", "target_of"]

_log = logging.getLogger("sarpstore")

# Payloads that are read, checked and rotated side by side.
_AT_ONCE: Final = 4
_ALIGNED_FROM: Final = 1 << 20


def target_of(layout: KVLayout, plan: Plan, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Where a plan's KV goes: `out`, or a new array. InputError: nothing of that shape and dtype can go to `out`."""
    shape, dtype = layout.shape(plan.tokens), layout.numpy_dtype
    if out is None:
        size = int(np.prod(shape)) * dtype.itemsize
        if size < _ALIGNED_FROM:
            return np.empty(shape, dtype)
        return np.frombuffer(reserve(size, "a prompt's KV"), dtype).reshape(shape)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        found = f"{out.shape} of {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InputError(f"out: {found}, not {shape} of {dtype}")
    # Rows are written in one piece each, wherever they stand.
    row_bytes = shape[-1] * dtype.itemsize
    apart = all(n == 1 or stride >= row_bytes for n, stride in zip(shape[:-1], out.strides[:-1], strict=True))
    if not out.flags.writeable or (out.size and (out.strides[-1] != dtype.itemsize or not apart)):
        raise InputError(f"out: it is read-only, or with strides {out.strides} its rows are in pieces or overlap")
    return out


async def read_payload(scheduler: Scheduler, files: RegionFiles, chunk: Chunk) -> memoryview | None:
    """The payload's pages; None where a region of it is gone or ends too early. StorageError: the system refuses."""
    wanted = []
    try:
        for extent in chunk.extents:
            file = files.reader(extent.region)
            if file is None:
                await scheduler.run(files.open_reader, extent.region)
                file = files.reader(extent.region)
            # What an entry says is no reason to reserve memory for it.
            if file is None or extent.offset + extent.bytes > file.size():
                return None
            wanted.append((file, extent.offset, extent.bytes))
        pieces = await scheduler.try_read_many(wanted, MATCHING)
    except ClosedError:
        return None
    for piece, extent in zip(pieces, chunk.extents, strict=True):
        if isinstance(piece, ClosedError):
            return None
        if isinstance(piece, BaseException):
            raise piece
        if len(piece) < extent.bytes:
            return None
    whole: list[memoryview] = [piece for piece in pieces if isinstance(piece, memoryview)]
    return whole[0] if len(whole) == 1 else memoryview(b"".join(whole))


class Loads:
    """The loads of one store. Spans stay as they are: what could not be loaded is the store's to count."""

    def __init__(self, layout: KVLayout, scheduler: Scheduler, files: RegionFiles, held: Held) -> None:
        self._layout = layout
        self._scheduler = scheduler
        self._files = files
        self._held = held

    async def load(self, spans: list[Span], target: npt.NDArray[Any]) -> list[tuple[Span, str]]:
        """Load these hits; those that could not be, and why: "evicted" or "damaged"."""
        gate = asyncio.Semaphore(_AT_ONCE)
        failed: list[tuple[Span, str]] = []

        async def one(span: Span) -> None:
            async with gate:
                if why := await self._load(span, target):
                    failed.append((span, why))

        try:
            async with asyncio.TaskGroup() as group:
                for span in spans:
                    group.create_task(one(span))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return failed

    async def _load(self, span: Span, target: npt.NDArray[Any]) -> str:
        """Why it could not be; "" if it is."""
        chunk = self._held.chunk(span.key)
        if chunk is None:
            return "evicted"
        try:
            data = await read_payload(self._scheduler, self._files, chunk)
            if data is not None and chunk.tokens == span.end - span.begin:
                if await self._scheduler.run(unpack_whole, self._layout, chunk, data, target, span.begin):
                    return ""
                return "damaged"  # whatever became of it meanwhile: what was read is no payload
        except StorageError as error:
            if self._held.chunk(span.key) == chunk:
                _log.warning("a chunk's payload can't be read: %s", error)
        return "damaged" if self._held.chunk(span.key) == chunk else "evicted"
