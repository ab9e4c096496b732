"""`sarpstore chunks`: chunk reuse by simulation."""

from __future__ import annotations

import click

from sarpstore_tools.chunks.simulate import simulate_command


@click.group(short_help="Chunk reuse: simulate it.")
def chunks() -> None:
    """The same document after a different prompt."""


chunks.add_command(simulate_command)
