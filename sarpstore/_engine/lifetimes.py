"""Times to live: of the store, of a holder, of a namespace (format-spec/removal.md, section 1).

A sequence expires with its first block, `ttl_s` seconds after that was inserted, as an object store's lifecycle rule
would take it away: what follows is of no use without it. An expiry is a position in the log, so nothing is searched
for: what was born below is dead, and compaction leaves it behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sarpstore._clock import wall_ms

if TYPE_CHECKING:
    from sarpstore._engine.state import State

__all__ = ["Lifetimes"]

_MOMENT_MS: Final = 250

Scope = tuple[str, int]
"""("store", 0), ("holder", its number) or ("namespace", its 64 bits)."""


class Lifetimes:
    """The times to live that this process was told of. They are not written in the store."""

    def __init__(self, ttl_s: float | None) -> None:
        self._ttl_ms: dict[Scope, float] = {}
        self._noted_ms = 0
        if ttl_s is not None:
            self._ttl_ms["store", 0] = ttl_s * 1e3

    def __bool__(self) -> bool:
        return bool(self._ttl_ms)

    def set(self, state: State, scope: Scope, ttl_s: float | None) -> None:
        """From now on what is in that scope lives so long; None: for ever, if it has not expired yet."""
        if ttl_s is None:
            self._ttl_ms.pop(scope, None)
        else:
            self._ttl_ms[scope] = ttl_s * 1e3
            self.tick(state)

    def tick(self, state: State) -> None:
        """Note where the log stands, four times a second at most, and let expire what has outlived its time."""
        now_ms = wall_ms()
        if state.gathering is not None and now_ms - self._noted_ms >= _MOMENT_MS:
            self._noted_ms = now_ms
            state.moments.add(state.gatherer.part(), now_ms)
        self.expire(state)

    def expire(self, state: State) -> None:
        """Let expire what has outlived its time by now, as far as moments tell."""
        now_ms = wall_ms()
        for (kind, key), ttl_ms in self._ttl_ms.items():
            state.removals.expire(state.moments.before(int(now_ms - ttl_ms)), kind, key)
