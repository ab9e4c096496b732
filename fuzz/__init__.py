"""Long runs of what the tests run in short; the tests' models are made importable here."""

from __future__ import annotations

import sys
from pathlib import Path

for _name in ("engine", "chunks"):
    _tests = str(Path(__file__).resolve().parent.parent / "tests" / _name)
    if _tests not in sys.path:
        sys.path.insert(0, _tests)
