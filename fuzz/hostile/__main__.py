"""Coverage-guided fuzzing, with clang's libFuzzer and sanitizers, of every kernel function that sees bytes from disk.

    python -m fuzz.hostile --seconds 600 [--target match] [--jobs 2] [--coverage]
    python -m fuzz.hostile --executions 20000 --seed 1    # the same inputs each time, in a fresh clone

The targets (fuzz/hostile/targets/) begin with seeds that were made from real stores (fuzz/hostile/corpus/), mend the
checksums of what was mutated, or nothing would get past them, and also check that what the kernel answers and writes
is right. What the corpora grow to is kept under build/hostile/ and gone on with. A crash, a hang or a false answer ends
its target; the input is kept, its path is printed, and the exit status is 1. `--coverage` then shows how much of each
source file the corpora reach.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fuzz.hostile import build, coverage
from fuzz.hostile.corpus import folder_of

if TYPE_CHECKING:
    from pathlib import Path

_INPUT_BYTES_MAX = 40_000
_HANG_SECONDS = 20
_MEMORY_MB_MAX = 1024
_TAIL_LINES = 40


@dataclass(slots=True)
class Result:
    """How a target's run ended."""

    target: str
    executions: int = 0
    per_second: int = 0
    edges: int = 0
    corpus: int = 0
    crashes: list[Path] = field(default_factory=list)
    says: str = ""


def corpora(target: str) -> list[Path]:
    """Where a target's inputs are: what was found, which comes first since libFuzzer adds to it, and the seeds."""
    found = build.WORK / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    return [found, folder_of(target)]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a target is fuzzed: seconds, or executions where they are not 0."""

    seconds: int
    executions: int
    seed: int


def command_of(program: Path, target: str, effort: Effort, crashes: Path) -> list[str]:
    """libFuzzer's command line."""
    options = {
        "max_total_time": 0 if effort.executions else effort.seconds,
        "runs": effort.executions or -1,
        "max_len": _INPUT_BYTES_MAX,
        "len_control": 0,
        "timeout": _HANG_SECONDS,
        "rss_limit_mb": _MEMORY_MB_MAX,
        "print_final_stats": 1,
        "artifact_prefix": f"{crashes}/{target}-",
        "reload": 0,  # nobody else adds to the corpus, and when would be chance
        "seed": effort.seed,
    }
    own = [str(program), *(f"-{name}={value}" for name, value in options.items()), *map(str, corpora(target))]
    return [*at_fixed_addresses(), *own] if effort.executions else own


def run(program: Path, target: str, effort: Effort) -> Result:
    """Fuzz one target."""
    crashes = build.WORK / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    before = set(crashes.glob(f"{target}-*"))
    command = command_of(program, target, effort, crashes)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    text = done.stderr.decode(errors="replace")
    found = sorted(set(crashes.glob(f"{target}-*")) - before)
    result = Result(target, crashes=[path for path in found if _happens_again(program, path)])
    result.executions = _last(r"stat::number_of_executed_units: +(\d+)", text) or _last(r"^#(\d+)", text)
    result.per_second = _last(r"stat::average_exec_per_sec: +(\d+)", text) or result.executions // max(
        1, effort.seconds
    )
    result.edges, result.corpus = _last(r" cov: (\d+)", text), _last(r" corp: (\d+)", text)
    if done.returncode and (result.crashes or not found):
        lines = [line for line in text.splitlines() if not line.startswith(("#", "INFO:", "stat::", "0x", "\\"))]
        result.says = "\n".join(lines[-_TAIL_LINES:])
    return result


@cache
def at_fixed_addresses() -> tuple[str, ...]:
    """What a command begins with so that its inputs are the same each time: libFuzzer's choices go by addresses, too.

    Nothing where that is not allowed, as in some containers.
    """
    prefix = ("setarch", "-R")
    if shutil.which(prefix[0]) is None:
        return ()
    allowed = subprocess.run((*prefix, "true"), capture_output=True, check=False).returncode == 0
    return prefix if allowed else ()


def _happens_again(program: Path, path: Path) -> bool:
    """Whether a time that ran out was the target's fault. Where the machine stood still, the input is not kept."""
    if "-timeout-" not in path.name:
        return True
    command = (str(program), f"-timeout={_HANG_SECONDS}", str(path))
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return True
    path.unlink()
    return False


def _last(pattern: str, text: str) -> int:
    found = re.findall(pattern, text, re.MULTILINE)
    return int(found[-1]) if found else 0


def shown(results: list[Result]) -> Table:
    table = Table(title="hostile bytes")
    for name in ("target", "executions", "executions/s", "inputs", "edges", "crashes"):
        table.add_column(name, justify="left" if name == "target" else "right")
    for one in results:
        numbers = (one.executions, one.per_second, one.corpus, one.edges)
        crashes = len(one.crashes) or int(bool(one.says))
        table.add_row(one.target, *(f"{number:,}" for number in numbers), str(crashes))
    table.add_row("together", f"{sum(one.executions for one in results):,}", style="bold")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="of fuzzing, shared by the targets (default 600)")
    parser.add_argument("--executions", type=int, default=0, help="of each target, in place of --seconds")
    parser.add_argument("--target", choices=build.TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at once (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0, the default: a new one each time")
    parser.add_argument("--coverage", action="store_true", help="show what of each source file the corpora reach")
    arguments = parser.parse_args()
    targets = arguments.target or build.TARGETS
    console = Console()
    try:
        programs = build.build("fuzz", targets)
        share = max(1, arguments.seconds * arguments.jobs // len(targets))
        effort = Effort(share, arguments.executions, arguments.seed)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(lambda t: run(programs[t], t, effort), targets))
        console.print(shown(results))
        if arguments.coverage:
            console.print(coverage.measured({target: corpora(target) for target in targets}))
    except build.ToolsMissingError as error:
        console.print(f"python -m fuzz.hostile: {error}", markup=False, highlight=False)
        return 2
    for one in results:
        if one.says:
            console.print(one.says, markup=False, highlight=False)
        for path in one.crashes:
            console.print(f"{one.target}: the input is {path}", markup=False, highlight=False, soft_wrap=True)
    return 1 if any(one.says or one.crashes for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
