"""Any sequence of operations, crashes and reopenings gives what an exact oracle gives."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import WIDE, Oracle, abandoned, addresses, locations, names_of, remove_checkpoints, small_files

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True

DOMAINS = (("a", 0), ("a", 1), ("b", 0))
"""(namespace, holder): the same tokens under another of them are other blocks."""


@dataclass(frozen=True)
class Insert:
    domain: int
    base: int
    cut: int
    tail: int
    symbol: int


@dataclass(frozen=True)
class Match:
    domain: int
    base: int
    cut: int
    tail: int
    symbol: int


@dataclass(frozen=True)
class Call:
    name: str


@dataclass(frozen=True)
class Reopen:
    heads: str  # which checkpoints are left: all, none, older


@dataclass(frozen=True)
class Crash:
    mode: Any
    seed: int
    heads: str


lengths = st.one_of(st.integers(0, 6), st.sampled_from([62, 63, 64, 65, 66, 127, 128, 129, 130]), st.integers(0, 300))
shapes = {
    "domain": st.sampled_from([0, 0, 0, 1, 2]),
    "base": st.integers(0, 7),
    "cut": lengths,
    "tail": lengths,
    "symbol": st.integers(0, 2),
}
heads_left = st.sampled_from(["all", "all", "none", "older"])
operations = st.lists(
    st.one_of(
        st.builds(Insert, **shapes),
        st.builds(Insert, **shapes),
        st.builds(Insert, **shapes),
        st.builds(Match, **shapes),
        st.builds(Call, st.sampled_from(["sync", "checkpoint", "pause"])),
        st.builds(Reopen, heads_left),
        st.builds(Crash, st.sampled_from(["lose", "keep", "tear"]), st.integers(0, 1 << 16), heads_left),
    ),
    min_size=3,
    max_size=14,
)


class Run:
    """One store's life, beside the oracle's."""

    def __init__(self, options):
        self.options = options
        self.folder = MemoryFolder()
        self.oracle = Oracle()
        self.acknowledged = 0
        self.paths = [()]
        self.address = 1
        self.store = None
        self.context = None

    async def open(self):
        self.context = abandoned(sarpstore.open(self.folder, block_tokens=1, **self.options))
        self.store = await self.context.__aenter__()
        self.folder = self.folder.reopen()

    async def close(self):
        await self.context.__aexit__(None, None, None)

    def path(self, shape):
        kept = self.paths[shape.base % len(self.paths)][: shape.cut]
        pattern = random.Random(shape.symbol)
        return kept + tuple(pattern.randrange(3) for _ in range(shape.tail))

    def namespace(self, domain):
        return self.store.namespace(DOMAINS[domain][0]), DOMAINS[domain][1]

    async def check(self, domain, path):
        namespace, holder = self.namespace(domain)
        expected = self.oracle.match(domain, path)
        match = await namespace.match(path, holder=holder)
        assert (match.blocks, addresses(match.locations)) == (len(expected), expected)
        assert (await namespace.match(path, locations=False, holder=holder)).blocks == len(expected)
        at_least, at_most = namespace.estimate(path, holder=holder)
        assert at_least <= len(expected) <= at_most <= len(path)

    async def check_all(self):
        for domain in range(len(DOMAINS)):
            for path in self.paths:
                await self.check(domain, path)
        stats = self.store.stats()
        assert stats.blocks == len(self.oracle.keys)
        assert stats.damaged_records == 0

    async def do(self, operation):
        match operation:
            case Insert():
                await self.insert(operation)
            case Match():
                await self.check(operation.domain, self.path(operation))
            case Call("sync"):
                await self.store.sync()
                self.acknowledged = len(self.oracle.keys)
            case Call("checkpoint"):
                await self.store.checkpoint()
                self.acknowledged = len(self.oracle.keys)
            case Call("pause"):
                await asyncio.sleep(0.004)
            case Reopen(heads):
                await self.close()
                self.leave(heads)
                await self.open()
                await self.check_all()
            case Crash(mode, seed, heads):
                crashed = self.folder.crash(seed, mode)
                await self.close()
                self.folder = crashed
                self.leave(heads)
                await self.open()
                await self.after_crash()

    async def insert(self, operation):
        path = self.path(operation)
        rows = locations(len(path), self.address, self.options["location_dtype"])
        self.address += len(path)
        namespace, holder = self.namespace(operation.domain)
        new = await namespace.insert(path, rows, holder=holder)
        assert new == self.oracle.insert(operation.domain, path, addresses(rows))
        if self.options["durability"] == "always":
            self.acknowledged = len(self.oracle.keys)
        if len(self.paths) < 8:
            self.paths.append(path)
        else:
            self.paths[operation.base] = path

    def leave(self, heads):
        if heads == "none":
            remove_checkpoints(self.folder)
        elif heads == "older" and len(found := names_of(self.folder, fmt.CHECKPOINT_SUFFIX)) > 1:
            self.folder.remove(found[-1])

    async def after_crash(self):
        """What is left is what was there after some number of insertions, in their order, and all that was synced."""
        for domain in range(len(DOMAINS)):  # partitions are loaded by being asked
            for path in self.paths:
                namespace, holder = self.namespace(domain)
                await namespace.match(path, holder=holder)
        count = self.store.stats().blocks
        assert self.acknowledged <= count <= len(self.oracle.keys)
        self.oracle = self.oracle.copy(count)
        await self.check_all()


async def live(options, sequence):
    run = Run(options)
    await run.open()
    try:
        for operation in sequence:
            await run.do(operation)
        await run.check_all()
        await run.do(Reopen("none"))
        await run.do(Reopen("all"))
    finally:
        await run.close()


@pytest.mark.parametrize("durability", ["always", "interval", "never"])
@pytest.mark.parametrize("dtype", [sarpstore.LOCATION, WIDE], ids=["14-bytes", "46-bytes"])
def test_any_life_of_a_store_agrees_with_the_oracle(monkeypatch, durability, dtype):
    log_file_bytes = small_files(monkeypatch)

    @settings(
        max_examples=40,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(operations, st.sampled_from([0, 1 << 16]), st.sampled_from([1, 60_000]))
    def lives(sequence, cache_bytes, sync_interval_ms):
        options = {
            "durability": durability,
            "location_dtype": dtype,
            "log_file_bytes": log_file_bytes,
            "cache_bytes": cache_bytes,
            "sync_interval_ms": sync_interval_ms,
        }
        asyncio.run(live(options, sequence))

    lives()


def test_the_oracle_itself():
    oracle = Oracle()
    assert oracle.insert(0, (1, 2, 3), [10, 11, 12]) == 3
    assert oracle.insert(0, (1, 2, 4), [20, 21, 22]) == 1
    assert oracle.match(0, (1, 2, 4, 9)) == [10, 11, 22]
    assert oracle.match(1, (1,)) == []
    assert oracle.copy(2).match(0, (1, 2, 3)) == [10, 11]
    assert np.array_equal(locations(2, 5)["address"], [5, 6])
