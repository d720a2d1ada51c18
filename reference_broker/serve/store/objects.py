"""Operations of the store port, carried out by obstore while the caller waits.

obstore's blocking calls are used, in threads of our own. Its asynchronous ones let threads of its runtime touch Python
objects, and a process that ends meanwhile is aborted.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import obstore
from obstore import exceptions
from obstore.store import LocalStore, S3Store

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
from reference_broker.serve.store.durable import make_durable

PART_BYTES: Final = 8 * 2**20
"""S3 takes 10,000 parts of an object, each of 5 MiB or more."""
PARTS_AT_ONCE: Final = 2
_REFUSED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
    PermissionError,
)
Progress = Callable[[], None]


class Backend(Protocol):
    """Where the objects are. ``once`` never sends a request a second time."""

    @property
    def store(self) -> LocalStore | S3Store: ...

    @property
    def once(self) -> LocalStore | S3Store: ...

    def size(self, key: str) -> int | None:
        """Returns the size of the object in bytes, or None if there is none."""
        ...

    def delete(self, keys: tuple[str, ...]) -> None: ...

    def changed(self, key: str) -> None:
        """Makes what was put durable."""
        ...


class Folder:
    """Objects are files below ``root``. obstore does not sync them, so this does."""

    def __init__(self, root: Path) -> None:
        """Raises OSError, or an error of obstore."""
        root.mkdir(parents=True, exist_ok=True)
        make_durable(root, root.parent)
        self._root = root
        self.store = self.once = LocalStore(root)

    def size(self, key: str) -> int | None:
        path = self._root / key
        return path.stat().st_size if path.is_file() else None

    def delete(self, keys: tuple[str, ...]) -> None:
        there = [key for key in keys if self.size(key) is not None]
        for key in there:
            obstore.delete(self.store, key)
        for folder in dict.fromkeys((self._root / key).parent for key in there):
            make_durable(folder, self._root)

    def changed(self, key: str) -> None:
        make_durable(self._root / key, self._root)


class Bucket:
    """Objects of S3, which answers when they are durable."""

    def __init__(self, store: S3Store, once: S3Store) -> None:
        self.store = store
        self.once = once

    def size(self, key: str) -> int | None:
        try:
            return obstore.head(self.store, key)["size"]
        except FileNotFoundError:
            return None

    def delete(self, keys: tuple[str, ...]) -> None:
        if keys:
            obstore.delete(self.store, keys)

    def changed(self, key: str) -> None:
        """S3 has done it."""


class Objects:
    """Reads files that are put below ``disk_root``, the folder of the node's disk."""

    def __init__(self, backend: Backend, disk_root: Path) -> None:
        self._backend = backend
        self._disk_root = disk_root

    def carry_out(self, operation: StoreOperation, progress: Progress) -> StoreAnswer | StoreFailure:
        """Does the operation. ``progress`` is called whenever a part of a file was read."""
        refusal = refused_key(operation)
        if refusal is not None:
            return refusal
        try:
            match operation:
                case Put():
                    return self._put(operation.key, operation.data, operation.if_absent)
                case PutFile():
                    return self._put_file(operation, progress)
                case Get():
                    return self._get(operation)
                case ListObjects():
                    return self._list(operation.prefix)
                case Delete():
                    self._backend.delete(operation.keys)
                    return None
        except Exception as failure:  # obstore raises errors of its own, of the system, and plain ones.
            return _told(failure)

    def _put(self, key: str, data: bytes, if_absent: bool) -> StoreFailure | None:
        try:
            if if_absent:
                obstore.put(self._backend.once, key, data, mode="create", use_multipart=False)
            else:
                obstore.put(self._backend.store, key, data, use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as found:
            if not if_absent:
                raise
            return StoreFailure(FailureKind.EXISTS, _first_line(found))
        except FileNotFoundError as missing:
            return StoreFailure(FailureKind.REFUSED, _first_line(missing))
        self._backend.changed(key)
        return None

    def _put_file(self, put: PutFile, progress: Progress) -> StoreFailure | None:
        path = self._disk_root / put.path
        if not path.is_file() or path.stat().st_size < put.size_bytes:
            return StoreFailure(FailureKind.MISSING, f"{put.path} is gone, or has fewer than {put.size_bytes} bytes")
        parts = _parts(path, put.size_bytes, progress)
        try:
            if put.size_bytes <= PART_BYTES:
                return self._put(put.key, b"".join(parts), if_absent=False)
            obstore.put(self._backend.store, put.key, parts, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except _ShorterFile as shorter:
            return StoreFailure(FailureKind.MISSING, str(shorter))
        self._backend.changed(put.key)
        return None

    def _get(self, get: Get) -> bytes | StoreFailure:
        try:
            if get.length:
                return bytes(obstore.get_range(self._backend.store, get.key, start=get.position, length=get.length))
        except (exceptions.BaseError, OSError):
            size = self._backend.size(get.key)
            if size is not None and get.position < size:
                raise
        else:
            size = self._backend.size(get.key)
        return StoreFailure(FailureKind.MISSING, f"there is no {get.key}") if size is None else b""

    def _list(self, prefix: str) -> tuple[StoredObject, ...]:
        start = f"{prefix}/" if prefix else ""
        listed = obstore.list(self._backend.store, prefix or None).collect()
        found = [StoredObject(each["path"], each["size"]) for each in listed if each["path"].startswith(start)]
        return tuple(sorted(found))


class _ShorterFile(Exception):  # noqa: N818 - says what happened
    """A file that is being put has become shorter."""


def _parts(path: Path, size_bytes: int, progress: Progress) -> Iterator[bytes]:
    left = size_bytes
    with path.open("rb", buffering=0) as file:
        while left:
            part = file.read(min(PART_BYTES, left))
            if not part:
                raise _ShorterFile(f"{path.name} has become shorter than {size_bytes} bytes")
            left -= len(part)
            progress()
            yield part


def _told(failure: Exception) -> StoreFailure:
    kind = FailureKind.REFUSED if isinstance(failure, _REFUSED) else FailureKind.UNAVAILABLE
    return StoreFailure(kind, _first_line(failure))


def _first_line(failure: Exception) -> str:
    """obstore adds what its own source knows, in many lines."""
    return (str(failure).splitlines() or [type(failure).__name__])[0][:300]
