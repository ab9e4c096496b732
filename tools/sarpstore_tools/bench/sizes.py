"""Sizes on the command line: 1e6, 1_000_000, or several with commas. For click's `callback`. And short, to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import Context, Parameter

SIZE_MAX = 1e9


def one_size(context: Context, parameter: Parameter, value: str) -> int:
    """A whole number from 1 to 10^9, in any of Python's notations."""
    try:
        size = float(value)
    except ValueError:
        size = 0.0
    if not 1 <= size <= SIZE_MAX or size != int(size):
        raise click.BadParameter(f"{value!r} is not a whole number from 1 to 1e9", context, parameter)
    return int(size)


def several_sizes(context: Context, parameter: Parameter, value: str) -> list[int]:
    """Several such numbers, ascending."""
    return sorted({one_size(context, parameter, part) for part in value.split(",")})


def short(size: int) -> str:
    """1e6 or 2.5e6 for what has at most two digits that are not zero, else all digits; `one_size` reads either."""
    digits = str(size).rstrip("0")
    if size < 1000 or len(digits) > 2:
        return str(size)
    return f"{'.'.join(digits)}e{len(str(size)) - 1}"
