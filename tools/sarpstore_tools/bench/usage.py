"""What a process and a folder take, as the system tells it: nothing of it is the engine's own word."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOCATED_UNIT = 512
"""What st_blocks counts in (stat(2))."""
ROUNDED_TO = 4096
SAMPLE_SECONDS = 0.05


class DiskUse(NamedTuple):
    """Bytes of all files of a folder: as allocated by the file system, and by length, each rounded up to 4 KiB."""

    allocated: int
    rounded: int


def disk_use(folder: Path) -> DiskUse:
    """What the files in `folder` take now; one that vanishes meanwhile does not count."""
    allocated = rounded = 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            allocated += status.st_blocks * ALLOCATED_UNIT
            rounded += -(-status.st_size // ROUNDED_TO) * ROUNDED_TO
    return DiskUse(allocated, rounded)


def resident_bytes() -> int:
    """Memory of this process that is resident (/proc/self/statm, second field)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class UsageWatch:
    """A thread that looks at a folder and at this process every 50 ms: the most disk use, and memory since `mark`."""

    def __init__(self, folder: Path) -> None:
        self.most = DiskUse(0, 0)
        self.samples = 0
        self._folder = folder
        self._resident: list[int] = []
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[UsageWatch]:
        """Look on while the context lasts."""
        thread = threading.Thread(target=self._watch, name="usage", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def mark(self) -> int:
        """The median of this process's memory since the last mark, which begins anew."""
        seen, self._resident = self._resident, []
        return int(statistics.median(seen or [resident_bytes()]))

    def _watch(self) -> None:
        while True:
            used = disk_use(self._folder)
            self.most = DiskUse(max(self.most.allocated, used.allocated), max(self.most.rounded, used.rounded))
            self.samples += 1
            self._resident.append(resident_bytes())
            if self._ended.wait(SAMPLE_SECONDS):
                return


def free_bytes(folder: Path) -> int:
    """Room that the file system of `folder` has for this user."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
