"""Every test here runs under asyncio's loop and under uvloop; the fixtures are a scheduler and what it stands on."""

import asyncio

import pytest
import uvloop

pytest.register_assert_rewrite("backend_suite", "io_helpers")

from io_helpers import ManualBackend, make_scheduler, memory_file  # noqa: E402


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories():
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def backend():
    return ManualBackend()


@pytest.fixture
def file():
    return memory_file()


@pytest.fixture
async def scheduler(backend, file):
    return make_scheduler(backend, file)
