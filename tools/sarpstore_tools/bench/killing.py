"""The processes of `sarpstore bench recovery` and `scale`, started by them only.

One builds a store and goes on inserting until it is killed; another opens it after that, goes on inserting, and is
killed in its turn; a third waits with everything imported, opens the store when told, and times its first answer.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.bench.machine import event_loop
from sarpstore_tools.bench.shapes import SHAPES, UNKNOWN_BLOCKS, Ids, locations_of, random_ids, wrong_answer
from sarpstore_tools.bench.usage import resident_bytes
from sarpstore_tools.bench.worker import Failed, Parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

Shape = Literal["plain", "branching", "sessions"]

NAMESPACE = "bench"
SAMPLES = 16
QUERY_BLOCKS_MAX = 256
PROGRESS_SECONDS = 0.05
POLL_SECONDS = 0.0005


class BuildJob(msgspec.Struct, tag=True, kw_only=True):
    """Insert blocks of a shape until a store holds `blocks`, sync, then insert until killed.

    Queries for what this process has synced go to the file `samples`. `checkpoint`: also write one before that is told.
    Other blocks for each `round`.
    """

    store: str
    shape: Shape
    blocks: int
    samples: str
    seed: int
    round: int = 0
    checkpoint: bool = False
    options: dict[str, Any] = {}


class GoOnJob(msgspec.Struct, tag=True, kw_only=True):
    """Open a store that was built, and insert more blocks of its shape until killed: other blocks for each `round`."""

    store: str
    shape: Shape
    seed: int
    round: int


class OpenJob(msgspec.Struct, tag=True, kw_only=True):
    """Wait, open `store` when told, ask query number `sample`; then load everything, ask them all, and be killed."""

    store: str
    samples: str
    sample: int
    progress: bool
    options: dict[str, Any] = {}


class Building(msgspec.Struct, tag=True):
    """Blocks inserted so far."""

    blocks: int


class Built(msgspec.Struct, tag=True, kw_only=True):
    """The store holds `blocks`, synced; that took `seconds`, `making` of them to make what was inserted.

    `inserted`: how many of the blocks are this process's. `checkpoint_ms`: what the checkpoint took; 0: none was asked
    for. `resident`: memory of the process, in bytes. Insertion goes on.
    """

    blocks: int
    inserted: int
    seconds: float
    making: float
    checkpoint_ms: float
    directory_bytes: int
    resident: int


class GoingOn(msgspec.Struct, tag=True):
    """The store is open again, and the first new blocks are inserted."""


class Ready(msgspec.Struct, tag=True):
    """Everything is imported."""


class Reading(msgspec.Struct, tag=True):
    """Bytes of the log that open() has read, of all."""

    done: int
    total: int


class Opened(msgspec.Struct, tag=True):
    """open() returned after `open_ms`, the first answer was there `answer_ms` after open() was called.

    `wrong` says what is wrong with it; empty: nothing. `checkpoint_position` is where the replay began. `resident`:
    memory of the process, in bytes.
    """

    open_ms: float
    answer_ms: float
    wrong: str
    checkpoint_position: int
    unloaded: int
    resident: int


class Loaded(msgspec.Struct, tag=True):
    """All partitions were in memory `load_ms` after open() was called: `blocks` are held.

    Then `checked` queries were asked; `wrong` says what is wrong with their answers.
    """

    load_ms: float
    blocks: int
    checked: int
    wrong: list[str]
    resident: int


Message = Building | Built | GoingOn | Ready | Reading | Opened | Loaded


class Samples:
    """A few of the sequences that went by, each as likely as any other, as queries with a known answer."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.seen = 0
        """Sequences that went by."""
        self._kept: list[Ids] = []

    def add(self, ids: Ids) -> None:
        """One more sequence."""
        self.seen += 1
        if len(self._kept) < SAMPLES:
            self._kept.append(ids[:QUERY_BLOCKS_MAX])
        elif (place := int(self._rng.random() * self.seen)) < SAMPLES:
            self._kept[place] = ids[:QUERY_BLOCKS_MAX]

    def write(self, path: str) -> None:
        """Each with a few unknown blocks behind it: the answer must end where they begin."""
        queries = {
            str(i): np.concatenate([ids, random_ids(self._rng, UNKNOWN_BLOCKS)]) for i, ids in enumerate(self._kept)
        }
        with open(path, "wb") as file:  # noqa: PTH123 (numpy would add an ending to a path)
            np.savez(file, **queries)  # type: ignore[arg-type]


def read_samples(path: str) -> list[Ids]:
    """What `Samples.write` wrote."""
    with np.load(path) as queries:
        return [queries[name] for name in queries.files]


