"""What the facades stand on: checks, counters, and the two operations, match and insert, over the present state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from asyncio.events import _get_running_loop as running_loop  # None where there is none
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sarpstore._blocks import BlockHasher
from sarpstore._checkpoint import NamespaceEntry
from sarpstore._engine.queries import GROUP_MAX, Key, Queries, Sequenced
from sarpstore._engine.removing import Remover
from sarpstore._engine.results import Match
from sarpstore._errors import (
    ClosedError,
    ForkedError,
    InputError,
    LimitError,
    NamespaceError,
    ReadOnlyError,
    WrongLoopError,
)
from sarpstore._kernel import lib, pointer
from sarpstore._log.commits import CommitBuffer, clear_record, namespace_record
from sarpstore._log.gather import INSERT_WINDOWS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sarpstore._engine.maintenance import Maintenance
    from sarpstore._engine.state import State
    from sarpstore._options import Options

__all__ = ["Core", "check_holder"]

_HOLDER_MAX: Final = 0xFFFF_FFFF
_PART_BLOCKS: Final = INSERT_WINDOWS_MAX * 64
_PART_BLOCKS_MIN: Final = 64
# A step's answers where the disk's bound leaves no room, and where fewer blocks must do: none of the kernel's.
_NO_SPACE: Final = 1000
_TOO_MANY: Final = 1001
# Blocks of a call that is answered from memory by one kernel call.
_AT_ONCE_BLOCKS: Final = 2048


@dataclass(slots=True)
class _Part:
    """What of a sequence is inserted in one step: `query.blocks` blocks, of which the first `done` were before."""

    sequenced: Sequenced
    query: Any
    rows: Any
    counted: bool
    done: int = 0

    @property
    def blocks(self) -> int:
        """Blocks that can be new: the parts before are held, but for damage."""
        return min(int(self.query.blocks), _PART_BLOCKS)


class Core:
    """The operations of an open store, for the loop and the process that opened it."""

    def __init__(self, state: State, options: Options) -> None:
        self.state = state
        self.options = options
        self.hasher = BlockHasher(state.shape.hash, state.shape.block_tokens)
        self.closed = False
        self.matches = self.matched_blocks = self.records_read = 0
        self.inserts = self.inserted_blocks = 0
        self.remover = Remover(state, self._removal_room)
        self.maintenance: Maintenance | None = None
        """What makes room; None in a read-only store."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._pid = os.getpid()

    # --- checks

    def check(self) -> None:
        """UsageError where the store can't be called."""
        # A running loop is of one thread and, since asyncio asks for the process id, of one process.
        if self.closed or running_loop() is not self._loop:
            self._check_closely()

    def _check_closely(self) -> None:
        path = self.state.folder.path
        if self.closed:
            raise ClosedError(f"{path} is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"{path} was opened by process {self._pid}; open it again in the child process")
        # The kernel releases the GIL: a call from another thread could meet it half way through an insertion.
        if threading.get_ident() != self._thread:
            raise WrongLoopError(f"{path} was opened by the event loop of another thread")
        with contextlib.suppress(RuntimeError):  # estimates need no running loop
            if asyncio.get_running_loop() is not self._loop:
                raise WrongLoopError(f"{path} was opened by another event loop")

    def check_writable(self) -> None:
        """ReadOnlyError or FailedError where nothing can be written, besides what `check` raises."""
        self.check()
        if self.options.read_only:
            raise ReadOnlyError(f"{self.state.folder.path} was opened with read_only=True")
        self.state.writer.check()

    def _check_scheme(self, state: State, key: Key, key_bytes: int) -> None:
        known = state.namespaces.get(key.name_space)
        if known is None or not key_bytes:
            return
        if known.key_bytes != key_bytes:
            raise NamespaceError(f"{key} has ids made from keys of {known.key_bytes} bytes; these have {key_bytes}")
        if (known.name, known.adapter) != (key.name, key.adapter):
            raise NamespaceError(f"{key} has the same 64 bits as namespace {known.name!r}: choose another salt")

    # --- matching

    async def match_one(self, sequenced: Sequenced, *, locations: bool, holder: int) -> Match:
        """Match one sequence; from memory, if that is possible, without anything that a batch needs."""
        check_holder(holder)
        state = self.state
        key, ids, key_bytes = sequenced
        if 0 < len(ids) <= _AT_ONCE_BLOCKS:
            self._check_scheme(state, key, key_bytes)
            shape, matcher = state.shape, state.matcher
            found = matcher.match_from_memory(sequenced, holder, shape.location_dtype if locations else None)
            if found is not None:
                blocks, records, rows = found
                self.matches += 1
                self.matched_blocks += blocks
                self.records_read += records
                if matcher.turn_is_due:
                    await matcher.give_way()
                return Match(blocks, ids, rows, 0, shape.block_tokens)
        return (await self.match((sequenced,), locations=locations, holder=holder))[0]

    async def match(
        self, batch: Sequence[Sequenced], *, locations: bool, holder: int, borrowed: bool = False
    ) -> list[Match]:
        """Match all sequences of the batch. Ids that are `borrowed` are copied before the first wait, 128 at a time."""
        check_holder(holder)
        state = self.state
        count = len(batch)
        queries = Queries(count, holder, state.shape.location_dtype if locations else None)
        state.users += 1  # before the first wait: a refresh must not close what this call will read
        try:
            for first in range(0, count, GROUP_MAX):
                if first:
                    await asyncio.sleep(0)
                group = batch[first : first + GROUP_MAX]
                for key, _, key_bytes in group:
                    self._check_scheme(state, key, key_bytes)
                queries.add(group, borrowed=borrowed)
            await state.matcher.match(queries)
        finally:
            state.users -= 1
            state.close_if_unused()
        matched, records = queries.totals()
        self.matches += count
        self.matched_blocks += matched
        self.records_read += records
        tokens = state.shape.block_tokens
        answers = queries.answers(0, min(count, GROUP_MAX), tokens)
        for first in range(GROUP_MAX, count, GROUP_MAX):
            await asyncio.sleep(0)
            answers += queries.answers(first, min(count - first, GROUP_MAX), tokens)
        return answers

    def estimate(self, sequenced: Sequenced, holder: int) -> tuple[int, int]:
        """(at least, at most) blocks from memory alone."""
        check_holder(holder)
        return self.state.directory.estimate(_one(sequenced, holder).c)

    async def match_holders(self, sequenced: Sequenced) -> dict[int, int]:
        """How many blocks each holder has of one sequence; holders that have none are left out."""
        state = self.state
        self._check_scheme(state, sequenced.key, sequenced.key_bytes)
        holders = list(state.removals.holders)
        found: dict[int, int] = {}
        state.users += 1
        try:
            for first in range(0, len(holders), GROUP_MAX):
                group = holders[first : first + GROUP_MAX]
                queries = Queries(len(group))
                queries.add_for_holders(sequenced, group)
                await state.matcher.match(queries)
                found |= {holder: blocks for holder, blocks in zip(group, queries.matched(), strict=True) if blocks}
                self.records_read += queries.totals()[1]
        finally:
            state.users -= 1
            state.close_if_unused()
        self.matches += 1
        return found

    def estimate_holders(self, sequenced: Sequenced) -> dict[int, tuple[int, int]]:
        """(at least, at most) blocks for each holder that may have some, from memory alone."""
        query = _one(sequenced, 0).c + 0
        bounds = {}
        for holder in self.state.removals.holders:
            query.holder = holder
            bounds[holder] = self.state.directory.estimate(query)
        return {holder: (least, most) for holder, (least, most) in bounds.items() if most}

    # --- removing

    async def remove(self, sequenced: Sequenced, holder: int) -> int:
        """Remove blocks, and what follows them; how many."""
        check_holder(holder)
        self._check_scheme(self.state, sequenced.key, sequenced.key_bytes)
        removed = await self.remover.remove(sequenced, holder)
        await self._acknowledge()
        return removed

    async def truncate(self, sequenced: Sequenced, blocks: int, holder: int) -> None:
        """Remove a path's blocks from number `blocks` on."""
        check_holder(holder)
        if not isinstance(blocks, int | np.integer) or isinstance(blocks, bool) or blocks < 0:
            raise InputError(f"blocks={blocks!r}: an integer from 0 on")
        await self.remover.remove_path(sequenced, int(blocks), holder)
        await self._acknowledge()

    async def clear_holder(self, holder: int) -> None:
        """Remove all that a holder has."""
        check_holder(holder)
        await self.remover.clear(holder)
        await self._acknowledge()

    async def _removal_room(self, markers: int) -> None:
        """Return once so many markers can be made, and written."""
        space = self.state.space
        while True:
            if self.maintenance is not None:
                await self.maintenance.room(markers)
            # Both in one step: what there was of one may be gone when there is enough of the other.
            if space is None or space.admits(0, markers=markers):
                return
            await space.wait_for_room(0, markers=markers)

    async def _acknowledge(self) -> None:
        """Under `always`, return once what the call did, or found done, is synced."""
        if self.options.durability == "always":
            await self.state.writer.durable(self.state.gatherer.newest_commit)

    # --- inserting

    async def insert(self, sequenced: Sequenced, rows: npt.NDArray[Any], holder: int, *, counted: bool = False) -> int:
        """Hold all blocks; how many are new."""
        check_holder(holder)
        state = self.state
        self._check_scheme(state, sequenced.key, sequenced.key_bytes)
        new = 0
        if len(rows):
            held = self._insert_from_memory(sequenced, rows, holder, counted=counted)
            if held is None:
                new = await self._insert_in_parts(sequenced, _one(sequenced, holder), rows, counted=counted)
            else:
                new = len(rows) - held
                if state.matcher.turn_is_due:
                    await state.matcher.give_way()
        self.inserts += 1
        self.inserted_blocks += new
        # What was held already may be in a commit that is not synced yet: the call answers for it too.
        await self._acknowledge()
        return new

    def _insert_from_memory(
        self, sequenced: Sequenced, rows: npt.NDArray[Any], holder: int, *, counted: bool
    ) -> int | None:
        """How many blocks were held, if all could be inserted by one kernel call; None with nothing done."""
        state = self.state
        matcher = state.matcher
        if len(rows) > _AT_ONCE_BLOCKS or matcher.damaged or sequenced.key.name_space not in state.namespaces:
            return None
        if holder not in state.removals.holders:
            return None
        records = self.remover.records_to_count(len(rows), counted=counted)
        if state.space is not None and not state.space.admits(len(rows), counted=len(rows) if records else 0):
            return None
        writer, commit = state.writer, state.gatherer.buffer
        writer.check()
        before = commit.records
        if records:
            if not commit.has_room(records):
                return None  # what is held takes no room itself, and its counts do
            commit.keep(records)
        try:
            held = matcher.insert_from_memory(sequenced, holder, rows, commit.c)
        finally:
            if records:
                commit.keep(0)
        if commit.records > before:
            writer.gathered()
        if held is not None and records:
            self.remover.count(sequenced.ids, held, sequenced.key.name_space, holder, counted=counted)
        return held

    async def _insert_in_parts(
        self, sequenced: Sequenced, queries: Queries, rows: npt.NDArray[Any], *, counted: bool
    ) -> int:
        """Insert so much at a time as a commit is sure to hold; what is in and counted is a prefix at every moment."""
        query = queries.c + 0
        if self.state.matcher.damaged:
            # A length can be proved past a damaged record, locations can't. Ask for both, so that what is inserted
            # again after damage can be located again.
            repaired = np.empty_like(rows)
            query.locations = pointer("uint8_t *", repaired)
        source = pointer("uint8_t *", rows)
        total, new, size = len(rows), 0, min(_PART_BLOCKS, self.state.directory.insert_windows_max * 64)
        part, limit = _Part(sequenced, query, source, counted), min(total, size)
        while True:
            query.blocks = limit
            status = await self._insert_step(part)
            if status == lib.SARP_OK:
                new += limit - int(query.matched)
                if limit == total:
                    return new
                part.done, limit = limit, min(total, limit + size)
            elif status == _TOO_MANY:
                size = min(size, _part_counted())
                limit = min(total, part.done + size)
            elif status == lib.SARP_FULL:
                # Room is reserved for all windows of a part beforehand: near the bound, ask for one at a time.
                if size == _PART_BLOCKS_MIN:
                    raise self.state.directory.full_error()
                size = _PART_BLOCKS_MIN
                limit = min(total, query.matched + size)
            else:
                # Less is held than the last part left behind (damage): begin again from there.
                limit = min(total, query.matched + size)

    async def _insert_step(self, part: _Part) -> int:
        """Insert the part: SARP_OK, SARP_FULL, SARP_NO_ROOM, or _TOO_MANY where no commit has room for its counts."""
        state, space = self.state, self.state.space
        while True:
            if space is not None:
                await space.wait_for_room(part.blocks, counted=lambda: self._blocks_to_count(part))
            status = await state.matcher.decide(lambda needs: self._insert_now(part, needs))
            if status < 0:
                raise AssertionError(f"the kernel answered {status} to an insertion")
            if status == _NO_SPACE:
                continue
            if status != int(lib.SARP_NO_ROOM) or not state.gatherer.records:
                return status
            await state.writer.make_room()

    def _insert_now(self, part: _Part, needs: Any) -> int:
        """Insert the part and count it, or do nothing: a removal, or an error, must not come in between."""
        state, query = self.state, part.query
        # Asked and chosen anew at every try: the log may have failed or closed, another commit may gather by now.
        state.writer.check()
        counting = self._blocks_to_count(part)
        if counting > _part_counted():
            return _TOO_MANY
        if state.space is not None and not state.space.admits(part.blocks, counted=counting):
            return _NO_SPACE
        commit = state.gatherer.buffer
        before = commit.records
        records = self.remover.records_to_count(counting, counted=part.counted)
        if records and not commit.has_room(records):
            return int(lib.SARP_NO_ROOM)
        commit.keep(records)
        try:
            if not _named(state, part.sequenced, query.holder, commit, self.options.namespaces_max):
                return int(lib.SARP_NO_ROOM)
            status = state.directory.insert(state.pages.c, query, part.rows, commit.c, needs)
        finally:
            commit.keep(0)
        if commit.records > before:
            state.writer.gathered()
        if status == lib.SARP_OK and counting:
            ids, held = part.sequenced.ids[part.done : int(query.blocks)], max(0, int(query.matched) - part.done)
            self.remover.count(ids, held, part.sequenced.key.name_space, query.holder, counted=part.counted)
        return status

    def _blocks_to_count(self, part: _Part) -> int:
        blocks = int(part.query.blocks) - part.done
        return blocks if self.remover.records_to_count(blocks, counted=part.counted) else 0


def _part_counted() -> int:
    """Blocks that are sure to find room in an empty commit with their counts, of which a record holds 168."""
    return _PART_BLOCKS // 2


def _named(state: State, sequenced: Sequenced, holder: int, commit: CommitBuffer, namespaces_max: int) -> bool:
    """Put the records that name namespace and holder before their first segment; False if there is no room for them."""
    if holder not in state.removals.holders:
        state.removals.check_holders(holder)
        if not commit.append(clear_record(holder, 0)):
            return False
        state.removals.clear(holder, 0)
    key = sequenced.key
    if key.name_space in state.namespaces:
        return True
    if len(state.namespaces) >= namespaces_max:
        raise LimitError(f"{key} would be one more than namespaces_max={namespaces_max:,}")
    if not commit.append(namespace_record(sequenced.key_bytes, key.name, key.adapter, key.name_space)):
        return False
    state.namespaces[key.name_space] = NamespaceEntry(key.name_space, sequenced.key_bytes, key.name, key.adapter)
    return True


def _one(sequenced: Sequenced, holder: int) -> Queries:
    queries = Queries(1, holder)
    queries.add((sequenced,))
    return queries


def check_holder(holder: int) -> int:
    """The holder; InputError for what is none."""
    if type(holder) is int and 0 <= holder <= _HOLDER_MAX:
        return holder
    if not isinstance(holder, int | np.integer) or isinstance(holder, bool) or not 0 <= holder <= _HOLDER_MAX:
        raise InputError(f"holder={holder!r}: an integer from 0 to 2**32 - 1")
    return int(holder)
