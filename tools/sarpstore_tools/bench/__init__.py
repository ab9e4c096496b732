"""`sarpstore bench`: speed, memory, recovery after a kill, a long life, large sizes, keys rotated, and peers."""

from __future__ import annotations

import click

from sarpstore_tools.bench.chunks import chunks_command
from sarpstore_tools.bench.churn import churn_command
from sarpstore_tools.bench.compare import compare_command
from sarpstore_tools.bench.core import core_command
from sarpstore_tools.bench.directory import directory_command
from sarpstore_tools.bench.loop import loop_command
from sarpstore_tools.bench.maintenance import maintenance_command
from sarpstore_tools.bench.reads import reads_command
from sarpstore_tools.bench.recovery import recovery_command
from sarpstore_tools.bench.rope import rope_command
from sarpstore_tools.bench.scale import scale_command


@click.group(short_help="Measure speed, memory and recovery.")
def bench() -> None:
    """Measure, and compare each figure with its target.

    Exit status: 0 if every target was met, 1 if one was missed or an answer was wrong, 2 if it could not be measured.
    """


bench.add_command(core_command)
bench.add_command(directory_command)
bench.add_command(recovery_command)
bench.add_command(compare_command)
bench.add_command(loop_command)
bench.add_command(reads_command)
bench.add_command(scale_command)
bench.add_command(churn_command)
bench.add_command(maintenance_command)
bench.add_command(chunks_command)
bench.add_command(rope_command)
