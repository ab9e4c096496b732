"""`sarpstore verify` on checkpoints of posting lists that are lawful, checksums and all, but say something false."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.specreader.store import verify_store
from spec_writer import UNIT
from spec_writer_damage import HEAD_1, codes
from spec_writer_sarp import Change, Entry, Low, SarpWriter, shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMAGES_1 = f"{1:016x}.images"


@pytest.fixture
def writer(tmp_path: Path) -> SarpWriter:
    """A synced store of eight paths, and one more commit behind where the checkpoint will start."""
    writer = SarpWriter(tmp_path / "s")
    writer.new_file()
    for ids in shared(8, 20, 40):
        writer.insert(ids)
    writer.commit()
    writer.mark()
    return writer


def found(writer: SarpWriter, depth: int = 0, change: dict[str, int] | None = None, compare: bool = True) -> set[str]:
    """The codes of what is found when a checkpoint has been written."""
    writer.checkpoint(1, depth=depth, change=change)
    return {code for _, code in codes(verify_store(writer.path, compare))}


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_true_checkpoints_are_clean(writer: SarpWriter, depth: int) -> None:
    assert found(writer, depth) == set()


def test_a_checkpoint_that_starts_before_what_its_images_hold_is_clean(writer: SarpWriter) -> None:
    start = writer.end, writer.commits, writer.sequence
    for ids in shared(8, 20, 50) + shared(8, 33, 64, 5):
        writer.insert(ids)
    writer.commit()
    writer.mark()
    writer.checkpoint(1, start, depth=2)
    assert verify_store(writer.path).faults == []


def test_an_empty_store_has_one_partition_without_an_image(tmp_path: Path) -> None:
    writer = SarpWriter(tmp_path / "s")
    writer.new_file()
    first = 1 << 24 | 128
    writer.checkpoint(1, (first, 0, 1), change={"synced": first})
    assert verify_store(writer.path).faults == []


# -- entries


def _edit(writer: SarpWriter, wanted: Callable[[Entry], bool], change: tuple[int, int, int]) -> None:
    """Xors the words of the first entry that is wanted."""

    def edit(entries: list[Entry]) -> list[Entry]:
        at = next(at for at, entry in enumerate(entries) if wanted(entry))
        words = struct.unpack("<QQQ", entries[at][4])
        stored = struct.pack("<QQQ", *(word ^ by for word, by in zip(words, change, strict=True)))
        return [*entries[:at], (*entries[at][:4], stored), *entries[at + 1 :]]

    writer.edit_entries = edit


def _is_state(entry: Entry) -> bool:
    return entry[2] == 0


def _at_point(point: int) -> Callable[[Entry], bool]:
    return lambda entry: entry[2] != 0 and entry[4][0] >> 1 & 7 == point


POINT_2 = _at_point(2)


@pytest.mark.parametrize(
    ("wanted", "change", "codes_found"),
    [
        (POINT_2, (1, 0, 0), {"image-entry"}),
        (POINT_2, (0, 1, 0), {"image-entry"}),
        (POINT_2, (0, 1 << 6, 0), {"image-entry"}),
        (POINT_2, (0, 31 << 1, 0), set()),
        (POINT_2, (63 << 4, 0, 0), {"image-entry", "entry-differs"}),
        (POINT_2, (5 << 1, 0, 0), {"image-entry", "entry-differs"}),
        (POINT_2, (1 << 10, 0, 0), {"entry-differs", "state"}),
        (POINT_2, (1 << 4, 0, 0), {"entry-differs", "state"}),
        (POINT_2, (0, 0, 1), {"entry-differs", "state"}),
        (POINT_2, (0, 1 << 24, 0), {"entry-lost", "state"}),
        (POINT_2, (0, 1 << 63, 0), {"entry-lost", "state"}),
        (_at_point(0), (1 << 4, 0, 0), {"image-blocks", "entry-differs"}),
        (_is_state, (1 << 4, 0, 0), {"image-entry"}),
        (_is_state, (1 << 10, 0, 0), {"image-entry"}),
        (_is_state, (1, 0, 0), {"image-entry"}),
        (_is_state, (0, 8, 0), {"image-entry"}),
        (_is_state, (0, 0, 1), {"image-entry"}),
        (_is_state, (7 << 1, 0, 0), {"image-entry"}),
    ],
)
def test_false_entries_are_found(
    writer: SarpWriter, wanted: Callable[[Entry], bool], change: tuple[int, int, int], codes_found: set[str]
) -> None:
    _edit(writer, wanted, change)
    assert found(writer) == codes_found


def _flags(writer: SarpWriter, before: int, after: int) -> None:
    _edit(writer, lambda entry: _is_state(entry) and entry[4][8] == before, (0, before ^ after, 0))


@pytest.mark.parametrize(
    ("before", "after", "codes_found"), [(3, 2, {"image-entry"}), (3, 1, {"state"}), (1, 3, {"image-entry"})]
)
def test_false_states_are_found(writer: SarpWriter, before: int, after: int, codes_found: set[str]) -> None:
    assert {one.flags for one in writer.lists.values() if one.point == 1} == {1}
    _flags(writer, before, after)
    assert found(writer) == codes_found


def test_entries_out_of_order_or_twice_are_found(writer: SarpWriter) -> None:
    writer.edit_entries = lambda entries: entries[::-1]
    assert "image-order" in found(writer)
    writer.edit_entries = lambda entries: [entries[0], *entries]
    assert found(writer) == {"image-order"}


def test_postings_that_differ_in_the_reference_alone_are_in_its_order(writer: SarpWriter) -> None:
    writer.owners.clear()
    writer.insert(shared(1, 20, 40)[0])
    writer.commit()
    assert found(writer) == set()
    writer.edit_entries = lambda entries: sorted(entries, key=lambda entry: (*entry[:2], entry[2] and -entry[2]))
    assert found(writer) == {"image-order"}


def test_missing_and_additional_entries_are_found(writer: SarpWriter) -> None:
    for wanted in (POINT_2, _is_state):
        writer.edit_entries = lambda entries, wanted=wanted: [
            *entries[: (at := [wanted(entry) for entry in entries].index(True))],
            *entries[at + 1 :],
        ]
        assert found(writer) == {"state"}
        assert found(writer, compare=False) == set()
    writer.edit_entries = lambda entries: [
        *entries,
        (0, 0, 0, 0, struct.pack("<QQQ", (1 << 48) - 1 << 16, 1, 0)),
    ]
    assert found(writer) == {"state"}


def test_the_tail_of_the_log_makes_up_for_what_the_images_lack(writer: SarpWriter) -> None:
    start = writer.end, writer.commits, writer.sequence
    kept = list(writer.entries())
    for ids in shared(8, 20, 50) + shared(8, 33, 64, 5):
        writer.insert(ids)
    writer.commit()
    writer.mark()
    writer.edit_entries = lambda entries: kept
    writer.checkpoint(1, start, depth=1)
    assert verify_store(writer.path).faults == []
    writer.checkpoint(1, depth=1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}


# -- partitions, images and heads


def _from_second(change: Callable[[Low], tuple[Low, Low]]) -> Callable[[int, Low], tuple[Low, Low]]:
    return lambda at, low: change(low) if at else (low, low)


@pytest.mark.parametrize(
    ("lows", "codes_found"),
    [
        (lambda at, low: ((0, 0, at + 1), (0, 0, at + 1)) if not at else (low, low), {"partition"}),
        (_from_second(lambda low: ((0, 0, 0), (0, 0, 0))), {"partition", "image-prefix"}),
        (_from_second(lambda low: ((low[0] + 1, 0, 0), (low[0] + 1, 0, 0))), {"image-prefix"}),
        (_from_second(lambda low: ((*low[:2], low[2] - 1), (*low[:2], low[2] - 1))), set()),
        (_from_second(lambda low: (low, (low[0] - 1, *low[1:]))), {"image-prefix"}),
        (_from_second(lambda low: ((low[0], low[1] ^ 1, low[2]), low)), {"image-prefix"}),
    ],
)
def test_false_ranges_are_found(
    writer: SarpWriter, lows: Callable[[int, Low], tuple[Low, Low]], codes_found: set[str]
) -> None:
    writer.edit_lows = lows
    assert found(writer, depth=1) == codes_found


def test_a_range_that_begins_behind_a_posting_of_its_list_is_found(writer: SarpWriter) -> None:
    entries = list(writer.entries())
    half = entries[(len(entries) + 1) // 2]
    assert half[2]
    past = (half[0], half[1], half[2] + 1)
    writer.edit_lows = _from_second(lambda low: (past, past))
    assert found(writer, depth=1) == {"image-prefix"}


@pytest.mark.parametrize(
    ("change", "code"),
    [({"entries": 9}, "entries"), ({"blocks": 9}, "blocks"), ({"partitions": 9}, "head-length")],
)
def test_false_counts_are_found(writer: SarpWriter, change: dict[str, int], code: str) -> None:
    assert found(writer, change=change) == {code}


def test_an_image_with_a_depth_is_found(writer: SarpWriter) -> None:
    image = writer.image
    writer.image = lambda number, prefix, depth, *rest: image(number, prefix, 1, *rest)  # type: ignore[method-assign]
    assert found(writer) == {"image-prefix"}


def test_a_head_without_partitions_is_found(writer: SarpWriter) -> None:
    writer.images = lambda number, depth: (b"", [], 0, 0)  # type: ignore[method-assign]
    assert found(writer) == {"partition", "state"}


def test_a_head_of_another_routing_is_found(writer: SarpWriter) -> None:
    writer.images = lambda number, depth: (b"", [struct.pack("<QQIIIIB7x", *bytes(7))], 0, 0)  # type: ignore[method-assign]
    writer.routing = 0
    assert found(writer) == {"options"}


def test_an_entry_behind_the_synced_position_is_found(writer: SarpWriter) -> None:
    start = 1 << 24 | 128
    writer.checkpoint(1, (start, 0, 1), change={"synced": start})
    assert "entry-behind" in {code for _, code in codes(verify_store(writer.path))}


def test_more_entries_than_an_image_may_have_are_found(writer: SarpWriter) -> None:
    posting = next(posting for one in writer.lists.values() for posting in one.postings.values())
    many = [Change(key, 0, posting.position, 1, 0, 2) for key in range(1, 2730)]
    stored = [(change.key, 0, 0, 0, struct.pack("<QQQ", change.key << 16, 1, 0)) for change in many]
    writer.edit_entries = lambda entries: stored[:2728]
    assert "image-length" not in found(writer, compare=False)
    writer.edit_entries = lambda entries: stored
    assert found(writer, compare=False) == {"image-length"}


def test_a_missing_or_damaged_image_is_found_where_it_is(writer: SarpWriter) -> None:
    writer.checkpoint(1, depth=1)
    images = writer.path / IMAGES_1
    data = bytearray(images.read_bytes())
    data[UNIT + 30] ^= 1
    images.write_bytes(data)
    assert codes(verify_store(writer.path)) == {(IMAGES_1, "image-checksum")}
    images.unlink()
    assert codes(verify_store(writer.path)) == {(IMAGES_1, "image-missing")}


def test_places_of_findings_are_those_of_the_partition_rows(writer: SarpWriter) -> None:
    writer.edit_lows = _from_second(lambda low: ((0, 0, 0), (0, 0, 0)))
    writer.checkpoint(1, depth=2)
    at = [fault.offset for fault in verify_store(writer.path).faults if fault.file == HEAD_1]
    assert at == [192 + 16 + 48 * index for index in (1, 2, 3)]
