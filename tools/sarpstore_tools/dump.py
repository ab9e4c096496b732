"""`sarpstore dump`: the files of a store as text or JSON lines, read without the engine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from .specreader.chunk_items import store_items
from .specreader.chunk_store import holds_chunks
from .specreader.describe import (
    Item,
    entry_item,
    head_item,
    header_item,
    image_item,
    namespace_item,
    partition_item,
    record_item,
    statistics_item,
    table_items,
    text_block,
    text_line,
)
from .specreader.faults import DamagedError, Faults
from .specreader.files import LogFile, close_logs, open_logs
from .specreader.folder import (
    Folder,
    NotAStoreError,
    head_name,
    images_name,
    kind_of,
    list_folder,
    open_regular,
    read_at,
    read_whole,
)
from .specreader.log import TYPE_NAMES, Slice, walk
from .specreader.structures import (
    IMAGE_BYTES_MAX,
    LOG_START,
    MAGIC_IMAGE,
    PAGE,
    UNIT,
    Image,
    LogHeader,
    parse_head,
    parse_image,
    parse_statistics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCKS: Final = frozenset({"log header", "checkpoint head", "image", "statistics", "entries header", "table"})
_LIMITED: Final = frozenset({"record", "entry", "chunk"})
_BATCH_LINES: Final = 256  # a write for every line would be most of the time


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the store is to be shown."""

    records: bool
    checkpoints: bool
    entries: bool
    chunks: bool
    ids: bool
    types: frozenset[str]
    limit: int


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--file", "name", metavar="NAME", help="This file of the store only.")
@click.option("--records/--no-records", default=True, help="Records of log files, entries of regions (default: shown).")
@click.option("--checkpoints", is_flag=True, help="Checkpoint heads with their tables, too.")
@click.option("--entries", is_flag=True, help="Directory entries of the partition images, too.")
@click.option("--chunks", is_flag=True, help="Regions and chunks of a chunk store's tables, too.")
@click.option("--type", "types", multiple=True, type=click.Choice(TYPE_NAMES[1:]), help="Records of this type only.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N records, entries and chunks.")
@click.option("--ids", is_flag=True, help="Block ids, locations, counts and changes of each record.")
def dump(
    store: Path,
    as_json: bool,
    name: str | None,
    records: bool,
    checkpoints: bool,
    entries: bool,
    chunks: bool,
    types: tuple[str, ...],
    limit: int | None,
    ids: bool,
) -> None:
    """Show what the files of STORE hold, damaged parts included.

    Places are shown as FILE:OFFSET, the file's name without leading zeros, offsets in bytes; JSON has positions as
    format-spec/README.md defines them. A line of text leaves out what says nothing (holder 0, no flags, born where
    it stands), and lengths, checksums, prefix ids and parent keys: JSON has all. Works while a writer has the store
    open. Exit status: 0, or 2 if there is no such store or file.
    """
    most = sys.maxsize if limit is None else limit
    wanted = Wanted(records, checkpoints or entries, entries, chunks, ids, frozenset(types), most)
    try:
        items = _items(store, name, wanted)
        _write(items, as_json)
    except NotAStoreError as error:
        click.echo(f"sarpstore dump: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail again at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(items: Iterator[Item], as_json: bool) -> None:
    batch: list[str] = []
    for item in items:
        if as_json:
            batch.append(msgspec.json.encode(item).decode())
        else:
            batch.append(text_block(item) if item["kind"] in _BLOCKS else text_line(item))
        if len(batch) >= _BATCH_LINES:
            click.echo("\n".join(batch))
            batch.clear()
    if batch:
        click.echo("\n".join(batch))


def _items(store: Path, name: str | None, wanted: Wanted) -> Iterator[Item]:
    """All that is wanted; records, entries and chunks up to the limit."""
    if name is not None and (not kind_of(name) or not (store / name).exists()):
        raise NotAStoreError(f"{store / name}: no such file of a store")
    left = wanted.limit
    for item in _all_items(store, name, wanted):
        if item["kind"] in _LIMITED:
            if left == 0:
                return
            left -= 1
        yield item


def _all_items(store: Path, name: str | None, wanted: Wanted) -> Iterator[Item]:
    """Of a store of either kind, or of one of its files."""
    if name == "stats":
        return _stats_items(store)
    if holds_chunks(store):
        return store_items(store, name, wanted.records, wanted.chunks)
    folder = list_folder(store)
    return _store_items(folder, wanted) if name is None else _file_items(folder, name, wanted)


def _file_items(folder: Folder, name: str, wanted: Wanted) -> Iterator[Item]:
    kind = kind_of(name)
    if kind == "log":
        yield from _log_items(folder, wanted, int(name[:16], 16))
    elif kind == "images":
        yield from _images_items(folder, int(name[:16], 16), wanted)
    elif kind == "checkpoint":
        yield from _head_items(folder, int(name[:16], 16))


def _store_items(folder: Folder, wanted: Wanted) -> Iterator[Item]:
    yield from _log_items(folder, wanted, None)
    for number in folder.heads if wanted.checkpoints else ():
        yield from _head_items(folder, number)
    for number in folder.images if wanted.entries else ():
        yield from _images_items(folder, number, wanted)


def _error(name: str, offset: int, meaning: str) -> Item:
    return {"kind": "damage", "file": name, "offset": offset, "meaning": meaning}


def _log_items(folder: Folder, wanted: Wanted, only: int | None) -> Iterator[Item]:
    """Headers and records of all log files, or of one."""
    faults = Faults()
    files = open_logs(folder, faults)
    try:
        spare = next((file.header for file in files if file.header), None)
        opened = {file.number: file for file in files}
        for number in folder.logs if only is None else (only,):
            file = opened.get(number)
            name = f"{number:016x}.log"
            yield from (_error(name, fault.offset, fault.meaning) for fault in faults.found if fault.file == name)
            if file and file.header:
                yield {"kind": "log header", "file": name, "size": file.size, **header_item(file.header)}
            # Without a header of its own, the file's records can still be read with the store's uuid and options.
            header = file.header if file and file.header else spare and replace(spare, file=number)
            if file and header and wanted.records:
                yield from _record_items(file, header, wanted)
    finally:
        close_logs(files)


def _record_items(file: LogFile, header: LogHeader, wanted: Wanted) -> Iterator[Item]:
    for piece in walk(file.descriptor, header, LOG_START, file.size):
        for item in _slice_items(piece, header, wanted):
            void = file.bounded and item["offset"] >= file.end
            yield {"file": file.name, **item, **({"void": True} if void else {})}
    rest = file.size % PAGE
    if rest and not wanted.types:
        yield _error(file.name, file.size - rest, f"{rest} bytes behind the last whole page")


def _slice_items(piece: Slice, header: LogHeader, wanted: Wanted) -> Iterator[Item]:
    """Records and damaged stretches in order of place."""
    damage = [] if wanted.types else list(reversed(piece.damage))
    for row in piece.rows:
        item = {"kind": "record", **record_item(row, piece.record(row), header, wanted.ids)}
        while damage and damage[-1].offset < item["offset"]:
            stretch = damage.pop()
            yield {"kind": "damage", "offset": stretch.offset, "size": stretch.size, "meaning": stretch.meaning}
        if not wanted.types or item["type"] in wanted.types:
            yield item
    for stretch in reversed(damage):
        yield {"kind": "damage", "offset": stretch.offset, "size": stretch.size, "meaning": stretch.meaning}


def _head_items(folder: Folder, number: int) -> Iterator[Item]:
    name = head_name(number)
    try:
        head = parse_head(read_whole(folder.path / name))
    except DamagedError as error:
        yield _error(name, 0, error.meaning)
        return
    yield {"kind": "checkpoint head", "file": name, **head_item(head)}
    for row in head.slots:
        yield {"kind": "slot", "file": name, "slot": int(row["slot"]), "log_file": int(row["file"])}
    for row in head.partitions:
        yield {"kind": "partition", "file": name, **partition_item(row, head.routing)}
    for named in head.namespaces:
        yield {"kind": "namespace", "file": name, **namespace_item(named)}
    yield from ({"kind": item["kind"], "file": name, **item} for item in table_items(head))


def _routing_of(folder: Folder) -> int:
    """The store's routing, which an images file does not say: from a log header, or else from a head."""
    files = open_logs(folder, Faults())
    close_logs(files)
    for file in files:
        if file.header:
            return file.header.options.routing
    for number in folder.heads:
        with suppress(DamagedError):
            return parse_head(read_whole(folder.path / head_name(number))).routing
    return 0


def _images_items(folder: Folder, number: int, wanted: Wanted) -> Iterator[Item]:
    """The images of a file, found at page boundaries; what no head names may be among them."""
    name = images_name(number)
    routing = _routing_of(folder)
    try:
        descriptor = open_regular(folder.path / name)
    except DamagedError as error:
        yield _error(name, 0, error.meaning)
        return
    try:
        offset = 0
        while data := read_at(descriptor, IMAGE_BYTES_MAX, offset):
            size = PAGE
            if data.startswith(MAGIC_IMAGE):
                try:
                    image = parse_image(data, routing)
                    size = -(-(UNIT + image.entries.nbytes) // PAGE) * PAGE
                    yield from _image_items(name, offset, image, routing, wanted)
                except DamagedError as error:
                    yield _error(name, offset, error.meaning)
            elif any(data[:PAGE]):
                yield _error(name, offset, "no partition image begins here")
            offset += size
    except DamagedError as error:
        yield _error(name, 0, error.meaning)
    finally:
        os.close(descriptor)


def _image_items(name: str, offset: int, image: Image, routing: int, wanted: Wanted) -> Iterator[Item]:
    yield {"kind": "image", "file": name, "offset": offset, **image_item(image, routing)}
    for at, row in enumerate(image.entries if wanted.entries else ()):
        where = offset + UNIT + image.entries.itemsize * at
        yield {"kind": "entry", "file": name, "offset": where, **entry_item(row, routing)}


def _stats_items(store: Path) -> Iterator[Item]:
    try:
        statistics = parse_statistics(read_whole(store / "stats"))
        yield {"kind": "statistics", "file": "stats", **statistics_item(statistics)}
    except DamagedError as error:
        yield _error("stats", 0, error.meaning)
