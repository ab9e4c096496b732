"""A disk whose power can be cut: a file system of its own, in a file, that is shut down as it stands.

The ioctl that file systems' own crash tests use (FS_IOC_SHUTDOWN without flushing the journal; xfstests calls it
`godown`) makes ext4 and XFS stop at once: what was not synced is in the page cache alone, and gone when it is mounted
again; the journal is replayed as after a power cut. What the file system had handed over to its disk counts as
written, in order: no volatile cache in the device is simulated. A sync that is under way at that moment may return
success for what is lost (seen with ext4 on a busy machine), so what was heard before the cut is what counts.

Needs Linux, the right to mount (root), and mkfs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_SYSTEMS: Final = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
"""Those that can be shut down, and what makes one in a file, whose name follows."""

_SHUTDOWN: Final = 0x8004587D  # _IOR('X', 125, u32) of linux/fs.h; ext4's and XFS's alike
_NO_LOG_FLUSH: Final = struct.pack("I", 2)
_UNMOUNT_S_MAX: Final = 10.0


class NoPowerCutError(Exception):
    """This machine, or this user, cannot do it."""


class CutDisk:
    """The disk, mounted at `folder`."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.folder = folder
        self._image = image

    def cut(self) -> None:
        """The power goes: every call that would write or sync fails from now on. NoPowerCutError if it cannot."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        except OSError as error:
            raise NoPowerCutError(f"{self.folder}: the file system cannot be shut down: {error.strerror}") from error
        finally:
            os.close(fd)

    def back(self) -> None:
        """The power comes again. Nobody may have anything open on the disk."""
        self.unmount()
        self.mount()

    def mount(self) -> None:
        """NoPowerCutError if that may not be done here."""
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def unmount(self) -> None:
        """A process that was killed may take a moment to let go of its files."""
        stop = time.monotonic() + _UNMOUNT_S_MAX
        while True:
            try:
                _run("umount", str(self.folder))
            except NoPowerCutError:
                if time.monotonic() > stop:
                    raise
                time.sleep(0.05)
            else:
                return


@contextlib.contextmanager
def cut_disk(place: Path, file_system: str, size: int = 512 << 20) -> Iterator[CutDisk]:
    """A new disk of `size` bytes in the folder `place`, mounted while the context lasts. NoPowerCutError."""
    command = FILE_SYSTEMS[file_system]
    if shutil.which(command[0]) is None:
        raise NoPowerCutError(f"{command[0]} is not installed")
    image, folder = place / "disk.img", place / "disk"
    with image.open("wb") as file:
        file.truncate(size)
    _run(*command, str(image))
    folder.mkdir()
    disk = CutDisk(image, folder)
    disk.mount()
    try:
        disk.cut()  # or whoever may mount, and may not do that, would know it at the first cut
        disk.back()
        yield disk
    finally:
        disk.unmount()
        image.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        raise NoPowerCutError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
