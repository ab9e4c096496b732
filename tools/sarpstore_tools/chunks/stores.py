"""The store of chunks that a command uses: in a folder, or in a temporary one."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sarpstore
from sarpstore.integrations.transformers import fingerprint_of, layout_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BYTES_MAX: Final = 4 * 10**9
"""Bound of a store that a command makes."""


@asynccontextmanager
async def open_store(
    path: Path | None, model: Any, tokenizer: Any, *, delimiter: int, dtype: str
) -> AsyncIterator[sarpstore.Chunks]:
    """The store at `path`, made where there is none; None: one in a temporary folder, which goes with it.

    Raises:
        sarpstore.SarpError: It cannot be opened.
    """
    if path is None:
        with tempfile.TemporaryDirectory(prefix="sarpstore-chunks-") as folder:
            async with open_store(Path(folder), model, tokenizer, delimiter=delimiter, dtype=dtype) as chunks:
                yield chunks
        return
    is_new = not path.is_dir() or not any(path.iterdir())
    async with sarpstore.open_chunks(
        path,
        layout=layout_of(model, dtype=dtype),
        fingerprint=fingerprint_of(model, tokenizer),
        delimiters=(delimiter,),
        bytes_max=BYTES_MAX if is_new else None,
    ) as chunks:
        yield chunks
