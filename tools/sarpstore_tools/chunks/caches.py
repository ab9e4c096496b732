"""Caches that a trace is run through: the store's own policy with sizes in place of payloads, and what it is compared
with. Bytes and tokens are counted; a cause for each token that missed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

import sarpstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sarpstore_tools.chunks.workload import Request, Trace

__all__ = ["CACHES", "Cache", "run"]

REGION_BYTES: Final = 256 << 20
REGIONS_MIN: Final = 16
_PAGE: Final = 4096


class Cache(Protocol):
    """Counts what one trace does to a cache."""

    hit_tokens: int
    written_bytes: int
    misses: Counter[str]
    """Tokens by cause: "new", "evicted", "not admitted". Of the others a trace has none: its documents are never cut
    at another boundary, and nothing damages them."""

    def request(self, trace: Trace, request: Request) -> None:
        """Look up, and put what missed."""


class _Counted:
    def __init__(self) -> None:
        self.hit_tokens = self.written_bytes = 0
        self.misses: Counter[str] = Counter()
        self._seen: set[Any] = set()
        self._held_once: set[Any] = set()

    def _missed(self, key: Any, tokens: int) -> None:
        cause = "new" if key not in self._seen else "evicted" if key in self._held_once else "not admitted"
        self._seen.add(key)
        self.misses[cause] += tokens


class ChunkReuse(_Counted):
    """Documents wherever they stand, kept by the store's policy."""

    def __init__(self, bytes_max: int, **options: Any) -> None:
        super().__init__()
        region_bytes = min(REGION_BYTES, bytes_max // REGIONS_MIN)
        self.policy = sarpstore.ChunkPolicy(bytes_max // region_bytes, region_bytes, **options)

    def request(self, trace: Trace, request: Request) -> None:
        """Look up each document, and put it where it missed and is admitted."""
        for document in request.documents:
            key, tokens = document.to_bytes(4, "little"), int(trace.tokens[document])
            if self.policy.look(key):
                self.hit_tokens += tokens
                continue
            self._missed(key, tokens)
            size = -(-tokens * trace.workload.token_bytes // _PAGE) * _PAGE
            if self.policy.admits(key, size):
                self._held_once.add(key)
                for step in self.policy.put(key, size):
                    if isinstance(step, sarpstore.ChunkPlaced):
                        self.written_bytes += sum(extent.bytes for extent in step.extents)


class LeastRecent(_Counted):
    """What was used least lately goes first, one piece at a time."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._left = bytes_max
        self._sizes: OrderedDict[Any, int] = OrderedDict()

    def _use(self, key: Any, tokens: int, token_bytes: int) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)
            return
        size = tokens * token_bytes
        while self._left < size and self._sizes:
            self._left += self._sizes.popitem(last=False)[1]
        if size <= self._left:
            self._sizes[key] = size
            self._left -= size
            self._held_once.add(key)
            self.written_bytes += size


class LeastRecentChunks(LeastRecent):
    """Documents wherever they stand."""

    def request(self, trace: Trace, request: Request) -> None:
        """Look up each document, and put it where it missed."""
        for document in request.documents:
            tokens = int(trace.tokens[document])
            if document in self._sizes:
                self.hit_tokens += tokens
            else:
                self._missed(document, tokens)
            self._use(document, tokens, trace.workload.token_bytes)


class Prefix(LeastRecent):
    """Documents only behind the same head and documents, as a prefix cache has them: what is behind goes first."""

    def request(self, trace: Trace, request: Request) -> None:
        """Follow the path while it is held; all of it is held afterwards."""
        pieces = list(self._pieces(trace, request))
        held = True
        for key, tokens in pieces:
            held = held and key in self._sizes
            if held:
                self.hit_tokens += tokens
            else:
                self._missed(key, tokens)
        for key, tokens in reversed(pieces):
            self._use(key, tokens, trace.workload.token_bytes)

    @staticmethod
    def _pieces(trace: Trace, request: Request) -> Iterable[tuple[Any, int]]:
        head = trace.workload.head_tokens
        key: tuple[int, ...] = (request.head if head else -1,)
        if head:
            yield key, head
        for document in request.documents:
            key = (*key, document)
            yield key, int(trace.tokens[document])


CACHES: Final[dict[str, Callable[[int], Cache]]] = {
    "chunks": ChunkReuse,
    "chunks, all admitted": lambda bytes_max: ChunkReuse(bytes_max, admission=False),
    "chunks, oldest region first": lambda bytes_max: ChunkReuse(bytes_max, admission=False, oldest_first=True),
    "chunks, least recent": LeastRecentChunks,
    "prefix, least recent": Prefix,
}


def run(cache: Cache, trace: Trace) -> float:
    """The share of all input tokens that hit."""
    for request in trace.requests:
        cache.request(trace, request)
    return cache.hit_tokens / sum(map(trace.tokens_of, trace.requests))
