"""The checks of the transaction coordinator's replicated values: planted violations, and near misses."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

from chaos.checks import producer_view
from chaos.checks.check import Check, StateCheck
from chaos.checks.eligible import Eligible
from chaos.checks.history import History
from chaos.checks.replica_view import Replicated, TouchedLogs
from chaos.checks.suite import check_kinds
from chaos.checks.transaction_duties import JUDGED_EVERY_US, WORK_US, DutiesInTime, OwnersGoOn
from chaos.checks.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FENCE_EPOCH,
    FIRST_VALUE,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    REMOVED,
    StateValue,
    read_value,
    wrong_step,
)
from chaos.checks.transactional_ids import MARKERS_US, EndingsInTime, TimeoutsKept
from chaos.checks.transactions_in_partitions import MarkersDecided
from chaos.tests.check_context import check_context
from chaos.tests.kafka_messages import (
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    write_txn_markers_request,
)
from chaos.tests.kafka_messages import (
    end_txn_request as end_request,
)
from chaos.tests.kafka_messages import (
    end_txn_response as end_response,
)
from chaos.tests.kafka_messages import (
    init_producer_id_request as init_request,
)
from chaos.tests.kafka_messages import (
    init_producer_id_response as init_response,
)
from chaos.tests.stub_node import (
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
from reference_broker.core.events import Closed, Note, Reply, Request, Send
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.partition_log import BatchOrigin, PartitionLog
from reference_broker.metadata.image import PartitionImage
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.transaction import Transaction, TransactionState
from reference_broker.transactions.transactions_partition import TransactionEntry, transaction_key, transaction_value
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

T0, T1 = ("t", 0), ("t", 1)


def at(state: int, epoch: int = 3, *partitions: tuple[str, int], **fields: Any) -> StateValue:
    kept = {"producer_id": 7, "timeout_ms": 1000, "updated_ms": 5, "started_ms": 5, **fields}
    return StateValue(
        offset=0,
        at_us=0,
        transactional_id="x",
        epoch=epoch,
        state=state,
        partitions=frozenset(partitions),
        next_producer_id=kept.pop("next_producer_id", -1),
        client_version=kept.pop("client_version", 0),
        **kept,
    )


V2: dict[str, Any] = {"client_version": 2}

LEGAL = {
    "a new ID": (FIRST_VALUE, at(EMPTY, 0)),
    "a removed ID comes back": (at(REMOVED), at(EMPTY, 0, producer_id=9)),
    "the next epoch": (at(COMPLETE_COMMIT), at(EMPTY, 4, timeout_ms=2000)),
    "the same epoch again": (at(EMPTY), at(EMPTY)),
    "a new producer ID": (at(COMPLETE_ABORT, LAST_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a new producer ID after a fence": (at(COMPLETE_ABORT, FENCE_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a transaction begins": (at(EMPTY), at(ONGOING, 3, T0, started_ms=9)),
    "it grows": (at(ONGOING, 3, T0), at(ONGOING, 3, T0, T1)),
    "commit": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0)),
    "abort": (at(ONGOING, 3, T0), at(PREPARE_ABORT, 3, T0)),
    "fence": (at(ONGOING, 3, T0), at(PREPARE_ABORT, 4, T0)),
    "commit of version 2": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 4, T0, **V2)),
    "abort of nothing": (at(COMPLETE_COMMIT), at(PREPARE_ABORT, 4, started_ms=9, **V2)),
    "the epochs are used up": (
        at(ONGOING, LAST_EPOCH, T0),
        at(PREPARE_COMMIT, FENCE_EPOCH, T0, next_producer_id=8, **V2),
    ),
    "complete": (at(PREPARE_COMMIT, 4, T0), at(COMPLETE_COMMIT, 4)),
    "complete with the next producer ID": (
        at(PREPARE_ABORT, FENCE_EPOCH, T0, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, 0, producer_id=8, **V2),
    ),
    "removed": (at(COMPLETE_COMMIT), at(REMOVED)),
}
WRONG = {
    "an open transaction is forgotten": (at(ONGOING, 3, T0), at(EMPTY, 4), "X-2"),
    "an open transaction is removed": (at(ONGOING, 3, T0), at(REMOVED), "X-2"),
    "a decision is removed": (at(PREPARE_COMMIT, 3, T0), at(REMOVED), "X-2"),
    "a decision is reversed": (at(PREPARE_COMMIT, 3, T0), at(PREPARE_ABORT, 3, T0), "X-2"),
    "a decision is completed otherwise": (at(PREPARE_COMMIT, 3, T0), at(COMPLETE_ABORT, 3), "X-2"),
    "a commit of nothing": (at(EMPTY), at(PREPARE_COMMIT, 4, **V2), "X-2"),
    "an end without a begin": (at(EMPTY), at(COMPLETE_ABORT), "X-2"),
    "a second epoch at once": (at(EMPTY), at(EMPTY, 5), "X-1"),
    "the epoch goes back": (at(EMPTY), at(EMPTY, 2), "X-1"),
    "an epoch beyond the last": (at(EMPTY, LAST_EPOCH), at(EMPTY, FENCE_EPOCH), "X-1"),
    "a new ID begins late": (FIRST_VALUE, at(EMPTY, 1), "X-1"),
    "a producer ID changes early": (at(EMPTY, LAST_EPOCH - 1), at(EMPTY, 0, producer_id=8), "X-1"),
    "a new producer ID begins late": (at(EMPTY, LAST_EPOCH), at(EMPTY, 1, producer_id=8), "X-1"),
    "partitions of another epoch": (at(EMPTY), at(ONGOING, 4, T0), "X-1"),
    "a partition is lost": (at(ONGOING, 3, T0, T1), at(ONGOING, 3, T1), "X-9"),
    "a begin of nothing": (at(EMPTY), at(ONGOING), "X-9"),
    "the start moves": (at(ONGOING, 3, T0), at(ONGOING, 3, T0, started_ms=6), "X-7"),
    "the start moves at the end": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0, started_ms=6), "X-7"),
    "the timeout changes": (at(EMPTY), at(ONGOING, 3, T0, timeout_ms=9), "X-1"),
    "a decision lacks a partition": (at(ONGOING, 3, T0, T1), at(PREPARE_COMMIT, 3, T0), "X-3"),
    "a commit raises the epoch": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 4, T0), "X-1"),
    "version 2 keeps the epoch": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0, **V2), "KIP-890"),
    "version 1 aborts nothing": (at(EMPTY), at(PREPARE_ABORT, 4), "KIP-890"),
    "a next producer ID too early": (
        at(ONGOING, 3, T0),
        at(PREPARE_COMMIT, 4, T0, next_producer_id=8, **V2),
        "KIP-890",
    ),
    "no next producer ID": (at(ONGOING, LAST_EPOCH, T0), at(PREPARE_COMMIT, FENCE_EPOCH, T0, **V2), "KIP-890"),
    "the next producer ID is not taken": (
        at(PREPARE_ABORT, FENCE_EPOCH, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, FENCE_EPOCH, **V2),
        "X-1",
    ),
    "a complete transaction keeps a partition": (at(PREPARE_COMMIT, 3, T0), at(COMPLETE_COMMIT, 3, T0), "X-2"),
}


@pytest.mark.parametrize("step", list(LEGAL))
def test_step_that_kafka_takes_is_no_violation(step: str) -> None:
    assert wrong_step(*LEGAL[step]) == ""


@pytest.mark.parametrize("step", list(WRONG))
def test_step_that_kafka_never_takes_is_a_violation_of_its_clause(step: str) -> None:
    before, value, clause = WRONG[step]
    assert clause in wrong_step(before, value)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_value_is_read_as_it_is_written(level: int) -> None:
    written = Transaction(
        "x",
        producer_id=7,
        timeout_ms=1000,
        updated_ms=9,
        state=TransactionState.PREPARE_COMMIT,
        producer_epoch=3,
        partitions=dict.fromkeys([T0, ("u", 5), T1]),
        started_ms=8,
        next_producer_id=11 if level else -1,
        client_version=2 if level else 0,
    )
    value = read_value(4, transaction_key("x"), transaction_value(written, level))
    assert value is not None
    assert value._replace(at_us=0) == StateValue(
        offset=4,
        at_us=0,
        transactional_id="x",
        producer_id=7,
        epoch=3,
        timeout_ms=1000,
        state=PREPARE_COMMIT,
        partitions=frozenset([T0, T1, ("u", 5)]),
        updated_ms=9,
        started_ms=8,
        next_producer_id=written.next_producer_id,
        client_version=written.client_version,
    )


def test_tombstone_and_another_key_are_read() -> None:
    removed = read_value(4, transaction_key("x"), None)
    assert removed is not None
    assert (removed.transactional_id, removed.state) == ("x", REMOVED)
    assert read_value(4, b"\x00\x01\x00\x01x", b"") is None


TOPIC_ID, STATE_ID = b"t" * 16, b"s" * 16
OWNER = Transaction("x", 7, 1000, 5, TransactionState.EMPTY, 0)
STARTED = OWNER._replace(state=TransactionState.ONGOING, partitions={T0: None}, started_ms=5)
DECIDED = STARTED._replace(state=TransactionState.PREPARE_COMMIT)
DONE = DECIDED._replace(state=TransactionState.COMPLETE_COMMIT, partitions={})
INTERVAL_MS, SLACK_MS = 200, 1500


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


NODE_ID = 1
STATE_LEADER_EPOCH = 4


def _opened(disk: Disk, directory: str) -> PartitionLog:
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
        """Let the checks follow the logs, and return the stories of all violations."""
        self.us += 1000
        self.view.observe(self.us, 0, self.node(), False)
        return [violation.story for each in self.checks for violation in each.violations]

    def acts(self, event: Request | None, *effects: Any) -> None:
        self.us += 1000
        for each in self.checks:
            if type(each).acted is not Check.acted:
                each.acted(self.us, self.node(), event or Closed(99), effects)

    def write(self, *steps: Transaction, commits: bool = True) -> list[str]:
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
                self.held[step.transactional_id] = TransactionEntry(step)
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


def test_whole_transaction_is_no_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert world.replies(init_request(), init_response()) == []
    assert world.replies(_naming(0), init_response()) == []
    world.write(STARTED)
    assert world.replies(*adding(0)) == []
    world.produce()
    world.write(DECIDED)
    assert world.replies(end_request(), end_response()) == []
    world.marker()
    assert world.write(DONE) == []
    assert world.replies(end_request(), end_response()) == []
    assert all(each.evidence for each in world.checks if not isinstance(each, TimeoutsKept))


def test_response_before_its_value_is_replicated_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, commits=False)
    (story,) = world.replies(init_request(), init_response())
    assert "InitProducerId of x (producer 7, epoch 0) with no error, and no value with this owner" in story
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    (story,) = world.replies(init_request(), init_response(producer_epoch=1))
    assert "X-2" in story


def test_partitions_and_ends_that_are_not_replicated_are_violations() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    assert len(world.replies(*adding(0, 1))) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.write(DECIDED, commits=False)
    assert "X-3" in world.replies(end_request(), end_response())[0]
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert "X-3" in world.replies(end_request(commits=False), end_response())[0]
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert "KIP-890" in world.replies(end_request(), end_response(producer_epoch=1))[0]
    assert (
        CheckedTransactionCoordinator().replies(end_request(), end_response(error=ErrorCode.concurrent_transactions))
        == []
    )


def test_effect_of_a_value_that_a_later_one_has_replaced_since_the_request_is_none() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    request, response = adding(0)
    tag = Tag(24, 5, "p")
    world.acts(Request(1, 1, 24, 5, "p", request, tag))
    world.write(DECIDED)
    world.acts(None, Reply(1, 1, 24, 5, response, tag))
    assert world.looked() == []
    assert len(world.replies(*adding(0))) == 1


def markers(*, commit: bool = True, index: int = 0, coordinator: int = 4) -> Send:
    body = write_txn_markers_request(commit=commit, index=index, coordinator_epoch=coordinator)
    return Send(2, Channel.MARKERS, 1, 27, 1, body, Tag(27, 1, "n", role="peer"), 1000, "n")


@pytest.mark.parametrize(
    ("sent", "clause"),
    [({}, ""), ({"commit": False}, "X-3"), ({"index": 1}, "X-3"), ({"coordinator": 3}, "X-6")],
)
def test_markers_are_sent_for_committed_decisions(sent: dict[str, Any], clause: str) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.acts(None, markers(**sent))
    stories = world.looked()
    assert len(stories) == bool(clause)
    assert all(clause in each for each in stories)


def test_markers_of_a_decision_that_is_not_replicated_are_violations() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.write(DECIDED, commits=False)
    world.acts(None, markers())
    assert len(world.looked()) == 1
    assert len(world.marker()) == 2


def test_marker_of_the_other_kind_is_a_violation_unless_an_administrator_requested_it() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert len(world.marker(commit=False)) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    body = markers(commit=False).body
    world.acts(Request(1, 1, 27, 1, "a", body, Tag(27, 1, "a")))
    assert world.marker(commit=False) == []


def test_completion_without_each_marker_below_the_high_watermark_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert len(world.write(DONE)) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker(commits=False)
    assert len(world.write(DONE)) == 1


def test_marker_that_was_lost_and_written_again_counts_where_it_is() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world._to_data(build([Record(timestamp_ms=0, value=b"v")]), BatchOrigin.CLIENT, commits=False)
    world.marker(commits=False)
    with world.touched.noted():
        world.data.truncate_to(0)
    world.looked()
    world.marker()
    assert world.write(DONE) == []


def test_marker_counts_although_another_coordinator_has_it_written_again() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    world.marker(commits=False)
    assert world.write(DONE) == []


def test_marker_of_an_earlier_transaction_completes_no_other() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    assert world.write(DONE, STARTED, DECIDED) == []
    assert len(world.write(DONE)) == 1


@pytest.mark.clause("X-3")
@pytest.mark.parametrize("is_marked", [True, False])
def test_marker_that_was_read_as_a_whole_counts_only_behind_what_the_producer_wrote(is_marked: bool) -> None:
    """The log is opened again with two transactions of one epoch, and the second has a marker or none."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.produce()
    world.write(DECIDED)
    world.marker()
    world.write(DONE, STARTED)
    world.produce(sequence=1)
    assert world.write(DECIDED) == []
    if is_marked:
        world.marker()
    next(each for each in world.checks if isinstance(each, MarkersDecided))._written.clear()
    world.reopen_data()
    assert world.looked() == []
    assert bool(world.write(DONE)) is not is_marked


