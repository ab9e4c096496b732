"""Long runs of what the tests run in short; the tests' models are made importable here."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent / "tests" / "engine")
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
