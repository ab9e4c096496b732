"""Sizes on the command line: 1e6, 1_000_000, or several with commas."""

from __future__ import annotations

from typing import Any

import click


class Size(click.ParamType):
    """A whole number from 1 to 10^9, in any of Python's notations."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        try:
            size = float(value)
        except ValueError:
            size = 0.0
        if not 1 <= size <= 1e9 or size != int(size):
            self.fail(f"{value!r} is not a whole number from 1 to 1e9", param, ctx)
        return int(size)


class Sizes(Size):
    """Several, ascending."""

    name = "size,size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers as a list."""
        if isinstance(value, list):
            return value
        return sorted({super(Sizes, self).convert(part, param, ctx) for part in str(value).split(",")})


SIZE = Size()
SIZES = Sizes()
