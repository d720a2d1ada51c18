"""Transactional IDs at a coordinator, which keeps them in use, and forgets idle ones in time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import (
    add_partitions_to_txn_request,
    end_txn_request,
    end_txn_response,
    init_producer_id_request,
    init_producer_id_response,
)
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubNode, node_partitions
from chaos.checks.transactions.transactional_ids import SLACK_MS, TransactionalIdsKept
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

INIT_PRODUCER_ID, END_TXN, ADD_PARTITIONS_TO_TXN = 22, 26, 24
EXPIRES_MS, TIMEOUT_MS, LONGEST_MS, INTERVALS_MS = 10_000, 1_000, 60_000, 150
LATEST_MS = EXPIRES_MS + TIMEOUT_MS + INTERVALS_MS + SLACK_MS
pytestmark = pytest.mark.clause("X-7", "X-10")


class CheckedCoordinator:
    """A node that coordinates the transactional ID x, and its clients."""

    def __init__(self) -> None:
        self.check = TransactionalIdsKept(check_context())
        self.led = Partition("__transaction_state", bytes(16), 0, 3, StubLog().as_log())
        config = replace(
            BrokerConfig(),
            transaction_max_timeout_ms=LONGEST_MS,
            transactional_id_expiration_ms=EXPIRES_MS,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
            transaction_remove_expired_transaction_cleanup_interval_ms=50,
        )
        self.node = StubNode(StubBroker(config=config, partitions=node_partitions(self.led)))
        self.now_ms = 0
        self.wall_ahead_ms = 0

    def wait(self, time_ms: int) -> None:
        self.now_ms += time_ms

    def handle(self, api_key: int, body: Any, response: Any = None) -> None:
        self.node.broker.now = Now(0, self.now_ms + self.wall_ahead_ms)
        request = Request(1, 1, api_key, 5, "tx", body, Tag(1, 5, "tx", 0, -1))
        replies = [] if response is None else [Reply(1, 1, api_key, 5, response, Tag(1, 5, "tx", 0, -1))]
        self.check.acted(self.now_ms * 1000, self.node.as_node(), request, replies)

    def init_producer_id(self, producer_id: int, timeout_ms: int = TIMEOUT_MS, error: int = 0) -> None:
        body = init_producer_id_request(timeout_ms=timeout_ms)
        self.handle(INIT_PRODUCER_ID, body, init_producer_id_response(producer_id, error=error))

    def end_transaction(self) -> None:
        self.handle(END_TXN, end_txn_request(), end_txn_response())

    def add_partitions(self) -> None:
        self.handle(ADD_PARTITIONS_TO_TXN, add_partitions_to_txn_request(0))

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.fixture
def coordinator() -> CheckedCoordinator:
    return CheckedCoordinator()


def test_timeout_above_the_maximum_must_be_refused(coordinator: CheckedCoordinator) -> None:
    coordinator.init_producer_id(7, LONGEST_MS)
    coordinator.init_producer_id(-1, LONGEST_MS + 1, error=ErrorCode.invalid_transaction_timeout)
    assert coordinator.explanations == []
    coordinator.init_producer_id(7, LONGEST_MS + 1)
    assert coordinator.explanations == [f"x was granted a timeout of {LONGEST_MS + 1} ms"]


@pytest.mark.parametrize(
    ("idle_ms", "producer_id", "right"),
    [
        (EXPIRES_MS - 1, 7, True),
        (EXPIRES_MS - 1, 8, False),
        (EXPIRES_MS, 8, True),
        (LATEST_MS, 7, True),
        (LATEST_MS + 1, 7, False),
        (LATEST_MS + 1, 8, True),
    ],
)
def test_id_is_forgotten_in_time_and_not_before(
    coordinator: CheckedCoordinator, idle_ms: int, producer_id: int, right: bool
) -> None:
    coordinator.init_producer_id(7)
    coordinator.end_transaction()
    coordinator.wait(idle_ms)
    coordinator.init_producer_id(producer_id)
    assert (coordinator.explanations == []) == right


@pytest.mark.parametrize(
    "handle",
    [
        CheckedCoordinator.add_partitions,
        partial(CheckedCoordinator.init_producer_id, producer_id=-1, error=ErrorCode.concurrent_transactions),
        CheckedCoordinator.end_transaction,
    ],
)
def test_producer_that_sends_requests_is_not_idle(
    coordinator: CheckedCoordinator, handle: Callable[[CheckedCoordinator], None]
) -> None:
    coordinator.init_producer_id(7)
    coordinator.wait(LATEST_MS)
    handle(coordinator)
    coordinator.wait(LATEST_MS)
    coordinator.init_producer_id(7)
    assert coordinator.explanations == []


@pytest.mark.parametrize("producer_id", [7, 8])
def test_step_of_the_clock_forgets_sooner_or_later(coordinator: CheckedCoordinator, producer_id: int) -> None:
    coordinator.init_producer_id(7)
    coordinator.wait(1 if producer_id == 8 else LATEST_MS + 1)
    coordinator.wall_ahead_ms = EXPIRES_MS if producer_id == 8 else -10
    coordinator.init_producer_id(producer_id)
    assert coordinator.explanations == []


@pytest.mark.parametrize("producer_id", [7, 8])
def test_another_node_may_have_coordinated_it_meanwhile(coordinator: CheckedCoordinator, producer_id: int) -> None:
    coordinator.init_producer_id(7)
    coordinator.wait(1 if producer_id == 8 else LATEST_MS + 1)
    coordinator.led.leader_epoch = 4
    coordinator.init_producer_id(producer_id)
    assert coordinator.explanations == []


def test_fault_delays_forgetting_and_not_the_rest(coordinator: CheckedCoordinator) -> None:
    fault_times = coordinator.check.context.quorum.fault_times
    coordinator.init_producer_id(7)
    fault_times.node(2, 1000)
    coordinator.wait(LATEST_MS + 1)
    coordinator.init_producer_id(7)
    assert coordinator.explanations == []
    fault_times.node(0, coordinator.now_ms * 1000)
    coordinator.init_producer_id(8)
    assert len(coordinator.explanations) == 1
