"""The errors' messages, relations and pickling."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest

from sarpstore import _errors
from sarpstore._errors import (
    CorruptionError,
    DiskFullError,
    FailedError,
    LockedError,
    MismatchError,
    SarpError,
    StorageError,
)

EXAMPLES = [
    (LockedError("/store", 7), "/store is open for writing in process 7; stop it, or open with read_only=True"),
    (LockedError("/store"), "/store is open for writing in another process; stop it, or open with read_only=True"),
    (
        MismatchError("block_tokens", 16, 32, "/store"),
        "/store was made with block_tokens=16, but was opened with block_tokens=32",
    ),
    (CorruptionError("log-1", 4096, "bad checksum"), "log-1 at byte 4096 is corrupt: bad checksum"),
    (CorruptionError("log-1", None, "missing"), "log-1 is corrupt: missing"),
    (StorageError("sync", "log-1", errno.EIO), "sync of log-1 failed: Input/output error (errno 5)"),
    (
        FailedError("/store", StorageError("sync", "log-1", errno.EIO)),
        (
            "/store takes no more writes, because one failed: "
            "sync of log-1 failed: Input/output error (errno 5); open it again"
        ),
    ),
]


@pytest.mark.parametrize(("error", "message"), EXAMPLES)
def test_messages_name_what_and_where(error, message):
    assert str(error) == message
    assert isinstance(error, SarpError)


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES])
def test_errors_can_be_pickled_and_copied(error):
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other).keys() == vars(error).keys()


def test_a_storage_error_is_an_os_error():
    error = StorageError.of("write", "log-1", errno.EACCES)
    assert type(error) is StorageError
    assert isinstance(error, OSError)
    assert (error.errno, error.filename, error.operation) == (errno.EACCES, "log-1", "write")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_no_quota_are_disk_full(code):
    assert type(StorageError.of("write", "log-1", code)) is DiskFullError


def test_a_failed_store_keeps_the_cause():
    cause = StorageError("sync", "log-1", errno.EIO)
    assert FailedError("/store", cause).cause is cause
    assert FailedError("/store", cause).__cause__ is cause


def test_every_error_is_exported_explained_and_in_the_tree():
    errors = {name for name, value in vars(_errors).items() if isinstance(value, type) and issubclass(value, SarpError)}
    assert sorted(errors) == _errors.__all__
    for name in errors:
        assert name in _errors.__doc__
        assert getattr(_errors, name).__doc__
