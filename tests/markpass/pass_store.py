"""A store with what it must hold beside it, and mark passes with calls at chosen moments.

A path is a string, one letter a block. Blocks are (holder, path up to there).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from store_helpers import locations, memory_store

from sarpstore import _format as fmt
from sarpstore._checkpoint import writer
from sarpstore._directory import DivergenceDirectory, PostingsDirectory
from sarpstore._log import header
from sarpstore._markpass import MarkPass, rows, run, sweep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

W = fmt.WINDOW
PARTS = 8


def start_divergence(directory: DivergenceDirectory) -> None:
    """Eight partitions in place of one, so that a sweep has eight steps."""
    parts = np.zeros(PARTS, fmt.PARTITION_DTYPE)
    parts["prefix"], parts["depth"] = np.arange(PARTS, dtype="<u8") << 45, 3
    directory.start_unloaded(parts)
    for number in range(PARTS):
        directory.load_empty(number)


def start_postings(directory: PostingsDirectory) -> None:
    parts = np.zeros(PARTS, fmt.POSTING_PARTITION_DTYPE)
    parts["key"] = np.arange(PARTS, dtype="<u8") << 45
    directory.start_unloaded(parts)
    for number in range(PARTS):
        directory.load_empty(number)


class Marked:
    """The store, and the blocks that it must hold."""

    def __init__(self, store) -> None:
        self.store = store
        self.state = store._core.state
        self.directory = self.state.directory
        self.spaces = store.namespace("m")
        self.removals = self.state.removals
        self.retirement = self.state.retirement
        self.held: set[tuple[int, str]] = set()
        self.paths: dict[str, None] = {}
        self.counts: Counter[str] = Counter()
        self._inserted = 0

    async def insert(self, path: str, holder: int = 0) -> None:
        self._inserted += 1
        self.paths[path] = None
        await self.spaces.insert(tokens(path), locations(len(path), self._inserted << 32), holder=holder)
        self.held |= {(holder, path[: i + 1]) for i in range(len(path))}
        self.counts["insert"] += 1

    async def remove(self, path: str, holder: int = 0) -> None:
        """Remove the last block of a path, and what follows it."""
        await self.spaces.remove_ids(self.spaces.block_ids(tokens(path))[-1:], holder=holder)
        self.held -= {block for block in self.held if block[0] == holder and block[1].startswith(path)}
        self.counts["remove"] += 1

    async def clear(self, holder: int) -> None:
        await self.store.clear_holder(holder)
        self.held = {block for block in self.held if block[0] != holder}
        self.counts["clear"] += 1

    async def match(self, path: str, holder: int = 0) -> int:
        return (await self.spaces.match(tokens(path), holder=holder)).blocks

    async def check(self) -> None:
        """Every path that was ever inserted matches as far as it is held, no less and no more."""
        for path in self.paths:
            for holder in (0, 1):
                expected = 0
                while expected < len(path) and (holder, path[: expected + 1]) in self.held:
                    expected += 1
                assert await self.match(path, holder) == expected, (path, holder)

    def mark_pass(self, log=None) -> MarkPass:
        state = self.state
        return MarkPass(
            state.folder,
            state.scheduler,
            state.shape,
            self.directory,
            self.removals,
            state.gatherer,
            log or state.writer,
            load_all=state.loader.load_all,
        )

    async def settle(self) -> run.PassResult:
        """A pass, and the retirement of what it has made needless, as if a checkpoint had followed."""
        return await self._retired(await self.mark_pass().run())

    async def settle_between(self, monkeypatch, call: Callable[[], Awaitable[None]]) -> run.PassResult:
        """The same, with calls."""
        return await self._retired(await self.pass_between(monkeypatch, call))

    async def _retired(self, result: run.PassResult) -> run.PassResult:
        self.retirement.passed(result.position, self.removals.markers)
        await self.retirement.retire(self.retirement.due)
        self.counts["dropped"] += result.dropped
        return result

    async def pass_between(self, monkeypatch, call: Callable[[], Awaitable[None]]) -> run.PassResult:
        """A pass; at each of its moments at which others may run, `call` runs."""

        async def sleep(_: float) -> None:
            await call()

        async def sync() -> None:
            await call()
            await self.state.writer.sync()
            await call()

        async def to_thread(function, *arguments):
            await call()
            return function(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(run, "asyncio", SimpleNamespace(sleep=sleep, to_thread=to_thread))
            for module in (rows, sweep):
                patched.setattr(module, "give_way", lambda _: call())
            own = self.state.writer
            log = SimpleNamespace(sync=sync, gathered=own.gathered, make_room=own.make_room, check=own.check)
            return await self.mark_pass(log).run()

    async def checkpoint_between(self, monkeypatch, call: Callable[[], Awaitable[None]]) -> None:
        """A checkpoint; between two partitions `call` runs."""
        with monkeypatch.context() as patched:
            patched.setattr(writer, "_YIELD_ROWS", 1)
            patched.setattr(writer, "give_way", lambda _: call())
            await self.store.checkpoint()

    def check_postings(self) -> None:
        """All postings of a record say the same n."""
        lengths: dict[int, set[int]] = defaultdict(set)
        for number in range(len(self.directory.partitions)):
            for word0, word1, _ in self.directory.image(number).tolist():
                if word1 >> 24:
                    lengths[word1 >> 24].add((word0 >> 10 & 63) + 1)
        assert all(len(found) == 1 for found in lengths.values())

    def masks(self) -> dict[int, int]:
        """By root key the bits that are set, of all keys that have some."""
        out: dict[int, int] = {}
        for number in range(len(self.directory.partitions)):
            for word0, word1 in self.directory.image(number).tolist():
                if word0 & 0xFFFF:
                    assert word1 >> 12 & 63 == 0
                    out[word0 >> 16] = out.get(word0 >> 16, 0) | word0 & 0xFFFF
        return out

    async def live_masks(self) -> dict[int, int]:
        """The same as it should be: the bits of all entries that diverge inside their window."""
        await self.state.writer.sync()
        reader = rows.RowReader(self.directory, self.state.shape)
        await self.mark_pass()._read_log(reader, self.state.gatherer.highest)
        out: dict[int, int] = {}
        for row in reader.rows:
            if row["d"]:
                out[int(row["root_key"])] = out.get(int(row["root_key"]), 0) | 1 << int(row["d"]) // 4
        return out


def tokens(path: str) -> list[int]:
    return list(path.encode())


@asynccontextmanager
async def marked(routing: str = "divergence", monkeypatch=None, folder=None, seed: int = 0):
    """With `monkeypatch` its directory has several partitions from the start. `seed` makes the store's secret."""
    if monkeypatch is not None:
        monkeypatch.setattr(DivergenceDirectory, "start_empty", start_divergence)
        monkeypatch.setattr(PostingsDirectory, "start_empty", start_postings)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(header, "secrets", SimpleNamespace(token_bytes=random.Random(seed).randbytes))
        store = await memory_store(folder, routing=routing, exact=True)
    async with store:
        yield Marked(store)
