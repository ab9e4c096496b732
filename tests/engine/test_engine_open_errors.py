"""What cannot be opened is refused with one clear error that names what and where, and is left as it was."""

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from store_helpers import (
    flip,
    locations,
    logs,
    memory_store,
    names_of,
    overwrite,
    patch_header,
    patch_whole,
    records,
    remove_checkpoints,
    truncate,
)

import sarpstore
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder, read_whole
from sarpstore._kernel import crc32c


async def made(folder, files=2, **options):
    for i in range(files):
        async with memory_store(folder.reopen(), **options) as store:
            await store.namespace("x").insert([10 * i, 1, 2], locations(3))
            await store.checkpoint()
    return folder


def contents(folder):
    return {name: read_whole(folder, name) for name in folder.names()}


async def refused(folder, error, match=None, **options):
    """Opening fails so, for a writer and a reader alike; afterwards nothing is changed and nothing is locked."""
    before = contents(folder)
    for read_only in (False, True):
        with pytest.raises(error, match=match) as raised:
            await sarpstore.open(folder.reopen(), read_only=read_only, **options)
        assert isinstance(raised.value, sarpstore.SarpError)
    assert contents(folder) == before
    handle = folder.reopen()
    handle.lock()
    handle.unlock()


# --- paths


@pytest.mark.parametrize("path", [None, 5, b"/tmp", object()], ids=["None", "int", "bytes", "object"])
async def test_a_path_that_is_no_path(path):
    with pytest.raises(sarpstore.SarpError):
        await sarpstore.open(path)


async def test_a_path_with_a_nul():
    with pytest.raises(sarpstore.SarpError):
        await sarpstore.open("a\0b")


@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}], ids=repr)
async def test_a_path_that_is_a_file(tmp_path, options):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(sarpstore.NotAStoreError, match="file"):
        await sarpstore.open(path, **options)
    with pytest.raises(sarpstore.NotAStoreError, match="file"):
        await sarpstore.open(path / "below", **options)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
async def test_a_store_that_is_not_there(tmp_path, options):
    path = tmp_path / "nowhere"
    with pytest.raises(sarpstore.NotAStoreError, match="nowhere"):
        await sarpstore.open(path, **options)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(sarpstore.NotAStoreError, match="nowhere"):
        await sarpstore.open(path, **options)
    assert list(path.iterdir()) == []


async def test_a_missing_folder_is_made_but_not_its_parent(tmp_path):
    with pytest.raises(sarpstore.NotAStoreError, match="does not exist"):
        await sarpstore.open(tmp_path / "a" / "b")
    async with sarpstore.open(tmp_path / "a"):
        pass
    async with sarpstore.open(str(tmp_path / "a"), create=False):
        pass


@contextlib.contextmanager
def unprivileged():
    """Root may write anywhere: for a while, be nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_folder_without_permission():
    # Not tmp_path, into which nobody but its owner may look.
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name)
        closed.chmod(0o555)
        with unprivileged(), pytest.raises(sarpstore.StorageError, match=name):
            await sarpstore.open(closed / "store")
        assert list(closed.iterdir()) == []


# --- locks


async def test_two_writers_in_one_process(tmp_path):
    path = tmp_path / "store"
    async with sarpstore.open(path, block_tokens=1) as first:
        with pytest.raises(sarpstore.LockedError, match=str(path)) as raised:
            await sarpstore.open(path)
        assert raised.value.pid == os.getpid()
        await first.namespace("x").insert([1], locations(1))
        async with sarpstore.open(path, read_only=True):
            pass
    async with sarpstore.open(path) as second:
        assert (await second.namespace("x").match([1])).blocks == 1


async def test_two_writers_in_memory():
    folder = MemoryFolder()
    async with memory_store(folder.reopen()):
        with pytest.raises(sarpstore.LockedError):
            await memory_store(folder.reopen())
    async with memory_store(folder.reopen()):
        pass


WRITER = """
import asyncio, sys, sarpstore

