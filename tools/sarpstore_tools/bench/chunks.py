"""`sarpstore bench chunks`: payloads loaded beside plain reads of the device, and what a full store writes."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

import sarpstore
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.folders import store_option, work_folder
from sarpstore_tools.bench.machine import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOAD_TARGET: Final = 0.85
AMPLIFICATION_TARGET: Final = 1.1
LAYOUT: Final = sarpstore.KVLayout(layers=36, kv_heads=8, head_dim=64, dtype="bfloat16", rope=sarpstore.Rope())
"""gpt-oss-120b's, its sliding windows apart: 73,728 bytes a token."""
END: Final = 2
FULL_BYTES: Final = 1 << 30
"""Bound of the store that is filled."""
_PIECE: Final = 1 << 20
_READERS: Final = 8
_QUESTION: Final = [7, 8, 9]


@click.command("chunks", short_help="Chunk payloads loaded, beside the device; a full store's writes.")
@store_option
@click.option(
    "--mib", type=click.IntRange(1, 1024), multiple=True, default=(8, 64), show_default=True, help="Of a chunk."
)
@click.option("--total-mib", type=click.IntRange(64), default=1024, show_default=True, help="Loaded at once.")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="Measurements a figure.")
@click.option(
    "--turnover", type=click.IntRange(2), default=4, show_default=True, help="Times its bound put to the full store."
)
@report_options
@click.pass_context
def chunks_command(
    context: click.Context,
    store: Path | None,
    mib: tuple[int, ...],
    total_mib: int,
    repeats: int,
    turnover: int,
    json_file: Any,
    *,
    targets: bool,
) -> None:
    """Time `load` of whole prompts beside direct reads of as many bytes of the same files, in turns.

    Loading reads, verifies every checksum, rotates the keys and copies the values into the prompt's KV. Then a store is
    filled several times over, and its writes are counted.
    """
    figures: list[Figure] = []
    failures: list[str] = []
    with work_folder(store) as folder:
        for each in mib:
            figures += asyncio.run(_loads(folder / f"chunks-{each}", each, total_mib, repeats, failures))
        figures += asyncio.run(_full(folder / "chunks-full", turnover, failures))
        machine = this_machine(folder)
    method = [
        (
            f"load: {total_mib} MiB of payloads in one prompt, {repeats} measurements, each after direct reads of as "
            f"many bytes of the store's files, {_READERS} threads, 1 MiB a read; the share of their bandwidth"
        ),
        f"full store: chunks of 1 to 8 MiB, each asked for twice, {turnover} times the bound in all",
    ]
    report = Report(command="bench chunks", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)


def _document(number: int, tokens: int) -> list[int]:
    random = np.random.default_rng(number)
    return [*random.integers(10, 100_000, tokens - 1).tolist(), END]


async def _put(chunks: sarpstore.Chunks, documents: list[list[int]], kv: Callable[[int], np.ndarray[Any, Any]]) -> int:
    """Put what is not there; how many were stored."""
    stored = 0
    with await chunks.plan([token for each in documents for token in each] + _QUESTION) as plan:
        for span in plan.misses[:-1]:
            values = kv(span.end - span.begin)
            stored += await chunks.put(span, values, values)
    return stored


def _some_kv() -> Callable[[int], np.ndarray[Any, Any]]:
    """Keys or values of so many tokens; what they are does not matter."""
    random = np.random.default_rng(0).integers(0, 1 << 14, 1 << 20, np.uint16)

    def kv(tokens: int) -> np.ndarray[Any, Any]:
        shape = (LAYOUT.layers, LAYOUT.kv_heads, tokens, LAYOUT.head_dim)
        return np.resize(random, shape)

    return kv


def _open(folder: Path, bytes_max: int, **more: Any) -> Any:
    return sarpstore.open_chunks(
        folder, layout=LAYOUT, fingerprint=b"bench", delimiters=(END,), bytes_max=bytes_max, **more
    )


