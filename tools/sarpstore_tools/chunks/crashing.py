"""The process that `sarpstore chunks crashtest` kills: it puts chunks into a store, and says which are stored.

Several tasks ask for prompts of some documents, load what hits, compare it, and put what missed. The store is small:
regions go all the time, some payloads are written again, and some are larger than a region.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

import sarpstore
from sarpstore_tools.bench.machine import event_loop
from sarpstore_tools.bench.worker import Failed, Parent, Phase, work_together
from sarpstore_tools.killpoints import KillPoint, arm

if TYPE_CHECKING:
    import numpy.typing as npt

LAYOUT: Final = sarpstore.KVLayout(layers=2, kv_heads=1, head_dim=32, dtype="float16", rope=sarpstore.Rope())
"""256 bytes a token."""
END: Final = 2
REGION_BYTES: Final = 1 << 20
BYTES_MAX: Final = 12 << 20
DOCUMENTS: Final = 300
NEVER_PUT: Final = range(DOCUMENTS, DOCUMENTS + 20)
QUESTION: Final = (7, 8, 9)
TASKS: Final = 4
# A task asks for a few documents at once. What is asked for changes every other round, or a full store would soon hold
# just that, and admit nothing else.
_ASKED_MAX: Final = 3
_POPULAR: Final = 60
_POPULAR_ROUNDS: Final = 2
# Most payloads are of some KiB to some 100 KiB, one in 40 is larger than a region.
_TOKENS: Final = (15, 1_500)
_LARGE_TOKENS: Final = 6_000
_LARGE_EVERY: Final = 40


class ChunkCrashJob(msgspec.Struct, kw_only=True):
    """One round. After `close_after` seconds it closes; `point`: where it kills itself."""

    store: str
    seed: int
    round: int
    close_after: float | None
    point: KillPoint | None = None


class Stored(msgspec.Struct, tag=True):
    """The document is on the disk, in these regions."""

    document: int
    regions: list[int]


class Began(msgspec.Struct, tag=True):
    """The document is being put."""

    document: int


class Differs(msgspec.Struct, tag=True):
    """What was loaded of a document is not what was put."""

    document: int


Message = Phase | Began | Stored | Differs


def tokens_of(seed: int, document: int) -> list[int]:
    """The token ids of a document, its delimiter included."""
    random = np.random.default_rng([seed, document])
    count = _LARGE_TOKENS if document % _LARGE_EVERY == 0 else int(np.exp(random.uniform(*np.log(_TOKENS))))
    return [*random.integers(10, 50_000, count - 1).tolist(), END]


def kv_of(seed: int, document: int, tokens: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(keys, values) of a document: what they are follows from its number."""
    random = np.random.default_rng([seed, document, 1])
    shape = (LAYOUT.layers, LAYOUT.kv_heads, tokens, LAYOUT.head_dim)
    keys, values = (random.standard_normal(shape, np.float32).astype(np.float16) for _ in range(2))
    return keys, values


def is_right(seed: int, document: int, span: sarpstore.ChunkSpan, kv: npt.NDArray[Any]) -> bool:
    """Whether a prompt's KV has the document's at the span, its keys rotated for there."""
    keys, values = kv_of(seed, document, span.end - span.begin)
    rotated = np.empty_like(keys)
    sarpstore.rotate_keys(LAYOUT, keys, rotated, span.begin)
    there = kv[:, :, :, span.begin : span.end]
    return np.array_equal(there[:, 0], rotated) and np.array_equal(there[:, 1], values)


def open_store(store: Any, **more: Any) -> Any:
    """The store of all rounds."""
    bounds = {"bytes_max": BYTES_MAX, "region_bytes": REGION_BYTES}
    return sarpstore.open_chunks(
        store, layout=LAYOUT, fingerprint=b"sarpstore chunks crashtest", delimiters=(END,), **bounds | more
    )


def main() -> int:
    """Do the job of the first argument; the exit status is 0, or 2 after a `Failed` message."""
    # Ctrl-C reaches the whole process group; the parent ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = msgspec.json.decode(sys.argv[1], type=ChunkCrashJob)
    logging.getLogger("sarpstore").setLevel(logging.ERROR)
    parent = Parent()
    if job.point is not None:
        arm(job.point)
    try:
        with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
            runner.run(_Putting(job, parent).run())
    except BrokenPipeError:
        return 2  # The parent is gone: nobody is left to tell.
    except (sarpstore.SarpError, OSError) as error:
        parent.send(Failed(f"{type(error).__name__}: {error}"))
        return 2
    return 0


class _Putting:
    """The tasks of one round."""

    def __init__(self, job: ChunkCrashJob, parent: Parent) -> None:
        self._job = job
        self._parent = parent
        random = np.random.default_rng([job.seed, job.round // _POPULAR_ROUNDS])
        self._popular = random.permutation(DOCUMENTS)[:_POPULAR]

    async def run(self) -> None:
        """Put until killed, or until it is time to close."""
        self._parent.send(Phase("opening"))
        chunks = await open_store(self._job.store)
        self._parent.send(Phase("putting"))
        await work_together((self._work(chunks, number) for number in range(TASKS)), self._job.close_after)
        self._parent.send(Phase("closing"))
        await chunks.close()
        self._parent.send(Phase("closed"))
        self._parent.wait()

    async def _work(self, chunks: sarpstore.Chunks, task: int) -> None:
        random = np.random.default_rng([self._job.seed, self._job.round, task])
        while True:
            count = int(random.integers(1, _ASKED_MAX + 1))
            asked = random.choice(self._popular, count, replace=False).tolist()
            await self._serve(chunks, asked)

    async def _serve(self, chunks: sarpstore.Chunks, asked: list[int]) -> None:
        seed = self._job.seed
        prompt = [token for document in asked for token in tokens_of(seed, document)]
        with await chunks.plan([*prompt, *QUESTION]) as plan:
            kv = await chunks.load(plan)
            for document, span in zip(asked, plan.spans[:-1], strict=True):
                if not span.hit:
                    self._parent.send(Began(document))
                    if await chunks.put(span, *kv_of(seed, document, span.end - span.begin)):
                        self._tell(chunks, document, span)
                elif not is_right(seed, document, span, kv):
                    self._parent.send(Differs(document))

    def _tell(self, chunks: sarpstore.Chunks, document: int, span: sarpstore.ChunkSpan) -> None:
        # Where a payload stands is nobody's business but this test's: it may go with these regions, and not else.
        chunk = chunks._held.chunk(span.key)  # noqa: SLF001
        if chunk is not None:
            self._parent.send(Stored(document, [extent.region for extent in chunk.extents]))
