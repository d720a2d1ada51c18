"""A transaction marker as its coordinator asks for it, and what a partition's leader says to it (KIP-98, KIP-890)."""

from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.log.producer_state import Producer
from reference_broker.wire.errors import Error, ErrorCode

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""

MAX_PRODUCER_EPOCH = 2**15 - 1
_UNKNOWN = Producer(-1)
EPOCH_RAISED_FROM = 2
"""The ``transaction.version`` from which the coordinator raises the producer's epoch before each marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one producer's transaction. ``coordinator_epoch`` is the leader epoch of the coordinator's partition
    of ``__transaction_state``. ``transaction_version`` is that of the transaction, 0 if the request does not say."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


def refusal_of(marker: Marker, known: Producer | None) -> Error:
    """Judges a marker by what the partition knows of the producer. Returns one of these errors:

    - INVALID_REQUEST: nobody has a negative producer ID.
    - INVALID_PRODUCER_EPOCH: its epoch is negative, or older than the producer's. From transaction version 2 on it must
      be newer, since a marker of that version with the epoch of an open transaction is late and would end the next one.
    - TRANSACTION_COORDINATOR_FENCED: a newer coordinator has written a marker here (X-6).

    A marker of version 2 that comes again is no error: nothing is open, and it has the epoch that it has raised. Nor is
    one with the last epoch that there is, which cannot be raised (KAFKA-19999).
    """
    if marker.producer_id < 0:
        return ErrorCode.invalid_request
    known = known or _UNKNOWN
    if marker.producer_epoch < max(known.producer_epoch, 0) or _is_late(marker, known):
        return ErrorCode.invalid_producer_epoch
    if marker.coordinator_epoch < known.coordinator_epoch:
        return ErrorCode.transaction_coordinator_fenced
    return ErrorCode.none


def _is_late(marker: Marker, known: Producer) -> bool:
    return (
        marker.transaction_version >= EPOCH_RAISED_FROM
        and marker.producer_epoch == known.producer_epoch != MAX_PRODUCER_EPOCH
        and known.current_txn_first_offset >= 0
    )
