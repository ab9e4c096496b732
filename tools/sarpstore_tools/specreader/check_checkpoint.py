"""Checkpoint heads and partition images, alone and against the log (checkpoint.md, directory.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .accept import UNKNOWN
from .check_records import named_namespaces
from .faults import DamagedError, Faults
from .folder import Folder, head_name, images_name, log_name, open_regular, read_at, read_whole
from .log import CLEAR_HOLDER, REMOVE, SEGMENT, Rows
from .state import PLACED, Directory, differences, placed_entries
from .structures import (
    IMAGE_ENTRIES_MAX,
    KEY_BITS,
    PAGE,
    REFERENCE_NONE,
    SLOT_NONE,
    UNIT,
    Head,
    Image,
    parse_head,
    parse_image,
    place,
    shown,
)

if TYPE_CHECKING:
    from .accept import Log

_KEYS: Final = 1 << KEY_BITS
_DIFFERENCES_MAX: Final = 100  # reported of one checkpoint; a wrong image differs everywhere


@dataclass(slots=True)
class Checked:
    """A head with what was read of its images; `whole` says that all of them could be used."""

    head: Head
    name: str
    placed: Rows = field(default_factory=lambda: np.zeros(0, dtype=PLACED))
    origins: list[tuple[str, int, int]] = field(default_factory=list)  # images file, offset, entries: as in `placed`
    whole: bool = True
    bytes_checked: int = 0

    def origin(self, index: int) -> tuple[str, int]:
        """File and byte offset of an entry of `placed`."""
        for name, offset, count in self.origins:
            if index < count:
                return name, offset + UNIT + 16 * index
            index -= count
        return self.name, 0


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


def check_heads(folder: Folder, heads: list[Head], log: Log, faults: Faults, compare: bool) -> int:
    """Checks every head and its images, the newest against the log too; returns the bytes of images checked.

    `compare` also replays the log, alone and from the newest head on, and compares the two directories.
    """
    images = _Images(folder)
    checked: list[Checked] = []
    try:
        for head in heads:
            one = Checked(head, head_name(head.number))
            _check_head(one, log, faults)
            _check_partitions(one, images, faults)
            checked.append(one)
    finally:
        images.close()
    # `sarp` (routing 1) has a directory of its own, which version 1.0 does not define.
    if checked and checked[-1].head.routing == 0:
        _check_entries(checked[-1], log, faults)
        if compare and checked[-1].whole:
            _compare(checked[-1], log, faults)
    return sum(one.bytes_checked for one in checked)


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
    _check_cover(one, faults)


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
        faults.corruption(one.name, 192, "slot", "a slot or a file is in the slot table twice")
    for number, slot in names:
        file = log.file(number)
        if file is None and number not in log.retired:
            meaning = f"file is missing and was not retired: {one.name} names it"
            faults.corruption(log_name(number), 0, "missing", meaning)
        elif slot == SLOT_NONE or (file and file.header and file.header.slot != slot):
            faults.corruption(one.name, 192, "slot", f"slot {slot} for {log_name(number)}, whose header says otherwise")
    # Files that begin behind the synced position may have been made later.
    known = {number for number, _ in names}
    for file in log.files:
        if file.header and file.number <= place(head.synced)[0] and file.number not in known:
            faults.corruption(one.name, 192, "slot", f"{file.name}, which existed, is not in the slot table")


def _check_namespaces(one: Checked, log: Log, faults: Faults) -> None:
    """The head names the namespaces of the log up to its start, and perhaps some of later."""
    head = one.head
    in_log = {named.namespace: (int(row["position"]), named) for row, named in named_namespaces(log)}
    in_head = {named.namespace: named for named in head.namespaces}
    add = faults.warning if log.damaged else faults.corruption
    at = 192 + 16 * len(head.slots) + 40 * len(head.partitions)
    for number, (where, named) in in_log.items():
        if where < head.start and number not in in_head:
            add(one.name, at, "namespace", f"namespace {number:016x} is not in the head")
        elif number in in_head and in_head[number] != named:
            add(one.name, at, "namespace", f"namespace {number:016x} differs from its record at {shown(where)}")
    for number in in_head.keys() - in_log.keys():
        if not log.retired:
            add(one.name, at, "namespace", f"namespace {number:016x} has no record in the log")


def _check_cover(one: Checked, faults: Faults) -> None:
    """Partitions are disjoint and cover all keys, in ascending order."""
    expected = 0
    at = 192 + 16 * len(one.head.slots)
    for row in one.head.partitions:
        prefix, depth = int(row["prefix"]), int(row["depth"])
        span = 1 << max(0, KEY_BITS - depth)
        if depth > KEY_BITS or prefix % span:
            faults.corruption(one.name, at, "partition", f"prefix {prefix:012x} does not have {depth} bits")
            return
        if prefix != expected:
            what = "overlaps" if prefix < expected else "leaves a gap behind"
            faults.corruption(one.name, at, "partition", f"partition {prefix:012x} {what} the one before it")
        expected = prefix + span
        at += 40
    if expected != _KEYS:
        faults.corruption(one.name, at, "partition", f"the partitions end at key {expected:012x}, not with the last")


def _check_partitions(one: Checked, images: _Images, faults: Faults) -> None:
    """Reads and checks each partition's image."""
    files = np.zeros(1 << 16, dtype=np.uint64)
    for row in one.head.slots:
        files[int(row["slot"])] = row["file"]
    placed: list[Rows] = [one.placed]
    at = 192 + 16 * len(one.head.slots)
    for index, row in enumerate(one.head.partitions):
        if not row["entries"]:
            if row["images"] or row["page"] or row["crc"] or row["blocks"]:
                faults.corruption(one.name, at + 40 * index, "partition", "a partition without entries names an image")
            continue
        name, offset = images_name(int(row["images"])), int(row["page"]) * PAGE
        try:
            image, rows = _read_image(one, images, row, files)
        except DamagedError as error:
            one.whole = False
            faults.corruption(name, offset, f"image-{error.code}", f"{error.meaning} (named by {one.name})")
            continue
        for code, meaning in _image_problems(one, row, image, rows):
            one.whole = False
            faults.corruption(name, offset, code, f"{meaning} (named by {one.name})")
        one.origins.append((name, offset, len(rows)))
        placed.append(rows)
    one.placed = np.concatenate(placed)


