"""`sarpstore chunks simulate`: how many tokens hit, by capacity and policy, without a model and without a disk."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sarpstore_tools.bench.figures import Figure, Report, finish, measured, report_options
from sarpstore_tools.bench.machine import this_machine
from sarpstore_tools.chunks.caches import CACHES, ChunkReuse, run
from sarpstore_tools.chunks.workload import WORKLOADS

if TYPE_CHECKING:
    from sarpstore_tools.chunks.caches import Cache
    from sarpstore_tools.chunks.workload import Trace, Workload

GB: Final = 10**9
CAPACITIES_GB: Final = (3, 10, 30, 100, 300, 1000)
DEFAULT, LRU, PREFIX = "chunks", "chunks, least recent", "prefix, least recent"

# What the published testbed has for workload C, in percent, and how far a trace of the same shape may be from it.
_PUBLISHED: Final = {(LRU, 30): (64.0, 2.0), (PREFIX, 30): (3.3, 1.0), (PREFIX, 1000): (17.7, 1.5)}
_DEFAULT_MIN: Final = 70.0
_WRITTEN_MAX: Final = 0.7
_EXTRAPOLATED_BYTES: Final = 15_000
_EXTRAPOLATED_REUSE: Final = 0.2


class Runs:
    """Traces of one workload through caches, each once."""

    def __init__(self, workload: Workload, seeds: int, requests: int | None) -> None:
        self.workload = workload
        self._traces: list[Trace] = [workload.trace(seed, requests) for seed in range(seeds)]
        self._done: dict[tuple[str, int, int], tuple[float, Cache]] = {}

    def one(self, cache: str, gb: int, seed: int = 0) -> tuple[float, Cache]:
        """(share of tokens that hit in percent, the cache with its counts)."""
        key = cache, gb, seed
        if key not in self._done:
            made = CACHES[cache](gb * GB)
            self._done[key] = 100 * run(made, self._traces[seed]), made
        return self._done[key]

    def all(self, cache: str, gb: int) -> list[tuple[float, Cache]]:
        """Of all seeds."""
        return [self.one(cache, gb, seed) for seed in range(len(self._traces))]


def figures_of(runs: Runs, gb: int) -> list[Figure]:
    """What has a target or is published, at this capacity."""
    name = f"workload {runs.workload.name}"
    out = []
    for cache, at in ((LRU, gb), (PREFIX, gb), (PREFIX, 1000), (DEFAULT, gb)):
        hits = [hit for hit, _ in runs.all(cache, at)]
        published = _PUBLISHED.get((cache, at)) if runs.workload.name == "C" else None
        target = _DEFAULT_MIN if (cache, at, runs.workload.name) == (DEFAULT, 30, "C") else None
        note = f"published: {published[0]} ± {published[1]}" if published else ""
        label = f"{name}, {at} GB: {cache}"
        out.append(measured(label, "% of tokens", hits, target=target, more_is_better=True, note=note))
    written = [
        own.written_bytes / other.written_bytes
        for (_, own), (_, other) in zip(runs.all(DEFAULT, gb), runs.all(LRU, gb), strict=True)
    ]
    out.append(measured(f"{name}, {gb} GB: bytes written", "of least recent's", written, target=_WRITTEN_MAX))
    policies = [cache.policy for _, cache in runs.all(DEFAULT, gb) if isinstance(cache, ChunkReuse)]
    amplification = [1 + policy.again_bytes / max(1, policy.put_bytes) for policy in policies]
    out.append(measured(f"{name}, {gb} GB: write amplification", "x", amplification, target=1.1))
    return out


def unlike(runs: Runs, gb: int) -> list[str]:
    """What is not as published."""
    failures = []
    for (cache, at), (percent, within) in _PUBLISHED.items() if runs.workload.name == "C" else ():
        if (
            at in (gb, 1000)
            and abs((mean := statistics.mean(hit for hit, _ in runs.all(cache, at))) - percent) > within
        ):
            failures.append(f"{cache} at {at} GB: {mean:.1f} % of tokens hit, published are {percent} ± {within}")
    return failures


def extrapolation(gb: int) -> str:
    """The published appendix's calculation: an illustration of scale, not a measurement."""
    text = gb * GB / _EXTRAPOLATED_BYTES / 1e6
    return (
        f"Calculated, not measured, with the published assumptions (15 KB of KV a byte of document, a document is met "
        f"again with probability {_EXTRAPOLATED_REUSE:.0%}): {gb:,} GB hold the KV of {text:,.1f} MB of text, and of "
        f"as much text read, {_EXTRAPOLATED_REUSE * text:,.1f} MB would need no prefill."
    )


