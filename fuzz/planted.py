"""How long the fuzzers take to find bugs that were planted: one that is not found says what they do not see.

    python -m fuzz.planted [--seconds 120] [--bug NAME]... [--seed N]

Each bug of `fuzz.planted_bugs` is put into a copy of the source, whose kernel is built anew where it is in C; then the
fuzzers run there, side by side, until one of them sees a difference. The exit status is 1 if a bug is not found in
time. The source itself stays as it is.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from fuzz.planted_bugs import BUGS, Bug

ROOT: Final = Path(__file__).resolve().parent.parent
COPIED: Final = ("sarpstore", "kernels", "tests", "fuzz", "tools", "pyproject.toml", "README.md")
FUZZERS: Final = {
    "fuzz.crashes": ("--images", "1000000000"),
    "fuzz.life": ("--runs", "1000000000"),
}
KERNEL_FUZZERS: Final = FUZZERS | {"fuzz.directory": ("--runs", "1000000000")}
"""Two records with one key, such as of two holders, are too rare for those that have whole stores."""
CHUNK_FUZZERS: Final = {"fuzz.crashes": ("--chunks", "--images", "1000000000")}
CONTROLS: Final = (
    Bug("no bug", "README.md", "# sarpstore\n", "# sarpstore\n"),
    Bug("no bug in chunks", "sarpstore/_chunks/__init__.py", '"""Chunks: ', '"""Chunks: '),
)
CONTROL_S: Final = 20.0
SEEN: Final = re.compile(r"run [\d,]+: a difference")
"""What a fuzzer prints as soon as it has one."""


class Found(NamedTuple):
    """Which fuzzer saw the bug, after how many seconds, and in which run."""

    fuzzer: str
    seconds: float
    run: str


def plant(bug: Bug, root: Path) -> None:
    """Put a bug into the source at `root`."""
    path = root / bug.path
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: {bug.path} has the text to be changed {text.count(bug.old)} times, not once")
    path.write_text(text.replace(bug.old, bug.new))


def hunt(bug: Bug, seconds: float, seed: int) -> Found | None:
    """Let the fuzzers loose on a copy with the bug; None if they do not see it in time."""
    with tempfile.TemporaryDirectory(prefix="sarpstore-planted-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
            else:
                shutil.copy2(source, root / name)
        plant(bug, root)
        environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tools'}"}
        if bug.path.startswith("kernels/"):
            command = [sys.executable, "kernels/build_kernel.py"]
            subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
        return _first_to_see(fuzzers_of(bug), root, environment, seconds, seed)


def fuzzers_of(bug: Bug) -> dict[str, tuple[str, ...]]:
    """Those that see what the bug is in."""
    if bug.path.startswith("kernels/"):
        return KERNEL_FUZZERS
    return CHUNK_FUZZERS if bug.path.startswith("sarpstore/_chunks/") else FUZZERS


def _first_to_see(
    fuzzers: dict[str, tuple[str, ...]], root: Path, environment: dict[str, str], seconds: float, seed: int
) -> Found | None:
    lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    began = time.monotonic()
    running = []
    for fuzzer, arguments in fuzzers.items():
        command = [sys.executable, "-u", "-m", fuzzer, "--seed", str(seed), *arguments]
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        threading.Thread(target=_read, args=(fuzzer, process.stdout, lines), daemon=True).start()
        running.append(process)
    try:
        while (left := began + seconds - time.monotonic()) > 0:
            try:
                fuzzer, line = lines.get(timeout=left)
            except queue.Empty:
                return None
            if SEEN.match(line):
                return Found(fuzzer, time.monotonic() - began, line.partition(":")[0])
        return None
    finally:
        for process in running:
            process.kill()
            process.wait()


def _read(fuzzer: str, output: IO[str], lines: queue.SimpleQueue[tuple[str, str]]) -> None:
    for line in output:
        lines.put((fuzzer, line))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.planted", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="for each bug at most (default 120)")
    parser.add_argument("--bug", action="append", default=[], help="whose name has this in it (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="of the fuzzers; without one a random one is taken")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without ending the fuzzers
    bugs = [bug for bug in BUGS if not arguments.bug or any(part in bug.name for part in arguments.bug)]
    if not bugs:
        parser.error("no bug has such a name")
    console = Console(width=110)
    table = Table(title=f"planted bugs, seed {seed}: found within {arguments.seconds:g} s each")
    for name in ("bug", "found by", "in", "after s"):
        table.add_column(name, justify="right" if name == "after s" else "left")
    missed = 0
    if any(hunt(control, CONTROL_S, seed) is not None for control in CONTROLS):
        console.print("the fuzzers see a difference where no bug was planted")
        return 1
    for bug in bugs:
        found = hunt(bug, arguments.seconds, seed)
        missed += found is None
        row = (found.fuzzer, found.run, f"{found.seconds:.1f}") if found else ("NOT FOUND", "", "")
        print(f"{bug.name}: {' '.join(row)}", flush=True)
        table.add_row(bug.name, *row)
    console.print(table)
    console.print(f"{len(bugs) - missed} of {len(bugs)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
