"""Passes over a store: what they must take away, what they must leave, and what goes on meanwhile."""

from __future__ import annotations

import random

import pytest
from pass_store import W, marked

from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

ROUTINGS = ("divergence", "sarp")


@pytest.fixture(params=ROUTINGS)
def routing(request):
    return request.param


async def test_an_empty_log_has_nothing_to_do(routing) -> None:
    async with marked(routing) as m:
        result = await m.settle()
        assert (result.dropped, result.cut, result.rows, result.intact_files) == (0, 0, 0, ())


async def test_what_is_alive_stays(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * 200)
        await m.insert("a" * 20 + "b" * 100)
        result = await m.settle()
        assert (result.dropped, result.cut, result.rows) == (0, 0, 6)
        await m.check()


async def test_a_removed_root_takes_all_that_follows(routing) -> None:
    """Insert A, remove A[:1], insert B that shares much of A: A's later windows must not hang on B's."""
    async with marked(routing) as m:
        await m.insert("a" * (3 * W))
        await m.remove("a")
        await m.insert("a" * (2 * W) + "b" * W)
        assert (await m.settle()).dropped  # the rest was met by the insertion
        assert (m.removals.markers, m.directory.blocks) == (0, 3 * W)
        await m.check()


async def test_two_markers_on_one_path_the_older_deeper(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * (2 * W))
        await m.remove("a" * (W + 10))
        await m.insert("a" * W + "b" * W)
        await m.remove("a" * 30)
        await m.insert("a" * (2 * W))
        await m.settle()
        await m.check()
        assert m.directory.blocks == 2 * W


async def test_a_truncation_then_one_that_supersedes(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * 50)
        await m.remove("a" * 20)
        result = await m.settle()
        assert (result.dropped, result.cut) == (0, 1)
        await m.check()
        await m.insert("a" * 60)
        assert (await m.settle()).dropped == 0
        await m.check()
        assert m.directory.blocks == 60


async def test_orphans_do_not_come_back_with_their_path(routing) -> None:
    """The window between is gone before the pass; it is inserted again when no marker is left."""
    async with marked(routing) as m:
        await m.insert("a" * (4 * W))
        await m.remove("a" * (W + 5))
        assert await m.match("a" * (2 * W)) == W + 4
        assert await m.match("a" * (4 * W)) == W + 4
        await m.settle()
        await m.insert("a" * (2 * W))
        assert await m.match("a" * (4 * W)) == 2 * W


async def test_orphans_whose_path_was_inserted_again_before_the_pass(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * (4 * W))
        await m.remove("a" * (W + 5))
        await m.insert("a" * (2 * W))
        await m.settle()
        await m.check()
        assert m.directory.blocks == 2 * W


async def test_holders_are_cleared(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * 100, holder=1)
        await m.insert("a" * 100)
        await m.clear(1)
        await m.insert("ab" * 50, holder=1)
        assert (await m.settle()).dropped
        assert m.directory.blocks == 200
        await m.check()


async def test_a_later_pass_has_nothing_left_to_do(routing) -> None:
    async with marked(routing) as m:
        await m.insert("a" * 300)
        await m.insert("a" * 70 + "b" * 100)
        await m.remove("a" * 90)
        await m.settle()
        result = await m.settle()
        assert (result.dropped, result.cut) == (0, 0)


async def test_files_that_are_intact_are_named(routing) -> None:
    """Files are sealed by reopening; in the first one a record is cut, in the second none."""
    folder = MemoryFolder()
    async with marked(routing, folder=folder) as m:
        await m.insert("a" * 100)
    async with marked(routing, folder=folder.reopen()) as m:
        await m.insert("b" * 100)
    async with marked(routing, folder=folder.reopen()) as m:
        await m.remove("a" * 90)
        await m.insert("c" * 100)
        result = await m.settle()
        assert (result.cut, result.intact_files) == (1, (2,))
        assert (await m.settle()).intact_files == (2,)


async def test_a_missing_file_is_a_miss(routing) -> None:
    folder = MemoryFolder()
    async with marked(routing, folder=folder) as m:
        await m.insert("a" * 100)
    async with marked(routing, folder=folder.reopen()) as m:
        await m.insert("b" * 100)
        await m.state.writer.sync()  # what was recovered is
        m.state.folder.remove("0000000000000001.log")
        result = await m.settle()
        assert (result.dropped, result.unreadable, result.rows) == (2, 2, 2)
        assert await m.match("a" * 100) == 0
        assert await m.match("b" * 100) == 100


