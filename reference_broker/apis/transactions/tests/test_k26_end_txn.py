"""EndTxn: transactions from their first partition to their end, with the errors of each version."""

from typing import Any

import pytest
from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.types import GroupId, ProducerId
from kio.static.primitive import i16

from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.transactions import (
    k25_add_offsets_to_txn,
    k26_end_txn,
)
from reference_broker.apis.transactions.tests.transaction_requests import (
    ID,
    MINUTE,
    add_partitions,
    add_request,
    describe_transactions,
    init_producer_id,
    list_transactions,
    transactional_world,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.schema import EPOCH, MILLISECOND


def end_transaction(world: AdminWorld, producer_id: int, epoch: int, version: int = 4, *, commits: bool = True) -> Any:
    request = EndTxnRequest(
        transactional_id=ID, producer_id=ProducerId(producer_id), producer_epoch=i16(epoch), committed=commits
    )
    return world.request(k26_end_txn, request, version)


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionCoordinatorTest.testDescribeTransactions")
def test_transaction_from_first_partition_to_end() -> None:
    world = transactional_world()
    given = init_producer_id(world)
    assert (given.error_code, given.producer_id, given.producer_epoch) == (ErrorCode.none, 0, 0)
    assert list(add_partitions(world, add_request(0, 0, 0, 2)).values()) == [["none", "none"]]
    (state,) = describe_transactions(world, ID)
    assert (state.error_code, state.transaction_state, state.producer_id) == (ErrorCode.none, "Ongoing", 0)
    assert (state.producer_epoch, state.transaction_timeout) == (0, MINUTE)
    assert state.transaction_start_time == EPOCH + world.broker.now.wall_ms * MILLISECOND
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", (0, 2))]
    response = end_transaction(world, 0, 0)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, -1, -1)
    assert [each.transaction_state for each in describe_transactions(world, ID)] == ["CompleteCommit"]
    for index, markers in ((0, 1), (1, 0), (2, 1)):
        assert world.broker.partitions.by_name["t", index].log.log_end_offset == markers


def test_end_txn_version_5_returns_next_epoch() -> None:
    world = transactional_world()
    init_producer_id(world)
    add_partitions(world, add_request(0, 0, 0), version=5)
    response = end_transaction(world, 0, 0, 5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, 0, 1)


@pytest.mark.parametrize(
    ("version", "error"),
    [(0, "invalid_producer_epoch"), (1, "invalid_producer_epoch"), (2, "producer_fenced"), (3, "producer_fenced")],
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInAddOffsetToTxnWithOlderClient")
@pytest.mark.clause(
    "KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInAddPartitionToTxnWithOlderClient"
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInEndTxnWithOlderClient")
def test_versions_before_2_return_invalid_producer_epoch_instead_of_fenced(version: int, error: str) -> None:
    world = transactional_world()
    init_producer_id(world)
    init_producer_id(world)
    assert list(add_partitions(world, add_request(0, 0, 1), version=version).values()) == [[error]]
    assert end_transaction(world, 0, 0, version).error_code.name == error
    offsets = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=ProducerId(0), producer_epoch=i16(0), group_id=GroupId("g")
    )
    assert world.request(k25_add_offsets_to_txn, offsets, version).error_code.name == error


def test_non_coordinator_returns_not_coordinator() -> None:
    world = AdminWorld()
    assert init_producer_id(world).error_code is ErrorCode.not_coordinator
    assert end_transaction(world, 0, 0).error_code is ErrorCode.not_coordinator
    assert [each.error_code for each in describe_transactions(world, ID)] == [ErrorCode.not_coordinator]
    assert list_transactions(world).transaction_states == ()
