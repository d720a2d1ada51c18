"""Calls of the object store run in threads: each completes once, in time, and none blocks the event loop."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import StoreCall, StoreDone, StoreFailed
from reference_broker.ports.store import FailureKind, Get, Put, PutFile, StoreFailure, StoreOperation, StoreResult
from reference_broker.serve.object_store import FILE_THREADS, PART_BYTES, Folder, Objects, StoreThreads, opened
from reference_broker.serve.process import StartError

LIMIT_S = 0.2


class Held:
    """A store whose calls end when the test says so. Files report progress whenever ``steps`` is released."""

    def __init__(self) -> None:
        self.started: list[StoreOperation] = []
        self.let = threading.Event()
        self.steps = threading.Semaphore(0)

    def carry_out(self, operation: StoreOperation, progress: Callable[[], None]) -> StoreResult | StoreFailure:
        self.started.append(operation)
        while not self.let.wait(0.01):
            if self.steps.acquire(blocking=False):
                progress()
        return None


class StoreWorld:
    """The threads with a held store, and their events."""

    def __init__(self, limit_s: float = 30.0) -> None:
        self.store = Held()
        self.events: list[StoreDone | StoreFailed] = []
        self.threads = StoreThreads(self.store, asyncio.get_running_loop(), self.events.append, limit_s)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not done():
                await asyncio.sleep(0.005)


def test_slow_files_delay_no_read() -> None:
    async def play() -> None:
        world = StoreWorld()
        for token in range(FILE_THREADS + 2):
            world.threads.start(StoreCall(token, PutFile("a", "a", 1)))
        world.threads.start(StoreCall(99, Get("b", 0, 1)))
        await world.until(lambda: Get("b", 0, 1) in world.store.started)
        assert len(world.store.started) == FILE_THREADS + 1
        world.store.let.set()
        await world.until(lambda: len(world.events) == FILE_THREADS + 3)
        assert sorted(event.token for event in world.events) == [*range(FILE_THREADS + 2), 99]
        world.threads.close()

    asyncio.run(play())


def test_call_without_progress_fails_once_and_late_result_is_dropped() -> None:
    async def play() -> None:
        world = StoreWorld(LIMIT_S)
        world.threads.start(StoreCall(1, Put("a", b"x")))
        await world.until(lambda: bool(world.events))
        (event,) = world.events
        assert isinstance(event, StoreFailed)
        assert (event.token, event.failure.kind) == (1, FailureKind.UNAVAILABLE)
        world.store.let.set()
        await asyncio.sleep(0.1)
        assert len(world.events) == 1
        world.threads.close()

    asyncio.run(play())


@pytest.mark.thorough
def test_slow_file_with_progress_does_not_time_out() -> None:
    async def play() -> None:
        world = StoreWorld(LIMIT_S)
        world.threads.start(StoreCall(1, PutFile("a", "a", 1)))
        for _ in range(20):
            world.store.steps.release()
            await asyncio.sleep(LIMIT_S / 4)
        assert not world.events
        world.store.let.set()
        await world.until(lambda: bool(world.events))
        assert world.events == [StoreDone(1, None)]
        world.threads.close()

    asyncio.run(play())


def test_close_does_not_wait_for_silent_store() -> None:
    async def play() -> None:
        world = StoreWorld()
        world.threads.start(StoreCall(1, Put("a", b"x")))
        await world.until(lambda: bool(world.store.started))
        started = asyncio.get_running_loop().time()
        world.threads.close()
        assert asyncio.get_running_loop().time() - started < 5
        world.store.let.set()
        await asyncio.sleep(0.1)
        assert not world.events

    asyncio.run(play())


@pytest.mark.parametrize("size_bytes", [5, PART_BYTES + 5])
def test_folder_store_syncs_file_and_parents_before_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "a.log").write_bytes(b"x" * size_bytes)
    store = Objects(Folder(tmp_path / "remote"), tmp_path / "node")
    synced: list[tuple[str, int]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        synced.append((str(path.relative_to(tmp_path)), path.stat().st_size if path.is_file() else -1))

    monkeypatch.setattr("reference_broker.serve.object_store.os.fsync", fsync)
    assert store.carry_out(PutFile("topic/x.log", "a.log", size_bytes), lambda: None) is None
    assert synced == [("remote/topic/x.log", size_bytes), ("remote/topic", -1), ("remote", -1)]


def test_failed_sync_is_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Objects(Folder(tmp_path), tmp_path)

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("reference_broker.serve.object_store.os.fsync", fails)
    failure = store.carry_out(Put("a", b"x"), lambda: None)
    assert isinstance(failure, StoreFailure)
    assert failure.kind is FailureKind.UNAVAILABLE


def test_default_store_folder_of_single_node_and_required_one_of_cluster(tmp_path: Path) -> None:
    data = tmp_path / "node"
    alone = opened(BrokerConfig.parse({}), data)
    assert alone.carry_out(Put("a", b"x"), lambda: None) is None
    assert (tmp_path / "node-remote" / "a").read_bytes() == b"x"
    voters = {"controller.quorum.voters": "0@a:1,1@b:1", "crucible.cluster.id": "c"}
    with pytest.raises(StartError, match=r"share one object store.*crucible\.remote\.store\.url"):
        opened(BrokerConfig.parse(voters), data)
    shared = opened(BrokerConfig.parse({**voters, "crucible.remote.store.url": f"file://{tmp_path}/shared"}), data)
    assert shared.carry_out(Put("b", b"y"), lambda: None) is None
    assert (tmp_path / "shared" / "b").read_bytes() == b"y"


def test_folder_that_cannot_be_created_fails_with_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartError, match=r"The object store .*file/below cannot be used: .*\.$") as refusal:
        opened(BrokerConfig.parse({"crucible.remote.store.url": f"{tmp_path}/file/below"}), tmp_path)
    assert "\n" not in str(refusal.value)
