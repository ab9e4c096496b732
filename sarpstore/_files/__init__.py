"""The file layer: every byte of the store passes through `Folder` and `File`; real, simulated and faulty ones."""

from __future__ import annotations

from sarpstore._files.choice import folder_at, reads_direct
from sarpstore._files.counted import CountedFolder, rounded
from sarpstore._files.faulty import Fault, FaultyFolder, Operation
from sarpstore._files.interface import LOCK_NAME, File, Folder, ReadableBuffer, WritableBuffer, read_whole
from sarpstore._files.memory import CrashMode, MemoryFolder
from sarpstore._files.real import RealFile, RealFolder

__all__ = [
    "LOCK_NAME",
    "CountedFolder",
    "CrashMode",
    "Fault",
    "FaultyFolder",
    "File",
    "Folder",
    "MemoryFolder",
    "Operation",
    "ReadableBuffer",
    "RealFile",
    "RealFolder",
    "WritableBuffer",
    "folder_at",
    "read_whole",
    "reads_direct",
    "rounded",
]
