"""Killing a process again and again: hearing it out, and what every report of such rounds says."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from sarpstore_tools.bench.figures import Figure, counted, measured
from sarpstore_tools.bench.worker import Failed, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sarpstore_tools.bench.worker import Worker
    from sarpstore_tools.killpoints import KillPoint
    from sarpstore_tools.powercut import CutDisk

WAIT_SECONDS_MAX: Final = 60.0


class Listener(threading.Thread):
    """Hears the process out, so that its pipe never fills; what it said until its death is complete after the kill.

    With a `disk` the power goes just before it is killed. When the power is gone nobody hears anything any more: a sync
    that is under way then may say that it succeeded, and did not. So what counts as acknowledged must be among the
    first `heard_before` of what was `heard`.
    """

    def __init__(self, worker: Worker, disk: CutDisk | None = None) -> None:
        super().__init__(daemon=True)
        self.heard: list[Any] = []
        """All that it said but where it is, and why it gives up."""
        self.where = "starting"
        self.failed = ""
        """Why it ended, or hung, by itself."""
        self.killed_itself = False
        self._disk = disk
        self._cut_at: int | None = None
        self._worker = worker
        self._changed = threading.Condition()
        self._reached: set[str] = set()
        self.start()

    @property
    def heard_before(self) -> int:
        """How much it had said before the power went, or in all."""
        return len(self.heard) if self._cut_at is None else self._cut_at

    def run(self) -> None:
        for message in self._worker.messages():
            if isinstance(message, Phase):
                self._reach(message.where)
            elif not isinstance(message, Failed):
                self.heard.append(message)
            elif self._cut_at is None:
                self.failed = message.reason
        self._reach("")

    def _reach(self, where: str) -> None:
        with self._changed:
            self.where = where or self.where
            self._reached.add(where)
            self._changed.notify_all()

    def kill_after(self, where: str, seconds: float) -> None:
        """Kill it so many seconds after it began with that, or when it has died by itself; both are heard out."""
        with self._changed:
            self._changed.wait_for(lambda: self._reached & {where, ""}, WAIT_SECONDS_MAX)
            hung = not self._reached & {where, ""}
        time.sleep(seconds)
        ended = self._worker.process.poll() is not None
        self._bury()
        if ended:
            self.failed = self.failed or f"it ended by itself with status {self._worker.process.returncode}"
        elif hung:
            self.failed = f"it hung while {self.where}"

    def await_death(self, where: str, seconds: float) -> None:
        """Let it kill itself, or so many seconds after it began with that kill it."""
        with self._changed:
            hung = not self._changed.wait_for(lambda: self._reached & {where, ""}, WAIT_SECONDS_MAX)
            ended = self._changed.wait_for(lambda: "" in self._reached, seconds)
        if ended:
            status = self._worker.process.wait()
            self.killed_itself = status == -signal.SIGKILL
            if not self.killed_itself:
                self.failed = self.failed or f"it ended by itself with status {status}"
        elif hung:
            self.failed = f"it hung while {self.where}"
        self._bury()

    def _bury(self) -> None:
        """Kill it, if it lives, the power going before that where it is cut, and hear it out."""
        try:
            if self._disk is not None:
                self._cut_at = len(self.heard)
                self._disk.cut()
        finally:
            self._worker.kill()
            self.join()
            self._worker.stop()
        if self._disk is not None:
            self._disk.back()


class KilledRound(Protocol):
    """What one kill left, as far as every test of kills tells it."""

    where: str
    point: KillPoint | None
    messages: list[str]


def kills_figure(rounds: Sequence[KilledRound]) -> Figure:
    """How many kills there were, and where they fell."""
    fell = Counter(one.where for one in rounds).most_common()
    return counted("kills", len(rounds), note=", ".join(f"{where} {count}" for where, count in fell))


def points_figure(rounds: Sequence[KilledRound]) -> Figure:
    """At which points a process killed itself; the rest of the kills came before it got there."""
    found = Counter(one.point.point for one in rounds if one.point)
    note = ", ".join(f"{point} {count}" for point, count in sorted(found.items()))
    return counted("kills at named points", found.total(), note=note)


def recovery_figures(milliseconds: Sequence[float], note: str) -> list[Figure]:
    """Of the rounds that left a store."""
    taken = [each for each in milliseconds if each]
    return [measured("recovery", "ms", taken, note=f"{note}, page cache warm")] if taken else []


def failures_of(rounds: Sequence[KilledRound]) -> list[str]:
    """Everything that was said of the rounds, with where each was killed."""
    return [
        f"round {number} (killed while {one.where}{_place(one.point)}): {text}"
        for number, one in enumerate(rounds, start=1)
        for text in one.messages
    ]


def _place(point: KillPoint | None) -> str:
    return f", {point.when} {point.point} number {point.nth}" if point else ""


def stopped_early(rounds: int, kills: int) -> str:
    """Why there were fewer rounds than asked for."""
    return f"stopped by --seconds-max after {rounds} of {kills} kills"
