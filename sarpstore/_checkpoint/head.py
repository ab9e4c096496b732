"""Checkpoint heads and partition images, as bytes (format-spec/checkpoint.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sarpstore import _format as fmt
from sarpstore._errors import CorruptionError
from sarpstore._kernel import crc32c
from sarpstore._log.header import check_version

if TYPE_CHECKING:
    from sarpstore._directory import Directory

__all__ = ["CheckpointHead", "NamespaceEntry", "decode_image", "encode_image", "image_length"]


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """A namespace that holds, or held, blocks."""

    name_space: int
    key_bytes: int
    name: str
    adapter: str


@dataclass(slots=True)
class CheckpointHead:
    """What a checkpoint's head says. Positions are the log's."""

    uuid: bytes
    number: int
    start: int
    synced: int
    commit: int
    sequence: int
    routing: int = 0
    read_only_features: int = 0
    """Features that a writer must know, and a reader need not."""
    slots: dict[int, int] = field(default_factory=dict)
    """File number by slot."""
    partitions: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, fmt.PARTITION_DTYPE))
    namespaces: list[NamespaceEntry] = field(default_factory=list)
    markers: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, fmt.MARKER_DTYPE))
    epochs: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, fmt.EPOCH_DTYPE))
    counts: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, fmt.COUNT_DTYPE))
    moments: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, fmt.MOMENT_DTYPE))
    passed: int = 0
    """Where the last mark pass began, that ended before this checkpoint: no marker up to there is left."""

    @property
    def entries(self) -> int:
        return int(self.partitions["entries"].sum())

    @property
    def blocks(self) -> int:
        return int(self.partitions["blocks"].sum(dtype=np.uint64))

    def encode(self) -> memoryview:
        slots = np.zeros(len(self.slots), fmt.SLOT_DTYPE)
        slots["slot"] = list(self.slots)
        slots["file_number"] = list(self.slots.values())
        removed = (self.markers, self.epochs, self.counts, self.moments)
        namespaces = b"".join(map(_encode_namespace, self.namespaces))
        parts = [slots, self.partitions, np.frombuffer(namespaces, np.uint8), *removed]
        length = fmt.CHECKPOINT_HEAD.size + sum(part.nbytes for part in parts)
        data = np.empty(length, np.uint8)
        head = fmt.CHECKPOINT_HEAD.pack(
            *(fmt.MAGIC_CHECKPOINT, 0, fmt.MAJOR, fmt.MINOR, 0, 0, fmt.INCOMPATIBLE_REMOVALS),
            *(self.uuid, self.number, length),
            *(self.start, self.synced, self.commit, self.sequence, self.entries, self.blocks),
            *(len(self.partitions), len(slots), len(self.namespaces), len(self.markers), len(self.epochs)),
            *(self.routing, len(self.counts), len(self.moments)),
        )
        at = fmt.CHECKPOINT_HEAD.size
        data[:at] = np.frombuffer(head, np.uint8)
        for part in parts:
            # Such copies leave the interpreter to the event loop; joining bytes objects would not.
            data[at : at + part.nbytes] = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
            at += part.nbytes
        crc = crc32c(data.data[fmt.CRC_FROM :])
        data[fmt.CRC_AT : fmt.CRC_FROM] = np.frombuffer(crc.to_bytes(4, "little"), np.uint8)
        return data.data

    @classmethod
    def decode(cls, data: bytes, name: str, number: int) -> CheckpointHead:
        """CorruptionError if it is damaged, VersionError if it is too new."""
        if len(data) < fmt.CHECKPOINT_HEAD.size or data[:8] != fmt.MAGIC_CHECKPOINT:
            raise CorruptionError(name, 0, f"not a checkpoint head ({len(data):,} bytes)")
        fields = fmt.CHECKPOINT_HEAD.unpack_from(data)
        if len(data) != fields[9] or crc32c(data[fmt.CRC_FROM :]) != fields[1]:
            raise CorruptionError(name, fmt.CRC_AT, "the checkpoint head's checksum or length does not hold")
        check_version(name, fields[2], fields[4:7])
        uuid, own_number, _, start, synced, commit, sequence, _, _ = fields[7:16]
        partitions, slots, namespaces, markers, epochs, routing, counts, moments = fields[16:24]
        if own_number != number:
            raise CorruptionError(name, 56, f"the head says checkpoint number {own_number}")
        head = cls(uuid, number, start, synced, commit, sequence, routing, fields[5])
        try:
            at = head._decode_arrays(data, slots, partitions)
            head.namespaces, at = _decode_namespaces(data, at, namespaces)
            head._decode_removals(data, at, (markers, epochs, counts, moments))
        except (ValueError, IndexError) as error:
            raise CorruptionError(
                name, fmt.CHECKPOINT_HEAD.size, f"the head's tables are cut short, or not tables ({error})"
            ) from None
        return head

    def _decode_arrays(self, data: bytes, slots: int, partitions: int) -> int:
        at = fmt.CHECKPOINT_HEAD.size
        table = np.frombuffer(data, fmt.SLOT_DTYPE, slots, at)
        if slots and (table["slot"].max() > fmt.SLOT_MAX or table["file_number"].max() >= fmt.FILE_NUMBER_END):
            raise ValueError("slots")
        self.slots = dict(zip(table["slot"].tolist(), table["file_number"].tolist(), strict=True))
        at += table.nbytes
        self.partitions = np.frombuffer(data, fmt.ROW_DTYPES[fmt.ROUTINGS[self.routing]], partitions, at)
        return at + self.partitions.nbytes

    def _decode_removals(self, data: bytes, at: int, lengths: tuple[int, int, int, int]) -> None:
        dtypes = (fmt.MARKER_DTYPE, fmt.EPOCH_DTYPE, fmt.COUNT_DTYPE, fmt.MOMENT_DTYPE)
        tables = []
        for dtype, length in zip(dtypes, lengths, strict=True):
            tables.append(np.frombuffer(data, dtype, length, at))
            at += tables[-1].nbytes
        self.markers, self.epochs, self.counts, self.moments = tables


def _encode_namespace(entry: NamespaceEntry) -> bytes:
    name, adapter = entry.name.encode(), entry.adapter.encode()
    data = fmt.CHECKPOINT_NAMESPACE.pack(entry.name_space, entry.key_bytes, len(name), len(adapter)) + name + adapter
    return data.ljust(-(-len(data) // 8) * 8, b"\0")


def _decode_namespaces(data: bytes, at: int, count: int) -> tuple[list[NamespaceEntry], int]:
    """The namespaces, and where they end."""
    out = []
    for _ in range(count):
        if at + fmt.CHECKPOINT_NAMESPACE.size > len(data):
            raise ValueError("namespaces")
        name_space, key_bytes, name, adapter = fmt.CHECKPOINT_NAMESPACE.unpack_from(data, at)
        text = at + fmt.CHECKPOINT_NAMESPACE.size
        names = data[text : text + name].decode(), data[text + name : text + name + adapter].decode()
        out.append(NamespaceEntry(name_space, key_bytes, *names))
        at += -(-(fmt.CHECKPOINT_NAMESPACE.size + name + adapter) // 8) * 8
    return out, at


def image_length(directory: Directory, entries: int) -> int:
    """Bytes of an image without the padding to whole pages."""
    return fmt.IMAGE_HEADER.size + entries * directory.entry_bytes


def _image_header(directory: Directory, uuid: bytes, row: Any, crc: int) -> bytes:
    prefix, depth, low_filter = directory.image_range(row)
    entries, number, blocks = (int(row[name]) for name in ("entries", "images_number", "blocks"))
    return fmt.IMAGE_HEADER.pack(fmt.MAGIC_IMAGE, crc, entries, depth, 0, uuid, prefix, number, blocks, 0, low_filter)


def encode_image(directory: Directory, uuid: bytes, row: Any, entries: npt.NDArray[Any]) -> bytes:
    """The image, padded to whole pages, of the partition that `row` says everything of but its crc, which is set."""
    data = bytearray(_image_header(directory, uuid, row, 0) + entries.tobytes())
    row["crc"] = crc = crc32c(memoryview(data)[fmt.CRC_FROM :])
    data[fmt.CRC_AT : fmt.CRC_FROM] = crc.to_bytes(4, "little")
    return bytes(data.ljust(-(-len(data) // fmt.PAGE) * fmt.PAGE, b"\0"))


def decode_image(data: memoryview, uuid: bytes, directory: Directory, expected: Any) -> npt.NDArray[Any]:
    """The entries of the image that a head's partition row names. CorruptionError."""
    count = int(expected["entries"])
    if not count:
        return np.empty(0, fmt.ENTRY_DTYPES[directory.routing])
    name, offset = fmt.images_name(int(expected["images_number"])), int(expected["page"]) * fmt.PAGE
    length = image_length(directory, count)
    if len(data) < length:
        raise CorruptionError(name, offset, f"a partition image is cut short at {len(data):,} bytes")
    crc = int(expected["crc"])
    if crc32c(data[fmt.CRC_FROM : length]) != crc:
        raise CorruptionError(name, offset, "a partition image's checksum does not hold")
    if data[: fmt.IMAGE_HEADER.size] != _image_header(directory, uuid, expected, crc):
        raise CorruptionError(name, offset, "a partition image is not the one that the head names")
    return np.frombuffer(data, fmt.ENTRY_DTYPES[directory.routing], count, fmt.IMAGE_HEADER.size)
