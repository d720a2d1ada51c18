"""An I/O error at every single disk operation of a busy life: the node goes on and says so, or ends with one sentence.
Either way what was acknowledged is there, and the node starts again."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from chaos.sim.disk import SimDisk, Synced
from chaos.tests.test_crash_at_every_operation import SYNCED, Cut, Life
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.disk import Buffer, DiskError
from reference_broker.quorum.node_files import StartRefused

pytestmark = pytest.mark.simulated

REFUSALS = 3
"""Number of retries of a client."""


class FailingDisk(SimDisk):
    """A disk whose ``fail_at``-th operation (counted from 0) fails and changes nothing; Cut comes before its
    ``cut_at``-th."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.fail_at = -1
        self.cut_at = -1
        self.operations = 0
        self.failed = ""

    def _may_fail(self, operation: str, path: str) -> None:
        if self.operations == self.cut_at:
            raise Cut
        self.operations += 1
        if self.operations == self.fail_at + 1:
            self.failed = f"{operation} {path}"
            raise DiskError(5, f"cannot {operation} {path}: Input/output error")

    def list(self, directory: str) -> Sequence[str]:
        self._may_fail("list", directory)
        return super().list(directory)

    def exists(self, path: str) -> bool:
        self._may_fail("stat", path)
        return super().exists(path)

    def size(self, path: str) -> int:
        self._may_fail("open", path)
        return super().size(path)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._may_fail("append to", path)
        return super().append(path, buffers)

    def read(self, path: str, position: int, length: int) -> bytes:
        self._may_fail("read", path)
        return super().read(path, position, length)

    def truncate(self, path: str, size: int) -> None:
        self._may_fail("truncate", path)
        super().truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        try:
            self._may_fail("write", path)
        except DiskError:
            super().write(path, bytes(data)[: len(data) // 2])
            raise
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._may_fail("rename", source)
        super().rename(source, target)

    def delete(self, path: str) -> None:
        self._may_fail("delete", path)
        super().delete(path)

    def finish_sync(self, synced: Synced) -> None:
        try:
            self._may_fail("sync", "a file")
        except DiskError:
            self.fail_begun(synced)
            raise
        super().finish_sync(synced)


class PatientLife(Life):
    """A life whose client retries where it is refused."""

    disk: FailingDisk  # type: ignore[assignment]

    def __init__(self, disk: FailingDisk, config: dict[str, Any]) -> None:
        super().__init__(disk, config)  # type: ignore[arg-type]
        self.refusals: list[str] = []

    def take_id(self) -> int:
        taken = super().take_id()
        if taken >= 0:
            return taken
        self.refusals.append("no producer ID")
        self.producer_ids.remove(taken)
        return super().take_id()

    def create(self, name: str, partitions: int = 1) -> None:
        self._patiently(lambda: super(PatientLife, self).create(name, partitions))

    def delete(self, name: str) -> None:
        known = self.topics[name]

        def attempt() -> None:
            self.topics[name] = known
            super(PatientLife, self).delete(name)

        self._patiently(attempt)

    def stop(self) -> None:
        """A controller that cannot write that the broker leaves does not let it go, so the broker goes by itself."""
        self.world.shut_down()
        self.world.settle_until(lambda: self.world.node.stopped)
        assert self.world.node.stopped

    def produce(self, topic: str, batch: bytes) -> None:
        self._patiently(lambda: super(PatientLife, self).produce(topic, batch))

    def _patiently(self, attempt: Callable[[], None]) -> None:
        for _ in range(REFUSALS):
            try:
                attempt()
                return
            except AssertionError as refused:
                self.refusals.append(str(refused)[:300])
        raise AssertionError(f"refused again and again: {self.refusals}")


CONFIG: dict[str, Any] = {
    **SYNCED,
    "metadata_log_max_record_bytes_between_snapshots": "300",
    "metadata_log_segment_bytes": "1024",
    "metadata_max_retention_bytes": "1200",
    "crucible_metadata_snapshot_keep_ms": "1",
    "crucible_metadata_batch_max_bytes": "256",
}
"""Snapshots of the metadata log are made, and take the place of its oldest segments."""


def _operations_of_a_life() -> int:
    disk = FailingDisk(Random(0))
    PatientLife(disk, CONFIG).live()
    return disk.operations


def _ends(act: Callable[[], object]) -> bool:
    """Return whether the node ended itself. It must say why in one sentence."""
    try:
        act()
    except (NodeFailed, StartRefused, DiskError) as end:
        reason = str(end)
    else:
        return False
    assert "Input/output error" in reason
    assert "\n" not in reason
    return True


@pytest.mark.clause("P-1", "P-6")
@pytest.mark.rotated(3)
@pytest.mark.parametrize("first", range(3))
def test_acknowledged_records_survive_error_of_every_disk_operation(first: int) -> None:
    """A commit plays each third operation."""
    failed, refused, ended = [], 0, 0
    for fail_at in range(first, _operations_of_a_life(), 3):
        disk = FailingDisk(Random(fail_at))
        disk.fail_at = fail_at
        life = PatientLife(disk, CONFIG)
        try:
            ended += _ends(life.live)
            refused += len(life.refusals)
            assert disk.failed, "the error did not come"
            disk.process_ended()
            life.check(records_are_durable=True)
        except Exception as broken:
            failed.append((fail_at, disk.failed, repr(broken)[:300]))
    assert not failed
    assert refused > 3
    assert ended > 3


@pytest.mark.rotated(3)
@pytest.mark.parametrize("first", range(3))
def test_start_that_ended_by_an_error_of_any_disk_operation_loses_nothing(first: int) -> None:
    cut_at, errors = 300, first
    while True:
        disk = FailingDisk(Random(cut_at))
        disk.cut_at = cut_at
        life = PatientLife(disk, CONFIG)
        with pytest.raises(Cut):
            life.live()
        disk.cut_at, disk.fail_at = -1, disk.operations + errors
        _ends(partial(NodeWorld, disk, seed=3, **CONFIG))
        if not disk.failed:
            break
        disk.process_ended()
        life.check(records_are_durable=True)
        errors += 3
    assert errors > 20
