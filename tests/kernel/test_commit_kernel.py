"""Where records go in a gathering commit."""

from __future__ import annotations

from random import Random

import pytest

from sarpstore import _format as fmt
from sarpstore._kernel import lib
from sarpstore._log.commits import CommitBuffer, namespace_record

RULES = [lib.SARP_PLACE_BEST, lib.SARP_PLACE_BEST, lib.SARP_PLACE_BEHIND, lib.SARP_PLACE_FRESH]


@pytest.mark.parametrize("seed", range(20))
def test_records_are_apart_and_behind_what_a_commit_was_parted_at(seed: int) -> None:
    random = Random(seed)
    commit = CommitBuffer(bytes(16), 14)
    commit.begin(1, 0, fmt.LOG_HEADER_BYTES, 1, 1, 60)
    commit.part()
    taken: set[int] = set()
    parted = before = 0
    while True:
        if random.random() < 0.1:
            commit.part()
            parted = max(taken, default=0)
        record = namespace_record(16, "n" * random.randrange(1, 3900), "", 1)
        position = commit.append(record, rule=random.choice(RULES))
        if not position:
            break
        units = set(range(position, position + -(-len(record) // fmt.UNIT)))
        assert len({unit // fmt.PAGE_UNITS for unit in units}) == 1
        assert taken.isdisjoint(units)
        assert position > parted
        before += position < max(taken, default=0)
        taken |= units
    assert commit.pages == 59
    assert before, "records still fill pages that are not the last"
