"""`sarpstore chunks`: what chunk reuse saves, by simulation, and what it does to a model's answers."""

from __future__ import annotations

import click

from sarpstore_tools.chunks.agreement import agreement_command
from sarpstore_tools.chunks.crashtest import crashtest_command
from sarpstore_tools.chunks.demo import demo_command
from sarpstore_tools.chunks.simulate import simulate_command


@click.group(short_help="Chunk reuse: simulate it, measure it with a model.")
def chunks() -> None:
    """The same document after a different prompt: what reuse of its KV saves, and what it does to a model's answers."""


chunks.add_command(simulate_command)
chunks.add_command(agreement_command)
chunks.add_command(demo_command)
chunks.add_command(crashtest_command)
