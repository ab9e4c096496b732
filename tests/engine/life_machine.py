"""A store's life beside the model's: each step is done to both, and their answers must be the same.

What a power cut leaves, and in which order concurrent steps took effect, only the store knows: the machine goes on with
every past that agrees with all answers so far. No past left is a difference.

What a store evicts, and when exactly something expires, it does not say either. A block may be missing if it was not
seen since the last eviction, or if its time to live may have ended; from then on it must be missing, with all that
follows it, until it is inserted again, or another process finds it in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from life_deeds import CERTAIN, NOTED_S, REFUSED, Deed, Deeds, Doubt
from life_folder import CutFolder
from life_model import Domain, Model, Path, Tree, longest
from life_process import quiet_process
from life_steps import DOMAINS, Call, Crash, Heads, Pour, Reopen, Setup, Step, Together
from life_time import Horizons, Scope, WallClock
from store_helpers import WIDE, names_of, remove_checkpoints

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from sarpstore import Store

OPTIONS: Final = {
    "block_tokens": 1,
    "hash": "mmh3",
    "io": "threads",
    "exact": True,
    "directory_bytes_max": 4 << 20,
    "holders_max": 8,
    "counts_max": 1024,
    "queue_depth": 8,
}
SECONDS_MAX: Final = 120
"""A life that takes longer hangs."""

PASTS_MAX: Final = 8
"""Of more, those that are wrong are found out at once, while the store says most."""

Past: TypeAlias = tuple[Model, ...]
"""States in their order: the last is now, the first the one that survives whatever happens."""


class Difference(AssertionError):  # noqa: N818 - it is no error of the program
    """The store's answer is none that the model allows."""


