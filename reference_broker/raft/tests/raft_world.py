"""A controller on a disk in memory, whose syncs complete when the test says so."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from reference_broker.log.memory_disk import MemoryDisk
from reference_broker.log.now import Now
from reference_broker.model.config import BrokerConfig
from reference_broker.raft.activation import Endpoint
from reference_broker.raft.controller import Controller
from reference_broker.raft.metadata_records import MetadataRecord, PartitionRecord, TopicRecord

NOW = Now(5_000_000, 1_700_000_000_000)


def run(slices: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value


@dataclass
class ManualSync:
    """``auto``: completes at once."""

    auto: bool = True
    waiting: list[Callable[[], None]] = field(default_factory=list)
    paths: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        self.paths.append(paths)
        if self.auto:
            done()
        else:
            self.waiting.append(done)

    def complete(self, count: int = 10**9) -> None:
        for done in self.waiting[:count]:
            done()
        del self.waiting[:count]


def started(
    disk: MemoryDisk | None = None,
    *,
    node_id: int = 1,
    seed: int = 0,
    sync: ManualSync | None = None,
    config: BrokerConfig | None = None,
) -> Controller:
    """Loaded; ready if its syncs complete by themselves."""
    controller = Controller(
        node_id=node_id,
        config=config or BrokerConfig(),
        disk=disk if disk is not None else MemoryDisk(),
        random=Random(seed),
        endpoint=Endpoint("127.0.0.1", 9092),
        sync=sync or ManualSync(),
        now=lambda: NOW,
    )
    run(controller.load(False, lambda: None))
    return controller


def topic_records(name: str, topic_id: bytes, partitions: int = 1, node_id: int = 1) -> list[MetadataRecord]:
    made: list[MetadataRecord] = [TopicRecord(name=name, topic_id=topic_id)]
    made += (
        PartitionRecord(
            partition_id=index, topic_id=topic_id, replicas=(node_id,), isr=(node_id,), leader=node_id,
            leader_epoch=0, partition_epoch=0, directories=(bytes(16),),
        )
        for index in range(partitions)
    )  # fmt: skip
    return made


def nothing() -> None:
    pass
