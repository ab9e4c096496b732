"""What a power cut may leave of a simulated folder, and what it may not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarpstore._files import MemoryFolder


def content(folder, name):
    file = folder.open(name)
    buffer = bytearray(file.size())
    assert file.read_into(0, buffer) == len(buffer)
    return bytes(buffer)


def contents(folder):
    return {name: content(folder, name) for name in folder.names()}


@pytest.fixture
def folder():
    """One durable file "a" of 1,024 bytes, all "a"."""
    folder = MemoryFolder()
    file = folder.create("a")
    file.write(0, b"a" * 1024)
    file.sync()
    folder.sync()
    return folder


def crashes(folder, count=200):
    return [folder.crash(seed) for seed in range(count)]


@pytest.mark.parametrize("mode", ["lose", "keep", "tear"])
def test_what_is_synced_survives(folder, mode):
    for seed in range(20):
        assert contents(folder.crash(seed, mode)) == {"a": b"a" * 1024}


def test_lose_drops_and_keep_keeps_what_is_not_synced(folder):
    file = folder.open("a", writable=True)
    file.write(512, b"b" * 1024)
    folder.create("new").write(0, b"new")
    assert contents(folder.crash(mode="lose")) == {"a": b"a" * 1024}
    assert contents(folder.crash(mode="keep")) == {"a": b"a" * 512 + b"b" * 1024, "new": b"new"}


def test_sectors_are_torn_one_by_one(folder):
    folder.open("a", writable=True).write(0, b"b" * 1024)
    seen = {content(crashed, "a") for crashed in crashes(folder)}
    halves = (b"a" * 512, b"b" * 512)
    assert seen == {one + two for one in halves for two in halves}


def test_a_sector_itself_is_never_torn(folder):
    file = folder.open("a", writable=True)
    file.write(100, b"b" * 300)
    assert {content(crashed, "a") for crashed in crashes(folder)} == {
        b"a" * 1024,
        b"a" * 100 + b"b" * 300 + b"a" * 624,
    }


def test_sectors_are_the_files_not_the_writes(folder):
    folder.open("a", writable=True).write(412, b"b" * 512)
    parts = [(b"a" * 100, b"b" * 100), (b"a" * 412, b"b" * 412)]
    seen = {content(crashed, "a") for crashed in crashes(folder)}
    assert seen == {b"a" * 412 + one + two + b"a" * 100 for one in parts[0] for two in parts[1]}


def test_growth_may_be_lost_or_come_without_its_data(folder):
    folder.open("a", writable=True).write(1024, b"b" * 512)
    seen = {content(crashed, "a") for crashed in crashes(folder)}
    assert seen == {b"a" * 1024, b"a" * 1024 + b"b" * 512, b"a" * 1024 + bytes(512)}


def test_sizes_are_kept_in_order(folder):
    file = folder.open("a", writable=True)
    file.truncate(2048)
    file.truncate(512)
    assert {len(content(crashed, "a")) for crashed in crashes(folder)} == {1024, 2048, 512}
    file.write(1024, b"b" * 512)
    for crashed in crashes(folder):
        found = content(crashed, "a")
        assert len(found) in (512, 1024, 1536, 2048)
        if len(found) == 1024:
            assert found == b"a" * 1024, "a cut that was lost has cut nothing"
        if len(found) == 1536:
            assert found[512:1024] == bytes(512), "what was cut off does not come back"


def test_syncing_a_file_does_not_make_its_name_durable(folder):
    file = folder.create("new")
    file.write(0, b"new")
    file.sync()
    assert folder.crash(mode="lose").names() == ["a"]
    folder.sync()
    assert contents(folder.crash(mode="lose"))["new"] == b"new"


def test_syncing_the_folder_does_not_make_bytes_durable(folder):
    folder.create("new").write(0, b"new")
    folder.sync()
    assert contents(folder.crash(mode="lose"))["new"] == b""


def test_a_rename_is_atomic(folder):
    file = folder.create("b")
    file.write(0, b"b")
    file.sync()
    folder.sync()
    folder.rename("b", "a")
    seen = {tuple(contents(crashed).items()) for crashed in crashes(folder)}
    assert seen == {(("a", b"a" * 1024), ("b", b"b")), (("a", b"b"),)}
    folder.sync()
    assert contents(folder.crash(mode="lose")) == {"a": b"b"}


def test_a_removal_that_is_not_synced_may_come_back(folder):
    folder.remove("a")
    assert {tuple(crashed.names()) for crashed in crashes(folder)} == {(), ("a",)}
    folder.sync()
    assert {tuple(crashed.names()) for crashed in crashes(folder)} == {()}


def test_the_same_seed_gives_the_same_crash(folder):
    file = folder.open("a", writable=True)
    for number in range(20):
        file.write(512 * number, bytes([number]) * 700)
        folder.create(f"f{number}")
    assert contents(folder.crash(7)) == contents(folder.crash(7)) == contents(folder.crash(random.Random(7)))
    assert len({str(contents(crashed)) for crashed in crashes(folder, 20)}) > 10


def test_a_crash_leaves_the_original_alone_and_gives_a_free_lock(folder):
    folder.lock()
    crashed = folder.crash(mode="lose")
    crashed.lock()
    crashed.open("a", writable=True).write(0, b"x" * 1024)
    crashed.remove("a")
    assert contents(folder) == {"a": b"a" * 1024}


def test_what_was_found_after_a_crash_is_durable(folder):
    folder.open("a", writable=True).write(0, b"b" * 4096)
    crashed = folder.crash(3)
    assert contents(crashed.crash(mode="lose")) == contents(crashed)


def test_a_clone_knows_what_is_not_synced(folder):
    file = folder.open("a", writable=True)
    file.write(0, b"b" * 1024)
    folder.rename("a", "c")
    clone = folder.clone()
    file.write(0, b"z" * 1024)
    assert contents(clone) == {"c": b"b" * 1024}
    assert contents(clone.crash(mode="lose")) == {"a": b"a" * 1024}
    copy = clone.open("c")
    copy.sync()
    assert contents(clone.crash(mode="lose")) == {"a": b"b" * 1024}, "both names are the same file"


names = st.sampled_from("abc")
operations = st.one_of(
    st.tuples(st.just("write"), names, st.integers(0, 3000), st.binary(min_size=1, max_size=1500)),
    st.tuples(st.just("truncate"), names, st.integers(0, 3000)),
    st.tuples(st.just("sync"), names),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("sync folder")),
)


def carry_out(folder, operation):
    kind, *args = operation
    if kind == "sync folder":
        folder.sync()
    elif kind in ("rename", "remove"):
        if args[0] in folder.names():
            getattr(folder, kind)(*args)
    else:
        name, *rest = args
        file = folder.open(name, writable=True) if name in folder.names() else folder.create(name)
        getattr(file, kind)(*rest)


@settings(max_examples=80)
@given(st.lists(operations, max_size=15), st.integers(0, 2**32))
def test_any_history_survives_once_it_is_synced(history, seed):
    folder = MemoryFolder()
    for operation in history:
        carry_out(folder, operation)
    assert contents(folder.crash(mode="keep")) == contents(folder) == contents(folder.clone())
    for name in folder.names():
        folder.open(name).sync()
    folder.sync()
    synced = contents(folder)
    for mode in ("lose", "tear", "keep"):
        assert contents(folder.crash(seed, mode)) == synced
