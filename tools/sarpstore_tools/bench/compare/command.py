"""`sarpstore bench compare`: its options, and one run from traces to tables."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sarpstore_tools.bench.compare.engine import DESCRIPTIONS
from sarpstore_tools.bench.compare.model import Comparison
from sarpstore_tools.bench.compare.plots import check_plots, write_plots
from sarpstore_tools.bench.compare.rocks import ROCKS_ENGINES
from sarpstore_tools.bench.compare.run import Plan, compare
from sarpstore_tools.bench.compare.tables import WIDTH, tables
from sarpstore_tools.bench.compare.workloads import SHAPES
from sarpstore_tools.bench.figures import json_option
from sarpstore_tools.bench.folders import UnusableFolderError, store_option, work_folder
from sarpstore_tools.bench.sizes import several_sizes
from sarpstore_tools.traces import TraceError, TraceSpec
from sarpstore_tools.traces.formats import FORMATS
from sarpstore_tools.traces.generator import SHAPES as GENERATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALL_ENGINES = {**DESCRIPTIONS, **ROCKS_ENGINES}

POSITIVE = click.IntRange(min=1)

FULL = {
    "requests": None,
    "concurrency": [1, 8, 42, 256],
    "repeats": 3,
    "seconds_max": 60.0,
    "recovery_blocks": [100_000, 1_000_000],
}
"""What --full sets, where the option itself was not given."""


def _engines(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    if value is None:
        return list(ALL_ENGINES)
    names: list[str] = []
    for part in value.split(","):
        found = [name for name in ALL_ENGINES if name == part or name.startswith(f"{part}-")]
        if part in ALL_ENGINES:
            found = [part]
        if not found:
            raise click.BadParameter(f"{part!r}: there are {', '.join(ALL_ENGINES)}", context, parameter)
        names += [name for name in found if name not in names]
    return names


def _shapes(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = list(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in SHAPES:
            raise click.BadParameter(f"{name!r}: there are {', '.join(SHAPES)}", context, parameter)
    return names


@click.command("compare", short_help="Beside RocksDB, LMDB, Redis, Dynamo's RadixTree and a dict.")
@click.argument("traces", nargs=-1, metavar="[TRACE]...", type=click.Path(exists=True))
@click.option("--tokenizer", type=click.Path(), metavar="FILE", help="A .model or .json tokenizer, for traces of text.")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), help="Format of the traces, if not obvious.")
@click.option(
    "--shapes",
    callback=_shapes,
    default="plain",
    show_default=True,
    metavar="LIST",
    help="plain, system (600 tokens before every chat), stripped (answers lose their reasoning).",
)
@click.option("--requests", type=POSITIVE, default=1000, show_default=True, help="Requests of each trace at most.")
@click.option("--engines", callback=_engines, metavar="LIST", help="Some engines only; rocksdb: all of its designs.")
@click.option(
    "--concurrency",
    callback=several_sizes,
    default="1,42",
    show_default=True,
    help="Requests in flight, one a session at most.",
)
@click.option("--repeats", type=POSITIVE, default=3, show_default=True, help="Runs of each cell.")
@click.option(
    "--seconds-max",
    type=click.FloatRange(min=0.01),
    default=10.0,
    show_default=True,
    help="Stop a run after so long, and mark it as cut.",
)
@click.option(
    "--budget-percent",
    type=click.FloatRange(min=0.1, max=1000),
    default=10.0,
    show_default=True,
    help="Memory of engines on the SSD, of unique blocks x 30 bytes.",
)
@click.option(
    "--recovery-blocks", callback=several_sizes, default="1e5", show_default=True, help="Sizes to be killed at."
)
@click.option("--recovery/--no-recovery", default=True, show_default=True, help="Kill and open each engine.")
@click.option("--cached/--no-cached", default=True, show_default=True, help="Dynamo and ours with all in memory.")
@click.option("--cached-blocks", type=click.IntRange(min=4096), default=1_000_000, show_default=True)
@click.option("--device/--no-device", default=True, show_default=True, help="The device's own limit, by fio.")
@click.option("--full", is_flag=True, help="Whole traces, 1 to 256 in flight, 60 s a run, 1e5 and 1e6 blocks killed.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Write plots (PNG) to this folder.")
@store_option
@json_option
@click.pass_context
def compare_command(context: click.Context, /, **given: Any) -> None:
    """Measure this store beside its peers: the same requests, ids and machine, in one run.

    TRACE is what `sarpstore replay` takes; without any, generated traffic of four shapes. Every request matches its
    history and inserts the extended sequence; block ids are computed beforehand and hashing is not timed. Every match
    is checked against an exact oracle. Each run is a process of its own. An engine that is not installed is left out
    and named.

    Exit status: 0 if every answer was right, 1 if one was wrong or this store failed, 2 if nothing could be measured.
    """
    options = _with_preset(context, given)
    if options["plots"] is not None:
        check_plots()
    plan = Plan(
        traces=_traces(options),
        shapes=options["shapes"],
        engines=options["engines"],
        concurrency=options["concurrency"],
        repeats=options["repeats"],
        seconds_max=options["seconds_max"],
        budget_percent=options["budget_percent"],
        recovery_blocks=options["recovery_blocks"] if options["recovery"] else [],
        cached_blocks=options["cached_blocks"] if options["cached"] else 0,
        device=options["device"],
    )
    with work_folder(options["store"]) as folder, _progress() as advance:
        try:
            found = compare(plan, folder, advance)
        except TraceError as error:
            raise UnusableFolderError(str(error)) from error
    show(found)
    if options["json_file"] is not None:
        options["json_file"].write(found.as_json())
    if options["plots"] is not None:
        for path in write_plots(found, options["plots"]):
            click.echo(f"plot: {path}")
    context.exit(1 if found.failures else 0)


def _with_preset(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    if not given["full"]:
        return given
    default = click.core.ParameterSource.DEFAULT
    return given | {name: value for name, value in FULL.items() if context.get_parameter_source(name) == default}


def _traces(given: dict[str, Any]) -> list[TraceSpec]:
    common = {"tokenizer": given["tokenizer"], "limit": given["requests"]}
    if not given["traces"]:
        return [TraceSpec(label=shape, generate=shape, **common) for shape in GENERATED]
    paths = [Path(path).resolve() for path in given["traces"]]
    return [
        TraceSpec(label=_label(path, paths), path=str(path), format=given["format_name"], **common) for path in paths
    ]


def _label(path: Path, paths: list[Path]) -> str:
    """A trace's own name, with its folder's where two have the same."""
    same = sum(other.stem == path.stem for other in paths)
    return path.stem if same == 1 else f"{path.parent.name}/{path.stem}"


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows what is being done: (what, steps done, all steps)."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=escape(what), completed=done, total=total)

        yield advance


def show(found: Comparison) -> None:
    """Machine, tables, method, and what went wrong."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH))
    for line in found.machine.lines():
        console.print(escape(line), highlight=False)
    for table in tables(found):
        console.print(table)
    for line in found.method:
        console.print(f"- {escape(line)}", highlight=False, soft_wrap=not console.is_terminal)
    for line in found.failures:
        console.print(f"[bold red]✗ {escape(line)}[/]", highlight=False)


def read_comparison(data: bytes) -> Comparison:
    """A comparison from what `--json` wrote."""
    return msgspec.json.decode(data, type=Comparison)
