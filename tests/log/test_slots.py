"""Which slot a new log file takes."""

from __future__ import annotations

import numpy as np

from sarpstore import _format as fmt
from sarpstore._log.base import Base
from sarpstore._log.slots import Slots


def test_a_slot_is_free_after_two_checkpoints_and_without_entries(monkeypatch):
    monkeypatch.setattr(fmt, "SLOT_MAX", 4)
    base = Base(bytes(16), 0)
    for slot in range(5):
        base.add_slot(slot, slot + 1)
    base.drop_slot(1)
    base.drop_slot(3)
    counted = [False]
    given = Slots(base, named={3}, counted=lambda: counted[0])
    assert list(given._free) == [1]
    given.published()
    given.published()
    given.published()
    assert list(given._free) == [1]
    counted[0] = True
    base.slot_entries[3] = 1
    given.published()
    assert list(given._free) == [1]
    base.slot_entries[3] = 0
    given.published()
    assert list(given._free) == [1, 3]
    base.drop_slot(2)
    given.retire(2)
    given.published()
    assert list(given._free) == [1, 3]
    given.published()
    assert list(given._free) == [1, 3, 2]
    assert given.take(100) == 1
    assert np.array_equal(base.slot_files[:5], [1, 100, 0, 0, 5])


def test_new_slots_are_given_first():
    base = Base(bytes(16), 0)
    base.add_slot(0, 7)
    base.add_slot(2, 9)
    given = Slots(base)
    assert [given.take(number) for number in (10, 11)] == [3, 4]


def test_a_slot_above_all_files_is_not_new_once_all_were_given(monkeypatch):
    """The older of the kept checkpoints names 5, whose file is deleted; the newer one's highest is 4."""
    monkeypatch.setattr(fmt, "SLOT_MAX", 6)
    base = Base(bytes(16), 0)
    for slot in range(5):
        base.add_slot(slot, slot + 1)
    given = Slots(base, named={0, 1, 2, 3, 4, 5})
    assert given.take(100) == 6
