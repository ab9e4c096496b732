"""Named points at which a writer kills itself: before, within or after a system call on one kind of its files.

    "rename checkpoint", the 3rd, before      "write log", the 20th, halfway

The calls of `os` that change files are wrapped in the process that is to die, so nothing of the store knows of it. A
kill leaves what was written in the system's cache; what a power cut leaves of it is the business of the crash fuzzer.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

KINDS: Final = ("log", "images", "checkpoint", "region", "entries", "chunks")
POINTS: Final = (
    *(f"{call} log" for call in ("create", "write", "sync", "rename", "remove")),
    *(f"{call} images" for call in ("create", "write", "sync", "remove")),
    *(f"{call} checkpoint" for call in ("create", "write", "sync", "rename", "remove")),
    "sync folder",
)
"""Of an index."""
CHUNK_POINTS: Final = (
    *(f"{call} region" for call in ("create", "write", "sync", "remove")),
    *(f"{call} entries" for call in ("create", "write", "sync", "rename", "remove")),
    *(f"{call} chunks" for call in ("create", "write", "sync", "rename", "remove")),
    "sync folder",
)
"""Of a chunk store."""
NTH_MAX: Final = 6
# What comes with every commit, or file, may come late.
OFTEN: Final = ("write log", "sync log", "sync folder", "write region", "sync region", "write entries", "sync entries")
OFTEN_NTH_MAX: Final = 60

When = Literal["before", "halfway", "after"]


class KillPoint(msgspec.Struct, kw_only=True, frozen=True):
    """The `nth` call (from 1) that `point` names. `when` "halfway": half of what was to be written is."""

    point: str
    nth: int
    when: When


def any_point(chance: random.Random, points: Sequence[str] = POINTS) -> KillPoint:
    """One of these; those that come often may come late."""
    point = chance.choice(points)
    nth = chance.randint(1, OFTEN_NTH_MAX if point in OFTEN else NTH_MAX)
    return KillPoint(point=point, nth=nth, when=chance.choice(moments_of(point)))


def moments_of(point: str) -> tuple[When, ...]:
    """When the process may die there: only what is written can be written by half."""
    return ("before", "halfway", "after") if point.startswith("write") else ("before", "after")


def arm(point: KillPoint) -> None:
    """From now on the process kills itself (SIGKILL) there."""
    trap = _Trap(point)
    trap.wrap("open", lambda name, flags, *_: f"create {_kind(name)}" if flags & os.O_CREAT else "")
    trap.wrap("pwritev", lambda fd, *_: f"write {_kind(_name_of(fd))}", halfway=_write_half)
    trap.wrap("fdatasync", lambda fd: f"sync {_kind(_name_of(fd))}")
    trap.wrap("fsync", lambda _: "sync folder")
    trap.wrap("replace", lambda old, *_: f"rename {_kind(old)}")
    trap.wrap("unlink", lambda name: f"remove {_kind(name)}")


class _Trap:
    def __init__(self, point: KillPoint) -> None:
        self._point = point
        self._seen = 0
        self._lock = threading.Lock()

    def wrap(self, name: str, point_of: Callable[..., str], halfway: Callable[..., None] = lambda *_: None) -> None:
        original = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_here(point_of(*args)):
                return original(*args, **kwargs)
            if self._point.when == "halfway":
                halfway(original, *args)
            elif self._point.when == "after":
                original(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("killed")

        setattr(os, name, call)

    def _is_here(self, point: str) -> bool:
        if point != self._point.point:
            return False
        with self._lock:
            self._seen += 1
            return self._seen == self._point.nth


def _write_half(write: Callable[..., int], fd: int, buffers: list[Any], offset: int) -> None:
    data = memoryview(buffers[0]).cast("B")
    write(fd, [data[: len(data) // 2]], offset)


def _name_of(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name


def _kind(name: str | os.PathLike[str]) -> str:
    kind = os.fspath(name).removesuffix(".tmp").rpartition(".")[2]
    return kind if kind in KINDS else "other"
