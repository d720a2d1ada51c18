"""What a transactional producer does about each error, as tables: one for each request, and one that they share.

KIP-1050 sorts errors by what helps: to send again, to abort the transaction, to make the producer anew (application
recoverable), or to change the configuration. KIP-360 adds that after some errors the next transaction needs a higher
producer epoch. KIP-588 says that INVALID_PRODUCER_EPOCH of a Produce is no proof of being fenced: the coordinator
decides that when the transaction is aborted. The choices are those of Apache Kafka's TransactionManager (4.1).
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from reference_broker.client.group_requests import name_of
from reference_broker.wire.errors import Error, ErrorCode


class Remedy(Enum):
    """What helps. The last three are fatal to this producer."""

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


class Asked(Enum):
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
    """The producer met an error that sending again does not cure. ``remedy`` says what does. ``is_abortable`` says that
    the same producer can go on after an abort."""

    def __init__(self, error: Error | int, remedy: Remedy, asked: Asked) -> None:
        super().__init__(f"{name_of(error)} in the answer to {asked.value}: {remedy.value}")
        self.error = error
        self.remedy = remedy
        self.asked = asked

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

_OWN: Final[Mapping[Asked, Mapping[int, Remedy]]] = MappingProxyType(
    {
        Asked.FIND_COORDINATOR: _all(Remedy.ABORT, (ErrorCode.group_authorization_failed,)),
        Asked.INIT: _all(
            Remedy.ABORT,
            (ErrorCode.transactional_id_authorization_failed, ErrorCode.cluster_authorization_failed),
        ),
        Asked.ADD_PARTITIONS: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            **_all(Remedy.GIVE_UP, (ErrorCode.invalid_txn_state,)),
        },
        Asked.ADD_OFFSETS: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            **_all(Remedy.ABORT, (ErrorCode.group_authorization_failed,)),
        },
        Asked.COMMIT_OFFSETS: {
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
        Asked.COMMIT: _all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
        Asked.ABORT: {
            **_all(Remedy.ABORT_AND_RAISE_EPOCH, (ErrorCode.unknown_producer_id,)),
            # Another abort would meet the same error again.
            **_all(Remedy.GIVE_UP, (ErrorCode.transaction_abortable,)),
        },
        Asked.PRODUCE: {
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

_OTHERWISE: Final[Mapping[Asked, Remedy]] = MappingProxyType(
    {Asked.ADD_PARTITIONS: Remedy.ABORT, Asked.PRODUCE: Remedy.ABORT_AND_RAISE_EPOCH}
)
"""What helps against an error that no table names. It is GIVE_UP for a request that is not here."""


def remedy_of(asked: Asked, error: Error | int) -> Remedy:
    """Returns what helps against this error of this request. For Produce it is what follows once the batch is given up;
    which of its errors are worth another attempt is ``ProducerState``'s to say."""
    own = _OWN[asked].get(int(error))
    if own is not None:
        return own
    shared = None if asked is Asked.PRODUCE else _SHARED.get(int(error))
    return shared or _OTHERWISE.get(asked, Remedy.GIVE_UP)


def told(error: Error | int, asked: Asked) -> Error | int:
    """The error as the application hears it. Old coordinators say INVALID_PRODUCER_EPOCH to a fenced producer."""
    is_fenced = error is ErrorCode.invalid_producer_epoch and asked is not Asked.PRODUCE
    return ErrorCode.producer_fenced if is_fenced else error
