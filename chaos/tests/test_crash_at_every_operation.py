"""A node that dies before every single disk operation of a busy life: what was acknowledged is there, and it starts."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from chaos.sim.disk import SimDisk, Synced
from reference_broker.core.tests.node_world import NodeWorld, sent_batch
from reference_broker.ports.disk import Buffer
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.simulated

SYNCED: dict[str, Any] = {
    "log_flush_interval_messages": "1",
    "log_segment_bytes": "300",
    "auto_create_topics_enable": "false",
}
UNSYNCED: dict[str, Any] = {"log_segment_bytes": "300", "auto_create_topics_enable": "false"}


class Cut(BaseException):
    """The process is gone: nothing may catch it."""


class CutDisk(SimDisk):
    """Raises Cut instead of its ``cut_at``-th change (counted from 0); half of an append may have been written."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.cut_at = -1
        self.changes = 0

    def _count(self) -> None:
        if self.changes == self.cut_at:
            raise Cut
        self.changes += 1

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        if self.changes == self.cut_at and len(data) > 1:
            super().append(path, [data[: len(data) // 2]])
        self._count()
        return super().append(path, [data])

    def truncate(self, path: str, size: int) -> None:
        self._count()
        super().truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        if self.changes == self.cut_at:
            super().write(path, bytes(data)[: len(data) // 2])
        self._count()
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)

    def finish_sync(self, synced: Synced) -> None:
        self._count()
        super().finish_sync(synced)
        self._count()


class Life:
    """The requests of a client, and what was acknowledged to it and must survive."""

    def __init__(self, disk: CutDisk, config: dict[str, Any]) -> None:
        self.disk = disk
        self.config = config
        self.topics: dict[str, bytes | None] = {}
        """By name: the ID that was acknowledged; None: its removal was. Absent while a request is open."""
        self.open_topic = ""
        self.records: dict[str, list[tuple[int, bytes]]] = {}
        """By topic: (offset, batch) of every acknowledged produce."""
        self.open_batch: tuple[str, bytes] | None = None
        self.start_offsets: dict[str, int] = {}
        self.producer_ids: list[int] = []
        self.world: NodeWorld

    def live(self) -> None:
        self.world = NodeWorld(self.disk, **self.config)
        producer = self.take_id()
        self.create("a", 2)
        for sequence in range(4):
            self.produce("a", sent_batch(producer, sequence, b"one"))
        self.create("b")
        self.produce("b", sent_batch(producer, 0, b"old"))
        self.delete("b")
        self.create("b")
        self.produce("b", sent_batch(producer, 0, b"new"))
        self.delete_records("a", 2)
        self.stop()
        self.world = NodeWorld(self.disk, seed=1, **self.config)
        self.take_id()
        for sequence in range(4, 7):
            self.produce("a", sent_batch(producer, sequence, b"two"))
        self.delete("a")
        self.create("a", 3)
        self.produce("a", sent_batch(producer, 0, b"three"))
        self.stop()

    def take_id(self) -> int:
        self.producer_ids.append(self.world.producer_id())
        return self.producer_ids[-1]

    def create(self, name: str, partitions: int = 1) -> None:
        self.topics.pop(name, None)
        response = self.world.create(name, partitions)
        assert response.error_code == ErrorCode.none, response
        self.topics[name] = response.topic_id.bytes
        self.records[name] = []

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.records[name] = []
        self.start_offsets.pop(name, None)
        assert self.world.delete(name).error_code == ErrorCode.none
        self.topics[name] = None

    def produce(self, topic: str, batch: bytes) -> None:
        self.open_batch = (topic, batch)
        response = self.world.produce(topic, 0, batch)
        assert response.error_code == ErrorCode.none, response
        self.records[topic].append((response.base_offset, batch))
        self.open_batch = None

    def delete_records(self, topic: str, offset: int) -> None:
        self.start_offsets[topic] = offset
        self.world.log(topic).delete_records_before(offset)

    def stop(self) -> None:
        self.world.shut_down()
        self.world.settle()
        assert self.world.node.stopped

    def check(self, records_are_durable: bool) -> None:
        """Assert that a new start after the crash serves, and that every acknowledgement holds."""
        world = self.world = NodeWorld(self.disk, seed=2, **self.config)
        assert world.node.ready, "it does not start"
        image = world.node.broker.controller.image
        for name, topic_id in self.topics.items():
            topic = image.topics.get(name)
            assert (None if topic is None else topic.topic_id) == topic_id, f"topic {name}"
        there = [name for name in self.records if self.topics.get(name) is not None]
        for name in there:
            stored = self._stored(name)
            if records_are_durable:
                self._check_records(name, stored)
        if records_are_durable and self.open_batch is not None and self.open_batch[0] in there:
            name, batch = self.open_batch
            self.produce(name, batch)
            assert self._stored(name)[-1][16:] == batch[16:], "a retry is the last batch"
        assert self.take_id() not in self.producer_ids[:-1], "a producer ID was given twice"
        self.create("fresh")
        assert not [name for name in self.disk.list("") if name.endswith("-delete")], "leftovers"

    def _stored(self, topic: str) -> list[bytes]:
        """The batches (of one record each), which must follow each other."""
        log = self.world.log(topic)
        found: list[bytes] = []
        for offset in range(log.log_start_offset, log.log_end_offset):
            data = log.read(offset, 1, log.log_end_offset, True)
            assert int.from_bytes(data[:8], "big") == offset, f"{topic} has a hole at {offset}"
            found.append(data)
        return found

    def _check_records(self, topic: str, stored: list[bytes]) -> None:
        start, records = self.world.log(topic).log_start_offset, self.records[topic]
        assert start <= self.start_offsets.get(topic, 0)
        for offset, batch in records:
            if offset >= start:
                assert stored[offset - start][16:] == batch[16:], f"{topic} lost offset {offset}"
        for offset, batch in records[-4:]:
            if offset >= start:
                assert self.world.produce(topic, 0, batch).base_offset == offset, "a retry was not recognised"


def _changes_of_a_life(config: dict[str, Any]) -> int:
    disk = CutDisk(Random(0))
    Life(disk, config).live()
    return disk.changes


def _cut_short(disk: CutDisk, cut_at: int, config: dict[str, Any]) -> Life:
    disk.cut_at = cut_at
    life = Life(disk, config)
    with pytest.raises(Cut):
        life.live()
    disk.cut_at = -1
    return life


@pytest.mark.clause("P-1", "P-6")
@pytest.mark.rotated(8)
@pytest.mark.parametrize("config", [SYNCED, UNSYNCED], ids=["synced", "unsynced"])
@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power-loss"])
@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_records_survive_crash_before_every_disk_operation(
    config: dict[str, Any], power_loss: bool, seed: int
) -> None:
    failed = []
    for cut_at in range(_changes_of_a_life(config)):
        disk = CutDisk(Random(seed * 1000 + cut_at))
        life = _cut_short(disk, cut_at, config)
        if power_loss:
            disk.power_loss()
        try:
            life.check(records_are_durable=config is SYNCED or not power_loss)
        except Exception as broken:
            failed.append((cut_at, repr(broken)[:300]))
    assert not failed


@pytest.mark.rotated(9)
@pytest.mark.parametrize("cut_at", range(20, 200, 20))
def test_recovery_that_dies_itself_before_every_disk_operation_loses_nothing_either(cut_at: int) -> None:
    again = 0
    while True:
        disk = CutDisk(Random(cut_at))
        life = _cut_short(disk, min(cut_at, _LAST), SYNCED)
        disk.power_loss()
        disk.cut_at = disk.changes + again
        try:
            NodeWorld(disk, seed=3, **SYNCED)
        except Cut:
            disk.cut_at = -1
            disk.power_loss()
        else:
            break
        life.check(records_are_durable=True)
        again += 1
    assert again > 5


_LAST = _changes_of_a_life(SYNCED) - 1
