"""What a figure was measured on."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec

import sarpstore

FEATURES = ("sse4_2", "avx2", "sha_ni")
"""What the kernel has faster paths for, as Linux names it."""

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Processor, system and file system. `cores` are those that this process may use."""

    cpu: str
    cores: int
    features: list[str]
    missing_features: list[str]
    system: str
    python: str
    sarpstore: str
    loop: str
    file_system: str

    def lines(self) -> list[str]:
        """The same for people."""
        missing = f" (missing: {' '.join(self.missing_features)})" if self.missing_features else ""
        return [
            f"machine: {self.cpu}, {self.cores} cores, {' '.join(self.features) or 'no features'}{missing}",
            (
                f"system: {self.system}, Python {self.python}, sarpstore {self.sarpstore}, {self.loop}; "
                f"store on {self.file_system}"
            ),
        ]


def this_machine(folder: Path) -> Machine:
    """This machine, with the file system that holds `folder`."""
    model, flags = _cpu()
    if os.environ.get("SARPSTORE_FORCE_SCALAR") == "1":
        flags = set()
    return Machine(
        cpu=model,
        cores=len(os.sched_getaffinity(0)),
        features=[name for name in FEATURES if name in flags],
        missing_features=[name for name in FEATURES if name not in flags],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        sarpstore=sarpstore.__version__,
        loop=event_loop()[0],
        file_system=_file_system(folder),
    )


def event_loop() -> tuple[str, LoopFactory | None]:
    """The event loop's name, and what makes it: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", None
    return f"uvloop {importlib.metadata.version('uvloop')}", uvloop.new_event_loop


def _cpu() -> tuple[str, set[str]]:
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    model = fields.get("model name") or platform.processor() or platform.machine()
    return model, set(fields.get("flags", "").split())


def _file_system(folder: Path) -> str:
    """Type and device of the mount that holds `folder`."""
    path = folder.resolve()
    best, found = -1, "an unknown file system"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        kind, device = after.split()[:2]
        if path.is_relative_to(point) and len(point) >= best:
            best, found = len(point), f"{kind} ({device})"
    return found
