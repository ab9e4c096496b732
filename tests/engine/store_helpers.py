"""What the engine's tests share: locations, an exact oracle, folders that wait, and damage done to files."""

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager

import numpy as np

import sarpstore
from sarpstore import _format as fmt
from sarpstore._engine import core
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._kernel import crc32c
from sarpstore._log import gather

WIDE = np.dtype([("address", "<u8"), ("rest", "S38")])
"""46 bytes, the widest location: a full segment is a page."""


def locations(count, first=0, dtype=sarpstore.LOCATION):
    """`count` locations that no other call with another `first` gives."""
    rows = np.zeros(count, dtype)
    rows[dtype.names[0]] = np.arange(first, first + count)
    return rows


def memory_store(folder=None, **options):
    """A store in memory with a token a block, so that paths are short."""
    return sarpstore.open(MemoryFolder() if folder is None else folder, **{"block_tokens": 1, **options})


@asynccontextmanager
async def abandoned(opening):
    """A store whose process is taken to have died: whatever closing it says or does is nobody's business."""
    store = await opening
    try:
        yield store
    finally:
        with contextlib.suppress(sarpstore.SarpError):
            await store.close()


def small_files(monkeypatch, pages=40, insert_windows=4):
    """Log files of `pages` pages and commits that hold few windows, so that little data rolls and seals files."""
    monkeypatch.setitem(sarpstore._options._RANGES, "log_file_bytes", (pages * fmt.PAGE, 1 << 30))
    monkeypatch.setattr(gather, "_ROOM_MIN_PAGES", insert_windows + 6)
    monkeypatch.setattr(core, "_PART_BLOCKS", insert_windows * 64)
    return pages * fmt.PAGE


class Oracle:
    """Which blocks are held, with the locations of their first insertion; blocks stand in order of insertion.

    A path is a tuple of one token a block. A block is (domain, parent block, token); domains never share.
    """

    def __init__(self):
        self.blocks = {}  # (domain, parent number, token) -> number
        self.locations = []
        self.keys = []

    def copy(self, count=None):
        other = Oracle()
        count = len(self.keys) if count is None else count
        other.keys, other.locations = self.keys[:count], self.locations[:count]
        other.blocks = {key: number for number, key in enumerate(other.keys)}
        return other

    def insert(self, domain, path, rows):
        """How many blocks were new."""
        parent, before = None, len(self.keys)
        for token, row in zip(path, rows, strict=True):
            key = (domain, parent, token)
            number = self.blocks.get(key)
            if number is None:
                number = self.blocks[key] = len(self.keys)
                self.keys.append(key)
                self.locations.append(row)
            parent = number
        return len(self.keys) - before

    def match(self, domain, path):
        """The locations of the blocks that are held."""
        parent, found = None, []
        for token in path:
            number = self.blocks.get((domain, parent, token))
            if number is None:
                break
            found.append(self.locations[number])
            parent = number
        return found


def addresses(rows):
    return rows[rows.dtype.names[0]].tolist()


class WaitingFolder:
    """A folder whose reads, or writes and syncs, can be held up: what happens meanwhile is the test's to choose.

    Only files whose name holds `part` wait.
    """

    def __init__(self, inner=None, part=""):
        self.inner = MemoryFolder() if inner is None else inner
        self.part = part
        self.reads = threading.Event()
        self.writes = threading.Event()
        self.reads.set()
        self.writes.set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def create(self, name):
        return WaitingFile(self.inner.create(name), self)

    def open(self, name, *, writable=False):
        return WaitingFile(self.inner.open(name, writable=writable), self)


class WaitingFile:
    def __init__(self, inner, folder):
        self.inner = inner
        self.folder = folder

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def read_into(self, offset, *buffers):
        self.wait(self.folder.reads)
        return self.inner.read_into(offset, *buffers)

    def write(self, offset, data):
        self.wait(self.folder.writes)
        self.inner.write(offset, data)

    def sync(self):
        self.wait(self.folder.writes)
        self.inner.sync()

    def fileno(self):
        return None

    def wait(self, event):
        if self.folder.part in self.inner.name:
            event.wait(10)


# --- damage


def names_of(folder, suffix):
    return [name for name in folder.names() if name.endswith(suffix)]


def logs(folder):
    return names_of(folder, fmt.LOG_SUFFIX)


def remove_checkpoints(folder):
    for suffix in (fmt.CHECKPOINT_SUFFIX, fmt.IMAGES_SUFFIX):
        for name in names_of(folder, suffix):
            folder.remove(name)
    folder.sync()


def overwrite(folder, name, offset, data):
    file = folder.open(name, writable=True)
    file.write(offset, data)
    file.sync()
    file.close()


def flip(folder, name, offset):
    """Damage one byte."""
    overwrite(folder, name, offset, bytes([read_whole(folder, name)[offset] ^ 0x5A]))


def truncate(folder, name, size):
    file = folder.open(name, writable=True)
    file.truncate(size)
    file.sync()
    file.close()


def patch_header(folder, name, offset, data):
    """Change both copies of a log file's header, and make their checksums hold again."""
    content = bytearray(read_whole(folder, name))
    for start in (0, fmt.PAGE):
        page = content[start : start + fmt.PAGE]
        page[offset : offset + len(data)] = data
        page[fmt.CRC_AT : fmt.CRC_FROM] = crc32c(bytes(page[fmt.CRC_FROM :])).to_bytes(4, "little")
        overwrite(folder, name, start, bytes(page))


def patch_whole(folder, name, offset, data):
    """Change a checkpoint head, and make its checksum hold again."""
    content = bytearray(read_whole(folder, name))
    content[offset : offset + len(data)] = data
    content[fmt.CRC_AT : fmt.CRC_FROM] = crc32c(bytes(content[fmt.CRC_FROM :])).to_bytes(4, "little")
    overwrite(folder, name, 0, bytes(content))


def records(folder, name):
    """(offset, type, n, commit) of the records in a log file, by their headers alone."""
    data = read_whole(folder, name)
    found, at = [], fmt.LOG_HEADER_BYTES
    while at + fmt.RECORD.size <= len(data):
        _, _, length, kind, _, n, _, _, _, _, commit = fmt.RECORD.unpack_from(data, at)
        if not length:
            at += fmt.UNIT
            continue
        found.append((at, kind, n, commit))
        at += -(-length // fmt.UNIT) * fmt.UNIT
    return found


def segments(folder, name):
    return [at for at, kind, _, _ in records(folder, name) if kind == fmt.RECORD_SEGMENT]


async def until(condition, timeout=5.0):
    """Wait for background work to bring something about."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - a statistic has no event to wait for
            await asyncio.sleep(0.001)
