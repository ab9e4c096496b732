"""The summary of a replay: tables for people, JSON lines for programs.

Tables fit into `WIDTH` columns; their last row says what is good, and below it stands what the columns mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sarpstore_tools.counters import stat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from sarpstore_tools.protocol import Finished, Latency
    from sarpstore_tools.recovery import Recovery

WIDTH = 100
"""Columns that the summary takes at most."""

FIGURES_WIDTH = 70
"""Columns that the figures of any table take at most; what is left is for the traces' names."""

LABEL_WIDTHS = (10, 18)
"""Names of traces are cut short to a width between these, so that figures never are."""

BLOCK_ID_BYTES = 16
LOCATION_BYTES = 14
ENTRY_BYTES = 16
POSTING_BYTES = 24
"""A directory entry: one a segment; under sarp one to eight."""

RECORD_BYTES_A_BLOCK = 32
"""A full segment record's bytes over its 64 blocks: header, ids and locations."""

SLACK_SEGMENTS_MIN = 10_000
"""Below this many entries the directory's fixed parts show, and its slack says nothing."""

READS_LENGTH_MAX = 1.05
DIRECTORY_BYTES_MAX = 1.0
SLACK_MAX = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replayed trace: what was found, and the recovery (None without a kill)."""

    label: str
    notes: list[str]
    replay: Finished
    recovery: Recovery | None
    may_lose: bool = False

    @property
    def wrong(self) -> int:
        """Wrong answers, before the kill and after it."""
        return self.replay.wrong + (self.recovery.wrong if self.recovery else 0)

    @property
    def lost_tokens(self) -> int:
        """Tokens that were held and not found, before the kill and after it."""
        return self.replay.lost_tokens + (self.recovery.lost_tokens if self.recovery else 0)

    @property
    def is_clean(self) -> bool:
        """Whether no answer was wrong and nothing was lost that may not be."""
        return not (self.wrong or (self.lost_tokens and not self.may_lose))

    @property
    def answers(self) -> int:
        """Answers that were compared with the oracle's."""
        recovery = self.recovery
        return self.replay.answers + (recovery.checked + recovery.answers_before_kill if recovery else 0)


def derived(row: Row) -> dict[str, float]:
    """The ratios of the summary.

    Blocks are the oracle's unique ones. `log_over_ids_and_locations` is log bytes over ids and locations alone (30
    bytes a block), `log_over_full_segments` over a block's share in a full segment (32 bytes); to the latter,
    `written_over_full_segments` adds what checkpoints wrote.
    """
    replay = row.replay
    blocks = max(1, replay.unique_blocks)
    directory, log = stat(replay.stats, "directory_bytes"), stat(replay.stats, "log_bytes")
    written = stat(replay.stats, "written_bytes")
    entry_bytes = POSTING_BYTES if row.may_lose else ENTRY_BYTES
    return {
        "requests_per_second": replay.turns / replay.seconds if replay.seconds else 0.0,
        "requests_a_commit": replay.turns / max(1, stat(replay.stats, "commits")),
        "directory_bytes_a_block": directory / blocks,
        "directory_slack": directory / max(1, entry_bytes * stat(replay.stats, "segments")),
        "log_over_ids_and_locations": log / (blocks * (BLOCK_ID_BYTES + LOCATION_BYTES)),
        "log_over_full_segments": log / (blocks * RECORD_BYTES_A_BLOCK),
        "written_over_full_segments": max(log, written) / (blocks * RECORD_BYTES_A_BLOCK),
        "checkpoint_bytes": max(0, written - log),
    }


def as_json(row: Row) -> str:
    """One line of JSON: everything measured."""
    built: dict[str, Any] = msgspec.to_builtins(row)
    return msgspec.json.encode({**built, "derived": derived(row), "clean": row.is_clean}).decode()


def tables(rows: list[Row], width: int = WIDTH) -> list[RenderableType]:
    """The summary: answers, speed, reads and memory, bytes and recovery; one row a trace in each."""
    rows = [replace(row, label=_short(row.label, width - FIGURES_WIDTH)) for row in rows]
    made = [_answers(rows), _speed(rows), _memory(rows), _bytes(rows)]
    if any(row.recovery for row in rows):
        made.append(_recovery(rows))
    return made


