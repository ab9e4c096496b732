"""Redis, started for the run on a unix socket: a key a block, MGET for a match, MSET for an insertion.

One MGET asks for the whole history, so a match is one round trip. Persistence is its append-only file with an fsync a
second. A connection for each request in flight; replies are parsed by hiredis where it is installed. Its memory is not
bounded by the budget: it keeps everything in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as NoConnectionError

from sarpstore_tools.bench.compare.dictionary import keys_of
from sarpstore_tools.bench.compare.engine import Engine, NotAvailableError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sarpstore_tools.bench.shapes import Ids

POLL_SECONDS = 0.001
PR_SET_PDEATHSIG = 1
SOCKET_BYTES_MAX = 100
"""A unix socket's address has room for little more; a longer path is reached through /proc."""


class Redis(Engine):
    """A server of its own in the store's folder."""

    async def open(self, folder: Path, *, create: bool) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise NotAvailableError("redis-server is not installed here")
        home = folder / "redis"
        home.mkdir(exist_ok=not create)
        self._server = subprocess.Popen(  # noqa: S603, ASYNC220 (an installed program; opening is timed as a whole)
            [program, *_settings(home)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        self._client: Any = redis.asyncio.Redis(
            connection_pool=redis.asyncio.BlockingConnectionPool(
                connection_class=redis.asyncio.UnixDomainSocketConnection,
                path=_socket(home),
                max_connections=self.concurrency,
                timeout=None,
                retry=Retry(NoBackoff(), 0),  # it is asked again each millisecond until it answers
            )
        )
        await self._answering()

    async def _answering(self) -> None:
        """Until it has loaded everything."""
        while True:
            if self._server.poll() is not None:
                raise NotAvailableError(f"redis-server ended by itself with status {self._server.returncode}")
            try:
                await self._client.ping()
            except (NoConnectionError, BusyLoadingError, ResponseError):
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    def prepare(self, ids: Ids, locations: npt.NDArray[np.uint8], history: int) -> Any:
        keys = keys_of(ids)
        return keys[:history], keys, keys_of(locations)

    async def match(self, native: Any) -> tuple[int, Any]:
        if not native[0]:
            return 0, []
        rows = await self._client.mget(native[0])
        held = next((i for i, row in enumerate(rows) if row is None), len(rows))
        return held, rows[:held]

    def prepare_insert(self, native: Any, matched: int) -> Any:
        return dict(zip(native[1][matched:], native[2][matched:], strict=True))

    async def insert(self, native: Any) -> None:
        if native:
            await self._client.mset(native)

    async def persist(self, folder: Path) -> None:
        """Nothing to do: what it acknowledged it has written to its append-only file."""

    async def close(self) -> None:
        await self._client.aclose(close_connection_pool=True)
        await asyncio.sleep(0)  # the sockets close in the loop's next turn
        self._server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(10)
        self._server.kill()
        self._server.wait()

    def processes(self) -> list[int]:
        return [self._server.pid]


def _die_with_parent() -> None:
    """A killed worker leaves no server behind (prctl(PR_SET_PDEATHSIG, SIGKILL))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _settings(home: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": "socket",
        "dir": str(home),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
    }
    return [text for name, value in settings.items() for text in (f"--{name}", value)]


def _socket(home: Path) -> str:
    path = home / "socket"
    if len(os.fsencode(path)) < SOCKET_BYTES_MAX:
        return str(path)
    descriptor = os.open(home, os.O_PATH)  # kept: the path below leads through it
    return str(Path("/proc/self/fd") / str(descriptor) / "socket")
