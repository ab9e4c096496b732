"""Stores that were made by the first version of the format: later versions must go on reading them.

How they were made, make_golden.py says.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from golden_queries import answers, verified

STORES = sorted(path.parent for path in Path(__file__).parent.glob("v*/*/expected.json"))


@pytest.fixture(params=STORES, ids=lambda path: f"{path.parent.name} {path.name}")
def golden(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_stores() -> None:
    assert len(STORES) >= 8


async def test_the_engine_gives_the_answers_that_it_gave(golden: Path, tmp_path: Path) -> None:
    expected = json.loads((golden / "expected.json").read_text())["answers"]
    copy = Path(shutil.copytree(golden / "store", tmp_path / "copy"))
    assert await answers(copy) == expected
    # And so it does once it has written a checkpoint, and a file, of its own.
    assert await answers(copy) == expected


def test_verify_finds_what_it_found(golden: Path) -> None:
    assert verified(golden / "store") == json.loads((golden / "expected.json").read_text())["verify"]
