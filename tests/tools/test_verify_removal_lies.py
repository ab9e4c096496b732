"""`sarpstore verify` on records of version 1.1 that are lawful, checksums and all, but say something false."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.specreader.store import verify_store
from spec_writer import SEGMENT, StoreWriter, chain
from spec_writer_damage import LOG_1, LOG_2, codes
from spec_writer_removals import CLEAR_HOLDER, COUNT, REMOVE, RETIRE_FILE, Removing, RemovingSarp
from spec_writer_sarp import SarpWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spec_writer import Owner

A, B, C = chain([1, 2, 3]), chain([4, 5]), chain([6])
LONG = chain(list(range(100, 300)))


@pytest.fixture
def writer(tmp_path: Path) -> Removing:
    """Two files: two paths in the first, with a removal of a third and a cleared holder; the second is empty yet."""
    writer = Removing(tmp_path / "s")
    two_files(writer)
    return writer


def two_files(writer: Removing) -> None:
    writer.new_file()
    for ids in (A, B, LONG[:70], C):
        writer.insert(ids)
    writer.insert(A, holder=9)
    writer.commit()
    writer.remove(C)
    writer.clear(9)
    writer.commit()
    writer.seal()
    writer.new_file()


def found(writer: StoreWriter) -> set[str]:
    """The codes of what is found once all that was written is below the synced position."""
    writer.commit()
    writer.mark()
    return {code for _, code in codes(verify_store(writer.path))}


def position_of(writer: Removing, ids: list[bytes]) -> int:
    return writer.owners[0, 0, ids[0]].position


def first(writer: Removing, kind: int) -> int:
    """Where the first record of that type stands in file 1."""
    return {REMOVE: writer.markers[C[0], 0, 0], CLEAR_HOLDER: writer.epochs[9]}[kind]


def swapped(writer: Removing, later: Callable[[], object], earlier: Callable[[], object]) -> None:
    """What came later stands before what came earlier."""
    writer.sequence += 1
    later()
    kept, writer.sequence = writer.sequence, writer.sequence - 2
    earlier()
    writer.sequence = kept


# -- removals


def test_all_that_is_lawful_is_clean(writer: Removing) -> None:
    writer.remove(C, effect=first(writer, REMOVE))
    writer.clear(9, effect=first(writer, CLEAR_HOLDER))
    writer.clear(9, effect=0)
    for ids in (A, B):
        writer.copy(position_of(writer, ids))
    writer.count({A[0]: 2, A[1]: 1})
    writer.retire(1)
    assert found(writer) == set()


def _before_what_was_there(writer: Removing) -> None:
    swapped(writer, lambda: writer.remove([A[1]]), lambda: writer.count({B[0]: 2}))


def _before_an_insertion_that_was_there(writer: Removing) -> None:
    swapped(writer, lambda: writer.remove([A[1]]), lambda: writer.insert(chain([77])))


def _moved_before_what_was_there(writer: Removing) -> None:
    effect = first(writer, REMOVE)
    swapped(writer, lambda: writer.remove(C, effect=effect), lambda: writer.count({B[0]: 2}))


def _other_ids(writer: Removing) -> None:
    writer.remove([A[1]], effect=first(writer, REMOVE))


def _other_holder(writer: Removing) -> None:
    writer.remove(C, holder=9, effect=first(writer, REMOVE))


def _unnamed_holder(writer: Removing) -> None:
    writer.epochs[4] = 0
    writer.insert(C, holder=4)


def _late_holder(writer: Removing) -> None:
    _unnamed_holder(writer)
    writer.clear(4, effect=0)


FALSE_REMOVALS: list[tuple[Callable[[Removing], object], str]] = [
    (_before_what_was_there, "removal"),
    (_before_an_insertion_that_was_there, "removal born"),
    (_moved_before_what_was_there, ""),
    (lambda writer: writer.remove([A[1]], effect=2 << 24 | 999), "effect"),
    (lambda writer: writer.remove([A[1]], effect=2 << 24 | 127), "effect"),
    (lambda writer: writer.clear(0, effect=9 << 24), "effect"),
    (lambda writer: writer.remove([A[1]], effect=0), "effect"),
    (lambda writer: writer.remove([A[1]], effect=position_of(writer, A)), "effect"),
    (lambda writer: writer.remove(C, effect=first(writer, REMOVE) + 1), "effect"),
    (lambda writer: writer.clear(9, effect=first(writer, REMOVE)), "effect"),
    (_other_ids, "effect"),
    (_other_holder, "effect"),
    (lambda writer: writer.clear(0, effect=first(writer, CLEAR_HOLDER)), "effect"),
    (_unnamed_holder, "holder"),
    (_late_holder, "holder"),
    (lambda writer: writer.retire(2), "retired"),
    (lambda writer: writer.retire(7), "retired"),
    (lambda writer: writer.retire(0), "retired"),
    (lambda writer: writer.add(REMOVE, bytes(32), C[0], n=1, flags=2), "copy effect"),
]


@pytest.mark.parametrize(("write", "codes_found"), FALSE_REMOVALS)
def test_false_removals_are_found(writer: Removing, write: Callable[[Removing], object], codes_found: str) -> None:
    write(writer)
    assert found(writer) == set(codes_found.split())


@pytest.mark.parametrize(
    ("kind", "n", "body"),
    [
        (REMOVE, 0, b""),
        (REMOVE, 253, bytes(16)),
        (REMOVE, 2, bytes(16)),
        (CLEAR_HOLDER, 0, bytes(16)),
        (RETIRE_FILE, 0, bytes(16)),
        (COUNT, 0, b""),
        (COUNT, 1, bytes(16)),
        (COUNT, 169, bytes(24)),
    ],
)
def test_records_of_other_lengths_are_damaged(writer: Removing, kind: int, n: int, body: bytes) -> None:
    writer.add(kind, bytes(32), body, n=n)
    assert found(writer) == {"damaged-record", "commit"}


# -- births


@pytest.mark.parametrize(
    ("times", "codes_found"),
    [
        (lambda born, root: (0, root), "born root-born"),
        (lambda born, root: (born - 1, root), "born root-born"),
        (lambda born, root: (1 << 24 | 200, 1 << 24 | 200), "born"),
        (lambda born, root: (born + 64, root + 64), "born"),
        (lambda born, root: (born + 1, root + 1), ""),
        (lambda born, root: (born + 1, root), "root-born"),
        (lambda born, root: (born, 0), "root-born"),
        (lambda born, root: (born, root + 1), "root-born"),
        (lambda born, root: (born, root - 1), "root-born"),
    ],
)
def test_false_births_are_found(
    writer: Removing, times: Callable[[int, int], tuple[int, int]], codes_found: str
) -> None:
    writer.edit_times = times
    writer.insert(chain([7]))
    writer.edit_times = lambda born, root: (born, root)
    writer.insert(chain([8]))
    assert found(writer) == set(codes_found.split())


def test_a_record_is_born_behind_what_was_there_already(writer: Removing) -> None:
    def write(behind: int) -> None:
        writer.edit_times = lambda born, root: (born + behind, root + behind)
        swapped(writer, lambda: writer.insert(chain([behind])), lambda: writer.count({B[0]: 2}))
        writer.commit()

    write(3)  # the record takes three units, with two behind its header
    writer.mark()
    assert verify_store(writer.path).faults == []
    write(0)
    assert found(writer) == {"born"}


@pytest.mark.parametrize("ids", [[*A, *chain([8], A[-1])], [*A[:1], *chain([8], A[0])], LONG])
def test_a_root_other_than_that_of_the_owner_is_found(writer: Removing, ids: list[bytes]) -> None:
    writer.insert(ids)
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []
    writer.edit_times = lambda born, root: (born, root + 1)
    writer.insert([*ids[:-1], *chain([9], ids[-2])])
    assert found(writer) == {"root-born"}


def test_version_1_0_has_a_born_of_its_own_place_alone(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    writer.times = lambda owner: (owner.position + 1, 0)  # type: ignore[method-assign]
    writer.insert(A)
    assert found(writer) == {"born"}


# -- copies


def _copied(writer: Removing, edit: Callable[[Owner], Owner]) -> None:
    writer.edit_copy = edit
    writer.copy(position_of(writer, A))


def _without_a_record(writer: Removing) -> None:
    writer.live[0] = writer.live[position_of(writer, A)]
    _copied(writer, lambda owner: replace(owner, supersedes=0))


def _of_the_same_file(writer: Removing) -> None:
    writer.insert(chain([8, 9]))
    writer.commit()
    writer.copy(position_of(writer, chain([8])))


def _with_other_locations(writer: Removing) -> None:
    add = writer.add
    writer.add = (
        lambda kind, fields, body=b"", *rest, **more: add(  # type: ignore[method-assign]
            kind, fields, body[:-1] + b"!", *rest, **more
        )
    )
    writer.copy(position_of(writer, A))
    writer.add = add  # type: ignore[method-assign]


FALSE_COPIES: list[tuple[Callable[[Removing], object], str]] = [
    (lambda writer: writer.copy(position_of(writer, A)), ""),
    (lambda writer: _copied(writer, lambda owner: replace(owner, ids=owner.ids[:2])), ""),
    (_without_a_record, "copy"),
    (_of_the_same_file, "copy"),
    (_with_other_locations, "copy"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, ids=[*A, *C])), "copy"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, ids=[A[0], C[0]])), "copy"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, born=owner.born + 1)), "copy"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, born=2 << 24 | 128)), "copy born"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, root_born=owner.root_born - 1)), "copy"),
    (lambda writer: _copied(writer, lambda owner: replace(owner, d=1)), "supersedes"),
    (
        lambda writer: _copied(writer, lambda owner: replace(owner, window=1, before=A[0], parent_key=5)),
        "supersedes orphan",
    ),
]


@pytest.mark.parametrize(("write", "codes_found"), FALSE_COPIES)
def test_false_copies_are_found(writer: Removing, write: Callable[[Removing], object], codes_found: str) -> None:
    write(writer)
    assert found(writer) == set(codes_found.split())


def test_a_copys_old_n_is_its_own(tmp_path: Path) -> None:
    writer = RemovingSarp(tmp_path / "s")
    two_files(writer)
    writer.edit_tail = lambda points, old_n: (points, old_n - 1)
    writer.copy(position_of(writer, A))
    assert found(writer) == {"old-n"}


# -- superseding what a removal has cut


@pytest.mark.parametrize("kind", [Removing, RemovingSarp])
def test_a_record_may_supersede_what_was_cut_off_another_and_no_more(tmp_path: Path, kind: type[Removing]) -> None:
    writer = kind(tmp_path / "s")
    two_files(writer)
    writer.remove([LONG[20]])
    writer.insert([*LONG[:20], *chain([1, 2], LONG[19])])
    writer.commit()
    writer.mark()
    assert verify_store(writer.path).faults == []
    owner = writer.owners[0, 0, B[0]]
    writer.cut(owner, 1)  # of which there is no record
    writer.insert([B[0], *chain([1, 2], B[0])])
    assert found(writer) == {"supersedes"}


def test_a_removal_before_or_after_both_explains_nothing(writer: Removing) -> None:
    writer.cut(writer.owners[0, 0, B[0]], 1)
    writer.insert([B[0], *chain([1, 2], B[0])])
    writer.commit()
    writer.remove([B[1]])
    assert found(writer) == {"supersedes"}


# -- versions


def _header(writer: StoreWriter, minor: int, incompatible: int) -> None:
    writer.minor, writer.incompatible = minor, incompatible
    writer.new_file()


@pytest.mark.parametrize(
    ("minor", "incompatible", "codes_found"),
    [(0, 0, ""), (1, 1, ""), (7, 1, ""), (1, 0, "version"), (0, 1, "version"), (1, 2, "header-features header")],
)
def test_the_feature_goes_with_the_version(tmp_path: Path, minor: int, incompatible: int, codes_found: str) -> None:
    writer = StoreWriter(tmp_path / "s")
    _header(writer, minor, incompatible)
    assert {code for _, code in codes(verify_store(writer.path))} == set(codes_found.split())


def test_a_file_without_the_feature_behind_one_with_it_is_found(writer: Removing) -> None:
    writer.minor = writer.incompatible = 0
    writer.new_file()
    assert codes(verify_store(writer.path)) == {(f"{3:016x}.log", "features")}


@pytest.mark.parametrize("kind", [StoreWriter, SarpWriter])
def test_a_store_of_version_1_0_goes_on_as_one_of_1_1(tmp_path: Path, kind: type[StoreWriter]) -> None:
    old = kind(tmp_path / "s")
    old.new_file()
    old.insert(A)
    old.commit()
    old.seal()
    new = (Removing if kind is StoreWriter else RemovingSarp)(tmp_path / "s")
    new.__dict__ |= {name: value for name, value in vars(old).items() if not name.startswith("edit_")}
    new.epochs[0] = 0  # who was there before needs no introduction
    for owner in new.live.values():
        owner.root_born = owner.born
    new.new_file()
    new.insert([*A, *chain([8], A[-1])])
    new.insert(B)
    new.commit()
    new.mark()
    del new.epochs[0]
    new.checkpoint(1)
    assert verify_store(new.path).faults == []
    old.new_file()
    assert (LOG_2, "features") not in codes(verify_store(new.path))


@pytest.mark.parametrize("kind", [REMOVE, CLEAR_HOLDER, RETIRE_FILE, COUNT])
def test_records_of_version_1_1_in_a_file_of_1_0_are_found(tmp_path: Path, kind: int) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    own = writer.next_position(64)
    bodies = {REMOVE: A[0], COUNT: A[0] + bytes(8)}
    fields = struct.pack("<IIQQ", 0, 0, 0, own)
    writer.add(kind, fields, bodies.get(kind, b""), n=1 if kind in bodies else 0)
    assert "features" in found(writer)


def test_a_copy_in_a_file_of_1_0_is_found(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.new_file()
    add = writer.add
    writer.add = lambda kind, *rest, **more: add(  # type: ignore[method-assign]
        kind, *rest, **(more | {"flags": 2} if kind == SEGMENT else more)
    )
    writer.insert(A)
    assert found(writer) == {"features"}
    assert {name for name, _ in codes(verify_store(writer.path))} == {LOG_1}
