"""Many small log files, as processes that live shortly leave them: they are compacted together."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest
from compaction_helpers import answers, is_cancelled_at, options, reopened, small_steps, start_of, with_compactor
from store_helpers import locations, logs, memory_store, remove_checkpoints

import sarpstore
from sarpstore import _format as fmt
from sarpstore._compaction import SETTLING, together
from sarpstore._files import MemoryFolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sarpstore._compaction import Compactor

ROUTINGS_TOO = True
LIVES = 7
"""Fewer than what a store compacts by itself at rest."""


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
            if life == 5:
                await store.clear_holder(1)
    return asked


async def nothing() -> None:
    """Instead of a step."""


async def give_up(compactor: Compactor, numbers: list[int], monkeypatch) -> None:
    """Compact these, and do not come to remove them."""
    with monkeypatch.context() as patched:
        patched.setattr(compactor, "_finish_deletions", nothing)
        await compactor._compact(numbers)


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
        await give_up(compactor, numbers, monkeypatch)
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


class Interrupted:
    """A folder that tells of each sync before it is done, or fails there or where a name is removed."""

    def __init__(self, inner, at_sync=lambda: None, failing: Iterable[str] = ()) -> None:
        self._inner, self._at_sync, self.failing = inner, at_sync, set(failing)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def remove(self, name):
        if name in self.failing:
            raise sarpstore.StorageError("remove", name, errno.EIO)
        self._inner.remove(name)

    def sync(self):
        self._at_sync()
        if "sync" in self.failing:
            self.failing.remove("sync")
            raise sarpstore.StorageError("sync", "folder", errno.EIO)
        self._inner.sync()


async def test_a_crash_may_bring_back_any_of_the_names_that_are_removed_together():
    """One has what was removed, another the remove record that is needed for as long as the first may come back."""
    folder, path = MemoryFolder(), [1] * 40
    images: list[MemoryFolder] = []
    async with memory_store(folder.reopen(), **options()) as store:
        await store.namespace("m").insert(path, locations(40, 7000))
    async with memory_store(folder.reopen(), **options()) as store:
        await store.namespace("m").truncate(path, blocks=0)
    for life in range(5):
        async with memory_store(folder.reopen(), **options()) as store:
            await store.namespace("m").insert([100 + life] * 30, locations(30, life * 100))
    async with memory_store(folder.reopen(), **options()) as store:
        maintenance = store._background.maintenance
        await store.namespace("m").insert([9] * 100, locations(100, 1 << 30))
        await store.sync()
        await maintenance.mark_pass()
        compactor = maintenance.compactor
        compactor._folder = Interrupted(
            compactor._folder, lambda: images.extend(folder.crash(seed, "tear") for seed in range(40))
        )
        assert await compactor.compact_next(start_of(store), SETTLING) > 0
    assert len(images) >= 40
    for image in images:
        remove_checkpoints(image)
        assert await reopened(image.reopen(), [(0, path)]) == [[]]


async def test_names_that_can_not_be_removed_and_a_sync_that_fails_count_as_there():
    folder = MemoryFolder()
    asked = await short_lives(folder)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        numbers = await smalls(store, compactor)
        first, rest = numbers[0], set(numbers[1:])
        interrupted = compactor._folder = Interrupted(compactor._folder, failing=[fmt.log_name(first)])
        with pytest.raises(sarpstore.StorageError, match="remove"):
            await compactor._compact(numbers)
        assert first in compactor._existing()
        assert not rest & set(compactor._existing()), "the others are gone all the same"
        interrupted.failing = {"sync"}
        with pytest.raises(sarpstore.StorageError, match="sync"):
            await compactor._finish_deletions()
        await compactor._finish_deletions()
        assert first in compactor._existing(), "nobody can say whether a crash brings it back"
        assert await answers(store, asked) == before
    assert await reopened(folder.reopen(), asked) == before


async def test_remains_that_can_not_be_removed_do_not_keep_a_store_from_being_opened(monkeypatch):
    folder = MemoryFolder()
    asked = await short_lives(folder)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        numbers = await smalls(store, compactor)
        await give_up(compactor, numbers, monkeypatch)
        await store.checkpoint()
        crashed = folder.crash(0, "keep")
    failing = Interrupted(crashed.reopen(), failing=map(fmt.log_name, numbers[:2]))
    async with memory_store(failing, **options()) as store:
        compactor = store._background.maintenance.compactor
        assert set(numbers[:2]) == set(compactor._existing()) & set(numbers)
        assert await answers(store, asked) == before
    assert {fmt.log_name(number) for number in numbers} & set(logs(crashed)) == set(map(fmt.log_name, numbers[:2]))


@pytest.mark.parametrize("mode", ["lose", "tear"])
async def test_a_crash_between_their_retirements_brings_nothing_back_and_loses_nothing(mode):
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
