"""What the system says of a process: memory, CPU time, bytes written; and percentiles."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sarpstore_tools.bench.compare.model import Latency

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

SECTOR_BYTES = 512
"""Unit of st_blocks."""


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Of one or more processes together: seconds and bytes."""

    cpu_seconds: float
    rss_bytes: int
    anonymous_bytes: int


def resources(others: Sequence[int] = ()) -> Resources:
    """Of this process and of `others`, given by their ids.

    CPU seconds are user and system time of all threads: this process's by its CPU clock, others' in clock ticks
    (/proc/PID/stat). Memory is VmRSS and RssAnon of /proc/PID/status.
    """
    processes = [Path("/proc/self"), *(Path("/proc") / str(number) for number in others)]
    memory = [_memory(process) for process in processes]
    return Resources(
        cpu_seconds=time.process_time() + sum(_cpu(process) for process in processes[1:]),
        rss_bytes=sum(rss for rss, _ in memory),
        anonymous_bytes=sum(anonymous for _, anonymous in memory),
    )


def written_bytes(processes: Sequence[int]) -> int:
    """What these processes (0: this one) had the system write to devices so far, or dirtied for it (/proc/PID/io).

    0 for those of which the system does not tell.
    """
    return sum(_written(Path("/proc") / (str(number) if number else "self")) for number in processes)


def settle() -> None:
    """Give back what the process does not need, so that its resident set says what it holds."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def folder_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk, as du counts them."""
    return sum(path.stat().st_blocks * SECTOR_BYTES for path in folder.rglob("*") if path.is_file())


def latency_of(nanoseconds: npt.NDArray[np.int64]) -> Latency:
    """Mean and percentiles, in microseconds; percentiles are interpolated linearly between the two nearest."""
    if not len(nanoseconds):
        return Latency()
    p50, p99, p999 = np.percentile(nanoseconds, [50, 99, 99.9]) / 1e3
    return Latency(float(nanoseconds.mean()) / 1e3, float(p50), float(p99), float(p999))


def _memory(process: Path) -> tuple[int, int]:
    found = {}
    for line in (process / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            found[name] = int(value.split()[0]) * 1024
    return found.get("VmRSS", 0), found.get("RssAnon", 0)


def _cpu(process: Path) -> float:
    # The command's name, in parentheses, may hold spaces.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written(process: Path) -> int:
    try:
        lines = (process / "io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes")), 0)
