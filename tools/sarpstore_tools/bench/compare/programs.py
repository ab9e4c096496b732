"""Programs in C and C++ that the benchmark compiles when it first needs them.

A binary is kept in the user's cache folder, named after a hash of its sources, flags and the compiler's version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sarpstore_tools.bench.compare.engine import NotAvailableError

COMPILE_SECONDS_MAX = 300


def cache_folder() -> Path:
    """Where compiled programs are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sarpstore"


def compiled(
    name: str, folder: Path, compilers: tuple[str, ...], flags: tuple[str, ...], libraries: tuple[str, ...]
) -> Path:
    """The binary of the sources in `folder`, compiled by the first of `compilers` that is installed.

    Raises:
        NotAvailableError: there is no compiler, or it refuses; the message is its first complaint.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix in {".c", ".cpp", ".h"})
    sources = [str(path) for path in files if path.suffix != ".h"]
    if not sources:
        raise NotAvailableError("its program's sources are not in this installation")
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise NotAvailableError(f"no compiler here ({', '.join(compilers)})")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout  # noqa: S603
    parts = [" ".join((*flags, *libraries)).encode(), *(path.read_bytes() for path in files)]
    digest = hashlib.sha256(version + b"\0".join(parts))
    target = cache_folder() / f"{name}-{digest.hexdigest()[:16]}"
    if not target.exists():
        _compile([compiler, *flags, *sources], libraries, target)
    return target


def _compile(command: list[str], libraries: tuple[str, ...], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / "program"
            done = subprocess.run(  # noqa: S603 (an installed compiler, our own sources)
                [*command, "-o", str(made), *libraries], capture_output=True, timeout=COMPILE_SECONDS_MAX, check=False
            )
            if done.returncode == 0:
                made.replace(target)
                return
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailableError(f"its program cannot be compiled: {error}") from error
    errors = [line for line in done.stderr.decode(errors="replace").splitlines() if "error" in line]
    raise NotAvailableError(f"its program cannot be compiled: {next(iter(errors), f'status {done.returncode}')}")
