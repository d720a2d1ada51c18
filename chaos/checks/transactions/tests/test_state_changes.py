"""Steps of transactional IDs: values that are committed before they have an effect."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from chaos.checks.log import producer_view
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import (
    end_txn_request,
    end_txn_response,
    init_producer_id_request,
    init_producer_id_response,
)
from chaos.checks.tests.stub_node import StubBroker, StubNode
from chaos.checks.transactions.transactional_ids import TimeoutsKept
from reference_broker.core.events import Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.records.record import Record, build
from reference_broker.transactions.transaction_metadata import TransactionMetadata, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import (
    transaction_key,
    transaction_value,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    pass

from chaos.checks.transactions.state_changes import TransactionsConsistent
from chaos.checks.transactions.tests.transaction_coordinator import (
    DECIDED,
    DONE,
    OWNER,
    STARTED,
    CheckedTransactionCoordinator,
    adding,
    continuing,
    markers,
)
from reference_broker.transactions.tests.transaction_world import TransactionWorld


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


def test_whole_transaction_is_no_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert world.replies(init_producer_id_request(), init_producer_id_response()) == []
    assert world.replies(continuing(0), init_producer_id_response()) == []
    world.write(STARTED)
    assert world.replies(*adding(0)) == []
    world.produce()
    world.write(DECIDED)
    assert world.replies(end_txn_request(), end_txn_response()) == []
    world.marker()
    assert world.write(DONE) == []
    assert world.replies(end_txn_request(), end_txn_response()) == []
    assert all(check.evidence for check in world.checks if not isinstance(check, TimeoutsKept))


def test_response_before_its_value_is_replicated_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, commits=False)
    (explanation,) = world.replies(init_producer_id_request(), init_producer_id_response())
    assert "InitProducerId of x (producer 7, epoch 0) with no error, and no value with this owner" in explanation
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    (explanation,) = world.replies(init_producer_id_request(), init_producer_id_response(producer_epoch=1))
    assert "X-2" in explanation


def test_partitions_and_ends_that_are_not_replicated_are_violations() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    assert len(world.replies(*adding(0, 1))) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.write(DECIDED, commits=False)
    assert "X-3" in world.replies(end_txn_request(), end_txn_response())[0]
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert "X-3" in world.replies(end_txn_request(commits=False), end_txn_response())[0]
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert "KIP-890" in world.replies(end_txn_request(), end_txn_response(producer_epoch=1))[0]
    assert (
        CheckedTransactionCoordinator().replies(
            end_txn_request(), end_txn_response(error=ErrorCode.concurrent_transactions)
        )
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


@pytest.mark.parametrize(
    ("sent", "clause"),
    [({}, ""), ({"commit": False}, "X-3"), ({"index": 1}, "X-3"), ({"coordinator": 3}, "X-6")],
)
def test_markers_are_sent_for_committed_decisions(sent: dict[str, Any], clause: str) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.acts(None, markers(**sent))
    explanations = world.looked()
    assert len(explanations) == bool(clause)
    assert all(clause in explanation for explanation in explanations)


def test_markers_of_a_decision_that_is_not_replicated_are_violations() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.write(DECIDED, commits=False)
    world.acts(None, markers())
    assert len(world.looked()) == 1
    assert len(world.marker()) == 2


def test_coordinator_that_holds_another_value_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, OWNER._replace(transactional_id="y", producer_id=8))
    assert world.looked() == []
    world.held["x"] = TransactionMetadata(STARTED, DECIDED)
    assert world.write(OWNER._replace(transactional_id="y", producer_id=8, producer_epoch=1)) == []
    world.write(STARTED)
    world.held["x"] = TransactionMetadata(OWNER)
    world.target.index = 0
    with world.touched.noted():
        world.state.append(
            Now(0, 5), build([Record(timestamp_ms=0, key=transaction_key("x"), value=transaction_value(DECIDED, 1))]), 4
        )
        world.state.advance_high_watermark(world.state.log_end_offset)
    assert len(world.looked()) == 1


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
def test_owner_is_not_refused(error: int, step: TxnTransitMetadata, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, step)
    assert len(world.replies(end_txn_request(), end_txn_response(-1, -1, error))) == broken
    world = CheckedTransactionCoordinator()
    world.write(OWNER, step, OWNER._replace(producer_epoch=1))
    assert all("with error" not in reply for reply in world.replies(end_txn_request(), end_txn_response(-1, -1, error)))
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert len(world.replies(*adding(0, error=error))) == (
        error in (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping, ErrorCode.producer_fenced)
    )


def test_coordinator_that_contradicts_itself_is_a_violation() -> None:
    world = TransactionWorld()
    target = world.coordinate(0)
    assert target is not None
    id_ = world.transactional_id_in(0)
    world.initialized_producer(id_)
    node = StubNode(StubBroker(1, transactions=cast(Any, world.transactions))).as_node()
    check = TransactionsConsistent(check_context())
    check.inspect(7, 0, node, None, False)
    assert not check.violations
    held = target.entries[id_]
    held.current = held.current._replace(transactional_id="other")
    check.inspect(9, 0, node, None, False)
    (violation,) = check.violations
    assert violation.at_us == 9
    assert f" is stored under {id_}" in violation.explanation
