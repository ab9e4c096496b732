"""The table of reads against a plain model: wants, completions in any order, errors, releases, forgotten slots."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_views import UUID

from sarpstore import _format as fmt
from sarpstore._io.table import ReadTable
from sarpstore._kernel import ffi, lib
from sarpstore._log.pages import Pages

PAGE = fmt.PAGE
KEPT = (errno.EIO, errno.ENOENT, errno.ENODATA)
SLOTS = 3
FILE_PAGES = 12


def content(version: int, page: int) -> bytes:
    return (version * 1000 + page).to_bytes(8, "little") * (PAGE // 8)


@dataclass
class Wish:
    """One page as the model has it."""

    key: int
    version: int
    priority: int
    tickets: list[int] = field(default_factory=list)
    result: int | None = None
    findable: bool = True


class Model:
    """What the table must answer, with none of how."""

    def __init__(self, table: ReadTable, coalesce: int, depth: int, cached: Pages | None) -> None:
        self.table, self.c = table, table.c
        self.coalesce, self.depth, self.cached = coalesce, depth, cached
        self.versions = dict.fromkeys(range(SLOTS), 0)
        self.files = {slot: self.open(slot) for slot in range(SLOTS)}
        self.wishes: list[Wish] = []
        self.tickets: dict[int, bool] = {}
        self.flying: list[int] = []
        self.closed: list[int] = []
        self.version_of: dict[int, int] = dict.fromkeys(self.files.values(), 0)

    def open(self, slot: int) -> int:
        file = lib.sarp_reads_open(self.c, -1, 0)
        assert file
        assert lib.sarp_reads_bind(self.c, slot, file) == lib.SARP_OK
        return file

    def findable(self, key: int) -> Wish | None:
        return next((wish for wish in self.wishes if wish.key == key and wish.findable), None)

    def left(self, ticket: int) -> int:
        return sum(ticket in wish.tickets and wish.result is None for wish in self.wishes)

    def want(self, ticket: int, keys: list[int], priority: int) -> None:
        unopened = ffi.new("uint32_t *")
        array = ffi.new("uint64_t[]", keys)
        assert lib.sarp_reads_want(self.c, ticket, array, len(keys), priority, unopened) == lib.SARP_OK
        closed = [key for key in keys if key >> 18 not in self.files and self.findable(key) is None]
        assert ffi.unpack(array, unopened[0]) == closed
        for key in keys:
            if key in closed:
                continue
            wish = self.findable(key)
            if wish is None:
                wish = Wish(key, self.versions[key >> 18], priority)
                self.wishes.append(wish)
            if ticket not in wish.tickets:
                wish.tickets.append(ticket)

    def hand(self) -> None:
        count = lib.sarp_reads_hand(self.c)
        runs = ffi.unpack(self.c.handed, count) if count else []
        self.c.handed_count = 0
        for run in runs:
            assert run not in self.flying
            assert 1 <= self.c.runs[run].pages <= self.coalesce
        self.flying += runs
        assert len(self.flying) <= self.depth
        assert self.c.in_flight[0] + self.c.in_flight[1] == len(self.flying)
        assert self.c.in_flight[1] <= max(1, self.depth // 8)

    def complete(self, which: int, how: str, rng: random.Random) -> None:
        if not self.flying:
            return
        run = self.flying.pop(which % len(self.flying))
        entry = self.c.runs[run]
        version = self.version_of[entry.file]
        pages = self.pages_of(run)
        if how in ("interrupted", "part"):
            result = -errno.EINTR if how == "interrupted" else self.fill(run, version, rng.randrange(1, 2 * PAGE))
            assert lib.sarp_reads_complete(self.c, run, result) == lib.SARP_OK
            if not entry.page:  # the part was all that was left
                self.done(pages, version, PAGE)
            return
        if how.startswith("error"):
            number = {"error": errno.EIO, "error that passes": errno.ENOMEM}[how]
            assert lib.sarp_reads_complete(self.c, run, -number) == lib.SARP_OK
            if len(pages) == 1:
                self.done(pages, version, -number)
            return
        self.fill(run, version, 1 << 30)
        left = sum(self.c.vectors[entry.first + i].length for i in range(entry.count))
        assert lib.sarp_reads_complete(self.c, run, left) == lib.SARP_OK
        self.done(pages, version, PAGE)

    def pages_of(self, run: int) -> list[int]:
        out, page = [], self.c.runs[run].page
        while page:
            out.append(self.c.pages[page].at)
            page = self.c.pages[page].run_next
        return out

    def fill(self, run: int, version: int, limit: int) -> int:
        entry, done = self.c.runs[run], 0
        for i in range(entry.count):
            vector = self.c.vectors[entry.first + i]
            at = entry.offset + done
            page = content(version, at // PAGE)
            size = min(vector.length, limit - done)
            if size <= 0:
                break
            ffi.memmove(vector.data, page[at % PAGE : at % PAGE + size], size)
            done += size
        return done

    def done(self, keys: list[int], version: int, result: int) -> None:
        for key in keys:
            [wish] = [w for w in self.wishes if w.key == key and w.version == version and w.result is None]
            wish.result = result
            if result < 0 and -result not in KEPT:
                wish.findable = False

    def release(self, ticket: int) -> None:
        status = lib.sarp_reads_release(self.c, ticket)
        if self.left(ticket):
            assert status == lib.SARP_INVALID
            return
        assert status == lib.SARP_OK
        del self.tickets[ticket]
        for wish in self.wishes:
            if ticket in wish.tickets:
                wish.tickets.remove(ticket)
        self.wishes = [wish for wish in self.wishes if wish.tickets or wish.result is None]

    def replace(self, slot: int) -> None:
        """Another file under the slot, or none if it has one."""
        if slot in self.files:
            file = self.files.pop(slot)
            lib.sarp_reads_close(self.c, file)
            self.closed.append(file)
            return
        lib.sarp_reads_forget(self.c, slot)
        for wish in self.wishes:
            if wish.key >> 18 == slot:
                wish.findable = False
        self.versions[slot] += 1
        self.files[slot] = self.open(slot)
        self.version_of[self.files[slot]] = self.versions[slot]

    def check(self) -> None:
        c = self.c
        done = ffi.unpack(c.done, c.done_count) if c.done_count else []
        c.done_count = 0
        for ticket in done:
            assert self.tickets[ticket], "told once, and only who waits"
            assert self.left(ticket) == 0
            self.tickets[ticket] = False
        for ticket, waiting in self.tickets.items():
            left = self.left(ticket)
            assert c.tickets[ticket].left >= left
            assert bool(c.tickets[ticket].left) == bool(left)
            assert not waiting or left, "a ticket that waits in vain"
            self.check_errors(ticket)
        for slot in range(SLOTS):
            for page in range(FILE_PAGES):
                self.check_page(slot << 18 | page)
        assert c.pages_live == len(self.wishes)
        assert c.pages_held == sum(wish.result is not None for wish in self.wishes)
        self.closed = [file for file in self.closed if lib.sarp_reads_free(c, file) != lib.SARP_OK]

    def check_errors(self, ticket: int) -> None:
        keys, numbers = ffi.new("uint64_t[]", 64), ffi.new("int32_t[]", 64)
        count = lib.sarp_reads_errors(self.c, ticket, keys, numbers, 64)
        found = set(zip(ffi.unpack(keys, count), ffi.unpack(numbers, count), strict=True)) if count else set()
        failed = [w for w in self.wishes if ticket in w.tickets and w.result is not None and w.result < 0]
        assert found == {(wish.key, -wish.result) for wish in failed if wish.result}

    def check_page(self, key: int) -> None:
        data: Any = ffi.new("uint8_t **")
        found = lib.sarp_reads_find(self.c, key, data)
        wish = self.findable(key)
        assert bool(found) == (wish is not None and wish.result is not None)
        if wish is not None and wish.result == PAGE:
            assert bytes(ffi.buffer(data[0], PAGE)) == content(wish.version, key & 0xFFFF)
        elif found:
            assert data[0] == ffi.NULL


keys = st.tuples(st.integers(0, SLOTS - 1), st.integers(0, FILE_PAGES - 1)).map(lambda at: at[0] << 18 | at[1])
operations = st.one_of(
    st.tuples(st.just("want"), st.integers(0, 5), st.lists(keys, max_size=12), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("new"), st.lists(keys, max_size=12), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("hand")),
    st.tuples(
        st.just("complete"),
        st.integers(0, 20),
        st.sampled_from(["whole", "whole", "part", "interrupted", "error", "error that passes"]),
    ),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("replace"), st.integers(0, SLOTS - 1)),
)


def act(model: Model, operation: tuple[Any, ...], rng: random.Random) -> None:
    tickets = list(model.tickets)
    match operation:
        case ("new", wanted, priority):
            ticket = lib.sarp_reads_ticket(model.c)
            assert ticket not in model.tickets
            model.tickets[ticket] = False
            model.want(ticket, wanted, priority)
            model.tickets[ticket] = bool(lib.sarp_reads_wait(model.c, ticket))
        case ("want", which, wanted, priority) if tickets:
            ticket = tickets[which % len(tickets)]
            model.want(ticket, wanted, priority)
            model.tickets[ticket] = bool(lib.sarp_reads_wait(model.c, ticket))
        case ("hand",):
            model.hand()
        case ("complete", which, how):
            model.complete(which, how, rng)
        case ("release", which) if tickets:
            model.release(tickets[which % len(tickets)])
        case ("replace", slot):
            model.replace(slot)


def finish(model: Model, rng: random.Random) -> None:
    while True:
        model.hand()
        if not model.flying:
            break
        while model.flying:
            model.complete(rng.randrange(100), "whole", rng)
        model.check()
    for ticket in list(model.tickets):
        assert model.left(ticket) == 0
        model.release(ticket)
    model.check()
    c = model.c
    assert (c.pages_live, c.pages_held, c.in_flight[0], c.in_flight[1], c.again_count) == (0, 0, 0, 0, 0)
    assert c.frames_free_count == c.frames_used, "every frame is free again"
    assert model.closed == []


@settings(max_examples=examples(250))
@given(st.lists(operations, max_size=80), st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**32))
def test_the_table_equals_a_model(sequence: list[Any], depth: int, coalesce: int, seed: int) -> None:
    rng = random.Random(seed)
    table = ReadTable(queue_depth=depth, coalesce_pages=coalesce, pages=400)
    model = Model(table, coalesce, depth, None)
    for operation in sequence:
        act(model, operation, rng)
        model.check()
    finish(model, rng)


def test_what_is_read_goes_into_the_cache_unless_it_was_forgotten() -> None:
    pages = Pages(UUID, 14, 8 * PAGE)
    table = ReadTable(queue_depth=4, coalesce_pages=1, pages=16)
    pages.serve(table)
    model = Model(table, 1, 4, pages)
    ticket = lib.sarp_reads_ticket(model.c)
    model.tickets[ticket] = False
    model.want(ticket, [1, 5, 1 << 18 | 2], 0)
    model.hand()
    lib.sarp_reads_forget(model.c, 1)
    for wish in model.wishes:
        wish.findable = wish.key < 1 << 18
    for _ in range(3):
        model.complete(0, "whole", random.Random(1))
    model.check()
    for key, there in ((1, True), (5, True), (1 << 18 | 2, False), (2, False)):
        found = lib.sarp_cache_find(pages.cache, key)
        assert (found != ffi.NULL) == there
        assert not there or bytes(ffi.buffer(found, PAGE)) == content(0, key)


def test_room_that_runs_out() -> None:
    table = ReadTable(queue_depth=2, coalesce_pages=1, pages=4)
    model = Model(table, 1, 2, None)
    c, unopened = table.c, ffi.new("uint32_t *")
    ticket = lib.sarp_reads_ticket(c)
    array = ffi.new("uint64_t[]", [0, 2, 4, 6, 8])
    assert lib.sarp_reads_want(c, ticket, array, 5, 0, unopened) == lib.SARP_FULL
    assert lib.sarp_reads_piece(c, ticket, 1, 0, ffi.NULL, 10, 0) == 0
    other = lib.sarp_reads_ticket(c)
    assert lib.sarp_reads_put(c, other, 77, ffi.NULL, errno.EIO) == lib.SARP_FULL
    # Links run out too: many tickets on one page.
    status, count = lib.SARP_OK, 0
    while status == lib.SARP_OK:
        status = lib.sarp_reads_want(c, lib.sarp_reads_ticket(c), array, 1, 0, unopened)
        count += 1
        assert count < 100
    assert status == lib.SARP_FULL
    model.hand()
    assert len(model.flying) == 2


@pytest.mark.parametrize("limits", [(0, 1, 1, 1, 1), (1, 0, 1, 1, 1), (1, 1, 0, 1, 1), (1, 1, 1, 0, 1), (1, 1, 1, 1, 0),
                                    (1 << 25, 1, 1, 1, 1), (1, 1, 1, 4097, 1), (1, 1, 1, 1, 1025)])  # fmt: skip
def test_impossible_limits(limits: tuple[int, ...]) -> None:
    given_limits = ffi.new("sarp_read_limits *", limits)
    assert lib.sarp_reads_bytes(given_limits) == 0
    assert lib.sarp_reads_init(ffi.new("sarp_reads *"), given_limits, ffi.NULL, ffi.NULL) == lib.SARP_INVALID


def test_arguments_that_make_no_sense_are_refused() -> None:
    table = ReadTable(queue_depth=2, coalesce_pages=2, pages=8)
    c, unopened = table.c, ffi.new("uint32_t *")
    array = ffi.new("uint64_t[]", [1 << 34])
    ticket = lib.sarp_reads_ticket(c)
    assert lib.sarp_reads_want(c, ticket, array, 1, 0, unopened) == lib.SARP_INVALID
    for number in (0, 2, 1 << 31):
        assert lib.sarp_reads_want(c, number, array, 0, 0, unopened) == lib.SARP_INVALID
        assert lib.sarp_reads_wait(c, number) == lib.SARP_INVALID
        assert lib.sarp_reads_release(c, number) == lib.SARP_INVALID
        assert lib.sarp_reads_errors(c, number, array, ffi.new("int32_t[1]"), 1) == 0
        assert lib.sarp_reads_close(c, number) == lib.SARP_INVALID
        assert lib.sarp_reads_free(c, number) == lib.SARP_INVALID
        assert lib.sarp_reads_complete(c, number, 1) == lib.SARP_INVALID
        assert lib.sarp_reads_bind(c, 0, number) == lib.SARP_INVALID
        assert lib.sarp_reads_pread(c, number) == -errno.EINVAL
    file = lib.sarp_reads_open(c, -1, 0)
    assert lib.sarp_reads_bind(c, 65536, file) == lib.SARP_INVALID
    assert lib.sarp_reads_free(c, file) == lib.SARP_INVALID, "it is open"
    assert lib.sarp_reads_bind(c, 65535, file) == lib.SARP_OK
    assert lib.sarp_reads_bind(c, 3, file) == lib.SARP_INVALID, "it has a slot"
    array[0] = 65535 << 18 | (1 << 18) - 1
    assert lib.sarp_reads_want(c, ticket, array, 1, 2, unopened) == lib.SARP_INVALID
    assert lib.sarp_reads_want(c, ticket, array, 1, 1, unopened) == lib.SARP_OK
    run = lib.sarp_reads_next(c)
    assert c.runs[run].offset == ((1 << 18) - 1) * PAGE
    assert lib.sarp_reads_complete(c, run, PAGE + 1) == lib.SARP_INVALID, "more than was asked for"
    assert lib.sarp_reads_complete(c, run, PAGE) == lib.SARP_OK
    assert lib.sarp_reads_complete(c, run, PAGE) == lib.SARP_INVALID, "it has ended"
