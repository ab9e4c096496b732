"""The kernel without the engine around it: a directory, commits and log files in memory.

The log is what the kernel encoded: finished commits by file, as bytes. What the kernel asks for (pages, partitions) is
brought as the engine would bring it, from memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from kernel_views import DIRECTORY_BYTES, SECRET, UUID, KernelQueries, Needs, changes_list

from sarpstore import _format as fmt
from sarpstore._directory import DivergenceDirectory
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, ffi, lib, pointer
from sarpstore._log.commits import CommitBuffer, summary_of
from sarpstore._log.gather import Frozen, Gatherer, LogEnd
from sarpstore._log.header import Shape
from sarpstore._log.pages import Pages
from sarpstore._log.scan import FileScan, PageScanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from kernel_operations import Setup


class KernelStore:
    """A store without files, tasks and clocks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.counts: Counter[str] = Counter()
        self.shape = Shape(UUID, SECRET, 16, "sha256", "divergence", np.dtype(f"V{setup.location_bytes}"))
        self.features = 0 if setup.scalar else FEATURES
        self.end = LogEnd()
        self.log: dict[int, bytearray] = {}
        """Each file's bytes, by number; its header pages are zeros."""
        self.pending: list[Frozen] = []
        self.waiting: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint32]]] = {}
        """Partitions to be loaded on use: an image, and the changes and steps of the log's tail."""
        self._needs = Needs()
        self.directory = self._new_directory({})
        self._start(self.directory, self._empty_partitions())
        for number in range(len(setup.layout)):
            self.directory.load_empty(number)
        self._begin_writing()

    # Inserting and matching

    def kernel_insert(
        self, ids: Sequence[bytes], locations: Sequence[bytes], holder: int, namespace: int
    ) -> tuple[int, Any, list[tuple[int, bytes]]]:
        """The status, the query, and (position, bytes) of the records written, in order of sequence."""
        buffer = self.gatherer.buffer
        buffer.c.page_limit = min(buffer.c.page_limit, self.setup.commit_pages)
        buffer.c.features = self.features
        queries = KernelQueries(ids, holder, namespace, self.setup.location_bytes, [False])
        data = ffi.new("uint8_t[]", b"".join(locations) or b"\0")
        used, pages, sequence = bytes(ffi.buffer(buffer.c.used, 128)), buffer.pages, buffer.next_sequence
        arguments = self.directory.c, self.pages.c, queries.c, data, buffer.c, self._needs.c
        status, _, _ = self.decide(self.pages, lambda: lib.sarp_insert(*arguments))
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
            if asked:
                rounds.append(asked)
            for number in partitions:
                assert number in self.waiting
                self._load(number)
            for key in asked:
                held[key] = self.page(key)
                if held[key] is not None:
                    pages.cache_insert(key, ffi.from_buffer("uint8_t[]", held[key]))

    def match(
        self, pages: Pages, ids: Sequence[bytes], holder: int, namespace: int, with_locations: Sequence[bool]
    ) -> tuple[KernelQueries, list[set[int]], set[int]]:
        queries = KernelQueries(ids, holder, namespace, self.setup.location_bytes, with_locations)
        count = len(with_locations)

        def step() -> int:
            open_queries = lib.sarp_match(self.directory.c, pages.c, queries.c, count, self._needs.c)
            assert open_queries == sum(query.status == lib.SARP_NEED for query in queries.c)
            return int(lib.SARP_NEED) if open_queries else int(lib.SARP_OK)

        _, rounds, damaged = self.decide(pages, step)
        return queries, rounds, damaged

    # Writing the log

    def _freeze(self) -> None:
        if not self.gatherer.buffer.records:
            return
        while not self.gatherer.can_freeze:
            self._release()
        buffer = self.gatherer.buffer
        frozen = self.gatherer.freeze(0)
        self.pending.append(frozen)
        changes, again = buffer.changes, np.zeros(len(buffer.changes), CHANGE_DTYPE)
        summary = summary_of(changes)
        base, source, out = self.directory.base.c, pointer("uint8_t *", summary), pointer("sarp_change *", again)
        status = lib.sarp_summary_changes(base, buffer.file_number, source, len(summary), out)
        assert status == lib.SARP_OK
        assert changes_list(again) == changes_list(changes)

    def _release(self) -> None:
        frozen = self.pending.pop(0)
        self._write(frozen.buffer)
        for _ in self.gatherer.release(frozen):
            pass
        if frozen.seal is not None:
            self.counts["seal"] += 1
            self._write(frozen.seal.encode())

    def _write(self, buffer: CommitBuffer) -> None:
        file = self.log.setdefault(buffer.file_number, bytearray(fmt.LOG_HEADER_BYTES))
        assert len(file) == buffer.offset
        file += buffer.data()

    def settle(self) -> None:
        """End the gathering commit, and write all that waits."""
        self._freeze()
        while self.pending:
            self._release()

    # Opening and closing

    def _new_directory(self, slots: dict[int, int]) -> DivergenceDirectory:
        directory = DivergenceDirectory(SECRET, DIRECTORY_BYTES, self.features)
        for slot, file_number in slots.items():
            directory.base.add_slot(slot, file_number)
        return directory

    @property
    def slots(self) -> dict[int, int]:
        """File number by slot."""
        base = self.directory.base
        return dict(enumerate(base.slot_files[: base.slot_count].tolist()))

    def _empty_partitions(self) -> npt.NDArray[Any]:
        rows = np.zeros(len(self.setup.layout), fmt.PARTITION_DTYPE)
        prefix = 0
        for row, depth in zip(rows, self.setup.layout, strict=True):
            row["prefix"], row["depth"] = prefix, depth
            prefix += 1 << (48 - depth)
        return rows

    def _start(self, directory: DivergenceDirectory, rows: npt.NDArray[Any]) -> None:
        directory.start_unloaded(rows)

    def _begin_writing(self) -> None:
        cache_bytes = self.setup.cache_pages * fmt.PAGE
        self.pages = Pages(UUID, self.setup.location_bytes, cache_bytes, self.features)
        self.cold = Pages(UUID, self.setup.location_bytes, 0, FEATURES ^ self.features)
        file_bytes = self.setup.file_pages * fmt.PAGE
        self.gatherer = Gatherer(self.shape, self.pages, self.directory.base, self.end, file_bytes)

    def _close(self, *, in_order: bool) -> None:
        self.settle()
        buffer = self.gatherer.buffer
        if in_order and buffer.offset > fmt.LOG_HEADER_BYTES:
            self._write(self.gatherer.seal_last(0).encode())
        # A file that got no page was never made.
        self.end.file_number = buffer.file_number

    def load_all(self) -> None:
        for number in sorted(self.waiting):
            self._load(number)

    def _load(self, number: int) -> None:
        if number in self.waiting:
            entries, tail, steps = self.waiting.pop(number)
            self.directory.load(number, entries)
            self.directory.apply(tail, steps)

    # Reading the log

    def scan_file(self, number: int, previous_commit: int, slice_pages: int = 1 << 20) -> FileScan:
        scanner = PageScanner(
            self.shape, self.directory.base, number, fmt.LOG_HEADER_BYTES // fmt.PAGE, previous_commit
        )
        scanner._scan.features = self.features
        data = bytes(self.log[number])
        for at in range(fmt.LOG_HEADER_BYTES, len(data), slice_pages * fmt.PAGE):
            scanner.feed(memoryview(data)[at : at + slice_pages * fmt.PAGE])
        return scanner.result()

    def page(self, key: int) -> bytes | None:
        """A page as the log has it, or as it will."""
        slot, number = key >> 18, key & ((1 << 18) - 1)
        file = self.log.get(self.slots[slot], bytearray())
        if (number + 1) * fmt.PAGE <= len(file):
            return bytes(file[number * fmt.PAGE : (number + 1) * fmt.PAGE])
        for buffer in [frozen.buffer for frozen in self.pending] + [self.gatherer.buffer]:
            index = key - buffer.first_key
            if 0 <= index < buffer.pages:
                return bytes(buffer._memory[index * fmt.PAGE : (index + 1) * fmt.PAGE])
        return None

    def _position_of(self, reference: int) -> int:
        return self.slots[reference >> 24] << 24 | reference & 0xFFFFFF

    def _page_of(self, position: int) -> int:
        slot = next(slot for slot, number in self.slots.items() if number == position >> 24)
        return (slot << 24 | position & 0xFFFFFF) >> 6
