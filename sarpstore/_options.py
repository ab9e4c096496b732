"""The options of `open`: units, defaults, bounds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np

from sarpstore import _format as fmt
from sarpstore._errors import OptionError

__all__ = ["LOCATION", "Options", "Progress", "check_ttl", "described", "dtype_of_description"]

LOCATION: Final = np.dtype([("address", "<u8"), ("length", "<u4"), ("tier", "|u1"), ("flags", "|u1")])
"""The default location of a block's KV, 14 bytes: with it a full segment is half a page."""

Progress = Callable[[int, int], None]
"""Called as `progress(done_bytes, total_bytes)` while the log is read at open."""

# An open one, two that compaction fills, and some that can be emptied.
_LOG_FILES_MIN: Final = 8
_TTL_S_MAX: Final = 10 * 366 * 86_400.0
_RANGES: Final = {
    "sync_interval_ms": (1, 60_000),
    "log_file_bytes": (1 << 20, 1 << 30),
    "cache_bytes": (0, 1 << 40),
    "directory_bytes_max": (1 << 20, 1 << 37),
    "namespaces_max": (1, 1 << 24),
    "holders_max": (1, 1 << 16),
    "markers_max": (64, 1 << 24),
    "counts_max": (0, 1 << 24),
    "recovery_ms_target": (1, 600_000),
    "queue_depth": (1, 4096),
    "read_cap": (1, 64),
    "refine_at": (2, 255),
    "prune_at": (0, 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every option of `open`, validated.

    What shapes the files (`block_tokens`, `location_dtype`, `hash`, `routing`) is written in the store. None takes what
    the store has, and for a new store the default named below; anything else must agree with the store.

    create (True): Make the store if there is none.
    read_only (False): Open a snapshot; any number of readers may look on while one process writes.
    block_tokens (None): Tokens per block, 1 to 1,024. New stores: 16.
    location_dtype (None): Structured numpy dtype, packed, at most 46 bytes. New stores: `sarpstore.LOCATION`.
    hash (None): "sha256" is collision resistant; "mmh3" is faster, for trusted single-tenant use. New stores:
        "sha256".
    routing (None): "divergence" needs one entry a segment and loses nothing; "sarp" is the published method. New
        stores: "divergence".
    durability ("interval"): When an insertion is synced. "interval": the write begins `sync_interval_ms` after it
        at the latest; "always": before the call returns; "never": at `sync()` and `close()` only.
    sync_interval_ms (50): Milliseconds between group commits, 1 to 60,000.
    log_file_bytes (4 << 20): A log file is sealed at this size, 1 MiB to 1 GiB. A sealed file is recovered from
        its summary, the open one from its records. A store has room for 65,535 log files, and every start that
        inserts begins one.
    cache_bytes (64 << 20): Bound of the page cache.
    directory_bytes_max (1 << 30): Bound of the directory's memory, 1 MiB to 128 GiB; insertions past it raise
        LimitError.
    namespaces_max (100_000): Bound of the namespaces that a store holds, each some 200 bytes of memory; one
        more raises LimitError.
    holders_max (65_536): Bound of the holders that a store knows; one more raises LimitError.
    markers_max (131_072): Removals that are remembered one by one, 40 bytes each, 64 to 16,777,216. A mark pass begins
        when a quarter of them are new, in small stores earlier; removals past the bound wait for it.
    counts_max (65_536): Blocks that are remembered as announced more than once, 40 bytes each.
    ttl_s (None): Seconds after which a sequence expires, counted from when its first block was inserted. Not written
        in the store; `Store.set_ttl` sets those of holders and namespaces.
    bytes_max (None): Bound of the store's disk use: all files of the folder, each in whole pages of 4 KiB. At least
        eight log files; near it the records that were not asked for lately are evicted. None: no bound.
    recovery_ms_target (50): A checkpoint is due before replaying the log behind the last one would take longer,
        in milliseconds.
    io ("auto"): What reads from the device: "uring" is io_uring, "threads" works everywhere, "auto" takes io_uring
        where the system lets it be had.
    direct_io ("auto"): Whether log and image files are read past the system's page cache (O_DIRECT), so that
        `cache_bytes` is all the memory that their pages take: True, False, or "auto" where the file system can.
    queue_depth (128): Reads in flight at most, 1 to 4,096.
    exact (False): sarp's: no cap on reads. Without effect under divergence, which is always exact.
    read_cap (4): sarp's: reads a window.
    refine_at (16): sarp's: posting lists longer than this get another routing point.
    prune_at (3): sarp's: routing points whose predecessor has at most this many candidates are dropped.
    progress (None): Told how far the log has been read at open.
    """

    create: bool = True
    read_only: bool = False
    block_tokens: int | None = None
    location_dtype: Any = None
    hash: Literal["sha256", "mmh3"] | None = None
    routing: Literal["divergence", "sarp"] | None = None
    durability: Literal["interval", "always", "never"] = "interval"
    sync_interval_ms: int = 50
    log_file_bytes: int = 4 << 20
    cache_bytes: int = 64 << 20
    directory_bytes_max: int = 1 << 30
    namespaces_max: int = 100_000
    holders_max: int = 1 << 16
    markers_max: int = 1 << 17
    counts_max: int = 1 << 16
    ttl_s: float | None = None
    bytes_max: int | None = None
    recovery_ms_target: int = 50
    io: Literal["auto", "uring", "threads"] = "auto"
    direct_io: bool | Literal["auto"] = "auto"
    queue_depth: int = 128
    exact: bool = False
    read_cap: int = 4
    refine_at: int = 16
    prune_at: int = 3
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise OptionError(f"{name}={value!r}: must be an integer from {low:,} to {high:,}")
        for name in ("create", "read_only", "exact"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r}: must be True or False")
        check_ttl(self.ttl_s)
        _one_of("durability", self.durability, ("interval", "always", "never"))
        _one_of("io", self.io, ("auto", "uring", "threads"))
        _one_of("direct_io", self.direct_io, ("auto", True, False))
        self._check_shape()
        self._check_bytes_max()
        if self.progress is not None and not callable(self.progress):
            raise OptionError(f"progress={self.progress!r}: must be callable with (done, total), or None")
        if self.read_cap < self.prune_at:
            raise OptionError(
                f"read_cap={self.read_cap} is below prune_at={self.prune_at}: pruned candidates would tie"
            )

    def _check_shape(self) -> None:
        if self.hash is not None:
            _one_of("hash", self.hash, fmt.HASHES)
        if self.routing is not None:
            _one_of("routing", self.routing, fmt.ROUTINGS)
        tokens = self.block_tokens
        if tokens is not None and (
            not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= fmt.BLOCK_TOKENS_MAX
        ):
            raise OptionError(f"block_tokens={tokens!r}: must be an integer from 1 to {fmt.BLOCK_TOKENS_MAX:,}")
        if self.location_dtype is not None:
            object.__setattr__(self, "location_dtype", _location_dtype(self.location_dtype))

    def _check_bytes_max(self) -> None:
        value = self.bytes_max
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"bytes_max={value!r}: must be a number of bytes, or None")
        if value < _LOG_FILES_MIN * self.log_file_bytes:
            raise OptionError(
                f"bytes_max={value:,} has no room for {_LOG_FILES_MIN} log files of log_file_bytes="
                f"{self.log_file_bytes:,}: use at least {_LOG_FILES_MIN * self.log_file_bytes:,}, or smaller log files"
            )
        if value > fmt.SLOT_MAX * self.log_file_bytes:
            raise OptionError(
                f"bytes_max={value:,} is more than the {fmt.SLOT_MAX:,} log files that a store may have, of "
                f"log_file_bytes={self.log_file_bytes:,}: use larger log files"
            )

    @classmethod
    def of(cls, options: dict[str, Any]) -> Options:
        """Options from keywords; an unknown one is an OptionError that lists those there are."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise OptionError(f"unknown option {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**options)


def check_ttl(ttl_s: object) -> None:
    """OptionError for what is no time to live."""
    if ttl_s is None:
        return
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= _TTL_S_MAX:
        raise OptionError(f"ttl_s={ttl_s!r}: must be a number of seconds above 0, ten years at most, or None")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(type(value) is type(a) and value == a for a in allowed):
        raise OptionError(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}")


def _location_dtype(value: object) -> np.dtype[Any]:
    try:
        dtype = np.dtype(value)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise OptionError(f"location_dtype={value!r}: not a numpy dtype ({error})") from None
    if not isinstance(dtype, np.dtype) or dtype.names is None or dtype.hasobject:
        raise OptionError(f"location_dtype={dtype!r}: must be a structured dtype without objects")
    packed = np.dtype([(name, dtype.fields[name][0]) for name in dtype.names])  # type: ignore[index]
    if packed != dtype or any(packed.fields[name][0].names or packed.fields[name][0].shape for name in packed.names):  # type: ignore[index,union-attr]
        raise OptionError(f"location_dtype={dtype!r}: must be packed, of plain fields")
    if not 1 <= dtype.itemsize <= fmt.LOCATION_BYTES_MAX:
        raise OptionError(f"location_dtype has {dtype.itemsize} bytes: at most {fmt.LOCATION_BYTES_MAX} fit")
    if any(not name or ord(max(name)) > 126 for name in dtype.names):
        raise OptionError(f"location_dtype={dtype!r}: field names must be plain ASCII")
    if len(described(dtype)) > 3 * fmt.PAGE // 4:
        raise OptionError("location_dtype: its description is too long for a log file's header")
    return dtype.newbyteorder("<")


def described(dtype: np.dtype[Any]) -> list[list[str]]:
    """A location dtype as [[name, type], ...]: what a log header's description holds as JSON."""
    return [[name, dtype.fields[name][0].str] for name in dtype.names or ()]  # type: ignore[index]


def dtype_of_description(description: list[list[str]]) -> np.dtype[Any]:
    """The dtype that a log header describes. ValueError or TypeError where it is none."""
    dtype = np.dtype([(str(name), str(kind)) for name, kind in description])
    # The same object where it can be: what callers hand over is then compared by identity.
    return LOCATION if dtype == LOCATION else dtype
