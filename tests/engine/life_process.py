"""A process without threads and clock: the same seed lives the same life again, and nothing waits in it."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from life_backend import LoopBackend, QuietLoop
from life_time import WallClock
from store_helpers import small_files

from sarpstore import _options
from sarpstore._chunks import opening, puts
from sarpstore._engine import background, lifetimes, matcher, state
from sarpstore._io import turns
from sarpstore._log import header, published
from sarpstore._log.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ["Process", "quiet_process"]


class Process:
    """Runs coroutines, one after another, in a loop that makes its own time."""

    def __init__(self, runner: asyncio.Runner, clock: WallClock, log_file_bytes: int) -> None:
        self.runner = runner
        self.clock = clock
        self.log_file_bytes = log_file_bytes
        """The length of log files of which a few pages' worth of data fills several."""


def _take_used(self: Slots, file_number: int) -> int:
    """As if all slots had been given once: the lowest that is free, if any is."""
    if not self._free:
        return _take(self, file_number)
    slot = min(self._free)
    self._free.remove(slot)
    self._base.add_slot(slot, file_number)
    return slot


_take = Slots.take


@contextlib.contextmanager
def quiet_process(random: Random) -> Iterator[Process]:
    """A process in which `random` decides all that chance does. Small bounds make little data meet them."""
    clock = WallClock()
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=QuietLoop) as runner:
        loop = clock.loop = runner.get_loop()
        for module in (header, opening):
            patch.setattr(module, "secrets", SimpleNamespace(token_bytes=random.randbytes))
        for module in (state, opening):
            patch.setattr(module, "choose_backend", lambda *_: LoopBackend(random))
        for module in (background, matcher, opening, turns):
            patch.setattr(module, "monotonic_ms", lambda: loop.time() * 1e3)
        for module in (header, lifetimes, published):
            patch.setattr(module, "wall_ms", lambda: int(clock.now_ms()))
        patch.setattr(turns, "perf_counter", loop.time)
        # The bounds are lower than any that makes sense, so that few insertions meet them.
        patch.setattr(_options, "_LOG_FILES_MIN", 1)
        patch.setattr(opening, "_REGION_BYTES_MIN", 1 << 16)
        patch.setattr(opening, "_METADATA_MIN", 1 << 18)
        patch.setattr(puts, "_ENTRIES_DUE_ANYWAY", 6)
        if random.random() < 0.5:
            patch.setattr(Slots, "take", _take_used)
            patch.setattr(state, "all_given", lambda _: True)
        yield Process(runner, clock, small_files(patch, insert_windows=6))
