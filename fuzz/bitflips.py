"""Every single-bit flip of small stores, and of a MiB of log pages and of images: none may go unnoticed and matter.

    python -m fuzz.bitflips [--stride 16] [--verify-every 8] [--jobs 2] [--kernel-kib 1024] [--routing sarp]

A flipped store is opened, everything that it ever held is matched, and it is verified. *Detected*: the open or a match
raised a SarpError, damage was counted, or verify reports it. *Harmless*: all answers are those of the whole store.
Anything else is *wrong*, whatever was reported: a location that was never inserted there, or an answer that is another
and nobody says so. `--stride N` takes every Nth bit of the stores; all of them take two hours a routing, and can be
done in pieces: `--shares 0:16` is a quarter of them. The exit status is 1 if a flip was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from life_process import quiet_process
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sarpstore_tools.specreader.store import verify_store

import sarpstore
from fuzz.bitflips_kernel import image_flips, record_flips
from sarpstore import _format as fmt
from sarpstore._files import MemoryFolder, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

OUTCOMES: Final = ("detected by both", "by the engine", "by verify", "harmless", "wrong")
_SHAPES: Final[dict[str, Any]] = {
    "hash": "mmh3",
    "block_tokens": 1,
    "cache_bytes": 1 << 16,
    # Small tables make an open quick.
    "directory_bytes_max": 1 << 20,
    "markers_max": 64,
    "counts_max": 64,
    "holders_max": 8,
    "namespaces_max": 8,
}
_SHARES: Final = 64
"""Pieces of the work, for the progress bar and for processes side by side."""


@dataclass(frozen=True, slots=True)
class Work:
    """A share of a store's flips: every `stride`th bit from `first` on."""

    routing: str
    first: int
    stride: int
    verify_every: int = 1


@dataclass
class Held:
    """A store, the paths that it was given, and what of each is held; a block's address follows from its path."""

    folder: MemoryFolder
    paths: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)


def addresses_of(path: list[int]) -> list[int]:
    """Where the blocks of a path are: no two blocks share an address."""
    out, at = [], 0
    for token in path:
        at = (at * 1_000_003 + token + 1) % (1 << 60)
        out.append(at)
    return out


async def make_store(routing: str) -> Held:
    """A sealed log file, checkpoints, images, removals, counts, a cleared holder: some 35 KiB."""
    held = Held(MemoryFolder())
    runs = ((0, 70, 1), (0, 64, 2), (0, 5, 3), (1000, 66, 4), (2000, 20, 5))
    held.paths = [[*range(begin, begin + n - turn), *[5000 * turn] * turn] for begin, n, turn in runs]
    async with sarpstore.open(held.folder.reopen(), routing=routing, **_SHAPES) as store:
        space, counted = store.namespace("x"), np.full((1, 16), 9, np.uint8)
        for path in held.paths:
            if path is held.paths[3]:
                await store.checkpoint()
            await space.insert(path, _rows(path))
            await store.namespace("y").insert_ids(counted, np.zeros(1, sarpstore.LOCATION), counted=True)
        await space.insert(held.paths[0][:9], _rows(held.paths[0][:9]), holder=7)
        await store.clear_holder(7)
        await space.truncate(held.paths[0], blocks=60)
        await space.truncate(held.paths[4], blocks=7)
    for name in set(held.folder.names()) & {fmt.STATS_NAME, fmt.LOCK_NAME}:
        held.folder.remove(name)
    _, held.answers = await answers(held.folder, held.paths)
    return held


def _rows(path: list[int]) -> Any:
    rows = np.zeros(len(path), sarpstore.LOCATION)
    rows["address"] = addresses_of(path)
    return rows


async def answers(folder: MemoryFolder, paths: list[list[int]]) -> tuple[bool, list[list[int]]]:
    """Whether the engine notices damage, and the addresses that match; none where it refuses."""
    found: list[list[int]] = []
    try:
        async with sarpstore.open(folder.reopen(), read_only=True, **_SHAPES) as store:
            for path in paths:
                match = await store.namespace("x").match(path)
                found.append(match.locations["address"].tolist())
            return store.stats().damaged_records > 0, found
    except sarpstore.SarpError:
        return True, []


def outcome(held: Held, noticed: bool, found: list[list[int]], verified: bool | None) -> str:
    """One of OUTCOMES; `verified` is None where it was not asked."""
    for path, addresses in zip(held.paths, found, strict=False):
        if addresses != addresses_of(path)[: len(addresses)]:
            return "wrong"
    if noticed:
        return "detected by both" if verified else "by the engine"
    return "by verify" if verified else "harmless" if found == held.answers else "wrong"


