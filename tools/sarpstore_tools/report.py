"""The summary of a replay: tables for people, JSON lines for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from sarpstore_tools.counters import stat

if TYPE_CHECKING:
    from sarpstore_tools.protocol import Finished, Latency
    from sarpstore_tools.recovery import Recovery

BLOCK_ID_BYTES = 16
LOCATION_BYTES = 14
ENTRY_BYTES = 16
"""A directory entry: one a segment."""

RECORD_BYTES_A_BLOCK = 32
"""A full segment record's bytes over its 64 blocks: header, ids and locations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replayed trace: what was found, and the recovery (None without a kill)."""

    label: str
    notes: list[str]
    replay: Finished
    recovery: Recovery | None

    @property
    def is_clean(self) -> bool:
        """Whether no answer was wrong and nothing was lost, before the kill and after it."""
        before, after = self.replay, self.recovery
        return not (before.wrong or before.lost_tokens or (after and (after.wrong or after.lost_tokens)))


def derived(row: Row) -> dict[str, float]:
    """The ratios of the summary.

    Blocks are the oracle's unique ones. `written_over_payload` is log bytes over ids and locations alone (30 bytes a
    block), `written_over_records` over a full record's share (32 bytes).
    """
    replay = row.replay
    blocks = max(1, replay.unique_blocks)
    directory, written = stat(replay.stats, "directory_bytes"), stat(replay.stats, "log_bytes")
    return {
        "requests_per_second": replay.turns / replay.seconds if replay.seconds else 0.0,
        "directory_bytes_a_block": directory / blocks,
        "directory_slack": directory / max(1, ENTRY_BYTES * stat(replay.stats, "segments")),
        "written_over_payload": written / (blocks * (BLOCK_ID_BYTES + LOCATION_BYTES)),
        "written_over_records": written / (blocks * RECORD_BYTES_A_BLOCK),
    }


def as_json(row: Row) -> str:
    """One line of JSON: everything measured."""
    built: dict[str, Any] = msgspec.to_builtins(row)
    return msgspec.json.encode({**built, "derived": derived(row), "clean": row.is_clean}).decode()


def tables(rows: list[Row]) -> list[Table]:
    """The summary: answers, speed, space and recovery; one row a trace in each."""
    made = [_answers(rows), _speed(rows), _space(rows)]
    if any(row.recovery for row in rows):
        made.append(_recovery(rows))
    return made


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("trace")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _answers(rows: list[Row]) -> Table:
    table = _table("answers", "turns", "tokens", "matched", "oracle", "hit rate", "lost", "wrong")
    for row in rows:
        r = row.replay
        hit_rate = f"{100 * r.matched_tokens / max(1, r.prompt_tokens):.1f} %"
        table.add_row(
            row.label,
            f"{r.turns:,}",
            f"{r.prompt_tokens:,}",
            f"{r.matched_tokens:,}",
            f"{r.oracle_tokens:,}",
            hit_rate,
            _count(r.lost_tokens),
            _count(r.wrong),
        )
    return table


def _speed(rows: list[Row]) -> Table:
    percentiles = "p50 / p99 / p99.9"
    table = _table(
        "speed (µs)",
        "requests/s",
        f"match, length\n{percentiles}",
        f"match, locations\n{percentiles}",
        f"insert\n{percentiles}",
        "reads a match\nlength / locations",
    )
    for row in rows:
        r = row.replay
        located = f"{r.reads_locations:.2f}" if r.match_locations.calls else "-"
        table.add_row(
            row.label,
            f"{derived(row)['requests_per_second']:,.0f}",
            _latency(r.match_length),
            _latency(r.match_locations),
            _latency(r.insert),
            f"{r.reads_length:.2f} / {located}",
        )
    table.caption = "A request is one match and one insertion; checking the answers is not counted."
    table.caption_justify = "left"
    return table


def _space(rows: list[Row]) -> Table:
    table = _table(
        "space", "blocks", "segments", "directory\nbytes a block", "slack", "written over\n30 B a block", "over 32 B"
    )
    for row in rows:
        ratios = derived(row)
        table.add_row(
            row.label,
            f"{row.replay.unique_blocks:,}",
            f"{stat(row.replay.stats, 'segments'):,.0f}",
            f"{ratios['directory_bytes_a_block']:.2f}",
            f"{ratios['directory_slack']:.2f}",
            f"{ratios['written_over_payload']:.2f}",
            f"{ratios['written_over_records']:.2f}",
        )
    return table


def _recovery(rows: list[Row]) -> Table:
    table = _table(
        "recovery after kill -9 (ms to the first right answer)", "from kill", "from open()", "checked", "lost", "wrong"
    )
    for row in rows:
        if (r := row.recovery) is None:
            continue
        table.add_row(
            row.label,
            f"{r.whole_ms:.1f}",
            f"{r.answer_ms:.1f}",
            f"{r.checked:,}",
            _count(r.lost_tokens),
            _count(r.wrong),
        )
    return table


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/]" if number else "0"


def _latency(latency: Latency) -> str:
    if not latency.calls:
        return "-"
    return " / ".join(f"{value:,.0f}" for value in (latency.p50, latency.p99, latency.p999))
