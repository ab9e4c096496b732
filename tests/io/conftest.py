"""Every test here runs under asyncio's loop and under uvloop."""

import asyncio

import pytest
import uvloop

pytest.register_assert_rewrite("backend_suite", "io_helpers")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories():
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
