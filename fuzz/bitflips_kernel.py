"""Bit flips straight before the kernel: pages before the scan, images before their check. Millions of them."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import sarpstore
from sarpstore import _format as fmt
from sarpstore._checkpoint.head import decode_image, encode_image
from sarpstore._directory import DivergenceDirectory
from sarpstore._errors import CorruptionError
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, FOUND_COMMIT_DTYPE, ffi, lib, pointer
from sarpstore._log.base import Base
from sarpstore._log.header import LogHeader

if TYPE_CHECKING:
    from rich.progress import Progress

_CHANGES: Final = 2 * int(lib.SARP_PAGE_CHANGES_MAX)
_IMAGE_ENTRIES: Final = 2031


class PageCheck:
    """One page before the scan, again and again."""

    def __init__(self, header: LogHeader) -> None:
        shape = header.shape
        self._base = Base(shape.secret, fmt.ROUTINGS.index(shape.routing), location_bytes=shape.location_bytes)
        self._uuid = ffi.new("uint8_t[16]", shape.uuid)
        self._header = header
        self._changes, self._commits = np.zeros(_CHANGES, CHANGE_DTYPE), np.zeros(2, FOUND_COMMIT_DTYPE)
        self._damaged = np.zeros(2 * fmt.PAGE_UNITS, "<u8")
        self._scan, self._found = ffi.new("sarp_scan *"), ffi.new("sarp_found *")
        found = self._found
        found.changes, found.change_limit = pointer("sarp_change *", self._changes), _CHANGES
        found.commits, found.commit_limit = pointer("sarp_found_commit *", self._commits), 2
        found.damaged, found.damaged_limit = pointer("uint64_t *", self._damaged), 2 * fmt.PAGE_UNITS

    def look(self, data: Any, page: int) -> bool:
        """Whether the scan finds damage in the page at `data` (a C pointer)."""
        scan, found = self._scan, self._found
        ffi.buffer(scan)[:] = bytes(ffi.sizeof("sarp_scan"))
        scan.uuid, scan.file_number = self._uuid, self._header.file_number
        scan.location_bytes, scan.features = self._header.shape.location_bytes, FEATURES
        scan.begin_page = scan.next_page = page
        found.change_count = found.commit_count = found.damaged_count = found.unknown_at = 0
        lib.sarp_scan_pages(scan, self._base.c, data, 1, found)
        return bool(found.damaged_count)

    def said(self) -> tuple[bytes, bytes]:
        """What the last look found: changes and commits."""
        found = self._found
        return self._changes[: found.change_count].tobytes(), self._commits[: found.commit_count].tobytes()


async def log_pages(kib: int) -> bytes:
    """A log file of about that size: segments of all lengths, a few to the page, removals, commits, a seal."""
    random, folder = Random(kib), MemoryFolder()
    async with sarpstore.open(folder.reopen(), block_tokens=1) as store:
        space = store.namespace("x")
        while store.stats().log_bytes < kib << 10:
            path = [random.randrange(1 << 30) for _ in range(random.choice([1, 5, 40, 64, 64, 64, 130]))]
            await space.insert(path, np.ones(len(path), sarpstore.LOCATION))
            if random.random() < 0.2:
                await space.truncate(path, blocks=random.randrange(len(path)))
            if random.random() < 0.2:
                await store.sync()
    return read_whole(folder, fmt.log_name(1))


async def record_flips(kib: int, progress: Progress | None = None) -> Counter[str]:
    """Flip every bit of the pages: damage, or nothing that the page says is another."""
    log = bytearray(await log_pages(kib))
    check = PageCheck(LogHeader.decode(bytes(log[: fmt.LOG_HEADER_BYTES]), fmt.log_name(1)))
    begins = range(fmt.LOG_HEADER_BYTES, min(len(log), fmt.LOG_HEADER_BYTES + (kib << 10)), fmt.PAGE)
    counts: Counter[str] = Counter()
    memory = ffi.from_buffer("uint8_t[]", log)
    for begin in progress.track(begins, description="log pages") if progress else begins:
        data, page = memory + begin, begin // fmt.PAGE
        assert not check.look(data, page)
        clean = check.said()
        for at in range(begin, begin + fmt.PAGE):
            for bit in range(8):
                log[at] ^= 1 << bit
                noticed = check.look(data, page)
                counts["detected" if noticed else "harmless" if check.said() == clean else "wrong"] += 1
                log[at] ^= 1 << bit
    return counts


def image_flips(kib: int, progress: Progress | None = None, *, stride: int = 1) -> Counter[str]:
    """Flip every bit, or every `stride`th, of images of full partitions, and of the zeros behind them."""
    random, uuid = np.random.default_rng(kib), bytes(range(16))
    directory = DivergenceDirectory(bytes(16), 1 << 22)
    counts: Counter[str] = Counter()
    images = range(max(1, (kib << 10) // (_IMAGE_ENTRIES * 16 + fmt.IMAGE_HEADER.size)))
    for number in progress.track(images, description="images") if progress else images:
        entries = np.frombuffer(random.bytes(_IMAGE_ENTRIES * 16), fmt.ENTRY_DTYPE)
        row = np.zeros(1, fmt.PARTITION_DTYPE)[0]
        row["entries"], row["images_number"], row["blocks"] = _IMAGE_ENTRIES, number + 1, 77
        data = bytearray(encode_image(directory, uuid, row, entries))
        _flip_image(data, row, (directory, uuid), counts, stride)
    return counts


def _flip_image(
    data: bytearray, row: Any, of: tuple[DivergenceDirectory, bytes], counts: Counter[str], stride: int
) -> None:
    length, crc = fmt.IMAGE_HEADER.size + _IMAGE_ENTRIES * 16, int(row["crc"])
    memory, view = ffi.from_buffer("uint8_t[]", data), memoryview(data)
    body, checked = memory + fmt.CRC_FROM, length - fmt.CRC_FROM
    for number in range(0, 8 * len(data), stride):
        at, bit = number // 8, 1 << number % 8
        data[at] ^= bit
        # The checksum is decode_image's first question; the rest is asked only where it holds.
        if lib.sarp_crc32c(FEATURES, 0, body, checked) != crc:
            counts["detected"] += 1
        else:
            counts[_decoded(view, of, row, at >= length)] += 1
        data[at] ^= bit


def _decoded(view: memoryview, of: tuple[DivergenceDirectory, bytes], row: Any, behind: bool) -> str:
    try:
        decode_image(view, of[1], of[0], row)
    except CorruptionError:
        return "detected"
    return "harmless" if behind else "wrong"
