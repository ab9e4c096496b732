"""Judging a run: what each match had to find at least, and could find at most, given what overlapped it.

At least: what was inserted by calls that had returned when the match was called. At most: what was in insertions that
had been called when the match returned. With one request in flight the two are equal, and equal to what a sequential
oracle says. Blocks are known by the oracle's ordinals, which come from the tokens: no hash is trusted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from sarpstore_tools.bench.compare.driver import INSERT_BEGUN, INSERTED, MATCH_BEGUN, Played

if TYPE_CHECKING:
    from sarpstore_tools.bench.compare.requests import Ordinals, Requests

MISMATCHES_MAX = 5


class Verdict(msgspec.Struct, kw_only=True):
    """`wrong`: answers that claim what was not held, give other locations, or miss blocks though the engine is exact.

    `lost_blocks` were held and not found; `history_blocks` were asked for; `blocks` are held in the end.
    """

    wrong: int
    lost_blocks: int
    matched_blocks: int
    history_blocks: int
    blocks: int
    mismatches: list[str]


def judge(requests: Requests, played: Played, *, exact: bool, concurrency: int) -> Verdict:
    """The verdict on a run."""
    least, most, blocks = bounds(requests, played)
    done = played.done
    if concurrency == 1:
        expected = np.where(done, requests.expected, 0)
        assert np.array_equal(least[done], expected[done]), "the sequential oracle and the order of events disagree"
    missing = np.where(done, np.maximum(least - played.matched, 0), 0)
    bad = done & (played.matched > most)
    if exact:
        bad |= missing > 0
    bad[played.wrong_locations] = True
    return Verdict(
        wrong=int(np.count_nonzero(bad)),
        lost_blocks=int(missing.sum()),
        matched_blocks=int(played.matched[done].sum()),
        history_blocks=int(requests.history[done].sum()),
        blocks=blocks,
        mismatches=[
            f"request {i}: {played.matched[i]} blocks match, {least[i]} to {most[i]} are held"
            + (", with wrong locations" if i in played.wrong_locations else "")
            for i in np.flatnonzero(bad)[:MISMATCHES_MAX]
        ],
    )


def bounds(requests: Requests, played: Played) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """By request: blocks that must and that may match; and how many blocks are held after all."""
    size = int(requests.ordinals.max(initial=0)) + 1
    surely, maybe = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    least, most = np.zeros(len(requests), np.int64), np.zeros(len(requests), np.int64)
    for noted in played.events[: played.event_count]:
        request, event = divmod(noted, 4)
        ordinals = requests.ordinals_of(request)
        history = ordinals[: requests.history[request]]
        if event == MATCH_BEGUN:
            least[request] = _leading(surely, history)
        elif event == INSERT_BEGUN:
            maybe[ordinals] = True
        elif event == INSERTED:
            surely[ordinals] = True
        else:
            most[request] = _leading(maybe, history)
    return least, most, int(np.count_nonzero(surely))


def _leading(held: npt.NDArray[np.bool_], ordinals: Ordinals) -> int:
    """How many of the leading blocks are held."""
    if not len(ordinals):
        return 0
    found = held[ordinals]
    return len(found) if found.all() else int(found.argmin())