def notes(rows: list[Row]) -> list[str]:
    """What is to be known of the traces, each thing once."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            labels.setdefault(note, []).append(row.label)
    return [f"{', '.join(names)}: {note}" for note, names in labels.items()]


def verdict(rows: list[Row]) -> str:
    """One plain sentence: whether every answer was right."""
    answers = f"{sum(row.answers for row in rows):,} answers"
    if all(row.is_clean for row in rows) and any(row.may_lose for row in rows):
        lost, held = sum(row.lost_tokens for row in rows), sum(row.replay.oracle_tokens for row in rows)
        share = f"{lost:,} tokens ({100 * lost / max(1, held):.4f} % of those held) lost, as this directory may"
        return f"No answer was wrong: {answers} compared with an exact oracle; {share}."
    if all(row.is_clean for row in rows):
        return f"Every answer was right: {answers} compared with an exact oracle, none wrong, no token lost."
    wrong, lost = sum(row.wrong for row in rows), sum(row.lost_tokens for row in rows)
    where = ", ".join(row.label for row in rows if not row.is_clean)
    return f"NOT every answer was right: of {answers}, {wrong:,} wrong; {lost:,} tokens lost ({where})."


def _table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[tuple[str, ...]]) -> Table:
    """A table of traces with these columns: (heading, what is good); a row begins with the trace's label."""
    has_footer = any(good for _, good in columns)
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_footer=has_footer,
        footer_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("trace", "good" if has_footer else "", no_wrap=True)
    for heading, good in columns:
        table.add_column(heading, good, justify="right", no_wrap=True)
    for label, *cells in rows:
        table.add_row(escape(label), *cells)
    return table


def _short(label: str, width: int) -> str:
    width = min(max(width, LABEL_WIDTHS[0]), LABEL_WIDTHS[1])
    return label if len(label) <= width else f"{label[: width - 1]}…"


def _explained(table: Table, *lines: str) -> RenderableType:
    """A table with what its columns mean below it."""
    return Group(table, Text(" ".join(lines), style="italic"), "")


def _answers(rows: list[Row]) -> RenderableType:
    columns = (
        ("turns", ""),
        ("tokens", ""),
        ("matched", "as held"),
        ("held", ""),
        ("hit rate", ""),
        ("lost", "0"),
        ("wrong", "0"),
    )
    return _explained(
        _table("Answers", columns, [_answers_row(row) for row in rows]),
        "Tokens of the prompts. Matched: those that the store found, in blocks of 16. Held: those that an exact",
        "oracle finds. Lost: held, but not found. Wrong: answers that name too much, or not the location first",
        "inserted.",
    )


def _answers_row(row: Row) -> tuple[str, ...]:
    r = row.replay
    lost = f"{r.lost_tokens:,} ({100 * r.lost_tokens / max(1, r.oracle_tokens):.4f} %)"
    return (
        row.label,
        f"{r.turns:,}",
        f"{r.prompt_tokens:,}",
        f"{r.matched_tokens:,}",
        f"{r.oracle_tokens:,}",
        f"{100 * r.matched_tokens / max(1, r.prompt_tokens):.1f} %",
        lost if row.may_lose else _count(r.lost_tokens),
        _count(r.wrong),
    )


def _speed(rows: list[Row]) -> RenderableType:
    percentiles = "p50/p99/p99.9"
    columns = (
        ("\nrequests/s", ""),
        (f"match: length\n{percentiles}", ""),
        (f"match: locations\n{percentiles}", ""),
        (f"insert\n{percentiles}", ""),
    )
    cells = [
        (
            row.label,
            f"{derived(row)['requests_per_second']:,.0f}",
            _latency(row.replay.match_length),
            _latency(row.replay.match_locations),
            _latency(row.replay.insert),
        )
        for row in rows
    ]
    return _explained(
        _table("Speed (latencies in µs)", columns, cells),
        "A request is a match and an insertion, in one process on one event loop; checking is not counted.",
    )


