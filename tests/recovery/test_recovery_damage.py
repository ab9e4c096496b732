"""Damage costs its own blocks, is counted, and never more: the store opens, answers right, and goes on."""

import numpy as np
import pytest
from store_helpers import (
    WIDE,
    abandoned,
    addresses,
    flip,
    locations,
    logs,
    memory_store,
    names_of,
    overwrite,
    records,
    remove_checkpoints,
    segments,
    truncate,
    until,
)

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder, read_whole

ROUTINGS_TOO = True

COUNT = 30


async def filled(files=1, checkpoint=True):
    """Thirty sequences of a window each, synced one by one; sequence i begins with token 100 * i."""
    folder = MemoryFolder()
    for number in range(files):
        async with memory_store(folder.reopen()) as store:
            for i in range(number * COUNT // files, (number + 1) * COUNT // files):
                await store.namespace("x").insert(path(i), locations(64, 64 * i))
                await store.sync()
            await store.checkpoint()
    if not checkpoint:
        remove_checkpoints(folder)
    return folder


def path(i):
    return range(100 * i, 100 * i + 64)


async def matched(store):
    """Which sequences are held. A sequence is held whole or not at all, with its own locations."""
    x, held = store.namespace("x"), []
    for i in range(COUNT):
        match = await x.match(path(i))
        assert match.blocks in (0, 64)
        assert (await x.match(path(i), locations=False)).blocks == match.blocks
        assert addresses(match.locations) == list(range(64 * i, 64 * i + match.blocks))
        if match.blocks:
            held.append(i)
    return held


async def check(folder, lost, *, counted=True, **options):
    """Exactly `lost` is lost, damage is counted, and inserting again mends the store for good."""
    expected = [i for i in range(COUNT) if i not in lost]
    async with memory_store(folder.reopen(), read_only=True, **options) as store:
        assert await matched(store) == expected
    async with memory_store(folder.reopen(), **options) as store:
        assert await matched(store) == expected
        assert store.stats().damaged_records > 0 or not counted
        for i in lost:
            await store.namespace("x").insert(path(i), locations(64, 64 * i))
        assert await matched(store) == list(range(COUNT))
        await store.sync()
        assert store.stats().failed == ""
    for _ in range(2):
        async with memory_store(folder.reopen(), **options) as store:
            assert await matched(store) == list(range(COUNT))
        remove_checkpoints(folder)


PLACES = {"header": 20, "body": 300, "locations": 128 + 64 * 16 + 5, "checksum": 0, "length": 8, "type": 10, "n": 12}


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_damaged_record_costs_its_own_blocks(place, checkpoint):
    folder = await filled(checkpoint=checkpoint)
    name = logs(folder)[0]
    flip(folder, name, segments(folder, name)[7] + PLACES[place])
    await check(folder, [7])


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
async def test_one_damaged_record_is_counted_as_one(checkpoint):
    folder = await filled(checkpoint=checkpoint)
    name = logs(folder)[0]
    flip(folder, name, segments(folder, name)[7] + 300)
    async with memory_store(folder.reopen(), cache_bytes=0) as store:
        for _ in range(3):
            await matched(store)
        assert store.stats().damaged_records == 1


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
async def test_damaged_pages_cost_their_own_blocks(checkpoint):
    folder = await filled(checkpoint=checkpoint)
    name = logs(folder)[0]
    at = segments(folder, name)[9] // fmt.PAGE * fmt.PAGE
    overwrite(folder, name, at, np.random.default_rng(0).bytes(2 * fmt.PAGE))
    lost = [i for i, place in enumerate(segments(await filled(), name)) if at <= place < at + 2 * fmt.PAGE]
    await check(folder, lost)


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
async def test_zeroed_pages_are_damage_too(checkpoint):
    folder = await filled(checkpoint=checkpoint)
    name = logs(folder)[0]
    places = segments(folder, name)
    at = places[9] // fmt.PAGE * fmt.PAGE
    overwrite(folder, name, at, bytes(fmt.PAGE))
    await check(folder, [i for i, place in enumerate(places) if at <= place < at + fmt.PAGE])


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
async def test_a_damaged_commit_record_costs_nothing(checkpoint):
    folder = await filled(checkpoint=checkpoint)
    name = logs(folder)[0]
    commit = [at for at, kind, _, _ in records(folder, name) if kind == fmt.RECORD_COMMIT][5]
    flip(folder, name, commit + 40)
    await check(folder, [], counted=False)  # a summary stands for it


@pytest.mark.parametrize("kind", [fmt.RECORD_SEAL, fmt.RECORD_SUMMARY, fmt.RECORD_COMMIT])
async def test_a_damaged_seal_costs_time_alone(kind):
    folder = await filled(checkpoint=False)
    name = logs(folder)[0]
    at = [at for at, type_, _, _ in records(folder, name) if type_ == kind][-1]
    flip(folder, name, at + 40)
    await check(folder, [], counted=False)  # the log's last commit: as if it had been torn


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
@pytest.mark.parametrize("sealed", [True, False])
async def test_a_damaged_namespace_record_harms_no_segment(checkpoint, sealed):
    folder = await filled()
    if not sealed:
        truncate(folder, logs(folder)[0], segments(folder, logs(folder)[0])[-1] // fmt.PAGE * fmt.PAGE + fmt.PAGE)
    if not checkpoint:
        remove_checkpoints(folder)
    name = logs(folder)[0]
    at = next(at for at, kind, _, _ in records(folder, name) if kind == fmt.RECORD_NAMESPACE)
    overwrite(folder, name, at + fmt.NAMESPACE_HEADER_BYTES, b"\xff")
    async with memory_store(folder.reopen()) as store:
        assert await matched(store) == list(range(COUNT))
        await store.namespace("x").insert([1], locations(1))
        await store.sync()
    remove_checkpoints(folder)
    async with memory_store(folder.reopen()) as store:
        assert await matched(store) == list(range(COUNT))
        if not checkpoint:  # the record was written again
            with pytest.raises(sarpstore.NamespaceError):
                await store.namespace("x").match_ids([1])


@pytest.mark.parametrize("offset", [0, 12, 40, 56, 130])
@pytest.mark.parametrize("copy", [0, 1])
async def test_a_damaged_header_copy_costs_nothing(copy, offset):
    folder = await filled(checkpoint=False)
    flip(folder, logs(folder)[0], copy * fmt.PAGE + offset)
    await check(folder, [], counted=False)


# --- whole files


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_missing_log_file_costs_its_own_blocks(which, checkpoint):
    folder = await filled(files=3, checkpoint=checkpoint)
    folder.remove(logs(folder)[which])
    # Without a checkpoint nothing that is left says that there was a newer file.
    await check(folder, list(range(which * 10, which * 10 + 10)), counted=checkpoint or which < 2)


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_file_without_a_valid_header_costs_its_own_blocks_at_most(which, checkpoint):
    folder = await filled(files=3, checkpoint=checkpoint)
    name = logs(folder)[which]
    for copy in (0, fmt.PAGE):
        flip(folder, name, copy + 20)
    async with memory_store(folder.reopen()) as store:
        held = await matched(store)
        assert set(range(COUNT)) - set(held) <= set(range(which * 10, which * 10 + 10))
        assert store.stats().damaged_records > 0 or len(held) == COUNT
        await store.namespace("x").insert([1, 2], locations(2))
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([1, 2])).blocks == 2
        assert await matched(store) == held


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_log_file_cut_at_a_commits_end_is_damage(which, checkpoint):
    folder = await filled(files=2, checkpoint=checkpoint)
    name = logs(folder)[which]
    places = segments(folder, name)
    cut = places[4] // fmt.PAGE * fmt.PAGE + fmt.PAGE
    lost = [15 * which + i for i, place in enumerate(places) if place >= cut]
    if which == 1 and not checkpoint:
        pytest.skip("nothing that is left says that there was more")
    truncate(folder, name, cut)
    await check(folder, lost)


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "log alone"])
async def test_a_log_file_cut_within_a_page(checkpoint):
    folder = await filled(files=2, checkpoint=checkpoint)
    name = logs(folder)[0]
    places = segments(folder, name)
    truncate(folder, name, places[4] + 100)
    await check(folder, [i for i, place in enumerate(places) if place >= places[4] // fmt.PAGE * fmt.PAGE])


async def test_the_only_commit_behind_a_lost_file_is_not_lost_with_it():
    """No commit record behind it says that it was synced, and the one that it follows is gone."""
    folder = await filled(files=2, checkpoint=False)
    store = await memory_store(folder.reopen())
    await store.namespace("y").insert([1, 2], locations(2))
    await store.sync()
    left = folder.crash(0, "lose")
    await store.close()
    left.remove(logs(left)[1])
    async with memory_store(left.reopen()) as store:
        assert (await store.namespace("y").match([1, 2])).blocks == 2
        assert await matched(store) == list(range(15))
        assert store.stats().damaged_records > 0


async def test_a_lost_files_number_is_not_used_again():
    folder = await filled(files=3)
    gone = logs(folder)[-1]
    folder.remove(gone)
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert([1], locations(1))
        await store.sync()
    assert gone not in logs(folder)
    assert len(logs(folder)) == 3


# --- checkpoints


async def with_checkpoints(count=2):
    """Each checkpoint covers ten more sequences; so the older one's log tail is what the newer one has imaged."""
    folder = MemoryFolder()
    store = await memory_store(folder.reopen())
    for i in range(COUNT):
        await store.namespace("x").insert(path(i), locations(64, 64 * i))
        if i in (10, 20, 25)[3 - count :]:
            await store.checkpoint()
    await store.sync()
    left = folder.crash(0, "lose")
    await store.close()
    assert len(names_of(left, fmt.CHECKPOINT_SUFFIX)) == min(2, count)
    return left


@pytest.mark.parametrize("offset", [0, 8, 12, 64, 72, 100, 192, -1])
async def test_a_damaged_newest_head_gives_way_to_the_older_one(offset):
    folder = await with_checkpoints()
    name = names_of(folder, fmt.CHECKPOINT_SUFFIX)[-1]
    flip(folder, name, offset % len(read_whole(folder, name)))
    await check(folder, [])


@pytest.mark.parametrize("size", [0, 100, 192, 250])
async def test_a_head_cut_short_gives_way_too(size):
    folder = await with_checkpoints()
    truncate(folder, names_of(folder, fmt.CHECKPOINT_SUFFIX)[-1], size)
    await check(folder, [])


async def test_with_all_heads_damaged_the_log_is_enough():
    folder = await with_checkpoints()
    for name in names_of(folder, fmt.CHECKPOINT_SUFFIX):
        flip(folder, name, 70)
    await check(folder, [])


@pytest.mark.parametrize("how", ["flipped", "missing", "cut", "zeroed"])
async def test_a_damaged_image_is_rebuilt_from_the_log(how):
    folder = await with_checkpoints()
    for name in names_of(folder, fmt.IMAGES_SUFFIX):
        if how == "flipped":
            flip(folder, name, 100)
        elif how == "missing":
            folder.remove(name)
        elif how == "cut":
            truncate(folder, name, 80)
        else:
            overwrite(folder, name, 0, bytes(len(read_whole(folder, name))))
    await check(folder, [])


async def many(folder, count=4500):
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        for i in range(count):
            await x.insert([i], locations(1, i))
        await store.checkpoint()


async def test_one_damaged_image_of_several_is_rebuilt_alone():
    folder = MemoryFolder()
    await many(folder)
    flip(folder, names_of(folder, fmt.IMAGES_SUFFIX)[-1], 5000)
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        matches = await store.match_many([(x, [i]) for i in range(4500)])
        assert [m.locations["address"].tolist() for m in matches] == [[i] for i in range(4500)]
        await until(lambda: store.stats().unloaded_partitions == 0)
        assert (store.stats().blocks, store.stats().damaged_records) == (4500, 1)
        await store.checkpoint()
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        assert {m.blocks for m in await store.match_many([(x, [i]) for i in range(4500)])} == {1}
        assert store.stats().damaged_records == 0


async def test_an_image_is_mended_by_the_next_checkpoint():
    folder = await with_checkpoints()
    for name in names_of(folder, fmt.IMAGES_SUFFIX):
        flip(folder, name, 100)
    async with memory_store(folder.reopen()) as store:
        assert await matched(store) == list(range(COUNT))
        await store.checkpoint()
    async with memory_store(folder.reopen()) as store:
        assert await matched(store) == list(range(COUNT))
        assert store.stats().damaged_records == 0


@pytest.mark.parametrize("how", ["close", "power cut"])
async def test_what_an_image_made_anew_brings_back_stays_removed(how):
    """The log has what was removed, and so has the image that a checkpoint makes of it; its head has the removals."""
    folder = MemoryFolder()
    async with abandoned(memory_store(folder)) as store:
        x = store.namespace("x")
        await x.insert(path(0), locations(64))
        await x.insert(path(1), locations(64, 64))
        await x.remove_ids(x.block_ids(path(0))[:1])
        await store._background.maintenance.mark_pass()
        await x.insert(path(2), locations(64, 128))
        await store.sync()
        folder = folder.crash(0, "lose")
    for name in names_of(folder, fmt.IMAGES_SUFFIX):
        flip(folder, name, 100)
    async with memory_store(folder.reopen()) as store:
        await store.checkpoint()
        crashed = folder.crash(0, "lose")
    folder = folder if how == "close" else crashed
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        assert [(await x.match(path(i))).blocks for i in range(3)] == [0, 64, 64]


# --- damage on a path


async def test_a_damaged_middle_window_costs_what_lies_behind_it_only_where_locations_are_asked_for():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), location_dtype=WIDE) as store:
        await store.namespace("x").insert(range(300), locations(300, dtype=WIDE))
        await store.checkpoint()
    name = logs(folder)[0]
    middle = next(
        at
        for at, kind, _, _ in records(folder, name)
        if kind == fmt.RECORD_SEGMENT and int.from_bytes(read_whole(folder, name)[at + 36 : at + 40], "little") == 2
    )
    flip(folder, name, middle + 500)
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        match = await x.match(range(300))
        assert match.blocks == 128
        assert addresses(match.locations) == list(range(128))
        assert (await x.match(range(300), locations=False)).blocks in (128, 300)
        assert store.stats().damaged_records == 1
        await x.insert(range(300), locations(300, 1000, WIDE))
        match = await x.match(range(300))
        assert match.blocks == 300
        assert addresses(match.locations)[:128] == list(range(128))
        assert set(addresses(match.locations)[128:192]) == set(range(1128, 1192))
    for _ in range(2):
        async with memory_store(folder.reopen()) as store:
            assert (await store.namespace("x").match(range(300))).blocks == 300
        remove_checkpoints(folder)


