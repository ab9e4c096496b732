"""What a prompt has of stored chunks, and what is to be computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["Plan", "Span"]


@dataclass(slots=True)
class Span:
    """One chunk of a prompt: tokens from `begin` to before `end`."""

    begin: int
    end: int
    hit: bool
    why: str
    """Why it missed: "new", "boundary" (it begins as another chunk does that is, or was, held: the text is known, and
    was split elsewhere), "evicted", "not admitted", "damaged", "in flight" (another request computes it, and was not
    waited for), "question" (the last chunk, which is not stored); "" of a hit.
    """
    key: bytes = field(repr=False)
    bytes: int = 0
    """Of the payload that is to be loaded; 0 of a miss."""


@dataclass(slots=True)
class Plan:
    """A prompt's chunks in order, without gaps.

    Misses that this plan is to compute are claimed: other requests for them wait until they are put, or the plan is
    closed.
    """

    tokens: int
    """Of the prompt."""
    spans: tuple[Span, ...]
    _release: Callable[[bytes, object], None] = field(repr=False)
    _claimed: dict[bytes, object] = field(default_factory=dict, repr=False)

    @property
    def hits(self) -> list[Span]:
        """What can be loaded, in order."""
        return [span for span in self.spans if span.hit]

    @property
    def misses(self) -> list[Span]:
        """What is to be computed, in order, the question included."""
        return [span for span in self.spans if not span.hit]

    def close(self) -> None:
        """Give up what is claimed and was not put. Closing again does nothing."""
        while self._claimed:
            self._release(*self._claimed.popitem())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
