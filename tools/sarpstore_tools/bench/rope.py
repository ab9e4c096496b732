"""`sarpstore bench rope`: keys rotated from array to array, beside memcpy of the same bytes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import numpy as np

import sarpstore
from sarpstore_tools.bench.core import one_core
from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.machine import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RATIO_TARGET = 0.6
LAYERS, KV_HEADS = 36, 8
"""gpt-oss-120b's. The cosine and sine of a token serve all of its rows, so their share falls with these."""
DTYPES: tuple[Literal["bfloat16", "float16", "float32"], ...] = ("bfloat16", "float16", "float32")
STYLES: tuple[Literal["neox", "interleaved"], ...] = ("neox", "interleaved")
HEAD_DIMS = (64, 128)
BEGIN = 3_000
"""Position of the first token: any other costs the same."""
PAGE = 4096


class _Case(NamedTuple):
    mib: int
    layout: sarpstore.KVLayout

    @property
    def name(self) -> str:
        rope = self.layout.rope
        style = rope.style if rope is not None else "none"
        return f"{self.layout.dtype}, {style}, head_dim {self.layout.head_dim}, {self.mib} MiB"

    @property
    def tokens(self) -> int:
        """As many as the keys of all layers have room for in so many MiB."""
        return max(1, (self.mib << 20) * 2 // self.layout.token_bytes)


@click.command("rope", short_help="Rotating keys, beside memcpy.")
@click.option("--repeats", type=click.IntRange(min=1), default=31, show_default=True, help="Measurements a figure.")
@click.option(
    "--mib", type=click.IntRange(1, 4096), multiple=True, default=(8, 64), show_default=True, help="MiB of keys."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Keep the thread on one core.")
@report_options
@click.pass_context
def rope_command(
    context: click.Context, repeats: int, mib: tuple[int, ...], pin: bool, json_file: Any, targets: bool
) -> None:
    """Time `rotate_keys` beside memcpy of the same bytes, in turns, on one core.

    For bfloat16, float16 and float32, both styles and heads of 64 and 128 elements: the keys of 36 layers of 8 heads,
    as many tokens as make up the size, rotated from one array to another. A figure is the share of memcpy's bandwidth
    that rotation reaches.
    """
    machine = this_machine(Path(tempfile.gettempdir()))
    with one_core(pin) as where:
        figures = [_measured(case, repeats) for case in _cases(mib)]
    method = [
        f"one thread; {where}; {repeats} measurements a figure, medians are shown, times are the thread's CPU time",
        (
            f"rotate_keys of ({LAYERS}, {KV_HEADS}, tokens, head_dim) from page-aligned array to array, what makes its "
            "cosines and sines included; each after a memcpy of the same bytes to a third array, whose bandwidth it is "
            "divided by"
        ),
    ]
    report = Report(command="bench rope", machine=machine, method=method, figures=figures)
    finish(context, report, json_file, targets=targets)


def _cases(sizes: tuple[int, ...]) -> Iterator[_Case]:
    for mib in sizes:
        for dtype in DTYPES:
            for style in STYLES:
                for head_dim in HEAD_DIMS:
                    layout = sarpstore.KVLayout(
                        layers=LAYERS,
                        kv_heads=KV_HEADS,
                        head_dim=head_dim,
                        dtype=dtype,
                        rope=sarpstore.Rope(style=style),
                    )
                    yield _Case(mib, layout)


def _measured(case: _Case, repeats: int) -> Figure:
    layout = case.layout
    shape = (LAYERS, KV_HEADS, case.tokens, layout.head_dim)
    source, rotated, copied = (_aligned(shape, layout.numpy_dtype) for _ in range(3))
    source[...] = _some_keys(layout, shape)
    copying, turning = [], []
    for _ in range(repeats + 1):
        copying.append(_seconds(lambda: np.copyto(copied, source)))
        turning.append(_seconds(lambda: sarpstore.rotate_keys(layout, source, rotated, BEGIN)))
    # The first of each touched new memory.
    ratios = [copy / turn for copy, turn in zip(copying[1:], turning[1:], strict=True)]
    rates = [source.nbytes / float(np.median(spans[1:])) / 1e9 for spans in (turning, copying)]
    note = f"{rates[0]:.1f} GB/s, memcpy {rates[1]:.1f} GB/s; {case.tokens} tokens"
    return measured(case.name, "of memcpy", ratios, target=RATIO_TARGET, more_is_better=True, note=note)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + PAGE, np.uint8)
    begin = -memory.ctypes.data % PAGE
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _some_keys(layout: sarpstore.KVLayout, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    if layout.dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(layout.numpy_dtype)


def _seconds(call: Callable[[], Any]) -> float:
    """CPU time of this thread: on a busy machine the wall clock tells of others."""
    began = time.thread_time()
    call()
    return time.thread_time() - began
