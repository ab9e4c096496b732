"""`sarpstore verify` on bytes that are lawful, checksums and all, but say something false."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.specreader.store import verify_store
from spec_writer import COMMIT, Owner, StoreWriter, chain, namespace_root, sealed
from spec_writer_damage import LOG_1, codes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _two_with_one_sequence(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.sequence -= 1
    writer.insert(chain([3, 4]))


def _superseding_another_path(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    owner = next(iter(writer.live.values()))
    owner.ids = chain([9, 2])
    writer.owners |= {(0, 0, one): owner for one in owner.ids}
    writer.insert(owner.ids + chain([3], owner.ids[-1]))


def _superseding_nothing(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    owner = next(iter(writer.live.values()))
    writer.live[owner.position - 1] = owner
    owner.position -= 1
    writer.insert(chain([1, 2, 3]))


def _orphan(writer: StoreWriter) -> None:
    ids = chain(list(range(70)))
    nowhere = Owner(0, 0, 0, ids[:64], 0, 0, 0, 0)
    writer.owners |= {(0, 0, one): nowhere for one in ids[:64]}
    writer.insert(ids)


def _wrong_parent(writer: StoreWriter) -> None:
    ids = chain(list(range(70)))
    writer.insert(ids[:64])
    writer.owners[0, 0, ids[63]].key ^= 1
    writer.insert(ids)
    writer.owners[0, 0, ids[63]].key ^= 1


def _unnamed_namespace(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]), namespace=77)


def _unnamed_empty_namespace(writer: StoreWriter) -> None:
    writer.names[0] = b""
    writer.insert(chain([1, 2]))
    del writer.names[0]


def _two_schemes(writer: StoreWriter) -> None:
    writer.name("one")
    writer.add(4, struct.pack("<IHHQ", 8, 3, 0, int.from_bytes(namespace_root("one")[:8], "little")), b"one")


def _dp_not_below_d(writer: StoreWriter) -> None:
    ids = chain(list(range(9)))
    writer.insert(ids)
    writer.owners[0, 0, ids[4]] = replace(writer.owners[0, 0, ids[4]], d=5)
    writer.insert(ids[:5] + chain([99], ids[4]))


def _gap_in_a_file(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.sequence += 1
    writer.insert(chain([3, 4]))


def _gap_before_the_first_record(writer: StoreWriter) -> None:
    writer.sequence += 1
    writer.insert(chain([1, 2]))


def _descending_from_commit_to_commit(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.sequence = 5
    writer.commit()
    writer.sequence = 3
    writer.insert(chain([3, 4]))
    writer.sequence = 4
    writer.commit()
    writer.sequence = 6


def _superseding_a_later_operation(writer: StoreWriter) -> None:
    writer.name("")
    writer.sequence += 1
    writer.insert(chain([1, 2]))
    writer.sequence -= 2
    writer.insert(chain([1, 2, 3]))
    writer.sequence += 1


def _closing_without_a_seal(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.commit(flags=2)


def _mark_with_records(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.commit(flags=1)


def _synced_between_commits(writer: StoreWriter) -> None:
    for number in range(3):
        writer.insert(chain([number]))
        writer.insert(chain([number + 9, *range(200)]))
        writer.commit()
    writer.insert(chain([77]))
    writer.commit(synced=writer.end - 64)


def _late_namespace(writer: StoreWriter) -> None:
    number = int.from_bytes(namespace_root("late")[:8], "little")
    writer.insert(chain([1, 2]), namespace=number)
    writer.name("late")


def _unlawful_lengths(writer: StoreWriter) -> None:
    writer.add(1, bytes(96), b"x" * 40, n=1, units=2)


def _unknown_type(writer: StoreWriter) -> None:
    writer.add(77, b"")


def _leaving_no_owner(writer: StoreWriter) -> None:
    ids = chain(list(range(9)))
    writer.insert(ids)
    writer.owners[0, 0, ids[4]] = replace(writer.owners[0, 0, ids[4]], d=3)
    writer.insert(ids[:5] + chain([99], ids[4]))


def _introducing_twice(writer: StoreWriter) -> None:
    writer.insert(chain([1, 2]))
    writer.owners.clear()
    writer.insert(chain([1, 2, 3]))


FALSEHOODS: list[tuple[Callable[[StoreWriter], None], str]] = [
    (_two_with_one_sequence, "sequence"),
    (_superseding_another_path, "supersedes"),
    (_superseding_nothing, "supersedes duplicate"),
    (_orphan, "orphan"),
    (_wrong_parent, "parent"),
    (_unnamed_namespace, "namespace"),
    (_late_namespace, "namespace"),
    (_unnamed_empty_namespace, "namespace"),
    (_two_schemes, "namespace"),
    (_dp_not_below_d, "dp"),
    (_gap_in_a_file, "sequence"),
    (_gap_before_the_first_record, "sequence"),
    (_descending_from_commit_to_commit, "sequence"),
    (_superseding_a_later_operation, "supersedes"),
    (_closing_without_a_seal, "commit-flags"),
    (_mark_with_records, "commit-flags"),
    (_synced_between_commits, "synced"),
    (_leaving_no_owner, "owner"),
    (_introducing_twice, "duplicate"),
]


@pytest.mark.parametrize(("write", "codes_found"), FALSEHOODS)
def test_false_records_are_found(tmp_path: Path, write: Callable[[StoreWriter], None], codes_found: str) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    write(writer)
    writer.commit()
    writer.mark()
    assert {found for _, found in codes(verify_store(writer.path))} == set(codes_found.split())


@pytest.mark.parametrize(("write", "code"), [(_unlawful_lengths, "damaged-record"), (_unknown_type, "unknown-type")])
def test_records_against_the_rules_are_damaged(tmp_path: Path, write: Callable[[StoreWriter], None], code: str) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    write(writer)
    writer.commit()
    writer.mark()
    assert {found for _, found in codes(verify_store(writer.path))} == {code, "commit"}


def test_a_record_that_no_reader_may_pass_over_is_a_fault_behind_the_synced_position_too(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    _unknown_type(writer)
    writer.commit()
    assert codes(verify_store(writer.path)) == {(LOG_1, "unknown-type")}


def test_an_unknown_ignorable_record_is_skipped(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.add(77, b"anything", b"at all", flags=1)
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []


def _wrong_count(writer: StoreWriter) -> None:
    writer.crcs.append(writer.crcs[-1])


def _wrong_checksum(writer: StoreWriter) -> None:
    writer.crcs.reverse()


@pytest.mark.parametrize("spoil", [_wrong_count, _wrong_checksum])
def test_commits_that_do_not_agree_with_their_records_are_corrupt(
    tmp_path: Path, spoil: Callable[[StoreWriter], None]
) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.insert(chain([2]))
    spoil(writer)
    writer.commit()
    writer.mark()
    assert {code for _, code in codes(verify_store(writer.path))} == {"commit"}


def test_a_missing_commit_number_is_corruption_below_and_torn_above(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.commit()
    writer.commits += 1
    writer.insert(chain([2]))
    writer.commit()
    assert verify_store(writer.path).faults == []
    assert verify_store(writer.path).records == 3
    writer.mark()
    assert (LOG_1, "commit") in codes(verify_store(writer.path))


def test_a_commit_that_calls_itself_synced_is_a_fault(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1]))
    writer.commit(synced=1 << 24 | 12288 // 64)
    assert codes(verify_store(writer.path)) == {(LOG_1, "synced")}


@pytest.mark.parametrize("with_records", [True, False])
def test_a_seal_that_does_not_name_its_commits_first_page_is_found(tmp_path: Path, with_records: bool) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    if with_records:
        writer.insert(chain([1, 2]))
        writer.commit()
    writer.seal(closed=True)
    assert verify_store(writer.path).faults == []
    writer.new_file()
    writer.room = 64
    writer.add(7, struct.pack("<IIQ", 0, 0, 0))
    writer.commit(flags=2)
    assert {code for _, code in codes(verify_store(writer.path))} == {"seal"}


def test_a_summary_that_differs_from_its_records_is_found(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.insert(chain([1, 2]))
    writer.insert(chain([3, 4]))
    writer.commit()
    owner = next(one.owner for one in writer.placed if one.owner)
    owner.root_key ^= 1
    writer.seal()
    owner.root_key ^= 1
    assert codes(verify_store(writer.path)) == {(LOG_1, "summary")}
    writer.placed = [one for one in writer.placed if one.kind in (1, COMMIT)]
    writer.seal()
    assert (LOG_1, "seal") in codes(verify_store(writer.path))


def _checkpointed(path: Path) -> StoreWriter:
    writer = StoreWriter(path)
    writer.new_file()
    base = chain(list(range(100)))
    writer.insert(base)
    writer.insert(base[:70] + chain([3], base[69]))
    writer.commit()
    writer.mark()
    return writer


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"start": 1 << 24 | 200}, "start"),
        ({"commit": 9}, "start"),
        ({"sequence": 2}, "sequence"),
        ({"entries": 9}, "entries"),
        ({"blocks": 9}, "blocks"),
        ({"synced": 1 << 24 | 128}, "entry-behind"),
        ({"synced": 1 << 24 | 160}, "synced"),
        ({"synced": 7 << 24}, "missing"),
        ({"partitions": 1}, "head-length"),
        ({"slots": 1 << 31}, "head-length"),
        ({"namespaces": 9}, "head-length"),
    ],
)
def test_false_heads_are_found(tmp_path: Path, change: dict[str, int], code: str) -> None:
    writer = _checkpointed(tmp_path / "s")
    writer.checkpoint(1)
    assert verify_store(writer.path).faults == []
    writer.checkpoint(1, change=change)
    assert code in {found for _, found in codes(verify_store(writer.path))}


def test_a_head_whose_slots_lack_an_older_file_is_found(tmp_path: Path) -> None:
    writer = _checkpointed(tmp_path / "s")
    writer.seal()
    writer.new_file()
    writer.checkpoint(1)
    assert verify_store(writer.path).faults == []
    writer.commit()
    writer.mark()
    del writer.slots[2]
    writer.checkpoint(1)
    assert (f"{1:016x}.checkpoint", "slot") in codes(verify_store(writer.path))


def test_a_head_of_an_empty_store_starts_with_the_first_commit(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    first = 1 << 24 | 128
    writer.checkpoint(1, (first, 0, 1), change={"synced": first})
    assert verify_store(writer.path).faults == []


def test_false_entries_are_found(tmp_path: Path) -> None:
    writer = _checkpointed(tmp_path / "s")
    owner = next(one for one in writer.live.values() if one.bits)
    kept, owner.bits = owner.bits, 0
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}
    assert verify_store(writer.path, compare=False).faults == []
    owner.bits = kept | 1 << 15
    writer.checkpoint(1)
    assert verify_store(writer.path).faults == []
    owner.dp = 3
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"entry-differs", "state"}
    owner.position += 1
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"entry-lost", "state"}
    writer.live.pop(owner.position - 1)
    writer.checkpoint(1)
    assert {code for _, code in codes(verify_store(writer.path))} == {"state"}


def test_images_out_of_order_are_found(tmp_path: Path) -> None:
    writer = _checkpointed(tmp_path / "s")
    writer.checkpoint(1, depth=0)
    images = tmp_path / "s" / f"{1:016x}.images"
    data = images.read_bytes()
    (count,) = struct.unpack_from("<H", data, 12)
    swapped = data[12:64] + data[80:96] + data[64:80] + data[96 : 64 + 16 * count]
    image = sealed(data[:8], swapped)
    images.write_bytes(image.ljust(4096, b"\0"))
    assert {"image-order", "image-crc"} <= {code for _, code in codes(verify_store(writer.path))}
