"""What producers and admins ask of a transaction coordinator, apart from any version of the messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.transactions.markers.marker import TopicPartition
from reference_broker.transactions.state.judging import ProducerIdAndEpoch
from reference_broker.wire.errors import Error


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """InitProducerId with a transactional ID. ``expected`` is what the producer has, if it goes on after an error."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


@dataclass(frozen=True, slots=True)
class AddRequest:
    """AddPartitionsToTxn, AddOffsetsToTxn. ``client_version`` is the ``transaction.version`` that the request's version
    stands for."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class EndRequest:
    """EndTxn."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    commits: bool
    client_version: int = 0


NOBODY: ProducerIdAndEpoch = (-1, -1)

Owned: TypeAlias = Callable[[Error, ProducerIdAndEpoch], None]
"""Told once: an error, and with NONE the producer ID and epoch that the client has from now on (NOBODY if it is not
told)."""
