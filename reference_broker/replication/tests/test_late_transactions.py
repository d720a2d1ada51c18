"""Count of led partitions with a transaction that should have ended long ago."""

from dataclasses import dataclass, field

import pytest

from reference_broker.log.tests.log_world import NOW, START_MS, opened
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.metrics.metrics import Gauge, Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.replication.leader.replica_metrics import BUFFER_MS, count_late_transactions
from reference_broker.replication.partitions import Partition, Partitions

LONGEST_MS = 900_000
LATE_MS = START_MS + LONGEST_MS + BUFFER_MS


@dataclass
class LateTransactionWorld:
    """One partition, whose producers send at START_MS."""

    now_ms: int = START_MS
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.partition = Partition("events", b"t" * 16, 0, 0, opened(MemoryDisk()))
        self.producers = Producers(self.partition.log)
        partitions = Partitions(by_name={("events", 0): self.partition})
        count_late_transactions(self.metrics, partitions, LONGEST_MS, lambda: self.now_ms)

    def late_at(self, now_ms: int) -> int:
        self.now_ms = now_ms
        (named,) = self.metrics.rows()
        assert named.mbean == "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount"
        assert isinstance(named.metric, Gauge)
        return named.metric.value


@pytest.fixture
def world() -> LateTransactionWorld:
    return LateTransactionWorld()


@pytest.mark.clause("ReplicaManagerTest.testPartitionsWithLateTransactionsCount")
@pytest.mark.clause("ProducerStateManagerTest.testHasLateTransaction")
def test_transaction_is_late_five_minutes_after_maximum_timeout(world: LateTransactionWorld) -> None:
    assert world.late_at(LATE_MS) == 0
    world.producers.send(1, 1)
    world.producers.send(2, 1)
    assert [world.late_at(LATE_MS), world.late_at(LATE_MS + 1)] == [0, 1]
    world.producers.end(1, commit=False)
    assert world.late_at(LATE_MS + 1) == 1
    world.producers.end(2, commit=True)
    assert world.late_at(LATE_MS + 1) == 0


@pytest.mark.clause("ProducerStateManagerTest.testHasLateTransactionInitializedAfterReload")
def test_reopened_log_has_late_transactions(world: LateTransactionWorld) -> None:
    log = world.partition.log
    world.producers.send(1, 1)
    log.close_cleanly()
    world.partition.log = opened(log.disk)
    assert world.partition.log.recovered.snapshot, "it was read from the log"
    assert [world.late_at(LATE_MS), world.late_at(LATE_MS + 1)] == [0, 1]


@pytest.mark.clause("ProducerStateManagerTest.testHasLateTransactionUpdatedAfterPartialTruncation")
@pytest.mark.clause("ProducerStateManagerTest.testHasLateTransactionUpdatedAfterFullTruncation")
@pytest.mark.parametrize("whole", [False, True])
def test_truncated_transaction_is_not_late(world: LateTransactionWorld, whole: bool) -> None:
    world.producers.send(1, 1)
    world.producers.end(1, commit=True)
    cut = world.producers.send(1, 1)
    assert world.late_at(LATE_MS + 1) == 1
    if whole:
        world.partition.log.truncate_fully_and_start_at(0, NOW)
    else:
        world.partition.log.truncate_to(cut)
    assert world.late_at(LATE_MS + 1) == 0


def test_partition_led_elsewhere_is_not_counted(world: LateTransactionWorld) -> None:
    world.producers.send(1, 1)
    world.partition.followed_leader = 2
    assert world.late_at(LATE_MS + 1) == 0
