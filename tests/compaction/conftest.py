import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
pytest.register_assert_rewrite("store_helpers")

from routings import new_stores_routing, pytest_generate_tests  # noqa: E402, F401
