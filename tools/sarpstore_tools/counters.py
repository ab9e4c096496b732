"""Reading the engine's counters: `store.stats()`, whether it is an object with attributes or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import msgspec
import numpy as np


def stat(stats: Any, name: str, default: float = 0) -> float:
    """The counter `name`; `default` where this version of the engine does not have it (or has None)."""
    value = stats.get(name) if isinstance(stats, Mapping) else getattr(stats, name, None)
    return default if value is None else value


def reads_of(stats: Any) -> float:
    """Log records that matches needed so far, wherever they came from: a disk read, a cache, or another's read."""
    records = stat(stats, "records_read", -1)
    if records >= 0:
        return records
    return stat(stats, "reads") + stat(stats, "reads_coalesced") + stat(stats, "cache_hits")


def as_dict(stats: Any) -> dict[str, Any]:
    """All counters, as JSON can hold them."""
    plain = stats if isinstance(stats, msgspec.Struct | Mapping) or is_dataclass(stats) else vars(stats)
    made: dict[str, Any] = msgspec.to_builtins(plain, str_keys=True, enc_hook=_plain)
    return made


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
