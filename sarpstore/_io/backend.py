"""What the scheduler asks of a backend: runs of reads out of their table, and calls, both off the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from sarpstore._io.table import ReadTable

__all__ = ["Backend", "CallJob"]


class CallJob:
    """Call `function(*args)`; the backend sets `result` to what it returns or `error` to what it raises.

    Calls with the same `background` run one after another; the log's never wait for those of checkpoints. A job belongs
    to the backend until it is completed.
    """

    __slots__ = ("args", "background", "error", "function", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], *, background: bool = False) -> None:
        self.background = background
        self.function = function
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None


class Backend(Protocol):
    """Carries out reads and calls. All methods are called on the loop that `start` was given, and none blocks it."""

    @property
    def name(self) -> str:
        """For `stats()`: "threads" or "uring"."""

    def start(
        self, loop: asyncio.AbstractEventLoop, table: ReadTable, ended: Callable[[Sequence[CallJob]], None]
    ) -> None:
        """Begin; from now on `ended` is called on the loop when reads of the table or calls have ended.

        It is given the calls, each once. Reads have been completed in the table by then.
        """

    def turn(self) -> None:
        """Start all runs that may go now. Some may have been completed on return."""

    def opened(self, file: int) -> None:
        """The file with this number in the table will be read often."""

    def closed(self, file: int) -> None:
        """That file, of which no read is left, is about to be given up."""

    def call(self, job: CallJob) -> None:
        """Start this call after all earlier ones of its kind have ended. Reads are not held up by it."""

    def stop(self) -> None:
        """End the backend; only called when nothing is outstanding. Stopping again does nothing."""
