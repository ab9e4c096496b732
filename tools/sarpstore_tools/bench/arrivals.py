"""Arrivals at a fixed rate, whatever becomes of those that came before: then waiting counts (an open loop).

The moments are the system's timer's (timerfd_create(2)), which is a hundred times finer than those of event loops, and
tells how many were missed while the loop was held: they come late, and are told when they were due.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK_MONOTONIC = 1
TIMER_ABSOLUTE = 1
COUNT_BYTES = 8
AT_ONCE = 16
"""Arrivals started in one callback: those that were missed must not hold the loop once more."""
_LIBRARY = ctypes.CDLL(None, use_errno=True)
NANOSECONDS = 1_000_000_000


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = (("interval", _Moment), ("first", _Moment))


async def arrive(rate: float, seconds: float, start: Callable[[int], None]) -> int:
    """Call `start(due)` `rate` times a second; `due` is of time.perf_counter_ns. Returns how often it was called."""
    loop = asyncio.get_running_loop()
    total, interval = max(1, int(rate * seconds)), int(NANOSECONDS / rate)
    first, arrived, expired = time.perf_counter_ns() + interval, 0, 0
    ended = loop.create_future()
    descriptor = _timer(first, interval)

    def due() -> None:
        nonlocal expired
        behind = expired > arrived
        expired = min(total, expired + int.from_bytes(os.read(descriptor, COUNT_BYTES), "little"))
        if not behind:
            begin()

    def begin() -> None:
        nonlocal arrived
        for _ in range(min(AT_ONCE, expired - arrived)):
            start(first + arrived * interval)
            arrived += 1
        if arrived < expired:
            loop.call_soon(begin)
        elif arrived == total and not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, due)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return arrived


def _timer(first: int, interval: int) -> int:
    """The descriptor of a timer that expires at `first`, and each `interval` nanoseconds from then on."""
    descriptor: int = _LIBRARY.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0:
        timer = _Timer(_Moment(*divmod(interval, NANOSECONDS)), _Moment(*divmod(first, NANOSECONDS)))
        if _LIBRARY.timerfd_settime(descriptor, TIMER_ABSOLUTE, ctypes.byref(timer), None) == 0:
            return descriptor
        os.close(descriptor)
    number = ctypes.get_errno()
    raise OSError(number, f"timerfd: {os.strerror(number)}")
