"""A small store's log, and all that a scan of it says."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from kernel_machine import Machine
from kernel_operations import Setup
from kernel_views import UUID, changes_list
from strategies import Insert

from sarpstore import VersionError
from sarpstore import _format as fmt
from sarpstore._kernel import CHANGE_DTYPE, FEATURES, FOUND_COMMIT_DTYPE, ffi, lib, pointer

FILE = 1
FIRST_PAGE = fmt.LOG_HEADER_BYTES // fmt.PAGE
SETUP = Setup((0,), 14, 4, 64, 4096, scalar=False)
Log = tuple[Machine, bytes]


@dataclass(frozen=True)
class Found:
    """All that a scan says."""

    changes: list[tuple[int, ...]]
    commits: list[tuple[int, ...]]
    damaged: list[int]
    state: tuple[int, ...]

    @property
    def complete(self) -> list[int]:
        return [c[0] for c in self.commits if c[4] & lib.SARP_COMMIT_COMPLETE]


def scan(
    machine: Machine, data: bytes, slices: tuple[int, ...] = (), features: int = FEATURES, limits: int | None = None
) -> Found:
    """Scan pages from the file's first on, in slices of so many pages (then the rest)."""
    pages = len(data) // fmt.PAGE
    # The exact bytes, in memory of their own, so that a sanitizer sees one byte too many.
    memory = ffi.new("uint8_t[]", data)
    room = limits or max(1, pages) * fmt.PAGE_UNITS
    state, uuid = ffi.new("sarp_scan *"), ffi.new("uint8_t[16]", UUID)
    state.uuid, state.file_number, state.location_bytes, state.features = uuid, FILE, 14, features
    state.begin_page = state.next_page = FIRST_PAGE
    changes_out, commits_out, damaged_out = [], [], []
    at, sizes = 0, list(slices)
    while at < pages:
        changes, commits = np.zeros(room, CHANGE_DTYPE), np.zeros(max(1, room // 64), FOUND_COMMIT_DTYPE)
        damaged = np.zeros(room, "<u8")
        found = ffi.new("sarp_found *")
        found.changes, found.change_limit = pointer("sarp_change *", changes), len(changes)
        found.commits, found.commit_limit = pointer("sarp_found_commit *", commits), len(commits)
        found.damaged, found.damaged_limit = pointer("uint64_t *", damaged), len(damaged)
        count = min(sizes.pop(0) if sizes else pages, pages - at)
        done = lib.sarp_scan_pages(state, machine.directory.base.c, memory + at * fmt.PAGE, count, found)
        assert done <= count
        assert done or not count
        assert found.change_count <= len(changes)
        assert found.commit_count <= len(commits)
        assert found.damaged_count <= len(damaged)
        if found.unknown_at:
            raise VersionError(str(found.unknown_at))
        changes_out += [(*row, int(t)) for row, t in zip(changes_list(changes), changes["type"], strict=True)][
            : found.change_count
        ]
        commits_out += [tuple(row) for row in commits[: found.commit_count].tolist()]
        damaged_out += damaged[: found.damaged_count].tolist()
        at += done
    rest = state.begin_page, state.next_page, state.checksum, state.records, state.flawed, state.number, state.sequence
    return Found(changes_out, commits_out, damaged_out, tuple(map(int, rest)))


def position_at(at: int) -> int:
    return fmt.position(FILE, fmt.LOG_HEADER_BYTES + at)


def machine_of(*paths: str, freeze_every: int = 100) -> Machine:
    machine = Machine(SETUP)
    for number, path in enumerate(paths):
        machine.apply(Insert(path, number % 2, 0, number))
        if number % freeze_every == freeze_every - 1:
            machine.settle()
    machine.settle()
    return machine


def log_of(machine: Machine) -> bytes:
    return bytes(machine.log[FILE][fmt.LOG_HEADER_BYTES :])


def several_commits() -> Log:
    """Eight commits of two to six pages."""
    rng = random.Random(8)
    paths = ["".join(rng.choice("ab") * rng.randrange(1, 70) for _ in range(4)) for _ in range(30)]
    machine = machine_of(*paths, freeze_every=4)
    return machine, log_of(machine)
