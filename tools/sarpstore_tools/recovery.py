"""Killing a serving process and timing how soon another answers in its place."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sarpstore_tools.protocol import Answering, Child, Failed, Open, Ready, Rechecked, Recovered, RecoverJob

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

KILL_AFTER_SECONDS = (0.02, 0.12)
"""The kill comes at a random moment in this interval after the first answer."""


class Recovery(msgspec.Struct, kw_only=True):
    """What a kill cost, in milliseconds.

    `whole_ms` runs from the kill to the first right answer, the noticing of the death included; dropping the page cache
    comes between the two and is not counted. `answer_ms` runs from open() to the first right answer, `open_ms` to the
    end of open(). The process that recovers was started before the kill and had imported everything.
    """

    noticed_ms: float
    open_ms: float
    answer_ms: float
    whole_ms: float
    answers_before_kill: int
    tries: int
    cache_drop: str
    """How the page cache was dropped."""
    cached_pages: int
    """Pages of the store's files that were still in the page cache after that, of `pages`."""
    pages: int
    checked: int
    wrong: int
    lost_tokens: int
    mismatches: list[str]
    stats: dict[str, Any]


class ServingError(RuntimeError):
    """A serving process failed; the message is its reason."""


def receive(child: Child) -> Any:
    """The next message of `child`.

    Raises:
        ServingError: it failed or died.
    """
    try:
        message = child.channel.receive()
    except EOFError:
        status = child.process.wait()
        raise ServingError(f"the serving process ended unexpectedly with status {status}") from None
    if isinstance(message, Failed):
        raise ServingError(message.reason)
    return message


def kill_and_recover(serving: Child, job: RecoverJob) -> Recovery:
    """Kill `serving` (SIGKILL) while it answers; a process that stands by opens its store cold and is checked.

    Raises:
        ServingError: one of the two failed by itself.
    """
    standby = Child(job)
    try:
        assert isinstance(receive(standby), Ready)
        answers = _wait_for_answers(serving)
        time.sleep(random.uniform(*KILL_AFTER_SECONDS))  # noqa: S311 (no secret)
        noticed_ms = _kill(serving)
        cache_drop, cached_pages, pages = drop_page_cache(Path(job.store))
        start = time.perf_counter()
        standby.channel.send(Open())
        recovered = receive(standby)
        whole_ms = noticed_ms + (time.perf_counter() - start) * 1e3
        rechecked = receive(standby)
        assert isinstance(recovered, Recovered)
        assert isinstance(rechecked, Rechecked)
        standby.process.wait()
    finally:
        standby.stop()
    return Recovery(
        noticed_ms=noticed_ms,
        open_ms=recovered.open_ms,
        answer_ms=recovered.answer_ms,
        whole_ms=whole_ms,
        answers_before_kill=answers.answers,
        tries=recovered.tries,
        cache_drop=cache_drop,
        cached_pages=cached_pages,
        pages=pages,
        checked=rechecked.checked,
        wrong=rechecked.wrong + answers.wrong,
        lost_tokens=rechecked.lost_tokens,
        mismatches=rechecked.mismatches,
        stats=rechecked.stats,
    )


def _wait_for_answers(serving: Child) -> Answering:
    message = receive(serving)
    assert isinstance(message, Answering)
    return message


def _kill(serving: Child) -> float:
    """Kill the process; milliseconds until its pipe says that it is gone."""
    start = time.perf_counter()
    serving.process.kill()
    try:
        while True:
            serving.channel.receive()
    except EOFError:
        pass
    noticed_ms = (time.perf_counter() - start) * 1e3
    serving.stop()
    return noticed_ms


def drop_page_cache(folder: Path) -> tuple[str, int, int]:
    """Drop what the kernel caches of the files below `folder`: how, pages that are still cached, and all their pages.

    Every file is written through first (a dirty page cannot be dropped); a killed process's writes are in the
    kernel anyway, so this saves nothing that the kill would have lost.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    how = "posix_fadvise"
    left, pages = _resident(files)
    if left:
        # The whole machine's cache pays for this one: only where posix_fadvise was not enough, and if permitted.
        with contextlib.suppress(OSError):
            DROP_CACHES.write_text("1\n")
            how = "posix_fadvise and drop_caches"
            left, pages = _resident(files)
    return how, left, pages


def _resident(files: list[Path]) -> tuple[int, int]:
    counts = [resident_pages(path) for path in files]
    return sum(left for left, _ in counts), sum(pages for _, pages in counts)


def resident_pages(path: Path) -> tuple[int, int]:
    """(pages of the file that are in the page cache, all its pages), by mincore(2)."""
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    flags = np.zeros(pages, dtype=np.uint8)
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        address, vector = ctypes.c_void_p(view.ctypes.data), ctypes.c_void_p(flags.ctypes.data)
        status = mincore(address, ctypes.c_size_t(size), vector)
        del view
    # Where the kernel will not say, count everything as cached rather than claim that it is gone.
    return (pages if status else int(np.count_nonzero(flags & 1))), pages
