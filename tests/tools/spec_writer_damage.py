"""What the tests of `sarpstore verify` share: names of files, damage, and the codes of what was found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sarpstore_tools.specreader.store import Report
    from spec_writer import Built

LOG_1, LOG_2, LOG_3 = (f"{number:016x}.log" for number in (1, 2, 3))
HEAD_1, HEAD_2 = (f"{number:016x}.checkpoint" for number in (1, 2))
IMAGES_2 = f"{2:016x}.images"


def copied(built: Built, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.path, tmp_path / "copy"))


def codes(report: Report) -> set[tuple[str, str]]:
    return {(fault.file, fault.code) for fault in report.faults}


def alter(path: Path, offset: int, mask: int = 0x40) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)