class Flipper:
    """A store in memory and the same in a folder, where a bit can be flipped and set right again.

    Verify is much the slower of the two: of flips that the engine notices or answers rightly it sees every
    `verify_every`th alone.
    """

    def __init__(self, held: Held, place: Path, verify_every: int) -> None:
        self.held = held
        self._place = place
        self._verify_every = verify_every
        self._contents = {name: held.folder.open(name)._content.now for name in held.folder.names()}
        for name in self._contents:
            (place / name).write_bytes(read_whole(held.folder, name))
        self._clean = self._verify()

    def bits(self) -> list[tuple[str, int]]:
        """(file, number of the bit) of all."""
        return [(name, bit) for name, content in self._contents.items() for bit in range(8 * len(content))]

    def kind(self, name: str, bit: int) -> str:
        """What kind of bytes those are, for the table."""
        suffix = Path(name).suffix[1:]
        return f"log {'header' if bit < 8 * fmt.LOG_HEADER_BYTES else 'records'}" if suffix == "log" else suffix

    async def flip(self, number: int, name: str, bit: int) -> str:
        """The outcome of a flip."""
        content = self._contents[name]
        content[bit // 8] ^= 1 << bit % 8
        try:
            noticed, found = await answers(self.held.folder, self.held.paths)
            asked = number % self._verify_every == 0 or not (noticed or found == self.held.answers)
            verified = self._verify_flipped(name, content) if asked else None
        finally:
            content[bit // 8] ^= 1 << bit % 8
        return outcome(self.held, noticed, found, verified)

    def _verify_flipped(self, name: str, content: bytearray) -> bool:
        """Whether verify finds something that is not in the whole store."""
        path = self._place / name
        whole = path.read_bytes()
        path.write_bytes(content)
        try:
            return bool(self._verify() - self._clean)
        finally:
            path.write_bytes(whole)

    def _verify(self) -> set[Any]:
        report = verify_store(self._place)
        return {(fault.code, fault.file, fault.offset) for fault in report.faults + report.notes}


Counts = dict[str, "Counter[str]"]


async def flip_store(work: Work) -> tuple[Counts, list[str]]:
    """Outcomes by what kind of bytes was flipped, and what was wrong."""
    held = await make_store(work.routing)
    counts: Counts = {}
    wrong = []
    memory = Path("/dev/shm")  # much faster, where there is one
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        flipper = Flipper(held, Path(place), work.verify_every)
        for number, (name, bit) in enumerate(flipper.bits()[work.first :: work.stride]):
            got = await flipper.flip(number, name, bit)
            counts.setdefault(flipper.kind(name, bit), Counter())[got] += 1
            if got == "wrong":
                wrong.append(f"wrong: {work.routing}, {name}, byte {bit // 8}, bit {bit % 8}")
    return counts, wrong


def run_work(work: Work) -> tuple[Counts, list[str]]:
    """A share of the flips, in a process of its own, and in it without threads: they would take most of the time."""
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL)
    with quiet_process(Random(work.routing)) as process:
        return process.runner.run(flip_store(work))


def flip_all(routing: str, arguments: argparse.Namespace, progress: Progress) -> tuple[Counts, list[str]]:
    """The shares asked for, some processes at once."""
    stride = arguments.stride * _SHARES
    works = [Work(routing, i * arguments.stride, stride, arguments.verify_every) for i in arguments.shares]
    counts: Counts = {}
    wrong: list[str] = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for own, found in progress.track(
            pool.map(run_work, works), total=len(works), description=f"stores of {routing}"
        ):
            for kind, counter in own.items():
                counts.setdefault(kind, Counter()).update(counter)
            wrong += found
    return counts, wrong


def _shares(text: str) -> range:
    first, _, end = text.partition(":")
    shares = range(int(first), int(end))
    if not 0 <= shares.start < shares.stop <= _SHARES:
        raise argparse.ArgumentTypeError(f"{text!r} is no part of 0:{_SHARES}")
    return shares


def shown(title: str, counts: dict[str, Counter[str]], outcomes: Iterable[str]) -> Table:
    table = Table("bytes of", title=title)
    for name in ("flips", *outcomes):
        table.add_column(name, justify="right")
    for kind, own in sorted(counts.items()):
        table.add_row(kind, f"{own.total():,}", *(f"{own[name]:,}" for name in outcomes))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.bitflips", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stride", type=int, default=1, help="every so manieth bit of the stores (default 1: all)")
    parser.add_argument("--kernel-kib", type=int, default=1024, help="of pages and of images each (default 1,024)")
    parser.add_argument("--verify-every", type=int, default=1, help="verify only every so manieth (default 1: all)")
    parser.add_argument("--shares", type=_shares, default=range(_SHARES), help=f"FIRST:END of {_SHARES} (default all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (default 1)")
    parser.add_argument("--routing", choices=fmt.ROUTINGS, default=None, help="of the stores (default: both in turn)")
    arguments = parser.parse_args()
    logging.getLogger("sarpstore").setLevel(logging.CRITICAL)
    console, wrong = Console(), 0
    with Progress(console=Console(stderr=True)) as progress:
        kernel = {
            "log pages": asyncio.run(record_flips(arguments.kernel_kib, progress)),
            "partition images": image_flips(arguments.kernel_kib, progress),
        }
        outcomes = ("detected", "harmless", "wrong")
        console.print(shown("flips before the kernel's validators", kernel, outcomes))
        wrong += sum(own["wrong"] for own in kernel.values())
        for routing in [arguments.routing] if arguments.routing else fmt.ROUTINGS:
            counts, found = flip_all(routing, arguments, progress)
            console.print(shown(f"flips of a whole store, {routing}", counts, OUTCOMES))
            for line in found:
                console.print(line)
            wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
