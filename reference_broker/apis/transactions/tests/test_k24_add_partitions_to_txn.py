"""AddPartitionsToTxn of clients and of brokers."""

from dataclasses import replace

import pytest
from kio.schema.types import TransactionalId

from reference_broker.apis.transactions.tests.transaction_requests import (
    ID,
    add_partitions,
    add_request,
    describe_transactions,
    init_producer_id,
    transactional_world,
)
from reference_broker.metadata.identifiers import INTERNAL_TOPICS, TRANSACTION_TOPIC


@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.shouldReceiveOperationNotAttemptedWhenOtherPartitionHasError")
@pytest.mark.clause("KafkaApisTest.testAddPartitionsToTxnOperationNotAttempted")
def test_unknown_partition_rejects_whole_add_partitions() -> None:
    world = transactional_world()
    init_producer_id(world)
    assert list(add_partitions(world, add_request(0, 0, 0, 3)).values()) == [
        ["operation_not_attempted", "unknown_topic_or_partition"]
    ]
    assert list(add_partitions(world, add_request(0, 0, 0, topic="none")).values()) == [["unknown_topic_or_partition"]]
    assert [each.transaction_state for each in describe_transactions(world, ID)] == ["Empty"]


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("internal", INTERNAL_TOPICS)
def test_client_cannot_add_internal_topics(internal: str, version: int) -> None:
    world = transactional_world()
    init_producer_id(world)
    mixed = add_request(0, 0, 0)
    mixed = replace(mixed, topics=(*mixed.topics, *add_request(0, 0, 0, topic=internal).topics))
    errors = add_partitions(world, mixed, version=version)
    assert list(errors.values()) == [["operation_not_attempted", "topic_authorization_failed"]]
    assert [each.transaction_state for each in describe_transactions(world, ID)] == ["Empty"]


def test_broker_adds_internal_topics_for_its_clients() -> None:
    world = transactional_world()
    init_producer_id(world)
    assert add_partitions(world, add_request(0, 0, 0, topic=TRANSACTION_TOPIC), version=5) == {ID: ["none"]}


@pytest.mark.clause("X-9")
@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.testOneSuccessOneErrorInBatchedRequest")
@pytest.mark.clause("AddPartitionsToTxnRequestServerTest.testVerifyOnly")
@pytest.mark.clause("KafkaApisTest.testBatchedAddPartitionsToTxnRequest")
def test_broker_adds_and_verifies_several_transactions_in_one_request() -> None:
    world = transactional_world()
    init_producer_id(world)
    other = TransactionalId("other")
    found = add_partitions(world, add_request(0, 0, 1), add_request(5, 0, 0, id_=other, verify_only=True), version=5)
    assert found == {ID: ["none"], other: ["invalid_producer_id_mapping"]}
    assert add_partitions(world, add_request(0, 0, 1, 2, verify_only=True), version=4) == {
        ID: ["none", "transaction_abortable"]
    }
    assert add_partitions(world, version=5) == {}
