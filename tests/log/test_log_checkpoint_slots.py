"""A checkpoint head names only log files that exist when it is published."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

import sarpstore
from sarpstore import _format as fmt
from sarpstore._checkpoint import CheckpointHead
from sarpstore._files import MemoryFolder, read_whole


async def test_a_head_published_while_the_log_goes_on_to_a_new_file_does_not_name_it() -> None:
    folder = MemoryFolder()
    rng = np.random.default_rng(0)
    rows = np.zeros(64, sarpstore.LOCATION)
    async with sarpstore.open(folder.reopen(), log_file_bytes=1 << 20, cache_bytes=0) as store:
        x = store.namespace("x")

        async def insert() -> None:
            while True:
                await x.insert_ids(rng.integers(0, 256, (64, 16), dtype=np.uint8), rows)

        inserting = asyncio.create_task(insert())
        heads = 0
        while heads < 5 or len(fmt.numbered(folder.names(), fmt.LOG_SUFFIX)) < 4:
            await store.checkpoint()
            heads += 1
            # As a crash right now would leave it.
            image = folder.clone()
            names = image.names()
            newest = fmt.numbered(names, fmt.CHECKPOINT_SUFFIX)[-1]
            name = fmt.checkpoint_name(newest)
            head = CheckpointHead.decode(read_whole(image, name), name, newest)
            assert set(head.slots.values()) <= set(fmt.numbered(names, fmt.LOG_SUFFIX))
        inserting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await inserting
