"""The C kernel: the only importer of the cffi module.

`ffi` and `lib` are cffi's; `FEATURES` is what this CPU offers (SSE4.2, AVX2, SHA-NI, F16C), asked once, and
handed to every kernel call, since the kernel itself keeps no state. `SARPSTORE_FORCE_SCALAR=1` makes it 0,
which selects the portable path everywhere: how the scalar twins are tested on any machine.

Every call releases the GIL. Memory belongs to the caller: `reserve` gives zeroed address space that takes
memory only where it is touched, and `pointer` hands a buffer to the kernel.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from sarpstore._errors import LimitError
from sarpstore._kernel._native import ffi, lib

FEATURES: int = 0 if os.environ.get("SARPSTORE_FORCE_SCALAR") == "1" else lib.sarp_cpu_features()

# Linux's number; the mmap module names it from Python 3.13 on.
_MAP_NORESERVE = 0x4000

CHANGE_DTYPE = np.dtype(
    [
        ("key", "<u8"),
        ("root_key", "<u8"),
        ("position", "<u8"),
        ("supersedes", "<u8"),
        ("commit", "<u8"),
        ("n", "|u1"),
        ("d", "|u1"),
        ("dp", "|u1"),
        ("type", "|u1"),
        ("point", "|u1"),
        ("operation", "|u1"),
        ("level", "|u1"),
        ("reserved", "|u1"),
    ]
)
"""`sarp_change`: how a log record changes the directory."""

FOUND_COMMIT_DTYPE = np.dtype(
    [
        ("number", "<u8"),
        ("begin", "<u8"),
        ("end", "<u8"),
        ("synced", "<u8"),
        ("flags", "<u4"),
        ("records", "<u4"),
    ]
)
"""`sarp_found_commit`: a commit record found in the log."""

PARTITION_DTYPE = np.dtype(
    [
        ("prefix", "<u8"),
        ("pages", "<u4", (32,)),
        ("blocks", "<u4"),
        ("entries", "<u2"),
        ("depth", "|u1"),
        ("flags", "|u1"),
    ]
)
"""`sarp_partition`: one partition of the directory."""

POSTING_PARTITION_DTYPE = np.dtype(
    [
        ("word0", "<u8"),
        ("word1", "<u8"),
        ("filter", "<u8"),
        ("pages", "<u4", (32,)),
        ("blocks", "<u4"),
        ("entries", "<u2"),
        ("reserved", "|u1"),
        ("flags", "|u1"),
    ]
)
"""`sarp_posting_partition`: one partition of the directory of posting lists. The first three fields are its low."""

MARK_ROW_DTYPE = np.dtype(
    [
        ("reference", "<u8"),
        ("born", "<u8"),
        ("prefix", "<u8"),
        ("last", "<u8"),
        ("root_key", "<u8"),
        ("window", "<u4"),
        ("n", "|u1"),
        ("d", "|u1"),
        ("cut", "|u1"),
        ("whole", "|u1"),
    ]
)
"""`sarp_mark_row`: what a mark pass decides an entry by."""

assert CHANGE_DTYPE.itemsize == ffi.sizeof("sarp_change")
assert FOUND_COMMIT_DTYPE.itemsize == ffi.sizeof("sarp_found_commit")
assert PARTITION_DTYPE.itemsize == ffi.sizeof("sarp_partition")
assert MARK_ROW_DTYPE.itemsize == ffi.sizeof("sarp_mark_row")
assert POSTING_PARTITION_DTYPE.itemsize == ffi.sizeof("sarp_posting_partition")


def reserve(length: int, what: str) -> mmap.mmap:
    """`length` bytes of zeroed, page-aligned address space. LimitError where the system refuses to promise them."""
    try:
        space = mmap.mmap(-1, max(length, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise LimitError(f"{what}: no {length:,} bytes of address space to be had ({error})") from None
    with contextlib.suppress(OSError):  # a kernel without huge pages
        # They would take memory that is not counted in directory_bytes.
        space.madvise(mmap.MADV_NOHUGEPAGE)
    return space


def joined(parts: list[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The arrays one behind another. numpy's own concatenation looks at every field of a structured dtype each time."""
    return np.frombuffer(bytearray().join([part.data for part in parts]), dtype) if parts else np.empty(0, dtype)


def selected(table: npt.NDArray[Any], which: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of a structured array, by mask or index. numpy's own selection copies each field of each row by itself."""
    rows: npt.NDArray[Any] = table.view(f"V{table.dtype.itemsize}")[which].view(table.dtype)
    return rows


def pointer(kind: str, buffer: Any) -> Any:
    """A typed C pointer into a buffer that the caller keeps alive."""
    return ffi.cast(kind, ffi.from_buffer(buffer))


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC32C of the bytes, continued from `crc`."""
    return int(lib.sarp_crc32c(FEATURES, crc, ffi.from_buffer("uint8_t[]", data), len(data)))


__all__ = [
    "CHANGE_DTYPE",
    "FEATURES",
    "FOUND_COMMIT_DTYPE",
    "MARK_ROW_DTYPE",
    "PARTITION_DTYPE",
    "POSTING_PARTITION_DTYPE",
    "crc32c",
    "ffi",
    "joined",
    "lib",
    "pointer",
    "reserve",
    "selected",
]
