"""A mark pass over many log files: the parts of it that go by file."""

from __future__ import annotations

import numpy as np
import pytest

from sarpstore._kernel import lib
from sarpstore._markpass.plan import Plan
from sarpstore._markpass.rows import FileSeen
from sarpstore._markpass.run import _FILES_AT_ONCE, _in_order, _intact_files


def test_files_in_order_of_their_numbers() -> None:
    numbers = np.array([0, 9, 3, 0, 1 << 39, 4, 0], "<u8")
    assert _in_order(numbers).tolist() == [2, 5, 1, 4]
    assert _in_order(numbers[:1]).tolist() == []


@pytest.mark.parametrize("count", [0, 1, _FILES_AT_ONCE, _FILES_AT_ONCE + 1, 3 * _FILES_AT_ONCE - 1])
async def test_intact_files(count: int) -> None:
    random = np.random.default_rng(count)
    slots = random.permutation(lib.SARP_SLOTS)[:count].tolist()
    plan = Plan(np.empty(0, "<u8"), np.empty(0, "<u8"), random.integers(0, 3, lib.SARP_SLOTS, np.uint64))
    files = [FileSeen(i + 1, slot, i % 3, int(i % 7 == 0)) for i, slot in enumerate(slots)]
    before = count - 1
    expected = [i + 1 for i, slot in enumerate(slots) if i % 3 == plan.intact[slot] and i % 7 and i + 1 < before]
    assert await _intact_files(files, plan, before) == tuple(expected)
    assert files == []
