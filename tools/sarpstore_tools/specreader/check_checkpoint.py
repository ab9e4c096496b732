"""Checkpoint heads and partition images, alone and against the log (checkpoint.md, directory.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .accept import UNKNOWN
from .check_records import named_namespaces
from .check_tables import check_tables
from .checked import DIFFERENCES_MAX, HEAD_BYTES, Checked, ImageRules
from .faults import DamagedError, Faults
from .folder import Folder, head_name, images_name, log_name, open_regular, read_at, read_whole
from .image_keys import KeyImages
from .image_lists import ListImages
from .structures import (
    PAGE,
    SARP,
    SLOT_NONE,
    UNIT,
    Head,
    Image,
    entry_type,
    image_entries_max,
    parse_head,
    parse_image,
    place,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .accept import Log
    from .changes import Changes
    from .checked import Difference
    from .log import Rows
    from .removed import Removed


def read_heads(folder: Folder, faults: Faults) -> list[Head]:
    """The valid heads, ascending by number. One that vanished since the listing was replaced by a newer one."""
    heads: list[Head] = []
    for number in folder.heads:
        name = head_name(number)
        try:
            head = parse_head(read_whole(folder.path / name))
        except DamagedError as error:
            if error.code != "missing":
                faults.corruption(name, 0, f"head-{error.code}", error.meaning)
            continue
        if head.number == number:
            heads.append(head)
        else:
            faults.corruption(name, 56, "number", f"the head is that of checkpoint {head.number}")
    return heads


def check_heads(
    folder: Folder,
    heads: list[Head],
    log: Log,
    changes: Changes | None,
    removed: Removed,
    faults: Faults,
    compare: bool,
) -> int:
    """Checks every head and its images, the newest against the log too; returns the bytes of images checked.

    `compare` also replays the log, alone and from the newest head on, and compares the two directories. `changes` are
    those of posting lists, None but under `sarp`.
    """
    images = _Images(folder)
    checked: list[Checked] = []
    try:
        for head in heads:
            rules = _rules(head, log, changes)
            one = _checked(head, rules)
            _check_head(one, log, faults)
            check_tables(one, log, removed, faults)
            rules.cover(one, faults)
            _check_partitions(one, rules, images, faults)
            checked.append(one)
    finally:
        images.close()
    newest = checked[-1] if checked else None
    if newest and newest.head.routing == (0 if changes is None else SARP):
        rules = _rules(newest.head, log, changes)
        rules.check_entries(newest, log, removed, faults)
        if compare and newest.whole and not log.damaged and log.header:
            _compare(newest, rules, log, removed, faults)
    return sum(one.bytes_checked for one in checked)


def _rules(head: Head, log: Log, changes: Changes | None) -> ImageRules:
    return ListImages(changes) if head.routing == SARP else KeyImages(log)


def _checked(head: Head, rules: ImageRules) -> Checked:
    nothing = rules.placed(np.zeros(0, dtype=entry_type(head.routing)), np.zeros(1, dtype=np.uint64))
    return Checked(head, head_name(head.number), nothing)


class _Images:
    """Open `.images` files; each image is read, checked and counted once, however many heads share it."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._open: dict[int, int | DamagedError] = {}

    def read(self, number: int, size: int, offset: int) -> bytes:
        if number not in self._open:
            try:
                self._open[number] = open_regular(self._folder.path / images_name(number))
            except DamagedError as error:
                self._open[number] = error
        found = self._open[number]
        if isinstance(found, DamagedError):
            raise DamagedError(found.code, found.meaning)
        return read_at(found, size, offset)

    def close(self) -> None:
        for descriptor in self._open.values():
            if isinstance(descriptor, int):
                os.close(descriptor)


