"""Syncs in threads: bounded descriptors, one event for each Sync, and retries where no descriptor is free."""

import asyncio
import errno
import threading
from collections.abc import Sequence
from io import StringIO

import pytest

from reference_broker.core.events import Sync, Synced, SyncFailed
from reference_broker.serve import file_syncs
from reference_broker.serve.file_syncs import DESCRIPTORS_PER_FILE, THREADS, FileSyncs
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.process import MIN_CONNECTIONS, RESERVED_DESCRIPTORS, plan_descriptors


class Disk:
    """``refusals`` are raised by the next openings. ``most_open`` counts descriptors, with a folder for each file."""

    def __init__(self) -> None:
        self.refusals: list[OSError] = []
        self.failure: OSError | None = None
        self.spared = 0
        self.synced: list[str] = []
        self.most_open = 0
        self._open = 0
        self._lock = threading.Lock()

    def open_for_sync(self, paths: Sequence[str]) -> Sequence[str]:
        if self.refusals:
            raise self.refusals.pop(0)
        with self._lock:
            self._open += DESCRIPTORS_PER_FILE * len(paths)
            self.most_open = max(self.most_open, self._open)
        return paths

    def synchronise(self, opened: Sequence[str]) -> None:
        with self._lock:
            self._open -= DESCRIPTORS_PER_FILE * len(opened)
            self.synced += opened
        if self.failure is not None:
            raise self.failure

    def spare_descriptors(self) -> None:
        self.spared += 1


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_syncs, "RETRY_AFTER_S", 0.001)


def played(disk: Disk, syncs: Sequence[Sync], max_descriptors: int = 64) -> list[Synced | SyncFailed]:
    async def run() -> None:
        running = FileSyncs(disk, asyncio.get_running_loop(), LogLines(1, StringIO()), events.append, max_descriptors)
        for sync in syncs:
            running.start(sync)
        while len(events) < len(syncs):
            await asyncio.sleep(0.001)
        running.close()

    events: list[Synced | SyncFailed] = []
    asyncio.run(run())
    return events


def names(count: int) -> tuple[str, ...]:
    return tuple(f"log-{number}" for number in range(count))


def test_many_syncs_stay_within_descriptor_limit(disk: Disk) -> None:
    events = played(disk, [Sync(token, names(100)) for token in range(20)], max_descriptors=32)
    assert sorted(event.token for event in events) == list(range(20))
    assert len(disk.synced) == 2000
    assert disk.most_open <= 32


def test_syncs_complete_with_few_descriptors(disk: Disk) -> None:
    assert played(disk, [Sync(1, names(5))], max_descriptors=1) == [Synced(1)]
    assert disk.most_open <= THREADS * DESCRIPTORS_PER_FILE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_sync_without_free_descriptor_is_retried(disk: Disk, number: int) -> None:
    disk.refusals = [OSError(number, "too many open files") for _ in range(7)]
    events = played(disk, [Sync(1, names(3)), Sync(2, names(1))])
    assert sorted(events) == [Synced(1), Synced(2)]
    assert disk.spared >= 3
    assert disk.refusals == []


@pytest.mark.parametrize("where", ["opening", "syncing"])
def test_other_sync_failure_is_reported(disk: Disk, where: str) -> None:
    failure = OSError(errno.EIO, "input/output error")
    if where == "opening":
        disk.refusals = [failure]
    else:
        disk.failure = failure
    (event,) = played(disk, [Sync(1, names(3))])
    assert isinstance(event, SyncFailed)


@pytest.mark.parametrize("limit", [128, 256, 1024, 4096, 65_536])
@pytest.mark.parametrize("wanted_files", [0, 20])
def test_descriptor_plan_keeps_some_free(limit: int, wanted_files: int) -> None:
    plan = plan_descriptors(limit, wanted_files)
    assert plan.files + plan.syncs + plan.connections + RESERVED_DESCRIPTORS <= limit
    assert plan.connections > MIN_CONNECTIONS
    assert all(share > 0 for share in (plan.files, plan.syncs))