def _read_image(one: Checked, images: _Images, row: Any, files: Any) -> tuple[Image, Rows]:
    entries = int(row["entries"])
    if entries > IMAGE_ENTRIES_MAX:
        raise DamagedError("length", f"{entries} entries, an image has at most {IMAGE_ENTRIES_MAX}")
    size = UNIT + 16 * entries
    data = images.read(int(row["images"]), -(-size // PAGE) * PAGE, int(row["page"]) * PAGE)
    one.bytes_checked += len(data)
    image = parse_image(data)
    if any(data[UNIT + 16 * len(image.entries) :]):
        raise DamagedError("padding", "bytes between the image and the next page are not zero")
    return image, placed_entries(image.entries, files)


def _image_problems(one: Checked, row: Any, image: Image, rows: Rows) -> list[tuple[str, str]]:
    """What does not fit in an image whose checksum is right."""
    prefix, depth, blocks = int(row["prefix"]), int(row["depth"]), int(row["blocks"])
    held = rows[rows["placeholder"] == 0]
    own = int((held["n"].astype(np.int64) - held["d"]).sum())
    shift = np.uint64(KEY_BITS - min(image.depth, KEY_BITS))
    word1 = image.entries["word1"]
    empty = np.uint64(REFERENCE_NONE << 24 | 1)
    blank = (word1 & ~np.uint64(31 << 1)) != empty
    rules = [
        (image.uuid == one.head.uuid, "uuid", "the image is that of another store"),
        (image.crc == int(row["crc"]), "crc", "the image's checksum is not the one that the head names"),
        (image.number == int(row["images"]), "number", f"the image says checkpoint {image.number} wrote it"),
        (image.number <= one.head.number, "number", f"the image is of the later checkpoint {image.number}"),
        ((image.prefix, image.depth) == (prefix, depth), "prefix", "prefix or depth is not the head's"),
        (len(rows) == int(row["entries"]), "entries", f"{len(rows)} entries, the head says {int(row['entries'])}"),
        (image.blocks == blocks == own, "blocks", f"{own} blocks, it says {image.blocks} and the head {blocks}"),
        (not (rows["key"][1:] < rows["key"][:-1]).any(), "order", "entries are not in ascending order of key"),
        (not (rows["key"] >> shift != image.prefix >> int(shift)).any(), "prefix", "entries outside of its prefix"),
        (not (held["d"] >= held["n"]).any(), "entry", "an entry whose d is not below n"),
        (not (held["mask"][held["d"] > 0]).any(), "entry", "an entry with a mask that is not a root entry"),
        (not (blank & (rows["placeholder"] == 1)).any(), "entry", "a placeholder that claims something"),
        (_distinct(held), "entry", "two entries with the same key and reference"),
    ]
    return [(f"image-{code}", meaning) for good, code, meaning in rules if not good]


def _distinct(held: Rows) -> bool:
    pairs = np.stack([held["key"], held["position"]], axis=1)
    return len(np.unique(pairs, axis=0)) == len(pairs)


def _check_entries(one: Checked, log: Log, faults: Faults) -> None:
    """Every entry of the newest checkpoint names an accepted record, before its synced position, and agrees with it."""
    segments = log.rows[log.rows["type"] == SEGMENT]
    indexes = np.nonzero(one.placed["placeholder"] == 0)[0]
    entries = one.placed[indexes]
    at = np.minimum(np.searchsorted(segments["position"], entries["position"]), max(0, len(segments) - 1))
    if len(segments):
        records = segments[at]
        found = records["position"] == entries["position"]
    else:
        records, found = np.zeros(len(entries), dtype=log.rows.dtype), np.zeros(len(entries), dtype=np.bool_)
    retired = np.isin(entries["position"] >> np.uint64(24), np.array(sorted(log.retired), dtype=np.uint64))
    behind = entries["position"] >= np.uint64(one.head.synced)
    differs = found & np.any([records[name] != entries[name] for name in ("key", "n", "d", "dp")], axis=0)
    lost = ~found & ~retired & ~behind
    for broken, code, meaning in (
        (behind, "entry-behind", "names a record behind the checkpoint's synced position"),
        (differs, "entry-differs", "differs from its record in key, n, d or dp"),
        (lost, "entry-lost", "names a place where no accepted segment record is"),
    ):
        add = faults.warning if log.damaged and code == "entry-lost" else faults.corruption
        for index in np.nonzero(broken)[0][:_DIFFERENCES_MAX].tolist():
            name, offset = one.origin(int(indexes[index]))
            where = shown(int(entries["position"][index]))
            add(name, offset, code, f"entry {int(entries['key'][index]):012x} {meaning}: {where} (named by {one.name})")


def _compare(one: Checked, log: Log, faults: Faults) -> None:
    """Head and replay must give the directory that the log alone gives."""
    first = log.header
    incomplete = log.damaged or log.retired or first is None or first.previous_commit
    if incomplete or np.isin(log.rows["type"], (REMOVE, CLEAR_HOLDER)).any():
        return  # the log alone is not the whole state, or changes it in a way that version 1.0 does not define
    log_alone, with_head = Directory(), Directory()
    log_alone.replay(log.rows)
    with_head.load(one.placed)
    with_head.replay(log.rows[log.rows["position"] >= np.uint64(one.head.start)])
    for count, (key, where, meaning) in enumerate(differences(log_alone, with_head)):
        if count == _DIFFERENCES_MAX:
            faults.corruption(one.name, 0, "state", "more entries differ")
            return
        place_shown = f"record {shown(where)}" if where else "placeholder"
        faults.corruption(one.name, 0, "state", f"key {key:012x}, {place_shown}: {meaning}")