async def main():
    async with sarpstore.open(sys.argv[1], block_tokens=1) as store:
        await store.namespace("x").insert([1, 2, 3], [(1, 2, 3, 4)] * 3)
        await store.sync()
        print("ready", flush=True)
        sys.stdin.readline()
        await store.namespace("x").insert([1, 2, 3, 4], [(1, 2, 3, 4)] * 4)
        await store.sync()
        print("more", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


async def test_a_writer_in_another_process(tmp_path):
    path = tmp_path / "store"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await process.stdout.readline() == b"ready\n"
        with pytest.raises(sarpstore.LockedError, match=str(process.pid)) as raised:
            await sarpstore.open(path)
        assert raised.value.pid == process.pid
        async with sarpstore.open(path, read_only=True) as reader:
            x = reader.namespace("x")
            assert (await x.match([1, 2, 3, 4])).blocks == 3
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"more\n"
            assert (await x.match([1, 2, 3, 4])).blocks == 3
            await reader.refresh()
            assert (await x.match([1, 2, 3, 4])).blocks == 4
    finally:
        process.kill()
        await process.communicate()
    async with sarpstore.open(path) as store:  # the kernel has given up the dead process's lock
        assert (await store.namespace("x").match([1, 2, 3, 4])).blocks == 4


# --- options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_tokens", 16),
        ("hash", "mmh3"),
        ("location_dtype", np.dtype([("address", "<u8")])),
        ("location_dtype", np.dtype([("address", "<u8"), ("length", "<u4"), ("tier", "u1"), ("other", "u1")])),
    ],
    ids=["block_tokens", "hash", "location bytes", "location names"],
)
async def test_another_option_set(name, value):
    folder = await made(MemoryFolder())
    await refused(folder, sarpstore.MismatchError, name, **{name: value})
    with pytest.raises(sarpstore.MismatchError) as raised:
        await sarpstore.open(folder.reopen(), **{name: value})
    assert raised.value.option == name
    assert raised.value.given == value
    assert repr(raised.value.stored) in str(raised.value)
    assert repr(value) in str(raised.value)


async def test_what_the_store_has_is_taken_where_nothing_is_asked():
    dtype = np.dtype([("page", "<u4")])
    folder = MemoryFolder()
    async with sarpstore.open(folder.reopen(), block_tokens=4, hash="mmh3", location_dtype=dtype):
        pass
    for options in ({}, {"block_tokens": 4, "hash": "mmh3", "location_dtype": [("page", "<u4")]}):
        async with sarpstore.open(folder.reopen(), **options) as store:
            assert (store.block_tokens, store.hash, store.location_dtype) == (4, "mmh3", dtype)


# --- versions and features

MAJOR_AT, MINOR_AT, COMPATIBLE_AT, READ_ONLY_AT, INCOMPATIBLE_AT = 12, 14, 16, 24, 32


@pytest.mark.parametrize("major", [0, 2, 65_535])
async def test_another_format_version_of_the_log(major):
    folder = await made(MemoryFolder())
    patch_header(folder, logs(folder)[-1], MAJOR_AT, major.to_bytes(2, "little"))
    await refused(folder, sarpstore.VersionError, f"{logs(folder)[-1]}.*{major}")


async def test_unknown_incompatible_features_of_the_log():
    folder = await made(MemoryFolder())
    patch_header(folder, logs(folder)[-1], INCOMPATIBLE_AT, (1 << 63).to_bytes(8, "little"))
    await refused(folder, sarpstore.VersionError, f"{logs(folder)[-1]}.*0x8000000000000000")


@pytest.mark.parametrize(
    ("at", "data"), [(MAJOR_AT, b"\2\0"), (INCOMPATIBLE_AT, b"\2")], ids=["version", "incompatible features"]
)
async def test_a_newer_checkpoint(at, data):
    folder = await made(MemoryFolder())
    name = names_of(folder, fmt.CHECKPOINT_SUFFIX)[-1]
    patch_whole(folder, name, at, data)
    await refused(folder, sarpstore.VersionError, name)


@pytest.mark.parametrize("at", [MINOR_AT, COMPATIBLE_AT], ids=["minor version", "compatible features"])
async def test_what_may_be_ignored_is(at):
    folder = await made(MemoryFolder())
    patch_header(folder, logs(folder)[-1], at, b"\7")
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([10, 1, 2])).blocks == 3


async def test_unknown_read_only_compatible_features_may_be_read_but_not_written():
    folder = await made(MemoryFolder())
    patch_header(folder, logs(folder)[-1], READ_ONLY_AT, b"\1")
    async with memory_store(folder.reopen(), read_only=True) as store:
        assert (await store.namespace("x").match([10, 1, 2])).blocks == 3
    with pytest.raises(sarpstore.VersionError, match=logs(folder)[-1]):
        await memory_store(folder.reopen())


# --- files


async def test_files_of_another_store():
    folder, other = await made(MemoryFolder()), await made(MemoryFolder())
    own = logs(folder)[0]
    for name in names_of(folder, fmt.CHECKPOINT_SUFFIX):
        folder.remove(name)
    overwrite(folder, own, 0, read_whole(other, own))
    await refused(folder, sarpstore.NotAStoreError, own)


async def test_a_checkpoint_of_another_store():
    folder, other = await made(MemoryFolder()), await made(MemoryFolder())
    name = names_of(folder, fmt.CHECKPOINT_SUFFIX)[-1]
    data = read_whole(other, name)
    truncate(folder, name, len(data))
    overwrite(folder, name, 0, data)
    await refused(folder, sarpstore.NotAStoreError, name)


