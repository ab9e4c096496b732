"""What a power cut may leave, and what is made of it: an acknowledged prefix, the same each time, void stays void."""

import asyncio
import sys

import pytest
from store_helpers import (
    WaitingFolder,
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
    until,
)

from sarpstore import _format as fmt
from sarpstore._checkpoint import CheckpointHead
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._log.header import LogHeader

ROUTINGS_TOO = True


async def held(folder, count=40, **options):
    """For each sequence how many of its blocks a reader finds; its locations are its own."""
    async with memory_store(folder.reopen(), read_only=True, **options) as store:
        x, out = store.namespace("x"), []
        for i in range(count):
            match = await x.match(path(i))
            assert addresses(match.locations) == list(range(100 * i, 100 * i + match.blocks))
            out.append(match.blocks)
        assert store.stats().damaged_records == 0
        return out


def path(i):
    return [1000 + i] * 70


async def insert(store, i):
    await store.namespace("x").insert(path(i), locations(70, 100 * i))


# --- durability


@pytest.mark.parametrize("mode", ["lose", "tear", "keep"])
async def test_always_survives_as_soon_as_it_is_acknowledged(mode):
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), durability="always") as store:
        for i in range(10):
            await insert(store, i)
            assert await held(folder.crash(i, mode), 10) == [70] * (i + 1) + [0] * (9 - i)


@pytest.mark.parametrize("mode", ["lose", "tear", "keep"])
async def test_what_was_held_already_is_durable_when_always_acknowledges_it(mode):
    """The second of two who insert the same blocks at once waits for the first one's sync."""
    folder = WaitingFolder()
    async with memory_store(folder, durability="always") as store:
        await insert(store, 0)
        folder.writes.clear()
        first = asyncio.create_task(insert(store, 1))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(insert(store, 1))
        await asyncio.sleep(0.02)
        assert not first.done()
        assert not second.done()
        folder.writes.set()
        await second
        assert await held(folder.crash(0, mode), 2) == [70, 70]
        await first


@pytest.mark.parametrize("durability", ["interval", "never"])
@pytest.mark.parametrize("mode", ["lose", "tear", "keep"])
async def test_what_sync_acknowledged_survives(durability, mode):
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), durability=durability, sync_interval_ms=60_000) as store:
        for i in range(6):
            await insert(store, 2 * i)
            await store.sync()
            await insert(store, 2 * i + 1)
            found = await held(folder.crash(i, mode), 12)
            assert found[: 2 * i + 1] == [70] * (2 * i + 1)


async def test_interval_is_synced_soon_by_itself():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), sync_interval_ms=5) as store:
        await insert(store, 0)
        position = store.stats().synced_position
        await until(lambda: store.stats().synced_position > position)
        assert await held(folder.crash(0, "lose"), 1) == [70]


async def test_never_syncs_nothing_by_itself():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), durability="never", sync_interval_ms=1) as store:
        await insert(store, 0)
        await asyncio.sleep(0.05)
        assert await held(folder.crash(0, "lose"), 1) == [0]
        assert await held(folder.crash(0, "keep"), 1) == [70]
        await store.sync()
        assert await held(folder.crash(0, "lose"), 1) == [70]


@pytest.mark.parametrize("durability", ["always", "interval", "never"])
async def test_what_closing_acknowledged_survives(durability):
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), durability=durability, sync_interval_ms=60_000) as store:
        for i in range(5):
            await insert(store, i)
    crashed = folder.crash(0, "lose")
    assert await held(crashed, 5) == [70] * 5
    remove_checkpoints(crashed)
    assert await held(crashed, 5) == [70] * 5


async def test_a_checkpoint_makes_what_it_holds_durable():
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), durability="never", sync_interval_ms=60_000) as store:
        for i in range(5):
            await insert(store, i)
        await store.checkpoint()
        await insert(store, 5)
        assert await held(folder.crash(0, "lose"), 6) == [70] * 5 + [0]


