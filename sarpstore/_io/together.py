"""Awaiting several things so that none outlives the call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["together"]


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results, in order. After a failure, or when cancelled, the others are cancelled, and have ended, too.

    `asyncio.gather` alone leaves the others running: they would go on with what its caller gives up. The first error is
    raised as it is, which a TaskGroup would wrap.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