def _memory(rows: list[Row]) -> RenderableType:
    columns = (
        ("unique\nblocks", ""),
        ("\nsegments", ""),
        ("reads:\nlength", f"≤ {READS_LENGTH_MAX}"),
        ("reads:\nlocations", ""),
        ("directory\nB/block", f"≤ {DIRECTORY_BYTES_MAX}"),
        ("directory\nslack", f"≤ {SLACK_MAX}"),
    )
    return _explained(
        _table("Reads and memory", columns, [_memory_row(row) for row in rows]),
        "Reads: records that a match rests on, cached or not; for locations, all in one parallel round.",
        f"Directory: its memory; slack: that over its entries of {ENTRY_BYTES} bytes, from {SLACK_SEGMENTS_MIN:,} on.",
    )


def _memory_row(row: Row) -> tuple[str, ...]:
    r, ratios = row.replay, derived(row)
    segments = stat(r.stats, "segments")
    return (
        row.label,
        f"{r.unique_blocks:,}",
        f"{segments:,.0f}",
        _ratio(r.reads_length, READS_LENGTH_MAX),
        f"{r.reads_locations:.2f}" if r.match_locations.calls else "-",
        _ratio(ratios["directory_bytes_a_block"], DIRECTORY_BYTES_MAX),
        _ratio(ratios["directory_slack"], SLACK_MAX) if segments >= SLACK_SEGMENTS_MIN else "-",
    )


def _bytes(rows: list[Row]) -> RenderableType:
    columns = (
        ("requests\na commit", ""),
        ("log\nMB", ""),
        ("checkpoints\nMB", ""),
        ("log over\n30 B/block", "1.07"),
        ("log over\n32 B/block", "1.00"),
        ("both over\n32 B/block", "1.00"),
    )
    cells = []
    for row in rows:
        ratios = derived(row)
        cells.append(
            (
                row.label,
                f"{ratios['requests_a_commit']:,.1f}",
                f"{stat(row.replay.stats, 'log_bytes') / 1e6:,.1f}",
                f"{ratios['checkpoint_bytes'] / 1e6:,.1f}",
                f"{ratios['log_over_ids_and_locations']:.2f}",
                f"{ratios['log_over_full_segments']:.2f}",
                f"{ratios['written_over_full_segments']:.2f}",
            )
        )
    return _explained(
        _table("Bytes written", columns, cells),
        "Over the unique blocks' bytes: ids and locations alone (30 B), or in full segments (32 B).",
        "The log takes more than the last row for segments that a later turn wrote anew with more blocks, for what",
        "branches share inside a window, and for page padding (the less, the more requests share a commit).",
    )


def _recovery(rows: list[Row]) -> RenderableType:
    columns = (
        ("from\nthe kill", ""),
        ("from\nopen()", ""),
        ("pages\nstill cached", "0"),
        ("asked\nagain", ""),
        ("\nlost", "0"),
        ("\nwrong", "0"),
    )
    cells = [
        (
            row.label,
            f"{r.whole_ms:.1f}",
            f"{r.answer_ms:.1f}",
            f"{r.cached_pages:,} of {r.pages:,}",
            f"{r.checked:,}",
            f"{r.lost_tokens:,}" if row.may_lose else _count(r.lost_tokens),
            _count(r.wrong),
        )
        for row in rows
        if (r := row.recovery) is not None
    ]
    return _explained(
        _table("Recovery after kill -9 (in ms)", columns, cells),
        "Until another process, which stood by, gives the first right answer, with the page cache dropped.",
        "Then sampled turns and the last ones before the kill are asked again.",
    )


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/]" if number else "0"


def _ratio(value: float, most: float) -> str:
    return f"{value:.2f}" if round(value, 2) <= most else f"[bold red]{value:.2f}[/]"


def _latency(latency: Latency) -> str:
    if not latency.calls:
        return "-"
    return "/".join(f"{value:.0f}" for value in (latency.p50, latency.p99, latency.p999))