def misses_table(runs: Runs, gb: int) -> Table:
    """Where the tokens went, by cache."""
    table = Table(title=f"workload {runs.workload.name}, {gb} GB, first trace: tokens")
    causes = ("new", "evicted", "not admitted")
    for column in ("cache", "hit", *causes, "written"):
        table.add_column(column, justify="left" if column == "cache" else "right")
    for name in CACHES:
        hit, cache = runs.one(name, gb)
        total = cache.hit_tokens / hit * 100 if hit else cache.misses.total()
        shares = [f"{cache.misses[cause] / total:.1%}" for cause in causes]
        table.add_row(name, f"{hit / 100:.1%}", *shares, f"{cache.written_bytes / GB:,.0f} GB")
    return table


def plot(runs: Runs, folder: Path, progress: Progress) -> Path:
    """Hit rate over capacity, misses by cause, and bytes written, as a PNG."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise click.ClickException("--plot needs matplotlib: pip install 'sarpstore[bench]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    steps = [(name, gb) for name in CACHES for gb in CAPACITIES_GB]
    for name, gb in progress.track(steps, description=f"capacities of {runs.workload.name}"):
        runs.one(name, gb)
    figure, (hits, misses, written) = plt.subplots(1, 3, figsize=(18, 5))
    for name in CACHES:
        hits.plot(CAPACITIES_GB, [runs.one(name, gb)[0] for gb in CAPACITIES_GB], marker="o", label=name)
        written.plot(
            CAPACITIES_GB, [runs.one(name, gb)[1].written_bytes / GB for gb in CAPACITIES_GB], marker="o", label=name
        )
    for axis, title in ((hits, "tokens that hit, %"), (written, "written, GB")):
        axis.set(xscale="log", xlabel="capacity, GB", title=title)
        axis.legend()
    _stack(misses, runs)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"simulate-{runs.workload.name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _stack(axis: Any, runs: Runs) -> None:
    below = [0.0] * len(CAPACITIES_GB)
    places = [str(gb) for gb in CAPACITIES_GB]
    for cause in ("new", "evicted", "not admitted"):
        shares = []
        for gb in CAPACITIES_GB:
            misses = runs.one(DEFAULT, gb)[1].misses
            shares.append(100 * misses[cause] / max(1, misses.total()))
        axis.bar(places, shares, bottom=below, label=cause)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    axis.set(xlabel="capacity, GB", title=f"missed tokens by cause, % ({DEFAULT})")
    axis.legend()


@click.command("simulate", short_help="How many tokens hit, by capacity and policy.")
@click.option("--workload", "names", type=click.Choice(sorted(WORKLOADS)), multiple=True, help="Default: all of them.")
@click.option("--gb", type=click.IntRange(1, 100_000), default=30, show_default=True, help="Capacity, 10^9 bytes.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Traces to draw.")
@click.option("--requests", type=click.IntRange(1), default=None, help="Of a trace (default: the workload's 2,500).")
@click.option("--plot", "plot_folder", type=click.Path(file_okay=False, path_type=Path), help="Write PNGs there.")
@report_options
@click.pass_context
def simulate_command(
    context: click.Context,
    names: tuple[str, ...],
    gb: int,
    seeds: int,
    requests: int | None,
    plot_folder: Path | None,
    json_file: Any,
    *,
    targets: bool,
) -> None:
    """Run traces through the store's own policy, with sizes in place of payloads, and through others.

    The traces have the shape of the published testbed for segment-wise reuse; workload C is compared with its figures.
    Exit status: 0 if every target was met, 1 if not, or if workload C is not as published.
    """
    figures: list[Figure] = []
    failures: list[str] = []
    console = Console()
    with Progress(console=Console(stderr=True)) as progress:
        every = [Runs(WORKLOADS[name], seeds, requests) for name in names or sorted(WORKLOADS)]
        for runs in progress.track(every, description="traces"):
            figures += figures_of(runs, gb)
            failures += unlike(runs, gb) if requests is None else []
        if plot_folder is not None:
            for runs in every:
                path = plot(runs, plot_folder, progress)
                console.print(f"{path}", soft_wrap=True, highlight=False)
    for runs in every:
        console.print(misses_table(runs, gb))
    console.print(extrapolation(gb), highlight=False, soft_wrap=not console.is_terminal)
    method = [
        f"{seeds} traces a workload, the median of them; the least and the greatest beside it",
        "hit: tokens whose KV was in the cache, of all input tokens, questions and heads counted",
        "chunks: the store's policy in regions of 256 MiB (a sixteenth of the capacity where that is less)",
    ]
    machine = this_machine(Path.cwd())
    report = Report(command="chunks simulate", machine=machine, method=method, figures=figures, failures=failures)
    finish(context, report, json_file, targets=targets)
