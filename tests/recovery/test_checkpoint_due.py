"""When a checkpoint is due: a pure function of sizes and time."""

from __future__ import annotations

import pytest

from sarpstore._checkpoint import checkpoint_due, replay_ms, slowness

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("log", "expected_ms", "directory", "since_ms", "due"),
    [
        (255 * KIB, 1e6, 1 * KIB, 1e6, False),  # too little to be worth a checkpoint
        (256 * KIB, 0, 64 * KIB, 500, True),  # four times the directory, at a server's pace
        (256 * KIB, 0, 65 * KIB, 500, False),  # or less
        (256 * KIB, 1e6, 64 * KIB, 499, False),  # but not that soon after the last one
        (4 * MIB, 0, 1 * MIB, 0, True),  # a fast load: at 4 MiB
        (4 * MIB, 19.9, 2 * MIB, 1e6, False),  # less than four times the directory, and quickly replayed
        (11 * MIB, 20.0, 40 * MIB, 0, True),  # recovery would pass its target
        (9 * MIB, 1e6, 40 * MIB, 1e6, False),  # but not for less than a quarter of the directory
    ],
)
def test_due(log: int, expected_ms: float, directory: int, since_ms: float, due: bool) -> None:
    assert checkpoint_due(log, expected_ms, directory, 50, since_ms) == due


def test_a_tight_target_still_leaves_a_millisecond() -> None:
    assert not checkpoint_due(5 * MIB, 0.49, 8 * MIB, 1, 1e6)
    assert checkpoint_due(5 * MIB, 0.5, 8 * MIB, 1, 1e6)


def test_summaries_are_little_to_read_and_much_to_go_through() -> None:
    assert replay_ms(10 * MIB, 0) == pytest.approx(21, rel=0.01)
    assert replay_ms(1 * MIB, 50_000) == pytest.approx(22, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "recovery_ms", "expected"),
    [
        (50_000, 30.0, 1.0),
        (50_000, 50.0, 2.0),
        (10_000, 500.0, 1.0),  # too few to tell
        (50_000, 11.0, 0.5),
        (50_000, 10_000.0, 16.0),
    ],
)
def test_slowness_is_that_of_the_last_recovery(changes: int, recovery_ms: float, expected: float) -> None:
    assert slowness(0, changes, recovery_ms) == expected
