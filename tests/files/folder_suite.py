"""What every `Folder` and its files must do; a subclass says how to make one and how to open it again."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pytest

from sarpstore._errors import ClosedError, LockedError, StorageError

if TYPE_CHECKING:
    from sarpstore._files import Folder


class FolderSuite(ABC):
    @pytest.fixture
    @abstractmethod
    def folder(self, tmp_path) -> Folder:
        """A new, empty folder."""

    @abstractmethod
    def reopen(self, folder: Folder) -> Folder:
        """Another handle of the same folder."""

    def test_a_new_folder_is_empty(self, folder):
        assert folder.names() == []

    def test_names_are_sorted_and_without_the_lock(self, folder):
        folder.lock()
        for name in ("b", "a", "c"):
            folder.create(name).close()
        assert folder.names() == ["a", "b", "c"]

    def test_what_is_written_is_read_back(self, folder):
        file = folder.create("a")
        file.write(0, b"hello")
        file.write(5, bytearray(b" world"))
        file.write(0, memoryview(b"J"))
        buffer = bytearray(11)
        assert file.read_into(0, buffer) == 11
        assert buffer == b"Jello world"
        assert file.size() == 11
        assert file.name == "a"

    def test_a_read_ends_where_the_file_ends(self, folder):
        file = folder.create("a")
        file.write(0, b"0123456789")
        buffer = bytearray(b"-" * 8)
        assert file.read_into(6, buffer) == 4
        assert buffer == b"6789----"
        assert file.read_into(10, buffer) == 0
        assert file.read_into(1000, buffer) == 0
        assert buffer == b"6789----"

    def test_several_buffers_are_filled_in_order(self, folder):
        file = folder.create("a")
        file.write(0, bytes(range(100)))
        buffers = [bytearray(10), bytearray(0), bytearray(25), bytearray(100)]
        assert file.read_into(3, *buffers) == 97
        assert buffers[0] == bytes(range(3, 13))
        assert buffers[2] == bytes(range(13, 38))
        assert buffers[3] == bytes(range(38, 100)) + bytes(38)

    def test_reading_into_nothing_reads_nothing(self, folder):
        file = folder.create("a")
        file.write(0, b"x")
        assert file.read_into(0) == 0
        assert file.read_into(0, bytearray()) == 0

    def test_a_write_beyond_the_end_leaves_zeros(self, folder):
        file = folder.create("a")
        file.write(5, b"x")
        buffer = bytearray(10)
        assert file.read_into(0, buffer) == 6
        assert buffer[:6] == b"\0\0\0\0\0x"
        file.write(100, b"")
        assert file.size() == 6

    def test_truncate_cuts_and_extends_with_zeros(self, folder):
        file = folder.create("a")
        file.write(0, b"0123456789")
        file.truncate(4)
        file.truncate(6)
        buffer = bytearray(10)
        assert file.read_into(0, buffer) == 6
        assert buffer[:6] == b"0123\0\0"

    def test_create_refuses_a_name_that_is_taken(self, folder):
        folder.create("a").write(0, b"kept")
        with pytest.raises(StorageError, match=r"create of .*a failed") as caught:
            folder.create("a")
        assert caught.value.errno == errno.EEXIST
        assert folder.open("a").size() == 4

    def test_open_refuses_a_name_that_is_missing(self, folder):
        with pytest.raises(StorageError, match=r"open of .*nowhere failed") as caught:
            folder.open("nowhere")
        assert caught.value.errno == errno.ENOENT

    def test_a_file_has_a_size_without_being_opened(self, folder):
        folder.create("a").write(0, b"0123")
        assert folder.size("a") == 4
        folder.create("b")
        folder.lock()
        assert folder.sizes() == {"a": 4, "b": 0}
        with pytest.raises(StorageError, match="nowhere failed") as caught:
            folder.size("nowhere")
        assert caught.value.errno == errno.ENOENT

    def test_open_is_for_reading_unless_asked_otherwise(self, folder):
        folder.create("a").write(0, b"abc")
        readable = folder.open("a")
        with pytest.raises(StorageError):
            readable.write(0, b"x")
        with pytest.raises(StorageError):
            readable.truncate(0)
        folder.open("a", writable=True).write(0, b"x")
        buffer = bytearray(3)
        assert readable.read_into(0, buffer) == 3
        assert buffer == b"xbc"

    def test_a_negative_offset_is_refused(self, folder):
        file = folder.create("a")
        for call in (lambda: file.read_into(-1, bytearray(1)), lambda: file.write(-1, b"x"), lambda: file.truncate(-1)):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.EINVAL

    def test_rename_replaces(self, folder):
        folder.create("old").write(0, b"old")
        folder.create("new").write(0, b"other content")
        folder.rename("old", "new")
        assert folder.names() == ["new"]
        assert folder.open("new").size() == 3
        folder.rename("new", "new")
        assert folder.names() == ["new"]
        with pytest.raises(StorageError, match="rename"):
            folder.rename("old", "new")

    def test_a_removed_file_stays_readable_where_it_is_open(self, folder):
        file = folder.create("a")
        file.write(0, b"abc")
        folder.remove("a")
        assert folder.names() == []
        assert file.read_into(0, bytearray(3)) == 3
        with pytest.raises(StorageError, match="remove"):
            folder.remove("a")
        assert folder.create("a").size() == 0

    def test_syncs_return(self, folder):
        file = folder.create("a")
        file.write(0, b"abc")
        file.sync()
        folder.sync()
        folder.open("a").sync()

    def test_another_handle_sees_the_same(self, folder):
        folder.create("a").write(0, b"abc")
        other = self.reopen(folder)
        assert other.names() == ["a"]
        assert other.open("a").size() == 3
        other.close()
        assert folder.names() == ["a"]

    def test_a_closed_file_refuses_every_call(self, folder):
        file = folder.create("a")
        file.close()
        file.close()
        calls = (
            file.size,
            file.sync,
            file.fileno,
            lambda: file.read_into(0, bytearray(1)),
            lambda: file.write(0, b"x"),
            lambda: file.truncate(0),
        )
        for call in calls:
            with pytest.raises(ClosedError, match="a is closed"):
                call()

    def test_a_closed_folder_refuses_every_call(self, folder):
        file = folder.create("a")
        folder.close()
        folder.close()
        folder.unlock()
        calls = (
            folder.names,
            folder.sync,
            folder.lock,
            lambda: folder.create("b"),
            lambda: folder.open("a"),
            lambda: folder.rename("a", "b"),
            lambda: folder.remove("a"),
        )
        for call in calls:
            with pytest.raises(ClosedError):
                call()
        assert file.size() == 0, "files outlive their folder"

    def test_one_writer_at_a_time(self, folder):
        other = self.reopen(folder)
        folder.lock()
        with pytest.raises(LockedError, match=f"process {os.getpid()};") as caught:
            other.lock()
        assert caught.value.pid == os.getpid()
        assert caught.value.path == folder.path
        folder.unlock()
        folder.unlock()
        other.lock()
        with pytest.raises(LockedError):
            folder.lock()
        other.close()
        folder.lock()
