"""A folder that fails as planned: how tests and the fuzzer reach the error paths of everything above."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from errno import EIO
from typing import TYPE_CHECKING, Literal

from sarpstore._errors import StorageError
from sarpstore._files.forwarding import ForwardingFile, ForwardingFolder
from sarpstore._files.memory import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sarpstore._files.interface import File, Folder, ReadableBuffer, WritableBuffer

__all__ = ["Fault", "FaultyFolder", "Operation"]

Operation = Literal["read", "write", "sync", "truncate", "create", "open", "rename", "remove", "sync_folder"]


@dataclass(frozen=True)
class Fault:
    """One planned failure: which calls, from which one on, how often, and with which errno."""

    operation: Operation
    name_prefix: str = ""
    """Only calls on files whose name (of a rename: either name) begins like this."""
    after: int = 0
    """How many matching calls pass before the first one fails."""
    errno: int = EIO
    partial_bytes: int | None = None
    """A failing write first writes this many bytes; None: nothing."""
    drops: bool = False
    """A failing sync leaves pages that read as written and that no later sync makes durable: the file is a simulated
    one (`MemoryFile.fail_sync`)."""
    times: int | None = 1
    """How many calls fail; None: all from then on."""


@dataclass
class _Planned:
    fault: Fault
    seen: int = 0

    def meets(self, operation: Operation, names: tuple[str, ...]) -> bool:
        """Whether the call is one that the fault counts and, so counted, one that fails."""
        fault = self.fault
        if operation != fault.operation or not any(name.startswith(fault.name_prefix) for name in names):
            return False
        self.seen += 1
        return self.seen > fault.after and (fault.times is None or self.seen <= fault.after + fault.times)


class _Plan:
    """The faults of a folder and of its files, which several threads use at once."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._lock = threading.Lock()
        self._faults = [_Planned(fault) for fault in faults]
        self.calls: Counter[Operation] = Counter()
        self.injected = 0

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(_Planned(fault))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def due(self, operation: Operation, *names: str) -> Fault | None:
        """Count the call; the first fault that it meets, if any."""
        with self._lock:
            self.calls[operation] += 1
            due = [planned.fault for planned in self._faults if planned.meets(operation, names)]
            self.injected += bool(due)
        return due[0] if due else None

    def check(self, operation: Operation, path: str, *names: str) -> None:
        """Count the call and raise where it is to fail."""
        fault = self.due(operation, *names)
        if fault is not None:
            raise StorageError.of(operation, path, fault.errno)


class FaultyFile(ForwardingFile):
    """A `File` of a `FaultyFolder`."""

    __slots__ = ("_path", "_plan")

    def __init__(self, file: File, path: str, plan: _Plan) -> None:
        super().__init__(file)
        self._path = path
        self._plan = plan

    @property
    def path(self) -> str:
        return self._path

    def read_into(self, offset: int, *buffers: WritableBuffer) -> int:
        self._check("read")
        return self.inner.read_into(offset, *buffers)

    def write(self, offset: int, data: ReadableBuffer) -> None:
        fault = self._plan.due("write", self.name)
        if fault is None:
            self.inner.write(offset, data)
            return
        if fault.partial_bytes is not None:
            self.inner.write(offset, memoryview(data).cast("B")[: fault.partial_bytes])
        raise StorageError.of("write", self._path, fault.errno)

    def sync(self) -> None:
        fault = self._plan.due("sync", self.name)
        if fault is None:
            self.inner.sync()
            return
        if fault.drops:
            assert isinstance(self.inner, MemoryFile), "only simulated files drop what was not synced"
            self.inner.fail_sync()
        raise StorageError.of("sync", self._path, fault.errno)

    def truncate(self, size: int) -> None:
        self._check("truncate")
        self.inner.truncate(size)

    def fileno(self) -> int | None:
        self.inner.fileno()
        return None  # a backend that reads by descriptor would go around the plan

    def hold(self) -> int | None:
        self.inner.hold()
        return None

    def _check(self, operation: Operation) -> None:
        self._plan.check(operation, self._path, self.name)


class FaultyFolder(ForwardingFolder):
    """Any `Folder`, whose calls and whose files' calls fail as planned; the others pass through."""

    def __init__(self, inner: Folder, plan: Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self._plan = _Plan(plan)

    @property
    def calls(self) -> Counter[Operation]:
        """How often each operation was called: what a test sweeps `Fault.after` over."""
        return self._plan.calls

    @property
    def injected(self) -> int:
        """How many calls were made to fail."""
        return self._plan.injected

    def inject(self, fault: Fault) -> None:
        """Plan another fault; its `after` counts from now."""
        self._plan.add(fault)

    def heal(self) -> None:
        """Drop all faults."""
        self._plan.clear()

    def size(self, name: str) -> int:
        """Fails as an `open` does: both look for a name."""
        self._check("open", name)
        return self.inner.size(name)

    def create(self, name: str) -> FaultyFile:
        self._check("create", name)
        return self._wrap(self.inner.create(name))

    def open(self, name: str, *, writable: bool = False) -> FaultyFile:
        self._check("open", name)
        return self._wrap(self.inner.open(name, writable=writable))

    def open_direct(self, name: str) -> FaultyFile:
        self._check("open", name)
        return self._wrap(self.inner.open_direct(name))

    def rename(self, old: str, new: str) -> None:
        self._check("rename", old, new)
        self.inner.rename(old, new)

    def remove(self, name: str) -> None:
        self._check("remove", name)
        self.inner.remove(name)

    def sync(self) -> None:
        self._plan.check("sync_folder", self.path, "")
        self.inner.sync()

    def _check(self, operation: Operation, *names: str) -> None:
        self._plan.check(operation, f"{self.path}/{names[0]}", *names)

    def _wrap(self, file: File) -> FaultyFile:
        return FaultyFile(file, f"{self.path}/{file.name}", self._plan)
