"""Files whose checksums hold, and that say what no writer says: a clean error or right answers, never anything else.

Found by `python -m fuzz.hostile_tools`, or by reading beside it.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from store_helpers import (
    locations,
    logs,
    memory_store,
    names_of,
    patch_header,
    patch_whole,
    remove_checkpoints,
)

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder, read_whole

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from fuzz.hostile.stores import mend, record_starts

SLOT_AT = 64
PATH = range(64)


async def made():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("x").insert(PATH, locations(64))
    return folder


def rewritten(folder, name, change, *, commits=True):
    """The folder with one file changed, all checksums mended."""
    store = {one: bytearray(read_whole(folder, one)) for one in folder.names() if one != fmt.STATS_NAME}
    change(store[name])
    mend(store, commits=commits)
    out = MemoryFolder()
    for one, content in store.items():
        file = out.create(one)
        file.write(0, bytes(content))
        file.sync()
    out.sync()
    return out


async def test_a_log_file_in_the_slot_that_no_file_has():
    """Under `sarp` that slot stands for records which are about to be written: the kernel took them for such."""
    folder = await made()
    patch_header(folder, logs(folder)[0], SLOT_AT, (65_535).to_bytes(2, "little"))
    with pytest.raises(sarpstore.CorruptionError, match="slot 65535"):
        async with memory_store(folder):
            pass


async def test_two_log_files_in_one_slot():
    folder = await made()
    async with memory_store(folder.reopen()) as store:
        await store.namespace("y").insert(PATH, locations(64))
    remove_checkpoints(folder)
    first, second = logs(folder)
    patch_header(folder, second, SLOT_AT, bytes(2))
    with pytest.raises(sarpstore.CorruptionError, match=f"slot 0, which is that of {first}") as caught:
        async with memory_store(folder):
            pass
    assert (caught.value.file, caught.value.offset) == (second, 64)


@pytest.mark.parametrize(("at", "data"), [(0, (1 << 40).to_bytes(8, "little")), (8, b"\xff\xff")], ids=["file", "slot"])
async def test_a_head_with_a_slot_or_a_file_that_cannot_be(at, data):
    folder = await made()
    for name in names_of(folder, fmt.CHECKPOINT_SUFFIX):
        patch_whole(folder, name, fmt.CHECKPOINT_HEAD.size + at, data)
    async with memory_store(folder) as store:
        assert (await store.namespace("x").match(PATH)).blocks == 64
        assert store.stats().damaged_records > 0


async def test_a_namespace_whose_name_is_no_text():
    folder = await made()
    remove_checkpoints(folder)

    def spoil(log):
        [at] = [at for at in record_starts(log) if log[at + 10] == fmt.RECORD_NAMESPACE]
        log[at + fmt.NAMESPACE_HEADER_BYTES] = 0xFF

    async with memory_store(rewritten(folder, logs(folder)[0], spoil)) as store:
        assert (await store.namespace("x").match(PATH)).blocks == 64
        await store.namespace("x").insert(range(80), np.zeros(80, sarpstore.LOCATION))


SEQUENCE_AT, COMMIT_AT, HEAD_COMMIT_AT = 16, 24, 88
LAST = (1 << 64) - 1


@pytest.mark.parametrize("at", [SEQUENCE_AT, COMMIT_AT], ids=["sequence", "commit"])
@pytest.mark.parametrize("number", [1 << 62, LAST])
async def test_a_number_that_nothing_can_follow(at, number):
    """What is held can be read; nothing can be written behind it."""
    folder = await made()
    remove_checkpoints(folder)

    def count_up(log):
        for start in record_starts(log):
            log[start + at : start + at + 8] = number.to_bytes(8, "little")

    folder = rewritten(folder, logs(folder)[0], count_up)
    async with memory_store(folder.reopen(), read_only=True) as store:
        assert (await store.namespace("x").match(PATH)).blocks in (0, 64)
    with pytest.raises(sarpstore.LimitError, match="no record can follow"):
        async with memory_store(folder):
            pass


async def test_a_head_whose_commit_nothing_can_follow():
    folder = await made()
    for name in names_of(folder, fmt.CHECKPOINT_SUFFIX):
        patch_whole(folder, name, HEAD_COMMIT_AT, LAST.to_bytes(8, "little"))
    async with memory_store(folder.reopen(), read_only=True) as store:
        assert (await store.namespace("x").match(PATH)).blocks == 64


@pytest.mark.parametrize("commit", [0, LAST])
async def test_a_seal_of_a_commit_that_cannot_be(commit, monkeypatch):
    """A summary, which small files are not asked for, is then not relied on."""
    monkeypatch.setattr(sys.modules["sarpstore._recovery.recover"], "_SUMMARY_PAGES_MIN", 1)
    folder = await made()
    remove_checkpoints(folder)

    def unnumber(log):
        for start in record_starts(log):
            if log[start + 10] in (fmt.RECORD_SEAL, fmt.RECORD_SUMMARY):
                log[start + COMMIT_AT : start + COMMIT_AT + 8] = commit.to_bytes(8, "little")

    async with memory_store(rewritten(folder, logs(folder)[0], unnumber), read_only=True) as store:
        assert (await store.namespace("x").match(PATH)).blocks == 64
