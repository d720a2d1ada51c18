"""The object store of the remote tier: a local directory or S3, through obstore.

obstore's blocking calls are used, in threads of our own. Its asynchronous ones let threads of its runtime touch Python
objects, and a process that ends meanwhile is aborted. The threads do not keep the process from ending, even if a store
does not respond.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import obstore
from obstore import exceptions
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from reference_broker.core.effect_ports import store_event
from reference_broker.core.events import StoreCall, StoreDone, StoreFailed
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoredObject,
    StoreFailure,
    StoreOperation,
    StoreResult,
    refused_key,
)
from reference_broker.serve.process import StartError

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig


def make_durable(path: Path, root: Path) -> None:
    """Sync the file or folder, and each folder above it up to ``root``: obstore does not. Raise OSError."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == root:
            return


PART_BYTES: Final = 8 * 2**20
"""The size of one part of an upload. S3 allows 10,000 parts of an object, each of 5 MiB or more."""
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
    """The store of the objects. ``once`` never retries a request."""

    @property
    def store(self) -> LocalStore | S3Store: ...

    @property
    def once(self) -> LocalStore | S3Store: ...

    def size(self, key: str) -> int | None:
        """Return the size of the object in bytes, or None if there is none."""
        ...

    def delete(self, keys: tuple[str, ...]) -> None: ...

    def changed(self, key: str) -> None:
        """Make the object durable after a put."""
        ...


class Folder:
    """Objects as files below ``root``. obstore does not sync them, so this does."""

    def __init__(self, root: Path) -> None:
        """Raise OSError, or an error of obstore."""
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
    """Objects in S3, whose responses come when they are durable."""

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
        """Nothing is left to do: S3 has made it durable."""


class Objects:
    """Carries out operations of the store port while the caller waits. Uploaded files are below ``disk_root``."""

    def __init__(self, backend: Backend, disk_root: Path) -> None:
        self._backend = backend
        self._disk_root = disk_root

    def carry_out(self, operation: StoreOperation, progress: Progress) -> StoreResult | StoreFailure:
        """Carry out the operation. ``progress`` is called after each part of a file that was read."""
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
            return _store_failure(failure)

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
    """A file that is being uploaded has become shorter."""


def _parts(path: Path, size_bytes: int, progress: Progress) -> Iterator[bytes]:
    remaining_bytes = size_bytes
    with path.open("rb", buffering=0) as file:
        while remaining_bytes:
            part = file.read(min(PART_BYTES, remaining_bytes))
            if not part:
                raise _ShorterFile(f"{path.name} has become shorter than {size_bytes} bytes")
            remaining_bytes -= len(part)
            progress()
            yield part


def _store_failure(failure: Exception) -> StoreFailure:
    kind = FailureKind.REFUSED if isinstance(failure, _REFUSED) else FailureKind.UNAVAILABLE
    return StoreFailure(kind, _first_line(failure))


def _first_line(failure: Exception) -> str:
    """Return the first line of the message. obstore adds details of its own source in many more."""
    return (str(failure).splitlines() or [type(failure).__name__])[0][:300]


THREADS: Final = 8
FILE_THREADS: Final = 4
"""Files are uploaded in threads of their own, since a large one must not delay reads."""
END_LIMIT_S: Final = 1.0


class Carries(Protocol):
    """The part of ``Objects`` that ``StoreThreads`` needs."""

    def carry_out(self, operation: StoreOperation, progress: Callable[[], None]) -> StoreResult | StoreFailure: ...


@dataclass(slots=True, eq=False)
class _Running:
    """A call that is queued or running."""

    call: StoreCall
    steps: int = 0
    """The number of signs of life."""
    seen: int = -1
    """The number of them at the last check."""

    def step(self) -> None:
        self.steps += 1


