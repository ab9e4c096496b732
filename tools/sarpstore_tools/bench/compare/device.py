"""The device's own limit, to hold reads against: random reads of 4 KiB that go past the page cache.

By fio where it is installed, else by a loop in C (`bench/device_loop`): as many threads as the queue is deep.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from sarpstore_tools.bench.compare.engine import NotAvailableError
from sarpstore_tools.bench.compare.model import Device
from sarpstore_tools.bench.compare.programs import compiled

DEPTHS = (1, 32, 128)
FILE_BYTES = 512 << 20
SECONDS = 3
LOOP_SOURCES = Path(__file__).parent.parent / "device_loop"
IO_ENGINES = ("io_uring", "libaio", "psync")


def device_limit(folder: Path, depth: int) -> Device:
    """Reads a second and latencies (µs) at a queue depth, on the device that holds `folder`; takes about 3 seconds.

    fio, randread, 4 KiB, direct, one job, over a file of 512 MiB; io_uring, or else libaio.

    Raises:
        NotAvailableError: neither fio nor the loop can do it here.
    """
    program = shutil.which("fio")
    if program is None:
        return loop_limit(folder, depth)
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


def loop_limit(folder: Path, depth: int) -> Device:
    """The same by the loop in C.

    Raises:
        NotAvailableError: it cannot be compiled, or the file system has no direct reads.
    """
    program = compiled("device_loop", LOOP_SOURCES, ("gcc", "cc"), ("-O2", "-std=gnu11"), ("-pthread",))
    done = subprocess.run(  # noqa: S603 (our own program)
        [program, str(folder / "device_loop"), str(depth), str(SECONDS)], capture_output=True, check=False, timeout=120
    )
    if done.returncode:
        raise NotAvailableError(f"no direct reads here: {done.stderr.decode(errors='replace').strip()}")
    return Device(depth=depth, how="a loop in C, threads, O_DIRECT", **_decoded(done.stdout))


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