async def test_recovered_commits_that_were_not_synced_are_synced_before_they_are_acknowledged():
    folder = MemoryFolder()
    async with abandoned(memory_store(folder.reopen(), durability="never", sync_interval_ms=1)) as store:
        for i in range(5):
            await insert(store, i)
        await until(lambda: store.stats().commits > 0)
        await asyncio.sleep(0.02)
        kept = folder.clone()  # the process was killed, the machine runs on: nothing is synced
    async with memory_store(kept.reopen(), durability="always") as store:
        await insert(store, 4)  # all of it was held
        assert await held(kept.crash(0, "lose"), 5) == [70] * 5


# --- the same state each time


@pytest.mark.parametrize("seed", range(12))
async def test_recovering_twice_equals_once(seed):
    folder = MemoryFolder()
    async with abandoned(memory_store(folder.reopen(), durability="never", sync_interval_ms=1)) as store:
        for i in range(20):
            await insert(store, i)
            if i % 7 == seed % 7:
                await store.sync()
            if i % 9 == seed % 9:
                await store.checkpoint()
            await asyncio.sleep(0.002)
        crashed = folder.crash(seed, "tear")
    first = await held(crashed, 20)
    assert first == sorted(first, reverse=True)  # a prefix
    assert await held(crashed, 20) == first
    async with memory_store(crashed.reopen()):
        pass
    assert await held(crashed, 20) == first
    async with memory_store(crashed.reopen()) as store:
        await insert(store, 30)
    again = crashed.crash(seed, "lose")
    assert (await held(again, 31))[:20] == first
    remove_checkpoints(again)
    assert (await held(again, 31))[:20] == first
    assert (await held(again, 31))[30] == 70


@pytest.mark.parametrize("reader_first", [True, False])
async def test_trailing_garbage_after_a_crash_is_no_corruption(reader_first):
    folder = MemoryFolder()
    async with abandoned(memory_store(folder.reopen())) as store:
        for i in range(3):
            await insert(store, i)
        await store.sync()
        crashed = folder.clone()
    name = logs(crashed)[-1]
    size = len(read_whole(crashed, name))
    for garbage in (b"\xa5" * 3, b"\xa5" * 4096, bytes(8192), b"\0" * 4096 + b"x" * 5000):
        clone = crashed.clone()
        overwrite(clone, name, size, garbage)
        if reader_first:
            assert await held(clone, 3) == [70] * 3
        async with memory_store(clone.reopen()) as store:
            assert store.stats().damaged_records == 0
            await insert(store, 5)
        assert await held(clone, 6) == [70, 70, 70, 0, 0, 70]
        remove_checkpoints(clone)
        assert await held(clone, 6) == [70, 70, 70, 0, 0, 70]


# --- void


