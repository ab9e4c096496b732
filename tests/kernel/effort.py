"""How much property tests of the kernel try: SARPSTORE_EXAMPLES_PERCENT of what is usual, more or less."""

from __future__ import annotations

import os

_PERCENT = int(os.environ.get("SARPSTORE_EXAMPLES_PERCENT", "100"))


def examples(usual: int) -> int:
    """How many examples instead of so many; one at least."""
    return max(1, usual * _PERCENT // 100)
