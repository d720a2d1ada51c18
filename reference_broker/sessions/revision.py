"""What differs between the revisions of incremental fetch sessions: one small policy object each (KIP-227).

Both work on the same ``FetchSession`` with its cached partitions, marks and waiting. ``final_revision`` is what was
accepted and shipped; ``first_revision`` is the first text of the KIP's page.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from reference_broker.ports.timing import Slices
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import PartitionData

if TYPE_CHECKING:
    from reference_broker.sessions.cached_partition import CachedPartition
    from reference_broker.sessions.fetch_session import FetchSession


class DataQueue(Protocol):
    """The cached partitions that have data to send."""

    def push(self, cached: "CachedPartition") -> None: ...

    def take(self, start: int) -> "CachedPartition | None":
        """Takes the next partition that is due out of the queue; None if it is empty.

        ``start`` is the place at which the answer begins.
        """
        ...


@dataclass(frozen=True, slots=True)
class Revision(ABC):
    """Numbers are the epochs (final) or sequence numbers (first) that incremental requests carry."""

    name: ClassVar[str]
    """``final`` or ``first``."""
    largest_id: ClassVar[int]
    """Session IDs are random from 1 to this."""
    unknown_id: ClassVar[Error]
    """Top-level error for a session that does not exist (any more)."""
    wrong_number: ClassVar[Error]
    """Top-level error for a number that the session does not accept, and for a request that is overtaken."""
    repeats: ClassVar[bool] = False
    """Whether a request may be sent again with its number, and is answered again."""
    min_eviction_ms: int
    """A session may be taken if it is idle longer than this, or older than this and smaller than the newcomer."""

    @abstractmethod
    def is_number(self, number: int) -> bool:
        """Whether an incremental request can carry it at all."""

    @abstractmethod
    def accepts(self, session: "FetchSession", number: int) -> bool:
        """Whether an incremental request with this number is valid now."""

    @abstractmethod
    def advance(self, session: "FetchSession", number: int) -> None:
        """An incremental request with a valid number was accepted."""

    @abstractmethod
    def queue(self) -> DataQueue:
        """An empty one, for a new session."""

    @abstractmethod
    def start(self, session: "FetchSession") -> int:
        """Where the answer to the latest request begins."""

    @abstractmethod
    def place(self, session: "FetchSession", cached: "CachedPartition") -> int:
        """The partition's place in the answer to the latest request. Places order an answer and need not be dense."""

    @abstractmethod
    def named(self, session: "FetchSession", cached: "CachedPartition") -> None:
        """A request names it; it will be looked at."""

    def assessed(  # noqa: B027 - may be left as it is
        self, session: "FetchSession", cached: "CachedPartition", available_bytes: int
    ) -> None:
        """A look found ``available_bytes`` to read; ``cached.available_bytes`` is still that of the previous look."""

    @abstractmethod
    def reports(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData) -> bool:
        """Whether ``data``, which is what there is to say without records, belongs in an incremental answer."""

    @abstractmethod
    def sent(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData, more: bool) -> None:
        """The answer held ``data``. ``more`` says that there are bytes beyond its records."""

    def left_out(self, session: "FetchSession", cached: "CachedPartition") -> None:  # noqa: B027 - may be left as it is
        """The partition was looked at, but the answer did not hold it."""

    @abstractmethod
    def stays_marked(self, session: "FetchSession", cached: "CachedPartition") -> bool:
        """Whether the next answer must look at it although nothing changes and it has no data left to send."""

    def full_answered(self, session: "FetchSession") -> Slices:  # noqa: ARG002
        """A full request's partitions have all been settled."""
        return
        yield


def is_lasting(sent: PartitionData) -> bool:
    """An error, a divergence or a preferred read replica is told for as long as it lasts."""
    return sent.error_code != 0 or sent.diverging_epoch is not None or sent.preferred_read_replica >= 0
