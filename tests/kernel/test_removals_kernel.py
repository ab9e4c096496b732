"""Tables of marks and scopes against dictionaries."""

from __future__ import annotations

import numpy as np
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from sarpstore import _format as fmt
from sarpstore._kernel import ffi, lib
from sarpstore._log.removals import Removals

LIMIT = 24

# Few ids, so that they meet; with equal first halves, so that their places in the index do, too.
keys = st.tuples(st.integers(0, 40), st.integers(0, 2), st.sampled_from([0, 1, 1 << 63]))
operations = st.one_of(
    st.tuples(st.just("set"), st.lists(keys, min_size=1, max_size=6), st.integers(1, 50), st.booleans()),
    st.tuples(st.just("drop"), st.lists(keys, min_size=1, max_size=6)),
    st.tuples(st.just("retire"), st.integers(0, 50)),
    st.tuples(st.just("clear"), st.integers(0, 2)),
    st.tuples(st.just("forget"), st.integers(0, 5)),
)


def id_of(number: int) -> bytes:
    return bytes([number % 3]) * 8 + number.to_bytes(8, "little")


def values(removals: Removals, key: tuple[int, int, int]) -> int:
    number, holder, name_space = key
    out = ffi.new("uint64_t *")
    lib.sarp_marks_get(ffi.addressof(removals.c, "markers"), id_of(number), 16, 1, holder, name_space, out)
    return int(out[0])


def apply(removals: Removals, model: dict[tuple[int, int, int], int], operation: tuple) -> None:
    marks = ffi.addressof(removals.c, "markers")
    if operation[0] == "set":
        for number, holder, name_space in operation[1]:
            key, value = (number, holder, name_space), operation[2]
            fits = key in model or len(model) < LIMIT
            done = lib.sarp_marks_set(marks, id_of(number), 16, 1, holder, name_space, value, operation[3])
            assert done == fits
            if fits:
                model[key] = max(model.get(key, 0), value) if operation[3] else value
    elif operation[0] == "drop":
        for number, holder, name_space in operation[1]:
            dropped = lib.sarp_marks_drop(marks, id_of(number), 16, 1, holder, name_space)
            assert dropped == (model.pop((number, holder, name_space), None) is not None)
    elif operation[0] == "forget":
        before = len(model)
        lib.sarp_marks_forget(marks, operation[1])
        assert removals.markers == max(0, before - operation[1])
        left = {(int.from_bytes(bytes(row["id"])[8:], "little"), int(row["holder"]), int(row["name_space"]))
                for row in removals.marker_rows()}  # fmt: skip
        for key in set(model) - left:
            del model[key]
    else:
        by_holder = operation[0] == "clear"
        gone = [k for k, v in model.items() if (k[1] == operation[1] if by_holder else v <= operation[1])]
        if by_holder:
            assert lib.sarp_marks_clear(marks, operation[1]) == len(gone)
        else:
            assert retire(removals, operation[1], at_once=operation[1] % 5 + 1) == len(gone)
        for key in gone:
            del model[key]


def retire(removals: Removals, position: int, at_once: int) -> int:
    """Markers retired, so many looked at in each call."""
    following, retired = ffi.new("uint32_t *", removals.markers), 0
    while following[0]:
        retired += lib.sarp_removals_retire(removals.c, position, following, at_once)
    return retired


@given(st.lists(operations, max_size=40))
@settings(max_examples=examples(300))
def test_a_table_of_marks_is_a_dictionary(run: list[tuple]) -> None:
    removals = Removals(LIMIT, 0, 4)
    for holder in range(3):
        assert lib.sarp_scope_of(removals.c, lib.SARP_SCOPE_HOLDER, holder, True)
    model: dict[tuple[int, int, int], int] = {}
    for operation in run:
        apply(removals, model, operation)
        assert removals.markers == len(model)
        for number in range(41):
            for holder in range(3):
                for name_space in (0, 1, 1 << 63):
                    if (number, holder, name_space) in model or number < 3:
                        assert values(removals, (number, holder, name_space)) == model.get(
                            (number, holder, name_space), 0
                        )


