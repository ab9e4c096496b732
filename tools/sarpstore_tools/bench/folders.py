"""Where benchmarks put their stores."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnusableFolderError(click.ClickException):
    """The folder that the user named cannot be used."""

    exit_code = 2


store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make the stores in this folder, new or empty, and keep them (default: temporary).",
)


@contextlib.contextmanager
def work_folder(store: Path | None) -> Iterator[Path]:
    """The folder to work in: the user's, which must be new or empty, or one that is gone afterwards."""
    if store is None:
        folder = Path(tempfile.mkdtemp(prefix="sarpstore-bench-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        store.mkdir(parents=True, exist_ok=True)
        used = any(store.iterdir())
    except OSError as error:
        raise UnusableFolderError(f"{store}: {error.strerror}") from error
    if used:
        raise UnusableFolderError(f"{store}: not empty; measurements start with new stores")
    yield store