class Life:
    """One store, through openings and crashes."""

    def __init__(self, setup: Setup, log_file_bytes: int, clock: WallClock) -> None:
        self._setup = setup
        dtype = sarpstore.LOCATION if setup.bytes_max is None else WIDE
        self._options = OPTIONS | setup.options | {"log_file_bytes": log_file_bytes, "location_dtype": dtype}
        self._tree = Tree()
        self._clock = clock
        self._horizons = Horizons()
        self._deeds = Deeds(self._tree, clock, self._horizons, dtype, lossy=self._is_lossy)
        self.counts: Counter[str] = self._deeds.counts
        self._pasts: list[Past] = [(Model(self._tree),)]
        self._folder = CutFolder(MemoryFolder())
        self._bytes_max = 0
        self._evicted = 0
        """Records that the present process had evicted when that was last looked at."""
        self._reopened = False
        self._patchy = False
        """A process before this one had evicted something."""
        self._acknowledging = True
        """Whether what a call has synced stays: not where the power was cut meanwhile."""
        self._noted = 0.0
        """When what was inserted before was, a checkpoint says."""
        self._store: Store

    async def live(self, steps: Sequence[Step]) -> None:
        """All steps, and then once more through every way of opening. Raises a Difference."""
        await self._open()
        try:
            for step in steps:
                self.counts[type(step).__name__] += 1
                await self._take(step)
            await self._check_all()
            await self._take(Reopen("none"))
        finally:
            with contextlib.suppress(sarpstore.SarpError):
                await self._store.close()

    async def _take(self, step: Step) -> None:
        if isinstance(step, Reopen):
            await self._store.close()
            self._notice_eviction()
            self._pasts = _distinct([past[-1:] for past in self._pasts])
            await self._open_again(self._folder.inner, step.heads)
        elif isinstance(step, Crash):
            await self._crash(step)
        else:
            await self._do(step)
            if self._is_lossy and len(self._pasts) > PASTS_MAX:
                await self._check_all()

    # --- opening

    async def _open(self) -> None:
        self._bytes_max = max(self._setup.bytes_max or 0, self._folder.bytes)
        self._store = self._deeds.store = await sarpstore.open(self._folder, **self._options)
        self._evicted = 0
        ttl: dict[Scope, float] = {} if self._setup.ttl_s is None else {("store", 0): self._setup.ttl_s * 1e3}
        self._horizons.opened(ttl, self._clock.now_ms())

    async def _open_again(self, folder: MemoryFolder, heads: Heads) -> None:
        self._folder = CutFolder(folder.reopen(), measured=self._setup.bytes_max is not None)
        _leave(self._folder.inner, heads)
        self._reopened = True
        self._patchy = self.counts["evicted"] > 0
        if heads != "all":
            self._noted = 0.0
        await self._open()
        if self._is_lossy:
            now = self._clock.now_ms()
            again = (now, self._noted, self._horizons.may)
            self._pasts = [tuple(each.opened_again(*again) for each in past) for past in self._pasts]
        await self._check_all()

    async def _crash(self, step: Crash) -> None:
        before = self._pasts
        self._folder.cut_after(step.writes, step.seed, step.mode)
        noted = self._noted
        self._acknowledging = False
        await self._do(step.during)
        self._acknowledging = True
        image = self._folder.cut_now()
        with contextlib.suppress(sarpstore.SarpError):
            await self._store.close()
        self._noted = noted
        states = {id(each): each for past in (*before, *self._pasts) for each in past}
        self._pasts = _distinct([(each,) for each in states.values()])
        # What was evicted meanwhile was no longer sure before the cut.
        self._notice_eviction(anything=self._setup.bytes_max is not None)
        await self._open_again(image, step.heads)

    # --- doing

    async def _do(self, step: Step) -> None:
        """Do it to the store, and keep the pasts that agree with its answers."""
        if isinstance(step, Pour):
            for _ in range(step.paths):
                await self._do_together(step, [self._deeds.poured(DOMAINS[step.domain], step.blocks)])
            # Or each of them could be the last that a crash left, for long: where much is evicted, few answers tell.
            await self._do_together(Call("sync"), [self._deeds.of(Call("sync"))])
            return
        began_ms = self._clock.now_ms()
        steps = step.steps if isinstance(step, Together) else (step,)
        answers = await self._do_together(step, [self._deeds.of(each) for each in steps])
        if isinstance(step, Call) and step.name == "checkpoint" and REFUSED not in answers:
            self._noted = began_ms - NOTED_S * 1e3

    async def _do_together(self, step: Step, deeds: Sequence[Deed]) -> list[Any]:
        self._notice_eviction()
        self._let_expire()
        answers = await asyncio.gather(*(deed.do() for deed in deeds))
        doubt = self._doubt()
        pasts = [
            after
            for past in self._pasts
            for order in permutations(range(len(deeds)))
            if (after := _past_after(past, [(deeds[i], answers[i]) for i in order], doubt))
        ]
        if not pasts:
            expected = [deed.on(past[-1])[1] for past in self._pasts for deed in deeds]
            raise Difference(f"{step}: {answers} where {expected} should be")
        self._pasts = _distinct(pasts)
        self._check_bytes(step)
        synced = self._setup.durability == "always" or isinstance(step, Call)
        if synced and self._acknowledging and REFUSED not in answers:
            # What no crash can bring back.
            self._pasts = _distinct([past[-1:] for past in self._pasts])
        return answers

    # --- what the store does by itself

    @property
    def _is_lossy(self) -> bool:
        return self._setup.bytes_max is not None or self._setup.ttl_s is not None

    def _notice_eviction(self, *, anything: bool = False) -> bool:
        """Whether anything was evicted since this was last asked."""
        maintenance = self._store._background.maintenance
        assert maintenance is not None
        records = maintenance.evictor.records
        self.counts["evicted"] += records - self._evicted
        if records == self._evicted and not anything:
            return False
        self._evicted = records
        self._pasts = [tuple(each.evicted() for each in past) for past in self._pasts]
        return True

    def _let_expire(self) -> None:
        if self._setup.ttl_s is not None:
            self._horizons.passed(self._clock.now_ms())
            self._pasts = [(*past[:-1], past[-1].expired(self._horizons.must)) for past in self._pasts]

    def _doubt(self) -> Doubt:
        """What may have gone while a step was done."""
        if not self._is_lossy:
            return CERTAIN
        self._horizons.passed(self._clock.now_ms())
        evicted = self._notice_eviction()
        expired = None if self._setup.ttl_s is None else self._horizons.may
        evicts = self._setup.bytes_max is not None
        return Doubt(evicts=evicts, evicted=evicted, reopened=self._reopened, patchy=self._patchy, expired=expired)

    def _check_bytes(self, step: Step | None) -> None:
        if self._folder.bytes_highest > self._bytes_max:
            raise Difference(f"{step}: the files took {self._folder.bytes_highest:,} bytes, bound {self._bytes_max:,}")

    async def _check_all(self) -> None:
        """Ask for everything that was ever inserted."""
        for domain, inserted in self._deeds.inserted.items():
            paths = [*longest(inserted), *self._deeds.paths]
            self._notice_eviction()
            self._let_expire()
            deed = self._deeds.match_many(domain, paths, located=True)
            answer = await deed.do()
            doubt = self._doubt()
            pasts = [after for past in self._pasts if (after := deed.past_after(past, answer, doubt))]
            if not pasts:
                raise Difference(f"{domain}, asked for all: {self._first_unlike(domain, answer, deed, paths)}")
            self._pasts = _distinct(pasts)
        self._check_bytes(None)
        stats = self._store.stats()
        if stats.damaged_records or stats.failed:
            raise Difference(f"{stats.damaged_records} records are damaged; failed: {stats.failed!r}")

    def _first_unlike(self, domain: Domain, answer: Any, deed: Deed, paths: Sequence[Path]) -> str:
        """The first answer that is not what the newest state expects."""
        expected = deed.on(self._pasts[-1][-1])[1]
        unlike = [at for at, found in enumerate(answer) if found != expected[at]]
        longer = [at for at in unlike if found_more(answer[at], expected[at])]
        at = (longer or unlike)[0]
        return f"{_text(paths[at])} matches {answer[at]} where {expected[at]} should be"


def found_more(found: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether an answer is not only shorter."""
    return list(found) != list(expected)[: len(found)]


def _past_after(past: Past, done: Sequence[tuple[Deed, Any]], doubt: Doubt) -> Past | None:
    """A past after deeds in this order; None if their answers say that it was not so."""
    after: Past | None = past
    for deed, answer in done:
        after = deed.past_after(after, answer, doubt)
        if after is None:
            return None
    return after


def _distinct(pasts: Sequence[Past]) -> list[Past]:
    """Each past once."""
    found: list[Past] = []
    for past in pasts:
        if past not in found:
            found.append(past)
    return found


def live(setup: Setup, steps: Sequence[Step], seed: int = 0) -> Counter[str]:
    """Live a life, from which the same seed makes the same again; how many steps of each kind it took."""
    with quiet_process(Random(seed)) as process:
        life = Life(setup, process.log_file_bytes, process.clock)
        process.runner.run(asyncio.wait_for(life.live(steps), SECONDS_MAX))
    return life.counts


def _text(path: Path) -> str:
    return "".join(map(str, path))


def _leave(folder: MemoryFolder, heads: Heads) -> None:
    """Remove the checkpoints that are not to be left."""
    if heads == "none":
        remove_checkpoints(folder)
    elif heads == "older" and len(found := names_of(folder, fmt.CHECKPOINT_SUFFIX)) > 1:
        folder.remove(found[-1])
        folder.sync()
