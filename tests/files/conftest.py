import pytest

pytest.register_assert_rewrite("folder_suite")
