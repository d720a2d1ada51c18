"""A transaction coordinator with its log and a partition, and the checks that follow both."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

from chaos.checks.check import Check, StateCheck
from chaos.checks.replication.replica_view import TouchedLogs
from chaos.checks.suite import check_kinds
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import (
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    init_producer_id_request,
    write_txn_markers_request,
)
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubNode,
    StubTransactionsPartition,
    broker_image,
    image_of,
    node_partitions,
    topic_image,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Closed, Reply, Request, Send
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.transaction_metadata import TransactionMetadata, TransactionState, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import (
    transaction_key,
    transaction_value,
)
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

T0, T1 = ("t", 0), ("t", 1)
TOPIC_ID, STATE_ID = b"t" * 16, b"s" * 16
OWNER = TxnTransitMetadata("x", 7, 1000, 5, TransactionState.EMPTY, 0)
STARTED = OWNER._replace(state=TransactionState.ONGOING, partitions={T0: None}, started_ms=5)
DECIDED = STARTED._replace(state=TransactionState.PREPARE_COMMIT)
DONE = DECIDED._replace(state=TransactionState.COMPLETE_COMMIT, partitions={})
INTERVAL_MS, SLACK_MS = 200, 1500
NODE_ID = 1
STATE_LEADER_EPOCH = 4


def _opened(disk: Disk, directory: str) -> UnifiedLog:
    return run_to_end(open_log(disk, directory, LogConfig(), Now(0, 0), True))


class CheckedTransactionCoordinator:
    """A node that leads the only partition of the state topic and partition t-0, and the checks that follow both."""

    def __init__(self) -> None:
        context = check_context()
        self.view, self.touched, disk = context.replicas, TouchedLogs(), MemoryDisk()
        self.view._touched = self.touched
        self.checks: list[Check] = [kind(context) for kind in check_kinds() if issubclass(kind, StateCheck)]
        self.ms, self.us, self.leader, self.isr = 5, 1_000, 1, (1, 2)
        with self.touched.noted():
            self.state, self.data = _opened(disk, "__transaction_state-0"), _opened(disk, "t-0")
        self.state.topic_id, self.data.topic_id = STATE_ID, TOPIC_ID
        state = Partition("__transaction_state", STATE_ID, 0, STATE_LEADER_EPOCH, self.state)
        data = Partition("t", TOPIC_ID, 0, 0, self.data)
        self.target = StubTransactionsPartition(state)
        self.held = self.target.entries
        config = replace(
            BrokerConfig(),
            transaction_abort_timed_out_transaction_cleanup_interval_ms=INTERVAL_MS,
            transaction_partition_verification_enable=True,
            request_timeout_ms=2000,
            replica_lag_time_max_ms=3000,
            min_insync_replicas=2,
        )
        self.broker = StubBroker(
            NODE_ID,
            config=config,
            disk=disk,
            partitions=node_partitions(state, data),
            transactions=StubCoordinator([self.target]),
        )
        self._node = StubNode(self.broker, all_logs=[self.state, self.data])
        self.looked()

    def reopen_data(self) -> None:
        """Open the log of t-0 again, with everything replicated."""
        with self.touched.noted():
            end = self.data.log_end_offset
            self.data = _opened(self.broker.disk, "t-0")
            self.data.topic_id = TOPIC_ID
            self.data.advance_high_watermark(end)
        self.broker.partitions.by_name["t", 0].log = self.data
        self._node.all_logs = [self.state, self.data]

    def node(self) -> "Node":
        """Return the node at the current time, after it has published the leader and the in-sync replicas of t."""
        self.broker.now = Now(self.us, self.ms)
        partition = PartitionImage((1, 2), self.isr, self.leader, 0, 0)
        self._node.publish(image_of(topic_image("t", partition, partition), brokers=[broker_image(NODE_ID)]))
        return self._node.as_node()

    def looked(self) -> list[str]:
        """Let the checks follow the logs, and return the explanations of all violations."""
        self.us += 1000
        self.view.observe(self.us, 0, self.node(), False)
        return [violation.explanation for check in self.checks for violation in check.violations]

    def acts(self, event: Request | None, *effects: Any) -> None:
        self.us += 1000
        for check in self.checks:
            if type(check).acted is not Check.acted:
                check.acted(self.us, self.node(), event or Closed(99), effects)

    def write(self, *steps: TxnTransitMetadata, commits: bool = True) -> list[str]:
        """Append the values, and replicate them."""
        for step in steps:
            record = Record(
                timestamp_ms=0, key=transaction_key(step.transactional_id), value=transaction_value(step, 1)
            )
            with self.touched.noted():
                self.state.append(Now(0, self.ms), build([record]), 4)
                if commits:
                    self.state.advance_high_watermark(self.state.log_end_offset)
            if commits:
                self.held[step.transactional_id] = TransactionMetadata(step)
            self.looked()
        return self.looked()

    def replies(self, body: Any, response: Any, version: int = 5) -> list[str]:
        key = int(body.__api_key__)
        tag = Tag(key, version, "p")
        self.acts(Request(1, 1, key, version, "p", body, tag), Reply(1, 1, key, version, response, tag))
        return self.looked()

    def marker(self, *, commit: bool = True, epoch: int = 0, commits: bool = True) -> list[str]:
        batch = build_marker(
            commit=commit, producer_id=7, producer_epoch=epoch, coordinator_epoch=4, timestamp_ms=self.ms
        )
        return self._to_data(batch, BatchOrigin.BROKER, commits=commits)

    def produce(self, *, epoch: int = 0, sequence: int = 0, arrives: bool = True) -> list[str]:
        batch = build(
            [Record(timestamp_ms=0, value=b"v")],
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        if arrives:
            topic = ProduceTopic("t", bytes(16), [ProducePartition(0, batch)])
            body = ProduceRequest(-1, 100, [topic], "x")
            self.acts(Request(1, 2, 0, 11, "p", body, Tag(0, 11, "p")))
        return self._to_data(batch, BatchOrigin.CLIENT, commits=True)

    def _to_data(self, batch: bytes, origin: BatchOrigin, *, commits: bool) -> list[str]:
        with self.touched.noted():
            self.data.append(Now(0, self.ms), batch, 0, origin=origin)
            if commits:
                self.data.advance_high_watermark(self.data.log_end_offset)
        return self.looked()


def adding(*indexes: int, error: int = 0) -> tuple[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse]:
    """Return a request that adds these partitions of t, and its response."""
    return add_partitions_to_txn_request(*indexes), add_partitions_to_txn_response(*indexes, error=error)


def markers(*, commit: bool = True, index: int = 0, coordinator: int = 4) -> Send:
    body = write_txn_markers_request(commit=commit, index=index, coordinator_epoch=coordinator)
    return Send(2, Channel.MARKERS, 1, 27, 1, body, Tag(27, 1, "n", role="peer"), 1000, "n")


def continuing(epoch: int, producer_id: int = 7) -> Any:
    return init_producer_id_request(producer_id=producer_id, producer_epoch=epoch)
