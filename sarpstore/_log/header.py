"""Log file headers, and what shapes a store's files (format-spec/log.md, section 1)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sarpstore import _format as fmt
from sarpstore._clock import wall_ms
from sarpstore._errors import CorruptionError, MismatchError, VersionError
from sarpstore._kernel import crc32c
from sarpstore._options import LOCATION, Options, described, dtype_of_description

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LogHeader", "Shape", "check_version", "check_writable"]

DEFAULT_ROUTING: Final = "divergence"
"""Of a new store whose opener does not say."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is the same in every file of a store."""

    uuid: bytes
    secret: bytes
    block_tokens: int
    hash: str
    routing: str
    location_dtype: np.dtype[Any]

    @classmethod
    def new(cls, options: Options) -> Shape:
        """The shape of a store that is being made."""
        return cls(
            uuid=secrets.token_bytes(16),
            secret=secrets.token_bytes(16),
            block_tokens=16 if options.block_tokens is None else options.block_tokens,
            hash=options.hash or "sha256",
            routing=options.routing or DEFAULT_ROUTING,
            location_dtype=LOCATION if options.location_dtype is None else options.location_dtype,
        )

    def check(self, options: Options, where: str) -> None:
        """MismatchError if an option was given that differs from the store's."""
        for name in ("block_tokens", "hash", "routing", "location_dtype"):
            asked, has = getattr(options, name), getattr(self, name)
            if asked is not None and asked != has:
                raise MismatchError(name, has, asked, where)

    @property
    def location_bytes(self) -> int:
        return self.location_dtype.itemsize


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The header of one log file."""

    shape: Shape
    file_number: int
    slot: int
    previous_commit: int
    previous_end: int
    first_sequence: int
    created_ms: int
    read_only_features: int = 0
    """Features that a writer must know, and a reader need not."""

    @classmethod
    def new(
        cls, shape: Shape, file_number: int, slot: int, previous_commit: int, previous_end: int, sequence: int
    ) -> LogHeader:
        return cls(shape, file_number, slot, previous_commit, previous_end, sequence, wall_ms())

    def encode(self) -> bytes:
        """The header page and its copy: 8,192 bytes."""
        shape = self.shape
        description = msgspec.json.encode(described(shape.location_dtype))
        head = fmt.LOG_HEADER.pack(
            *(fmt.MAGIC_LOG, 0, fmt.MAJOR, fmt.MINOR, 0, 0, fmt.INCOMPATIBLE_REMOVALS, shape.uuid),
            *(self.file_number, self.slot),
            *(shape.block_tokens, fmt.HASHES.index(shape.hash), fmt.ROUTINGS.index(shape.routing)),
            *(shape.location_bytes, self.previous_commit, self.previous_end, self.first_sequence),
            *(shape.secret, self.created_ms, 0, len(description)),
        )
        page = bytearray((head + description).ljust(fmt.PAGE, b"\0"))
        page[fmt.CRC_AT : fmt.CRC_FROM] = crc32c(page[fmt.CRC_FROM :]).to_bytes(4, "little")
        return bytes(page) * 2

    @classmethod
    def decode(cls, data: bytes, name: str) -> LogHeader:
        """The first valid of the two copies. CorruptionError if neither is, VersionError if it is too new."""
        reasons = []
        for start in (0, fmt.PAGE):
            page = data[start : start + fmt.PAGE]
            reason = _flaw(page)
            if reason is None:
                return cls._parse(page, name)
            reasons.append(reason)
        raise CorruptionError(name, 0, f"{reasons[0]}; its copy: {reasons[1]}")

    @classmethod
    def _parse(cls, page: bytes, name: str) -> LogHeader:
        fields = fmt.LOG_HEADER.unpack_from(page)
        check_version(name, fields[2], fields[4:7])
        uuid, number, slot, block_tokens, hash_, routing, location_bytes = fields[7:14]
        previous_commit, previous_end, sequence, secret, created, _, description_bytes = fields[14:]
        if fmt.log_name(number) != name.removesuffix(fmt.TEMPORARY_SUFFIX):
            raise CorruptionError(name, 56, f"the header says file number {number}")
        try:
            description = page[fmt.LOG_DESCRIPTION_AT : fmt.LOG_DESCRIPTION_AT + description_bytes]
            dtype = dtype_of_description(msgspec.json.decode(description))
            shape = Shape(uuid, secret, block_tokens, fmt.HASHES[hash_], fmt.ROUTINGS[routing], dtype)
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptionError(name, 64, f"the header's options do not make sense ({error})") from None
        if dtype.itemsize != location_bytes or not 1 <= location_bytes <= fmt.LOCATION_BYTES_MAX or not block_tokens:
            raise CorruptionError(name, 64, "the header's options contradict each other")
        if slot > fmt.SLOT_MAX:
            raise CorruptionError(name, 64, f"the header says slot {slot}, which no file has")
        return cls(shape, number, slot, previous_commit, previous_end, sequence, created, fields[5])


def _flaw(page: bytes) -> str | None:
    if len(page) < fmt.PAGE:
        return f"the header is cut short at {len(page)} bytes"
    if page[:8] != fmt.MAGIC_LOG:
        return "the header is all zeros" if not any(page) else "the header does not begin with the magic of a log file"
    if crc32c(page[fmt.CRC_FROM :]) != int.from_bytes(page[fmt.CRC_AT : fmt.CRC_FROM], "little"):
        return "the header's checksum does not hold"
    return None


def check_writable(name: str, read_only_features: int) -> None:
    """VersionError for features that forbid this version to write."""
    unknown = read_only_features & ~fmt.READ_ONLY_COMPATIBLE_KNOWN
    if unknown:
        raise VersionError(
            f"{name}: features {unknown:#x} that this sarpstore does not know; it may only open with read_only=True"
        )


def check_version(name: str, major: int, features: tuple[int, int, int]) -> None:
    """VersionError for another major version or unknown incompatible features."""
    if major != fmt.MAJOR:
        raise VersionError(f"{name}: format version {major}; this sarpstore reads version {fmt.MAJOR}")
    unknown = features[2] & ~fmt.INCOMPATIBLE_KNOWN
    if unknown:
        raise VersionError(f"{name}: incompatible features {unknown:#x} that this sarpstore does not know")
