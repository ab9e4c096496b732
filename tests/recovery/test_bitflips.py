"""A share of what `python -m fuzz.bitflips` does whole: no flipped bit goes unnoticed and matters."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from fuzz.bitflips import Work, flip_store
from fuzz.bitflips_kernel import image_flips, record_flips
from sarpstore import _format as fmt


@pytest.mark.parametrize("routing", fmt.ROUTINGS)
async def test_flips_of_a_whole_store(routing):
    counts, wrong = await flip_store(Work(routing, first=11, stride=7919))
    assert not wrong
    assert sum(own.total() for own in counts.values()) > 30
    assert set(counts) == {"log header", "log records", "checkpoint", "images"}


async def test_flips_before_the_kernel():
    counts = await record_flips(4)
    assert counts["wrong"] == 0
    assert counts["detected"] > 32_000
    counts = image_flips(1, stride=97)
    assert counts["wrong"] == 0
    assert counts["detected"] > 2_600