def test_coordinator_that_holds_another_value_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, OWNER._replace(transactional_id="y", producer_id=8))
    assert world.looked() == []
    world.held["x"] = TransactionEntry(STARTED, DECIDED)
    assert world.write(OWNER._replace(transactional_id="y", producer_id=8, producer_epoch=1)) == []
    world.write(STARTED)
    world.held["x"] = TransactionEntry(OWNER)
    world.target.index = 0
    with world.touched.noted():
        world.state.append(
            Now(0, 5), build([Record(timestamp_ms=0, key=transaction_key("x"), value=transaction_value(DECIDED, 1))]), 4
        )
        world.state.advance_high_watermark(world.state.log_end_offset)
    assert len(world.looked()) == 1


def test_owner_that_comes_twice_is_a_violation_unless_the_producer_continues() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    world.replies(init_request(), init_response())
    assert world.replies(init_request(producer_id=7), init_response()) == []
    assert len(world.replies(init_request(), init_response())) == 1
    world = CheckedTransactionCoordinator()
    assert world.replies(init_request(transactional_id=None), init_response(9)) == []
    assert len(world.replies(init_request(transactional_id=None), init_response(9))) == 1


@pytest.mark.parametrize(("age_ms", "broken"), [(999, 1), (1000, 0)])
def test_transaction_is_not_timed_out_before_its_timeout(age_ms: int, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.ms += age_ms
    world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    assert len(world.looked()) == broken


@pytest.mark.parametrize(("leader", "broken"), [((4, 1), 1), ((5, 2), 0)])
def test_coordinator_that_was_replaced_may_go_by_old_values(leader: tuple[int, int], broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    for each in world.checks:
        if isinstance(each, TimeoutsKept):
            each.transactions.ids["x"].leader = leader
    world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    assert len(world.looked()) == broken


@pytest.mark.parametrize(("late_ms", "fault", "broken"), [(0, False, 0), (10, False, 1), (10, True, 0)])
def test_transaction_is_aborted_at_the_next_check_after_its_timeout(late_ms: int, fault: bool, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    age_ms = 1000 + INTERVAL_MS + SLACK_MS + late_ms
    world.ms += age_ms
    world.us += age_ms * 1000 - 2000
    if fault:
        for each in world.checks:
            each.context.quorum.fault_times.node(2, world.us)
    aborted = STARTED._replace(state=TransactionState.PREPARE_ABORT, producer_epoch=1)
    assert len(world.write(aborted)) == broken


@pytest.mark.parametrize(("epoch", "is_noted", "broken"), [(1, True, 0), (0, True, 1), (0, False, 0)])
def test_abort_after_a_timeout_fences_the_producer(epoch: int, is_noted: bool, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.ms += 1000
    if is_noted:
        world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    state = TransactionState.PREPARE_ABORT
    assert len(world.write(STARTED._replace(state=state, producer_epoch=epoch, updated_ms=world.ms))) == broken


def test_first_write_of_a_transaction_is_verified_between_its_arrival_and_the_append() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert len(world.produce()) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    assert world.produce() == []
    world.write(DECIDED)
    assert world.produce(sequence=1) == []  # It is open in the partition.
    world.marker()
    world.write(DONE)
    assert len(world.produce(sequence=2)) == 1
    world = CheckedTransactionCoordinator()
    world.broker.config = replace(world.broker.config, transaction_partition_verification_enable=False)
    assert world.produce() == []


@pytest.mark.parametrize(
    ("error", "step", "broken"),
    [
        (ErrorCode.invalid_producer_epoch, STARTED, 1),
        (ErrorCode.producer_fenced, STARTED, 1),
        (ErrorCode.invalid_producer_id_mapping, STARTED, 1),
        (ErrorCode.invalid_txn_state, STARTED, 1),
        (ErrorCode.concurrent_transactions, STARTED, 0),
        (ErrorCode.invalid_txn_state, OWNER, 0),
        (ErrorCode.producer_fenced, OWNER, 1),
    ],
)
def test_owner_is_not_refused(error: int, step: Transaction, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, step)
    assert len(world.replies(end_request(), end_response(-1, -1, error))) == broken
    world = CheckedTransactionCoordinator()
    world.write(OWNER, step, OWNER._replace(producer_epoch=1))
    assert all("with error" not in each for each in world.replies(end_request(), end_response(-1, -1, error)))
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert len(world.replies(*adding(0, error=error))) == (
        error in (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping, ErrorCode.producer_fenced)
    )


def test_marker_voids_what_the_coordinator_has_confirmed_before_it() -> None:
    def write(*, is_next_open: bool) -> list[str]:
        world = CheckedTransactionCoordinator()
        world.write(OWNER, STARTED)
        arriving = build(
            [Record(timestamp_ms=0, value=b"v")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        topic = ProduceTopic("t", bytes(16), [ProducePartition(0, arriving)])
        world.acts(Request(1, 2, 0, 11, "p", ProduceRequest(-1, 100, [topic], "x"), Tag(0, 11, "p")))
        world.write(DECIDED)
        world.marker()
        world.write(DONE)
        if is_next_open:
            world.write(STARTED)
        return world.produce(arrives=False)

    (story,) = write(is_next_open=False)
    assert "since then" not in story
    assert "began a transaction of producer 7, epoch 0" in story
    assert write(is_next_open=True) == []


LIMIT_US = 12_000_000 + 6_000_000 + 2_000_000 + MARKERS_US


@pytest.mark.parametrize(
    ("late_us", "fault_us", "leader", "broken"),
    [(1, 0, 1, 1), (-10_000, 0, 1, 0), (1, 1_000_000, 1, 0), (1, 0, 9, 0)],
)
def test_decided_transaction_is_completed_in_time(late_us: int, fault_us: int, leader: int, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    decided_us, world.leader = world.us, leader
    (check,) = (each for each in world.checks if isinstance(each, EndingsInTime))
    if fault_us:
        check.context.quorum.fault_times.node(2, decided_us + fault_us)
    check.inspect(decided_us + LIMIT_US + late_us, 0, world.node(), None, True)
    assert len(check.violations) == broken
    check.end(History(end_us=decided_us + LIMIT_US + late_us))
    assert len(check.violations) == broken
    world.marker()
    world.write(DONE)
    check.end(History(end_us=decided_us + 10 * LIMIT_US))
    assert len(check.violations) == broken


def _end_in_time(world: CheckedTransactionCoordinator) -> None:
    (check,) = (each for each in world.checks if isinstance(each, EndingsInTime))
    check.end(History(end_us=world.us + LIMIT_US + 10_000))


def _sent_markers(world: CheckedTransactionCoordinator) -> None:
    world.acts(None, markers(index=1))


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("lost", [None, 0, 1])
@pytest.mark.parametrize(
    ("steps", "act"),
    [
        ((OWNER, STARTED), lambda world: world.replies(end_request(), end_response())),
        ((OWNER, STARTED), lambda world: world.marker()),
        ((OWNER, STARTED, DECIDED), _sent_markers),
        ((OWNER, STARTED, DECIDED), _end_in_time),
        ((OWNER,), lambda world: world.produce()),
        (
            (OWNER,),
            lambda world: [world.replies(init_request(), init_response()) for _ in range(2)],
        ),
    ],
)
def test_loss_excuses_the_ids_of_its_partition_only(
    steps: tuple[Transaction, ...], act: Callable[[CheckedTransactionCoordinator], object], lost: int | None
) -> None:
    """Of four partitions the first has x. No other one has anything."""
    world = CheckedTransactionCoordinator()
    for index in range(4):
        state = PartitionImage((1, 2), (1, 2), 1, 4, 0)
        key = bytes([index]) * 16, index
        world.view.partitions[key] = Replicated(f"__transaction_state-{index}", key, state, Eligible.of(state, 1))
    world.write(*steps)
    if lost is not None:
        world.view.excused["__transaction_state", lost] = None
    act(world)
    assert bool(world.looked()) is (lost != 0)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("is_excused", [True, False])
def test_values_that_vanish_are_compared_with_the_next_unless_no_replica_had_kept_them(is_excused: bool) -> None:
    """A single replica has no other one to keep them."""
    world = CheckedTransactionCoordinator()
    if not is_excused:
        state = PartitionImage((1, 2), (1, 2), 1, 4, 0)
        of_state = Replicated("__transaction_state-0", (STATE_ID, 0), state, Eligible.of(state, 1))
        world.view.partitions[STATE_ID, 0] = of_state
    world.write(OWNER, STARTED, DECIDED)
    with world.touched.noted():
        world.state.truncate_to(1)
    world.held["x"] = TransactionEntry(OWNER)
    world.looked()
    stories = [*world.write(STARTED), *world.write(STARTED), *world.write(STARTED)]
    assert bool(stories) is not is_excused


def _loses_all_but(world: CheckedTransactionCoordinator, *kept: Transaction) -> None:
    """The only replica of the state topic lost its unsynced bytes: all but the first values."""
    with world.touched.noted():
        world.state.truncate_to(len(kept))
    world.held["x"] = TransactionEntry(kept[-1])
    world.looked()


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize(("epoch", "is_red"), [(0, False), (1, True)])
def test_lost_decision_excuses_markers_of_the_epochs_before_the_loss_only(epoch: int, *, is_red: bool) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    _loses_all_but(world, OWNER)
    assert bool(world.marker(commit=False, epoch=epoch)) is is_red


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize(
    ("kept", "again", "is_red"), [((OWNER, STARTED, DECIDED), (), False), ((OWNER,), (STARTED, DECIDED), True)]
)
def test_loss_excuses_completions_of_the_decisions_from_before_it_only(
    kept: tuple[Transaction, ...], again: tuple[Transaction, ...], *, is_red: bool
) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    world.write(DONE)
    _loses_all_but(world, *kept)
    assert world.write(*again) == []
    assert bool(world.write(DONE)) is is_red


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize("taken_over", ["not yet", "after the decision", "before the decision"])
def test_lost_records_excuse_missing_markers_of_the_decisions_from_before_the_loss_only(taken_over: str) -> None:
    world = CheckedTransactionCoordinator()
    world.view.excused[T0] = None
    if taken_over == "before the decision":
        world.view._taken_over_us[T0] = world.us
    world.write(OWNER, STARTED, DECIDED)
    if taken_over == "after the decision":
        world.view._taken_over_us[T0] = world.us
    assert bool(world.write(DONE)) is (taken_over == "before the decision")


@pytest.mark.clause("X-1", "E-7")
def test_lost_log_excuses_no_producer_id_of_two_transactional_ids() -> None:
    world = CheckedTransactionCoordinator()
    world.view.excused["__transaction_state", 0] = None
    world.write(OWNER)
    world.replies(init_request(), init_response())
    assert len(world.write(OWNER._replace(transactional_id="y"))) == 1
    assert len(world.replies(init_request(transactional_id="y"), init_response(producer_epoch=1))) == 2


@pytest.mark.clause("X-12")
@pytest.mark.parametrize("index", [0, 1])
def test_administrator_ends_a_transaction_only_in_the_partition_of_the_request(index: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    body = markers(commit=False, index=index).body
    world.acts(Request(1, 1, 27, 1, "a", body, Tag(27, 1, "a")))
    assert bool(world.marker(commit=False)) is (index == 1)


FIRST, SECOND = OWNER._replace(producer_epoch=1), OWNER._replace(producer_epoch=2)


def _naming(epoch: int, producer_id: int = 7) -> Any:
    return init_request(producer_id=producer_id, producer_epoch=epoch)


@pytest.mark.clause("X-1")
@pytest.mark.parametrize("error", [ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced])
def test_owner_is_not_fenced_by_init_producer_id(error: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(_naming(0), init_response(error=error)) == []
    assert world.replies(_naming(1), init_response(error=ErrorCode.concurrent_transactions)) == []
    (story,) = world.replies(_naming(1), init_response(error=error))
    assert "that is the owner" in story


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(
    ("between", "is_wrong"),
    [
        ((), True),
        ((FIRST._replace(updated_ms=9),), True),
        ((SECOND,), False),
        ((STARTED._replace(producer_epoch=1),), False),
    ],
)
def test_lost_response_of_init_producer_id_is_repeated(between: tuple[Transaction, ...], is_wrong: bool) -> None:
    """Whatever else happened to the ID makes its former owner a zombie."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(_naming(0), init_response(producer_epoch=1)) == []
    world.write(*between)
    stories = world.replies(_naming(0), init_response(error=ErrorCode.producer_fenced))
    assert bool(stories) is is_wrong
    assert all("nothing has happened since" in each for each in stories)


@pytest.mark.clause("X-1")
def test_new_coordinator_may_fence_who_lost_the_response() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(_naming(0), init_response(producer_epoch=1)) == []
    raised = next(each for each in world.checks if isinstance(each, OwnersGoOn))._raised
    raised["x"] = raised["x"]._replace(log=world.data)
    assert world.replies(_naming(0), init_response(error=ErrorCode.producer_fenced)) == []


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(
    ("named", "is_wrong"),
    [((7, 1), False), ((7, 2), False), ((7, 0), True), ((8, 1), True), ((8, 2), True), ((7, 3), True)],
)
def test_init_producer_id_serves_the_owner_only(named: tuple[int, int], is_wrong: bool) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST, SECOND)
    stories = world.replies(_naming(named[1], named[0]), init_response(producer_epoch=2))
    assert bool([each for each in stories if "KIP-360" in each]) is is_wrong


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(("epoch", "is_wrong"), [(LAST_EPOCH, False), (FENCE_EPOCH, False), (LAST_EPOCH - 1, True)])
def test_last_epochs_of_the_former_producer_id_still_count(epoch: int, is_wrong: bool) -> None:
    world = CheckedTransactionCoordinator()
    last = OWNER._replace(producer_epoch=epoch, state=TransactionState.COMPLETE_ABORT)
    world.write(OWNER, last, OWNER._replace(producer_id=8))
    stories = world.replies(_naming(epoch), init_response(8))
    assert bool([each for each in stories if "KIP-360" in each]) is is_wrong


DUTY_US = 2_000_000 + 3_000_000 + WORK_US


@pytest.mark.clause("X-3")
@pytest.mark.clause("X-7")
@pytest.mark.parametrize(
    ("steps", "extra_us", "changed", "is_wrong"),
    [
        ((STARTED, DECIDED), 0, {}, True),
        ((STARTED, DECIDED), -2 * JUDGED_EVERY_US, {}, False),
        ((STARTED, DECIDED, DONE), 0, {}, False),
        ((STARTED, DECIDED), 0, {"leader": 3}, False),
        ((STARTED, DECIDED), 0, {"isr": (1,)}, False),
        ((STARTED,), INTERVAL_MS * 1000, {}, True),
        ((STARTED,), INTERVAL_MS * 1000, {"isr": (1,)}, True),
        ((STARTED,), 0, {}, False),
        ((STARTED,), INTERVAL_MS * 1000, {"ms": STARTED.started_ms + STARTED.timeout_ms - 1}, False),
    ],
)
def test_what_is_due_is_done_in_time_unless_something_is_in_the_way(
    steps: tuple[Transaction, ...], extra_us: int, changed: dict[str, Any], is_wrong: bool
) -> None:
    """A transaction is decided by its own partition alone, and completed by those that need a marker, too."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, *steps)
    vars(world).update({"ms": STARTED.started_ms + STARTED.timeout_ms, **changed})
    (check,) = (each for each in world.checks if isinstance(each, DutiesInTime))
    from_us = world.us
    for at_us in (from_us, from_us + JUDGED_EVERY_US, from_us + DUTY_US + extra_us + JUDGED_EVERY_US):
        check.inspect(at_us, 0, world.node(), None, False)
    assert bool(check.violations) is is_wrong


@pytest.mark.clause("X-3")
def test_time_of_a_duty_counts_from_the_last_fault_or_change() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    (check,) = (each for each in world.checks if isinstance(each, DutiesInTime))
    from_us = world.us
    check.inspect(from_us, 0, world.node(), None, False)
    world.isr = (2, 1)
    check.inspect(from_us + DUTY_US, 0, world.node(), None, False)
    check.context.quorum.fault_times.node(2, from_us + DUTY_US + 1_000_000)
    check.inspect(from_us + 2 * DUTY_US + 500_000, 0, world.node(), None, False)
    assert check.violations == []
    check.inspect(from_us + 2 * DUTY_US + 1_500_000, 0, world.node(), None, False)
    assert len(check.violations) == 1