def main() -> int:
    """Do the job of the first argument; the exit status is 0, or 2 after a `Failed` message."""
    # Ctrl-C reaches the whole process group; the parent ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A torn tail is what a kill leaves: no news here.
    logging.getLogger("sarpstore").setLevel(logging.ERROR)
    job: BuildJob | GoOnJob | OpenJob = msgspec.json.decode(sys.argv[1], type=BuildJob | GoOnJob | OpenJob)
    parent = Parent()
    try:
        with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
            match job:
                case BuildJob():
                    runner.run(_build(job, parent))
                case GoOnJob():
                    runner.run(_go_on(job, parent))
                case OpenJob():
                    runner.run(_open(job, parent))
    except BrokenPipeError:
        return 2  # The parent is gone: nobody is left to tell.
    except (sarpstore.SarpError, OSError) as error:
        parent.send(Failed(str(error)))
        return 2
    return 0


async def _build(job: BuildJob, parent: Parent) -> None:
    rng = np.random.default_rng([job.seed, job.round])
    samples = Samples(rng)
    began = reported = time.monotonic()
    making = 0.0
    async with sarpstore.open(job.store, **job.options) as store:
        namespace = store.namespace(NAMESPACE)
        sequences = SHAPES[job.shape](rng)
        before = held = store.stats().blocks
        while held < job.blocks or samples.seen < SAMPLES:
            asked = time.perf_counter()
            ids = next(sequences)
            rows = locations_of(ids)
            making += time.perf_counter() - asked
            held += await namespace.insert_ids(ids, rows)
            samples.add(ids)
            # As a server does between requests: the store's checkpoints are written by tasks of this loop.
            await asyncio.sleep(0)
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                parent.send(Building(held))
        await store.sync()
        seconds = time.monotonic() - began
        samples.write(job.samples)
        parent.send(await _built(store, job, seconds, making, held - before))
        await _insert_on(namespace, sequences)


async def _built(store: sarpstore.Store, job: BuildJob, seconds: float, making: float, inserted: int) -> Built:
    began = time.perf_counter()
    if job.checkpoint:
        await store.checkpoint()
    stats = store.stats()
    return Built(
        blocks=stats.blocks,
        inserted=inserted,
        seconds=seconds,
        making=making,
        checkpoint_ms=(time.perf_counter() - began) * 1e3 if job.checkpoint else 0.0,
        directory_bytes=stats.directory_bytes,
        resident=resident_bytes(),
    )


async def _insert_on(namespace: sarpstore.Namespace, sequences: Iterator[Ids]) -> NoReturn:
    """Insert until killed."""
    while True:
        ids = next(sequences)
        await namespace.insert_ids(ids, locations_of(ids))
        await asyncio.sleep(0)  # As in _build.


async def _go_on(job: GoOnJob, parent: Parent) -> None:
    async with sarpstore.open(job.store, create=False) as store:
        namespace = store.namespace(NAMESPACE)
        sequences = SHAPES[job.shape](np.random.default_rng([job.seed, job.round]))
        ids = next(sequences)
        await namespace.insert_ids(ids, locations_of(ids))
        parent.send(GoingOn())
        await _insert_on(namespace, sequences)


async def _open(job: OpenJob, parent: Parent) -> None:
    queries = read_samples(job.samples)
    query = queries[job.sample % len(queries)]
    locations_of(query)
    options: dict[str, Any] = {**job.options, "progress": _reporter(parent) if job.progress else None}
    parent.send(Ready())
    parent.wait()
    began = time.perf_counter()
    store = await sarpstore.open(job.store, create=False, **options)
    opened = time.perf_counter()
    match = await store.namespace(NAMESPACE).match_ids(query)
    answered = time.perf_counter()
    stats = store.stats()
    parent.send(
        Opened(
            open_ms=(opened - began) * 1e3,
            answer_ms=(answered - began) * 1e3,
            wrong=_wrong(match, query),
            checkpoint_position=stats.checkpoint_position,
            unloaded=stats.unloaded_partitions,
            resident=resident_bytes(),
        )
    )
    while store.stats().unloaded_partitions:  # noqa: ASYNC110 (nothing in the public API tells)
        await asyncio.sleep(POLL_SECONDS)
    load_ms = (time.perf_counter() - began) * 1e3
    blocks = store.stats().blocks
    namespace = store.namespace(NAMESPACE)
    answers = [_wrong(await namespace.match_ids(other), other) for other in queries]
    parent.send(Loaded(load_ms, blocks, len(queries), [wrong for wrong in answers if wrong], resident_bytes()))
    parent.wait()


def _wrong(match: Any, query: Ids) -> str:
    known = len(query) - UNKNOWN_BLOCKS
    return wrong_answer(match, query, known, known)


def _reporter(parent: Parent) -> Any:
    reported = 0.0

    def report(done: int, total: int) -> None:
        nonlocal reported
        if done >= total or time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            parent.send(Reading(done, total))

    return report
