"""From traces to request files: ids by the store's own `block_ids`, expectations by the exact oracle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

import sarpstore
from sarpstore_tools.bench.compare.model import BLOCK_BYTES, Workload
from sarpstore_tools.bench.compare.requests import RequestWriter
from sarpstore_tools.bench.machine import event_loop
from sarpstore_tools.oracle import Oracle
from sarpstore_tools.traces import TOKEN_BLOCK, TraceError, TraceSpec, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SYSTEM_PROMPT_TOKENS = 600
BUDGET_BYTES_MIN = 64 << 10
"""RocksDB works with no less."""

SHAPES = ("plain", "system", "stripped")
"""A trace as it is; behind a system prompt of 600 tokens; with each answer's reasoning dropped from later turns."""


def shaped(spec: TraceSpec, shape: str) -> TraceSpec:
    """The trace in one of `SHAPES`, under a label that says so."""
    if shape == "system":
        label = f"{spec.label} + {SYSTEM_PROMPT_TOKENS}"
        return msgspec.structs.replace(spec, label=label, system_prompt=SYSTEM_PROMPT_TOKENS)
    if shape == "stripped":
        return msgspec.structs.replace(spec, label=f"{spec.label} stripped", strip_reasoning=True)
    return spec


def prepare(
    spec: TraceSpec, path: Path, scratch: Path, budget_percent: float, progress: Callable[[int, int | None], None]
) -> Workload:
    """Write the request file of a trace; `scratch` is for the store that hashes.

    Raises:
        TraceError: the trace cannot be read, or has no turn.
    """
    with asyncio.Runner(loop_factory=event_loop()[1]) as runner:
        return runner.run(_prepare(spec, path, scratch, budget_percent, progress))


async def _prepare(
    spec: TraceSpec, path: Path, scratch: Path, budget_percent: float, progress: Callable[[int, int | None], None]
) -> Workload:
    trace = open_trace(spec)
    oracle = Oracle()
    sessions: dict[str, int] = {}
    async with sarpstore.open(scratch, block_tokens=TOKEN_BLOCK, durability="never") as store:
        with RequestWriter(path) as writer:
            for turn in trace.turns():
                ids = store.namespace(turn.namespace).block_ids(turn.insert)
                expected = oracle.match(turn.namespace, turn.match)
                ordinals = oracle.insert(turn.namespace, turn.insert)
                session = sessions.setdefault(turn.session, len(sessions))
                writer.add(session, len(turn.match) // TOKEN_BLOCK, expected, ids, ordinals)
                if writer.requests % 100 == 0:
                    progress(writer.requests, trace.total)
            count = writer.requests
    if not count:
        raise TraceError(f"{spec.label}: no request in this trace")
    return Workload(
        label=spec.label,
        requests=count,
        sessions=len(sessions),
        blocks=oracle.blocks,
        budget_bytes=budget_of(oracle.blocks, budget_percent),
        notes=list(trace.notes),
    )


def budget_of(blocks: int, percent: float) -> int:
    """Bytes of memory for an engine on the SSD: a share of the uncompressed block store, at least 64 KiB."""
    return max(BUDGET_BYTES_MIN, int(blocks * BLOCK_BYTES * percent / 100))