def test_markers_are_counted_with_their_holders() -> None:
    removals = Removals(100, 0, 8)
    ids = np.frombuffer(b"".join(map(id_of, range(10))), np.uint8)
    for holder, position in ((1, 10), (2, 20), (2, 30)):
        removals.clear(holder, 0)
        removals.mark(ffi.from_buffer("uint8_t[]", ids), 10, holder, 7, position)
    assert removals.markers == 20, "a block that is removed twice has one marker"
    assert removals.concern(1, 7)
    assert sum(removals.retiring(10)) == 10
    assert not removals.concern(1, 7)
    assert removals.concern(2, 7)
    assert set(removals.marker_rows()["position"].tolist()) == {30}


def test_markers_that_come_while_others_retire_stay() -> None:
    removals = Removals(10_000, 0, 8)
    ids = np.frombuffer(b"".join(map(id_of, range(9000))), np.uint8)
    removals.clear(1, 0)
    removals.mark(ffi.from_buffer("uint8_t[]", ids), 6000, 1, 7, 10)
    parts = removals.retiring(10)
    assert next(parts) == 2048
    # New ones, and one that stands for a marker which has not been looked at yet.
    removals.mark(ffi.from_buffer("uint8_t[]", ids[16 * 6000 :]), 500, 1, 7, 20)
    removals.mark(ffi.from_buffer("uint8_t[]", ids), 1, 1, 7, 20)
    assert sum(parts) == 6000 - 2048 - 1
    assert removals.markers == 501
    assert set(removals.marker_rows()["position"].tolist()) == {20}
    assert removals.concern(1, 7)


def test_markers_are_copied_in_parts_while_others_come() -> None:
    removals = Removals(20_000, 0, 8)
    ids = np.frombuffer(b"".join(map(id_of, range(20_000))), np.uint8)
    removals.clear(1, 0)
    removals.mark(ffi.from_buffer("uint8_t[]", ids), 10_000, 1, 7, 10)
    parts = removals.marker_parts()
    copied = [next(parts).copy()]
    removals.mark(ffi.from_buffer("uint8_t[]", ids[16 * 9_999 :]), 2, 1, 7, 20)
    copied.extend(part.copy() for part in parts)
    rows = np.concatenate(copied)
    assert len(rows) == 10_000
    assert rows["position"].tolist() == [10] * 9_999 + [20], "what has been moved meanwhile is there, too"


def test_a_head_gives_back_what_was_saved() -> None:
    removals = Removals(100, 100, 8)
    removals.clear(3, 77)
    removals.clear(4, 0)
    ids = np.frombuffer(b"".join(map(id_of, range(10))), np.uint8)
    removals.mark(ffi.from_buffer("uint8_t[]", ids), 10, 4, 7, 99)
    entries = np.zeros(2, fmt.COUNT_ENTRY_DTYPE)
    entries["id"], entries["count"] = [id_of(1), id_of(2)], [3, 4]
    removals.set_counts(entries, 4, 7)
    other = Removals(5, 5, 8)
    other.load(removals.marker_rows(), removals.epoch_rows(), removals.count_rows())
    assert other.holders == {3: 77, 4: 0}
    assert (other.marker_rows() == removals.marker_rows()).all()
    assert other.get_counts(ids.reshape(-1, 16), 4, 7).tolist() == [0, 3, 4] + [0] * 7
    assert other.room == 0, "more than the bound are kept, and no more are taken"
    assert other.concern(3, 0)
    assert other.concern(4, 7)
    assert not other.concern(5, 7)


def test_expiries_do_not_go_back() -> None:
    removals = Removals(100, 0, 8)
    removals.expire(50)
    removals.expire(40)
    assert int(removals.c.expiry) == 50
    removals.expire(60, "namespace", 9)
    scope = lib.sarp_scope_of(removals.c, lib.SARP_SCOPE_NAMESPACE, 9, False)
    assert int(scope.expiry) == 60