async def three_commits():
    """A log whose last three commits were not synced, and the places of their commit records."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await insert(store, 0)
    async with abandoned(memory_store(folder.reopen(), durability="never", sync_interval_ms=1)) as store:
        for i in range(1, 4):
            await insert(store, i)
            commits = store.stats().commits
            await until(lambda commits=commits: store.stats().commits > commits)
        crashed = folder.crash(0, "keep")
    name = logs(crashed)[-1]
    return crashed, name, [at for at, kind, _, _ in records(crashed, name) if kind == fmt.RECORD_COMMIT]


@pytest.mark.parametrize("torn", [0, 1, 2])
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("idle_opens", [0, 1, 2])
async def test_a_valid_commit_behind_a_torn_one_never_comes_back(torn, checkpoints, idle_opens):
    crashed, name, commits = await three_commits()
    flip(crashed, name, commits[torn] + 30)
    expected = [70] * (torn + 1) + [0] * (3 - torn)
    assert await held(crashed, 4) == expected
    for _ in range(idle_opens):
        async with memory_store(crashed.reopen()) as store:
            if checkpoints:
                await store.checkpoint()
        assert await held(crashed, 4) == expected
    async with memory_store(crashed.reopen()) as store:
        await insert(store, 9)
    for _ in range(2):
        if not checkpoints:
            remove_checkpoints(crashed)
        assert await held(crashed, 10) == [*expected, 0, 0, 0, 0, 0, 70]
        async with memory_store(crashed.reopen()) as store:
            assert store.stats().damaged_records == 0
            await store.checkpoint()
            await insert(store, 9)
    remove_checkpoints(crashed)
    assert await held(crashed, 10) == [*expected, 0, 0, 0, 0, 0, 70]


async def test_a_stale_commit_is_not_taken_for_the_one_that_was_written_again():
    """The torn commit's blocks are inserted again: a new file, the same commit number, other bytes."""
    crashed, name, commits = await three_commits()
    flip(crashed, name, commits[0] + 30)
    async with memory_store(crashed.reopen()) as store:
        await insert(store, 1)
    remove_checkpoints(crashed)
    assert await held(crashed, 4) == [70, 70, 0, 0]
    header = LogHeader.decode(read_whole(crashed, logs(crashed)[-1])[: fmt.LOG_HEADER_BYTES], logs(crashed)[-1])
    assert fmt.position_file(header.previous_end) < int(name.removesuffix(".log"), 16)


@pytest.mark.parametrize("crashes", [1, 2, 3])
async def test_crash_after_crash_in_the_first_commit(crashes):
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await insert(store, 0)
    for i in range(1, crashes + 1):
        async with abandoned(memory_store(folder.reopen(), durability="never", sync_interval_ms=1)) as store:
            await insert(store, i)
            commits = store.stats().commits
            await until(lambda commits=commits: store.stats().commits > commits)
            crashed = folder.crash(0, "keep")
        name = logs(crashed)[-1]
        flip(crashed, name, records(crashed, name)[-1][0] + 30)
        folder = crashed
        assert await held(folder, 4) == [70, 0, 0, 0]
    async with memory_store(folder.reopen()) as store:
        await insert(store, 9)
    for _ in range(2):
        assert await held(folder, 10) == [70, 0, 0, 0, 0, 0, 0, 0, 0, 70]
        remove_checkpoints(folder)


# --- checkpoints and the log


async def test_a_head_names_no_namespace_whose_record_the_log_may_lose():
    """Else its id scheme would be forgotten with the checkpoints, and two schemes could mix in one namespace."""
    inner = MemoryFolder()
    folder = WaitingFolder(inner.reopen(), fmt.LOG_SUFFIX)
    async with memory_store(folder, sync_interval_ms=60_000) as store:
        await insert(store, 0)
        await store.sync()
        await insert(store, 1)
        folder.writes.clear()
        checkpoint = asyncio.create_task(store.checkpoint())
        await asyncio.sleep(0.05)
        await store.namespace("late").insert([1, 2], locations(2))
        folder.writes.set()
        await checkpoint
        crashed = inner.crash(0, "lose")
    async with memory_store(crashed.reopen()) as store:
        late = store.namespace("late")
        await late.insert([1, 2], locations(2))
    remove_checkpoints(crashed)
    async with memory_store(crashed.reopen()) as store:
        assert late.name in {entry.name for entry in store._core.state.namespaces.values()}


