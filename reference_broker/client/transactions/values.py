"""The values that a transactional producer takes and returns."""

from dataclasses import dataclass
from enum import Enum

from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.offset_requests import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """How one producer takes part in transactions. A transaction that is open for longer than
    ``transaction_timeout_us`` is aborted by its coordinator (KIP-98)."""

    transactional_id: str
    transaction_timeout_us: int = 60_000_000
    backoff_us: int = 100_000
    request_timeout_us: int = 5_000_000


class Outcome(Enum):
    """What became of a transaction, as far as this producer can know. FAILED means that it did not do what was asked:
    a transaction that was to be committed is aborted. UNKNOWN means that either may be true."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class OffsetsSend:
    """Offsets of a group that take part in the transaction. ``left`` holds those without an answer yet. ``error`` is
    set if they will not be committed."""

    identity: MemberIdentity
    left: dict[TopicPartition, OffsetToCommit]
    is_added: bool
    error: Error | int | None = None

    @property
    def is_done(self) -> bool:
        return not self.left and self.error is None
