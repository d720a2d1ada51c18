"""What differs between the revisions of incremental fetch sessions: one small policy object each (KIP-227).

Both work on the same ``FetchSession``: its cached partitions, marks and waiting. ``fetch_final_revision`` is what was
accepted and shipped, ``fetch_first_revision`` the page's first text.
"""

from typing import TYPE_CHECKING, Protocol

from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import PartitionData

if TYPE_CHECKING:
    from reference_broker.sessions.cached_partition import CachedPartition
    from reference_broker.sessions.fetch_session import FetchSession


class DataQueue(Protocol):
    """The cached partitions that have data to send."""

    def push(self, cached: "CachedPartition") -> None: ...

    def take(self, start: int) -> "CachedPartition | None":
        """The next that is due, out of the queue; None: empty. ``start``: the place from which an answer begins."""
        ...


class Revision(Protocol):
    """Numbers are the epochs (final) or sequence numbers (first) that incremental requests carry."""

    @property
    def name(self) -> str:
        """``final`` or ``first``."""
        ...

    @property
    def largest_id(self) -> int:
        """Session IDs are random from 1 to this."""
        ...

    @property
    def min_eviction_ms(self) -> int:
        """A session may be taken when idle longer than this, or older than this and smaller than the newcomer."""
        ...

    @property
    def unknown_id(self) -> Error:
        """Top-level error for a session that is not there (any more)."""
        ...

    @property
    def wrong_number(self) -> Error:
        """Top-level error for a number that the session does not accept, and for a request that is overtaken."""
        ...

    def is_number(self, number: int) -> bool:
        """Whether an incremental request can carry it at all."""
        ...

    def accepts(self, session: "FetchSession", number: int) -> bool:
        """Whether an incremental request with this number is valid now."""
        ...

    def advance(self, session: "FetchSession", number: int) -> None:
        """An incremental request with a valid number was accepted."""
        ...

    def queue(self) -> DataQueue:
        """An empty one, for a new session."""
        ...

    def start(self, session: "FetchSession") -> int:
        """Where the answer to the latest request begins."""
        ...

    def place(self, session: "FetchSession", cached: "CachedPartition") -> int:
        """Its place in the answer to the latest request; places order an answer, and need not be dense."""
        ...

    def named(self, session: "FetchSession", cached: "CachedPartition") -> None:
        """A request names it; it will be looked at."""
        ...

    def assessed(self, session: "FetchSession", cached: "CachedPartition", available_bytes: int) -> None:
        """A look found this much to read of it; ``cached.available_bytes`` is still what the look before found."""
        ...

    def reports(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData) -> bool:
        """Whether ``data``, what there is to say without records, belongs into an incremental answer."""
        ...

    def sent(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData, more: bool) -> None:
        """The answer held ``data``; ``more``: there are bytes beyond its records."""
        ...

    def left_out(self, session: "FetchSession", cached: "CachedPartition") -> None:
        """It was looked at, and the answer did not hold it."""
        ...

    def stays_marked(self, session: "FetchSession", cached: "CachedPartition") -> bool:
        """Whether the next answer must look at it though nothing changes, and it has no data left to send."""
        ...

    def full_answered(self, session: "FetchSession") -> None:
        """A full request's partitions have all been settled."""
        ...


def is_lasting(sent: PartitionData) -> bool:
    """An error or divergence is told for as long as it lasts."""
    return sent.error_code != 0 or sent.diverging_epoch is not None
