"""The processes of `sarpstore bench compare`: `python -m sarpstore_tools.bench.compare.worker JOB`, one job each.

JOB is a JSON object of `model`; messages go to standard output, a JSON object a line. A process of its own for each run
keeps memory and CPU time apart.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import sarpstore
from sarpstore_tools.bench.compare.cached import run_cached
from sarpstore_tools.bench.compare.check import judge
from sarpstore_tools.bench.compare.driver import Driver, Played
from sarpstore_tools.bench.compare.engine import NotAvailableError, engine_class
from sarpstore_tools.bench.compare.measure import folder_bytes, latency_of, resources, settle, written_bytes
from sarpstore_tools.bench.compare.model import (
    CachedJob,
    CellJob,
    CellResult,
    Filled,
    FillJob,
    LeftOut,
    Ready,
    RecoverJob,
    RecoverResult,
)
from sarpstore_tools.bench.compare.requests import RequestFileError, Requests, read_requests
from sarpstore_tools.bench.machine import event_loop
from sarpstore_tools.bench.worker import Failed, Parent

if TYPE_CHECKING:
    from sarpstore_tools.bench.compare.engine import Engine

Job = CellJob | FillJob | RecoverJob | CachedJob

POLL_SECONDS = 0.0005
TRIES = 1000
"""Matches after opening until the first right one, at most."""

QUIET_SECONDS = 1.0
"""Between the last insertion and the kill: a server that crashes, not a load that is cut short (`bench recovery`)."""


def main() -> int:
    """Do the job in the first argument; the exit status is 0, or 2 after a message that says why not."""
    # Ctrl-C reaches the whole process group; the parent ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job: Job = msgspec.json.decode(sys.argv[1], type=Job)
    parent = Parent()
    try:
        with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
            runner.run(_do(job, parent))
    except BrokenPipeError:
        return 2  # The parent is gone: nobody is left to tell.
    except NotAvailableError as error:
        parent.send(LeftOut(str(error)))
        return 2
    except (sarpstore.SarpError, RequestFileError, OSError) as error:
        parent.send(Failed(f"{type(error).__name__}: {error}"))
        return 2
    return 0


async def _do(job: Job, parent: Parent) -> None:
    match job:
        case CellJob():
            parent.send(await run_cell(job))
        case FillJob():
            await _fill(job, parent)
        case RecoverJob():
            await _recover(job, parent)
        case CachedJob():
            parent.send(await run_cached(job))


async def run_cell(job: CellJob) -> CellResult:
    """One run, in this process."""
    requests = read_requests(Path(job.requests))
    played = Played(len(requests))
    kind = engine_class(job.engine)
    blocks = int(requests.ordinals.max(initial=0)) + 1
    await _warm_up(kind(job.budget_bytes, blocks, job.concurrency), job, requests)
    settle()
    before = resources()
    engine = kind(job.budget_bytes, blocks, job.concurrency)
    folder = _made(job.folder)
    await engine.open(folder, create=True)
    began, reads = resources(engine.processes()), engine.usage().reads
    written = -written_bytes([0, *engine.processes()])
    await Driver(engine, requests, played).run(job.concurrency, job.seconds_max)
    ended, usage = resources(engine.processes()), engine.usage()
    settle()
    held = resources(engine.processes())
    written += written_bytes(engine.processes())
    await engine.close()
    written += written_bytes([0])
    verdict = judge(requests, played, exact=kind.exact, concurrency=job.concurrency)
    done = played.done
    return CellResult(
        requests=int(done.sum()),
        seconds=played.seconds,
        latency_us=latency_of(played.latency_ns[done]),
        cpu_seconds=ended.cpu_seconds - began.cpu_seconds - played.left_out_cpu_seconds,
        rss_bytes=held.rss_bytes - before.rss_bytes,
        anonymous_bytes=held.anonymous_bytes - before.anonymous_bytes,
        written_bytes=written,
        folder_bytes=folder_bytes(folder),
        blocks=verdict.blocks,
        wrong=verdict.wrong,
        matched_blocks=verdict.matched_blocks,
        history_blocks=verdict.history_blocks,
        lost_blocks=verdict.lost_blocks,
        reads=None if usage.reads is None or reads is None else usage.reads - reads,
        directory_bytes=usage.directory_bytes,
        resident_bytes=usage.resident_bytes,
        flight_max=played.flight_max,
        mismatches=verdict.mismatches,
    )


async def _warm_up(engine: Engine, job: CellJob, requests: Requests) -> None:
    """Code is loaded and allocators have grown before anything counts."""
    await engine.open(_made(f"{job.folder}-warm-up"), create=True)
    limit = min(job.warm_up, len(requests))
    await Driver(engine, requests, Played(len(requests)), limit).run(job.concurrency, job.seconds_max)
    await engine.close()


def _made(folder: str) -> Path:
    path = Path(folder)
    path.mkdir()
    return path


async def _fill(job: FillJob, parent: Parent) -> None:
    requests = read_requests(Path(job.requests))
    folder = _made(job.folder)
    engine = engine_class(job.engine)(job.budget_bytes, job.blocks)
    await engine.open(folder, create=True)
    began = time.monotonic()
    for request in range(len(requests)):
        # Of each sequence the oracle knows how much is held already.
        native = engine.prepare(requests.ids_of(request), requests.locations_of(request), 0)
        await engine.insert(engine.prepare_insert(native, int(requests.expected[request])))
        await asyncio.sleep(0)
    await engine.persist(folder)
    await asyncio.sleep(QUIET_SECONDS)
    parent.send(Filled(job.blocks, time.monotonic() - began, engine.processes()))
    parent.wait()


async def _recover(job: RecoverJob, parent: Parent) -> None:
    probe = read_requests(Path(job.probe))
    kind = engine_class(job.engine)
    engine = kind(job.budget_bytes, job.blocks)
    rows = probe.locations_of(0)
    native = engine.prepare(probe.ids_of(0), rows, int(probe.history[0]))
    expected = int(probe.expected[0])
    parent.send(Ready())
    parent.wait()
    began = time.perf_counter()
    await engine.open(Path(job.folder), create=False)
    opened = time.perf_counter()
    for _ in range(TRIES):
        matched, found = await engine.match(native)
        if matched == expected:
            break
    answered = time.perf_counter()
    wrong = "" if matched == expected else f"{matched} blocks match where {expected} should"
    if not wrong and engine.keeps_locations and engine.locations(found) != rows[:matched].tobytes():
        wrong = "wrong locations"
    loads = engine.is_loaded()
    while engine.is_loaded() is False:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(POLL_SECONDS)
    loaded = time.perf_counter()
    parent.send(
        RecoverResult(
            open_ms=(opened - began) * 1e3,
            answer_ms=(answered - began) * 1e3,
            loaded_ms=None if loads is None else (loaded - began) * 1e3,
            wrong=wrong,
        )
    )
    await engine.close()


if __name__ == "__main__":
    sys.exit(main())
