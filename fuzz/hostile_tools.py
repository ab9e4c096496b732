"""Whole hostile stores before `sarpstore dump`, `sarpstore verify` and the engines' opens, with atheris.

    pip install '.[fuzz]'
    python -m fuzz.hostile_tools --seconds 600 [--target verify]

Small stores of both routings, and chunk stores, are mutated with an eye to their structure and mended
(fuzz/hostile/stores.py). Whatever they say: dump and verify end with findings or their own clean error; opening,
matching and inserting, loading and putting end with answers or a SarpError, and what is loaded is what was put; in
bounded time and memory. What does not is kept under build/hostile/crashes, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from chunk_helpers import check_loaded, chunks_in, document, fill, prompt, put_all
from click.testing import CliRunner
from sarpstore_tools.dump import dump
from sarpstore_tools.verify import verify

import sarpstore
from fuzz.bitflips import make_store
from fuzz.hostile.build import WORK
from fuzz.hostile.corpus import small_store
from fuzz.hostile.stores import Store, mutated
from sarpstore import _format as fmt
from sarpstore._chunks.recover import holds_chunks
from sarpstore._files import MemoryFolder, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS: Final = ("dump", "verify", "open")
_CALL_SECONDS: Final = 20
_MEMORY_MB_MAX: Final = 2048
_INPUT_BYTES_MAX: Final = 256
_OPTIONS: Final[dict[str, Any]] = {"directory_bytes_max": 1 << 22, "cache_bytes": 1 << 16, "io": "threads"}


async def seed_stores() -> list[dict[str, bytes]]:
    """What is mutated: small stores of both routings, with all that a store can have."""
    folders = []
    for routing in fmt.ROUTINGS:
        folders += [(await make_store(routing)).folder, await small_store(routing, Random(routing), inserts=9)]
    folders += await small_chunk_stores()
    stores = [{name: read_whole(folder, name) for name in folder.names()} for folder in folders]
    return [{name: data for name, data in store.items() if name != fmt.LOCK_NAME} for store in stores]


async def small_chunk_stores() -> list[MemoryFolder]:
    """One that was closed, and one with entries behind its table."""
    folder = MemoryFolder()
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(3), 12)
    closed = folder.clone()
    async with chunks_in(folder) as chunks:
        await fill(chunks, range(3, 6), 12)
        killed = folder.clone()
    return [closed, killed]


# --- what is fuzzed


def run_tool(command: str, store: Store) -> None:
    """`sarpstore COMMAND` on the store; AssertionError where it ends in another way than it says."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as place:
        for name, content in store.items():
            (Path(place) / name).write_bytes(content)
        tool, options = {"dump": (dump, ["--json", "--checkpoints", "--entries", "--ids"]), "verify": (verify, [])}[
            command
        ]
        for arguments in ([place, *options], [place, *options[1:]]):
            result = CliRunner().invoke(tool, arguments)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert result.exit_code in (0, 1, 2), result.exit_code


def _folder_of(store: Store) -> MemoryFolder:
    folder = MemoryFolder()
    for name, content in store.items():
        file = folder.create(name)
        file.write(0, content)
        file.sync()
    folder.sync()
    return folder


async def open_any(store: Store) -> None:
    """Open it as what its files say that it is."""
    await (open_chunk_store(store) if holds_chunks(list(store)) else open_store(store))


async def open_store(store: Store) -> None:
    """Open, match, insert, compact, close; a SarpError may end any of it."""
    folder = _folder_of(store)
    for read_only in (True, False):
        # Summaries are relied on in large files alone.
        sys.modules["sarpstore._recovery.recover"]._SUMMARY_PAGES_MIN = 1 if read_only else 64
        with contextlib.suppress(sarpstore.SarpError):
            async with (
                asyncio.timeout(_CALL_SECONDS),
                sarpstore.open(folder, read_only=read_only, **_OPTIONS) as opened,
            ):
                await _use(opened, read_only)
        folder = folder.clone()


async def open_chunk_store(store: Store) -> None:
    """Open, plan, load, put, close; a SarpError may end any of it. AssertionError: what is loaded was never put."""
    folder = _folder_of(store)
    for _ in range(2):
        with contextlib.suppress(sarpstore.SarpError):
            async with asyncio.timeout(_CALL_SECONDS), chunks_in(folder) as chunks:
                for asked in (prompt(*(document(number, 12) for number in range(6))), prompt(document(9, 200))):
                    with await chunks.plan(asked) as plan:
                        check_loaded(plan, await chunks.load(plan))
                        await put_all(chunks, plan)
        folder = folder.clone()


async def _use(store: sarpstore.Store, read_only: bool) -> None:
    space = store.namespace("x")
    for path in (range(70), range(1000, 1066), range(5)):
        match = await space.match(path)
        assert len(match.locations) == match.blocks <= len(path)
    if read_only:
        return
    dtype = match.locations.dtype
    await space.insert(range(40, 60), np.zeros(20, dtype))
    await space.truncate(range(64), blocks=3)
    await store.sync()
    await store.checkpoint()
    await store.compact()


# --- one process with atheris


def _fuzz(target: str, seconds: int) -> None:
    import atheris

    prefix = "sarpstore." if target == "open" else "sarpstore_tools."
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix):
            _instrument(atheris, module)
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL)
    stores = asyncio.run(seed_stores())
    one: Callable[[Store], None] = (
        (lambda store: asyncio.run(open_any(store))) if target == "open" else lambda store: run_tool(target, store)
    )

    def test(data: bytes) -> None:
        if data:
            one(mutated(stores[data[0] % len(stores)], data[1:]))

    crashes, corpus = WORK / "crashes", WORK / "corpus" / f"tools-{target}"
    for folder in (crashes, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": _INPUT_BYTES_MAX,
        "len_control": 0,
        "timeout": _CALL_SECONDS,
        "rss_limit_mb": _MEMORY_MB_MAX,
        "print_final_stats": 1,
        "artifact_prefix": f"{crashes}/tools-{target}-",
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(corpus)], test)
    atheris.Fuzz()


def _instrument(atheris: Any, module: Any) -> None:
    """Has the functions of a loaded module, and of its classes, tell the fuzzer where they go."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        functions = vars(value).values() if isinstance(value, type) else (value,)
        for function in functions:
            if isinstance(function, FunctionType):
                atheris.instrument_func(function)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.hostile_tools", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="of fuzzing, shared by the targets (default 600)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    targets = arguments.target or list(TARGETS)
    if arguments.worker:
        _fuzz(targets[0], arguments.seconds)
        return 0
    try:
        import atheris as _  # noqa: F401 - whether it is there
    except ImportError:
        print("python -m fuzz.hostile_tools: atheris is not installed: pip install '.[fuzz]'", file=sys.stderr)
        return 2
    failed = 0
    for target in targets:
        share = str(max(1, arguments.seconds // len(targets)))
        command = [sys.executable, "-m", "fuzz.hostile_tools", "--worker", "--target", target, "--seconds", share]
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
