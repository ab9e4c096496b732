"""The plan against one that goes through the rows one by one, as format-spec/removal.md, section 3 says it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sarpstore._kernel import MARK_ROW_DTYPE
from sarpstore._markpass.plan import decide, make_plan

FIELDS = ("window", "born", "prefix", "last", "n", "d", "cut", "whole")


@st.composite
def tables(draw):
    """Rows that are near to each other in everything, positions of removals, and the pass's."""
    row = st.tuples(
        st.integers(0, 3),
        st.integers(1, 12),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([2, 40, 64, 64]),
        st.sampled_from([0, 0, 1, 30]),
        st.sampled_from([0, 1, 30, 64]),
        st.integers(0, 1),
    )
    drawn = draw(st.lists(row, max_size=25))
    rows = np.zeros(len(drawn), MARK_ROW_DTYPE)
    for each, values in zip(rows, drawn, strict=True):
        for name, value in zip(FIELDS, values, strict=True):
            each[name] = value
    rows["d"] = np.minimum(rows["d"], rows["n"] - 1)
    rows["cut"] = np.minimum(rows["cut"], rows["n"])
    rows["last"][rows["n"] < 64] = 0
    rows["root_key"] = rows["prefix"] * 7 + rows["window"]
    order = draw(st.permutations(range(len(rows))))
    rows["reference"] = np.array(order, "<u8") << 20 | 5
    return rows, sorted(draw(st.sets(st.integers(1, 12)))), draw(st.integers(1, 13))


def naive(rows, removals, position):
    """Blocks that stay of each."""
    left = {}
    for at in sorted(range(len(rows)), key=lambda i: rows[i]["window"]):
        row = rows[at]
        if row["born"] >= position:
            left[at] = int(row["n"])
            continue
        left[at] = int(min(row["n"], row["cut"]))
        orphan = row["window"] > 0 and not any(
            other["window"] + 1 == row["window"]
            and left[i] == 64
            and other["last"] == row["prefix"]
            and not any(row["born"] < p <= other["born"] for p in removals)
            for i, other in enumerate(rows)
            if i in left
        )
        if orphan or left[at] <= row["d"]:
            left[at] = 0
    return [left[i] for i in range(len(rows))]


@given(tables())
def test_what_stays(table) -> None:
    rows, removals, position = table
    expected = naive(rows, removals, position)
    assert decide(rows, np.array(removals, "<u8"), position).tolist() == expected

    plan = make_plan(rows, np.array(removals * 2, "<u8")[::-1], position)
    verdicts = {int(row["reference"]): stays for row, stays in zip(rows, expected, strict=True)}
    assert [(v >> 8, v & 255) for v in plan.verdicts.tolist()] == sorted(verdicts.items())
    masks = defaultdict(int)
    intact = defaultdict(int)
    for row, stays in zip(rows, expected, strict=True):
        if stays and row["d"]:
            masks[int(row["root_key"])] |= 1 << int(row["d"]) // 4
        intact[int(row["reference"]) >> 24] += bool(row["whole"]) and stays == row["n"]
    assert [(m >> 16, m & 0xFFFF) for m in plan.masks.tolist()] == sorted(masks.items())
    for slot, count in enumerate(plan.intact.tolist()):
        assert count == intact.pop(slot, 0)
    assert not any(intact.values())


def test_nothing() -> None:
    plan = make_plan(np.empty(0, MARK_ROW_DTYPE), np.empty(0, "<u8"), 0)
    assert [len(plan.verdicts), len(plan.masks), int(plan.intact.sum())] == [0, 0, 0]
