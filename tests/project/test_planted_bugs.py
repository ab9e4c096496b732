"""The bugs that are planted to try the fuzzers can still be planted."""

import shutil

import pytest

from fuzz.planted import ROOT, plant
from fuzz.planted_bugs import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_changes_one_place(bug, tmp_path):
    target = tmp_path / bug.path
    target.parent.mkdir(parents=True)
    shutil.copy2(ROOT / bug.path, target)
    plant(bug, tmp_path)
    assert target.read_text() != (ROOT / bug.path).read_text()
    if bug.path.endswith(".py"):
        compile(target.read_text(), bug.path, "exec")


def test_there_are_many_and_none_twice():
    assert len({bug.name for bug in BUGS}) == len({(bug.path, bug.new) for bug in BUGS}) == len(BUGS) >= 15


def test_a_text_that_is_not_there_once_is_an_error(tmp_path):
    (tmp_path / "file").write_text("a b a")
    for old in ("a", "c"):
        with pytest.raises(ValueError, match=r"not once"):
            plant(Bug("name", "file", old, "x"), tmp_path)
