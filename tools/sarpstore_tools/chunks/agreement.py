"""`sarpstore chunks agreement`: every rung of the fix-up ladder against full prefill."""

from __future__ import annotations

import asyncio
import csv
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sarpstore_tools.chunks.models import load_model
from sarpstore_tools.chunks.samples import KINDS, cases_of, read_questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sarpstore_tools.chunks.measure import Sample

WIDTH_MIN = 120
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
OUT = click.Path(dir_okay=False, path_type=Path)
COLUMNS = ("kind", "rung", "requests", "tokens", "top1", "kl", "saved", "first_token_ms", "full_first_token_ms")


@click.command("agreement", short_help="Agreement with full prefill, rung by rung.")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="Folder or GGUF file [default: SmolLM2].")
@click.option("--questions", type=click.IntRange(min=1), default=5, show_default=True, help="Cases of each kind.")
@click.option("--data", type=FILE, help="JSON in the SQuAD format, such as XQuAD's [default: a few own texts].")
@click.option("--documents", type=click.IntRange(2, 64), default=4, show_default=True, help="Of the last two kinds.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these kinds.")
@click.option("--answer-tokens", type=click.IntRange(min=1), default=8, show_default=True, help="Compared, at most.")
@click.option("--first", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens a chunk of first-k.")
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True), default=0.15, show_default=True, help="Of deviation."
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", show_default=True, help="Stored."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("--seed", type=int, default=7, show_default=True, help="Of the choice and the order of documents.")
@click.option("--store", type=FOLDER, help="Keep chunks in this folder [default: in memory].")
@click.option("--csv", "csv_file", type=OUT, help="Also write every request to FILE, as it is measured.")
@click.option("--plot", type=OUT, help="Also plot KL over tokens saved to FILE (needs matplotlib).")
def agreement_command(
    model: Path | None,
    questions: int,
    data: Path | None,
    documents: int,
    kinds: tuple[str, ...],
    answer_tokens: int,
    first: int,
    share: float,
    dtype: str,
    threads: int,
    seed: int,
    store: Path | None,
    csv_file: Path | None,
    plot: Path | None,
) -> None:
    """Ask questions on documents whose chunks are held, and compare with full prefill.

    For each rung: how often the same token is likeliest over the answer that full prefill gives (top-1), the divergence
    of the distributions (KL, nats a token), the share of prompt tokens that are not computed, and the time to the first
    token. Documents are shuffled; chunks are in memory, so times are the model's alone, or with --store on disk.

    The document that follows the system prompt stands where it was computed: with one document all rungs but "none"
    agree up to rounding, and what moving costs shows with several. Full prefill computes the system prompt too, which
    a prefix cache would save.
    """
    asked = read_questions(data)
    if documents > len(asked):
        raise click.UsageError(f"--documents {documents}: there are {len(asked)} documents")
    if plot is not None:
        from sarpstore_tools.bench.compare.plots import check_plots

        check_plots()
    network, tokenizer = load_model(model)
    import torch

    from sarpstore.integrations.transformers import FixUp, layout_of
    from sarpstore_tools.chunks.measure import Measurement, builder_for
    from sarpstore_tools.chunks.memory import MemoryChunks
    from sarpstore_tools.chunks.stores import open_store

    torch.set_num_threads(threads)
    cases = [case for case in cases_of(asked, questions, documents, seed) if not kinds or case.kind in kinds]
    fixup = FixUp(first=first, share=share)
    builder = builder_for(tokenizer)

    async def run(progress: Progress, write: Callable[[list[Sample]], None]) -> list[Sample]:
        samples: list[Sample] = []
        task = progress.add_task("requests", total=len(cases))
        async with AsyncExitStack() as stack:
            chunks: Any = MemoryChunks(network, layout_of(network, dtype=dtype), (builder.delimiter,))
            if store is not None:
                opening = open_store(store, network, tokenizer, delimiter=builder.delimiter, dtype=dtype)
                chunks = await stack.enter_async_context(opening)
            measurement = Measurement(network, builder, chunks, answer_tokens=answer_tokens, fixup=fixup)
            async for measured in measurement.run(cases):
                write(measured)
                samples += measured
                progress.advance(task)
        return samples

    with Progress(console=Console(stderr=True), transient=True) as progress, _csv_writer(csv_file) as write:
        samples = asyncio.run(run(progress, write))
    _show(samples, f"{network.config.model_type}, chunks in {dtype}, {len(asked)} documents to choose from")
    if plot is not None:
        _write_plot(samples, plot)


def _show(samples: list[Sample], caption: str) -> None:
    from sarpstore_tools.chunks.measure import summarised

    table = Table(title="Chunk reuse against full prefill", caption=caption)
    for name in (
        "kind",
        "rung",
        "requests",
        "tokens",
        "top-1",
        "KL, nats",
        "tokens saved",
        "first token, ms",
        "full, ms",
    ):
        table.add_column(name, justify="left" if name in ("kind", "rung") else "right")
    kind = ""
    for row in summarised(samples):
        shown = row["kind"] if row["kind"] != kind else ""
        kind = row["kind"]
        table.add_row(
            shown,
            row["rung"],
            str(row["requests"]),
            f"{row['tokens']:.0f}",
            f"{100 * row['top1']:.1f} %",
            f"{row['kl']:.4f}",
            f"{100 * row['saved']:.1f} %",
            f"{row['first_token_ms']:.0f}",
            f"{row['full_first_token_ms']:.0f}",
            end_section=row["rung"] == "deviation",
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    console.print(table)


@contextmanager
def _csv_writer(path: Path | None) -> Iterator[Callable[[list[Sample]], None]]:
    """Writes samples to the file at once, so that a long run that is cut short keeps what it measured."""
    if path is None:
        yield lambda _: None
        return
    names = [name for name in COLUMNS if name != "requests"]
    with path.open("w", newline="", encoding="utf-8", buffering=1) as file:
        writer = csv.writer(file)
        writer.writerow(names)
        yield lambda samples: writer.writerows([getattr(sample, name) for name in names] for sample in samples)


def _write_plot(samples: list[Sample], path: Path) -> None:
    """KL over the share of tokens saved: a line a kind, a point a rung."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from sarpstore_tools.chunks.measure import summarised

    rows: dict[str, list[dict[str, Any]]] = {}
    for row in summarised(samples):
        rows.setdefault(row["kind"], []).append(row)
    figure, axis = plt.subplots(figsize=(8, 5))
    for kind, own in rows.items():
        axis.plot([100 * row["saved"] for row in own], [row["kl"] for row in own], marker="o", label=kind)
        for row in own:
            axis.annotate(row["rung"], (100 * row["saved"], row["kl"]), fontsize="x-small")
    axis.set_xlabel("prompt tokens that are not computed, %")
    axis.set_ylabel("KL(full || reused), nats a token")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
