"""The twin with the kernel's choices wherever the design leaves one open, so that the two can be compared exactly.

Positions come from the kernel, which places records where they fit. Of entries with equal keys the kernel looks at
eight, the latest entered first, and of equal proofs the first wins. It takes any entry under a window's first block for
a root: that claims nothing. And where an earlier window's record is lost it begins again there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from sarpstore._kernel.twin_directory import Entry, MatchResult, Segment, TwinDirectory, TwinStore, _Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sarpstore._kernel.twin_directory import _Proof

_T = TypeVar("_T")
EQUAL_KEYS_MAX = 8
_WINDOW = 64


class FollowingTwin(TwinStore):
    """`reads` collects the positions of the records that matching asked for, those that cannot be read too."""

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self.reads: set[int] = set()
        self._queries: dict[tuple[tuple[bytes, ...], int, int], _Query] = {}

    def insert_at(
        self,
        ids: Sequence[bytes],
        locations: Sequence[bytes],
        holder: int,
        namespace: int,
        positions: Sequence[int],
    ) -> list[Segment]:
        """`insert`, with the positions that the records were given."""
        query = self._query(ids, holder, namespace)
        found = self.match(ids, holder, namespace)
        if found.blocks == len(ids):
            written = []
        else:
            written = [self._first_segment(query, locations, found)]
            while written[-1].window + 1 < query.windows:
                written.append(self._opening(query, locations, written[-1].window + 1, written[-1].d, 0))
        assert len(written) == len(positions)
        written = [dataclasses.replace(s, position=p) for s, p in zip(written, positions, strict=True)]
        for segment in written:
            self._records[segment.position] = segment
            self.directory.apply(self.directory.change(segment))
        return written

    def held(self, ids: Sequence[bytes], holder: int, namespace: int) -> tuple[MatchResult, list[bytes]]:
        """How far locations reach, and they."""
        query = self._query(ids, holder, namespace)
        windows = self._present_windows(query)
        while windows:
            last, _ = self._prove(query, windows - 1)
            if last is None or not self._stands(last):
                windows -= 1
            else:
                proofs = [last]
                lost = next((u for u in reversed(range(windows - 1)) if not self._whole(query, u, proofs)), None)
                if lost is None:
                    proofs.reverse()
                    parts = [self._records[p.owner.position].locations[: p.length] for p in proofs]
                    locations = [location for part in parts for location in part]
                    return MatchResult(len(locations), last.owner, len(proofs)), locations
                windows = lost + 1
            query = self._query(ids[: windows * _WINDOW], holder, namespace)
        return MatchResult(0, None, 0), []

    def rebuilt(self) -> FollowingTwin:
        other = self.with_directory(TwinDirectory(self.directory.secret))
        other.replay(0)
        return other

    def with_directory(self, directory: TwinDirectory) -> FollowingTwin:
        """Another store with the same log."""
        other = FollowingTwin(directory.secret)
        other.directory = directory
        other._records = dict(self._records)
        return other

    def reads_of(self, step: Callable[[], _T]) -> tuple[_T, set[int]]:
        """What a step gives, and what it reads."""
        self.reads = set()
        result = step()
        return result, self.reads

    def readable(self, position: int) -> bool:
        return position in self._records

    def _whole(self, query: _Query, window: int, proofs: list[_Proof]) -> bool:
        proof = self._whole_by_dp(query, window) or self._prove(query, window)[0]
        if proof is None or proof.length < _WINDOW:
            return False
        proofs.append(proof)
        return True

    def _query(self, ids: Sequence[bytes], holder: int, namespace: int) -> _Query:
        # Keys depend on the secret alone, so they are made once a path.
        ids = tuple(ids)
        query = self._queries.get((ids, holder, namespace))
        if query is None:
            query = self._queries[ids, holder, namespace] = super()._query(ids, holder, namespace)
        return query

    def _present_windows(self, query: _Query) -> int:
        for window in range(query.windows):
            roots = self._seen(query.key(window, 0))
            if not roots:
                return window
            if window and not self._stands_on_whole(query, window, roots):
                return window + all(root.position is None for root in roots)
        return query.windows

    def _seen(self, key: int) -> list[Entry]:
        return self.directory.at(key)[::-1][:EQUAL_KEYS_MAX]

    def _entries_at(self, query: _Query, window: int, offset: int) -> list[Entry]:
        found = self._seen(query.key(window, offset))
        return [entry for entry in found if entry.d == offset and entry.position is not None]

    def _longest(self, query: _Query, window: int, entries: list[Entry]) -> _Proof | None:
        proofs = [proof for entry in entries if (proof := self._read(query, window, entry)) is not None]
        return max(proofs, key=lambda proof: proof.length, default=None)

    def _read(self, query: _Query, window: int, entry: Entry) -> _Proof | None:
        assert entry.position is not None
        self.reads.add(entry.position)
        return super()._read(query, window, entry)

    def _whole_by_dp(self, query: _Query, window: int) -> _Proof | None:
        for root in self._seen(query.key(window + 1, 0)):
            if root.position is None or root.d:
                continue
            proof = self._longest(query, window, self._entries_at(query, window, root.dp))
            if proof is not None and proof.length == _WINDOW:
                return proof
        return None