class StoreThreads:
    """Carries out StoreCall effects in threads, and hands over each result as an event.

    A call without a sign of life for ``limit_s`` fails as ``unavailable``. Its later result is dropped.
    """

    def __init__(
        self,
        store: Carries,
        loop: asyncio.AbstractEventLoop,
        give: Callable[[StoreDone | StoreFailed], None],
        limit_s: float,
    ) -> None:
        self._store = store
        self._loop = loop
        self._give = give
        self._limit_s = limit_s
        self._running: dict[int, _Running] = {}
        self._calls: SimpleQueue[_Running | None] = SimpleQueue()
        self._files: SimpleQueue[_Running | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self, call: StoreCall) -> None:
        if not self._threads:
            self._start_threads()
        running = self._running[call.token] = _Running(call)
        (self._files if isinstance(call.operation, PutFile) else self._calls).put(running)
        self._loop.call_later(self._limit_s, self._watch, running)

    def close(self) -> None:
        """Hand over no more events. Wait a moment for what runs, so that no thread wakes in a process that is
        ending."""
        self._closed = True
        for thread in self._threads:
            (self._files if thread.name == "store-file" else self._calls).put(None)
        for thread in self._threads:
            thread.join(END_LIMIT_S / len(self._threads))

    def _start_threads(self) -> None:
        for name, count, calls in (("store", THREADS, self._calls), ("store-file", FILE_THREADS, self._files)):
            for _ in range(count):
                thread = threading.Thread(target=self._work, args=(calls,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self, calls: "SimpleQueue[_Running | None]") -> None:
        while (running := calls.get()) is not None and not self._closed:
            if running.call.token not in self._running:
                continue
            running.step()
            result = self._store.carry_out(running.call.operation, running.step)
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._finished, running, result)

    def _finished(self, running: _Running, result: StoreResult | StoreFailure) -> None:
        if self._running.pop(running.call.token, None) is not None and not self._closed:
            self._give(store_event(running.call.token, result))

    def _watch(self, running: _Running) -> None:
        if self._closed or running.call.token not in self._running:
            return
        if running.steps != running.seen:
            running.seen = running.steps
            self._loop.call_later(self._limit_s, self._watch, running)
        else:
            self._finished(running, StoreFailure(FailureKind.UNAVAILABLE, f"no response within {self._limit_s:g} s"))


URL: Final = "crucible.remote.store.url"
RETRIES: Final = 2
CONNECT_LIMIT_S: Final = 5


def opened(config: "BrokerConfig", data: Path) -> Objects:
    """Open the object store that the settings name, for a node with this data directory. Raise StartError.

    It must be opened in the node's own process, since obstore's threads do not survive a fork.

    Credentials for S3 come from the environment (AWS_ACCESS_KEY_ID and the like), so that no request shows them.
    """
    url = config.crucible_remote_store_url
    if not url and config.controller_quorum_voters:
        raise StartError(f"The nodes of a cluster share one object store: give each the same {URL}.")
    try:
        if url.startswith("s3://"):
            return Objects(Bucket(_bucket(config, RETRIES), _bucket(config, 0)), data)
        return Objects(Folder(Path(url.removeprefix("file://") or f"{data.absolute()}-remote").absolute()), data)
    except (OSError, ValueError, BaseError) as failure:
        reason = (str(failure).splitlines() or [type(failure).__name__])[0]
        where = url or "beside the data directory"
        raise StartError(f"The object store {where} cannot be used: {reason}.") from failure


def _bucket(config: "BrokerConfig", retries: int) -> S3Store:
    limit = timedelta(milliseconds=config.crucible_remote_store_timeout_ms)
    endpoint = config.crucible_remote_store_endpoint
    return S3Store.from_url(
        config.crucible_remote_store_url,
        config={"endpoint": endpoint} if endpoint else {},
        client_options={
            "timeout": limit,
            "connect_timeout": min(limit, timedelta(seconds=CONNECT_LIMIT_S)),
            "allow_http": endpoint.startswith("http://"),
        },
        retry_config={"max_retries": retries, "retry_timeout": limit},
    )
