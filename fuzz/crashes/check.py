"""What an image has to show when it is opened, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import sarpstore
from fuzz.crashes.damage import Damage, spoil
from fuzz.crashes.disk import WatchedFolder
from fuzz.crashes.history import MODES, Answers, Difference, History, Image, ask
from sarpstore import _format as fmt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from sarpstore import Store
    from sarpstore._files import Folder, MemoryFolder

__all__ = ["SECONDS_MAX", "check", "check_damaged", "opened_and_cut"]

DEPTH_MAX: Final = 3
"""Power cuts one after another, each during the recovery from the one before."""
CHANGES_MAX: Final = 8
SECONDS_MAX: Final = 60
"""An opening that takes longer hangs."""
COUNTED_S: Final = 0.1
_NEW: Final = (9, 9, 9)
_NEW_ADDRESS: Final = 1 << 40


async def check(history: History, image: Image, random: Random) -> Image | None:
    """Recover an image and ask for everything; an image of a power cut meanwhile, if one came. Raises a Difference."""
    cut: list[Image] = []
    store = await opened_and_cut(image, random, cut, lambda folder: sarpstore.open(folder, **history.options))
    answers = await ask(store, history.questions)
    _check_answers(history, image, answers)
    _check_health(store)
    what = random.randrange(4)
    if what == 0:
        await _check_going_on(history, image, store, answers)
    elif what == 3:
        await _check_accounts(store, image.folder)
    await store.close()
    if what == 1:
        await _check_same(history, image, image.folder, answers, "opened a second time")
    elif what == 2:
        without = image.folder.clone()
        for name in without.names():
            if name.endswith((fmt.CHECKPOINT_SUFFIX, fmt.IMAGES_SUFFIX)):
                without.remove(name)
        without.sync()
        await _check_same(history, image, without, answers, "opened without checkpoints")
    return cut[0] if cut else None


async def check_damaged(history: History, image: Image, kind: str, random: Random) -> tuple[Damage, str] | None:
    """Damage an image and recover it: what was done and how it ended. Raises a Difference where that is not known."""
    folder = image.folder.clone()
    damage = spoil(folder, kind, random)
    if damage is None:
        return None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            store = await sarpstore.open(folder, **history.options)
    except sarpstore.SarpError:
        return damage, "refused"
    answers = await ask(store, history.questions)
    reported = store.stats().damaged_records > 0
    await store.close()
    return damage, _outcome(history, image, answers, damage, reported=reported)


def _outcome(history: History, image: Image, answers: Answers, damage: Damage, *, reported: bool) -> str:
    allowed = image.allowed
    if any(history.expected(number) == answers for number in allowed):
        return "reported, nothing lost" if reported else "harmless"
    if any(_shortened(answers, history.expected(number)) for number in allowed) and reported:
        return "reported, blocks lost"
    if any(history.expected(number) == answers for number in range(image.first)):
        # Where no later mark says that something was synced, its damage can't be told from a torn tail.
        return "reported, tail lost" if reported else "taken for a torn tail"
    states = [history.expected(number) for number in range(image.last + 1)]
    known = all(any(_starts(found, state[i]) for state in states) for i, found in enumerate(answers))
    if known and reported:
        return "reported, several lost"
    raise Difference(f"after {damage}: {_unlike(history, image, answers)}; damage reported: {reported}")


def _shortened(answers: Answers, expected: Answers) -> bool:
    return all(map(_starts, answers, expected))


def _starts(found: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return found == whole[: len(found)]


async def opened_and_cut(
    image: Any, random: Random, cut: list[Any], open_folder: Callable[[Folder], Awaitable[Any]]
) -> Any:
    """Open an image; at a change that chance chooses the power is cut once more, if not too often, for `cut`."""
    left = random.randint(1, CHANGES_MAX) if image.depth < DEPTH_MAX and random.random() < 0.25 else 0

    def changed() -> None:
        nonlocal left
        left -= 1
        if not left:
            mode = random.choice(MODES)
            folder = image.folder.crash(random, mode)
            cut.append(replace(image, folder=folder, mode=mode, depth=image.depth + 1))

    image.folder = image.folder.reopen()
    async with asyncio.timeout(SECONDS_MAX):
        return await open_folder(WatchedFolder(image.folder, changed))


def _check_answers(history: History, image: Image, answers: Answers) -> None:
    if image.only is not None:
        if answers != image.only:
            raise Difference(f"{image.mode} at change {image.at}, depth {image.depth}: {answers}, was {image.only}")
    elif not any(history.expected(number) == answers for number in image.allowed):
        raise Difference(_unlike(history, image, answers))


def _unlike(history: History, image: Image, answers: Answers) -> str:
    """The first answer that the newest allowed state does not give."""
    paths = [(domain, path) for domain, paths in history.questions for path in paths]
    expected = history.expected(image.last)
    at = next((i for i, found in enumerate(answers) if found != expected[i]), 0)
    (name, holder), path = paths[at]
    return (
        f"{image.mode} at change {image.at}, depth {image.depth}, states {image.first} to {image.last}: "
        f"holder {holder} of {name!r} has {answers[at]} of "
        f"{''.join(map(str, path))}, where {expected[at]} should be, or less"
    )


def _check_health(store: Store) -> None:
    stats = store.stats()
    if stats.damaged_records or stats.failed:
        raise Difference(f"{stats.damaged_records} damaged records after a power cut; failed: {stats.failed!r}")


async def _check_accounts(store: Store, folder: MemoryFolder) -> None:
    """What the store says of its files is what they are, once it has counted them."""
    await asyncio.sleep(COUNTED_S)
    found = sum(folder.size(name) for name in folder.names() if name.endswith(fmt.LOG_SUFFIX))
    if store.stats().log_bytes != found:
        raise Difference(f"stats say {store.stats().log_bytes} bytes of log, the files have {found}")


async def _check_going_on(history: History, image: Image, store: Store, answers: Answers) -> None:
    """What is inserted and synced after a recovery is there after the next power cut, and so is all else."""
    rows: Any = np.zeros(len(_NEW), sarpstore.LOCATION)
    rows["address"] = np.arange(_NEW_ADDRESS, _NEW_ADDRESS + len(_NEW))
    await store.namespace("a").insert(_NEW, rows)
    await store.sync()
    folder = image.folder.crash(history.random, "lose")
    after = await sarpstore.open(folder, **history.options)
    found = await after.namespace("a").match(_NEW)
    again = await ask(after, history.questions)
    await after.close()
    if found.locations["address"].tolist() != rows["address"].tolist():
        raise Difference(f"{found.blocks} of {len(_NEW)} blocks are left that were synced after a recovery")
    if again != answers:
        raise Difference(f"after a recovery and one insertion: {again}, was {answers}")


async def _check_same(history: History, image: Image, folder: MemoryFolder, answers: Answers, how: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        store = await sarpstore.open(folder.reopen(), **history.options)
    again = await ask(store, history.questions)
    await store.close()
    if again != answers:
        raise Difference(f"{how}: {_unlike(history, image, again)}; the first time {answers}")