@pytest.mark.parametrize("size", [0, 100, 4096, 8191])
async def test_the_only_log_file_cut_within_its_header(size):
    folder = await made(MemoryFolder(), files=1)
    name = logs(folder)[0]
    truncate(folder, name, size)
    if size >= 4096:  # one whole copy is left, and everything behind it is lost, which is damage
        async with memory_store(folder.reopen()) as store:
            assert (await store.namespace("x").match([0, 1, 2])).blocks == 0
            assert store.stats().damaged_records > 0
    else:
        await refused(folder, (sarpstore.NotAStoreError, sarpstore.CorruptionError), name)


@pytest.mark.parametrize("checkpoints", [True, False])
async def test_the_only_log_file_zeroed(checkpoints):
    folder = await made(MemoryFolder(), files=1)
    name = logs(folder)[0]
    overwrite(folder, name, 0, bytes(len(read_whole(folder, name))))
    if not checkpoints:
        for head in names_of(folder, fmt.CHECKPOINT_SUFFIX):
            folder.remove(head)
    await refused(folder, (sarpstore.NotAStoreError, sarpstore.CorruptionError), f"{name}.*zeros")


async def test_every_log_file_gone():
    folder = await made(MemoryFolder())
    for name in logs(folder):
        folder.remove(name)
    await refused(folder, (sarpstore.NotAStoreError, sarpstore.CorruptionError))


async def test_a_log_file_under_another_number():
    folder = await made(MemoryFolder(), files=1)
    name = logs(folder)[0]
    folder.rename(name, fmt.log_name(9))
    await refused(folder, (sarpstore.NotAStoreError, sarpstore.CorruptionError), fmt.log_name(9))


async def test_a_record_of_an_unknown_type_is_refused():
    folder = await made(MemoryFolder(), files=1)
    remove_checkpoints(folder)
    name = logs(folder)[0]
    data = read_whole(folder, name)
    at = next(at for at, kind, _, _ in records(folder, name) if kind == fmt.RECORD_NAMESPACE)
    uuid = data[40:56]
    for flags, error in ((0, sarpstore.VersionError), (fmt.FLAG_IGNORABLE, None)):
        record = bytearray(data[at : at + 64])
        record[10], record[11] = 200, flags
        seed = uuid + (1).to_bytes(8, "little") + at.to_bytes(8, "little")
        record[0:4] = crc32c(seed + bytes(record[4:64])).to_bytes(4, "little")
        overwrite(folder, name, at, bytes(record))
        if error:
            await refused(folder, error, f"{name} at byte {at}")
        else:
            async with memory_store(folder.reopen(), read_only=True) as store:
                assert (await store.namespace("x").match([0, 1, 2])).blocks == 3


async def test_other_names_are_passed_over():
    folder = await made(MemoryFolder())
    for name in ("notes.txt", "1.log", "zzzzzzzzzzzzzzzz.log", "0000000000000001.LOG", "0000000000000003.log.bak"):
        folder.create(name).close()
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([10, 1, 2])).blocks == 3
    assert {"notes.txt", "1.log", "zzzzzzzzzzzzzzzz.log"} <= set(folder.names())


async def test_what_was_not_published_is_removed_by_a_writer():
    folder = await made(MemoryFolder())
    left = ["0000000000000063.log.tmp", "0000000000000063.checkpoint.tmp", "stats.tmp"]
    for name in left:
        folder.create(name).close()
    async with memory_store(folder.reopen(), read_only=True):
        assert set(left) <= set(folder.names())
    async with memory_store(folder.reopen()) as store:
        assert (await store.namespace("x").match([10, 1, 2])).blocks == 3
    assert not names_of(folder, fmt.TEMPORARY_SUFFIX)


async def test_flipped_bytes_of_one_header_copy_do_no_harm():
    folder = await made(MemoryFolder())
    for offset in (0, 9, 60, 4095):
        clone = folder.clone()
        for name in logs(clone):
            flip(clone, name, offset)
        async with memory_store(clone.reopen()) as store:
            assert (await store.namespace("x").match([10, 1, 2])).blocks == 3
            assert (await store.namespace("x").match([0, 1, 2])).blocks == 3


async def test_a_folder_in_the_stores_folder_is_passed_over(tmp_path):
    """As a file system's own lost+found, where the store has all of it."""
    (tmp_path / "lost+found").mkdir()
    for _ in range(2):
        async with sarpstore.open(tmp_path, bytes_max=1 << 26) as store:
            await store.namespace("x").insert(np.arange(16), np.zeros(1, sarpstore.LOCATION))
            assert (await store.namespace("x").match(np.arange(16))).blocks == 1
    layout = sarpstore.KVLayout(layers=1, kv_heads=1, head_dim=2, rope=None)
    place = tmp_path / "chunks"
    (place / "lost+found").mkdir(parents=True)
    for _ in range(2):
        options = {"fingerprint": b"x", "delimiters": (1,), "bytes_max": 8 << 20, "region_bytes": 1 << 20}
        async with sarpstore.open_chunks(place, layout=layout, **options) as chunks:
            (await chunks.plan([5, 1, 2])).close()
