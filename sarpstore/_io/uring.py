"""The backend on io_uring: reads of one turn of the loop are one system call, and so are those that have ended.

Calls (writes, syncs, renames) and files without a descriptor go to threads, as in the other backend.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
from typing import TYPE_CHECKING, Any, Final

from sarpstore import _format as fmt
from sarpstore._errors import OptionError
from sarpstore._io.threads import ThreadBackend
from sarpstore._kernel import ffi, lib, pointer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from sarpstore._io.backend import CallJob
    from sarpstore._io.table import ReadTable

__all__ = ["UringBackend"]

_log = logging.getLogger("sarpstore")

_FIXED_FRAMES_MAX: Final = 512
"""Frames registered with the kernel, which locks their memory: 2 MiB of the 8 MiB that a process may usually lock."""
_FIXED_FILES_MAX: Final = 4096
_RETRY_S: Final = 0.001

_REASONS: Final = {
    errno.EPERM: "the system forbids it (sysctl kernel.io_uring_disabled, or a container's seccomp rules)",
    errno.ENOSYS: "this kernel, or a container's seccomp rules, do not offer it (Linux 5.6 or later is needed)",
    errno.ENOMEM: "no memory may be locked for it (ulimit -l)",
}

# Reads in flight write into memory of the table and of whoever asked: nothing of it may be collected before they end,
# not even where a program drops an open store and goes on.
_started: set[UringBackend] = set()


class UringBackend:
    """A `Backend` on one ring for `queue_depth` (1 to 4096) reads; OptionError, with the reason, if there is none.

    `simplest`: without what kernels after 5.6 offer. The ring belongs to the thread that makes it.
    """

    def __init__(self, queue_depth: int = 128, *, simplest: bool = False) -> None:
        self.ring: Any = ffi.new("sarp_uring *")
        status = lib.sarp_uring_open(self.ring, queue_depth, simplest)
        if status < 0:
            reason = _REASONS.get(-status, os.strerror(-status))
            raise OptionError(f"io='uring': io_uring can't be had: {reason}; use io='auto' or 'threads'")
        self._threads = ThreadBackend()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        self._failed = False

    @property
    def name(self) -> str:
        return "uring"

    def start(
        self, loop: asyncio.AbstractEventLoop, table: ReadTable, ended: Callable[[Sequence[CallJob]], None]
    ) -> None:
        assert self._loop is None, "a backend is started once"
        self._loop = loop
        self._table = table
        self._ended = ended
        self._threads.start(loop, table, ended)
        self._threads.serve(self.turn)
        # Both are for speed only: where the process may not have them, reads go without.
        frames = min(_FIXED_FRAMES_MAX, 2 * int(table.c.limits.queue_depth), int(table.c.limits.page_limit))
        lib.sarp_uring_fix_memory(self.ring, pointer("uint8_t *", table.frames), frames * fmt.PAGE)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY or files > _FIXED_FILES_MAX:
            files = _FIXED_FILES_MAX
        lib.sarp_uring_fix_files(self.ring, files)
        loop.add_reader(self.ring.event_fd, self._woken)
        _started.add(self)

    def turn(self) -> None:
        self._turn(0)

    def opened(self, file: int) -> None:
        if self.ring.files_fixed and self._table.c.files[file].fd >= 0:
            lib.sarp_uring_fix_file(self.ring, self._table.c, file)

    def closed(self, file: int) -> None:
        if self._table.c.files[file].fixed:
            lib.sarp_uring_fix_file(self.ring, self._table.c, file)

    def call(self, job: CallJob) -> None:
        self._threads.call(job)

    def stop(self) -> None:
        if self.ring.fd >= 0 and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(self.ring.event_fd)
        lib.sarp_uring_close(self.ring)
        self._threads.stop()
        _started.discard(self)

    def _woken(self) -> None:
        self._turn(1)
        self._ended(())

    def _turn(self, woken: int) -> None:
        status = lib.sarp_uring_turn(self.ring, self._table.c, woken)
        if self._table.c.handed_count:
            self._threads.take_handed()
        if status == 0 or self._due:
            return
        assert self._loop is not None
        self._due = True
        if status == 2:  # the kernel is out of memory for reads, and none of ours will end and make room
            self._loop.call_later(_RETRY_S, self._go_on)
        else:
            self._loop.call_soon(self._go_on)
        if status < 0 and not self._failed:
            self._failed = True
            _log.error("io_uring takes no more reads: %s", os.strerror(-status))

    def _go_on(self) -> None:
        self._due = False
        if self.ring.fd >= 0:
            self._turn(0)
            self._ended(())
