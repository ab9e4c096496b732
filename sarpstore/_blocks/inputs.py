"""What callers hand over, checked and brought into the form that the kernel reads."""

from __future__ import annotations

import array
import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._errors import InputError
from sarpstore._kernel import lib, pointer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["as_ids", "as_locations", "as_tokens", "ids_in_turns", "locations_in_turns", "tokens_in_turns"]

_TOKEN_MAX = 0xFFFF_FFFF
KEY_BYTES_MAX = 64
_BYTE = np.dtype(np.uint8)
# Numbers or keys of Python's that are converted before the event loop gets its turn: about a millisecond.
_TURN_ITEMS = 8192


async def in_turns(
    convert: Callable[[Any, int], npt.NDArray[Any]], values: Any, empty: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """`convert(values, 0)`; of a long list or tuple, slice by slice, each with its first index, in turns of the loop.

    Python's own numbers take some 100 ns each to convert, so a prompt of a million would hold the loop for 0.1 s.
    """
    if not isinstance(values, list | tuple) or len(values) <= _TURN_ITEMS:
        return convert(values, 0)
    parts = [empty]
    for first in range(0, len(values), _TURN_ITEMS):
        parts.append(convert(values[first : first + _TURN_ITEMS], first))
        await asyncio.sleep(0)
    return np.concatenate(parts)


async def tokens_in_turns(tokens: object) -> npt.NDArray[np.uint32]:
    """`as_tokens`, by and by: a long list must stay as it is until the call returns."""
    return await in_turns(as_tokens, tokens, np.empty(0, np.uint32))


async def ids_in_turns(ids: object) -> tuple[npt.NDArray[np.uint8], int]:
    """`as_ids`, by and by: a long list must stay as it is until the call returns."""
    if not isinstance(ids, list | tuple):
        return as_ids(ids)
    widths = set()

    def convert(part: object, _: int) -> npt.NDArray[np.uint8]:
        converted, width = as_ids(part)
        widths.add(width)
        if len(widths) > 1:
            raise InputError("ids: the block ids differ in length")
        return converted

    converted = await in_turns(convert, ids, np.empty((0, fmt.ID_BYTES), np.uint8))
    return converted, widths.pop()


def as_tokens(tokens: object, first: int = 0) -> npt.NDArray[np.uint32]:
    """Token ids as contiguous uint32: from ints, an integer array, array('I') or the like, or bytes of LE u32.

    `first` is the first one's index, for messages.
    """
    if isinstance(tokens, np.ndarray):
        values = tokens
    elif isinstance(tokens, bytes | bytearray | memoryview) and not _has_items(tokens):
        data = tokens if isinstance(tokens, bytes) else bytes(tokens)
        if len(data) % 4:
            raise InputError(f"tokens: {len(data)} bytes are not a whole number of little-endian u32")
        values = np.frombuffer(data, "<u4")
    elif isinstance(tokens, array.array | memoryview):
        values = np.asarray(tokens)
    else:
        values = _from_sequence(tokens)
    if values.ndim != 1:
        raise InputError(f"tokens: {values.ndim} dimensions; one sequence has 1")
    if not len(values):
        return np.empty(0, np.uint32)
    if values.dtype == np.uint32:
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "iu":
        raise InputError(f"tokens: dtype {values.dtype}; token ids are integers")
    if len(values) and (values.min() < 0 or values.max() > _TOKEN_MAX):
        bad = int(np.flatnonzero((values < 0) | (values > _TOKEN_MAX))[0])
        raise InputError(f"tokens[{first + bad}] = {int(values[bad])}: a token id is from 0 to 2**32 - 1")
    return np.ascontiguousarray(values, np.uint32)


def _has_items(buffer: bytes | bytearray | memoryview) -> bool:
    """Whether it is a view of integers wider than a byte, not raw bytes."""
    return isinstance(buffer, memoryview) and buffer.itemsize > 1


def _from_sequence(tokens: object) -> npt.NDArray[Any]:
    try:
        values = np.asarray(tokens if hasattr(tokens, "__len__") else list(tokens))  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"tokens: not a sequence of integers ({error})") from None
    if values.size == 0:
        return np.empty(0, np.uint32)
    if values.dtype == object:
        raise InputError("tokens: not a sequence of integers from 0 to 2**32 - 1")
    return values


