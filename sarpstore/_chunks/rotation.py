"""Keys rotated for the positions where a chunk stands, and its values beside them, from array to array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore._chunks.layout import check_positions
from sarpstore._errors import InputError
from sarpstore._kernel import FEATURES, ffi, lib

if TYPE_CHECKING:
    from sarpstore._chunks.layout import KVLayout

__all__ = ["DTYPES", "apply", "rotate", "rotate_keys", "rows_of"]

Array = npt.NDArray[Any]

# Positions whose tables are held at once: a few MB, whatever the length of the chunk.
_TABLE_TOKENS: Final = 4096
DTYPES: Final = {
    "float32": lib.SARP_ROPE_FLOAT32,
    "float16": lib.SARP_ROPE_FLOAT16,
    "bfloat16": lib.SARP_ROPE_BFLOAT16,
}
_STYLES: Final = {"neox": lib.SARP_ROPE_NEOX, "interleaved": lib.SARP_ROPE_INTERLEAVED}


def rotate(layout: KVLayout, source: Array, target: Array, begin: int) -> None:
    """Write a chunk's KV to `target`: its keys rotated for the positions from `begin` on, its values as they are.

    source: (layers, 2, kv_heads, tokens, head_dim) of the layout's `numpy_dtype`, its keys unrotated.
    target: The same shape and dtype, such as a slice of tokens of the prompt's whole KV; or `source` itself.
        Both may be views with any strides that leave a row of head_dim elements together, and both may have some of the
        layout's layers only, as where sliding windows give them other numbers of tokens.
    begin: Position of the first token.

    The GIL is released meanwhile, so callers may run several chunks, or layers, in threads of their own.

    Raises:
        InputError: a shape, dtype or position is not possible, or the arrays share memory without being the same.
            Nothing was written.
    """
    _check(layout, source, target, 5, begin)
    if source.shape[1] != 2:
        raise InputError(f"shape {source.shape}: keys and values are 2 along the second axis")
    rotate_keys(layout, source[:, 0], target[:, 0], begin)
    _run(layout, source[:, 1], target[:, 1])


def rotate_keys(layout: KVLayout, source: Array, target: Array, begin: int) -> None:
    """Write keys to `target`, rotated for the positions from `begin` on. As `rotate`, of one kind of KV alone.

    source, target: (layers, kv_heads, tokens, head_dim); see `rotate`.

    Raises:
        InputError: a shape, dtype or position is not possible, or the arrays share memory without being the same.
            Nothing was written.
    """
    _check(layout, source, target, 4, begin)
    rope, tokens = layout.rope, source.shape[2]
    if rope is None:
        _run(layout, source, target)
        return
    for first in range(0, tokens, _TABLE_TOKENS):
        some = slice(first, first + _TABLE_TOKENS)
        tables = rope.tables(layout.head_dim, begin + first, min(_TABLE_TOKENS, tokens - first))
        _run(layout, source[:, :, some], target[:, :, some], tables)


def apply(layout: KVLayout, keys_unrotated: Array, begin: int) -> Array:
    """A copy of keys (layers, kv_heads, tokens, head_dim), rotated for the positions from `begin` on.

    Raises:
        InputError: a shape, dtype or position is not possible.
    """
    rotated = np.empty(keys_unrotated.shape, keys_unrotated.dtype)
    rotate_keys(layout, keys_unrotated, rotated, begin)
    return rotated


def _check(layout: KVLayout, source: Array, target: Array, axes: int, begin: int) -> None:
    for name, array in (("source", source), ("target", target)):
        if array.dtype != layout.numpy_dtype:
            raise InputError(f"{name} has dtype {array.dtype}, not {layout.numpy_dtype} as {layout.dtype} has it")
        if array.ndim != axes:
            raise InputError(f"{name} has shape {array.shape}, which are not {axes} axes")
        heads, head_dim = array.shape[-3], array.shape[-1]
        if (heads, head_dim) != (layout.kv_heads, layout.head_dim) or array.shape[0] > layout.layers:
            raise InputError(
                f"{name} has shape {array.shape}: layers, kv_heads and head_dim are "
                f"{layout.layers}, {layout.kv_heads} and {layout.head_dim}"
            )
        if array.size and (array.strides[-1] != array.itemsize or min(array.strides) < 0):
            raise InputError(f"{name} has strides {array.strides}: rows must be in one piece, and no axis reversed")
    if source.shape != target.shape:
        raise InputError(f"source has shape {source.shape}, target {target.shape}")
    if not target.flags.writeable:
        raise InputError("target is read-only")
    if np.may_share_memory(source, target) and not _same_rows(source, target):
        raise InputError("source and target share memory, and are not the same rows")
    check_positions(begin, source.shape[-2])


def _same_rows(source: Array, target: Array) -> bool:
    return source.ctypes.data == target.ctypes.data and source.strides == target.strides


def _run(layout: KVLayout, source: Array, target: Array, tables: tuple[Array, Array] | None = None) -> None:
    """One call of the kernel over (layers, kv_heads, tokens, head_dim); without tables the rows are copied."""
    style, rotary_dim, cos, sin = lib.SARP_ROPE_NONE, 0, ffi.NULL, ffi.NULL
    if tables is not None and layout.rope is not None:
        style, rotary_dim = _STYLES[layout.rope.style], layout.rope.rotated_dimensions(layout.head_dim)
        cos, sin = (ffi.from_buffer("float[]", table) for table in tables)
    status = lib.sarp_rope(
        FEATURES, DTYPES[layout.dtype], style, rows_of(source), rows_of(target), cos, sin, *source.shape, rotary_dim
    )
    if status != lib.SARP_OK:
        raise InputError(f"target has strides {target.strides}: its rows overlap")


def rows_of(array: Array) -> Any:
    """Where the rows of a view (layers, heads, tokens, head_dim) stand, for the kernel. No axis may be reversed."""
    rows = ffi.new("sarp_rows *")
    rows.memory = ffi.cast("uint8_t *", array.ctypes.data)
    rows.layer, rows.head, rows.token, _ = array.strides
    rows.bytes = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    rows.bytes += array.itemsize
    return rows
