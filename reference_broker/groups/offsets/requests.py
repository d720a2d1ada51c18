"""What clients ask of committed offsets and what they are told, apart from any version of the messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from reference_broker.groups.offsets.values import CommitOffset
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error

BROKERS_RETENTION = -1


@dataclass(frozen=True, slots=True)
class WantedOffset:
    """One partition of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    metadata_epoch: int | None = None
    """None means that the version of the request has no such field (M-11)."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The transaction of a TxnOffsetCommit."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    api_version: int
    """Of the request. From 4 on the client can be told TRANSACTION_ABORTABLE, and from 5 on the partition of the
    offsets topic is added to the transaction (KIP-890)."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """OffsetCommit, and TxnOffsetCommit if it has a transaction."""

    group_id: str
    generation: int
    """Tools and consumers that assign themselves send -1, with an empty member ID."""
    member_id: str
    group_instance_id: str | None
    offsets: tuple[WantedOffset, ...]
    knows_missing_groups: bool = False
    """The client can be told GROUP_ID_NOT_FOUND (version 9 on). Others are told ILLEGAL_GENERATION."""
    retention_ms: int = BROKERS_RETENTION
    """Replaces ``offsets.retention.minutes`` for these offsets, if it is not BROKERS_RETENTION (versions 2 to 4)."""
    transaction: Transaction | None = None


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition of the answer to OffsetFetch. ``commit`` is None if nothing is committed."""

    topic: str
    partition: int
    commit: CommitOffset | None
    is_unstable: bool = False
    """The client wants stable offsets, and an open transaction may change this one. Then there is no ``commit``."""


Verified: TypeAlias = Callable[[Error], object]
"""Told NONE if the transaction is open with the partition at this moment."""


class Verifier(Protocol):
    """Asks the coordinator of a transaction whether it is open (KIP-890)."""

    def verify(self, led: Partition, transaction: Transaction, verified: Verified) -> None:
        """Tells once, maybe before it returns. NONE is true only during the call: a marker may come at any time.
        Nothing is asked where the log knows that the transaction is open. The errors are those of TxnOffsetCommit."""
        ...


Committed: TypeAlias = Callable[[list[Error]], None]
"""Told an error for each offset of the request."""
Fetched: TypeAlias = Callable[[Error, list[FetchedOffset]], None]
"""Told an error for the whole group, or what was found."""
Deleted: TypeAlias = Callable[[Error, list[Error]], None]
"""Told an error for the whole group, or one for each partition of the request."""