def _check_head(one: Checked, log: Log, faults: Faults) -> None:
    head = one.head
    header = log.header
    if header and head.uuid != header.options.uuid:
        faults.corruption(one.name, 40, "uuid", "the head is that of another store")
    if header and head.routing != header.options.routing:
        faults.corruption(one.name, 140, "options", f"routing {head.routing}, the log has {header.options.routing}")
    if head.start > head.synced:
        meaning = f"starts at {shown(head.start)}, behind its synced position {shown(head.synced)}"
        faults.corruption(one.name, 72, "start", meaning)
    if not log.may_be_boundary(head.synced):
        meaning = f"says that the log was synced up to {shown(head.synced)}, where no commit ends"
        faults.corruption(one.name, 80, "synced", meaning)
    _check_start(one, log, faults)
    _check_slots(one, log, faults)
    _check_namespaces(one, log, faults)
    partitions = head.partitions
    for at, name in ((104, "entries"), (112, "blocks")):
        total = int(partitions[name].sum(dtype=np.uint64))
        said = head.entries if name == "entries" else head.blocks
        if total != said:
            faults.corruption(one.name, at, name, f"says {said} {name}, its partitions have {total}")


def _check_start(one: Checked, log: Log, faults: Faults) -> None:
    """Where the replay begins: a commit boundary, with that commit's number and the next sequence number."""
    head = one.head
    add = faults.warning if log.damaged else faults.corruption
    if head.start in log.boundaries:
        number = log.boundaries[head.start]
        if number not in (head.commit, UNKNOWN):
            add(one.name, 88, "start", f"the last commit before its start is {number}, not {head.commit}")
    elif not log.may_be_boundary(head.start):
        add(one.name, 72, "start", f"starts at {shown(head.start)}, which is not a commit boundary")
    before = log.rows["position"] < np.uint64(head.start)
    late = (before & (log.rows["sequence"] >= head.sequence)) | (~before & (log.rows["sequence"] < head.sequence))
    if late.any():
        row = log.rows[late][0]
        meaning = f"next sequence {head.sequence} at its start does not part the records: {int(row['sequence'])}"
        add(one.name, 96, "sequence", f"{meaning} is at {shown(int(row['position']))}")


def _check_slots(one: Checked, log: Log, faults: Faults) -> None:
    head = one.head
    names = [(int(row["file"]), int(row["slot"])) for row in head.slots]
    if len({slot for _, slot in names}) < len(names) or len({file for file, _ in names}) < len(names):
        faults.corruption(one.name, HEAD_BYTES, "slot", "a slot or a file is in the slot table twice")
    for number, slot in names:
        file = log.file(number)
        if file is None and not _may_lack(one, log, number):
            meaning = f"file is missing and was not retired: {one.name} names it"
            faults.corruption(log_name(number), 0, "missing", meaning)
        elif slot == SLOT_NONE or (file and file.header and file.header.slot != slot):
            faults.corruption(
                one.name, HEAD_BYTES, "slot", f"slot {slot} for {log_name(number)}, whose header says otherwise"
            )
    _check_slots_given(one, log, faults)
    # Files that begin behind the synced position may have been made later.
    known = {number for number, _ in names}
    for file in log.files:
        if file.header and file.number <= place(head.synced)[0] and file.number not in known:
            faults.corruption(one.name, HEAD_BYTES, "slot", f"{file.name}, which existed, is not in the slot table")


def _may_lack(one: Checked, log: Log, number: int) -> bool:
    """Whether a file that a head names may be missing: deleted in order, or since an older head was published."""
    return log.is_gone(number) or (log.removals and log.newest is not None and one.head.number != log.newest.number)


def _check_slots_given(one: Checked, log: Log, faults: Faults) -> None:
    """A slot is used again only when no kept head names it."""
    named = {int(row["slot"]): int(row["file"]) for row in one.head.slots}
    for file in log.files:
        if file.header and named.get(file.header.slot, file.number) != file.number:
            meaning = f"slot {file.header.slot} is that of {file.name}, the head gives it to another file"
            faults.corruption(one.name, HEAD_BYTES, "slot", meaning)


def _check_namespaces(one: Checked, log: Log, faults: Faults) -> None:
    """The head names the namespaces of the log up to its start, and perhaps some of later."""
    head = one.head
    in_log = {named.namespace: (int(row["position"]), named) for row, named in named_namespaces(log)}
    in_head = {named.namespace: named for named in head.namespaces}
    add = faults.warning if log.damaged else faults.corruption
    at = one.partition_at(len(head.partitions))
    for number, (where, named) in in_log.items():
        if where < head.start and number not in in_head:
            add(one.name, at, "namespace", f"namespace {number:016x} is not in the head")
        elif number in in_head and in_head[number] != named:
            add(one.name, at, "namespace", f"namespace {number:016x} differs from its record at {shown(where)}")
    for number in in_head.keys() - in_log.keys():
        if not log.shortened:
            add(one.name, at, "namespace", f"namespace {number:016x} has no record in the log")


