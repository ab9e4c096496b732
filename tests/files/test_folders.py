"""The suite for the real and the simulated folder, and what is special about each."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading

import pytest
from folder_suite import FolderSuite

from sarpstore._errors import ClosedError, LockedError, NotAStoreError, StorageError
from sarpstore._files import FaultyFolder, MemoryFolder, RealFolder
from sarpstore._files import real as real_module


class TestRealFolder(FolderSuite):
    @pytest.fixture
    def folder(self, tmp_path):
        folder = RealFolder.open_or_create(tmp_path / "store", create=True)
        yield folder
        folder.close()

    def reopen(self, folder):
        return RealFolder(folder.path)


class TestMemoryFolder(FolderSuite):
    @pytest.fixture
    def folder(self, tmp_path):
        return MemoryFolder()

    def reopen(self, folder):
        return folder.reopen()


class TestFaultyFolderWithoutFaults(FolderSuite):
    @pytest.fixture
    def folder(self, tmp_path):
        return FaultyFolder(MemoryFolder())

    def reopen(self, folder):
        return FaultyFolder(folder.inner.reopen())


@pytest.fixture
def folder(tmp_path):
    folder = RealFolder(tmp_path)
    yield folder
    folder.close()


def test_a_missing_folder_is_made_but_not_its_parent(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(NotAStoreError, match="does not exist"):
        RealFolder.open_or_create(path / "b", create=True)
    assert not path.exists()
    RealFolder.open_or_create(path, create=True).close()
    assert path.is_dir()
    RealFolder.open_or_create(path, create=True).close()


def test_a_missing_folder_is_not_a_store(tmp_path):
    with pytest.raises(NotAStoreError, match=r"nowhere does not exist"):
        RealFolder.open_or_create(tmp_path / "nowhere", create=False)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("below", ["", "store"])
def test_a_file_is_not_a_store(tmp_path, create, below):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(NotAStoreError, match="is a file"):
        RealFolder.open_or_create(path / below, create=create)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="create of") as caught:
        RealFolder.open_or_create(tmp_path / ("x" * 300), create=True)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_descriptors_are_not_inherited_by_programs(folder):
    file = folder.create("a")
    folder.lock()
    assert not os.get_inheritable(file.fileno())
    assert not os.get_inheritable(folder._lock_fd)


def test_renaming_the_folder_does_not_mislead(tmp_path):
    folder = RealFolder.open_or_create(tmp_path / "one", create=True)
    (tmp_path / "one").rename(tmp_path / "two")
    folder.create("a").close()
    assert (tmp_path / "two" / "a").exists()
    folder.close()


def test_short_reads_and_writes_are_continued(folder, monkeypatch):
    file = folder.create("a")
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [parts[0][:7]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [memoryview(buffers[0])[:3]], at))
    data = bytes(range(100))
    file.write(0, data)
    buffers = bytearray(10), bytearray(0), bytearray(50), bytearray(100)
    assert file.read_into(2, *buffers) == 98
    assert (buffers[0] + buffers[2] + buffers[3])[:98] == data[2:]


def test_a_write_that_makes_no_progress_is_an_error(folder, monkeypatch):
    file = folder.create("a")
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: 0)
    with pytest.raises(StorageError, match="write of"):
        file.write(0, b"x")


def test_a_close_waits_for_the_read_in_progress(folder, monkeypatch):
    file = folder.create("a")
    file.write(0, b"right")
    reading, go_on = threading.Event(), threading.Event()
    preadv = os.preadv

    def slow_preadv(fd, buffers, at):
        reading.set()
        assert go_on.wait(10)
        return preadv(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", slow_preadv)
    buffer = bytearray(5)
    fd = file.fileno()
    thread = threading.Thread(target=file.read_into, args=(0, buffer))
    thread.start()
    assert reading.wait(10)
    file.close()
    with pytest.raises(ClosedError):
        file.read_into(0, bytearray(1))
    others = [folder.create(name) for name in "bcd"]
    assert fd not in [other.fileno() for other in others], "the number is not free while a read uses it"
    go_on.set()
    thread.join()
    assert buffer == b"right"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_held_descriptor_stays_open(folder):
    file = folder.create("a")
    fd = file.hold()
    assert file.hold() == fd
    file.close()
    file.release()
    os.fstat(fd)
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


CHILD = """
import sys
from sarpstore._files import RealFolder
folder = RealFolder(sys.argv[1])
folder.lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_lock_names_the_other_process_and_ends_with_it(folder):
    command = [sys.executable, "-c", CHILD, folder.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "locked\n"
            with pytest.raises(LockedError, match=f"process {child.pid};"):
                folder.lock()
        finally:
            child.kill()
            child.wait()
    folder.lock()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock(folder):
    other = RealFolder(folder.path)
    folder.lock()
    read_end, write_end = os.pipe()
    is_up, says_up = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.write(says_up, b"x")
        os.read(read_end, 1)  # until the parent has seen that the lock is free
        os._exit(0)
    try:
        os.read(is_up, 1)  # what the child does first of all, it has done
        with pytest.raises(LockedError):
            other.lock()
        folder.unlock()
        other.lock()
    finally:
        os.close(is_up)
        os.close(says_up)
        os.close(write_end)
        os.close(read_end)
        os.waitpid(child, 0)
        other.close()


def test_a_lock_file_without_a_process_id_is_still_a_lock(folder, tmp_path):
    other = RealFolder(tmp_path)
    folder.lock()
    (tmp_path / "LOCK").write_text("?")
    with pytest.raises(LockedError, match="another process"):
        other.lock()
    other.close()


def test_a_failing_lock_is_a_storage_error_and_leaks_nothing(folder, monkeypatch):
    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(real_module.fcntl, "flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError, match="lock of"):
        folder.lock()
    assert len(os.listdir("/proc/self/fd")) == before


def test_direct_files_read_whole_pages_and_end_where_the_file_ends(tmp_path):
    folder = RealFolder(tmp_path)
    assert not folder.takes_direct(), "nothing there to try it on"
    file = folder.create("a")
    file.write(0, b"x" * 8192 + b"tail")
    if not folder.takes_direct():
        pytest.skip("this file system has no direct reads")
    direct = folder.open_direct("a")
    assert (file.direct, direct.direct) == (False, True)
    assert direct.path == file.path
    buffer = memoryview(mmap.mmap(-1, 16384))
    assert direct.read_into(0, buffer[:4096], buffer[4096:8192]) == 8192
    assert direct.read_into(8192, buffer) == 4
    assert bytes(buffer[:4]) == b"tail"
    assert direct.read_into(12288, buffer) == 0
    with pytest.raises(StorageError):
        direct.read_into(1, buffer)
    file.write(8192, b"more")
    assert direct.read_into(8192, buffer) == 4
    assert bytes(buffer[:4]) == b"more"
    with pytest.raises(StorageError):
        folder.open_direct("b")
    folder.close()
