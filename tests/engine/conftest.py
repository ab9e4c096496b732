import pytest

pytest.register_assert_rewrite("store_helpers")

from routings import new_stores_routing, pytest_generate_tests  # noqa: E402, F401
