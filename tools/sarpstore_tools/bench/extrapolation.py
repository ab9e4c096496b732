"""From sizes that were measured to one that could not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASURED_MIN = 3
"""Sizes that it takes: with two, nothing would say how far a power law is off."""


def extrapolated(sizes: Sequence[float], values: Sequence[float], size: float) -> float | None:
    """The value at `size` on the power law through (size, value), by least squares of the logarithms.

    None where a value is not above 0, or fewer than three were measured: then no such law is known.
    """
    if len(sizes) < MEASURED_MIN or min(values) <= 0:
        return None
    slope, at_one = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(np.exp(at_one + slope * np.log(size)))
