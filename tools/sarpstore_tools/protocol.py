"""What a replay and its serving processes say to each other: msgpack messages over pipes, each after its length.

The parent writes a job to a process's standard input and reads messages from its standard output. The process keeps
that pipe for itself and sends whatever else is printed to standard error.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from typing import IO, Any, Literal

import msgspec

from sarpstore_tools.traces.source import TraceSpec  # noqa: TC001 (msgspec reads it when a message is decoded)

MESSAGE_BYTES_MAX = 64 << 20
"""A longer message is taken for damage."""

_LENGTH = struct.Struct("<I")


class StoreOptions(msgspec.Struct, frozen=True):
    """The options that a replay passes to `sarpstore.open`."""

    hash: Literal["sha256", "mmh3"] = "sha256"
    durability: Literal["interval", "always", "never"] = "interval"
    sync_interval_ms: int = 50
    routing: Literal["divergence", "sarp"] = "divergence"
    exact: bool = False
    read_cap: int = 4

    @property
    def may_lose(self) -> bool:
        """Whether a match may find less than is held: the published method, by design."""
        return self.routing == "sarp"


class ServeJob(msgspec.Struct, tag=True, kw_only=True):
    """Replay `trace` into a new store at `store`; then sync, and answer until killed if `kill`, else close."""

    store: str
    options: StoreOptions
    trace: TraceSpec
    concurrency: int
    locations: bool
    kill: bool
    samples_path: str
    samples_max: int


class RecoverJob(msgspec.Struct, tag=True, kw_only=True):
    """Import everything and load the samples; then, at `Open`, open `store`, answer, and check every sample."""

    store: str
    options: StoreOptions
    locations: bool
    samples_path: str


class Open(msgspec.Struct, tag=True):
    """Parent to a waiting process: open the store now."""


class Started(msgspec.Struct, tag=True):
    """The trace is open."""

    total: int | None
    notes: list[str]


class Progress(msgspec.Struct, tag=True):
    """So far: turns, tokens of their prompts, tokens that matched, and seconds spent in the store."""

    turns: int
    prompt_tokens: int
    matched_tokens: int
    seconds: float


class Latency(msgspec.Struct):
    """Percentiles of one kind of call, in microseconds; `calls` is how many they are over."""

    calls: int = 0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0


class Finished(msgspec.Struct, tag=True, kw_only=True):
    """What a replay found; `answers` were compared with the oracle's, `stats` are the counters after `sync()`.

    Matched, held and lost tokens are those of whole blocks.
    """

    turns: int
    answers: int
    prompt_tokens: int
    inserted_tokens: int
    matched_tokens: int
    oracle_tokens: int
    lost_tokens: int
    wrong: int
    mismatches: list[str]
    unique_blocks: int
    seconds: float
    match_length: Latency
    match_locations: Latency
    insert: Latency
    reads_length: float
    reads_locations: float
    stats: dict[str, Any]


class Answering(msgspec.Struct, tag=True):
    """Still alive and answering after the replay; `answers` so far, `wrong` of them wrong."""

    answers: int
    wrong: int


class Ready(msgspec.Struct, tag=True):
    """A process that is to recover has imported everything and waits for `Open`."""


class Recovered(msgspec.Struct, tag=True):
    """The store is open after `open_ms` and gave its first right answer `answer_ms` after open() was called.

    `tries` is the number of queries that took: more than 1 means that wrong answers came first.
    """

    open_ms: float
    answer_ms: float
    tries: int


class Rechecked(msgspec.Struct, tag=True):
    """Every sample was asked again after the recovery."""

    checked: int
    wrong: int
    lost_tokens: int
    mismatches: list[str]
    stats: dict[str, Any]


class Failed(msgspec.Struct, tag=True):
    """The process gives up, for a reason that the user can act on."""

    reason: str


Message = (
    ServeJob | RecoverJob | Open | Started | Progress | Finished | Answering | Ready | Recovered | Rechecked | Failed
)


class Channel:
    """Messages in and out over two binary streams."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._decoder = msgspec.msgpack.Decoder(Message)

    @classmethod
    def of_child(cls) -> Channel:
        """This process's end: its standard input and output. Later prints go to standard error."""
        sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(sys.stdin.buffer, sink)

    def send(self, message: Message) -> None:
        """Write one message through."""
        data = msgspec.msgpack.encode(message)
        self._sink.write(_LENGTH.pack(len(data)) + data)
        self._sink.flush()

    def receive(self) -> Any:
        """The next message; it blocks.

        Raises:
            EOFError: the other end is gone.
        """
        header = self._source.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            raise EOFError("the other process is gone")
        (length,) = _LENGTH.unpack(header)
        assert length <= MESSAGE_BYTES_MAX, f"a message of {length} bytes"
        data = self._source.read(length)
        if len(data) < length:
            raise EOFError("the other process is gone")
        return self._decoder.decode(data)


class Child:
    """A process of `sarpstore_tools.serving`, and the channel to it."""

    def __init__(self, job: ServeJob | RecoverJob) -> None:
        self.process = subprocess.Popen(
            # -P: a folder named sarpstore where the command is run must not stand in for the package.
            [sys.executable, "-P", "-m", "sarpstore_tools.serving"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout, self.process.stdin)
        # A process that died at once is noticed by the first `receive`, which knows how it ended.
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(job)

    def stop(self) -> None:
        """Kill the process if it still runs, and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
