"""What the accepted log says was removed, and what that leaves of its segment records (removal.md, sections 1, 2, 4).

Expiry is not here: how long things live is said in no file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .log import CLEAR_HOLDER, COUNT, REMOVE, SEGMENT, Rows, holders
from .points import id_words, pieces
from .reporting import bytes_of, links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .accept import Log
    from .crc import Integers

Block = tuple[bytes, int, int]
"""Block id, holder and namespace."""

_IDS_AT: Final = 64
_COUNT: Final = struct.Struct("<16sI4x")
_WINDOW: Final = 64


def removed_ids(log: Log, row: Any) -> list[bytes]:
    """The ids of a remove record."""
    data = bytes_of(log, row, _IDS_AT, 16 * int(row["n"]))
    return [data[at : at + 16] for at in range(0, len(data), 16)]


def parse_counts(data: bytes) -> list[tuple[bytes, int]]:
    """Ids with their counts, from the bytes of a count record."""
    whole = len(data) - (len(data) - _IDS_AT) % _COUNT.size
    return list(_COUNT.iter_unpack(data[_IDS_AT:whole]))


class Removed:
    """`removals` are the positions at which blocks were removed, ascending: the last one is the marker. `epochs` has
    every holder that a clear-holder record names, `counts` what count records say last, `counted` all that they name.

    `segments` are the accepted segment records, in order; `left` is how many blocks of each nothing has removed, from
    its first on: not more than d if the record is dead.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.removals: dict[Block, list[int]] = {}
        self.epochs: dict[int, int] = {}
        self.counts: dict[Block, int] = {}
        self.counted: set[Block] = set()
        for row in log.rows[np.isin(log.rows["type"], (REMOVE, CLEAR_HOLDER, COUNT))]:
            self._replay(row)
        for effects in self.removals.values():
            effects.sort()
        self.segments = log.rows[log.rows["type"] == SEGMENT]
        self.left: Integers = self.segments["n"].astype(np.int64)
        if self.epochs:
            self.left[self.segments["born"] < self._epochs_of(self.segments)] = 0
        if self.removals or any(self.epochs.values()) or log.shortened:
            self._cut()

    def _replay(self, row: Any) -> None:
        """One record; they come in order of position."""
        words = row["words"].tolist()
        holder, namespace, effect = words[0] & 0xFFFFFFFF, words[1], words[2]
        if row["type"] == REMOVE:
            for one in removed_ids(self._log, row):
                self.removals.setdefault((one, holder, namespace), []).append(effect)
        elif row["type"] == CLEAR_HOLDER:
            self.epochs[holder] = max(self.epochs.get(holder, 0), effect)
            if effect == int(row["position"]):  # what a moved one cleared is not what has been counted since
                self.counts = {block: count for block, count in self.counts.items() if block[1] != holder}
        else:
            data = bytes_of(self._log, row, 0, int(row["length"]))
            self.counts |= {(one, holder, namespace): count for one, count in parse_counts(data)}
            self.counted |= {(one, holder, namespace) for one, _ in parse_counts(data)}

    def _epochs_of(self, segments: Rows) -> Any:
        numbers, which = np.unique(holders(segments), return_inverse=True)
        epochs = [self.epochs.get(number, 0) for number in numbers.tolist()]
        return np.array(epochs, dtype=np.uint64)[which]

    @property
    def dead(self) -> Rows:
        """The segment records that prove nothing any more."""
        return np.asarray(self.segments[self.left <= self.segments["d"]])

    @property
    def blocks(self) -> int:
        """Blocks held: of what no other record supersedes, what is left from d on."""
        current = ~np.isin(self.segments["position"], self.segments["supersedes"])
        held = self.left[current] - self.segments["d"][current]
        return int(held[held > 0].sum())

    def may_have_cut(self, old: Any, ids: list[bytes], common: int, new: Any) -> bool:
        """Whether a removal between two insertions took all of the old record's blocks behind the first `common`."""
        if not self._log.removals or common <= int(old["d"]):
            return False
        if self._log.shortened or self._log.damaged:
            return True  # the record of it may not be there any more
        born, until = int(old["born"]), int(new["born"])
        holder, namespace = int(old["words"][0]) & 0xFFFFFFFF, int(old["words"][1])
        some = ids[int(old["d"]) + 1 : common + 1]
        return any(born < at < until for one in some for at in self.removals.get((one, holder, namespace), ()))

    def _cut(self) -> None:
        """Markers of a record's own blocks end it there; one of an earlier window's leaves nothing, and neither does
        the loss of the window before: a record of it that is dead need not be kept."""
        newest: dict[int, int] = {}  # by index: the latest marker of any of the record's blocks
        for index, offset, marker in self._marked():
            newest[index] = max(newest.get(index, 0), marker)
            if marker > int(self.segments["born"][index]):
                self.left[index] = min(int(self.left[index]), offset)
        behind: dict[tuple[int, ...], int] = {}  # by link: the latest marker of all blocks before it
        held: set[tuple[int, ...]] = set()  # links that a record with all of its window leads to
        into, onto = list(links(self.segments, "words", 0)), list(links(self.segments, "last", 1))
        window = self.segments["words"][:, 0] >> np.uint64(32)
        for index in np.argsort(window, kind="stable").tolist():
            before = behind.get(into[index], 0)
            lost = window[index] > 0 and into[index] not in held and not self._log.damaged
            if lost or before > int(self.segments["born"][index]):
                self.left[index] = 0
            if self.left[index] == _WINDOW:
                held.add(onto[index])
            latest = max(before, newest.get(index, 0))
            if latest and self.segments["n"][index] == _WINDOW:
                behind[onto[index]] = max(behind.get(onto[index], 0), latest)

    def _marked(self) -> Iterator[tuple[int, int, int]]:
        """(index of a segment record, offset in it, position of the marker) for each marked block of a record."""
        if not self.removals:
            return
        lows = np.array(sorted({struct.unpack_from("<Q", block[0])[0] for block in self.removals}), dtype=np.uint64)
        for file, some in pieces(self._log, self.segments):
            words, first = id_words(file, self.segments[some])
            offsets = np.arange(_WINDOW)
            at = np.minimum(first[:, None] + 2 * offsets, len(words) - 2)
            candidates = np.isin(words[at], lows) & (offsets < self.segments["n"][some][:, None])
            for row, offset in zip(*(axis.tolist() for axis in np.nonzero(candidates)), strict=True):
                record = self.segments[some.start + row]
                one = words[at[row, offset] : at[row, offset] + 2].tobytes()
                block = one, int(record["words"][0]) & 0xFFFFFFFF, int(record["words"][1])
                if block in self.removals:
                    yield some.start + row, offset, self.removals[block][-1]
