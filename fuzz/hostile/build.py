"""Compiles the kernel and the targets with clang: with libFuzzer and sanitizers, or with source coverage."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
TARGETS: Final = sorted(path.stem for path in (HERE / "targets").glob("*.c"))
WORK: Final = ROOT / "build" / "hostile"
"""What a run leaves behind: objects, corpora that have grown, crashing inputs."""

INSTALL: Final = "apt-get install clang libclang-rt-14-dev llvm-14 (14 is the version of your clang)"
_COMMON: Final = ("-std=c11", "-g", "-Wall", "-Wextra", "-fno-strict-aliasing", "-fno-omit-frame-pointer")
# The shared headers have more than each target needs.
_TARGET: Final = ("-Wno-unused-function", "-Wno-unused-variable")
_FLAGS: Final = {
    "fuzz": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "coverage": ("-O1", "-fprofile-instr-generate", "-fcoverage-mapping"),
}


class ToolsMissingError(Exception):
    """There is no clang, or it cannot build a fuzzer."""


def tool(name: str) -> str:
    """The path of an LLVM tool, of the highest version where only versioned names are there. ToolsMissingError."""
    found = shutil.which(name)
    versions = [shutil.which(f"{name}-{version}") for version in range(30, 10, -1)]
    path = found or next((one for one in versions if one), None)
    if path is None:
        raise ToolsMissingError(f"{name} is not installed. On Debian and Ubuntu: {INSTALL}")
    return path


def build(kind: str, targets: list[str]) -> dict[str, Path]:
    """The targets' programs of a kind: `fuzz` or `coverage`. What is newer than its sources is kept."""
    folder = WORK / kind
    folder.mkdir(parents=True, exist_ok=True)
    kernel = [_object(kind, source) for source in sorted((ROOT / "kernels").glob("*.c"))]
    programs = {}
    for target in targets:
        program = folder / target
        objects = [*kernel, _object(kind, HERE / "targets" / f"{target}.c")]
        if not _is_newer(program, objects):
            _clang(*_FLAGS[kind], "-fsanitize=fuzzer", *map(str, objects), "-o", str(program))
        programs[target] = program
    return programs


def _object(kind: str, source: Path) -> Path:
    of_target = source.parent.name == "targets"
    made = WORK / kind / f"{'target_' if of_target else ''}{source.stem}.o"
    headers = [*(ROOT / "kernels").glob("*.h"), *(HERE / "targets").glob("*.h")]
    if not _is_newer(made, [source, *headers]):
        own = _TARGET if of_target else ()
        flags = (*_COMMON, *_FLAGS[kind], *own, "-fsanitize=fuzzer-no-link", f"-I{ROOT / 'kernels'}")
        _clang(*flags, "-c", str(source), "-o", str(made))
    return made


def _is_newer(made: Path, sources: list[Path]) -> bool:
    if not made.exists():
        return False
    return made.stat().st_mtime_ns > max(source.stat().st_mtime_ns for source in sources)


def _clang(*arguments: str) -> None:
    done = subprocess.run((tool("clang"), *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        hint = f"\nIf a file of the sanitizers or of libFuzzer is missing: {INSTALL}"
        raise ToolsMissingError(f"clang {' '.join(arguments)}\n{done.stderr}{hint}")
