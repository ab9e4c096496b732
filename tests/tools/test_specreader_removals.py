"""The specification's reader on removals: what was removed, and what that leaves (removal.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sarpstore_tools.specreader.accept import accept
from sarpstore_tools.specreader.faults import Faults
from sarpstore_tools.specreader.files import close_logs, open_logs
from sarpstore_tools.specreader.folder import list_folder
from sarpstore_tools.specreader.points import OFFSETS, cut_filters
from sarpstore_tools.specreader.removed import Removed
from spec_writer import chain
from spec_writer_removals import Removing, build_removed_store
from spec_writer_sarp import filter_of

if TYPE_CHECKING:
    from pathlib import Path

BASE = chain(list(range(150)))


def removed_of(path: Path) -> Removed:
    files = open_logs(list_folder(path), Faults())
    try:
        return Removed(accept(files, [], Faults()))
    finally:
        close_logs(files)


def held(removed: Removed) -> dict[int, int]:
    """Positions of what is alive, and how many blocks are left of it."""
    alive = removed.left > removed.segments["d"]
    current = alive & ~np.isin(removed.segments["position"], removed.segments["supersedes"])
    left = removed.left[current].tolist()
    return dict(zip(removed.segments["position"][current].tolist(), left, strict=True))


def test_the_state_is_what_the_writer_holds(tmp_path: Path) -> None:
    writer = build_removed_store(tmp_path / "s")
    removed = removed_of(writer.path)
    markers = {(one, namespace, holder): effects[-1] for (one, holder, namespace), effects in removed.removals.items()}
    # That of base[100] and the count are of files that are gone, or of what was cleared.
    assert markers == writer.markers
    assert removed.epochs == writer.epochs
    assert held(removed) == {one.position: len(one.ids) for one in writer.live.values()}
    assert removed.blocks == sum(len(one.ids) - one.d for one in writer.live.values())


@pytest.fixture
def writer(tmp_path: Path) -> Removing:
    writer = Removing(tmp_path / "s")
    writer.new_file()
    return writer


def test_a_later_marker_holds_and_an_earlier_epoch_does_not(writer: Removing) -> None:
    writer.insert(BASE[:5])
    effects = [writer.remove([BASE[2]]), writer.remove([BASE[2]])]
    cleared = writer.clear(0)
    writer.clear(0, effect=cleared - 1)
    writer.commit()
    removed = removed_of(writer.path)
    assert removed.removals == {(BASE[2], 0, 0): effects}
    assert removed.epochs == {0: cleared}


def test_clearing_forgets_the_counts_of_the_holder(writer: Removing) -> None:
    writer.count({BASE[0]: 5}, holder=1)
    writer.count({BASE[0]: 6}, holder=2)
    cleared = writer.clear(1)
    writer.count({BASE[1]: 7}, holder=1)
    writer.clear(1, effect=cleared)
    writer.commit()
    assert removed_of(writer.path).counts == {(BASE[0], 2, 0): 6, (BASE[1], 1, 0): 7}


def test_a_removal_is_of_one_holder_and_namespace(writer: Removing) -> None:
    llama = writer.name("llama")
    for namespace, holder in ((0, 0), (llama, 0), (0, 1)):
        writer.insert(BASE[:5], namespace, holder)
    writer.remove([BASE[2]], llama)
    writer.commit()
    assert sorted(held(removed_of(writer.path)).values()) == [2, 5, 5]


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_left_is_what_a_plain_model_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    writer = Removing(tmp_path_factory.mktemp("model") / "s")
    writer.new_file()
    for _ in range(data.draw(st.integers(1, 8))):
        length = data.draw(st.integers(1, 140))
        path = BASE[:length] + chain([data.draw(st.integers(900, 902))], BASE[length - 1])
        holder = data.draw(st.integers(0, 1))
        writer.insert(path, holder=holder)
        if data.draw(st.booleans()):
            writer.remove([data.draw(st.sampled_from(path))], holder=holder)
        if data.draw(st.integers(0, 5)) == 0:
            writer.clear(holder)
        writer.commit()
    assert held(removed_of(writer.path)) == {one.position: len(one.ids) for one in writer.live.values()}


@given(n=st.integers(1, 64), cut=st.integers(1, 64))
def test_a_cut_filter_is_that_of_the_blocks_that_are_left(n: int, cut: int) -> None:
    secret, points = bytes(range(16)), np.arange(8)
    whole = np.array([filter_of(secret, BASE[:n], point) for point in points], dtype=np.uint64)
    left = cut_filters(whole, points, np.full(8, min(n, cut), dtype=np.uint8))
    assert left.tolist() == [filter_of(secret, BASE[: min(n, cut)], point) for point in range(len(OFFSETS))]
