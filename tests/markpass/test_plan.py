"""The kernel's plan against numpy's, and against one that goes through the rows one by one, as format-spec/removal.md,
section 3 says it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_plan import decide, numpy_plan

from sarpstore._errors import LimitError
from sarpstore._kernel import MARK_ROW_DTYPE
from sarpstore._markpass import plan as plan_module
from sarpstore._markpass.plan import make_plan

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

    plan = make_plan(rows, np.array(removals * 2, "<u8")[::-1].copy(), position)
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


def same_plans(rows, removals, position) -> None:
    """The kernel's is numpy's; it leaves the rows as they are, and the removals in order."""
    expected, before, sorted_ = numpy_plan(rows, removals, position), rows.copy(), np.sort(removals)
    plan = make_plan(rows, removals, position)
    for name in ("verdicts", "masks", "intact"):
        assert np.array_equal(getattr(plan, name), getattr(expected, name)), name
    assert np.array_equal(rows, before)
    assert np.array_equal(removals, sorted_)


# Windows with gaps, up to the last one there can be; few tags, at both ends and some that differ in one byte alone.
WINDOWS = {"one": [0], "first": [0, 1, 2], "gaps": [0, 1, 3, 4, 9, 2**32 - 2, 2**32 - 1], "many": list(range(300))}
TAGS = {
    "few": [0, 1, 2**64 - 1],
    "bytes": [value << 8 * at for at in range(8) for value in (1, 2, 255)],
    "dense": list(range(2000)),
    "high": [value << 52 | 5 for value in range(2000)],
}


@given(
    st.integers(0, 2**32),
    st.one_of(st.integers(0, 100), st.integers(100, 6000)),
    st.sampled_from(sorted(WINDOWS)),
    st.sampled_from(sorted(TAGS)),
    st.sampled_from([3, 40, 10_000, 2**64 - 1]),
    st.sampled_from([0, 1, 30, 33, 3000]),
)
def test_many_rows(seed, count, windows, tags, positions, removals) -> None:
    random = np.random.default_rng(seed)
    tags = np.array(TAGS[tags], "<u8")
    rows = np.zeros(count, MARK_ROW_DTYPE)
    rows["window"] = random.choice(WINDOWS[windows], count)
    rows["born"] = random.integers(0, positions, count, np.uint64, endpoint=True)
    rows["prefix"], rows["last"] = random.choice(tags, count), random.choice(tags, count)
    rows["n"] = random.choice([1, 5, 63, 64, 64, 64], count)
    rows["d"] = random.choice([0, 0, 1, 4, 63], count) % rows["n"]
    rows["cut"] = np.minimum(rows["n"], random.choice([0, 4, 63, 64, 64, 64], count))
    rows["whole"] = random.integers(0, 2, count)
    rows["root_key"] = random.integers(0, [50, 2**48][seed % 2], count)
    # Most of them once; slots up to the last one.
    rows["reference"] = random.integers(0, 2**24, count) | random.choice([0, 1, 65_535], count) << 24
    removed = random.integers(0, positions, removals, np.uint64, endpoint=True)
    same_plans(rows, removed, int(random.integers(0, positions, dtype=np.uint64, endpoint=True)))


@given(tables())
def test_near_rows(table) -> None:
    rows, removals, position = table
    same_plans(rows, np.array(removals * 2, "<u8")[::-1].copy(), position)


def test_nothing() -> None:
    plan = make_plan(np.empty(0, MARK_ROW_DTYPE), np.empty(0, "<u8"), 0)
    assert [len(plan.verdicts), len(plan.masks), int(plan.intact.sum())] == [0, 0, 0]


def test_given_up() -> None:
    plan = make_plan(np.zeros(3, MARK_ROW_DTYPE), np.empty(0, "<u8"), 0)
    assert len(plan.verdicts) == 3
    plan.give_up()
    assert [len(plan.verdicts), len(plan.masks), len(plan.intact)] == [0, 0, 0]


def test_more_rows_than_have_a_number(monkeypatch) -> None:
    monkeypatch.setattr(plan_module, "_ROWS_MAX", 2)
    assert len(make_plan(np.zeros(2, MARK_ROW_DTYPE), np.empty(0, "<u8"), 0).verdicts) == 2
    with pytest.raises(LimitError, match="3 segments"):
        make_plan(np.zeros(3, MARK_ROW_DTYPE), np.empty(0, "<u8"), 0)
