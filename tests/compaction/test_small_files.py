"""Many small log files, as processes that live shortly leave them: they are compacted together."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from compaction_helpers import answers, is_cancelled_at, options, reopened, small_steps, start_of, with_compactor
from store_helpers import locations, logs, memory_store, remove_checkpoints

from sarpstore import _format as fmt
from sarpstore._compaction import SETTLING, together
from sarpstore._files import MemoryFolder

if TYPE_CHECKING:
    from sarpstore._compaction import Compactor

ROUTINGS_TOO = True
LIVES = 14


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_steps(monkeypatch)


async def short_lives(folder: MemoryFolder) -> list[tuple[int, list[int]]]:
    """Each inserts a little, and removes most of what the one before did; (holder, path) of what was inserted."""
    rng, asked = random.Random(4), []
    for life in range(LIVES):
        async with memory_store(folder.reopen(), **options()) as store:
            namespace = store.namespace("m")
            if life > 1:
                holder, path = asked[-1]
                await namespace.truncate(path, blocks=rng.choice([0, 0, 3]), holder=holder)
            asked.append((life % 2, [life, *(rng.randrange(4) for _ in range(30))]))
            await namespace.insert(asked[-1][1], locations(31, life * 1000), holder=asked[-1][0])
            if life == 9:
                await store.clear_holder(1)
    return asked


async def nothing() -> None:
    """Instead of a step."""


async def smalls(store, compactor: Compactor) -> list[int]:
    await store.checkpoint()
    rows = await compactor.rows(start_of(store))
    return [row.number for row in together(rows, SETTLING, store._core.state.gatherer.file_bytes)]


async def test_compact_makes_one_of_them():
    folder = MemoryFolder()
    asked = await short_lives(folder)
    before, files = await reopened(folder.reopen(), asked), len(logs(folder))
    assert files >= LIVES
    async with memory_store(folder.reopen(), **options()) as store:
        await store.compact()
        assert await answers(store, asked) == before
        assert len(logs(folder)) <= 4
    assert await reopened(folder.clone(), asked) == before
    remove_checkpoints(folder)
    assert await reopened(folder.clone(), asked) == before


async def test_what_a_checkpoint_knows_to_be_retired_is_removed_at_the_next_open(monkeypatch):
    """The removals were cut short, and a crash undid others: nobody would ever look at these files again."""
    folder = MemoryFolder()
    asked = await short_lives(folder)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        numbers = await smalls(store, compactor)
        with monkeypatch.context() as patched:
            patched.setattr(compactor, "_finish_deletions", nothing)
            await compactor._compact(numbers)
            assert set(numbers) <= set(compactor._existing()), "what is still there counts"
            await store.checkpoint()
        damaged = folder.open(fmt.log_name(numbers[0]), writable=True)
        damaged.write(0, bytes(fmt.LOG_HEADER_BYTES))
        crashed = folder.crash(0, "keep")
    assert {fmt.log_name(number) for number in numbers} <= set(logs(crashed))
    assert await reopened(crashed.reopen(), asked) == before, "a reader removes nothing"
    async with memory_store(crashed.reopen(), **options()) as store:
        left = set(numbers) & set(fmt.numbered(logs(crashed), fmt.LOG_SUFFIX))
        assert left == {numbers[0]}, "of a file with a damaged header nobody can say whose it is"
        assert await answers(store, asked) == before


@pytest.mark.parametrize("mode", ["lose", "tear"])
async def test_a_crash_between_their_retirements_brings_nothing_back_and_loses_nothing(mode):
    """A remove record of the one is not copied where what it kills was in another that is deleted before it."""
    folder = MemoryFolder()
    asked = await short_lives(folder)
    before = await reopened(folder.reopen(), asked)
    limit, left = 1, True
    while left:
        image = folder.clone()
        async with with_compactor(image.reopen()) as (store, compactor):
            numbers = await smalls(store, compactor)
            assert len(numbers) > LIVES // 2
            left = await is_cancelled_at(limit, compactor._compact(numbers))
            assert await answers(store, asked) == before
            crashed = image.crash(limit, mode)
            remove_checkpoints(without_heads := crashed.clone())
            assert await reopened(crashed.reopen(), asked) == before, f"crash at {limit}"
            assert await reopened(without_heads.reopen(), asked) == before, f"crash at {limit}, from the log alone"
        assert await reopened(image.reopen(), asked) == before
        limit += 1 if limit < 20 else 5
    assert limit > 20
