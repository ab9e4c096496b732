"""The console script `sarpstore`. A subcommand's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "replay": ("sarpstore_tools.replay:replay", "Replay traces, check every answer, kill and recover."),
    "dump": ("sarpstore_tools.dump:dump", "Show the records and checkpoints of a store."),
    "verify": ("sarpstore_tools.verify:verify", "Check the files of a store."),
    "stats": ("sarpstore_tools.stats:stats", "Show the counters of a store, also of one that is open elsewhere."),
    "bench": ("sarpstore_tools.bench:bench", "Measure speed, memory and recovery."),
    "chunks": ("sarpstore_tools.chunks:chunks", "Chunk reuse: simulate it, measure it with a model."),
    "crashtest": ("sarpstore_tools.crashtest:crashtest", "Kill a writer again and again and check what survives."),
}
"""Name → (where its command is, what it does in one line)."""

USAGE_STATUS = 2
"""Exit status of every error that the user can act on."""


_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click raises, from 8.2 on, to show the help of a group that was called bare; before, it shows it by itself."""


class LazyGroup(click.Group):
    """Lists the commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import one command.

        Raises:
            click.ClickException: this installation does not have it.
        """
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise click.ClickException(f"this installation has no command {cmd_name} ({module} is missing)") from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the names and what they do, from `COMMANDS` alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("sarpstore"), prog_name="sarpstore")
def cli() -> None:
    """sarpstore: the KV-cache index that survives its server."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: errors that a user can act on are one line on stderr and status 2."""
    try:
        status = cli.main(args=arguments, prog_name="sarpstore", standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except _NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        sys.exit(USAGE_STATUS)
    except click.ClickException as error:
        _fail(_message(error), USAGE_STATUS)
    except BrokenPipeError:
        # The reader of our output left; do not complain again when Python flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if not _is_sarp_error(error):
            raise
        _fail(str(error), USAGE_STATUS)
    sys.exit(status if isinstance(status, int) else 0)


def _message(error: click.ClickException) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message()} (see {error.ctx.command_path} --help)"
    return error.format_message()


def _is_sarp_error(error: Exception) -> bool:
    """Whether the engine raised it; asks without importing the engine."""
    engine = sys.modules.get("sarpstore")
    kind = getattr(engine, "SarpError", None)
    return isinstance(kind, type) and isinstance(error, kind)


def _fail(message: str, status: int) -> None:
    one_line = " ".join(message.split())
    click.echo(f"sarpstore: {one_line}", err=True)
    sys.exit(status)
