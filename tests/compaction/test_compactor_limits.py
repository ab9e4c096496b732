"""What an older checkpoint still needs of a compaction, and how little room one may have."""

from __future__ import annotations

import pytest
from compaction_helpers import answers, fill, options, reopened, small_steps, start_of, with_compactor
from store_helpers import locations, memory_store, names_of

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder

ROUTINGS_TOO = True


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_steps(monkeypatch)


async def test_an_older_checkpoint_knows_that_the_files_it_names_were_retired():
    """A record that says so is itself moved, when nothing but that checkpoint can still name its file."""
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 5, sequences=40)
    before = await reopened(folder.reopen(), asked)
    async with with_compactor(folder.reopen()) as (store, compactor):
        for row in await compactor.rows(start_of(store)):
            await compactor.compact_file(row.number)
        await store._core.state.writer.end_file()
        await store.namespace("m").insert([8] * 10, locations(10))  # the next file begins
        await store.sync()
        await store.checkpoint()
        rows = await compactor.rows(start_of(store))
        assert rows, "the files that have the records of the retirements"
        for row in rows:
            await compactor.compact_file(row.number)
        await store.sync()
        image = folder.clone()
    heads = names_of(image, fmt.CHECKPOINT_SUFFIX)
    assert len(heads) == 2
    image.remove(heads[1])
    async with memory_store(image.reopen(), **options()) as store:
        assert await answers(store, asked) == before
        assert store.stats().damaged_records == 0


async def test_it_goes_by_smaller_steps_where_there_is_little_room_and_stops_where_there_is_none():
    folder = MemoryFolder()
    asked = await fill(folder.reopen(), 5, sequences=40)
    before = await reopened(folder.reopen(), asked)
    room, steps = [0], []
    async with with_compactor(folder.reopen()) as (store, compactor):
        compactor._room = lambda: room[0] * fmt.PAGE
        compact = compactor._directory.compact
        compactor._directory.compact = lambda *args: steps.append(args[2]) or compact(*args)
        row = (await compactor.rows(start_of(store)))[0]
        with pytest.raises(sarpstore.LimitError, match="no room to compact"):
            await compactor.compact_file(row.number)
        assert fmt.log_name(row.number) in folder.names()
        room[0] = 40
        await compactor.compact_file(row.number)
        assert set(steps) == {2}
        assert fmt.log_name(row.number) not in folder.names()
        assert await answers(store, asked) == before
