"""Runs the tests of chosen modules under both directories: those that say `ROUTINGS_TOO = True`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sarpstore._log.header as header
from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of such a module one run a routing."""
    if getattr(metafunc.module, "ROUTINGS_TOO", False):
        metafunc.fixturenames.append("new_stores_routing")
        metafunc.parametrize("new_stores_routing", fmt.ROUTINGS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def new_stores_routing(request: pytest.FixtureRequest) -> Iterator[str]:
    """New stores have this routing where the test does not say."""
    before, header.DEFAULT_ROUTING = header.DEFAULT_ROUTING, request.param  # type: ignore[misc]
    yield request.param
    header.DEFAULT_ROUTING = before  # type: ignore[misc]
