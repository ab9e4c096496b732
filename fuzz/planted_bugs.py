"""Bugs that were never there: each is a change of one place of the source, by which a fuzzer shows what it finds.

They are of the kinds that storage engines have had: an fsync too few, an order turned round, a check left out, a state
forgotten. A text that is not found exactly once is an error, so that a change of the source takes its bug along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True, slots=True)
class Bug:
    """In `path`, `old` becomes `new`."""

    name: str
    path: str
    old: str
    new: str


_CUT_AND_COPY: Final = (
    "    return barrier_survives(&removed, record, record + SARP_SEGMENT_HEADER, n);\n"
    "}\n"
    "\n"
    "const uint8_t *compact_copy(moving *m, const uint8_t *source, const kept *what, uint64_t *position) {\n"
    "    sarp_commit *commit = m->commit;\n"
    "    const uint32_t bytes = commit->location_bytes, length = segment_bytes(what->n, bytes);\n"
    "    /* Postings records speak of the records before them. */\n"
    "    uint8_t *record = commit_place(commit, length, commit->ordered ? SARP_PLACE_BEHIND : SARP_PLACE_BEST, position);\n"
    "    memcpy(record, source, SARP_SEGMENT_HEADER);\n"
)
"""Of kernels/compact.c: where a record is cut, and where its copy begins."""

BUGS: Final = (
    Bug(
        "skip the fsync of a commit",
        "sarpstore/_log/writer.py",
        "    if sync:\n        file.sync()\n",
        "    if sync and offset < 0:\n        file.sync()\n",
    ),
    Bug(
        "acknowledge a commit before it is synced",
        "sarpstore/_log/writer.py",
        "            self._wanted = max(self._wanted, number)\n            self._keep_running()\n",
        "            self._wanted = max(self._wanted, number)\n            self._keep_running()\n            return\n",
    ),
    Bug(
        "skip the folder's fsync after a new log file",
        "sarpstore/_log/writer.py",
        "        folder.rename(temporary, name)\n        folder.sync()\n    except",
        "        folder.rename(temporary, name)\n    except",
    ),
    Bug(
        "rename a log file before its header is synced",
        "sarpstore/_log/writer.py",
        "        file.write(0, header.encode())\n        file.sync()\n",
        "        file.write(0, header.encode())\n",
    ),
    Bug(
        "skip the fsync of a checkpoint's head",
        "sarpstore/_checkpoint/writer.py",
        "            await self._write_pieces(file, 0, data)\n",
        "            await self._scheduler.run_background(file.write, 0, data)\n",
    ),
    Bug(
        "skip the fsync of a checkpoint's images",
        "sarpstore/_checkpoint/writer.py",
        "        await self._write_pieces(images.file, images.written, data)\n",
        "        await self._scheduler.run_background(images.file.write, images.written, data)\n",
    ),
    Bug(
        "publish a checkpoint before the log behind it is synced",
        "sarpstore/_checkpoint/writer.py",
        "            await self._log.sync()\n            head.synced = max(start, self._log.synced_position)\n",
        "            head.synced = max(start, self._gatherer.place()[0])\n",
    ),
    Bug(
        "forget the markers in a checkpoint's head",
        "sarpstore/_checkpoint/writer.py",
        "            await self._add_markers(head)\n",
        "            pass\n",
    ),
    Bug(
        "start a checkpoint's replay where its images end",
        "sarpstore/_checkpoint/writer.py",
        "            await self._add_markers(head)\n",
        "            await self._add_markers(head)\n            head.start, head.commit, _ = self._gatherer.place()\n",
    ),
    Bug(
        "drop the check of a torn tail",
        "sarpstore/_recovery/accept.py",
        '        in_order = (commits["flags"] & lib.SARP_COMMIT_COMPLETE > 0) & (\n',
        '        in_order = (commits["flags"] >= 0) & (\n',
    ),
    Bug(
        "take a commit whose predecessor is missing",
        "sarpstore/_recovery/accept.py",
        '        in_order = (commits["flags"] & lib.SARP_COMMIT_COMPLETE > 0) & (\n'
        '            commits["number"] == np.uint64((commit + 1) % (1 << 64)) + np.arange(len(commits), dtype="<u8")\n        )\n',
        '        commits = commits[commits["flags"] & lib.SARP_COMMIT_COMPLETE > 0]\n'
        '        in_order = commits["number"] > commit\n',
    ),
    Bug(
        "replay past a hole into the next file",
        "sarpstore/_recovery/accept.py",
        "        if count < len(commits):\n            break\n",
        '        if count < len(commits):\n            commit = int(commits["number"].max())\n            end = scan.end\n',
    ),
    Bug(
        "accept a record's body without its checksum",
        "kernels/internal_record.c",
        "    return sarp_crc32c(features, seed, record + header, length - header) == load32(record + SARP_AT_BODY_CRC);\n",
        "    return sarp_crc32c(features, seed, record + header, 0) != 1;\n",
    ),
    Bug(
        "keep a marker's first position when a block is removed again",
        "kernels/removals.c",
        "            if (!later || mark->value < value) mark->value = value;\n",
        "            if (!later) mark->value = value;\n",
    ),
    Bug(
        "delete a file before its copies are synced",
        "sarpstore/_compaction/compactor.py",
        "        await self._log.durable(self._gatherer.buffer.number)\n",
        "        pass\n",
    ),
    Bug(
        "compaction gives a copy a birth of its own",
        "kernels/compact.c",
        "    memcpy(record, source, SARP_SEGMENT_HEADER);\n",
        "    memcpy(record, source, SARP_SEGMENT_HEADER);\n    store64(record + SARP_AT_BORN, *position);\n",
    ),
    Bug(
        "compaction copies what was removed, with a birth of its own",
        "kernels/compact.c",
        _CUT_AND_COPY,
        _CUT_AND_COPY.replace("return barrier", "return removed.markers ? n : barrier")
        + "    store64(record + SARP_AT_BORN, *position);\n",
    ),
    Bug(
        "compaction drops removals that are still needed",
        "sarpstore/_compaction/compactor.py",
        "            while (again := written_again(record, kind, context)) and not self._append(again, kind):\n",
        "            again = None if kind in _BEHIND else written_again(record, kind, context)\n"
        "            while again and not self._append(again, kind):\n",
    ),
    Bug(
        "forget the postings when a list is refined",
        "kernels/postings_insert.c",
        "    post_all(p, list, refined);\n    const uint32_t end = p->count;\n    plan_state(p, list, point, CHANGE_ADD,",
        "    const uint32_t end = p->count;\n    plan_state(p, list, point, CHANGE_ADD,",
    ),
    Bug(
        "an off-by-one in the filter's bound",
        "kernels/postings_route.c",
        "    const uint32_t bound = point_offset(point) + 2 * (uint32_t)equal + 1;\n",
        "    const uint32_t bound = point_offset(point) + 2 * (uint32_t)equal;\n",
    ),
    Bug(
        "keep a deleted file's pages in the cache",
        "kernels/pages.c",
        "        if (cache->keys[frame] >> KEY_SLOT_SHIFT != slot) continue;\n",
        "        if (cache->keys[frame] >> KEY_SLOT_SHIFT != slot + 1) continue;\n",
    ),
    Bug(
        "verify a record without its holder",
        "kernels/internal_prove.c",
        "    if (load32(record + SARP_AT_HOLDER) != q->holder || load64(record + SARP_AT_NAMESPACE) != q->name_space) return 0;\n",
        "    if (load64(record + SARP_AT_NAMESPACE) != q->name_space) return 0;\n",
    ),
    Bug(
        "remember a removal without writing it down",
        "sarpstore/_engine/removing.py",
        "        position = self._commit.append_removal(record)\n",
        "        position = self._state.gatherer.place()[0]\n",
    ),
    Bug(
        "a mark pass forgets whose parent was removed in between",
        "kernels/markplan.c",
        "    return found && !removed_between(d, row->born, found->born) ? left : 0;\n",
        "    return found ? left : 0;\n",
    ),
    Bug(
        "retire markers before a checkpoint of after the pass",
        "sarpstore/_engine/maintenance.py",
        "        self._state.retirement.passed(result.position, markers)\n",
        "        self._state.retirement.passed(result.position, markers)\n"
        "        await self._state.retirement.retire(result.position)\n",
    ),
    Bug(
        "skip the fsync of a chunk's payload",
        "sarpstore/_chunks/regions.py",
        "        for file in dict.fromkeys(files):\n            file.sync()\n",
        "        for file in dict.fromkeys(files[1:]):\n            file.sync()\n",
    ),
    Bug(
        "acknowledge a chunk before its entry is synced",
        "sarpstore/_chunks/regions.py",
        "            file.write(at, entry)\n            file.sync()\n",
        "            file.write(at, entry)\n",
    ),
    Bug(
        "skip the folder's fsync after a new region",
        "sarpstore/_chunks/regions.py",
        "    folder.rename(temporary, name)\n    folder.sync()\n",
        "    folder.rename(temporary, name)\n",
    ),
    Bug(
        "delete a region before the name of its entries is gone for sure",
        "sarpstore/_chunks/regions.py",
        "            self._folder.remove(entries_name(number))\n            self._folder.sync()\n",
        "            self._folder.remove(entries_name(number))\n",
    ),
    Bug(
        "take what a killed process has not synced for synced",
        "sarpstore/_chunks/regions.py",
        "(self.entries[number])\n                file.sync()\n",
        "(self.entries[number])\n",
    ),
    Bug(
        "put chunks into files whose names a killed process has not synced",
        "sarpstore/_chunks/regions.py",
        "        self._folder.sync()\n        for name in [*remains",
        "        for name in [*remains",
    ),
    Bug(
        "add entries behind what a torn one left",
        "sarpstore/_chunks/regions.py",
        "                    file.truncate(self.entries[number])\n",
        "                    self.entries[number] = file.size()\n",
    ),
    Bug(
        "load a chunk without a look at its checksum",
        "sarpstore/_chunks/payload.py",
        "    return crc32c(sums) == chunk.crc and strip",
        "    return crc32c(sums) == chunk.crc or strip",
    ),
    Bug(
        "hold a chunk of which one region is left",
        "sarpstore/_chunks/recover.py",
        "for chunk in late if all(extent.region in there",
        "for chunk in late if any(extent.region in there",
    ),
    Bug(
        "leave the newest chunks out of a table",
        "sarpstore/_chunks/puts.py",
        "                late.append((found, self.policy.weight(key)))\n",
        "                late = [(found, self.policy.weight(key))]\n",
    ),
    Bug(
        "put chunks over the end of a region that is gone on with",
        "sarpstore/_chunks/opening.py",
        "            opened.open_again[number] = size\n",
        "            opened.open_again[number] = size - fmt.PAGE\n",
    ),
)
