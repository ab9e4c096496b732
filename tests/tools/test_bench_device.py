"""The device's limit: by fio, or by our own loop where fio is missing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from sarpstore_tools.bench.compare import device
from sarpstore_tools.bench.compare.engine import NotAvailableError
from sarpstore_tools.bench.compare.programs import compiled

if TYPE_CHECKING:
    from pathlib import Path


def test_without_fio_the_loop_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SECONDS", 0.1)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "fio" else which(name))
    try:
        found = device.device_limit(tmp_path, 4)
    except NotAvailableError as error:
        assert "no direct reads here" in str(error)  # noqa: PT017 - a temporary folder in memory has none
        return
    assert found.depth == 4
    assert "loop in C" in found.how
    assert found.reads_per_second > 0
    assert 0 <= found.p50_us <= found.p99_us


def test_a_program_that_cannot_be_compiled_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "broken.c").write_text("int main(void) { return nothing; }\n")
    with pytest.raises(NotAvailableError, match=r"cannot be compiled: .*nothing"):
        compiled("broken", tmp_path, ("gcc", "cc"), (), ())
    with pytest.raises(NotAvailableError, match=r"no compiler here \(no-such-compiler\)"):
        compiled("broken", tmp_path, ("no-such-compiler",), (), ())


def test_a_compiled_program_is_kept_until_its_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "zero.c"
    source.write_text("int main(void) { return 0; }\n")
    first = compiled("zero", tmp_path, ("gcc", "cc"), (), ())
    assert compiled("zero", tmp_path, ("gcc", "cc"), (), ()) == first
    source.write_text("int main(void) { return 1; }\n")
    assert compiled("zero", tmp_path, ("gcc", "cc"), (), ()) != first
