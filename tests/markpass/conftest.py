import sys
from pathlib import Path

import pytest

for name in ("engine", "kernel"):
    sys.path.insert(0, str(Path(__file__).parent.parent / name))
pytest.register_assert_rewrite("pass_store")
