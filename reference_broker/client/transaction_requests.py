"""Requests to a transaction's coordinators, and their errors.

KIP-1050 sorts errors by their remedy: resend, abort the transaction, recreate the producer (application recoverable),
or change the configuration. KIP-360 adds that after some errors the next transaction needs a higher producer epoch.
KIP-588 says that INVALID_PRODUCER_EPOCH of a Produce is no proof of being fenced: the coordinator decides that when the
transaction is aborted. The choices are those of Apache Kafka's TransactionManager (4.1).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
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
from reference_broker.client.group_requests import MemberIdentity, error_of, name_of
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse
    from kio.schema.end_txn.v5.response import EndTxnResponse
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse


class Remedy(Enum):
    """Remedies against an error. The last three are fatal to this producer."""

    RETRY = "send the request again after the backoff"
    FIND_COORDINATOR = "find the coordinator, then send the request again"
    ABORT = "abort the transaction"
    ABORT_AND_RAISE_EPOCH = "abort the transaction, and go on with a higher epoch"
    RESTART = "make a new producer"
    CONFIGURE = "change the configuration or the permissions"
    GIVE_UP = "nothing helps"

    @property
    def is_fatal(self) -> bool:
        return self in (Remedy.RESTART, Remedy.CONFIGURE, Remedy.GIVE_UP)


class RequestKind(Enum):
    """The requests of a transactional producer whose errors are sorted."""

    FIND_COORDINATOR = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    COMMIT = "EndTxn to commit"
    ABORT = "EndTxn to abort"
    PRODUCE = "Produce"


class TransactionError(Exception):
    """The producer met an error that a retry does not cure. ``remedy`` is what does. ``is_abortable`` means that
    the same producer can go on after an abort."""

    def __init__(self, error: Error | int, remedy: Remedy, request_kind: RequestKind) -> None:
        super().__init__(f"{name_of(error)} in the response to {request_kind.value}: {remedy.value}")
        self.error = error
        self.remedy = remedy
        self.request_kind = request_kind

    @property
    def is_abortable(self) -> bool:
        return not self.remedy.is_fatal


def _all(remedy: Remedy, errors: Iterable[ErrorCode]) -> dict[int, Remedy]:
    return {int(error): remedy for error in errors}


_SHARED: Final[Mapping[int, Remedy]] = MappingProxyType(
    {
        **_all(
            Remedy.RETRY,
            (
                ErrorCode.concurrent_transactions,
                ErrorCode.coordinator_load_in_progress,
                ErrorCode.corrupt_message,
                ErrorCode.inconsistent_topic_id,
                ErrorCode.kafka_storage_error,
                ErrorCode.leader_not_available,
                ErrorCode.network_exception,
                ErrorCode.not_enough_replicas,
                ErrorCode.not_enough_replicas_after_append,
                ErrorCode.not_leader_or_follower,
                ErrorCode.request_timed_out,
                ErrorCode.throttling_quota_exceeded,
                ErrorCode.unknown_topic_id,
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.unstable_offset_commit,
            ),
        ),
        **_all(Remedy.FIND_COORDINATOR, (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)),
        **_all(Remedy.ABORT, (ErrorCode.transaction_abortable,)),
        **_all(
            Remedy.RESTART,
            (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping),
        ),
        **_all(
            Remedy.CONFIGURE,
            (
                ErrorCode.transactional_id_authorization_failed,
                ErrorCode.cluster_authorization_failed,
                ErrorCode.invalid_transaction_timeout,
                ErrorCode.unsupported_version,
                ErrorCode.unsupported_for_message_format,
            ),
        ),
    }
)

_OWN: Final[Mapping[RequestKind, Mapping[int, Remedy]]] = MappingProxyType(
    {
        RequestKind.FIND_COORDINATOR: _all(Remedy.ABORT, (ErrorCode.group_authorization_failed,)),
        RequestKind.INIT: _all(
            Remedy.ABORT,
            (ErrorCode.transactional_id_authorization_failed, ErrorCode.cluster_authorization_failed),
        ),
        RequestKind.ADD_PARTITIONS: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            **_all(Remedy.GIVE_UP, (ErrorCode.invalid_txn_state,)),
        },
        RequestKind.ADD_OFFSETS: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            **_all(Remedy.ABORT, (ErrorCode.group_authorization_failed,)),
        },
        RequestKind.COMMIT_OFFSETS: {
            **_all(Remedy.FIND_COORDINATOR, (ErrorCode.request_timed_out,)),
            **_all(
                Remedy.ABORT,
                (
                    ErrorCode.group_authorization_failed,
                    ErrorCode.fenced_instance_id,
                    ErrorCode.unknown_member_id,
                    ErrorCode.illegal_generation,
                    ErrorCode.group_id_not_found,
                    ErrorCode.stale_member_epoch,
                ),
            ),
        },
        RequestKind.COMMIT: _all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
        RequestKind.ABORT: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            # Another abort would meet the same error again.
            **_all(Remedy.GIVE_UP, (ErrorCode.transaction_abortable,)),
        },
        RequestKind.PRODUCE: {
            **_all(Remedy.RESTART, (ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping)),
            **_all(
                Remedy.CONFIGURE,
                (
                    ErrorCode.transactional_id_authorization_failed,
                    ErrorCode.cluster_authorization_failed,
                    ErrorCode.unsupported_version,
                ),
            ),
        },
    }
)

_OTHERWISE: Final[Mapping[RequestKind, Remedy]] = MappingProxyType(
    {RequestKind.ADD_PARTITIONS: Remedy.ABORT, RequestKind.PRODUCE: Remedy.ABORT_AND_RAISE_EPOCH}
)
"""The remedy against an error that no table names. It is GIVE_UP for a request that is not here."""


def remedy_of(request_kind: RequestKind, error: Error | int) -> Remedy:
    """Return what helps against this error of this request. For Produce it is what follows once the batch is abandoned;
    ``ProducerState`` decides which of its errors are retried."""
    own = _OWN[request_kind].get(int(error))
    if own is not None:
        return own
    shared = None if request_kind is RequestKind.PRODUCE else _SHARED.get(int(error))
    return shared or _OTHERWISE.get(request_kind, Remedy.GIVE_UP)


def reported_error(error: Error | int, request_kind: RequestKind) -> Error | int:
    """Return the error for the application. Old coordinators return INVALID_PRODUCER_EPOCH to a fenced producer."""
    is_fenced = error is ErrorCode.invalid_producer_epoch and request_kind is not RequestKind.PRODUCE
    return ErrorCode.producer_fenced if is_fenced else error


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
    """With ``current`` the epoch after that one is requested (KIP-360). If it is not known, the coordinator fences
    every older producer with this ID."""
    return InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_us // 1000)),
        producer_id=ProducerId(current.producer_id),
        producer_epoch=i16(current.epoch),
    )


def initialized(body: object) -> ProducerIdentity | Error | int:
    """Read the response to InitProducerId."""
    response = cast("InitProducerIdResponse", body)
    return error_of(response.error_code) or ProducerIdentity(int(response.producer_id), int(response.producer_epoch))


def add_partitions_request(
    transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """A request about one transaction, as clients send it (versions 0 to 3)."""
    topics = tuple(
        AddPartitionsToTxnTopic(name=TopicName(topic), partitions=tuple(i32(number) for number in numbers))
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
    """The error of each partition in the response to AddPartitionsToTxn."""
    return {
        TopicPartition(str(topic.name), int(result.partition_index)): error_of(result.partition_error_code)
        for transaction in cast("AddPartitionsToTxnResponse", body).results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }


def add_offsets_request(transactional_id: str, producer: ProducerIdentity, group_id: str) -> AddOffsetsToTxnRequest:
    """Add the group's partition of ``__consumer_offsets``."""
    return AddOffsetsToTxnRequest(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        group_id=GroupId(group_id),
    )


def offsets_added(body: object) -> Error | int:
    """The error in the response to AddOffsetsToTxn."""
    return error_of(cast("AddOffsetsToTxnResponse", body).error_code)


def commit_offsets_request(
    transactional_id: str,
    producer: ProducerIdentity,
    identity: MemberIdentity,
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> TxnOffsetCommitRequest:
    """``identity`` is the consumer's, so that the coordinator recognizes a member of an old generation (KIP-447)."""
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
                partitions=tuple(_offset(number, offsets[TopicPartition(topic, number)]) for number in numbers),
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
    """Commit or aborts."""
    return EndTxnRequest(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
        committed=committed,
    )


def ended(body: object) -> ProducerIdentity | Error | int:
    """Read the response to EndTxn. From version 5 on it has the identity for the next transaction. Before, that is not
    known."""
    response = cast("EndTxnResponse", body)
    return error_of(response.error_code) or ProducerIdentity(
        int(getattr(response, "producer_id", -1)), int(getattr(response, "producer_epoch", -1))
    )
