"""Checks of a chunk store's entries, regions and payloads against chunks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chunk_payloads import payload_problems
from .chunk_structures import ENTRIES_START, ENTRY_BYTES_MAX, STRIP
from .folder import entries_name, region_name
from .structures import FILE_NUMBER_END, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .chunk_files import ChunkFiles, EntriesFile
    from .chunk_structures import Stored
    from .faults import Faults


def shown_chunk(stored: Stored) -> str:
    """A chunk as findings name it."""
    return f"chunk {stored.key.hex()[:16]} (sequence {stored.sequence})"


def rule_breaks(stored: Stored, region_bytes: int | None) -> Iterator[tuple[str, str]]:
    """(code, meaning) of what no writer says of a payload."""
    if not (stored.sequence and stored.tokens):
        yield "numbers", "sequence and tokens are from 1"
    if stored.strip != STRIP:
        yield "strip", f"strips of 2^{stored.strip} bytes, there are none but of 2^{STRIP}"
    elif stored.bytes % 4 or stored.body <= 0:
        yield "length", f"no payload has {stored.bytes} bytes"
    pages = sum(extent.pages for extent in stored.extents)
    if pages != -(-stored.bytes // PAGE) or not all(extent.pages for extent in stored.extents):
        yield "extents", f"{pages} pages in {len(stored.extents)} extents for {stored.bytes} bytes"
    for extent in stored.extents:
        if not 0 < extent.region < FILE_NUMBER_END:
            yield "region-number", f"there is no region {extent.region}"
        if region_bytes is not None and (extent.page + extent.pages) * PAGE > region_bytes:
            yield "extents", f"an extent ends behind the {region_bytes} bytes of a region"


def check_entries(files: ChunkFiles, faults: Faults) -> None:
    """Entries files: where they end, and what each entry says."""
    known = files.known()
    for number, file in files.entries.items():
        if file.front:
            _check_end(file, known.get(number, ENTRIES_START), faults)
    _check_rules(files, known, faults)
    _check_regions(files, faults)
    _check_overlaps(files, faults)


def _check_end(file: EntriesFile, known: int, faults: Faults) -> None:
    """Damage before the end that the table knows, and what stands behind the last entry."""
    entries, first_end = file.run(ENTRIES_START)
    if first_end < min(known, file.size):
        faults.corruption(file.name, first_end, "damaged-entry", f"no valid entry; the table has them up to {known}")
    if known > file.size:
        faults.corruption(file.name, file.size, "entries-cut", f"the file ends; the table has entries up to {known}")
        return
    if known not in (first_end, ENTRIES_START, *entries) and known < first_end:
        faults.corruption(file.name, known, "table-entries", "what the table has of the file ends inside an entry")
    end = file.run(known)[1]
    tail = file.size - end
    if any(at > end for at in file.placed):
        faults.corruption(file.name, end, "damaged-entry", "no valid entry, and valid ones behind it")
    elif tail > ENTRY_BYTES_MAX:
        faults.corruption(file.name, end, "damaged-entry", f"no valid entry, and {tail} bytes: more than of a torn one")
    elif tail:
        faults.torn(file.name, end, f"{tail} bytes behind the last entry")


def _check_rules(files: ChunkFiles, known: dict[int, int], faults: Faults) -> None:
    table, sequences, last = files.table, dict[int, str](), (0, 0)
    for (number, at), stored in files.standing().items():
        name = entries_name(number)
        for code, meaning in rule_breaks(stored, table.region_bytes if table else None):
            faults.corruption(name, at, code, f"{shown_chunk(stored)}: {meaning}")
        if stored.extents[0].region != number:
            faults.corruption(name, at, "entry-region", f"{shown_chunk(stored)} begins in {stored.extents[0].region}")
        if last >= (number, stored.sequence):
            faults.corruption(name, at, "order", f"{shown_chunk(stored)} stands behind sequence {last[1]}")
        other = sequences.setdefault(stored.sequence, f"{name}:{at}")
        if other != f"{name}:{at}":
            faults.corruption(name, at, "sequence", f"{shown_chunk(stored)} has the sequence of {other}")
        if table and (stored.sequence < table.next_sequence) != (at < known.get(number, 0)):
            faults.corruption(name, at, "table-sequence", f"{shown_chunk(stored)} is on the table's other side")
        last = number if last[0] != number else last[0], stored.sequence


def _check_regions(files: ChunkFiles, faults: Faults) -> None:
    """Files without their other half, and regions that are too long."""
    standing = files.standing()
    used = {number for number, _ in standing} | {each.region for stored in standing.values() for each in stored.extents}
    for number, file in files.entries.items():
        if number in files.regions:
            continue
        if number in used or not file.front:
            faults.corruption(file.name, 0, "region-missing", f"{region_name(number)} is gone, and its entries are not")
        else:
            faults.torn(file.name, 0, "no entries and no region: a crash left that when the region was made")
    limit = files.table.region_bytes if files.table else None
    for number, size in files.regions.items():
        if number not in files.entries:
            faults.torn(region_name(number), 0, "no entries file: a crash left that when the region was made or went")
        if limit is not None and size > limit:
            faults.corruption(region_name(number), limit, "region-size", f"{size} bytes, a region has at most {limit}")


def _check_overlaps(files: ChunkFiles, faults: Faults) -> None:
    """Each page is of one payload, and there."""
    pieces = sorted(
        (extent.region, extent.page, extent.page + extent.pages, place, stored.sequence)
        for place, stored in files.standing().items()
        for extent in stored.extents
        if extent.region in files.regions
    )
    before = (0, 0, 0)
    for region, first, end, (number, at), sequence in pieces:
        if before[0] == region and first < before[1]:
            meaning = f"sequence {sequence} has pages of sequence {before[2]} in {region_name(region)}"
            faults.corruption(entries_name(number), at, "overlap", meaning)
        if before[0] != region or end > before[1]:
            before = (region, end, sequence)
        if end * PAGE > files.regions[region]:
            meaning = f"the file ends at {files.regions[region]}, an extent of sequence {sequence} at {end * PAGE}"
            faults.corruption(region_name(region), files.regions[region], "region-short", meaning)


def check_payloads(files: ChunkFiles, held: dict[bytes, Stored], faults: Faults, quick: bool) -> int:
    """What is held is whole, and what is whole is held; bytes that were read."""
    taken, known = 0, files.known()
    rest = {stored.sequence: stored for stored in held.values()}
    for (number, at), stored in files.standing().items():
        if not files.has_all(stored) or rest.pop(stored.sequence, None) is not None:
            continue
        superseded = stored.key in held
        problems = [] if quick or not _readable(files, stored) else list(payload_problems(files.folder.path, stored))
        taken += 0 if quick else stored.bytes
        meaning = f"{shown_chunk(stored)} was given up" + (", and put again" if superseded else "")
        if problems or quick or superseded:
            faults.removed(entries_name(number), at, "given-up", meaning)
        elif at < known.get(number, 0):
            faults.warning(entries_name(number), at, "not-in-table", f"{meaning}, though its payload is whole")
    for stored in held.values():
        if not quick and _readable(files, stored):
            taken += stored.bytes
            for file, offset, meaning in payload_problems(files.folder.path, stored):
                faults.corruption(file, offset, "payload", f"{shown_chunk(stored)}: {meaning}")
    return taken


def _readable(files: ChunkFiles, stored: Stored) -> bool:
    """What breaks rules, or ends too early, is reported already."""
    ends = all((e.page + e.pages) * PAGE <= files.regions[e.region] for e in stored.extents)
    return ends and not any(rule_breaks(stored, None))
