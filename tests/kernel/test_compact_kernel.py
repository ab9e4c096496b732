"""Compaction in the kernel, under both directories: what is live moves, what is dead goes, nothing else changes."""

from __future__ import annotations

import os
import random
import struct

import numpy as np
import pytest
from compact_store import CompactStore, grown, random_path
from kernel_views import UUID
from records import seal

from sarpstore import _format as fmt
from sarpstore._kernel import FEATURES, ffi, lib
from sarpstore._log.base import Base
from sarpstore._log.commits import clear_record, count_record, namespace_record, remove_record, retire_record
from sarpstore._log.pages import Pages

SEEDS = range(int(os.environ.get("SARPSTORE_SEEDS", "12")))
both = pytest.mark.parametrize("routing", fmt.ROUTINGS)


def u64(record: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", record, at)[0])


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_compacted_files_can_go_and_the_answers_stay(routing: str, seed: int) -> None:
    rng = random.Random(seed)
    store = grown(routing, rng, files=4, scalar=seed % 3 == 0, commit_pages=rng.choice([8, 64]))
    store.check()
    for _ in range(4):
        if rng.random() < 0.7:
            store.insert(random_path(rng, store.paths))
        number = rng.choice([n for n in sorted(store.machine.log) if n < store.commit.file_number])
        live = int(store.directory.base.slot_live[store.directory.base.files()[number]])
        work, _ = store.compact(number, records=rng.choice([1, 3, 64]))
        assert work.damaged == 0
        assert work.live_bytes <= live
        store.delete(number)
        store.check()
        store.check_counts()
        if rng.random() < 0.5:
            path, holder, namespace = rng.choice(store.paths)
            store.remove(path[: rng.randrange(1, len(path) + 1)], holder, namespace)
            store.check()
    store.rebuild()
    store.check()
    store.check_counts()


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_says_what_its_record_said(routing: str, seed: int) -> None:
    rng = random.Random(seed)
    store = grown(routing, rng)
    number = rng.choice(sorted(store.machine.log))
    sources = store.records(number)
    work, _ = store.compact(number)
    target = store.next_file()
    copies = {at: r for at, r in store.records(target).items() if r[11] & fmt.FLAG_COPY}
    assert len(copies) == work.live
    assert work.live + work.dead == len(sources)
    for at, copy in copies.items():
        source = sources[u64(copy, 80)]
        n, old = copy[12], source[12]
        assert n <= old
        assert copy[13] == source[13]  # d
        assert copy[14] == source[14]  # dp
        assert copy[32:64] == source[32:64]  # holder, window, namespace, prefix id
        assert u64(copy, 64) == u64(source, 64) <= at  # born
        assert u64(copy, 96) == u64(source, 96)  # root born
        assert u64(copy, 72) == u64(source, 72)  # parent key
        assert copy[128 : 128 + 16 * n] == source[128 : 128 + 16 * n]
        assert copy[128 + 16 * n :] == source[128 + 16 * old :][: 14 * n]
        assert copy[89] == (n if routing == "sarp" else 0)
        assert copy[88] & ~source[88] == 0 or routing == "sarp"


@both
def test_a_record_without_a_root_born_gets_its_own_born(routing: str) -> None:
    store = CompactStore(routing)
    store.insert("a" * 10)
    number = store.next_file()
    log = store.machine.log[number]
    # As version 1.0 wrote it: root born 0.
    [at] = store.records(number)
    offset = fmt.position_offset(at)
    page = bytearray(log[offset // fmt.PAGE * fmt.PAGE :][: fmt.PAGE])
    page[offset % fmt.PAGE + 96 : offset % fmt.PAGE + 104] = bytes(8)
    seal(page, offset % fmt.PAGE, UUID, at)
    log[offset // fmt.PAGE * fmt.PAGE : offset // fmt.PAGE * fmt.PAGE + fmt.PAGE] = page
    store.compact(number)
    [copy] = store.records(store.next_file()).values()
    assert u64(copy, 96) == u64(copy, 64) == at


@both
def test_what_is_cut_is_copied_without_its_end(routing: str) -> None:
    store = CompactStore(routing)
    for path in ("a" * 100, "a" * 20 + "b" * 60, "c" * 60):
        store.insert(path)
    number = store.next_file()
    store.remove("a" * 30)
    store.remove("c")
    store.remove("a" * 20 + "b" * 30)
    work, _ = store.compact(number)
    # The window behind the cut knows nothing of it: a mark pass is needed.
    assert (work.live, work.dead) == (4, 1)
    copies = store.records(store.next_file())
    assert sorted(r[12] for r in copies.values()) == [16, 29, 36, 49]
    store.delete(number)
    store.check()
    store.rebuild()
    store.check()


@both
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_damaged_records_are_left_behind_and_swept(routing: str, seed: int) -> None:
    rng = random.Random(seed)
    store = grown(routing, rng)
    base = store.directory.base
    number = max(store.machine.log, key=lambda n: int(base.slot_entries[base.files()[n]]))
    slot = base.files()[number]
    log = store.machine.log[number]
    hit = rng.sample(sorted(store.records(number)), 4)
    for at in hit:
        log[fmt.position_offset(at) + rng.choice([20, 70, 130])] ^= 0x10
    work, _ = store.compact(number, records=5)
    assert work.damaged >= 4
    left, dropped = int(base.slot_entries[slot]), 0
    assert left
    for partition in range(len(store.directory.partitions)):
        dropped += store.directory.forget(partition, 1, slot)
    assert dropped == left
    store.delete(number)
    store.check_counts()
    for path, holder, namespace in store.paths:
        found = store.match(path, holder, namespace)
        assert found == store.expected(path, holder, namespace)[: len(found)]


@both
def test_other_records_are_the_callers(routing: str) -> None:
    store = CompactStore(routing)
    store.insert("ab")
    counts = np.zeros(2, fmt.COUNT_ENTRY_DTYPE)
    written = [
        namespace_record(16, "x", "", 7),
        remove_record(1, 2, bytes(32)),
        clear_record(5),
        count_record(1, 2, counts),
        retire_record(9),
    ]
    for _ in range(8):
        for record in written:
            assert store.commit.append(record)
    number = store.next_file()
    work, others = store.compact(number)
    kinds = [fmt.RECORD_NAMESPACE, fmt.RECORD_REMOVE, fmt.RECORD_CLEAR_HOLDER, fmt.RECORD_COUNT, fmt.RECORD_RETIRE_FILE]
    assert sorted(kind for kind, _ in others) == sorted(kinds * 8)
    for kind, unit in others:
        assert store.machine.log[number][unit * 64 + 10] == kind
    assert work.live == 1


@both
def test_a_full_directory_or_commit_or_a_missing_partition_stops_at_the_record(routing: str) -> None:
    store = CompactStore(routing)
    for path in ("a" * 64, "b" * 64, "c" * 64):
        store.insert(path)
    number = store.next_file()
    work, directory, commit = store.compaction(number), store.directory, store.commit.c
    begin = work.unit
    pages = directory.c.arena.page_limit
    directory.c.arena.page_limit = directory.c.arena.page_next
    assert directory.compact(commit, work, 9) == lib.SARP_FULL
    directory.c.arena.page_limit = pages
    limit, commit.page_limit = commit.page_limit, 1
    assert directory.compact(commit, work, 9) == lib.SARP_NO_ROOM
    commit.page_limit = limit
    flags = directory.partitions["flags"].copy()
    directory.partitions["flags"] &= ~np.uint8(1)
    assert directory.compact(commit, work, 9) == lib.SARP_NEED
    assert work.partition < len(flags)
    directory.partitions["flags"][:] = flags
    assert (work.unit, work.live, store.commit.records) == (begin, 0, 0)
    assert directory.compact(commit, work, 2) == lib.SARP_OK
    assert (work.live, store.commit.records) == (2, 2)
    assert directory.compact(commit, work, 9) == lib.SARP_OK
    assert work.unit == (work.first_page + work.page_count) * 64
    store.delete(number)
    store.check()


@both
def test_a_copy_keeps_recency(routing: str) -> None:
    store = CompactStore(routing)
    for first in "abcdefgh":
        store.insert(first + "z" * 60)
        store.insert(first + "z" * 50 + "y" * 10)
    number = store.next_file()
    old = store.directory
    images = [old.image(i).copy() for i in range(len(old.partitions))]
    rows = np.array([old.row(i) for i in range(len(old.partitions))], old.row_dtype)
    for image in images:
        image["word1"] |= np.where(image["word1"] >> 24 > 0, np.uint64(5 << 1), np.uint64(0))
    slots = {slot: n for n, slot in old.base.files().items()}
    machine = store.machine
    directory = machine._new_directory(slots) if routing == "divergence" else machine.new_directory(slots)
    order = list(range(len(rows))) if routing == "divergence" else old.order.tolist()
    directory.start_unloaded(rows[order])
    for i, source in enumerate(order):
        directory.load(i, images[source])
    machine.directory = directory
    store.compact(number)
    store.delete(number)
    for i in range(len(directory.partitions)):
        image = directory.image(i)
        real = image[(image["word1"] >> 24 > 0) & (image["word1"] >> 24 < fmt.REFERENCE_NONE)]
        assert (real["word1"] >> 1 & 31 == 5).all()


def test_slots_are_found_by_file_however_they_are_given() -> None:
    rng = random.Random(5)
    base, slots = Base(bytes(16), 0), {}
    number = 1
    for step in range(6000):
        if slots and rng.random() < 0.4:
            slot = rng.choice(list(slots))
            base.drop_slot(slot)
            del slots[slot]
        else:
            # Numbers whose low bits are equal are neighbours in the index.
            number += rng.choice([1, 1, 1, lib.SARP_SLOT_INDEX, lib.SARP_SLOT_INDEX - 1])
            slot = rng.choice([len(slots), rng.randrange(1 << 10)])
            if slot in slots:
                continue
            base.add_slot(slot, number)
            slots[slot] = number
        if step % 500 == 0:
            assert base.files() == {n: s for s, n in slots.items()}
            index = np.frombuffer(base._index_space, "<u4")
            assert sorted(index[index > 0].tolist()) == sorted(slot + 1 for slot in slots)
    assert base.slot_count <= 1 << 10


@pytest.mark.parametrize("features", sorted({0, FEATURES}))
def test_a_slots_pages_leave_the_cache_and_the_others_stay(features: int) -> None:
    rng = random.Random(3)
    pages = Pages(bytes(16), 14, 64 * fmt.PAGE, features)
    held: dict[int, bytes] = {}
    for step in range(400):
        key = rng.randrange(3) << 18 | rng.randrange(60)
        data = bytes([step % 251]) * fmt.PAGE
        if lib.sarp_cache_find(pages.cache, key) == ffi.NULL:
            pages.cache_insert(key, ffi.from_buffer("uint8_t[]", data))
            held[key] = data
        if step % 50 == 49:
            slot = rng.randrange(3)
            before = {key for key in held if lib.sarp_cache_find(pages.cache, key) != ffi.NULL}
            lib.sarp_cache_forget(pages.cache, slot, 0, 10)
            lib.sarp_cache_forget(pages.cache, slot, 10, 1 << 20)
            for key in held:
                found = lib.sarp_cache_find(pages.cache, key)
                assert (found != ffi.NULL) == (key in before and key >> 18 != slot)
                assert found == ffi.NULL or bytes(ffi.buffer(found, fmt.PAGE)) == held[key]
