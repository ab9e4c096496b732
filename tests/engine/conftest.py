import pytest

pytest.register_assert_rewrite("store_helpers")
