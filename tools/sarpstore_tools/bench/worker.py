"""Processes that are there to be killed: a job as an argument, JSON lines over a pipe, a word to go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

T = TypeVar("T", bound=msgspec.Struct)


class WorkerError(RuntimeError):
    """A worker failed or ended by itself; the message is its reason."""


class Failed(msgspec.Struct, tag=True):
    """The worker gives up, for a reason that the user can act on."""

    reason: str


class Phase(msgspec.Struct, tag=True):
    """What the process does from here on."""

    where: str


class Worker:
    """A process of `module.main` with the job as its argument, seen from its parent; `messages`: what it sends."""

    def __init__(self, module: str, job: msgspec.Struct, messages: Any) -> None:
        # Not -m: the module's package may import the module before it is to run.
        code = f"import sys; from {module} import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, msgspec.json.encode(job).decode()]
        self.process = subprocess.Popen(  # noqa: S603 (our own program)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(messages | Failed)

    def messages(self) -> Iterator[Any]:
        """What it says, until it is dead. A line that its death cut short is dropped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                yield self._decoder.decode(line)

    def receive(self, kind: type[T]) -> T:
        """Its next message, which must be of that kind.

        Raises:
            WorkerError: it failed or died.
        """
        message = next(self.messages(), None)
        if message is None:
            raise WorkerError(f"a worker process ended unexpectedly with status {self.process.wait()}")
        if isinstance(message, Failed):
            raise WorkerError(message.reason)
        assert isinstance(message, kind), message
        return message

    def go_on(self) -> None:
        """Let it go on where it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Parent:
    """The parent, seen from the worker. Later prints go to standard error."""

    def __init__(self) -> None:
        self._sink = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(self, message: msgspec.Struct) -> None:
        """Write one message through, in one piece (up to 4,096 bytes)."""
        os.write(self._sink, msgspec.json.encode(message) + b"\n")

    def wait(self) -> None:
        """Wait for `go_on`; it blocks."""
        if not sys.stdin.buffer.readline():
            raise BrokenPipeError("the parent is gone")


async def work_together(tasks: Iterable[Coroutine[None, None, None]], seconds: float | None) -> None:
    """Do all of these at once: until killed, or for so many seconds. The first error ends them, as it is."""
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)
    except TimeoutError:
        pass
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
