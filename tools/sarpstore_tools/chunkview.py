"""What a chunk store's published counters mean: rows for people, as those of an index."""

from __future__ import annotations

from typing import Any, Final

from .statstables import NONE, Groups, Growth, Meaning, Meanings, count, per_second, percent, size

CAUSES: Final = ("new", "evicted", "not admitted", "damaged", "boundary", "in flight")
_MISSED: Final = "missed: "

GROUPS: Final[Groups] = (
    ("held", ("chunks", "regions")),
    ("tokens", ("tokens", "hit_tokens", *(_MISSED + cause for cause in CAUSES), "question_tokens")),
    ("loads", ("loaded_bytes", "load_seconds", "io_backend")),
    ("disk", ("disk_bytes", "bytes_max", "evicted_chunks")),
    ("written", ("puts", "refused_puts", "put_bytes", "again_bytes", "written_bytes", "table_lag", "recovery_ms")),
    ("fix-up", ("used_tokens", "recomputed_tokens", "compared", "drift")),
    ("state", ("damaged_payloads", "failed")),
)
"""All counters by what they speak of, in the order of the table."""


def is_of_chunks(values: dict[str, Any]) -> bool:
    """Whether these are a chunk store's counters (checkpoint.md, section 3)."""
    return "chunks" in values and "blocks" not in values


def flattened(values: dict[str, Any]) -> dict[str, Any]:
    """The counters with those of missed tokens, by cause, beside the others; a cause that is not there has 0."""
    missed = values.get("missed_tokens")
    if not isinstance(missed, dict):
        return values
    rest = {name: value for name, value in values.items() if name != "missed_tokens"}
    return rest | {_MISSED + cause: value for cause, value in (dict.fromkeys(CAUSES, 0) | missed).items()}


def meanings(values: dict[str, Any], growth: Growth | None) -> list[Meaning]:
    """What follows from the counters, which are flattened."""
    rows = Meanings(values, growth)
    missed = [name for name in values if name.startswith(_MISSED)]
    return [
        rows.counted("tokens looked up", "tokens"),
        rows.share("token hit rate", "hit_tokens", ("tokens",), percent),
        *(rows.share(name, name, ("tokens",), percent) for name in missed),
        Meaning("prefill saved", _tokens(rows.now("hit_tokens")), per_second(rows.rate("hit_tokens"))),
        rows.sized("loaded", "loaded_bytes"),
        _bandwidth(rows),
        rows.counted("chunks put", "puts"),
        rows.sized("put", "put_bytes"),
        rows.sized("written", "written_bytes"),
        rows.share("write amplification", "written_bytes", ("put_bytes",), _ratio),
        rows.counted("chunks evicted", "evicted_chunks"),
        rows.counted("puts not admitted", "refused_puts"),
        rows.disk_use(),
        Meaning("table lag", count(rows.now("table_lag"))),
        rows.share("fix-up share", "recomputed_tokens", ("used_tokens",), percent),
        Meaning("drift", _drift(rows), per_second(rows.rate("compared"))),
        rows.counted("damaged payloads", "damaged_payloads"),
        rows.goes_on("puts"),
    ]


def _tokens(value: float | None) -> str:
    return NONE if value is None else f"{count(value)} tokens"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:,.3f}"


def _bandwidth(rows: Meanings) -> Meaning:
    """Bytes that one load loads in a second, of those that are going on; `loaded` has what all do together."""
    return rows.share("load bandwidth", "loaded_bytes", ("load_seconds",), lambda value: size(value, "/s") or NONE)


def _drift(rows: Meanings) -> str:
    compared, drift = rows.now("compared"), rows.now("drift")
    return f"{drift:.4f} nats, {count(compared)} compared" if compared and drift is not None else NONE
