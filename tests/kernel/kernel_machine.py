"""The kernel's store in memory, and beside it the twin and a dict: every operation goes to all three, and they are
compared after each.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from kernel_operations import Checkpoint, Collide, Damage, Freeze, Operation, Rebuild, Reopen, Replay, Setup
from kernel_store import KernelStore
from kernel_twin import EQUAL_KEYS_MAX, FollowingTwin
from kernel_views import (
    SECRET,
    KernelQueries,
    Oracle,
    change_of,
    changes_array,
    changes_list,
    clear_cache,
    kernel_rows,
    parse_segment,
    twin_rows,
    unordered,
)
from strategies import Insert, Query, ids_of, locations_of

from sarpstore import _format as fmt
from sarpstore._directory.divergence import LOADED
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, ffi, lib
from sarpstore._kernel.twin_directory import Owner, SegmentChange, TwinDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


@dataclass(slots=True)
class Images:
    """A checkpoint: where its tail starts, and each partition as it was when its image was taken."""

    start: int
    pace: int
    left: list[int]
    taken: dict[int, tuple[npt.NDArray[Any], int, dict[int, list[Any]]]]


class Machine(KernelStore):
    """A kernel store whose operations all go to the twin and a dict, too."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.twin = FollowingTwin(SECRET)
        self.oracle = Oracle()
        self.queries: list[tuple[tuple[bytes, ...], int, int]] = []
        self.damaged = False
        """Records were damaged: matches may be shorter than the dict's."""
        self.collided = False
        """Entries were made that no record stands for."""
        self.images: Images | None = None

    # Operations

    def apply(self, operation: Operation) -> None:
        """One operation on all three, and what can be said at once of its effect."""
        self.counts[type(operation).__name__.lower()] += 1
        match operation:
            case Insert():
                self._insert(operation)
            case Query():
                query = (ids_of(operation.path), operation.holder, operation.namespace)
                self.queries.append(query)
                self.counts["hit" if self.check(*query) else "miss"] += 1
            case Freeze():
                self._freeze()
            case Damage():
                self._damage(operation)
            case Collide():
                self._collide(operation)
            case Replay():
                self._replay(operation)
            case Rebuild():
                self._rebuild(operation)
            case Checkpoint():
                self._checkpoint(operation)
            case Reopen():
                self._reopen(operation)
        self._take_images(self.images.pace if self.images else 0)

    def run(self, operations: Sequence[Operation]) -> None:
        """All operations, compared after each and thoroughly at the end."""
        for number, operation in enumerate(operations):
            self.apply(operation)
            self.check_directory()
            # The newest if it is new, else by turns one that the operation may have concerned.
            if self.queries and not isinstance(operation, Query):
                newest = isinstance(operation, Insert | Collide)
                self.check(*self.queries[-1 if newest else number * 7 % len(self.queries)])
        self.load_all()
        self.check_directory()
        for query in self.queries:
            self.check(*query)
        if not self.damaged and not self.collided:
            assert self.directory.blocks == len(self.oracle.locations)

    def _insert(self, operation: Insert) -> None:
        ids = ids_of(operation.path)
        size = self.setup.location_bytes
        locations = [loc[:8].ljust(size, b"\x5a") for loc in locations_of(operation.path, operation.number)]
        holder, namespace = operation.holder, operation.namespace
        self.queries.append((ids, holder, namespace))
        before = self.twin.match(ids, holder, namespace)
        status, query, records = self.kernel_insert(ids, locations, holder, namespace)
        if status == lib.SARP_NO_ROOM:
            self.counts["no room"] += 1
            assert not records
            self._freeze()
            status, query, records = self.kernel_insert(ids, locations, holder, namespace)
        assert status == lib.SARP_OK
        assert query.matched == before.blocks
        segments = [parse_segment(record, position, size) for position, record in records]
        written = self.twin.insert_at(ids, locations, holder, namespace, [segment.position for segment in segments])
        assert segments == written
        self.oracle.insert(ids, locations, holder, namespace)
        for segment in written:
            kind = "superseding" if segment.supersedes else "branching" if segment.d else "opening"
            self.counts[kind] += 1
            gathering = self.gatherer.buffer.begin_position
            self.counts["superseding in its commit"] += segment.supersedes >= gathering
            assert segment.supersedes < segment.position
        # A rebuild without a damaged root cuts the way to later windows, whose records can then hide newer ones.
        if not self.damaged:
            assert self.twin.match(ids, holder, namespace).blocks == len(ids)

    def _damage(self, operation: Damage) -> None:
        self.settle()
        segments = self.twin.segments()
        if not segments:
            return
        self.damaged = True
        segment = segments[operation.choice % len(segments)]
        file = self.log[fmt.position_file(segment.position)]
        at = fmt.position_offset(segment.position)
        page = at // fmt.PAGE * fmt.PAGE
        if operation.how == "byte":
            length = 128 + segment.n * (16 + self.setup.location_bytes)
            # Half of the time in the header.
            file[at + (operation.byte % 128 if operation.choice % 2 else operation.byte * 7 % length)] ^= 0x40
            self.twin.damage(segment.position)
        else:
            pages = {page, fmt.LOG_HEADER_BYTES}
            if operation.how == "zeros":
                pages = {page}
                file[page : page + fmt.PAGE] = bytes(fmt.PAGE)
            elif page != fmt.LOG_HEADER_BYTES:
                other = fmt.LOG_HEADER_BYTES
                first, second = file[page : page + fmt.PAGE], file[other : other + fmt.PAGE]
                file[page : page + fmt.PAGE], file[other : other + fmt.PAGE] = second, first
            else:
                file[page : page + fmt.PAGE] = file[page + 64 : page + fmt.PAGE] + bytes(64)
            for each in segments:
                each_at = fmt.position_offset(each.position) // fmt.PAGE * fmt.PAGE
                if each.position >> 24 == segment.position >> 24 and each_at in pages:
                    self.twin.damage(each.position)
        clear_cache(self.pages)

    def _collide(self, operation: Collide) -> None:
        segments = self.twin.segments()
        if not segments:
            return
        self.load_all()
        segment = segments[operation.choice % len(segments)]
        ids = ids_of(operation.path)
        window, offset = divmod(operation.block, fmt.WINDOW)
        keys = [self.twin.directory.key(ids[b], *operation.tenant) for b in (operation.block, window * fmt.WINDOW)]
        if any(len(self.twin.directory.at(key)) >= EQUAL_KEYS_MAX - 2 for key in keys):
            return
        d = offset if operation.d is None else operation.d
        n = max(operation.n, d + 1)
        change = SegmentChange(segment.position, *keys, n, d, operation.dp, 0)
        self.twin.directory.apply(change)
        self.directory.apply(changes_array([change]))
        self.collided = True
        self.queries.append((ids, *operation.tenant))

    def _replay(self, operation: Replay) -> None:
        self.settle()
        self.load_all()
        changes = self.scan_log()
        if not len(changes):
            return
        start = operation.choice % len(changes)
        before = unordered(twin_rows(self.twin.directory))
        for _ in range(operation.times):
            self.directory.apply(changes[start:])
        self.twin.replay(int(changes[start]["position"]), operation.times)
        if not self.damaged and not self.collided:
            assert unordered(twin_rows(self.twin.directory)) == before

    def _rebuild(self, operation: Rebuild) -> None:
        self._close(in_order=operation.in_order)
        changes = self.scan_log(operation.slice_pages)
        before = unordered(twin_rows(self.twin.directory))
        self.twin = self.twin.rebuilt()
        if not self.damaged and not self.collided:
            assert unordered(twin_rows(self.twin.directory)) == before
        self.directory = self._new_directory(self.slots)
        self._start(self.directory, self._empty_partitions())
        for number in range(len(self.setup.layout)):
            self.directory.load_empty(number)
        self.directory.apply(changes)
        self.waiting = {}
        self.images = None
        self._begin_writing()

    def _checkpoint(self, operation: Checkpoint) -> None:
        self._freeze()
        numbers = list(range(self.directory.c.partition_count))
        random.Random(operation.pace).shuffle(numbers)
        self.images = Images(self.gatherer.buffer.begin_position, operation.pace, numbers, {})

    def _take_images(self, count: int) -> None:
        images = self.images
        while images is not None and images.left and count:
            number = images.left.pop()
            self._load(number)
            part = self.directory.partitions[number]
            low, bits = int(part["prefix"]), 48 - int(part["depth"])
            entries = self.twin.directory._entries.items()
            twin = {k: [dataclasses.replace(e) for e in found] for k, found in entries if k >> bits == low >> bits}
            images.taken[number] = self.directory.image(number).copy(), int(part["blocks"]), twin
            count -= 1

    def _reopen(self, operation: Reopen) -> None:
        if self.images is None:
            return
        self.load_all()
        self._take_images(len(self.images.left))
        self._close(in_order=operation.order % 2 == 0)
        changes = self.scan_log()
        tail = changes[changes["position"] >= self.images.start]
        rows = self._empty_partitions()
        directory, twin = self._new_directory(self.slots), TwinDirectory(SECRET)
        for number, (entries, blocks, copies) in self.images.taken.items():
            rows[number]["entries"], rows[number]["blocks"] = len(entries), blocks
            twin._entries.update({key: [dataclasses.replace(e) for e in found] for key, found in copies.items()})
        self._start(directory, rows)
        assert directory.c.entries == sum(len(entries) for entries, _, _ in self.images.taken.values())
        self.waiting = {}
        for number in self.images.taken:
            steps = self._steps(tail, rows[number])
            self.waiting[number] = self.images.taken[number][0], tail, steps
        for change in changes_list(tail):
            key, root_key, position, supersedes, n, d, dp = change
            twin.apply(SegmentChange(position, key, root_key, n, d, dp, supersedes))
        before = unordered(twin_rows(self.twin.directory))
        self.twin = self.twin.with_directory(twin)
        if not self.damaged and not self.collided:
            assert unordered(twin_rows(twin)) == before
        self.directory = directory
        order = sorted(self.waiting)
        random.Random(operation.order).shuffle(order)
        for number in order[: operation.at_once]:
            self._load(number)
        self.images = None
        self._begin_writing()

    def _steps(self, changes: npt.NDArray[Any], row: np.void) -> npt.NDArray[np.uint32]:
        """The steps of changes that concern a partition, in order."""
        bits, prefix = 48 - int(row["depth"]), int(row["prefix"])
        steps = []
        for i, (key, root_key, _, _, _, d, _) in enumerate(changes_list(changes)):
            if key >> bits == prefix >> bits:
                steps.append(2 * i)
            if d and root_key >> bits == prefix >> bits:
                steps.append(2 * i + 1)
        return np.array(steps, "<u4")

    def scan_log(self, slice_pages: int = 1 << 20) -> npt.NDArray[Any]:
        """The changes of all segment records that can be read, which must be those that the twin has."""
        parts, commits, sequence = [np.empty(0, CHANGE_DTYPE)], 0, 0
        for number in sorted(self.log):
            found = self.scan_file(number, commits, slice_pages)
            parts.append(found.changes[found.changes["type"] == fmt.RECORD_SEGMENT])
            if not self.damaged:
                complete = found.commits[found.commits["flags"] & lib.SARP_COMMIT_COMPLETE != 0]
                assert complete["number"].tolist() == list(range(commits + 1, commits + 1 + len(complete)))
                assert len(complete) == len(found.commits)
                assert not len(found.damaged)
                assert found.tail == found.end == fmt.position(number, len(self.log[number]))
                commits += len(complete)
                sequence = max(sequence, found.sequence)
            elif len(found.commits):
                commits = int(found.commits[-1]["number"])
        if not self.damaged:
            assert (commits, sequence) == (self.end.commit, self.end.sequence - 1)
        changes = np.concatenate(parts)
        expected = [change_of(self.twin.directory.change(segment)) for segment in self.twin.segments()]
        assert changes_list(changes) == expected
        return changes

    # Comparing

    def check(self, ids: Sequence[bytes], holder: int, namespace: int) -> int:
        """Match and estimate a path in every way, and compare with the twin and the dict; the blocks that matched."""
        self.counts["match"] += 1
        exact = not self.damaged and not self.collided
        twin, given = self.twin, self.oracle.match(ids, holder, namespace)
        length, length_reads = twin.reads_of(lambda: twin.match(ids, holder, namespace))
        (located, locations), located_reads = twin.reads_of(lambda: twin.held(ids, holder, namespace))
        self._compare_estimate(ids, holder, namespace, len(given))

        queries, _, damaged = self.match(self.pages, ids, holder, namespace, [False, True])
        self._compare_answer(queries.c[0], length.blocks, length.owner, 1 if length.owner else 0)
        self._compare_answer(queries.c[1], located.blocks, located.owner, located.records_read)
        assert queries.locations(1) == locations
        self._check_damaged(damaged)

        # The same with nothing in memory, and on the other path through the CPU.
        self.directory.base.c.features = FEATURES ^ self.features
        queries, rounds, damaged = self.match(self.cold, ids, holder, namespace, [False])
        self._compare_answer(queries.c[0], length.blocks, length.owner, 1 if length.owner else 0)
        assert set().union(*rounds) == {self._page_of(position) for position in length_reads}
        assert {self._position_of(r) for r in damaged} == {p for p in length_reads if not twin.readable(p)}
        assert not exact or len(rounds) == (1 if given else 0)
        queries, rounds, damaged = self.match(self.cold, ids, holder, namespace, [True])
        self._compare_answer(queries.c[0], located.blocks, located.owner, located.records_read)
        assert queries.locations(0) == locations
        self._check_damaged(damaged)
        # All reads go out together.
        assert not exact or rounds == [pages for pages in [{self._page_of(p) for p in located_reads}] if pages]
        self.directory.base.c.features = self.features

        assert located.blocks <= length.blocks <= len(given)
        assert all(location in given[block] for block, location in enumerate(locations))
        if not self.damaged:
            assert length.blocks == len(given)
            assert locations == [first for first, *_ in given]
        return length.blocks

    def _compare_answer(self, query: Any, blocks: int, owner: Owner | None, records: int) -> None:
        assert query.status == lib.SARP_OK
        assert (query.matched, query.records) == (blocks, records)
        if owner is None:
            assert query.owner_reference == fmt.REFERENCE_NONE
            assert (query.owner_n, query.owner_d, query.owner_dp) == (0, 0, 0)
        else:
            assert self._position_of(query.owner_reference) == owner.position
            assert (query.owner_n, query.owner_d) == (owner.n, owner.offset)

    def _compare_estimate(self, ids: Sequence[bytes], holder: int, namespace: int, given: int) -> None:
        queries = KernelQueries(ids, holder, namespace, self.setup.location_bytes, [False])
        bounds = ffi.new("uint32_t[2]")
        lib.sarp_estimate(self.directory.c, queries.c, bounds, bounds + 1)
        if self.waiting:
            assert bounds[0] <= bounds[1] <= len(ids)
            assert self.damaged or self.collided or bounds[0] <= given <= bounds[1]
            return
        assert tuple(bounds) == self.twin.estimate(ids, holder, namespace)
        assert self.damaged or self.collided or bounds[0] <= given <= bounds[1]

    def _check_damaged(self, references: set[int]) -> None:
        assert not any(self.twin.readable(self._position_of(reference)) for reference in references)

    def check_directory(self) -> None:
        """The entries of all loaded partitions, their order among equal keys, and the counts."""
        directory, parts = self.directory, self.directory.partitions
        loaded = [n for n in range(len(parts)) if parts[n]["flags"] & LOADED]
        assert sorted(set(range(len(parts))) - set(loaded)) == sorted(self.waiting)
        ranges = [(int(parts[n]["prefix"]), 48 - int(parts[n]["depth"])) for n in loaded]
        rows = twin_rows(self.twin.directory, lambda key: any(key >> b == p >> b for p, b in ranges))
        assert kernel_rows(directory, loaded) == rows
        if not self.waiting:
            assert directory.entries == sum(len(found) for found, _ in rows.values())
            assert directory.blocks == self.twin.directory.blocks()
            assert directory.c.placeholders == sum(len(placeholders) for _, placeholders in rows.values())
            assert directory.blocks == int(parts["blocks"].sum())