@pytest.mark.parametrize("mode", ["lose", "tear", "keep"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_crash_while_a_checkpoint_is_written(mode, seed):
    folder = MemoryFolder()
    async with memory_store(folder.reopen(), sync_interval_ms=1) as store:
        for i in range(10):
            await insert(store, i)
        await store.checkpoint()
        for i in range(10, 20):
            await insert(store, i)
        await store.sync()
        images = []

        async def watch():
            while True:
                images.append(folder.crash(seed * 100 + len(images), mode))
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        await store.checkpoint()
        watcher.cancel()
    for image in images[:: max(1, len(images) // 8)]:
        assert await held(image, 20) == [70] * 20
        if names := names_of(image, fmt.CHECKPOINT_SUFFIX):
            image.remove(names[-1])
            assert await held(image, 20) == [70] * 20


class NamesCut:
    """A folder that is looked at as power cuts would leave it whenever a name in it has changed."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def rename(self, old, new):
        self.inner.rename(old, new)
        self.check()

    def remove(self, name):
        self.inner.remove(name)
        self.check()

    def check(self):
        for seed in range(12):
            image = self.inner.crash(seed, "tear")
            there = image.names()
            for number in fmt.numbered(there, fmt.CHECKPOINT_SUFFIX):
                name = fmt.checkpoint_name(number)
                head = CheckpointHead.decode(read_whole(image, name), name, number)
                for images in set(head.partitions["images_number"].tolist()) - {0}:
                    assert fmt.images_name(images) in there


async def test_no_head_is_there_after_a_crash_without_its_images():
    """Neither a new one, nor one that was removed, with room for two or for one beside the one that is written."""
    async with memory_store(NamesCut(MemoryFolder())) as store:
        checkpointer = store._background._checkpointer
        for i in range(6):
            await insert(store, i)
            await store.checkpoint()
            if i % 3 == 2:
                await checkpointer._remove_old(checkpointer.number, 1)
                assert len(names_of(store._core.state.folder, fmt.CHECKPOINT_SUFFIX)) == 1


async def test_only_two_checkpoints_and_their_images_are_kept():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        for i in range(8):
            await insert(store, i)
            await store.checkpoint()
            assert len(names_of(folder, fmt.CHECKPOINT_SUFFIX)) <= 2
            assert len(names_of(folder, fmt.IMAGES_SUFFIX)) <= 3


async def test_closing_leaves_nothing_to_replay():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await insert(store, 0)
    async with memory_store(folder.reopen()) as store:
        await insert(store, 1)
    async with memory_store(folder.reopen()) as store:
        assert store.stats().unloaded_partitions >= 0
        assert len(store._core.state.found.changes) == 0
        assert store.stats().checkpoint_position > 0


# --- a real process


KILLED = """
import asyncio, sys, sarpstore

async def main():
    async with sarpstore.open(sys.argv[1], block_tokens=1, durability="always", log_file_bytes=1 << 20) as store:
        x = store.namespace("x")
        i = int(sys.argv[2])
        while True:
            await x.insert([1000 + i] * 70, [(100 * i + j, 0, 0, 0) for j in range(70)])
            print(i, flush=True)
            if i % 10 == 0:
                await store.checkpoint()
            i += 1

asyncio.run(main())
"""


async def test_kill_9_loses_nothing_acknowledged(tmp_path):
    path_ = tmp_path / "store"
    acknowledged = -1
    for run in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, str(path_), str(acknowledged + 1), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(15 + 10 * run):
            acknowledged = int(await process.stdout.readline())
        process.kill()
        rest, _ = await process.communicate()
        acknowledged = max([acknowledged, *(int(line) for line in rest.split(b"\n")[:-1] if line)])
    async with memory_store(str(path_)) as store:
        for i in range(acknowledged + 1):
            match = await store.namespace("x").match(path(i))
            assert addresses(match.locations) == list(range(100 * i, 100 * i + 70))
        assert store.stats().damaged_records == 0


async def test_a_head_has_no_moment_behind_what_it_calls_synced():
    """A newest file of which a crash left the header alone says when it was made: behind all that is synced."""
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("n").insert([1, 2, 3], locations(3))
        state = store._core.state
        state.moments.add(fmt.position(state.writer.newest_file + 1, 0), 1 << 42)
        await store.checkpoint()
        name = names_of(folder, fmt.CHECKPOINT_SUFFIX)[-1]
        head = CheckpointHead.decode(read_whole(folder, name), name, int(name.partition(".")[0], 16))
        assert len(head.moments) < len(state.moments.rows())
        assert (head.moments["position"] <= head.synced).all()
