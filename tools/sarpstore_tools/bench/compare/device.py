"""The device's own limit, to hold reads against: random reads of 4 KiB that go past the page cache, by fio."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec

from sarpstore_tools.bench.compare.engine import NotAvailableError
from sarpstore_tools.bench.compare.model import Device

if TYPE_CHECKING:
    from pathlib import Path

DEPTHS = (1, 32, 128)
FILE_BYTES = 512 << 20
SECONDS = 3
IO_ENGINES = ("io_uring", "libaio", "psync")


def device_limit(folder: Path, depth: int) -> Device:
    """Reads a second and latencies (µs) at a queue depth, on the device that holds `folder`; takes about 3 seconds.

    fio, randread, 4 KiB, direct, one job, over a file of 512 MiB; io_uring, or else libaio.

    Raises:
        NotAvailableError: fio is not installed, or cannot do it here.
    """
    program = shutil.which("fio")
    if program is None:
        raise NotAvailableError("fio is not installed here")
    reason = ""
    for engine in IO_ENGINES:
        if engine == "psync" and depth > 1:
            continue
        done = subprocess.run(  # noqa: S603 (an installed program)
            [program, *_arguments(folder / "fio", depth, engine)], capture_output=True, check=False, timeout=120
        )
        if done.returncode == 0:
            read = _decoded(done.stdout)["jobs"][0]["read"]
            percentiles = read["clat_ns"]["percentile"]
            return Device(
                depth=depth,
                reads_per_second=read["iops"],
                p50_us=percentiles["50.000000"] / 1e3,
                p99_us=percentiles["99.000000"] / 1e3,
                how=f"fio, {engine}, O_DIRECT",
            )
        reason = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:][0]
    raise NotAvailableError(f"fio cannot read directly here: {reason}")


def _arguments(file: Path, depth: int, engine: str) -> list[str]:
    settings = {
        "name": "limit",
        "filename": str(file),
        "size": str(FILE_BYTES),
        "rw": "randread",
        "bs": "4k",
        "direct": "1",
        "iodepth": str(depth),
        "ioengine": engine,
        "runtime": str(SECONDS),
        "randrepeat": "0",
        "output-format": "json",
    }
    return [*(f"--{name}={value}" for name, value in settings.items()), "--time_based"]


def _decoded(output: bytes) -> Any:
    """fio's JSON, which warnings may precede."""
    return msgspec.json.decode(output[output.index(b"{") :])
