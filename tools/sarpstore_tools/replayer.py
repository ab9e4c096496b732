"""Replaying turns into an open store, with every answer checked against the oracle.

Turns are played in *waves* of at most `concurrency` turns of different sessions: all prompts of a wave are matched
at once, then all its sequences are inserted at once. Before each phase the oracle knows exactly what is held, so
every answer has one right value whatever the concurrency. At a concurrency of 1 a wave is one turn.

With `locations`, each prompt is matched twice: for the length alone and with locations, both checked. Which comes first
alternates from wave to wave. Reads are counted for the two kinds apart, by the engine's counters before and after each
phase; a read counts wherever it was served from, so that the second match is not the cheaper one for being second.
Latencies and the time of a request are taken from the match that came first and from the insertion.

Locations are made from the oracle's ordinals. For blocks that are held when a wave's insertions begin, an insertion
offers others (decoys): a block keeps the location of its first insertion, so a store that overwrites it is found out.

After every wave the event loop gets a turn, as it does in a server, which waits for its model: commits are due by the
clock, and the log is written while the next wave runs. Checking is not timed.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from sarpstore_tools.counters import as_dict, reads_of
from sarpstore_tools.oracle import Oracle, decoys_of, locations_of
from sarpstore_tools.protocol import Finished, Latency, Progress
from sarpstore_tools.traces.model import TOKEN_BLOCK, Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator

    import numpy.typing as npt

    from sarpstore_tools.oracle import Ordinals

MISMATCHES_MAX = 5
"""Mismatches that a result describes; the others are only counted."""


class Checker:
    """Compares answers with the oracle's and counts what differs."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self.wrong = 0
        self.lost_tokens = 0
        self.mismatches: list[str] = []

    def check(self, answer: Any, expected: Ordinals, what: str, *, locations: bool) -> bool:
        """Whether `answer` is exactly `expected`.

        One that claims too much, or a location that was not inserted, counts as wrong; one that claims too little has
        lost tokens. `what` names the query in the description of a mismatch.
        """
        blocks = int(answer.blocks)
        missing = len(expected) - blocks
        if locations and not self._same_locations(answer.locations, expected[:blocks]):
            return self._note(f"{what}: a location is not the one that was inserted", wrong=True)
        if missing < 0 or int(answer.tokens) != blocks * TOKEN_BLOCK:
            text = f"{what}: {blocks} blocks, {int(answer.tokens)} tokens; expected {len(expected)} blocks"
            return self._note(text, wrong=True)
        if missing > 0:
            self.lost_tokens += missing * TOKEN_BLOCK
            return self._note(f"{what}: {blocks} blocks; expected {len(expected)}", wrong=False)
        return True

    def _same_locations(self, rows: npt.NDArray[Any], expected: Ordinals) -> bool:
        return rows.dtype == self._dtype and rows.tobytes() == locations_of(expected, self._dtype).tobytes()

    def _note(self, text: str, *, wrong: bool) -> bool:
        self.wrong += wrong
        if len(self.mismatches) < MISMATCHES_MAX:
            self.mismatches.append(text)
        return False


def waves(turns: Iterable[Turn], concurrency: int) -> Iterator[list[Turn]]:
    """Cut `turns` into runs of at most `concurrency` turns, no two of one session."""
    wave: list[Turn] = []
    sessions: set[str] = set()
    for turn in turns:
        if len(wave) == concurrency or turn.session in sessions:
            yield wave
            wave, sessions = [], set()
        wave.append(turn)
        sessions.add(turn.session)
    if wave:
        yield wave


