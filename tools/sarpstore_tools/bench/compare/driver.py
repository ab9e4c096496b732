"""Playing requests into an engine: so many in flight, never two of one session, a clock that stops for our own work.

A request is a match of its history and an insertion of the extended sequence. Requests start in the order of the file;
one whose session is busy waits for it, and others go first. The clock stops while the driver brings a request into the
engine's native form and while it compares locations, and CPU seconds leave that out, too; what an engine does meanwhile
in other threads or in the kernel goes on.

A latency ends when the match returns. With one request in flight it begins with the call. With more it begins when the
request is issued, which is when the one before it was done: what it then waits until the event loop gets to it is part
of it, whether it waits inside the engine or before it. (A RocksDB thread waits for a core in the same way.)

What happened in which order is noted and judged afterwards (`check`).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from sarpstore_tools.bench.compare.engine import Engine
    from sarpstore_tools.bench.compare.requests import Requests

MATCH_BEGUN, MATCHED, INSERT_BEGUN, INSERTED = range(4)
"""Events of a request."""


class StoppedClock:
    """Nanoseconds, without the time between `stop` and `go`; CPU seconds of this thread meanwhile are kept apart."""

    def __init__(self) -> None:
        self.left_out_ns = 0
        self.left_out_cpu_ns = 0
        self._stopped = 0
        self._stopped_cpu = 0

    def now(self) -> int:
        """Nanoseconds since some moment."""
        return time.perf_counter_ns() - self.left_out_ns

    def stop(self) -> None:
        """Our own work begins."""
        self._stopped_cpu = time.thread_time_ns()
        self._stopped = time.perf_counter_ns()

    def go(self) -> None:
        """And ends."""
        self.left_out_ns += time.perf_counter_ns() - self._stopped
        self.left_out_cpu_ns += time.thread_time_ns() - self._stopped_cpu


class Played:
    """What happened: `events` are 4 * request + event in their order; `matched` and `latency_ns` are by request."""

    def __init__(self, requests: int) -> None:
        # Made and touched beforehand: the process's growth is the engine's.
        self.matched = np.full(requests, -1, np.int64)
        self.latency_ns = np.full(requests, -1, np.int64)
        self.events = array("q", bytes(8 * 4 * requests))
        self.event_count = 0
        self.wrong_locations: list[int] = []
        self.seconds = 0.0
        self.left_out_cpu_seconds = 0.0
        self.flight_max = 0

    def note(self, request: int, event: int) -> None:
        """An event happens now."""
        self.events[self.event_count] = 4 * request + event
        self.event_count += 1

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """By request: whether it was matched."""
        return self.matched >= 0


class Driver:
    """One run of one engine."""

    def __init__(self, engine: Engine, requests: Requests, played: Played, limit: int | None = None) -> None:
        self._engine = engine
        self._requests = requests
        self._played = played
        self._clock = StoppedClock()
        self._next = 0
        self._end = len(requests) if limit is None else min(limit, len(requests))
        self._sessions: list[int] = requests.session.tolist()
        self._history: list[int] = requests.history.tolist()
        self._waiting: dict[int, deque[int]] = {}
        self._flight = 0
        self._deadline = 0
        self._queues = False

    async def run(self, concurrency: int, seconds_max: float) -> None:
        """Play all requests, or those that begin within `seconds_max` seconds."""
        clock = self._clock
        self._queues = concurrency > 1
        began = clock.now()
        self._deadline = began + int(seconds_max * 1e9)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, self._end)):
                    group.create_task(self._requester())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._played.seconds = (clock.now() - began) / 1e9
        self._played.left_out_cpu_seconds = clock.left_out_cpu_ns / 1e9

    async def _requester(self) -> None:
        """Play the next request that may begin, and those of its session that had to wait for it."""
        while (request := self._take()) is not None:
            session = self._sessions[request]
            waiting = self._waiting[session] = deque((request,))
            self._flight += 1
            self._played.flight_max = max(self._played.flight_max, self._flight)
            while waiting:
                issued = self._clock.now()
                if issued >= self._deadline:
                    break
                # As in a server: whoever else has something to do gets the loop.
                await asyncio.sleep(0)
                await self._play(waiting.popleft(), issued)
            del self._waiting[session]
            self._flight -= 1

    def _take(self) -> int | None:
        while self._next < self._end and self._clock.now() < self._deadline:
            request = self._next
            self._next += 1
            busy = self._waiting.get(self._sessions[request])
            if busy is None:
                return request
            busy.append(request)
        return None

    async def _play(self, request: int, issued: int) -> None:
        engine, clock, played = self._engine, self._clock, self._played
        clock.stop()
        rows = self._requests.locations_of(request)
        native = engine.prepare(self._requests.ids_of(request), rows, self._history[request])
        played.note(request, MATCH_BEGUN)
        clock.go()
        began = issued if self._queues else clock.now()
        matched, found = await engine.match(native)
        played.latency_ns[request] = clock.now() - began
        clock.stop()
        played.note(request, MATCHED)
        played.matched[request] = matched
        if engine.keeps_locations and engine.locations(found) != rows[:matched].tobytes():
            played.wrong_locations.append(request)
        native = engine.prepare_insert(native, matched)
        played.note(request, INSERT_BEGUN)
        clock.go()
        await engine.insert(native)
        played.note(request, INSERTED)
