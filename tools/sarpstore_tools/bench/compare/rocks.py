"""RocksDB as the SARP paper's baselines: an external C++ program, compiled when it is first needed.

Its sources are in `bench/rocks`; it links with the system's librocksdb.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypeVar

import msgspec

from sarpstore_tools.bench.compare.engine import NotAvailableError
from sarpstore_tools.bench.compare.model import CellJob, CellResult, Latency, RecoverResult
from sarpstore_tools.bench.compare.programs import compiled
from sarpstore_tools.bench.worker import WorkerError

T = TypeVar("T", bound=msgspec.Struct)

SOURCES = Path(__file__).parent.parent / "rocks"
FLAGS = ("-O2", "-std=c++17")
LIBRARIES = ("-lrocksdb", "-pthread")
GRACE_SECONDS = 300
"""What a run may take besides the time that it was given: opening, filling caches, closing."""

DESIGNS = {"blockhash": "SSD-BlockHash", "segmenthash": "Segment-Hash", "radix": "capped Segment-Radix"}
VARIANTS = {"paper": "as the SARP paper describes it", "best": "as well as we know to set it up"}
PREFIX = "rocksdb-"

ROCKS_ENGINES = {
    f"{PREFIX}{design}-{variant}": f"RocksDB, {called}, {how}"
    for design, called in DESIGNS.items()
    for variant, how in VARIANTS.items()
}
"""Name → description."""


class RunOutput(msgspec.Struct, kw_only=True):
    """What the program writes after `run`."""

    requests: int
    seconds: float
    latency_us: Latency
    cpu_seconds: float
    rss_bytes: int
    rss_before_bytes: int
    written_bytes: int
    db_bytes: int
    wrong: int
    matched_blocks: int
    lost_blocks: int
    reads: int | None = None
    notes: str = ""


class RecoverOutput(msgspec.Struct, kw_only=True):
    """What the program writes after `recover`: milliseconds from the start of opening."""

    open_ms: float
    first_match_ms: float
    loaded_ms: float
    matched: int
    expected: int


class RocksProgram:
    """The program, compiled at first use."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def run(self, job: CellJob, workload_requests: int, workload_blocks: int) -> CellResult:
        """One run of a request file into a new database.

        Raises:
            NotAvailableError: it cannot be compiled here.
            WorkerError: it failed.
        """
        out = Path(f"{job.folder}.json")
        self._call(
            "run",
            job.engine,
            *("--requests", job.requests, "--db", job.folder, "--threads", str(job.concurrency)),
            *("--cache-bytes", str(job.budget_bytes), "--seconds-max", str(job.seconds_max), "--out", str(out)),
            seconds=job.seconds_max + GRACE_SECONDS,
        )
        found = _read(out, RunOutput)
        whole = found.requests == workload_requests
        return CellResult(
            requests=found.requests,
            seconds=found.seconds,
            latency_us=found.latency_us,
            cpu_seconds=found.cpu_seconds,
            rss_bytes=found.rss_bytes - found.rss_before_bytes,
            written_bytes=found.written_bytes,
            folder_bytes=found.db_bytes,
            blocks=workload_blocks if whole else 0,  # of a part it does not tell
            wrong=found.wrong,
            matched_blocks=found.matched_blocks,
            history_blocks=0,
            lost_blocks=found.lost_blocks,
            reads=found.reads,
            note=found.notes,
        )

    def fill(self, engine: str, folder: str, requests: str, budget_bytes: int) -> None:
        """Fill a database; the program kills itself with SIGKILL at the end."""
        files = ("--db", folder, "--requests", requests)
        budget = ("--cache-bytes", str(budget_bytes))
        self._call("fill", engine, *files, *budget, seconds=GRACE_SECONDS, killed=True)

    def recover(self, engine: str, folder: str, probe: str, budget_bytes: int) -> RecoverResult:
        """Open it and ask the request of `probe`."""
        out = Path(f"{folder}.json")
        files = ("--db", folder, "--probe", probe, "--out", str(out))
        self._call("recover", engine, *files, "--cache-bytes", str(budget_bytes), seconds=GRACE_SECONDS)
        found = _read(out, RecoverOutput)
        right = found.matched == found.expected
        wrong = "" if right else f"{found.matched} blocks match where {found.expected} should"
        return RecoverResult(
            open_ms=found.open_ms,
            answer_ms=found.first_match_ms,
            # A design that loads nothing besides says what opening took.
            loaded_ms=found.loaded_ms if found.loaded_ms > found.open_ms else None,
            wrong=wrong,
        )

    def _call(self, mode: str, engine: str, *arguments: str, seconds: float, killed: bool = False) -> None:
        design, _, variant = engine.removeprefix(PREFIX).partition("-")
        command = [str(self.path()), mode, "--design", design, "--variant", variant, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 (our own program)
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise WorkerError(f"no end after {seconds:.0f} s") from None
        if done.returncode != (-9 if killed else 0):
            raise WorkerError(f"{mode} ended with status {done.returncode}: {_last_line(done.stderr)}")

    def path(self) -> Path:
        """The binary.

        Raises:
            NotAvailableError: the compiler or the library is missing.
        """
        if self._path is None:
            self._path = _build()
        return self._path


def _build() -> Path:
    try:
        return compiled("rocks_bench", SOURCES, ("g++", "c++"), FLAGS, LIBRARIES)
    except NotAvailableError as error:
        if "rocksdb/" in str(error) or "-lrocksdb" in str(error):
            raise NotAvailableError("librocksdb is not installed here (Debian: librocksdb-dev)") from error
        raise


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise WorkerError(f"the program's result cannot be read: {error}") from error


def _last_line(data: bytes) -> str:
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
