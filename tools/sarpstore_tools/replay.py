"""`sarpstore replay`: replay traces into a store, check every answer, kill the server, and time its return.

A serving process of its own (`serving`) replays each trace and checks every answer against an exact oracle
(`replayer`, `oracle`). After `sync()` it is killed with SIGKILL while it answers; a process that stands by opens the
store with the page cache dropped, and a sample of all that was synced is asked again (`recovery`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sarpstore_tools import protocol, report
from sarpstore_tools.counters import stat
from sarpstore_tools.protocol import Child, Finished, RecoverJob, ServeJob, Started, StoreOptions
from sarpstore_tools.recovery import Recovery, ServingError, kill_and_recover, receive
from sarpstore_tools.traces import TraceSpec
from sarpstore_tools.traces.formats import FORMATS
from sarpstore_tools.traces.generator import SHAPES

SAMPLES_MAX = 500
"""Turns that are asked again after the kill, besides the last ones."""

NO_TRACE = "Replaying generated traffic; `sarpstore replay --help` says how to replay traces."

POSITIVE = click.IntRange(min=1)


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to replay, whatever the trace."""

    store: StoreOptions
    concurrency: int
    locations: bool
    kill: bool


@click.command(short_help="Replay traces, check every answer, kill and recover.")
@click.argument("traces", nargs=-1, metavar="[TRACE]...", type=click.Path(exists=True))
@click.option("--generate", type=click.Choice([*SHAPES, "all"]), help="Replay generated traffic of this shape.")
@click.option("--sessions", type=POSITIVE, help="Sessions to generate (each shape has its own default).")
@click.option("--turns", type=POSITIVE, help="Turns a generated session, on average.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the generator.")
@click.option("--tokenizer", type=click.Path(), metavar="FILE", help="A .model or .json tokenizer, for traces of text.")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), help="Format of the traces, if not obvious.")
@click.option("--system-prompt", type=click.IntRange(min=0), default=0, help="Put this many tokens before every chat.")
@click.option("--strip-reasoning", is_flag=True, help="Drop each answer's reasoning from the later turns.")
@click.option("--limit", type=POSITIVE, help="Turns to replay of each trace at most.")
@click.option("--concurrency", type=POSITIVE, default=1, show_default=True, help="Requests in flight at once.")
@click.option("--hash", "hash_name", type=click.Choice(["sha256", "mmh3"]), default="sha256", show_default=True)
@click.option("--durability", type=click.Choice(["interval", "always", "never"]), default="interval", show_default=True)
@click.option(
    "--sync-interval-ms", type=click.IntRange(1, 60_000), default=50, show_default=True, help="Between group commits."
)
@click.option(
    "--routing", type=click.Choice(["divergence", "sarp"]), default="divergence", show_default=True, help="Directory."
)
@click.option("--exact", is_flag=True, help="sarp: without the cap on reads.")
@click.option("--read-cap", type=click.IntRange(1, 64), default=4, show_default=True, help="sarp: reads a window.")
@click.option("--store", type=click.Path(file_okay=False), help="Keep the stores in this folder (default: temporary).")
@click.option("--locations/--length-only", default=True, show_default=True, help="Match with locations, too.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill the serving process and recover.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a trace instead of the tables.")
@click.pass_context
def replay(context: click.Context, /, **given: Any) -> None:
    """Replay traces into a new store each, and compare every answer with an exact oracle.

    A TRACE is a file or a folder: Mooncake hash_ids, token lists, OpenAI or ShareGPT conversations, MT-Eval, CodeAct
    or LMCache agent traces. Without TRACE and --generate, generated traffic of all shapes is replayed. A second match
    of each prompt, with locations, is made and checked unless --length-only.

    Requests follow each other without a pause, --concurrency at once, and those of one session never overlap. So a
    commit, which gathers for --sync-interval-ms, holds more requests than it does at a live server's pace; --durability
    always with --concurrency 1 gives the other extreme, a commit of whole pages for each request.

    With --routing sarp, the published method, a match may find less than is held: what it loses is shown, and wrong
    answers alone count. Blocks that it inserts again are offered with the location that they had.

    Exit status: 0 if every answer was right, 1 if any was wrong or lost, 2 if the replay could not be done.
    """
    options = ReplayOptions(
        store=StoreOptions(
            hash=given["hash_name"],
            **{name: given[name] for name in ("durability", "sync_interval_ms", "routing", "exact", "read_cap")},
        ),
        concurrency=given["concurrency"],
        locations=given["locations"],
        kill=given["kill"],
    )
    specs = _specs(given)
    if not given["traces"] and not given["generate"]:
        click.echo(NO_TRACE, err=True)
    rows = _replay_all(specs, options, given["store"])
    if given["as_json"]:
        for row in rows:
            click.echo(report.as_json(row))
    else:
        _show(_console(), rows)
    context.exit(0 if all(row.is_clean for row in rows) else 1)


def _console(*, stderr: bool = False) -> Console:
    """A console of `report.WIDTH` columns, or of fewer where a terminal is narrower."""
    console = Console(stderr=stderr)
    return Console(stderr=stderr, width=min(console.width, report.WIDTH) if console.is_terminal else report.WIDTH)


