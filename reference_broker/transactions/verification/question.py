"""What a partition's leader asks of a transaction's coordinator, and what the answer means to a producer (KIP-890)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from reference_broker.transactions.markers.marker import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode

Errors: TypeAlias = dict[TopicPartition, Error]
"""The partitions that may not be written to. All others may."""
Told: TypeAlias = Callable[[Errors], None]


class Purpose(Enum):
    """What the producer's version of Produce allows (Kafka's TransactionSupportedOperation)."""

    VERIFY = "the transaction must have the partition; the producer does not know TRANSACTION_ABORTABLE"
    VERIFY_ABORTABLE = "the same, and the producer knows it"
    ADD = "the partition is added to the transaction: version 2 of transactions"

    @property
    def adds(self) -> bool:
        return self is Purpose.ADD


ABORTABLE_FROM = 11
ADDS_FROM = 12
"""The versions of Produce."""


def purpose_of_produce(api_version: int) -> Purpose:
    if api_version >= ADDS_FROM:
        return Purpose.ADD
    return Purpose.VERIFY_ABORTABLE if api_version >= ABORTABLE_FROM else Purpose.VERIFY


OFFSETS_ABORTABLE_FROM = 4
OFFSETS_ADD_FROM = 5
"""The versions of TxnOffsetCommit."""


def purpose_of_offset_commit(api_version: int) -> Purpose:
    if api_version >= OFFSETS_ADD_FROM:
        return Purpose.ADD
    return Purpose.VERIFY_ABORTABLE if api_version >= OFFSETS_ABORTABLE_FROM else Purpose.VERIFY


@dataclass(frozen=True, slots=True)
class Question:
    """May this producer write to these partitions, in its transaction that is open now?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    purpose: Purpose

    def all(self, error: Error) -> Errors:
        return dict.fromkeys(self.partitions, error)


def verdict_of(purpose: Purpose, error: Error) -> Error:
    """What a coordinator's error for a partition becomes. Producers that are fenced expect INVALID_PRODUCER_EPOCH. Old
    ones know INVALID_TXN_STATE, but not TRANSACTION_ABORTABLE."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and purpose is Purpose.VERIFY:
        return ErrorCode.invalid_txn_state
    return error


_OF_THE_COORDINATOR = (
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


def told_in_produce(purpose: Purpose, error: Error) -> Error:
    """What a producer is told. It must come again where the coordinator could not be asked, and it knows no errors of
    coordinators there. NOT_ENOUGH_REPLICAS makes it do so without new metadata."""
    is_busy = error is ErrorCode.concurrent_transactions and not purpose.adds
    return ErrorCode.not_enough_replicas if is_busy or error in _OF_THE_COORDINATOR else error
