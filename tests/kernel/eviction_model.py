"""Recency as plain numbers beside the kernel's machine: what each entry's level should be, and what eviction leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_operations import Freeze
from strategies import Insert, Query, ids_of

from sarpstore import _format as fmt
from sarpstore._directory import Evicted, Threshold
from sarpstore._kernel.twin_directory import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_machine import Machine

TOP, PROBATION, FLOOR = 31, 16, 1
NONE = fmt.FILE_NUMBER_END
"""A threshold's file number that takes nothing of its level."""


def depth_of(window: int) -> int:
    """How much lower the entries of a window stand than those of the first."""
    return next(depth for depth, first in [(4, 8), (3, 4), (2, 2), (1, 1), (0, 0)] if window >= first)


class Model:
    """A machine and the level of each of its entries, by key and position; None: the placeholder of that key."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.levels: dict[tuple[int, int | None], int] = {}
        machine.directory.base.keep_recency(machine.setup.location_bytes)

    # Paths

    def chain(self, path: tuple[bytes, ...], holder: int, namespace: int) -> list[tuple[int, int, int, Entry]]:
        """(key, window, offset, entry) of what a match rests on, from the last record to the first."""
        twin = self.machine.twin
        found = twin.match(path, holder, namespace)
        out: list[tuple[int, int, int, Entry]] = []
        if found.owner is None:
            return out
        window, offset = found.owner.window, found.owner.offset
        while True:
            key = twin.directory.key(path[window * 64 + offset], holder, namespace)
            entries = sorted((e for e in twin.directory.at(key) if e.d == offset), key=lambda e: e.position or 0)
            out += [(key, window, offset, e) for e in entries]
            dp = entries[-1].dp if entries and entries[-1].position is not None else 0
            if offset:
                offset = dp if dp < offset else 0
            elif window:
                window, offset = window - 1, dp
            else:
                return out

    def touch(self, path: tuple[bytes, ...], holder: int, namespace: int) -> None:
        for key, window, _, entry in self.chain(path, holder, namespace):
            self.levels[key, entry.position] = max(self.levels[key, entry.position], TOP - depth_of(window))

    def touch_all(self) -> None:
        """All paths that were asked for or inserted have been matched."""
        for path in self.machine.queries:
            self.touch(*path)

    # Operations

    def apply(self, operation: Insert | Query | Freeze) -> None:
        if isinstance(operation, Freeze):
            self.machine.apply(operation)
            return
        query = ids_of(operation.path), operation.holder, operation.namespace
        self.touch(*query)
        before = self.entries()
        self.machine.apply(operation)
        after = self.entries()
        for key, position in after.keys() - before.keys():
            superseded = [k for k in before.keys() - after.keys() if k[0] == key and k[1] is not None]
            window = self.machine.twin._records[position].window if position is not None else 0
            level = TOP if position is None else PROBATION - depth_of(window)
            self.levels[key, position] = self.levels[superseded[0]] if superseded else level
        self.levels = {k: level for k, level in self.levels.items() if k in after}
        if isinstance(operation, Insert):
            assert self.machine.twin.match(*query).blocks == len(query[0])

    def tick(self) -> None:
        directory = self.machine.directory
        sweep(directory, lambda begin: directory.age(begin, 1))
        directory.base.tick()
        self.levels = {key: max(FLOOR, level - 1) for key, level in self.levels.items()}

    @staticmethod
    def threshold(level: int, file_number: int) -> Threshold:
        return Threshold(level, file_number, 64 if file_number == NONE else 0)

    def evict(self, level: int, file_number: int) -> None:
        """Evict in the kernel and here; what went must be the same."""
        machine, evicted = self.machine, Evicted()
        sweep(machine.directory, lambda b: machine.directory.evict(b, 1, self.threshold(level, file_number), evicted))
        before = machine.twin.directory.blocks()
        records = self._evict_here(level, file_number)
        machine.damaged = machine.damaged or records > 0  # what was inserted is not all there any more
        assert evicted.records == records
        assert evicted.blocks == before - machine.twin.directory.blocks()
        machine.check_directory()
        self.check_levels()

    def _evict_here(self, level: int, file_number: int) -> int:
        def goes(key: int, entry: Entry) -> bool:
            own = self.levels[key, entry.position]
            if own != level or entry.position is None:
                return own < level
            return file_number != NONE and (entry.d > 0 or entry.position >> 24 >= file_number)

        gone = 0
        entries = self.machine.twin.directory._entries
        for key, found in list(entries.items()):
            going = [e for e in found if goes(key, e)]
            found[:] = [e for e in found if e not in going]
            gone += sum(e.position is not None for e in going)
            mask, boundary = 0, False
            for root in (e for e in going if e.d == 0):
                mask |= root.mask
                boundary |= self.levels[key, root.position] == level
            staying = [e for e in found if e.d == 0]
            for root in staying:
                root.mask |= mask
            for e in going:
                del self.levels[key, e.position]
            if mask and boundary and not staying:
                found.append(Entry(None, 1, 0, 0, mask))
                self.levels[key, None] = level
            if not found:
                del entries[key]
        return gone

    # What must hold

    def entries(self) -> dict[tuple[int, int | None], Entry]:
        found = self.machine.twin.directory._entries
        return {(key, e.position): e for key, entries in found.items() for e in entries}

    def check_levels(self) -> None:
        """The kernel's levels are these."""
        assert dict(kernel_levels(self.machine)) == self.levels

    def check_order(self) -> None:
        """No entry on a path is colder than what comes after it."""
        for path in self.machine.queries:
            levels = [self.levels[key, entry.position] for key, _, _, entry in self.chain(*path)]
            assert levels == sorted(levels)


def kernel_levels(machine: Machine) -> Iterator[tuple[tuple[int, int | None], int]]:
    directory = machine.directory
    clock = directory.base.c.clock
    for number in range(len(directory.partitions)):
        for word0, word1 in directory.image(number).tolist():
            position = None if word1 & 1 else machine._position_of(word1 >> 24)
            yield (word0 >> 16, position), ((word1 >> 1) - clock) % 32


def sweep(directory: Any, some: Callable[[Any], Any]) -> int:
    """Go through all partitions; how many calls it took."""
    begin, calls = directory.begin_of(directory.first()), 0
    while begin is not None:
        begin, calls = some(begin), calls + 1
    return calls