async def test_a_record_that_is_cut_hides_no_longer_one(routing) -> None:
    """In `sarp` it still stands in lists at points behind the cut, and alone there, until the pass."""
    async with marked(routing) as m:
        await m.insert("ba" + "b" * 62)
        await m.insert("b" * 20 + "a" * 43)
        await m.remove("b" * 6)
        await m.insert("ba" + "b" * 26)
        await m.insert("b" * 6 + "aa")
        await m.check()
        await m.settle()
        await m.check()


async def test_masks_lose_what_has_gone() -> None:
    async with marked() as m:
        await m.insert("a" * 40)
        for at in (5, 17, 30):
            await m.insert("a" * at + "b" * 5)
        await m.remove("a" * 17 + "b")
        await m.settle()
        assert list(m.masks().values()) == [1 << 5 // 4 | 1 << 30 // 4]
        await m.remove("a")
        await m.settle()
        assert m.directory.entries_all == 0


async def test_lists_do_not_grow_while_they_are_swept(monkeypatch) -> None:
    """A list that is expanded would post what is still to be cut where the sweep has been."""
    async with marked("sarp", monkeypatch) as m:
        states = []

        async def between() -> None:
            if m.directory.c.growth_held and len(states) < 8:
                await m.insert("a" * 20 + chr(ord("b") + len(states)) * 20)
                states.append(int(m.directory.c.states))

        await m.settle_between(monkeypatch, between)
        assert states == [0] * 8
        await m.insert("a" * 20 + "z" * 20)
        assert m.directory.c.states
        await m.check()


async def test_damaged_records_leave_the_directory(routing) -> None:
    folder = MemoryFolder()
    async with marked(routing, folder=folder) as m:
        await m.insert("a" * 100)
        await m.insert("b" * 100)
        await m.store.sync()
        content = folder.open("0000000000000001.log", writable=True)
        page = bytearray(fmt.PAGE)
        content.read_into(fmt.LOG_HEADER_BYTES, page)
        at = page.index(m.spaces.block_ids(list(b"a" * 100))[0].tobytes())
        content.write(fmt.LOG_HEADER_BYTES + at, b"\0" * 16)
        result = await m.settle()
        # With its first window the path has lost what the second hung on.
        assert (result.dropped, result.unreadable, result.rows) == (2, 1, 3)
        assert m.directory.blocks == 100


class Churn:
    """Random calls on a store."""

    def __init__(self, m, seed: int) -> None:
        self.m = m
        self.rng = random.Random(seed)

    def path(self) -> str:
        rng, known = self.rng, list(self.m.paths) or [""]
        start = rng.choice(known[-12:])
        start = start[: rng.choice([rng.randint(0, len(start)), len(start) // W * W, len(start)])]
        runs = ("".join(rng.choice("ab") * rng.choice([1, 3, 20, W])) for _ in range(rng.randint(1, 3)))
        return (start + "".join(runs))[: 4 * W]

    async def step(self) -> None:
        rng, m = self.rng, self.m
        kind, holder = rng.random(), int(rng.random() < 0.2)
        if kind < 0.55 or not m.paths:
            await m.insert(self.path(), holder)
        elif kind < 0.8:
            path = rng.choice(list(m.paths))
            await m.remove(path[: rng.randint(1, len(path))], holder)
        elif kind < 0.82:
            await m.clear(1)
        else:
            await m.match(rng.choice(list(m.paths)), holder)


@pytest.mark.parametrize("seed", range(12))
async def test_churn(routing, seed, monkeypatch) -> None:
    async with marked(routing, monkeypatch, seed=seed) as m:
        churn = Churn(m, seed)
        for _ in range(6):
            for _ in range(churn.rng.randint(1, 15)):
                await churn.step()
            await m.settle()
            await m.check()
            if routing == "divergence":
                assert m.masks() == await m.live_masks()
                assert m.directory.blocks == len(m.held)
            else:
                m.check_postings()
        assert m.counts["dropped"]


@pytest.mark.parametrize("seed", range(12))
async def test_churn_during_passes(routing, seed, monkeypatch) -> None:
    """Nothing that is inserted meanwhile is lost, and nothing that is removed stays."""
    async with marked(routing, monkeypatch, seed=seed) as m:
        churn = Churn(m, seed)
        for _ in range(5):
            for _ in range(churn.rng.randint(1, 10)):
                await churn.step()
            share = churn.rng.choice([0.2, 0.5, 1.0])

            async def between(share: float = share) -> None:
                if churn.rng.random() < share:
                    await churn.step()

            result = await m.settle_between(monkeypatch, between)
            assert result.masks_cleared
            await m.check()
            if routing == "divergence":
                live, set_bits = await m.live_masks(), m.masks()
                assert all(set_bits.get(key, 0) & bits == bits for key, bits in live.items())
            else:
                m.check_postings()
        await m.settle()
        await m.check()
        if routing == "divergence":
            assert m.masks() == await m.live_masks()
            assert m.directory.blocks == len(m.held)
