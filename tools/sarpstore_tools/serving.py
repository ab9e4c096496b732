"""The serving process of a replay: `python -m sarpstore_tools.serving`, started by `sarpstore replay` only.

It takes one job from its standard input: replay a trace into a new store and then answer until it is killed, or wait
with everything imported and, when told, open the store that the killed process left and answer at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.counters import as_dict
from sarpstore_tools.protocol import (
    Answering,
    Channel,
    Failed,
    Open,
    Ready,
    Rechecked,
    Recovered,
    RecoverJob,
    ServeJob,
    Started,
    StoreOptions,
)
from sarpstore_tools.replayer import Checker, Replayer, waves
from sarpstore_tools.samples import Sample, Sampler, read_samples, write_samples
from sarpstore_tools.traces import Trace, TraceError, open_trace

REPORT_INTERVAL_SECONDS = 0.1

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def main() -> int:
    """Do the job that comes over standard input; the exit status is 0, or 2 after a `Failed` message."""
    # Ctrl-C reaches the whole process group; the parent ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel.of_child()
    job = channel.receive()
    work: Awaitable[None] = _serve(job, channel) if isinstance(job, ServeJob) else _recover(job, channel)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_finish(work))
    except BrokenPipeError:
        return 2  # The parent is gone: nobody is left to tell.
    except (TraceError, sarpstore.SarpError, OSError) as error:
        channel.send(Failed(str(error)))
        return 2
    return 0


async def _finish(work: Awaitable[None]) -> None:
    await work


def _loop_factory() -> LoopFactory | None:
    try:
        import uvloop
    except ImportError:
        return None
    made: LoopFactory = uvloop.new_event_loop
    return made


def _open(store: str, options: StoreOptions) -> Any:
    """What `sarpstore.open` gives: to be awaited, or entered."""
    return sarpstore.open(store, **msgspec.structs.asdict(options))


async def _serve(job: ServeJob, channel: Channel) -> None:
    trace = open_trace(job.trace)
    channel.send(Started(trace.total, list(trace.notes)))
    async with _open(job.store, job.options) as store:
        await _replay(job, trace, store, channel)


async def _replay(job: ServeJob, trace: Trace, store: Any, channel: Channel) -> None:
    replayer = Replayer(store, sarpstore.LOCATION, locations=job.locations, decoys=not job.options.may_lose)
    sampler = Sampler(job.samples_max)
    reported = time.monotonic()
    for wave in waves(trace.turns(), job.concurrency):
        await replayer.play(wave)
        for turn in wave:
            sampler.add(turn)
        if time.monotonic() - reported > REPORT_INTERVAL_SECONDS:
            channel.send(replayer.progress())
            reported = time.monotonic()
    await store.sync()
    samples = list(sampler.samples(replayer.oracle))
    write_samples(job.samples_path, samples)
    channel.send(replayer.progress())
    channel.send(replayer.result())
    if job.kill and samples:
        await _answer_until_killed(store, samples, channel, locations=job.locations)


async def _answer_until_killed(store: Any, samples: list[Sample], channel: Channel, *, locations: bool) -> None:
    """Go on answering; every message may be the last one."""
    checker = Checker(sarpstore.LOCATION)
    answers = wrong = 0
    while True:
        reported = time.monotonic()
        while time.monotonic() - reported < REPORT_INTERVAL_SECONDS / 10:
            sample = samples[answers % len(samples)]
            wrong += not await _ask(store, sample, checker, locations=locations)
            answers += 1
        channel.send(Answering(answers, wrong))


async def _ask(store: Any, sample: Sample, checker: Checker, *, locations: bool) -> bool:
    answer = await store.namespace(sample.namespace).match(sample.tokens, locations=locations)
    what = f"after sync, {len(sample.tokens)} tokens of namespace {sample.namespace!r}"
    return checker.check(answer, sample.ordinals, what, locations=locations)


async def _recover(job: RecoverJob, channel: Channel) -> None:
    samples = read_samples(job.samples_path)
    # Only a query with something to find shows that the store is back.
    queries = [sample for sample in samples if len(sample.ordinals)] or samples
    np.zeros(1, dtype=sarpstore.LOCATION)
    channel.send(Ready())
    assert isinstance(channel.receive(), Open)
    start = time.perf_counter()
    store = await _open(job.store, job.options)
    opened = time.perf_counter()
    tries = await _first_right(store, queries, locations=job.locations)
    answered = time.perf_counter()
    channel.send(Recovered((opened - start) * 1e3, (answered - start) * 1e3, tries))
    checker = Checker(sarpstore.LOCATION)
    for sample in samples:
        await _ask(store, sample, checker, locations=job.locations)
    stats = as_dict(store.stats())
    channel.send(Rechecked(len(samples), checker.wrong, checker.lost_tokens, checker.mismatches, stats))
    await store.close()


async def _first_right(store: Any, queries: list[Sample], *, locations: bool) -> int:
    """Ask until an answer is right; how many queries that took (all of them if none was)."""
    checker = Checker(sarpstore.LOCATION)
    for tries, sample in enumerate(queries, start=1):
        if await _ask(store, sample, checker, locations=locations):
            return tries
    return len(queries)


if __name__ == "__main__":
    sys.exit(main())
