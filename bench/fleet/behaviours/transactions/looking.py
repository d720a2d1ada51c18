"""Bodies of the requests with which an admin finds and aborts hanging transactions (KIP-664), and readers of the
answers. All are pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v2.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.static.primitive import i8, i16, i32, i64

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.client.consumer_protocol import by_topic
from reference_broker.client.group_requests import error_of
from reference_broker.wire.errors import Error

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.list_transactions.v2.response import ListTransactionsResponse
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

FIRST_COORDINATOR_EPOCH: Final = 0
"""Kafka's tool takes this one where no coordinator has written a marker of the producer."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What the leader of ``where`` tells of a producer with an open transaction. ``coordinator_epoch`` is that of its
    last marker there, or -1."""

    where: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    coordinator_epoch: int
    last_timestamp_ms: int


def describe_producers(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics = tuple(
        TopicRequest(name=TopicName(topic), partition_indexes=tuple(i32(each) for each in numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    return DescribeProducersRequest(topics=topics)


def open_transactions(body: object) -> list[OpenTransaction] | Error | int:
    """Returns what is open in the partitions of the answer, or the first error in it."""
    found = []
    for topic in cast("DescribeProducersResponse", body).topics:
        for partition in topic.partitions:
            if error := error_of(partition.error_code):
                return error
            found += [
                OpenTransaction(
                    TopicPartition(str(topic.name), int(partition.partition_index)),
                    int(each.producer_id),
                    int(each.producer_epoch),
                    int(each.current_txn_start_offset),
                    int(each.coordinator_epoch),
                    int(each.last_timestamp),
                )
                for each in partition.active_producers
                if each.current_txn_start_offset >= 0
            ]
    return found


def list_transactions(producer_ids: Sequence[int]) -> ListTransactionsRequest:
    return ListTransactionsRequest(
        state_filters=(),
        producer_id_filters=tuple(ProducerId(each) for each in producer_ids),
        duration_filter=i64(-1),
        transactional_id_pattern=None,
    )


def transactional_ids(body: object) -> dict[int, str] | Error | int:
    """Maps producer IDs to the transactional IDs that the node coordinates. Returns the error if there is one."""
    answer = cast("ListTransactionsResponse", body)
    return error_of(answer.error_code) or {
        int(each.producer_id): str(each.transactional_id) for each in answer.transaction_states
    }


def describe_transaction(transactional_id: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))


def expected_partitions(body: object) -> frozenset[TopicPartition] | Error | int:
    """Returns the partitions in which the coordinator expects to end the only transaction of the answer. Returns the
    error if there is one."""
    (state,) = cast("DescribeTransactionsResponse", body).transaction_states
    return error_of(state.error_code) or frozenset(
        TopicPartition(str(topic.topic), int(each)) for topic in state.topics for each in topic.partitions
    )


def abort_request(each: OpenTransaction) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=ProducerId(each.producer_id),
        producer_epoch=i16(each.producer_epoch),
        transaction_result=False,
        topics=(
            WritableTxnMarkerTopic(name=TopicName(each.where.topic), partition_indexes=(i32(each.where.partition),)),
        ),
        coordinator_epoch=i32(max(each.coordinator_epoch, FIRST_COORDINATOR_EPOCH)),
        transaction_version=i8(0),
    )
    return WriteTxnMarkersRequest(markers=(marker,))


def abort_error(body: object) -> Error | int:
    """The error of the only partition in the answer."""
    (error,) = [
        error_of(each.error_code)
        for marker in cast("WriteTxnMarkersResponse", body).markers
        for topic in marker.topics
        for each in topic.partitions
    ]
    return error
