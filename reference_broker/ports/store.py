"""The store port: the operations of an object store that the deterministic part uses (KIP-405's remote storage).

``Ports.store`` takes an operation. The response comes in a later event: exactly one of ``done`` and ``failed`` is
called. A driver that gets no response within its time limit reports ``unavailable``, and the operation may happen all
the same.

There are four implementations: ``MemoryStore``, for tests and as the content of the simulated store;
``serve/object_store.py`` with a local folder or S3; and ``chaos/sim/store.py``.
One conformance suite runs against all of them (``chaos/tests/test_store_conformance.py``).

A key is a ``/``-separated path. Each of its names has letters, digits and ``.``, ``_``, ``-``, ``=``, and is neither
``.`` nor ``..``. An object is never changed in place: a reader sees all of one put, or of another.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from reference_broker.ports.disk import Disk, DiskError

_KEY: Final = re.compile(r"(?!\.{1,2}(/|$))[A-Za-z0-9._=-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9._=-]+)*")
LARGEST_KEY_BYTES: Final = 1024
"""The limit of S3."""


class Put(NamedTuple):
    """Stores ``data`` under the key, and replaces what is there. The result is None, when the object is durable.

    With ``if_absent`` it fails as ``exists`` if there is an object. Of several such puts at a time one succeeds.
    """

    key: str
    data: bytes
    if_absent: bool = False


class PutFile(NamedTuple):
    """Stores the first ``size_bytes`` of a file on this node's disk, and replaces what is there.

    The result is None, when the object is durable. The file is read in parts and is never whole in memory. It fails as
    ``missing`` if the file is gone, or shorter than that. There is no ``if_absent``: no store takes one for an object
    that is sent in parts.
    """

    key: str
    path: str
    size_bytes: int


class Get(NamedTuple):
    """Reads ``length`` bytes from ``position``. The result is the bytes: fewer only at the end of the object, and none
    behind it. Fails as ``missing`` if there is no such object."""

    key: str
    position: int
    length: int


class ListObjects(NamedTuple):
    """Lists the objects below the folder ``prefix``, at any depth; with an empty prefix all objects.

    The result is a tuple of StoredObject, sorted by key. A store may list late: what was put or deleted a moment ago
    may not be seen yet.
    """

    prefix: str


class Delete(NamedTuple):
    """Deletes the objects. The result is None, when they are durably gone. A missing one is ignored. If it fails,
    each of them may be there or gone."""

    keys: tuple[str, ...]


class StoredObject(NamedTuple):
    key: str
    size_bytes: int


class FailureKind(StrEnum):
    MISSING = "missing"
    """There is no such object, or no such file to put."""
    EXISTS = "exists"
    """A put with ``if_absent`` found an object."""
    UNAVAILABLE = "unavailable"
    """The store did not respond, or has trouble. It is worth trying again, and the operation may have happened."""
    REFUSED = "refused"
    """The store does not take this: the key, the credentials or the configuration are wrong. Trying again is no use
    until somebody has changed something."""


class StoreFailure(NamedTuple):
    """The failure of a call of the object store."""

    kind: FailureKind
    reason: str
    """One line for people."""


StoreOperation: TypeAlias = Put | PutFile | Get | ListObjects | Delete
StoreResult: TypeAlias = bytes | tuple[StoredObject, ...] | None


def refused_key(operation: StoreOperation) -> StoreFailure | None:
    """Return why the operation names something that is no key, if it does."""
    keys = operation.keys if isinstance(operation, Delete) else (operation[0],)
    for key in keys:
        may_be_empty = isinstance(operation, ListObjects)
        if not (_is_key(key) or (may_be_empty and not key)):
            return StoreFailure(FailureKind.REFUSED, f"{key[:100]!r} is no key of an object")
    return None


def _is_key(key: str) -> bool:
    return len(key) <= LARGEST_KEY_BYTES and _KEY.fullmatch(key) is not None


@dataclass(slots=True)
class MemoryStore:
    """An object store in memory, for the simulator and tests."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """The content by key."""

    def carry_out(self, operation: StoreOperation, disk: Disk) -> StoreResult | StoreFailure:
        """Do the operation at once, for a node with this disk."""
        refusal = refused_key(operation)
        if refusal is not None:
            return refusal
        match operation:
            case Put():
                return self._put(operation)
            case PutFile():
                return self._put_file(operation, disk)
            case Get():
                return self._get(operation)
            case ListObjects():
                return self._list(operation.prefix)
            case Delete():
                for key in operation.keys:
                    self.objects.pop(key, None)
                return None

    def _put(self, put: Put) -> StoreFailure | None:
        if put.if_absent and put.key in self.objects:
            return StoreFailure(FailureKind.EXISTS, f"{put.key} exists")
        self.objects[put.key] = put.data
        return None

    def _put_file(self, put: PutFile, disk: Disk) -> StoreFailure | None:
        try:
            data = disk.read(put.path, 0, put.size_bytes)
        except DiskError as failure:
            return StoreFailure(FailureKind.MISSING, str(failure))
        if len(data) < put.size_bytes:
            return StoreFailure(FailureKind.MISSING, f"{put.path} has only {len(data)} of {put.size_bytes} bytes")
        self.objects[put.key] = data
        return None

    def _get(self, get: Get) -> bytes | StoreFailure:
        data = self.objects.get(get.key)
        if data is None:
            return StoreFailure(FailureKind.MISSING, f"there is no {get.key}")
        return data[get.position : get.position + get.length]

    def _list(self, prefix: str) -> tuple[StoredObject, ...]:
        start = f"{prefix}/" if prefix else ""
        found = [StoredObject(key, len(data)) for key, data in self.objects.items() if key.startswith(start)]
        return tuple(sorted(found))
