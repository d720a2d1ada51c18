"""Whether a producer may commit offsets in its transaction: TxnOffsetCommit, as the group coordinator asks it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.transaction_verification import Guard
from reference_broker.ports.node_ports import Ports
from reference_broker.records.batch import NO_SEQUENCE, InvalidRecords
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.verification.question import Errors, Question, purpose_of_offset_commit
from reference_broker.transactions.verification.verifier import Verifier
from reference_broker.wire.errors import Error, ErrorCode

Verified: TypeAlias = Callable[[Error], object]


class Transaction(Protocol):
    """That of a TxnOffsetCommit. ``api_version`` is the request's."""

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
    """The batch of offsets that is to be written. It has no sequence."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = NO_SEQUENCE


@dataclass(slots=True)
class OffsetsVerifier:
    """Asks for a partition of ``__consumer_offsets`` that this node leads."""

    _ports: Ports
    _config: Callable[[], BrokerConfig]
    _verifier: Verifier

    def verify(self, led: Partition, transaction: Transaction, verified: Verified) -> None:
        """Calls ``verified`` once, maybe before it returns. NONE says that the transaction is open with the partition,
        or that nobody demands it (``transaction.partition.verification.enable``). That holds during the call only: what
        is to be written is written there. The errors are those of ``Verifier.ask``, and of a log that no longer waits:
        INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER."""
        purpose = purpose_of_offset_commit(transaction.api_version)
        if not (purpose.adds or self._config().transaction_partition_verification_enable):
            verified(ErrorCode.none)
            return
        offsets = _Offsets(transaction.producer_id, transaction.producer_epoch)
        log, now = led.log, self._ports.now()
        known = log.producers.by_id.get(offsets.producer_id)
        try:
            guard = log.verification.begin(known, offsets, raises_epoch=purpose.adds, wall_ms=now.wall_ms)
        except InvalidRecords as refused:
            verified(refused.error)
            return
        if guard is None:
            verified(ErrorCode.none)
            return
        key = (led.topic, led.index)
        question = Question(transaction.transactional_id, offsets.producer_id, offsets.producer_epoch, (key,), purpose)
        self._verifier.ask(question, partial(_answered, led, offsets, guard, verified))


def _answered(led: Partition, offsets: _Offsets, guard: Guard, verified: Verified, errors: Errors) -> None:
    error: Error = errors.get((led.topic, led.index), ErrorCode.none)
    if not error and led.deleted:
        error = ErrorCode.not_leader_or_follower
    if not error:
        log = led.log
        try:
            log.verification.check(log.producers.by_id.get(offsets.producer_id), offsets, guard)
        except InvalidRecords as refused:
            error = refused.error
    verified(error)
