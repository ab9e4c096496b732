"""What a caller asks for of the medium: a folder by its path or as it is, and how its files are read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from sarpstore._errors import OptionError
from sarpstore._files.real import RealFolder

if TYPE_CHECKING:
    from sarpstore._files.interface import Folder

__all__ = ["folder_at", "reads_direct"]


def folder_at(path: str | os.PathLike[str] | Folder, *, create: bool) -> Folder:
    """The folder at a path, with `create` made where it is missing; or the `Folder`. OptionError: it is neither."""
    if not isinstance(path, str | os.PathLike):
        if hasattr(path, "sync"):
            return path
        raise OptionError(f"path={path!r}: must be a path, or a Folder of the file layer")
    text = os.fspath(path)
    try:
        possible = isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise OptionError(f"path={text!r}: must be text that a file name can hold")
    return RealFolder.open_or_create(text, create=create)


def reads_direct(folder: Folder, direct_io: Literal["auto"] | bool) -> bool:
    """Whether files are read past the system's cache; OptionError where they must and can't be. For a thread."""
    if direct_io is False:
        return False
    takes = folder.takes_direct()
    if direct_io is True and not takes:
        raise OptionError(f"direct_io=True: the file system of {folder.path} has no direct reads; use 'auto' or False")
    return takes
