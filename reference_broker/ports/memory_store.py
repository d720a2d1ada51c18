"""An object store in memory: for tests, and as what the simulated store holds."""

from dataclasses import dataclass, field

from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoreAnswer,
    StoredObject,
    StoreFailure,
    StoreOperation,
    refused_key,
)


@dataclass(slots=True)
class MemoryStore:
    """``objects`` holds the content by key."""

    objects: dict[str, bytes] = field(default_factory=dict)

    def carry_out(self, operation: StoreOperation, disk: Disk) -> StoreAnswer | StoreFailure:
        """Does the operation at once, for a node with this disk."""
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
