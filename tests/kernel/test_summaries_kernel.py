"""Summaries of files: they give the changes that the records gave, and what no writer makes is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_views import changes_list
from records import summary_entry
from scans import FILE, several_commits

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, ffi, lib, pointer
from sarpstore._log.base import Base
from sarpstore._log.commits import summary_of


def summary_changes(entries: bytes, count: int) -> tuple[int, Any]:
    out = np.zeros(max(1, count), CHANGE_DTYPE)
    source = ffi.new("uint8_t[]", entries or b"\0")
    base = Base(bytes(16), fmt.ROUTINGS.index("divergence"))
    status = lib.sarp_summary_changes(base.c, FILE, source, count, pointer("sarp_change *", out))
    return status, out[:count]


def test_summaries_give_the_changes() -> None:
    machine, _ = several_commits()
    changes = machine.scan_file(FILE, 0).changes
    status, again = summary_changes(summary_of(changes).tobytes(), len(changes))
    assert status == lib.SARP_OK
    assert changes_list(again) == changes_list(changes)
    assert np.all(again["type"] == fmt.RECORD_SEGMENT)
    assert not np.any(again["commit"])
    assert summary_changes(b"", 0)[0] == lib.SARP_OK


@pytest.mark.parametrize(
    "fields",
    [{"n": 0}, {"n": 65}, {"n": 3}, {"d": 9}, {"d": 255}, {"dp": 64}, {"units": 1 << 24}, {"units": 1 << 31}],
    ids=str,
)
def test_bad_summary_entries_are_refused(fields: dict[str, int]) -> None:
    assert summary_changes(summary_entry(), 1)[0] == lib.SARP_OK
    assert summary_changes(summary_entry(**fields), 1)[0] == lib.SARP_INVALID
    assert summary_changes(summary_entry(units=100) + summary_entry(**fields), 2)[0] == lib.SARP_INVALID


def test_summary_entries_stand_in_order_of_place() -> None:
    assert summary_changes(summary_entry(units=199) + summary_entry(), 2)[0] == lib.SARP_OK
    assert summary_changes(summary_entry(units=200) + summary_entry(), 2)[0] == lib.SARP_INVALID
    assert summary_changes(summary_entry(units=201) + summary_entry(), 2)[0] == lib.SARP_INVALID
    # Fields of other types mean nothing.
    assert summary_changes(summary_entry(type=4, n=0, d=9, dp=99), 1)[0] == lib.SARP_OK


def test_garbage_for_a_summary() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        count = rng.randrange(1, 5)
        status, changes = summary_changes(rng.randbytes(32 * count), count)
        if status == lib.SARP_OK:
            segments = changes[changes["type"] == fmt.RECORD_SEGMENT]
            assert np.all((segments["d"] < segments["n"]) & (segments["n"] <= 64) & (segments["dp"] < 64))
