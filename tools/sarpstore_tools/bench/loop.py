"""`sarpstore bench loop`: how long the event loop is held at a time, under everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.bench.shapes import branching, locations_of
from sarpstore_tools.traces.source import TraceSpec, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sarpstore_tools.traces.model import Turn

HOLD_TARGET_MS = 2.0
CHECKPOINT_EVERY_S = 0.5
LONG_PROMPT_TOKENS = 131_072
"""The longest context that is widely served."""
SHAPES = {"chat": (300, 6), "agent": (60, 20), "rag": (200, 3)}
"""Sessions and turns of each generated shape, all played at once."""


class _Moment(NamedTuple):
    """As a callback begins or ends: wall time, the thread's CPU time, its waits for a core, and how often it slept."""

    wall_ns: int
    cpu_ns: int
    waited_ns: int
    sleeps: int


def _held_ms(began: _Moment, ended: _Moment) -> float:
    """Wall time less the waits for a core; of a callback that never slept its CPU time.

    On a virtual machine a core may be taken away from the whole system. Nobody tells for how long to the nanosecond,
    but a thread that has not slept has worked all the rest of the time.
    """
    if ended.sleeps == began.sleeps:
        return (ended.cpu_ns - began.cpu_ns) / 1e6
    return (ended.wall_ns - began.wall_ns - (ended.waited_ns - began.waited_ns)) / 1e6


class Holds:
    """The length of every callback of a loop, in milliseconds, less the time that its thread had no core.

    The kernel tells how long it waited for one in /proc/thread-self/schedstat (second field, nanoseconds:
    Documentation/scheduler/sched-stats.rst). What remains is what the callback did, its page faults, cache misses and
    its waits for the interpreter, which other threads hold, included.
    """

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.longest: list[tuple[float, str]] = []
        self._fd = -1

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure all callbacks of asyncio's own loops in this thread while the context lasts."""
        self._fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        original = asyncio.Handle._run  # noqa: SLF001 - the one place that all callbacks pass

        def run(handle: Any) -> None:
            began = self._now()
            original(handle)
            self._note(_held_ms(began, self._now()), handle)

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]  # noqa: SLF001
        try:
            yield
        finally:
            asyncio.Handle._run = original  # type: ignore[method-assign]  # noqa: SLF001
            os.close(self._fd)

    def _now(self) -> _Moment:
        sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        waited_ns = int(os.pread(self._fd, 64, 0).split()[1])
        return _Moment(time.perf_counter_ns(), time.thread_time_ns(), waited_ns, sleeps)

    def _note(self, ms: float, handle: Any) -> None:
        self.ms.append(ms)
        if ms > HOLD_TARGET_MS:
            self.longest.append((ms, _name_of(handle)))


def _name_of(handle: Any) -> str:
    """What a callback runs. Its own description would show all that it has, which can take longer than it did."""
    callback = handle._callback  # noqa: SLF001 - nobody else knows
    owner = getattr(callback, "__self__", None)
    named = owner.get_coro() if isinstance(owner, asyncio.Task) else callback
    return getattr(named, "__qualname__", type(named).__name__)


@click.command("loop", short_help="How long the event loop is held at a time.")
@click.option("--seconds", type=click.FloatRange(min=1), default=20.0, show_default=True, help="Length of the load.")
@click.option("--blocks", type=click.IntRange(min=64), default=1_000_000, show_default=True, help="Blocks held before.")
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), default=256, show_default=True, help="Requests in flight at once."
)
@store_option
@report_options
@click.pass_context
def loop_command(
    context: click.Context,
    seconds: float,
    blocks: int,
    concurrency: int,
    store: Path | None,
    json_file: Any,
    targets: bool,
) -> None:
    """Measure every callback of the event loop while a store does everything at once.

    A store of --blocks is filled and opened anew, with its partitions on disk; then generated chats, agents and
    retrieval requests are matched and inserted by --concurrency tasks, with a prompt of 131,072 tokens (a list) now
    and then, a checkpoint each half second and a cache that holds a part. A callback's time is its wall time less the
    time that its thread had no core. The callbacks are all of the loop's: the load's own tasks too, which do
    nothing but call.
    """
    with work_folder(store) as folder:
        machine = this_machine(folder)
        holds = Holds()
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(_fill(folder / "store", blocks))
            turns = list(_turns())
            long_prompt = np.random.default_rng(4).integers(0, 1 << 17, LONG_PROMPT_TOKENS).tolist()
            gc.collect()
            gc.freeze()  # what the bench made must not be looked through by the collector while it is measured
            with holds.measuring():
                done = runner.run(_load(folder / "store", turns, long_prompt, seconds, concurrency))
    load = (
        f"{concurrency} tasks, {done['requests']:,} requests in {done['seconds']:.1f} s, {done['checkpoints']} "
        f"checkpoints, {done['reads']:,} reads ({done['backend']}), {blocks:,} blocks before"
    )
    method = [
        f"asyncio's own event loop; {load}",
        (
            "time of a callback: wall time less the wait for a core (/proc/self/task/…/schedstat); of one that never "
            "slept (getrusage: ru_nvcsw) its CPU time, so that cores which a hypervisor takes away do not count"
        ),
    ]
    method += [f"held {ms:.2f} ms: {what}" for ms, what in sorted(holds.longest, reverse=True)[:5]]
    finish(
        context,
        Report(command="bench loop", machine=machine, method=method, figures=_figures(holds)),
        json_file,
        targets=targets,
    )