def _show(console: Console, rows: list[report.Row]) -> None:
    for table in report.tables(rows, console.width):
        console.print(table)
    for text in report.notes(rows):
        console.print(escape(text), highlight=False)
    for row in rows:
        for text in _problems(row):
            console.print(f"[bold red]{escape(row.label)}: {escape(text)}[/]", highlight=False)
    style = "bold green" if all(row.is_clean for row in rows) else "bold red"
    console.print(f"\n[{style}]{escape(report.verdict(rows))}[/]", highlight=False)


def _problems(row: report.Row) -> list[str]:
    problems = [f"before the kill: {text}" for text in row.replay.mismatches]
    for when, found in (("before the kill", row.replay), ("after it", row.recovery)):
        if found is not None and (damaged := stat(found.stats, "damaged_records")):
            problems.append(f"{when}: the store found {damaged:,.0f} damaged records")
    return problems + [f"after the kill: {text}" for text in (row.recovery.mismatches if row.recovery else [])]


def _specs(given: dict[str, Any]) -> list[TraceSpec]:
    """What to replay: the traces, then the generated shapes."""
    generate = given["generate"] or (None if given["traces"] else "all")
    generated = SHAPES if generate == "all" else (generate,) if generate else ()
    if not generated and (given["sessions"] or given["turns"]):
        raise click.UsageError("--sessions and --turns are for --generate")
    common = {name: given[name] for name in ("seed", "tokenizer", "system_prompt", "strip_reasoning", "limit")}
    specs = [
        TraceSpec(label=_label(path, given["traces"]), path=path, format=given["format_name"], **common)
        for path in given["traces"]
    ]
    return specs + [
        TraceSpec(label=shape, generate=shape, sessions=given["sessions"], turns=given["turns"], **common)
        for shape in generated
    ]


def _label(path: str, paths: tuple[str, ...]) -> str:
    """A trace's name in the summary: its own, with its folder's where two have the same."""
    name = Path(path).resolve().stem
    same = sum(Path(other).resolve().stem == name for other in paths)
    return name if same == 1 else f"{Path(path).resolve().parent.name}/{name}"


def _replay_all(specs: list[TraceSpec], options: ReplayOptions, store: str | None) -> list[report.Row]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    rows = []
    with Progress(*columns, console=_console(stderr=True)) as progress:
        for number, spec in enumerate(specs):
            try:
                rows.append(_replay_one(number, spec, options, store, progress))
            except ServingError as error:
                raise _CannotReplay(f"{spec.label}: {error}") from error
    return rows


class _CannotReplay(click.ClickException):
    exit_code = 2


def _replay_one(
    number: int, spec: TraceSpec, options: ReplayOptions, store: str | None, progress: Progress
) -> report.Row:
    work = Path(tempfile.mkdtemp(prefix="sarpstore-replay-"))
    try:
        path = work / "store" if store is None else _new_store(Path(store), f"{number:02}-{Path(spec.label).name}")
        return _serve(spec, options, path, str(work / "samples"), progress)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _new_store(folder: Path, name: str) -> Path:
    path = folder / name
    if path.exists() and any(path.iterdir()):
        raise _CannotReplay(f"{path}: not empty; a replay starts with a new store")
    folder.mkdir(parents=True, exist_ok=True)
    return path


def _serve(spec: TraceSpec, options: ReplayOptions, store: Path, samples_path: str, progress: Progress) -> report.Row:
    job = ServeJob(
        store=str(store),
        options=options.store,
        trace=spec,
        concurrency=options.concurrency,
        locations=options.locations,
        kill=options.kill,
        samples_path=samples_path,
        samples_max=SAMPLES_MAX,
    )
    task = progress.add_task(escape(spec.label), total=None, state="reading the trace")
    serving = Child(job)
    try:
        notes, finished = _follow(serving, progress, task)
        recovery: Recovery | None = None
        if options.kill and finished.turns:
            progress.update(task, state="kill -9")
            recovery = kill_and_recover(serving, _recover_job(job))
        else:
            serving.process.wait()
    finally:
        serving.stop()
    after = f"{_hits(finished)}, back in {recovery.whole_ms:.0f} ms" if recovery else _state(finished)
    progress.update(task, completed=finished.turns, total=finished.turns, state=after)
    may_lose = options.store.may_lose
    return report.Row(label=spec.label, notes=notes, replay=finished, recovery=recovery, may_lose=may_lose)


def _recover_job(job: ServeJob) -> RecoverJob:
    return RecoverJob(store=job.store, options=job.options, locations=job.locations, samples_path=job.samples_path)


def _follow(serving: Child, progress: Progress, task: Any) -> tuple[list[str], Finished]:
    """Show how the replay goes, until it is done."""
    notes: list[str] = []
    while True:
        message = receive(serving)
        if isinstance(message, Started):
            notes = message.notes
            progress.update(task, total=message.total, state="replaying")
        elif isinstance(message, protocol.Progress):
            progress.update(task, completed=message.turns, state=_state(message))
        elif isinstance(message, Finished):
            return notes, message


def _state(so_far: protocol.Progress | Finished) -> str:
    rate = so_far.turns / so_far.seconds if so_far.seconds else 0.0
    return f"{rate:,.0f} turns/s, {_hits(so_far)}"


def _hits(so_far: protocol.Progress | Finished) -> str:
    return f"{100 * so_far.matched_tokens / max(1, so_far.prompt_tokens):.1f} % hits"
