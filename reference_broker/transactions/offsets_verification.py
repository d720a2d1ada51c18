"""Verification of TxnOffsetCommit by the coordinator of the transaction (KIP-890)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.transaction_verification import VerificationGuard
from reference_broker.ports.node_ports import Ports
from reference_broker.records.batch import NO_SEQUENCE, InvalidRecords
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    Errors,
    SupportedOperation,
    VerificationRequest,
)
from reference_broker.wire.errors import Error, ErrorCode

OFFSETS_ABORTABLE_FROM = 4
OFFSETS_ADD_FROM = 5
"""The versions of TxnOffsetCommit."""


def operation_of_offset_commit(api_version: int) -> SupportedOperation:
    if api_version >= OFFSETS_ADD_FROM:
        return SupportedOperation.ADD_PARTITION
    return (
        SupportedOperation.GENERIC_ERROR_SUPPORTED
        if api_version >= OFFSETS_ABORTABLE_FROM
        else SupportedOperation.DEFAULT_ERROR
    )


OffsetsVerified: TypeAlias = Callable[[Error], object]


class TransactionToVerify(Protocol):
    """The transaction of a TxnOffsetCommit. ``api_version`` is the request's."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def api_version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Offsets:
    """The batch of offsets to be written. It has no sequence."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = NO_SEQUENCE


@dataclass(slots=True)
class OffsetsVerifier:
    """Verifies that a producer may commit offsets in its transaction, for a partition of ``__consumer_offsets`` that
    this node leads."""

    _ports: Ports
    _config: Callable[[], BrokerConfig]
    _verifier: AddPartitionsToTxnManager

    def verify(self, led: Partition, transaction: TransactionToVerify, verified: OffsetsVerified) -> None:
        """Call ``verified`` once, maybe before it returns. NONE means that the transaction is open with the partition,
        or that this is not required (``transaction.partition.verification.enable``). That holds during the call only,
        so the offsets are written there. The errors are those of ``AddPartitionsToTxnManager.verify``, and of a log
        that no longer waits: INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER."""
        operation = operation_of_offset_commit(transaction.api_version)
        if not (operation.adds or self._config().transaction_partition_verification_enable):
            verified(ErrorCode.none)
            return
        offsets = _Offsets(transaction.producer_id, transaction.producer_epoch)
        log, now = led.log, self._ports.now()
        producer = log.producers.by_id.get(offsets.producer_id)
        try:
            guard = log.verification.begin(producer, offsets, raises_epoch=operation.adds, wall_ms=now.wall_ms)
        except InvalidRecords as refused:
            verified(refused.error)
            return
        if guard is None:
            verified(ErrorCode.none)
            return
        key = (led.topic, led.index)
        request = VerificationRequest(
            transaction.transactional_id, offsets.producer_id, offsets.producer_epoch, (key,), operation
        )
        self._verifier.verify(request, partial(_finished, led, offsets, guard, verified))


def _finished(
    led: Partition, offsets: _Offsets, guard: VerificationGuard, verified: OffsetsVerified, errors: Errors
) -> None:
    error: Error = errors.get((led.topic, led.index), ErrorCode.none)
    if not error and led.is_removed:  # Decision transactional-offsets-verified-late
        error = ErrorCode.not_leader_or_follower
    if not error:
        log = led.log
        try:  # Decision transactional-offsets-guard
            log.verification.check(log.producers.by_id.get(offsets.producer_id), offsets, guard)
        except InvalidRecords as refused:
            error = refused.error
    verified(error)