def as_ids(ids: object) -> tuple[npt.NDArray[np.uint8], int]:
    """Block ids as (count, 16) uint8, and how many bytes each key had.

    From a uint8 array (count, width), from a sequence of equally long bytes, or from integers of 64 bits (8 bytes each,
    big-endian, as vLLM's events carry them). Keys shorter than 16 bytes are padded with zeros, longer ones are hashed.
    """
    if type(ids) is np.ndarray and ids.dtype is _BYTE and ids.ndim == 2 and ids.shape[1] == fmt.ID_BYTES and len(ids):
        return ids.copy(), fmt.ID_BYTES
    keys = _keys_of(ids)
    width: int = keys.shape[1]
    if not len(keys):
        return np.empty((0, fmt.ID_BYTES), np.uint8), 0
    if not 1 <= width <= KEY_BYTES_MAX:
        raise InputError(f"ids: keys of {width} bytes; from 1 to {KEY_BYTES_MAX} are possible")
    if width == fmt.ID_BYTES:
        # A copy: the caller may change its array while a read is awaited.
        return keys.copy(), width
    out = np.zeros((len(keys), fmt.ID_BYTES), np.uint8)
    if width < fmt.ID_BYTES:
        out[:, :width] = keys
    else:
        keys = np.ascontiguousarray(keys)
        lib.sarp_hash_keys(pointer("uint8_t *", keys), len(keys), width, pointer("uint8_t *", out))
    return out, width


def _keys_of(ids: object) -> npt.NDArray[np.uint8]:
    if isinstance(ids, np.ndarray):
        if ids.dtype == np.uint8 and ids.ndim == 2:
            return ids
        if ids.dtype.kind in "iu" and ids.dtype.itemsize == 8 and ids.ndim == 1:
            return np.ascontiguousarray(ids).astype(">u8").view(np.uint8).reshape(-1, 8)
        raise InputError(
            f"ids: an array of {ids.dtype} with shape {ids.shape}; need uint8 (count, bytes) or 64-bit integers"
        )
    if isinstance(ids, bytes | bytearray | memoryview | str):
        raise InputError(f"ids: {type(ids).__name__} is one key, or none; a sequence of block ids is needed")
    try:
        rows: list[Any] = list(ids)  # type: ignore[call-overload]
    except TypeError:
        raise InputError(f"ids: {type(ids).__name__} is not a sequence of block ids") from None
    if not rows:
        return np.empty((0, fmt.ID_BYTES), np.uint8)
    if all(isinstance(row, int | np.integer) and not isinstance(row, bool) for row in rows):
        return _keys_of_integers([int(row) for row in rows])
    return _keys_of_bytes([bytes(row) if isinstance(row, np.ndarray) else row for row in rows])


def _keys_of_integers(rows: list[int]) -> npt.NDArray[np.uint8]:
    if any(not -(1 << 63) <= row < 1 << 64 for row in rows):
        raise InputError("ids: integer block ids have 64 bits")
    return np.frombuffer(b"".join((row % (1 << 64)).to_bytes(8, "big") for row in rows), np.uint8).reshape(-1, 8)


def _keys_of_bytes(rows: list[Any]) -> npt.NDArray[np.uint8]:
    if not all(isinstance(row, bytes | bytearray | memoryview) for row in rows):
        raise InputError("ids: every block id must be bytes, or every one an integer")
    if len({len(row) for row in rows}) != 1:
        raise InputError("ids: the block ids differ in length")
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)


async def locations_in_turns(locations: object, dtype: np.dtype[Any], blocks: int) -> npt.NDArray[Any]:
    """`as_locations`, by and by: a long list must stay as it is until the call returns."""

    def convert(part: Any, first: int) -> npt.NDArray[Any]:
        return as_locations(part, dtype, min(len(part), blocks - first) if isinstance(part, list | tuple) else blocks)

    if isinstance(locations, list | tuple) and len(locations) != blocks:
        return as_locations(locations, dtype, blocks)
    return await in_turns(convert, locations, np.empty(0, dtype))


def as_locations(locations: object, dtype: np.dtype[Any], blocks: int) -> npt.NDArray[Any]:
    """One row of `dtype` per block, contiguous."""
    rows = locations
    if not isinstance(rows, np.ndarray):
        try:
            listed = list(rows)  # type: ignore[call-overload]
            if not all(isinstance(row, tuple | np.void) for row in listed):
                raise TypeError("each location is a tuple of its fields")  # noqa: TRY301 - numpy would repeat it
            rows = np.array(listed, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"locations: do not fit {dtype} ({error})") from None
    if rows.dtype is not dtype and rows.dtype != dtype:
        raise InputError(f"locations: dtype {rows.dtype}; this store's is {dtype}")
    if rows.shape != (blocks,):
        raise InputError(f"locations: shape {rows.shape}; {blocks} whole blocks need ({blocks},)")
    # A copy: the caller may change its array while a read is awaited.
    return rows.astype(dtype, order="C", copy=True) if rows.dtype is not dtype else rows.copy()
