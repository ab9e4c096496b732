"""What of the kernel's source files the corpora reach, by clang's source-based coverage."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fuzz.hostile import build

if TYPE_CHECKING:
    from collections.abc import Mapping

# The I/O, hashing and CPU files see no bytes of the store's files.
_OTHER_FILES = ("cpu.c", "crc32c.c", "hash.c", "murmur3.c", "pages.c", "reads.c", "reads_run.c", "sha256.c", "uring.c")


def measured(corpora: Mapping[str, list[Path]]) -> Table:
    """Run each target on its corpus once; a table by source file. ToolsMissingError."""
    programs = build.build("coverage", list(corpora))
    profiles = [_profile(programs[target], target, folders) for target, folders in corpora.items()]
    merged = build.WORK / "coverage" / "all.profdata"
    _run(build.tool("llvm-profdata"), "merge", "-sparse", *map(str, profiles), "-o", str(merged))
    first, *others = programs.values()
    objects = [argument for program in others for argument in ("-object", str(program))]
    said = _run(build.tool("llvm-cov"), "export", "-summary-only", f"-instr-profile={merged}", str(first), *objects)
    return _table(json.loads(said)["data"][0]["files"])


def _profile(program: Path, target: str, folders: list[Path]) -> Path:
    path = build.WORK / "coverage" / f"{target}.profraw"
    environment = {**os.environ, "LLVM_PROFILE_FILE": str(path)}
    command = (str(program), "-runs=0", *map(str, folders))
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True)
    return path


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _table(files: list[dict[str, Any]]) -> Table:
    table = Table(title="coverage of the kernel's files")
    for name in ("file", "functions", "lines", "regions", "branches"):
        table.add_column(name, justify="left" if name == "file" else "right")
    for one in sorted(files, key=lambda file: str(file["filename"])):
        path, summary = Path(one["filename"]), one["summary"]
        if path.parent != build.ROOT / "kernels" or path.name in _OTHER_FILES or path.suffix != ".c":
            continue
        kinds = [summary[kind] for kind in ("functions", "lines", "regions", "branches")]
        table.add_row(path.name, *(f"{kind['percent']:.1f} %" if kind["count"] else "" for kind in kinds))
    return table
