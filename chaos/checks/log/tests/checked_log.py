"""A node's log with the checks of producers and transactions that follow it."""

from typing import Any

from chaos.checks.check import Check
from chaos.checks.log.producers import ProducersEqualReplay, SequencesFollow
from chaos.checks.replication.replica_view import ReplicaView, TouchedLogs
from chaos.checks.sessions.fetch_model import CompletedFetch, PendingFetch, Session, WantedPartition, WantedPartitions
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode, node_partitions
from chaos.checks.transactions.stable_offsets import AbortedListed, StableOffsetExact
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import AbortedTransaction, PartitionData

HOUR_MS = 3_600_000
START_MS = 1_000 * HOUR_MS
TOPIC_ID = b"t" * 16


class CheckedLog:
    """A node with one log, and the checks that follow it."""

    def __init__(self, **config: Any) -> None:
        self.disk = MemoryDisk()
        self.process = StubNode()
        self.config = LogConfig(**config)
        self.ms = START_MS
        self.context = context = check_context()
        self.touched = TouchedLogs()
        self.view: ReplicaView = context.replicas
        self.view._touched = self.touched
        self.checks: list[Check] = [
            ProducersEqualReplay(context),
            StableOffsetExact(context),
            AbortedListed(context),
            SequencesFollow(context),
        ]
        with self.touched.noted():
            self.log = self._opened()
        self.looked()

    def _opened(self) -> UnifiedLog:
        return run_to_end(open_log(self.disk, "t-0", self.config, Now(0, self.ms), False))

    def restart(self) -> None:
        with self.touched.noted():
            self.log = self._opened()
        self.looked()

    def data(
        self,
        producer: int,
        sequence: int,
        *,
        epoch: int = 0,
        transactional: bool = True,
        origin: BatchOrigin = BatchOrigin.CLIENT,
    ) -> int:
        return self._append(self.batch(producer, sequence, epoch, transactional), origin)

    def batch(self, producer: int, sequence: int, epoch: int = 0, transactional: bool = True) -> bytes:
        record = Record(timestamp_ms=self.ms, value=b"v")
        return build(
            [record],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )

    def marker(self, producer: int, *, epoch: int = 0, commit: bool = False, coordinator: int = 3) -> int:
        batch = build_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            timestamp_ms=self.ms,
        )
        return self._append(batch, BatchOrigin.BROKER)

    def _append(self, batch: bytes, origin: BatchOrigin) -> int:
        with self.touched.noted():
            return self.log.append(Now(0, self.ms), batch, 0, origin=origin).first_offset

    def commit(self, offset: int | None = None) -> None:
        with self.touched.noted():
            self.log.advance_high_watermark(self.log.log_end_offset if offset is None else offset)

    def node(self) -> Any:
        """Return the node as it is now."""
        partition = Partition("t", TOPIC_ID, 0, 0, self.log)
        partitions = node_partitions(partition)
        partitions.by_id[b"", 0] = partition
        self.process.broker = StubBroker(1, now=Now(0, self.ms), partitions=partitions, disk=self.disk)
        self.process.all_logs = [self.log]
        return self.process

    def looked(self, *, thorough: bool = False) -> list[str]:
        """Let the checks follow the log, and return the guarantees that are violated."""
        self.view.observe(7, 0, self.node(), thorough)
        return [check.guarantee for check in self.checks if check.violations]

    def sends(self, *aborted: tuple[int, int], end: int, stable: int) -> list[str]:
        listed = [AbortedTransaction(*each) for each in aborted]
        records = self.log.read(0, 1 << 20, end)
        sent = PartitionData(0, 0, end, stable, 0, listed, records=records)
        wanted: WantedPartitions = {("t", 0): WantedPartition(0, 1 << 20, -1)}
        request = PendingFetch(wanted, 0, -1, False, False, 1 << 20, reads_committed=True, named=wanted)
        fetch = CompletedFetch(self.node(), "c", 0, Session(), request, False, {("t", 0): sent})
        for check in self.checks:
            if isinstance(check, AbortedListed):
                check.fetched(7, fetch)
        return self.looked()


def written(**config: Any) -> CheckedLog:
    """Producer 5 aborts and begins again, producer 6 commits, producer 7 writes without transactions."""
    world = CheckedLog(**config)
    for sequence in range(7):
        world.data(7, sequence, transactional=False)
    world.data(5, 0)
    world.data(6, 0)
    world.marker(6, commit=True)
    world.marker(5)
    world.data(5, 1)
    assert world.looked() == []
    return world
