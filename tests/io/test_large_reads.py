"""Reads of ranges: cut in pieces, up to the file's end, each with its own error."""

from __future__ import annotations

import errno

import pytest
from io_helpers import PAGE, memory_file, pattern, start, turns

from sarpstore._errors import StorageError
from sarpstore._io import MATCHING, Scheduler


async def test_a_large_read_is_cut_in_pieces_of_one_mebibyte(backend):
    scheduler = Scheduler(backend, queue_depth=64)
    file = memory_file(pages=1024)
    content = b"".join(map(pattern, range(1024)))
    task = start(scheduler.read(file, 100, (3 << 20) + 7))
    await turns()
    assert backend.submitted == [("a", 100 + (n << 20), 1 << 20) for n in range(3)] + [("a", 100 + (3 << 20), 7)]
    backend.finish()
    result = await task
    assert result.readonly
    assert result == content[100 : 107 + (3 << 20)]


@pytest.mark.parametrize("offset", [0, 1, 4095, 1 << 20, (1 << 22) - 1, 1 << 22, 1 << 23])
async def test_a_large_read_ends_with_the_file(scheduler, backend, offset):
    file = memory_file(pages=1024)
    task = start(scheduler.read(file, offset, 1 << 23))
    await turns()
    while backend.pending:
        backend.finish()
    assert len(await task) == max(0, (1 << 22) - offset)


async def test_a_large_read_has_no_gap_where_the_file_grows_meanwhile(scheduler, backend):
    file = memory_file(pages=300)
    task = start(scheduler.read(file, 0, 4 << 20, MATCHING))
    await turns()
    backend.finish(3)  # the second piece ends short, the third, which lies behind the end, with nothing
    file.write(300 * PAGE, bytes((4 << 20) - 300 * PAGE))
    while backend.pending:
        backend.finish()
    found = await task
    assert found == (b"".join(map(pattern, range(300))) + bytes(4 << 20))[: len(found)]
    assert len(found) >= 300 * PAGE


async def test_a_large_read_with_a_bad_piece_fails(scheduler, backend, file):
    task = start(scheduler.read(file, 0, 3 << 20, MATCHING))
    await turns()
    backend.finish(1)
    backend.finish(1, errno.EIO)
    while backend.pending:
        backend.finish()
    with pytest.raises(StorageError, match="read of memory:/a failed"):
        await task


async def test_ranges_have_their_own_errors(scheduler, backend, file):
    task = start(scheduler.try_read_many([(file, 0, 10), (file, -1, 10), (file, 8192, 10)], MATCHING))
    await turns()
    backend.finish(1)
    backend.finish(1, errno.EIO)
    found = await task
    assert found[0] == pattern(0)[:10]
    assert [error.errno for error in found[1:]] == [errno.EINVAL, errno.EIO]
