"""Either kernel directory with a log of several files, removals, compaction; beside it a dict of what is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from kernel_machine import Machine
from kernel_operations import Setup
from postings_machine import PostingsMachine
from postings_views import Setup as PostingsSetup
from records import starts
from strategies import ids_of

from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, ffi, lib
from sarpstore._log.commits import clear_record, remove_record
from sarpstore._log.removals import Removals

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

LOCATION_BYTES = 14
OTHERS = 16


class CompactStore:
    """What is held is `held`: (holder, namespace, path) to the block's location."""

    def __init__(
        self,
        routing: str,
        *,
        scalar: bool = False,
        commit_pages: int = 64,
        directory_bytes: int = 1 << 22,
        layout: tuple[int, ...] = (1, 2, 2),
    ):
        self.machine: Any
        if routing == "divergence":
            self.machine = Machine(Setup(layout, LOCATION_BYTES, 64, commit_pages, 4096, scalar))
        else:
            lists = {"read_cap": 64, "refine_at": 8, "prune_at": 2}
            self.machine = PostingsMachine(
                PostingsSetup(commit_pages=commit_pages, scalar=scalar, directory_bytes=directory_bytes, **lists)
            )
        self.held: dict[tuple[int, int, str], bytes] = {}
        self.paths: list[tuple[str, int, int]] = []
        self.removals = Removals(4096, 64, 64)
        self.directory.base.attach(self.removals)
        self.given = 0

    @property
    def directory(self) -> Any:
        return self.machine.directory

    @property
    def commit(self) -> Any:
        return self.machine.gatherer.buffer

    def settle(self) -> None:
        self.machine.settle()

    def next_file(self) -> int:
        """End the file; its number."""
        self.settle()
        number = self.commit.file_number
        self.machine._write(self.machine.gatherer.seal_last(0).encode())
        self.machine.end.file_number = number
        self.machine._begin_writing()
        return int(number)

    # --- what changes

    def insert(self, path: str, holder: int = 0, namespace: int = 0) -> None:
        locations = []
        for i in range(len(path)):
            self.given += 1
            location = self.given.to_bytes(8, "little").ljust(LOCATION_BYTES, b"\x5a")
            locations.append(self.held.setdefault((holder, namespace, path[: i + 1]), location))
        if (path, holder, namespace) not in self.paths:
            self.paths.append((path, holder, namespace))
        while self.machine.kernel_insert(ids_of(path), locations, holder, namespace)[0] == lib.SARP_NO_ROOM:
            self.settle()

    def remove(self, path: str, holder: int = 0, namespace: int = 0) -> None:
        """The last block of the path and all that follows."""
        ids = ids_of(path)[-1]
        while not (position := self.commit.append_removal(remove_record(holder, namespace, ids))):
            self.settle()
        self.removals.clear(holder, 0)
        self.removals.mark(ffi.from_buffer("uint8_t[]", ids), 1, holder, namespace, position)
        self.held = {
            key: location
            for key, location in self.held.items()
            if key[:2] != (holder, namespace) or not key[2].startswith(path)
        }

    def clear(self, holder: int) -> None:
        while not (position := self.commit.append_removal(clear_record(holder))):
            self.settle()
        self.removals.clear(holder, position)
        self.held = {key: location for key, location in self.held.items() if key[0] != holder}

    # --- compaction

    def compaction(self, number: int) -> Any:
        """The kernel's work on a file, all of whose pages are in memory."""
        work = ffi.new("sarp_compaction *")
        data = ffi.new("uint8_t[]", bytes(self.machine.log[number]))
        others = ffi.new("sarp_other_record[]", OTHERS)
        work.file_number, work.slot = number, self.directory.base.files()[number]
        work.first_page = fmt.LOG_HEADER_BYTES // fmt.PAGE
        work.pages = data + fmt.LOG_HEADER_BYTES
        work.page_count = len(self.machine.log[number]) // fmt.PAGE - work.first_page
        work.unit = work.first_page * fmt.PAGE_UNITS
        work.others, work.other_limit = others, OTHERS
        self._keep = data, others
        return work

    def compact(self, number: int, records: int = 64) -> tuple[Any, list[tuple[int, int]]]:
        """Empty a file; what the kernel counted, and (type, unit) of the records that it left to the caller."""
        work, others = self.compaction(number), []
        end = (work.first_page + work.page_count) * fmt.PAGE_UNITS
        while work.unit < end:
            commit = self.commit
            commit.c.page_limit = min(commit.c.page_limit, self.machine.setup.commit_pages)
            status = self.directory.compact(commit.c, work, records)
            others += [(work.others[i].type, work.others[i].unit) for i in range(work.other_count)]
            if status == lib.SARP_NO_ROOM:
                self.settle()
            else:
                assert status == lib.SARP_OK
        return work, others

    def delete(self, number: int) -> None:
        base = self.directory.base
        slot = base.files()[number]
        assert base.slot_entries[slot] == 0
        assert base.slot_live[slot] == 0
        base.drop_slot(slot)
        del self.machine.log[number]
        pages = self.machine.pages
        for _ in pages.forget(slot):
            pass

    # --- what is compared

    def match(self, path: str, holder: int = 0, namespace: int = 0) -> list[bytes]:
        """The locations of what is held of a path."""
        queries, _, damaged = self.machine.match(self.machine.pages, ids_of(path), holder, namespace, [True])
        assert not damaged
        return queries.locations(0)

    def expected(self, path: str, holder: int = 0, namespace: int = 0) -> list[bytes]:
        out = []
        for i in range(len(path)):
            location = self.held.get((holder, namespace, path[: i + 1]))
            if location is None:
                break
            out.append(location)
        return out

    def check(self) -> None:
        for path, holder, namespace in self.paths:
            assert self.match(path, holder, namespace) == self.expected(path, holder, namespace), path

    def check_counts(self) -> None:
        """The slots' counts are what the entries say."""
        base, entries, live = self.directory.base, np.zeros(1 << 16, int), np.zeros(1 << 16, int)
        for number in range(len(self.directory.partitions)):
            for entry in self.directory.image(number).tolist():
                reference = entry[1] >> 24
                if reference in (0, fmt.REFERENCE_NONE):
                    continue
                entries[reference >> 24] += 1
                n = (entry[1] >> 18 & 63) + 1 if len(entry) == 2 else (entry[0] >> 10 & 63) + 1
                if len(entry) == 2 or not entry[0] >> 1 & 7:
                    live[reference >> 24] += -(-(128 + n * (16 + LOCATION_BYTES)) // 64) * 64
        assert np.array_equal(base.slot_entries, entries)
        assert np.array_equal(base.slot_live, live)

    def log_changes(self) -> npt.NDArray[Any]:
        """The changes of the files that are there."""
        parts = [self.machine.scan_file(number, 0).changes for number in sorted(self.machine.log)]
        changes = np.concatenate([np.empty(0, CHANGE_DTYPE), *parts])
        return changes[np.isin(changes["type"], [fmt.RECORD_SEGMENT, fmt.RECORD_POSTINGS])]

    def rebuild(self) -> None:
        """Go on with a directory that is made from the log alone."""
        self.next_file()
        changes = self.log_changes()
        directory = self._new_directory()
        directory.start_empty()
        directory.apply(changes)
        self.machine.directory = directory
        self.machine._begin_writing()

    def reload(self, alter: Callable[[npt.NDArray[Any]], None]) -> None:
        """Go on with a directory whose image, of a single partition, says what `alter` has made of its entries."""
        self.next_file()
        before = self.directory
        [entries], row = [before.image(number) for number in range(len(before.partitions))], before.row(0)
        alter(entries)
        if "filter" in entries.dtype.names:
            places = (entries["word1"] >> np.uint64(24), entries["filter"], entries["word0"] >> np.uint64(16))
            entries = entries[np.lexsort(places)]
        name, at_n, at_d = ("word1", 18, 12) if len(entries.dtype) == 2 else ("word0", 10, 4)
        # A posting's point: those of the first one count blocks.
        counted = entries if name == "word1" else entries[entries["word0"] & np.uint64(7 << 1) == 0]
        row["blocks"] = sum((word >> at_n & 63) + 1 - (word >> at_d & 63) for word in counted[name].tolist())
        directory = self._new_directory()
        directory.start_unloaded(row.reshape(1))
        directory.load(0, entries)
        self.machine.directory = directory
        self.machine._begin_writing()

    def _new_directory(self) -> Any:
        slots = {slot: number for number, slot in self.directory.base.files().items()}
        make = self.machine._new_directory if isinstance(self.machine, Machine) else self.machine.new_directory
        directory = make(slots)
        directory.base.attach(self.removals)
        return directory

    def records(self, number: int, kind: int = fmt.RECORD_SEGMENT) -> dict[int, bytes]:
        """The records of a type in a file, by position."""
        file, out = self.machine.log[number], {}
        for page in range(fmt.LOG_HEADER_BYTES, len(file), fmt.PAGE):
            data = file[page : page + fmt.PAGE]
            for at in starts(data):
                length = int.from_bytes(data[at + 8 : at + 10], "little")
                if data[at + 10] == kind:
                    out[fmt.position(number, page + at)] = bytes(data[at : at + length])
        return out


def random_path(rng: random.Random, paths: Sequence[tuple[str, int, int]]) -> str:
    parent = rng.choice(paths)[0] if paths and rng.random() < 0.8 else ""
    cut = parent[: rng.randrange(len(parent) + 1)]
    return (cut + "".join(rng.choice("abcd") * rng.randrange(1, 50) for _ in range(3)))[:230]


def grown(routing: str, rng: random.Random, files: int = 3, **options: Any) -> CompactStore:
    """A store whose files hold random insertions and removals."""
    store = CompactStore(routing, **options)
    for _ in range(files):
        for _ in range(rng.randrange(8, 25)):
            holder, namespace = rng.choice([(0, 0), (0, 0), (3, 0), (0, 9)])
            store.insert(random_path(rng, store.paths), holder, namespace)
            if rng.random() < 0.2:
                path, holder, namespace = rng.choice(store.paths)
                store.remove(path[: rng.randrange(1, len(path) + 1)], holder, namespace)
            if rng.random() < 0.03:
                store.clear(rng.choice([0, 3]))
            if rng.random() < 0.1:
                store.settle()
        store.next_file()
    return store
