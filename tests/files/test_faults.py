"""Planned failures arrive where, when and how often they were planned."""

from __future__ import annotations

import errno

import pytest

from sarpstore._errors import DiskFullError, StorageError
from sarpstore._files import Fault, FaultyFolder, MemoryFolder

CALLS = {
    "read": lambda folder, file: file.read_into(0, bytearray(1)),
    "write": lambda folder, file: file.write(0, b"x"),
    "sync": lambda folder, file: file.sync(),
    "truncate": lambda folder, file: file.truncate(0),
    "create": lambda folder, file: folder.create("b"),
    "open": lambda folder, file: folder.open("a"),
    "rename": lambda folder, file: folder.rename("a", "c"),
    "remove": lambda folder, file: folder.remove("a"),
    "sync_folder": lambda folder, file: folder.sync(),
}


@pytest.mark.parametrize("operation", CALLS)
def test_each_operation_can_fail(operation):
    folder = FaultyFolder(MemoryFolder())
    file = folder.create("a")
    folder.inject(Fault(operation))
    with pytest.raises(StorageError, match=f"{operation} of ") as caught:
        CALLS[operation](folder, file)
    assert caught.value.errno == errno.EIO
    assert folder.names() == ["a"], "nothing was done"
    assert folder.injected == 1
    CALLS[operation](folder, file)
    assert folder.calls[operation] >= 2


def test_a_fault_waits_and_ends():
    folder = FaultyFolder(MemoryFolder(), [Fault("sync", after=2, times=2)])
    file = folder.create("a")
    failed = []
    for _ in range(6):
        try:
            file.sync()
        except StorageError:
            failed.append(True)
        else:
            failed.append(False)
    assert failed == [False, False, True, True, False, False]


def test_a_fault_for_ever_lasts_until_it_is_healed():
    folder = FaultyFolder(MemoryFolder(), [Fault("write", errno=errno.ENOSPC, times=None)])
    file = folder.create("a")
    for _ in range(3):
        with pytest.raises(DiskFullError):
            file.write(0, b"x")
    folder.heal()
    file.write(0, b"x")


def test_only_names_with_the_prefix_fail():
    folder = FaultyFolder(MemoryFolder(), [Fault("write", name_prefix="log-"), Fault("rename", name_prefix="head")])
    folder.create("other").write(0, b"x")
    with pytest.raises(StorageError):
        folder.create("log-1").write(0, b"x")
    with pytest.raises(StorageError):
        folder.rename("other", "head")


def test_a_failing_write_can_be_torn():
    folder = FaultyFolder(MemoryFolder(), [Fault("write", partial_bytes=3)])
    file = folder.create("a")
    with pytest.raises(StorageError):
        file.write(1, b"abcdef")
    buffer = bytearray(10)
    assert file.read_into(0, buffer) == 4
    assert buffer[:4] == b"\0abc"


def test_a_faulty_file_has_no_descriptor():
    assert FaultyFolder(MemoryFolder()).create("a").fileno() is None