async def _loads(folder: Path, mib: int, total_mib: int, repeats: int, failures: list[str]) -> list[Figure]:
    tokens, count = (mib << 20) // LAYOUT.token_bytes, max(1, total_mib // mib)
    documents = [_document(number, tokens) for number in range(count)]
    shares, rates = [], []
    async with _open(folder, 4 * (total_mib << 20) + (2 << 30)) as chunks:
        await _put(chunks, documents, _some_kv())
        out = np.zeros(LAYOUT.shape(tokens * count + len(_QUESTION)), LAYOUT.numpy_dtype)
        order = np.random.default_rng(1)
        for _ in range(repeats + 1):
            device = await asyncio.to_thread(_device_rate, folder, count * tokens * LAYOUT.token_bytes)
            some = [documents[i] for i in order.permutation(count)]
            with await chunks.plan([token for each in some for token in each] + _QUESTION) as plan:
                began = time.perf_counter()
                await chunks.load(plan, out)
                rate = sum(span.bytes for span in plan.hits) / (time.perf_counter() - began)
                if len(plan.hits) != count:
                    failures.append(f"{mib} MiB: {count - len(plan.hits)} of {count} chunks did not hit")
            shares.append(rate / device)
            rates.append(rate / 1e9)
    note = f"{np.median(rates[1:]):.2f} GB/s; {count} chunks of {tokens} tokens"
    return [
        measured(
            f"load, chunks of {mib} MiB",
            "of the device",
            shares[1:],
            target=LOAD_TARGET,
            more_is_better=True,
            note=note,
        )
    ]


def _device_rate(folder: Path, size: int) -> float:
    """Bytes a second of direct reads of the regions' first `size` bytes."""
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in sorted(folder.glob("*.region"))]
    try:
        pieces = list(_pieces(descriptors, size))
        buffers = [mmap.mmap(-1, _PIECE) for _ in range(_READERS)]
        began = time.perf_counter()
        with ThreadPoolExecutor(_READERS) as pool:
            read = sum(pool.map(_read_all, buffers, [pieces[i::_READERS] for i in range(_READERS)]))
        return read / (time.perf_counter() - began)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _pieces(descriptors: list[int], size: int) -> Iterator[tuple[int, int]]:
    for descriptor in descriptors:
        for offset in range(0, min(size, os.fstat(descriptor).st_size // _PIECE * _PIECE), _PIECE):
            yield descriptor, offset
        size -= os.fstat(descriptor).st_size
        if size <= 0:
            return


def _read_all(buffer: mmap.mmap, pieces: list[tuple[int, int]]) -> int:
    return sum(os.preadv(descriptor, [buffer], offset) for descriptor, offset in pieces)


async def _full(folder: Path, turnover: int, failures: list[str]) -> list[Figure]:
    """A store that is put to several times over."""
    bytes_max, kv, random, highest = FULL_BYTES, _some_kv(), np.random.default_rng(2), 0
    began = time.perf_counter()
    async with _open(folder, bytes_max, region_bytes=32 << 20) as chunks:
        number = 0
        while chunks.stats().put_bytes < turnover * bytes_max:
            number += 1
            some = [_document(1000 + number, int(random.integers(15, 114)))]
            (await chunks.plan(some[0] + _QUESTION)).close()
            await _put(chunks, some, kv)
            highest = max(highest, sum(path.stat().st_blocks * 512 for path in folder.iterdir()))
        stats = chunks.stats()
    seconds = time.perf_counter() - began
    if highest > bytes_max:
        failures.append(f"the files took {highest:,} bytes, bound {bytes_max:,}")
    note = f"{stats.put_bytes / seconds / 1e6:.0f} MB/s put, synced one by one; {stats.chunks} chunks held"
    return [
        Figure(
            name="full store, bytes written",
            unit="x of those put",
            value=stats.write_amplification,
            least=stats.write_amplification,
            greatest=stats.write_amplification,
            target=AMPLIFICATION_TARGET,
            note=note,
        ),
        Figure(
            name="full store, disk",
            unit="of the bound",
            value=highest / bytes_max,
            least=highest / bytes_max,
            greatest=highest / bytes_max,
            target=1.0,
        ),
    ]
