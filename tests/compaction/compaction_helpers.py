"""A store of several small files with dead records in them, and a compactor of it."""

from __future__ import annotations

import asyncio
import random
import types
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from store_helpers import addresses, locations, memory_store, small_files

from sarpstore import _format as fmt
from sarpstore._compaction import Compactor, FileLedger, compactor

if TYPE_CHECKING:
    from sarpstore._files import MemoryFolder


PAGES = 60


def small_steps(monkeypatch: Any) -> None:
    """Files, slices and kernel calls of which there are many in little data."""
    small_files(monkeypatch, pages=PAGES)
    monkeypatch.setattr(compactor, "_SLICE_BYTES", 8 * fmt.PAGE)
    monkeypatch.setattr(compactor, "_RECORDS_AT_ONCE", 5)
    monkeypatch.setattr(compactor, "_SWEPT_AT_ONCE", 1)


def options(**more: Any) -> dict[str, Any]:
    # Nothing in the background decides when anything is written.
    return {
        "log_file_bytes": PAGES * fmt.PAGE,
        "sync_interval_ms": 60_000,
        "exact": True,
        "cache_bytes": 1 << 20,
        **more,
    }


def paths_of(rng: random.Random, count: int) -> list[list[int]]:
    paths: list[list[int]] = []
    for _ in range(count):
        parent = rng.choice(paths) if paths and rng.random() < 0.6 else []
        cut = parent[: rng.randrange(len(parent) + 1)]
        paths.append(cut + [rng.randrange(4) for _ in range(rng.randrange(20, 150))])
    return paths


async def fill(folder: MemoryFolder, seed: int, *, sequences: int = 90) -> list[tuple[int, list[int]]]:
    """A closed store with removals in it; (holder, path) of what was inserted."""
    rng = random.Random(seed)
    paths = paths_of(rng, sequences)
    asked = [(rng.choice([0, 0, 0, 4]), path) for path in paths]
    async with memory_store(folder, **options()) as store:
        namespace = store.namespace("m")
        for number, (holder, path) in enumerate(asked):
            await namespace.insert(path, locations(len(path), number * 1000), holder=holder)
            if rng.random() < 0.25:
                old_holder, old = rng.choice(asked[: number + 1])
                await namespace.truncate(old, blocks=rng.randrange(len(old)), holder=old_holder)
            if number == sequences // 2:
                await store.clear_holder(4)
            if number % 7 == 0:
                await store.checkpoint()
        await store.sync()
        await store.checkpoint()
    return asked


async def answers(store: Any, asked: list[tuple[int, list[int]]]) -> list[list[int]]:
    namespace = store.namespace("m")
    return [addresses((await namespace.match(path, holder=holder)).locations) for holder, path in asked]


async def reopened(folder: MemoryFolder, asked: list[tuple[int, list[int]]]) -> list[list[int]]:
    """What another process finds."""
    async with memory_store(folder, read_only=True, **options()) as store:
        return await answers(store, asked)


def compactor_of(store: Any, **more: Any) -> Compactor:
    state = store._core.state
    ledger = FileLedger(n for n in state.directory.base.files() if n <= state.found.end.file_number)
    state.ledger = ledger  # which is told of checkpoints
    reports: list[BaseException] = []
    store._background.maintenance.compactor.compact_next = _nothing  # or the store's own would meet this one
    made = Compactor(
        state.folder,
        state.scheduler,
        state.directory,
        state.loader,
        state.pages,
        state.gatherer,
        state.writer,
        ledger,
        removals=state.removals,
        drop_file=state.files.drop_slot,
        deleting=store._background._checkpointer.lock,
        report=reports.append,
        **more,
    )
    made.reports = reports  # type: ignore[attr-defined]
    return made


def start_of(store: Any) -> int:
    return int(store.stats().checkpoint_position)


@asynccontextmanager
async def with_compactor(folder: MemoryFolder, **more: Any) -> Any:
    """(store, compactor), whose newest checkpoint starts in the file that is being written."""
    async with memory_store(folder, **options(**more)) as store:
        await store.namespace("m").insert([9] * 100, locations(100, 1 << 30))
        await store.sync()
        await store.checkpoint()
        yield store, compactor_of(store)


async def _nothing(*_: Any) -> None:
    """Compacts nothing."""


@types.coroutine
def cancelled_at(coroutine: Any, limit: int) -> Any:
    """Awaits a coroutine, whose task is cancelled where it waits for the `limit`-th time."""
    count, go_on, value = 0, coroutine.send, None
    while True:
        try:
            waited = go_on(value)
        except StopIteration as done:
            return done.value
        count += 1
        if count == limit:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        try:
            value = yield waited
            go_on = coroutine.send
        except BaseException as error:
            go_on, value = coroutine.throw, error


async def is_cancelled_at(limit: int, coroutine: Any) -> bool:
    """Whether it waited so often."""

    async def run() -> Any:
        return await cancelled_at(coroutine, limit)

    try:
        await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    return False
