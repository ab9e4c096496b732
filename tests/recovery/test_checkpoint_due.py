"""When a checkpoint is due: a pure function of sizes and time."""

from __future__ import annotations

import pytest

from sarpstore._checkpoint import checkpoint_due

KIB, MIB = 1 << 10, 1 << 20
SPEED = 500_000.0  # bytes a millisecond: 20 ms, the share of a target of 50, are 10 MB


@pytest.mark.parametrize(
    ("log", "replay", "directory", "since_ms", "due"),
    [
        (255 * KIB, 255 * KIB, 1 * KIB, 1e6, False),  # too little to be worth a checkpoint
        (256 * KIB, 256 * KIB, 64 * KIB, 500, True),  # four times the directory, at a server's pace
        (256 * KIB, 256 * KIB, 65 * KIB, 500, False),  # or less
        (256 * KIB, 256 * KIB, 64 * KIB, 499, False),  # but not that soon after the last one
        (4 * MIB, 1 * MIB, 1 * MIB, 0, True),  # a fast load: at 4 MiB
        (4 * MIB, 1 * MIB, 2 * MIB, 1e6, False),  # less than four times the directory, and quickly replayed
        (11 * MIB, 11 * MIB, 40 * MIB, 0, True),  # recovery would pass its target
        (9 * MIB, 9 * MIB, 40 * MIB, 1e6, False),  # but not for less than a quarter of the directory
    ],
)
def test_due(log: int, replay: int, directory: int, since_ms: float, due: bool) -> None:
    assert checkpoint_due(log, replay, directory, SPEED, 50, since_ms) == due


def test_a_tight_target_still_leaves_a_millisecond() -> None:
    assert not checkpoint_due(5 * MIB, 200_000, 8 * MIB, SPEED, 1, 1e6)
    assert checkpoint_due(5 * MIB, 250_000, 8 * MIB, SPEED, 1, 1e6)
