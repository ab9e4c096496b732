"""The wall clock of a life, and what has outlived its time by it: as `Store.set_ttl` promises, no closer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from life_model import Domain

LATE_MS: Final = 1000
"""So much later than its time, at most, a sequence expires."""

Scope: TypeAlias = tuple[str, str | int]
"""("store", 0), ("holder", its number) or ("namespace", its name)."""


class WallClock:
    """Goes with the loop, and leaps where a step says so."""

    def __init__(self) -> None:
        self._leapt_ms = 1_000_000_000_000.0
        self.loop: AbstractEventLoop

    def now_ms(self) -> float:
        return self._leapt_ms + self.loop.time() * 1e3

    def leap(self, seconds: float) -> None:
        """Nobody ran meanwhile."""
        self._leapt_ms += seconds * 1e3


class Horizons:
    """Up to when what was inserted may, and must, have expired in the process that runs now.

    An expiry does not go back while a process runs: neither do these. The next process begins anew; but what may have
    expired in an earlier one may have left the directory there.
    """

    def __init__(self) -> None:
        self._ttl_ms: dict[Scope, float] = {}
        self._reached: dict[Scope, float] = defaultdict(float)
        self._ever: dict[Scope, float] = defaultdict(float)

    def opened(self, ttl_ms: dict[Scope, float], now_ms: float) -> None:
        """Another process runs, and was told of these times to live."""
        self._ttl_ms = dict(ttl_ms)
        self._reached.clear()
        self.passed(now_ms)

    def set(self, scope: Scope, ttl_ms: float | None, now_ms: float) -> None:
        """As `set_ttl`."""
        self.passed(now_ms)
        if ttl_ms is None:
            self._ttl_ms.pop(scope, None)
        else:
            self._ttl_ms[scope] = ttl_ms
        self.passed(now_ms)

    def passed(self, now_ms: float) -> None:
        """It is so late now."""
        for scope, ttl_ms in self._ttl_ms.items():
            self._reached[scope] = max(self._reached[scope], now_ms - ttl_ms)
            self._ever[scope] = max(self._ever[scope], now_ms - ttl_ms)

    def may(self, domain: Domain) -> float:
        """What was inserted before may have expired; nothing else has."""
        return self._highest(self._ever, domain)

    def must(self, domain: Domain) -> float:
        """What was inserted before has expired."""
        return self._highest(self._reached, domain) - LATE_MS

    @staticmethod
    def _highest(reached: dict[Scope, float], domain: Domain) -> float:
        scopes: list[Scope] = [("store", 0), ("namespace", domain[0]), ("holder", domain[1])]
        return max(reached.get(scope, 0.0) for scope in scopes)
