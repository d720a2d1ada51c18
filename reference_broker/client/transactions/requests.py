"""Bodies of the requests to a transaction's coordinators, and readers of the answers. All are pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta, i64

from reference_broker.client.consumer_protocol import by_topic
from reference_broker.client.group_requests import MemberIdentity, error_of
from reference_broker.client.offset_requests import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse
    from kio.schema.end_txn.v5.response import EndTxnResponse
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

TRANSACTION_KEY_TYPE: Final = 1
"""The key type with which FindCoordinator names a transactional ID."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer ID with its epoch. Both are -1 if there is none."""

    producer_id: int = -1
    epoch: int = -1

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0


def init_request(transactional_id: str, timeout_us: int, current: ProducerIdentity) -> InitProducerIdRequest:
    """``current`` asks for the epoch after that one (KIP-360). If it is not known, the coordinator fences every older
    producer with this ID."""
    return InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_us // 1000)),
        producer_id=ProducerId(current.producer_id),
        producer_epoch=i16(current.epoch),
    )


def initialized(body: object) -> ProducerIdentity | Error | int:
    """Reads the answer to InitProducerId."""
    answer = cast("InitProducerIdResponse", body)
    return error_of(answer.error_code) or ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))


def add_partitions_request(
    transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """A request about one transaction, as clients send it (versions 0 to 3)."""
    topics = tuple(
        AddPartitionsToTxnTopic(name=TopicName(topic), partitions=tuple(i32(each) for each in numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=(transaction,))


def added(body: object) -> dict[TopicPartition, Error | int]:
    """The error of each partition in the answer to AddPartitionsToTxn."""
    return {
        TopicPartition(str(topic.name), int(each.partition_index)): error_of(each.partition_error_code)
        for transaction in cast("AddPartitionsToTxnResponse", body).results_by_transaction
        for topic in transaction.topic_results
        for each in topic.results_by_partition
    }


def add_offsets_request(transactional_id: str, producer: ProducerIdentity, group_id: str) -> AddOffsetsToTxnRequest:
    """Adds the group's partition of ``__consumer_offsets``."""
    return AddOffsetsToTxnRequest(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        group_id=GroupId(group_id),
    )


def offsets_added(body: object) -> Error | int:
    """The error in the answer to AddOffsetsToTxn."""
    return error_of(cast("AddOffsetsToTxnResponse", body).error_code)


def commit_offsets_request(
    transactional_id: str,
    producer: ProducerIdentity,
    identity: MemberIdentity,
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> TxnOffsetCommitRequest:
    """``identity`` is the consumer's, so that the coordinator can tell a member of an old generation (KIP-447)."""
    return TxnOffsetCommitRequest(
        transactional_id=TransactionalId(transactional_id),
        group_id=GroupId(identity.group_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        generation_id=i32(identity.generation_id),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=tuple(
            TxnOffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(_offset(each, offsets[TopicPartition(topic, each)]) for each in numbers),
            )
            for topic, numbers in by_topic(offsets).items()
        ),
    )


def _offset(partition: int, offset: OffsetToCommit) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=i32(partition),
        committed_offset=i64(offset.offset),
        committed_leader_epoch=i32(offset.leader_epoch),
        committed_metadata=offset.metadata,
    )


def end_request(transactional_id: str, producer: ProducerIdentity, committed: bool) -> EndTxnRequest:
    """Commits or aborts."""
    return EndTxnRequest(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        committed=committed,
    )


def ended(body: object) -> ProducerIdentity | Error | int:
    """Reads the answer to EndTxn. From version 5 on it has the identity for the next transaction. Before, that is not
    known."""
    answer = cast("EndTxnResponse", body)
    return error_of(answer.error_code) or ProducerIdentity(
        int(getattr(answer, "producer_id", -1)), int(getattr(answer, "producer_epoch", -1))
    )