class Replayer:
    """Plays waves into `store` (an open `sarpstore.Store`) and gathers what the summary needs.

    `decoys`: blocks that are held are offered with other locations, which a store that finds them must not take.
    """

    def __init__(self, store: Any, dtype: np.dtype[Any], *, locations: bool, decoys: bool = True) -> None:
        self.oracle = Oracle()
        self._store = store
        self._dtype = dtype
        self._both = locations
        self._decoys = decoys
        self._checker = Checker(dtype)
        self._namespaces: dict[str, Any] = {}
        self._waves = self._turns = 0
        self._prompt_tokens = self._inserted_tokens = self._matched_tokens = self._oracle_tokens = 0
        self._seconds = 0.0
        self._reads = {False: 0.0, True: 0.0}
        self._matches = {False: 0, True: 0}
        self._match_ns = {False: array("q"), True: array("q")}
        self._insert_ns = array("q")

    async def play(self, wave: list[Turn]) -> None:
        """Match and insert the turns of one wave."""
        expected = [self.oracle.ordinals(turn.namespace, turn.match) for turn in wave]
        kinds = [False, True] if self._both else [False]
        if self._waves % 2:
            kinds.reverse()
        for place, locations in enumerate(kinds):
            await self._match(wave, expected, locations=locations, first=place == 0)
        await self._insert(wave)
        await asyncio.sleep(0)
        self._waves += 1
        self._turns += len(wave)

    async def _match(self, wave: list[Turn], expected: list[Ordinals], *, locations: bool, first: bool) -> None:
        calls = [self._namespace(turn).match(turn.match, locations=locations) for turn in wave]
        before = reads_of(self._store.stats())
        answers, nanoseconds, seconds = await _timed(calls)
        self._reads[locations] += reads_of(self._store.stats()) - before
        self._matches[locations] += len(wave)
        if first:
            self._seconds += seconds
            self._match_ns[locations].extend(nanoseconds)
        for number, (turn, answer, ordinals) in enumerate(zip(wave, answers, expected, strict=True)):
            what = f"turn {self._turns + number} of session {turn.session}"
            self._checker.check(answer, ordinals, what, locations=locations)
            if first:
                self._prompt_tokens += len(turn.match)
                self._matched_tokens += int(answer.blocks) * TOKEN_BLOCK
                self._oracle_tokens += len(ordinals) * TOKEN_BLOCK

    async def _insert(self, wave: list[Turn]) -> None:
        calls: list[Awaitable[Any]] = []
        # Not renewed within the wave: of two insertions of one new block, either may come first.
        held = self.oracle.blocks
        for turn in wave:
            ordinals = self.oracle.insert(turn.namespace, turn.insert)
            # Held blocks come first: they are the prefix.
            count = int(np.count_nonzero(ordinals < held))
            rows = locations_of(ordinals, self._dtype)
            if self._decoys:
                rows[:count] = decoys_of(ordinals[:count], self._dtype)
            calls.append(self._namespace(turn).insert(turn.insert, rows))
            self._inserted_tokens += len(turn.insert)
        _, nanoseconds, seconds = await _timed(calls)
        self._seconds += seconds
        self._insert_ns.extend(nanoseconds)

    def _namespace(self, turn: Turn) -> Any:
        namespace = self._namespaces.get(turn.namespace)
        if namespace is None:
            namespace = self._namespaces[turn.namespace] = self._store.namespace(turn.namespace)
        return namespace

    def progress(self) -> Progress:
        """How far the replay is."""
        return Progress(self._turns, self._prompt_tokens, self._matched_tokens, self._seconds)

    def result(self) -> Finished:
        """Everything that was gathered, and the store's counters as they are now."""
        return Finished(
            turns=self._turns,
            answers=sum(self._matches.values()),
            prompt_tokens=self._prompt_tokens,
            inserted_tokens=self._inserted_tokens,
            matched_tokens=self._matched_tokens,
            oracle_tokens=self._oracle_tokens,
            lost_tokens=self._checker.lost_tokens,
            wrong=self._checker.wrong,
            mismatches=self._checker.mismatches,
            unique_blocks=self.oracle.blocks,
            seconds=self._seconds,
            match_length=_latency(self._match_ns[False]),
            match_locations=_latency(self._match_ns[True]),
            insert=_latency(self._insert_ns),
            reads_length=self._reads[False] / max(1, self._matches[False]),
            reads_locations=self._reads[True] / max(1, self._matches[True]),
            stats=as_dict(self._store.stats()),
        )


async def _timed(calls: list[Awaitable[Any]]) -> tuple[list[Any], list[int], float]:
    """Await all of `calls` at once: answers, nanoseconds of each, seconds of all."""
    start = time.perf_counter_ns()
    if len(calls) == 1:
        timed = [await _timed_call(calls[0])]
    else:
        timed = await asyncio.gather(*map(_timed_call, calls))
    seconds = (time.perf_counter_ns() - start) / 1e9
    return [answer for answer, _ in timed], [nanoseconds for _, nanoseconds in timed], seconds


async def _timed_call(call: Awaitable[Any]) -> tuple[Any, int]:
    start = time.perf_counter_ns()
    answer = await call
    return answer, time.perf_counter_ns() - start


def _latency(nanoseconds: array[int]) -> Latency:
    if not nanoseconds:
        return Latency()
    p50, p99, p999 = np.percentile(np.frombuffer(nanoseconds, dtype=np.int64), [50, 99, 99.9]) / 1e3
    return Latency(len(nanoseconds), float(p50), float(p99), float(p999))
