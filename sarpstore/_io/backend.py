"""What the scheduler asks of a backend: reads in batches, calls one after another, both off the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from sarpstore._files import File

__all__ = ["Backend", "CallJob", "Job", "ReadJob"]


class Job:
    """Work for a backend, which sets `error` where it fails. It belongs to the backend until it is completed."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class ReadJob(Job):
    """Fill `buffers` one after another with the file's bytes from `offset` on.

    The backend sets `result` to the bytes read (fewer than asked only at end of file) or `error` to what
    `File.read_into` raises. The buffers must stay where they are until then, whoever still waits for them.
    """

    __slots__ = ("buffers", "file", "offset", "result")

    def __init__(self, file: File, offset: int, buffers: Sequence[memoryview] = ()) -> None:
        super().__init__()
        self.file = file
        self.offset = offset
        self.buffers = buffers
        self.result = 0


class CallJob(Job):
    """Call `function(*args)`; the backend sets `result` to what it returns or `error` to what it raises.

    Calls with the same `background` run one after another; the log's never wait for those of checkpoints.
    """

    __slots__ = ("args", "background", "function", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], *, background: bool = False) -> None:
        super().__init__()
        self.background = background
        self.function = function
        self.args = args
        self.result: Any = None


class Backend(Protocol):
    """Carries out jobs. All methods are called on the loop that `start` was given, and none blocks it."""

    @property
    def name(self) -> str:
        """For `stats()`: "threads" or "uring"."""

    def start(self, loop: asyncio.AbstractEventLoop, completed: Callable[[Sequence[Job]], None]) -> None:
        """Begin; from now on `completed` is called on the loop with each group of jobs that have ended.

        Every job submitted is in exactly one such group, however it ended.
        """

    def allocate(self, length: int) -> memoryview:
        """A writable buffer of `length` bytes, aligned and registered as the backend's reads like it."""

    def submit(self, reads: Sequence[ReadJob]) -> None:
        """Start these reads, in any order and at the same time."""

    def call(self, job: CallJob) -> None:
        """Start this call after all earlier ones of its kind have ended. Reads are not held up by it."""

    def stop(self) -> None:
        """End the backend; only called when no job is outstanding. Stopping again does nothing."""