def _figures(holds: Holds) -> list[Figure]:
    values = np.array(holds.ms)
    over = int((values > HOLD_TARGET_MS).sum())
    return [
        measured(
            "longest callback", "ms", [float(values.max())], target=HOLD_TARGET_MS, note=f"{over} over the target"
        ),
        measured("p99.99", "ms", [float(np.quantile(values, 0.9999))], target=HOLD_TARGET_MS),
        measured("p99", "ms", [float(np.quantile(values, 0.99))]),
        measured("callbacks", "", [float(len(values))]),
    ]


async def _fill(path: Path, blocks: int) -> None:
    async with sarpstore.open(path) as store:
        namespace = store.namespace("before")
        held = 0
        for ids in branching(np.random.default_rng(3)):
            held += await namespace.insert_ids(ids, locations_of(ids))
            if held >= blocks:
                return


def _turns() -> Iterator[Turn]:
    for shape, (sessions, turns) in SHAPES.items():
        yield from open_trace(TraceSpec(label=shape, generate=shape, sessions=sessions, turns=turns)).turns()


async def _load(
    path: Path, turns: list[Turn], long_prompt: list[int], seconds: float, concurrency: int
) -> dict[str, Any]:
    """Play the turns again and again, each round under another namespace, until the time is over."""
    loop = asyncio.get_running_loop()
    async with sarpstore.open(path, cache_bytes=16 << 20) as store:
        began = loop.time()
        over = lambda: loop.time() - began > seconds  # noqa: E731 - one expression, used by all tasks
        work = _rounds(store, turns)
        tasks = [_play(work, over) for _ in range(concurrency)]
        counts = await asyncio.gather(*tasks, _checkpoints(store, over), _long_prompts(store, long_prompt, over))
        stats = store.stats()
        return {
            "requests": sum(counts),
            "seconds": loop.time() - began,
            "checkpoints": stats.checkpoints,
            "reads": stats.reads,
            "backend": stats.io_backend,
        }


def _rounds(store: sarpstore.Store, turns: list[Turn]) -> Iterator[tuple[Any, Turn, Any]]:
    longest = max(len(turn.insert) for turn in turns) // store.block_tokens
    rows = np.zeros(longest, sarpstore.LOCATION)
    rows["address"] = np.arange(longest)
    number = 0
    while True:
        namespace = store.namespace("load", salt=number.to_bytes(4, "little"))
        for turn in turns:
            yield namespace, turn, rows[: len(turn.insert) // store.block_tokens]
        number += 1


async def _play(work: Iterator[tuple[Any, Turn, Any]], over: Callable[[], bool]) -> int:
    count = 0
    while not over():
        namespace, turn, rows = next(work)
        await namespace.match(turn.match)
        await namespace.insert(turn.insert, rows)
        count += 1
        await asyncio.sleep(0)
    return count


async def _checkpoints(store: sarpstore.Store, over: Callable[[], bool]) -> int:
    while not over():
        await asyncio.sleep(CHECKPOINT_EVERY_S)
        await store.checkpoint()
    return 0


async def _long_prompts(store: sarpstore.Store, tokens: list[int], over: Callable[[], bool]) -> int:
    """Long prompts, given as a list, as a server's tokenizer gives them."""
    namespace = store.namespace("long")
    rows = np.zeros(LONG_PROMPT_TOKENS // store.block_tokens, sarpstore.LOCATION)
    count = 0
    while not over():
        await namespace.insert(tokens, rows)
        match = await namespace.match(tokens)
        assert match.blocks == len(rows)
        tokens[-1 - count * store.block_tokens] += 1
        count += 1
        await asyncio.sleep(0.2)
    return count
