"""A broker that is its own transaction coordinator, and requests of its clients."""

from datetime import timedelta
from typing import Any

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from reference_broker.apis.groups import k10_find_coordinator
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.topics.automatic_creation import request_creation
from reference_broker.apis.transactions import (
    k22_init_producer_id,
    k24_add_partitions_to_txn,
    k65_describe_transactions,
    k66_list_transactions,
)
from reference_broker.controller.planning.topic_creation import NewTopic

ID = TransactionalId("tx")
MINUTE = i32Timedelta.parse(timedelta(minutes=1))


def init_request(**fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout": timedelta(seconds=1), **fields})


def find_coordinator(world: AdminWorld, *keys: str) -> list[tuple[str, int]]:
    request = FindCoordinatorRequest(key_type=i8(1), coordinator_keys=keys)
    response = world.request(k10_find_coordinator, request)
    world.settle()
    return [(coordinator.error_code.name, coordinator.node_id) for coordinator in response.coordinators]


def transactional_world() -> AdminWorld:
    """Return a world with the transaction topic, and topic ``t`` with three partitions."""
    world = AdminWorld(transaction_state_log_num_partitions="5")
    find_coordinator(world, ID)
    request_creation(world.broker.lifecycle.channel, NewTopic("t", partitions=3, replication_factor=1), lambda: None)
    world.settle()
    assert find_coordinator(world, ID) == [("none", 1)]
    return world


def init_producer_id(world: AdminWorld, version: int = 5, producer_id: int = -1, epoch: int = -1) -> Any:
    request = InitProducerIdRequest(
        transactional_id=ID,
        transaction_timeout=MINUTE,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
    )
    return world.request(k22_init_producer_id, request, version)


def add_request(
    producer_id: int, epoch: int, *indexes: int, topic: str = "t", **more: Any
) -> AddPartitionsToTxnTransaction:
    topics = (AddPartitionsToTxnTopic(name=TopicName(topic), partitions=tuple(map(i32, indexes))),)
    return AddPartitionsToTxnTransaction(
        transactional_id=more.pop("id_", ID),
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
        topics=topics,
        **more,
    )


def add_partitions(
    world: AdminWorld, *transactions: AddPartitionsToTxnTransaction, version: int = 3
) -> dict[str, list[str]]:
    """Return the errors of each transaction's partitions."""
    response = world.request(k24_add_partitions_to_txn, AddPartitionsToTxnRequest(transactions=transactions), version)
    return {
        each.transactional_id: [
            result.partition_error_code.name for topic in each.topic_results for result in topic.results_by_partition
        ]
        for each in response.results_by_transaction
    }


def describe_transactions(world: AdminWorld, *ids: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=tuple(map(TransactionalId, ids)))
    return world.request(k65_describe_transactions, request).transaction_states


def list_transactions(
    world: AdminWorld,
    states: tuple[str, ...] = (),
    ids: tuple[int, ...] = (),
    longer_ms: int = -1,
    pattern: str | None = None,
) -> Any:
    return world.request(
        k66_list_transactions,
        ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=tuple(map(ProducerId, ids)),
            duration_filter=i64(longer_ms),
            transactional_id_pattern=pattern,
        ),
    )