def _check_partitions(one: Checked, rules: ImageRules, images: _Images, faults: Faults) -> None:
    """Reads and checks each partition's image."""
    files = np.zeros(1 << 16, dtype=np.uint64)
    for row in one.head.slots:
        files[int(row["slot"])] = row["file"]
    placed: list[Rows] = [one.placed]
    for index, row in enumerate(one.head.partitions):
        if not row["entries"]:
            if row["images"] or row["page"] or row["crc"] or row["blocks"]:
                meaning = "a partition without entries names an image"
                faults.corruption(one.name, one.partition_at(index), "partition", meaning)
            continue
        name, offset = images_name(int(row["images"])), int(row["page"]) * PAGE
        try:
            image = _read_image(one, images, row)
        except DamagedError as error:
            one.whole = False
            faults.corruption(name, offset, f"image-{error.code}", f"{error.meaning} (named by {one.name})")
            continue
        rows = rules.placed(image.entries, files)
        for code, meaning in _image_problems(one, rules, index, image, rows):
            one.whole = False
            faults.corruption(name, offset, code, f"{meaning} (named by {one.name})")
        one.origins.append((name, offset, len(rows)))
        placed.append(rows)
    one.placed = np.concatenate(placed)


def _read_image(one: Checked, images: _Images, row: Any) -> Image:
    routing, entries = one.head.routing, int(row["entries"])
    if entries > image_entries_max(routing):
        raise DamagedError("length", f"{entries} entries, an image has at most {image_entries_max(routing)}")
    entry_bytes = entry_type(routing).itemsize
    size = -(-(UNIT + entry_bytes * entries) // PAGE) * PAGE
    data = images.read(int(row["images"]), size, int(row["page"]) * PAGE)
    one.bytes_checked += len(data)
    image = parse_image(data, routing)
    if any(data[UNIT + entry_bytes * len(image.entries) :]):
        raise DamagedError("padding", "bytes between the image and the next page are not zero")
    return image


def _image_problems(one: Checked, rules: ImageRules, index: int, image: Image, rows: Rows) -> list[tuple[str, str]]:
    """What does not fit in an image whose checksum is right."""
    row = one.head.partitions[index]
    blocks, own = int(row["blocks"]), rules.blocks(rows)
    problems = [
        (image.uuid == one.head.uuid, "uuid", "the image is that of another store"),
        (image.crc == int(row["crc"]), "crc", "the image's checksum is not the one that the head names"),
        (image.number == int(row["images"]), "number", f"the image says checkpoint {image.number} wrote it"),
        (image.number <= one.head.number, "number", f"the image is of the later checkpoint {image.number}"),
        (len(rows) == int(row["entries"]), "entries", f"{len(rows)} entries, the head says {int(row['entries'])}"),
        (image.blocks == blocks == own, "blocks", f"{own} blocks, it says {image.blocks} and the head {blocks}"),
        *rules.problems(one, index, image, rows),
    ]
    return [(f"image-{code}", meaning) for good, code, meaning in problems if not good]


def _compare(one: Checked, rules: ImageRules, log: Log, removed: Removed, faults: Faults) -> None:
    """Head and replay must give the directory that the log alone gives; less, where something may have been removed."""
    found: Iterable[Difference] = ()
    if log.removals:
        found, lacking = rules.excess(one, log, removed)
        if lacking:
            meaning = f"{lacking} entries that the log alone gives are not in the checkpoint: they were removed"
            faults.removed(one.name, 0, "lacking", meaning)
    elif not (log.retired or (log.header and log.header.previous_commit)):
        found = rules.differences(one)
    for count, (key, where, meaning) in enumerate(found):
        if count == DIFFERENCES_MAX:
            faults.corruption(one.name, 0, "state", "more entries differ")
            return
        place_shown = f"record {shown(where)}" if where else rules.nameless
        faults.corruption(one.name, 0, "state", f"key {key:012x}, {place_shown}: {meaning}")
