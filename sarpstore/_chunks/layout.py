"""What the KV of a model looks like: its layers, heads and dtype, and how positions are encoded in its keys."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sarpstore._errors import InputError, OptionError
from sarpstore._kernel import lib, pointer

__all__ = ["KVLayout", "LinearScaling", "Llama3Scaling", "Rope", "YarnScaling", "check_positions"]

_COUNT_MAX: Final = 65_536
_HEAD_DIM_MAX: Final[int] = lib.SARP_ROPE_HEAD_DIM_MAX
_POSITIONS_MAX: Final = 1 << 32
PAYLOADS: Final = ("exact", "int8", "fp8")
_CANONICAL_TAG: Final = b"sarpstore kv layout 1"
_NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
# A table is made of the turns of every so many positions, each followed by those of the first so many positions: adding
# angles takes four products, a cosine and a sine many times that.
_STEP: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor` (Chen et al., "Extending Context Window", 2023).

    factor: Above 0. OptionError for anything else.
    """

    factor: float

    def __post_init__(self) -> None:
        _set_number(self, "factor")

    def scaled(self, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The frequencies, radians a token (rotary_dim / 2,), as the scaling leaves them."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a ramp between ("The Llama 3 Herd", 2024).

    A wavelength is long from original_max_position_embeddings / low_freq_factor tokens on, and short up to
    original_max_position_embeddings / high_freq_factor. OptionError where a number is not above 0, or where
    high_freq_factor is not above low_freq_factor.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _set_number(self, name)
        _check_integer(self, "original_max_position_embeddings", 1, _POSITIONS_MAX)
        if self.high_freq_factor <= self.low_freq_factor:
            raise OptionError(
                f"high_freq_factor={self.high_freq_factor!r}: must be above low_freq_factor={self.low_freq_factor!r}"
            )

    def scaled(self, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The frequencies, radians a token (rotary_dim / 2,), as the scaling leaves them."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., "YaRN: Efficient Context Window Extension", 2023).

    Frequencies that turn more than `beta_fast` times in the original context are kept, those that turn less than
    `beta_slow` times are divided by `factor`, with a ramp over the dimensions between; `truncate` rounds its ends to
    whole dimensions. Cosine and sine are multiplied by m: `attention_factor`; or, where it is None, the ratio of
    0.1 * mscale * ln(factor) + 1 to the same with `mscale_all_dim`; or, where one of these is None or 0,
    0.1 * ln(factor) + 1. OptionError for numbers out of their bounds.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            _set_number(self, name)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                _set_number(self, name, zero=name != "attention_factor")
        _check_integer(self, "original_max_position_embeddings", 1, _POSITIONS_MAX)
        if not isinstance(self.truncate, bool):
            raise OptionError(f"truncate={self.truncate!r}: must be True or False")
        if self.beta_fast < self.beta_slow:
            raise OptionError(f"beta_fast={self.beta_fast!r}: must not be below beta_slow={self.beta_slow!r}")

    @property
    def magnitude(self) -> float:
        """m, by which cosine and sine are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    def _grown(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

    def scaled(self, frequencies: npt.NDArray[np.float64], theta: float) -> npt.NDArray[np.float64]:
        """The frequencies, radians a token (rotary_dim / 2,), as the scaling leaves them."""
        rotary_dim = 2 * len(frequencies)
        low = self._dimension(self.beta_fast, rotary_dim, theta)
        high = self._dimension(self.beta_slow, rotary_dim, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        width = high - low if high != low else 0.001
        divided: npt.NDArray[np.float64] = np.clip((np.arange(len(frequencies)) - low) / width, 0.0, 1.0)
        return frequencies / self.factor * divided + frequencies * (1 - divided)

    def _dimension(self, turns: float, rotary_dim: int, theta: float) -> float:
        """The pair, as a fraction, that turns so many times in the original context."""
        wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary_dim * math.log(wavelength) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position encoding of keys (Su et al., "RoFormer", 2021), as a model's configuration states it.

    theta: Base of the frequencies theta ** (-2i / rotary_dim), above 1.
    style: What pairs up. "neox": element i with i + rotary_dim / 2 (GPT-NeoX, Llama, Qwen); "interleaved": 2i with
        2i + 1 (GPT-J).
    rotary_dim: The first so many dimensions of a head are rotated, an even number; None: all.
    scaling: How a longer context was made: None, LinearScaling, Llama3Scaling or YarnScaling.

    Raises:
        OptionError: a value is not possible; the message names it.
    """

    theta: float = 10_000.0
    style: Literal["neox", "interleaved"] = "neox"
    rotary_dim: int | None = None
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    def __post_init__(self) -> None:
        _set_number(self, "theta")
        if self.theta <= 1:
            raise OptionError(f"theta={self.theta!r}: must be above 1")
        if self.style not in ("neox", "interleaved"):
            raise OptionError(f"style={self.style!r}: must be 'neox' or 'interleaved'")
        if self.rotary_dim is not None:
            _check_integer(self, "rotary_dim", 2, _HEAD_DIM_MAX)
            if self.rotary_dim % 2:
                raise OptionError(f"rotary_dim={self.rotary_dim!r}: must be even")
        if self.scaling is not None and not isinstance(self.scaling, LinearScaling | Llama3Scaling | YarnScaling):
            raise OptionError(f"scaling={self.scaling!r}: must be LinearScaling, Llama3Scaling, YarnScaling, or None")

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by: YaRN's m, else 1.0. `tables` has it in; nothing else may."""
        return self.scaling.magnitude if isinstance(self.scaling, YarnScaling) else 1.0

    def rotated_dimensions(self, head_dim: int) -> int:
        """rotary_dim for heads of `head_dim` elements. OptionError where it is above that, or odd."""
        rotary_dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if rotary_dim > head_dim or rotary_dim % 2:
            raise OptionError(f"rotary_dim={self.rotary_dim!r}: head_dim={head_dim!r} has no such even part")
        return rotary_dim

    def inverse_frequencies(self, head_dim: int) -> npt.NDArray[np.float64]:
        """Radians that each pair turns by from token to token, (rotary_dim / 2,) float64.

        Raises:
            OptionError: rotary_dim does not fit `head_dim`.
        """
        rotary_dim = self.rotated_dimensions(head_dim)
        frequencies = np.power(self.theta, -np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
        if self.scaling is None:
            return frequencies
        if isinstance(self.scaling, YarnScaling):
            return self.scaling.scaled(frequencies, self.theta)
        return self.scaling.scaled(frequencies)

    def tables(self, head_dim: int, begin: int, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosine and sine for positions `begin` to `begin + count` - 1, each (count, rotary_dim / 2) float32.

        Computed in float64 and rounded once; the magnitude is in them. A position has the same values in every table.

        Raises:
            OptionError: rotary_dim does not fit `head_dim`.
            InputError: positions below 0 or above 2^32.
        """
        check_positions(begin, count)
        frequencies, fine_cos, fine_sin = _fine_tables(self, head_dim)
        starts = np.arange(begin - begin % _STEP, begin + count, _STEP)[:, None] * frequencies
        coarse_cos, coarse_sin = np.cos(starts), np.sin(starts)
        cos, sin = (np.empty((count, len(frequencies)), np.float32) for _ in range(2))
        status = lib.sarp_rope_tables(
            *(pointer("double *", table) for table in (coarse_cos, coarse_sin)),
            len(starts),
            *(pointer("double *", table) for table in (fine_cos, fine_sin)),
            _STEP,
            begin % _STEP,
            count,
            len(frequencies),
            *(pointer("float *", table) for table in (cos, sin)),
        )
        assert status == lib.SARP_OK
        return cos, sin


@functools.lru_cache(maxsize=8)
def _fine_tables(rope: Rope, head_dim: int) -> tuple[npt.NDArray[np.float64], ...]:
    """Frequencies, and cosine and sine, times the magnitude, of the first positions."""
    frequencies = rope.inverse_frequencies(head_dim)
    angles = np.arange(_STEP)[:, None] * frequencies
    return frequencies, np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The shape of a model's KV: arrays are (layers, 2, kv_heads, tokens, head_dim), keys at 0, values at 1.

    layers, kv_heads: From 1 to 65,536 each.
    head_dim: From 1 to 4,096.
    dtype: "float32", "float16" or "bfloat16". numpy has no bfloat16: its bit patterns travel as uint16.
    rope: The rotary encoding of the keys; None: they have none, and are stored as they are.
    windows: None, or one entry a layer: None, or the sliding window of that layer in tokens.
    payload: How payloads are stored; what is put and loaded has the dtype all the same. "exact": as they are. "int8",
        "fp8" (E4M3): a byte an element, with a scale for each channel of a chunk, layer and head. What is loaded then
        differs, before its keys are rotated, by no more than 1/254 of the greatest magnitude of its channel in the
        chunk ("int8"), or than 1/16 of its own magnitude or 2^-18 of that greatest, whichever is more ("fp8"), besides
        the rounding to the dtype. Infinities and NaNs can't be put.

    Raises:
        OptionError: a value is not possible; the message names it.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    rope: Rope | None
    windows: tuple[int | None, ...] | None = None
    payload: Literal["exact", "int8", "fp8"] = "exact"

    def __post_init__(self) -> None:
        _check_integer(self, "layers", 1, _COUNT_MAX)
        _check_integer(self, "kv_heads", 1, _COUNT_MAX)
        _check_integer(self, "head_dim", 1, _HEAD_DIM_MAX)
        if self.dtype not in _NUMPY_DTYPES:
            raise OptionError(f"dtype={self.dtype!r}: must be one of {', '.join(map(repr, _NUMPY_DTYPES))}")
        if self.payload not in PAYLOADS:
            raise OptionError(f"payload={self.payload!r}: must be one of {', '.join(map(repr, PAYLOADS))}")
        if self.rope is not None:
            if not isinstance(self.rope, Rope):
                raise OptionError(f"rope={self.rope!r}: must be a Rope, or None")
            self.rope.rotated_dimensions(self.head_dim)
        if self.windows is not None:
            self._check_windows()

    def _check_windows(self) -> None:
        windows = self.windows
        if not isinstance(windows, tuple) or len(windows) != self.layers:
            raise OptionError(f"windows={windows!r}: must be a tuple with one entry for each of {self.layers} layers")
        for window in windows:
            if window is not None and (not _is_integer(window) or not 1 <= window <= _POSITIONS_MAX):
                raise OptionError(f"windows={windows!r}: {window!r} is no number of tokens above 0, and not None")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of arrays: little-endian float32 or float16, or uint16 for bfloat16."""
        return _NUMPY_DTYPES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, sliding windows left out of account."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.numpy_dtype.itemsize

    def shape(self, tokens: int) -> tuple[int, int, int, int, int]:
        """The shape of an array of so many tokens: (layers, 2, kv_heads, tokens, head_dim)."""
        return self.layers, 2, self.kv_heads, tokens, self.head_dim

    def kept_tokens(self, layer: int, tokens: int) -> int:
        """How many of the last of a chunk's `tokens` this layer needs: all, or at most its sliding window.

        Raises:
            InputError: there is no such layer, or `tokens` is below 0.
        """
        if not 0 <= layer < self.layers or tokens < 0:
            raise InputError(f"layer {layer} of {self.layers}, {tokens} tokens: one is out of its bounds")
        window = self.windows[layer] if self.windows is not None else None
        return tokens if window is None else min(tokens, window)

    def canonical(self) -> bytes:
        """All of it as bytes, the same for two layouts if and only if the same KV means the same in both.

        A tag with a version, then JSON with sorted keys, each preceded by its length as little-endian u32.
        """
        rope = self.rope
        windows = self.windows if self.windows is not None and any(self.windows) else None
        plain: dict[str, Any] = {
            "layers": self.layers,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "rope": None if rope is None else _plain_rope(rope, rope.rotated_dimensions(self.head_dim)),
            "windows": windows,
        }
        if self.payload != "exact":
            plain["payload"] = self.payload
        parts = (_CANONICAL_TAG, msgspec.json.encode(plain, order="sorted"))
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def check_positions(begin: int, count: int) -> None:
    """InputError where `count` positions from `begin` on are not all from 0 to 2^32 - 1."""
    if begin < 0 or count < 0 or begin + count > _POSITIONS_MAX:
        raise InputError(f"{count} positions from {begin} on are not all from 0 to {_POSITIONS_MAX - 1:,}")


def _plain_rope(rope: Rope, rotary_dim: int) -> dict[str, Any]:
    scaling = rope.scaling
    named = None if scaling is None else {"name": type(scaling).__name__, **asdict(scaling)}
    return {"theta": rope.theta, "style": rope.style, "rotary_dim": rotary_dim, "scaling": named}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(owner: object, name: str, low: int, high: int) -> None:
    value = getattr(owner, name)
    if not _is_integer(value) or not low <= value <= high:
        raise OptionError(f"{name}={value!r}: must be an integer from {low:,} to {high:,}")


def _set_number(owner: object, name: str, *, zero: bool = False) -> None:
    """Check a finite number above 0, or from 0 on, and keep it as a float: 8 and 8.0 mean the same."""
    value = getattr(owner, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be a number")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise OptionError(f"{name}={value!r}: must be finite and {'not below' if zero else 'above'} 0")
    object.__setattr__(owner, name, float(value))