async def test_a_damaged_branch_falls_back_to_what_it_left():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        await x.insert(range(40), locations(40))
        await store.sync()
        await x.insert([*range(20), *range(500, 520)], locations(40, 100))
        await store.checkpoint()
    name = logs(folder)[0]
    flip(folder, name, segments(folder, name)[-1] + 300)
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        assert addresses((await x.match([*range(20), *range(500, 520)])).locations) == list(range(20))
        assert (await x.match(range(40))).blocks == 40
        assert store.stats().damaged_records == 1


@pytest.mark.parametrize("seed", range(6))
async def test_random_damage_never_makes_a_wrong_answer(seed):
    """Whatever is hit: the store opens or says why not, and what it answers was inserted."""
    rng = np.random.default_rng(seed)
    folder = await with_checkpoints()
    names = [name for name in folder.names() if name.endswith((".log", ".checkpoint", ".images"))]
    for _ in range(int(rng.integers(1, 20))):
        name = names[rng.integers(len(names))]
        size = len(read_whole(folder, name))
        offset = int(rng.integers(0, size))
        if name.endswith(".log") and offset < fmt.LOG_HEADER_BYTES:
            continue
        overwrite(folder, name, offset, rng.bytes(min(size - offset, int(rng.choice([1, 64, 512, 4096])))))
    async with memory_store(folder.reopen()) as store:
        x = store.namespace("x")
        for i in range(COUNT):
            match = await x.match(path(i))
            assert addresses(match.locations) == list(range(64 * i, 64 * i + match.blocks))
        for i in range(COUNT):
            await x.insert(path(i), locations(64, 64 * i))
            assert addresses((await x.match(path(i))).locations) == list(range(64 * i, 64 * i + 64))
