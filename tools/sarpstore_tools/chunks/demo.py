"""`sarpstore chunks demo`: questions about documents, answered with and without reuse of their chunks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sarpstore_tools.chunks.models import load_model
from sarpstore_tools.chunks.samples import OWN, Case

if TYPE_CHECKING:
    from sarpstore_tools.chunks.measure import Served

WIDTH_MIN = 120
PART_CHARACTERS = 1_200
RUNGS = ("none", "conditioned", "first-k", "deviation")
QUESTION = "What is the text about?"


@click.command("demo", short_help="Questions about documents, with and without reuse.")
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text file to ask about; its paragraphs are the documents [default: a few own texts].",
)
@click.option("--question", "questions", multiple=True, help=f"With --text [default: {QUESTION!r}].")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="Folder or GGUF file [default: SmolLM2].")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="Folder [default: a temporary one].")
@click.option("--requests", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--documents", type=click.IntRange(min=1), default=4, show_default=True, help="In each request, at most.")
@click.option("--fixup", type=click.Choice(RUNGS), default="conditioned", show_default=True, help="Of reused chunks.")
@click.option("--answer-tokens", type=click.IntRange(min=1), default=16, show_default=True, help="At most.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("--seed", type=int, default=7, show_default=True, help="Of the choice and the order of documents.")
def demo_command(
    texts: tuple[Path, ...],
    questions: tuple[str, ...],
    model: Path | None,
    store: Path | None,
    requests: int,
    documents: int,
    fixup: str,
    answer_tokens: int,
    dtype: str,
    threads: int,
    seed: int,
) -> None:
    """Ask questions about documents in shuffled order, with chunks from a store on disk and with full prefill.

    For each request: the share of its chunks' tokens that hit, the share of all prompt tokens that were not computed,
    the time to the first token with reuse and without, and how far reuse agrees with full prefill over the answer:
    how often the same token is likeliest (top-1) and the divergence of the distributions (KL, nats a token). With
    --store, chunks of an earlier run hit from the first request on.
    """
    if questions and not texts:
        raise click.UsageError("--question needs --text: the own texts have their own questions")
    cases = _cases(texts, questions, requests, documents, seed)
    network, tokenizer = load_model(model)
    import torch

    from sarpstore.integrations.transformers import FixUp, Reuse
    from sarpstore_tools.chunks.measure import builder_for, serve
    from sarpstore_tools.chunks.stores import open_store

    torch.set_num_threads(threads)
    builder = builder_for(tokenizer)

    async def run(progress: Progress) -> list[Served]:
        task = progress.add_task("requests", total=len(cases))
        served = []
        async with open_store(store, network, tokenizer, delimiter=builder.delimiter, dtype=dtype) as chunks:
            reuse = Reuse(network, chunks, system=builder.system_tokens)
            for case in cases:
                prompt = builder.build(case.documents, case.question).tokens
                served.append(await serve(reuse, prompt, FixUp.of(fixup), answer_tokens))
                progress.advance(task)
        return served

    with Progress(console=Console(stderr=True), transient=True) as progress:
        served = asyncio.run(run(progress))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH_MIN))
    console.print(_figures(served, f"fix-up: {fixup}, chunks in {dtype}"))
    console.print(_answers(cases, [[tokenizer.decode(part) for part in (s.answer, s.full_answer)] for s in served]))


def _cases(texts: tuple[Path, ...], questions: tuple[str, ...], requests: int, documents: int, seed: int) -> list[Case]:
    """Requests with their documents in the order in which they stand.

    Raises:
        click.ClickException: A text cannot be read, or there is nothing in any.
    """
    chosen = random.Random(seed)  # noqa: S311 - an order, not a secret
    parts = [part for path in texts for part in _parts(path)]
    if texts and not parts:
        raise click.ClickException("the texts are empty")
    cases = []
    for number in range(requests):
        if texts:
            question = (questions or (QUESTION,))[number % len(questions or (QUESTION,))]
            own = chosen.sample(parts, min(documents, len(parts)))
        else:
            asked = OWN[number % len(OWN)]
            question = asked.question
            others = [each.document for each in OWN if each is not asked]
            own = [asked.document, *chosen.sample(others, min(documents - 1, len(others)))]
            chosen.shuffle(own)
        cases.append(Case("", own, question))
    return cases


def _parts(path: Path) -> list[str]:
    """A text's paragraphs, short ones joined."""
    try:
        paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read as text: {error}") from error
    parts: list[str] = []
    for paragraph in (plain for each in paragraphs if (plain := each.strip())):
        if parts and len(parts[-1]) + len(paragraph) < PART_CHARACTERS:
            parts[-1] += "\n" + paragraph
        else:
            parts.append(paragraph)
    return parts


def _figures(served: list[Served], caption: str) -> Table:
    table = Table(title="Chunk reuse, request by request", caption=caption)
    for name in ("request", "tokens", "hit rate", "tokens saved", "first token, ms", "full, ms", "top-1", "KL, nats"):
        table.add_column(name, justify="right")
    for number, one in enumerate(served, 1):
        table.add_row(str(number), str(one.tokens), *_row([one]), end_section=number == len(served))
    table.add_row("all", str(sum(one.tokens for one in served)), *_row(served))
    return table


def _row(served: list[Served]) -> list[str]:
    tokens, chunks = sum(one.tokens for one in served), sum(one.chunk_tokens for one in served)
    saved = tokens - sum(one.computed_tokens for one in served)

    def mean(name: str) -> float:
        return sum(float(getattr(one, name)) for one in served) / len(served)

    return [
        f"{100 * sum(one.hit_tokens for one in served) / chunks:.1f} %",
        f"{100 * saved / tokens:.1f} %",
        f"{mean('first_token_ms'):.0f}",
        f"{mean('full_first_token_ms'):.0f}",
        f"{100 * mean('top1'):.1f} %",
        f"{mean('kl'):.4f}",
    ]


def _answers(cases: list[Case], answers: list[list[str]]) -> Table:
    table = Table(title="Answers")
    for name in ("request", "question", "with reuse", "full prefill"):
        table.add_column(name)
    for number, (case, both) in enumerate(zip(cases, answers, strict=True), 1):
        table.add_row(str(number), case.question, *(" ".join(text.split()) for text in both))
    return table
