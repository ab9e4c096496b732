"""The directory of posting lists without the engine around it, and beside it the twin and a dict.

As `kernel_machine` does for the other directory: every operation goes to all three, and they are compared after each.
The log is what the kernel encoded; what the kernel asks for is brought from memory.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from kernel_views import SECRET, UUID, KernelQueries, Needs, Oracle, clear_cache, parse_segment
from postings_views import FIRST_PAGE, SIZE, Element, Images, Setup, changes_list, list_changes, rows_of, twin_of
from strategies import ids_of, locations_of

from sarpstore import _format as fmt
from sarpstore._directory import LOADED, PostingsDirectory
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, ffi, lib, pointer
from sarpstore._kernel.twin_postings import (
    ListChange,
    PostingsMatch,
    TwinPostings,
    TwinPostingsStore,
    Written,
    invariant_faults,
)
from sarpstore._log.commits import CommitBuffer, summary_of
from sarpstore._log.gather import Frozen, Gatherer, LogEnd
from sarpstore._log.header import Shape
from sarpstore._log.pages import Pages
from sarpstore._log.scan import FileScan, PageScanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt


class PostingsMachine:
    """A store without files, tasks and clocks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.counts: Counter[str] = Counter()
        self.features = 0 if setup.scalar else FEATURES
        self.twin = TwinPostingsStore(SECRET, setup.read_cap, setup.refine_at, setup.prune_at, setup.tie_cap)
        self.oracle = Oracle()
        self.shape = Shape(UUID, SECRET, 16, "sha256", "sarp", np.dtype(f"V{SIZE}"))
        self.end = LogEnd()
        self.log: dict[int, bytearray] = {}
        self.pending: list[Frozen] = []
        self.queries: list[tuple[tuple[bytes, ...], int, int]] = []
        self.damaged = False
        self.images: Images | None = None
        self.waiting: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint32]]] = {}
        self._needs = Needs(4096)
        self.directory = self.new_directory()
        self.directory.start_unloaded(rows_of(setup.lows))
        for number in range(len(setup.lows)):
            self.directory.load_empty(number)
        self._begin_writing()

    # Operations

    def insert(self, path: str, number: int = 0, holder: int = 0, namespace: int = 0) -> Written | None:
        """Insert on all three, and compare what was written."""
        ids, locations = ids_of(path), locations_of(path, number)
        self.queries.append((ids, holder, namespace))
        before = self.twin.match(ids, holder, namespace)
        status, query, records = self.kernel_insert(ids, locations, holder, namespace)
        if status == lib.SARP_NO_ROOM:
            assert not records
            self.counts["no room"] += 1
            self.freeze()
            status, query, records = self.kernel_insert(ids, locations, holder, namespace)
        assert status == lib.SARP_OK
        assert query.matched == before.blocks
        segments = [(at, r) for at, r in records if r[10] == fmt.RECORD_SEGMENT]
        written = self.twin.insert(ids, locations, holder, namespace, iter([at for at, _ in segments]))
        self.oracle.insert(ids, locations, holder, namespace)
        if written is None:
            assert not records
            return None
        assert [parse_segment(r, at, SIZE) for at, r in segments] == list(written.segments)
        assert [r[88] for _, r in segments] == list(written.points)
        assert [r[89] for _, r in segments] == [written.old_n if s.supersedes else 0 for s in written.segments]
        self._compare_growth([(at, r) for at, r in records if r[10] == fmt.RECORD_POSTINGS], written)
        self._compare_places(written)
        self.counts["superseding"] += any(s.supersedes for s in written.segments)
        return written

    def _compare_growth(self, records: list[tuple[int, bytes]], written: Written) -> None:
        changes: list[ListChange] = []
        for at, record in records:
            out = np.zeros(126, CHANGE_DTYPE)
            scanned = self._scan_record(at, record)
            out[: len(scanned)] = scanned
            changes += list_changes(out)
            assert all(at > s.position for s in written.segments)
        assert sorted(map(repr, changes)) == sorted(map(repr, written.growth))
        for change in changes:
            kind = "posting" if change.position else {1: "expanded", 2: "refined", 3: "refined"}[change.filter]
            self.counts[f"{'added' if change.operation == 1 else 'dropped'} {kind}"] += 1

    def _scan_record(self, at: int, record: bytes) -> npt.NDArray[Any]:
        """The changes of one record, as a scan gives them."""
        page = bytearray(fmt.PAGE)
        start = fmt.position_offset(at) % fmt.PAGE
        page[start : start + len(record)] = record
        scanner = PageScanner(self.shape, self.directory.base, at >> 24, fmt.position_offset(at) // fmt.PAGE, 0)
        scanner.feed(memoryview(page))
        assert not len(scanner.result().damaged)
        return scanner.result().changes

    def _compare_places(self, written: Written) -> None:
        """A record that overrides another of its commit stands behind it, and behind the commit's postings records."""
        buffer = self.gatherer.buffer
        if buffer.c.ordered and written.segments[0].supersedes and not written.growth:
            highest = max(p for p, kind in self._gathering() if kind == fmt.RECORD_POSTINGS)
            assert written.segments[0].position > highest
        assert all(s.supersedes < s.position for s in written.segments)

    def _gathering(self) -> list[tuple[int, int]]:
        """(position, type) of the records of the gathering commit."""
        buffer, out = self.gatherer.buffer, []
        for page in range(buffer.pages):
            at = 0
            while at < buffer.c.used[page]:
                start = (page * fmt.PAGE_UNITS + at) * fmt.UNIT
                out.append((fmt.position(buffer.file_number, buffer.offset + start), buffer._memory[start + 10]))
                at += -(-int.from_bytes(buffer._memory[start + 8 : start + 10], "little") // fmt.UNIT)
        return out

    def kernel_insert(
        self, ids: Sequence[bytes], locations: Sequence[bytes], holder: int = 0, namespace: int = 0
    ) -> tuple[int, Any, list[tuple[int, bytes]]]:
        """The status, the query, and (position, bytes) of the records written, in order of sequence."""
        buffer = self.gatherer.buffer
        buffer.c.page_limit = min(buffer.c.page_limit, self.setup.commit_pages)
        buffer.c.features = self.features
        queries = KernelQueries(ids, holder, namespace, SIZE, [False])
        data = ffi.new("uint8_t[]", b"".join(locations) or b"\0")
        used, pages, sequence = bytes(ffi.buffer(buffer.c.used, 1024)), buffer.pages, buffer.next_sequence
        arguments = self.pages.c, queries.c, data, buffer.c, self._needs.c
        status, _, _ = self.decide(self.pages, lambda: self.directory.insert(*arguments))
        records = []
        for page in range(buffer.pages):
            at = used[page] if page < pages else 0
            while at < buffer.c.used[page]:
                start = (page * fmt.PAGE_UNITS + at) * fmt.UNIT
                length = int.from_bytes(buffer._memory[start + 8 : start + 10], "little")
                record = bytes(buffer._memory[start : start + length])
                records.append((fmt.position(buffer.file_number, buffer.offset + start), record))
                at += -(-length // fmt.UNIT)
        records.sort(key=lambda found: int.from_bytes(found[1][16:24], "little"))
        assert [int.from_bytes(r[16:24], "little") for _, r in records] == list(range(sequence, buffer.next_sequence))
        return status, queries.c[0], records

    def damage(self, choice: int) -> None:
        """A record can't be read any more."""
        self.settle()
        if not self.twin.records:
            return
        self.damaged = True
        position = sorted(self.twin.records)[choice % len(self.twin.records)]
        self.log[position >> 24][fmt.position_offset(position) + choice % 150] ^= 0x40
        del self.twin.records[position]
        clear_cache(self.pages)

    def replay(self, choice: int, times: int = 1) -> None:
        """Apply the log again from a record on."""
        self.settle()
        self.load_all()
        changes = self.scan_log()
        if len(changes):
            position = int(changes[choice % len(changes)]["position"])
            again = changes[changes["position"] >= position]
            before = self.twin.directory.elements()
            for _ in range(times):
                self.directory.apply(again)
                for change in list_changes(again):
                    self.twin.directory.apply(change)
            # Where a record can't be read, what it superseded is back.
            assert self.damaged or self.twin.directory.elements() == before

    def rebuild(self) -> None:
        """Go on with a directory that is made from the log alone."""
        self._twin_becomes(TwinPostings(), self.rebuild_alone())

    def rebuild_alone(self) -> npt.NDArray[Any]:
        """The same, without the twin; the log's changes."""
        self.close()
        changes = self.scan_log()
        slots = self.slots
        self.directory = self.new_directory(slots)
        self.directory.start_empty()
        self.directory.apply(changes)
        self.waiting, self.images = {}, None
        self._begin_writing()
        return changes

    def _twin_becomes(self, twin: TwinPostings, changes: npt.NDArray[Any]) -> None:
        """With these changes the twin's directory is the one that it has."""
        for change in list_changes(changes):
            twin.apply(change)
        assert self.damaged or twin.elements() == self.twin.directory.elements()
        self.twin.directory = twin

    def checkpoint(self) -> None:
        """Begin one; `take_images` goes on."""
        self.freeze()
        self.images = Images(self.gatherer.buffer.begin_position, (0, 0, 0), [], [])

    def take_images(self, count: int) -> None:
        images = self.images
        while images is not None and images.cursor is not None and count:
            number = self.directory.at(images.cursor)
            self.load(number)
            assert self.directory.begin_of(number) == images.cursor
            images.rows.append(self.directory.row(number))
            images.entries.append(self.directory.image(number).copy())
            images.cursor = self.directory.end_of(number)
            count -= 1

    def reopen(self, seed: int, at_once: int) -> None:
        """Go on from the images and the log behind the checkpoint's start, partitions loaded in any order."""
        if self.images is None:
            return
        self.load_all()
        self.take_images(1 << 30)
        self.close()
        changes = self.scan_log()
        tail = changes[changes["position"] >= self.images.start]
        directory = self.new_directory(self.slots)
        directory.start_unloaded(np.array(self.images.rows, fmt.POSTING_PARTITION_DTYPE))
        assert directory.entries_all == sum(map(len, self.images.entries))
        partition, steps = directory.steps(tail)
        self.waiting = {
            number: (entries, tail, np.ascontiguousarray(steps[partition == number]))
            for number, entries in enumerate(self.images.entries)
        }
        self._twin_becomes(twin_of(self.images.entries, self.slots), tail)
        self.directory = directory
        order = sorted(self.waiting)
        random.Random(seed).shuffle(order)
        for number in order[:at_once]:
            self.load(number)
        self.images = None
        self._begin_writing()

    # The log

    def freeze(self) -> None:
        if not self.gatherer.buffer.records:
            return
        while not self.gatherer.can_freeze:
            self._release()
        buffer = self.gatherer.buffer
        self.pending.append(self.gatherer.freeze(0))
        changes, again = buffer.changes, np.zeros(len(buffer.changes), CHANGE_DTYPE)
        summary = summary_of(changes)
        source, out = pointer("uint8_t *", summary), pointer("sarp_change *", again)
        base = self.directory.base.c
        assert lib.sarp_summary_changes(base, buffer.file_number, source, len(summary), out) == lib.SARP_OK
        assert changes_list(again) == changes_list(changes)

    def _release(self) -> None:
        frozen = self.pending.pop(0)
        self._write(frozen.buffer)
        for _ in self.gatherer.release(frozen):
            pass
        if frozen.seal is not None:
            self._write(frozen.seal.encode())

    def _write(self, buffer: CommitBuffer) -> None:
        file = self.log.setdefault(buffer.file_number, bytearray(fmt.LOG_HEADER_BYTES))
        assert len(file) == buffer.offset
        file += buffer.data()

    def settle(self) -> None:
        self.freeze()
        while self.pending:
            self._release()

    def close(self) -> None:
        self.settle()
        buffer = self.gatherer.buffer
        self.end.file_number = buffer.file_number

    def scan_file(self, number: int, previous_commit: int = 0) -> FileScan:
        scanner = PageScanner(self.shape, self.directory.base, number, FIRST_PAGE, previous_commit)
        scanner._scan.features = self.features
        scanner.feed(memoryview(bytes(self.log[number]))[fmt.LOG_HEADER_BYTES :])
        return scanner.result()

    def scan_log(self) -> npt.NDArray[Any]:
        """The changes of all records that can be read."""
        parts = [np.empty(0, CHANGE_DTYPE)]
        for number in sorted(self.log):
            found = self.scan_file(number)
            assert self.damaged or not len(found.damaged)
            parts.append(found.changes[found.changes["operation"] > 0])
        return np.concatenate(parts)

    # What is asked for

    def new_directory(self, slots: dict[int, int] | None = None) -> PostingsDirectory:
        setup = self.setup
        directory = PostingsDirectory(
            SECRET,
            setup.directory_bytes,
            self.features,
            read_cap=setup.read_cap,
            refine_at=setup.refine_at,
            prune_at=setup.prune_at,
        )
        directory.c.tie_cap = setup.tie_cap
        for slot, file_number in (slots or {}).items():
            directory.base.add_slot(slot, file_number)
        return directory

    @property
    def slots(self) -> dict[int, int]:
        base = self.directory.base
        return dict(enumerate(base.slot_files[: base.slot_count].tolist()))

    def _begin_writing(self) -> None:
        self.pages = Pages(UUID, SIZE, 64 * fmt.PAGE, self.features)
        self.cold = Pages(UUID, SIZE, 0, FEATURES ^ self.features)
        file_bytes = self.setup.file_pages * fmt.PAGE
        self.gatherer = Gatherer(self.shape, self.pages, self.directory.base, self.end, file_bytes)

    def load(self, number: int) -> None:
        if number in self.waiting:
            entries, tail, steps = self.waiting.pop(number)
            self.directory.load(number, entries)
            self.directory.apply(tail, steps)

    def load_all(self) -> None:
        for number in sorted(self.waiting):
            self.load(number)

    def page(self, key: int) -> bytes | None:
        slot, number = key >> 18, key & ((1 << 18) - 1)
        file = self.log.get(self.slots[slot], bytearray())
        if (number + 1) * fmt.PAGE <= len(file):
            return bytes(file[number * fmt.PAGE : (number + 1) * fmt.PAGE])
        for buffer in [frozen.buffer for frozen in self.pending] + [self.gatherer.buffer]:
            index = key - buffer.first_key
            if 0 <= index < buffer.pages:
                return bytes(buffer._memory[index * fmt.PAGE : (index + 1) * fmt.PAGE])
        return None

    def decide(self, pages: Pages, step: Callable[[], int]) -> tuple[int, list[set[int]], set[int]]:
        """Repeat a step until it needs nothing; its status, the pages that each round asked for, what was damaged."""
        held: dict[int, Any] = {}
        rounds: list[set[int]] = []
        damaged: set[int] = set()
        while True:
            self._needs.clear()
            with pages.hold(held) if held else contextlib.nullcontext():
                status = step()
            damaged.update(self._needs.damaged)
            if status != lib.SARP_NEED:
                return status, rounds, damaged
            asked, partitions = set(self._needs.pages), set(self._needs.partitions)
            assert asked or partitions
            assert asked.isdisjoint(held)
            rounds += [asked] if asked else []
            for number in partitions:
                assert number in self.waiting
                self.load(number)
            for key in asked:
                held[key] = self.page(key)

    # Comparing

    def match(
        self, pages: Pages, ids: Sequence[bytes], holder: int, namespace: int, wanted: Sequence[bool]
    ) -> tuple[KernelQueries, list[set[int]], set[int]]:
        queries = KernelQueries(ids, holder, namespace, SIZE, wanted)

        def step() -> int:
            left = self.directory.match(pages.c, queries.c, len(wanted), self._needs.c)
            assert left == sum(query.status == lib.SARP_NEED for query in queries.c)
            return int(lib.SARP_NEED if left else lib.SARP_OK)

        _, rounds, damaged = self.decide(pages, step)
        return queries, rounds, damaged

    def check(self, ids: Sequence[bytes], holder: int = 0, namespace: int = 0) -> PostingsMatch:
        """Match and estimate a path in every way, and compare with the twin and the dict."""
        found = self.twin.match(ids, holder, namespace)
        given = self.oracle.match(ids, holder, namespace)
        self._compare_estimate(ids, holder, namespace)
        queries, _, _ = self.match(self.pages, ids, holder, namespace, [False, True])
        self._compare_answer(queries, found)
        # The same with nothing in memory, and on the other path through the CPU.
        self.directory.base.c.features = FEATURES ^ self.features
        queries, rounds, damaged = self.match(self.cold, ids, holder, namespace, [False, True])
        self.directory.base.c.features = self.features
        self._compare_answer(queries, found)
        # All windows' first candidates go out together.
        reads = [positions for positions in found.reads if positions]
        if not self.damaged and len(found.proofs) == len(ids) // fmt.WINDOW + bool(len(ids) % fmt.WINDOW):
            assert len(rounds) <= max(map(len, reads), default=0)
            assert set().union(*rounds) == {self.page_of(p) for positions in reads for p in positions}
        unreadable = {p for positions in reads for p in positions if p not in self.twin.records}
        assert unreadable <= {self.position_of(r) for r in damaged}
        locations = self.twin.locations(found)
        assert found.blocks <= len(given)
        assert all(location in given[block] for block, location in enumerate(locations))
        self.counts["read"] += sum(map(len, reads))
        self.counts["lost"] += len(given) - found.blocks
        self.counts["hit" if found.blocks else "miss"] += 1
        return found

    def _compare_answer(self, queries: KernelQueries, found: PostingsMatch) -> None:
        for query in queries.c:
            assert query.status == lib.SARP_OK
            assert (query.matched, query.records) == (found.blocks, sum(map(len, found.reads)))
            if found.proofs:
                proof = found.proofs[-1]
                assert self.position_of(query.owner_reference) == proof.position
                dp = self.twin.records[proof.position].dp
                assert (query.owner_n, query.owner_d, query.owner_dp) == (proof.n, proof.d, dp)
            else:
                assert query.owner_reference == fmt.REFERENCE_NONE
        assert queries.locations(len(queries.c) - 1) == self.twin.locations(found)

    def _compare_estimate(self, ids: Sequence[bytes], holder: int, namespace: int) -> None:
        queries = KernelQueries(ids, holder, namespace, SIZE, [False])
        bounds = self.directory.estimate(queries.c)
        if self.waiting:
            assert bounds[0] <= bounds[1] <= len(ids)
        else:
            assert bounds == self.twin.estimate(ids, holder, namespace)

    def elements(self) -> set[Element]:
        """What the loaded partitions hold, as the twin says it; checks order, ranges and counts."""
        directory, out = self.directory, set()
        files = directory.base.slot_files[: directory.base.slot_count].tolist()
        number: int | None = directory.first()
        postings = blocks = 0
        while number is not None:
            low, end = directory.begin_of(number), directory.end_of(number)
            if directory.partitions[number]["flags"] & LOADED:
                places = []
                for word0, word1, value in directory.image(number).tolist():
                    places.append((word0 >> 16, value, word1 >> 24))
                    point, n, d = word0 >> 1 & 7, (word0 >> 10 & 63) + 1, word0 >> 4 & 63
                    if word1 >> 24:
                        position = files[word1 >> 48] << 24 | word1 >> 24 & 0xFFFFFF
                        out.add((word0 >> 16, value, position, n, d, point))
                        postings += 1
                        blocks += 0 if point else n - d
                    else:
                        out.add((word0 >> 16, 0, 0, word1, 0, point))
                assert places == sorted(set(places))
                assert all(low <= place and (end is None or place < end) for place in places)
            number = None if end is None else directory.at(end)
        if not self.waiting:
            assert (directory.entries, directory.blocks) == (postings, blocks)
            assert directory.entries_all == len(out)
        return out

    def check_directory(self) -> None:
        """The kernel's lists are the twin's, and whole."""
        expected = self.twin.directory.elements()
        if self.waiting:
            assert self.elements() <= expected
        else:
            assert self.elements() == expected
            assert self.directory.blocks == self.twin.directory.blocks()
        if not self.damaged:
            assert invariant_faults(self.twin) == []

    def position_of(self, reference: int) -> int:
        return self.slots[reference >> 24] << 24 | reference & 0xFFFFFF

    def page_of(self, position: int) -> int:
        slot = next(slot for slot, number in self.slots.items() if number == position >> 24)
        return (slot << 24 | position & 0xFFFFFF) >> 6
