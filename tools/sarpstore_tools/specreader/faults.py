"""What an inspection finds: faults, and notes on what is lawful but worth saying (torn tails, void, the removed)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is. The last three are notes: what crashes (recovery.md, section 2) and removals (removal.md)
    lawfully leave behind."""

    CORRUPTION = "corruption"
    WARNING = "warning"
    TORN_TAIL = "torn tail"
    VOID = "void"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding. `offset` is in bytes from the start of `file`; `code` is a stable word for programs."""

    severity: Severity
    file: str
    offset: int
    code: str
    meaning: str

    @property
    def is_note(self) -> bool:
        return self.severity in (Severity.TORN_TAIL, Severity.VOID, Severity.REMOVED)


class Faults:
    """Collects findings in the order in which they are made."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def corruption(self, file: str, offset: int, code: str, meaning: str) -> None:
        self.found.append(Fault(Severity.CORRUPTION, file, offset, code, meaning))

    def warning(self, file: str, offset: int, code: str, meaning: str) -> None:
        self.found.append(Fault(Severity.WARNING, file, offset, code, meaning))

    def torn(self, file: str, offset: int, meaning: str) -> None:
        self.found.append(Fault(Severity.TORN_TAIL, file, offset, "torn-tail", meaning))

    def void(self, file: str, offset: int, meaning: str) -> None:
        self.found.append(Fault(Severity.VOID, file, offset, "void", meaning))

    def removed(self, file: str, offset: int, code: str, meaning: str) -> None:
        self.found.append(Fault(Severity.REMOVED, file, offset, code, meaning))


class DamagedError(Exception):
    """A structure that must not be used: `code` as in `Fault`, the text says why."""

    def __init__(self, code: str, meaning: str) -> None:
        super().__init__(meaning)
        self.code = code
        self.meaning = meaning
