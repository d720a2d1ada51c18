"""The two revisions of incremental fetch sessions (KIP-227), one policy object each.

Both work on the same ``FetchSession`` with its cached partitions, marks and waiting request. ``FinalRevision`` is the
text that was accepted and shipped: IDs and epochs have 32 bits, and a response has what differs from what was last
sent. ``FirstRevision`` is the first text of the KIP's page: IDs and sequence numbers have 64 bits, and dirty numbers
are compared.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Protocol

from reference_broker.ports.node_ports import Slices
from reference_broker.sessions.slices import sort
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import PartitionData

if TYPE_CHECKING:
    from reference_broker.sessions.fetch_session import CachedPartition, FetchSession


class DataQueue(Protocol):
    """The cached partitions that have data to send."""

    def push(self, cached: "CachedPartition") -> None: ...

    def take(self, start: int) -> "CachedPartition | None":
        """Takes the next partition out of the queue, or returns None if it is empty.

        ``start`` is the place at which the response begins.
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
    """Whether a request may be repeated with its number, and is answered again."""
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
        """Returns where the response to the latest request begins."""

    @abstractmethod
    def place(self, session: "FetchSession", cached: "CachedPartition") -> int:
        """Returns the partition's place in the response to the latest request. Places need not be dense."""

    @abstractmethod
    def named(self, session: "FetchSession", cached: "CachedPartition") -> None:
        """Called when a request names it; it will be looked up."""

    def assessed(  # noqa: B027 - may be left as it is
        self, session: "FetchSession", cached: "CachedPartition", available_bytes: int
    ) -> None:
        """Called when a lookup found ``available_bytes`` to read. ``cached.available_bytes`` is that of the lookup
        before."""

    @abstractmethod
    def reports(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData) -> bool:
        """Whether ``data``, the partition's state without records, belongs in an incremental response."""

    @abstractmethod
    def sent(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData, more: bool) -> None:
        """Called when a response with ``data`` was sent. ``more`` means that there are bytes beyond its records."""

    def omitted(self, session: "FetchSession", cached: "CachedPartition") -> None:  # noqa: B027 - may be left as it is
        """Called when the partition was looked up, but omitted from the response."""

    @abstractmethod
    def stays_marked(self, session: "FetchSession", cached: "CachedPartition") -> bool:
        """Whether the next fetch must look it up although nothing changes and it has no more data to send."""

    def full_answered(self, session: "FetchSession") -> Slices:  # noqa: ARG002
        """Called when a full request's partitions have all been settled."""
        return
        yield


def is_lasting(sent: PartitionData) -> bool:
    """Whether it is an error, a divergence or a preferred read replica, which are sent for as long as they last."""
    return sent.error_code != 0 or sent.diverging_epoch is not None or sent.preferred_read_replica >= 0


@dataclass(slots=True)
class ListQueue:
    """A heap by ``order``, lowest first. Stale entries, of partitions that left or moved, are dropped when met."""

    _entries: "list[tuple[int, CachedPartition]]" = field(default_factory=list)

    def push(self, cached: "CachedPartition") -> None:
        heappush(self._entries, (cached.order, cached))
        if len(self._entries) > 2 * len(cached.session.partitions) + 64:  # entries of partitions that left
            self._entries = [entry for entry in self._entries if entry[1].live]
            heapify(self._entries)

    def take(self, start: int) -> "CachedPartition | None":  # noqa: ARG002
        return heappop(self._entries)[1] if self._entries else None


@dataclass(slots=True)
class RingQueue:
    """Ordered by ``order`` from ``start`` on, then from the lowest again. Orders are unique.

    Taking and putting move the later places in memory: about a microsecond for 10,000 partitions with data.
    """

    _orders: list[int] = field(default_factory=list)
    _by_order: "dict[int, CachedPartition]" = field(default_factory=dict)

    def push(self, cached: "CachedPartition") -> None:
        insort(self._orders, cached.order)
        self._by_order[cached.order] = cached

    def take(self, start: int) -> "CachedPartition | None":
        if not self._orders:
            return None
        found = bisect_left(self._orders, start)
        return self._by_order.pop(self._orders.pop(found if found < len(self._orders) else 0))


MIN_EVICTION_MS = 120_000
"""A constant in this revision."""
FULL_EPOCH = 0
"""In a request: a full fetch that opens a new session."""
CLOSE_SESSION_EPOCH = -1
"""In a request: a full fetch that closes its session, if it names one, and opens none. (Kafka's FINAL_EPOCH.)"""
LARGEST_EPOCH = 0x7FFFFFFF


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    return 1 if epoch == LARGEST_EPOCH else epoch + 1


class FinalRevision(Revision):
    """The accepted text. A response has what changed, and errors, divergence or a preferred read replica for as long as
    they last.

    A repeated request is refused. A partition that returned records moves to the end of the list. Marks are read as a
    bit: marked or not.
    """

    name = "final"
    largest_id = 0x7FFFFFFF
    unknown_id = ErrorCode.fetch_session_id_not_found
    wrong_number = ErrorCode.invalid_fetch_session_epoch

    def is_number(self, number: int) -> bool:
        return 1 <= number <= LARGEST_EPOCH

    def accepts(self, session: "FetchSession", number: int) -> bool:
        return number == session.epoch

    def advance(self, session: "FetchSession", number: int) -> None:
        session.epoch = next_epoch(number)
        session.number += 1

    def queue(self) -> DataQueue:
        return ListQueue()

    def start(self, session: "FetchSession") -> int:  # noqa: ARG002
        return 0

    def place(self, session: "FetchSession", cached: "CachedPartition") -> int:  # noqa: ARG002
        return cached.order

    def named(self, session: "FetchSession", cached: "CachedPartition") -> None:
        session.mark(cached)

    def reports(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData) -> bool:  # noqa: ARG002
        return (
            bool(data.records)
            or data.high_watermark != cached.sent_high_watermark
            or data.log_start_offset != cached.sent_log_start_offset
            or is_lasting(data)
        )

    def sent(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData, more: bool) -> None:  # noqa: ARG002
        if data.records:
            session.move_to_end(cached)

    def stays_marked(self, session: "FetchSession", cached: "CachedPartition") -> bool:  # noqa: ARG002
        return False


class FirstRevision(Revision):
    """The first text of the KIP's page.

    Request N+1 proves that response N was processed. A repeated request N gets at least the partitions that its first
    response held. Partitions are ordered by name and index, and response N begins at N modulo their count. Errors are
    reported as in the final revision, since the page does not say.

    ``CachedPartition.change_number`` is the partition's last dirty sequence number. Response N holds the partitions
    whose number is N or more. A partition that is queued with data counts as dirty for whichever number is answered
    next. Its number is written only when the partition is looked at, so that a response whose limit excludes 10,000
    partitions does not touch them.
    """

    name = "first"
    repeats = True
    largest_id = 0x7FFFFFFFFFFFFFFF
    unknown_id = DraftError.INVALID_FETCH_SESSION
    wrong_number = DraftError.INVALID_FETCH_SESSION

    def is_number(self, number: int) -> bool:
        return number >= 1

    def accepts(self, session: "FetchSession", number: int) -> bool:
        return number in (session.number, session.number + 1)

    def advance(self, session: "FetchSession", number: int) -> None:
        if number == session.number:
            for cached in session.last_sent:
                session.recheck(cached)
            return
        if session.answered_number < session.number:
            # The previous request never got its response, so its changes are sent now.
            for cached in session.changed:
                cached.change_number = number
        for cached in session.last_sent:
            if cached.available_bytes and cached.change_number <= session.number:
                # The previous request was repeated, and got no second response. The fetcher has processed the first.
                session.changed.pop(cached, None)
                self._rest(session, cached, cached.change_number)
        session.number, session.epoch = number, number + 1
        session.last_sent = {}

    def queue(self) -> DataQueue:
        return RingQueue()

    def start(self, session: "FetchSession") -> int:
        return 0 if session.answers_full or not session.partitions else session.number % len(session.partitions)

    def place(self, session: "FetchSession", cached: "CachedPartition") -> int:
        """A full response keeps the request's order. Any other begins at ``start`` and wraps around."""
        if session.answers_full:
            return cached.order
        return (cached.order - self.start(session)) % len(session.partitions)

    def named(self, session: "FetchSession", cached: "CachedPartition") -> None:
        """Being named is no change. An offset with data behind it is one (``assessed``)."""
        session.recheck(cached)

    def assessed(self, session: "FetchSession", cached: "CachedPartition", available_bytes: int) -> None:
        """A partition with data that no response had room for is dirty for the number after the last response's.

        That last response may have been the first one to the present number.
        """
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.upcoming_number())
        elif available_bytes and cached.named:
            cached.change_number = max(cached.change_number, session.number)

    def reports(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData) -> bool:
        """A partition with data gets here only if the response had no room for it, so it waits for the next response.

        The exception is a repeated response that had the partition before.
        """
        if session.answers_full or is_lasting(data) or cached in session.last_sent:
            return True
        return cached.change_number >= session.number and not cached.available_bytes

    def sent(self, session: "FetchSession", cached: "CachedPartition", data: PartitionData, more: bool) -> None:  # noqa: ARG002
        session.last_sent[cached] = None
        if more:
            cached.change_number = max(cached.change_number, session.number + 1)
            return
        # A full response is settled, also if its number is repeated.
        dirty = 0 if session.answers_full else max(cached.change_number, session.number)
        self._rest(session, cached, dirty)

    def _rest(self, session: "FetchSession", cached: "CachedPartition", dirty: int) -> None:
        """The partition is not sent again before something changes."""
        session.assess(cached, 0)
        cached.change_number = dirty

    def omitted(self, session: "FetchSession", cached: "CachedPartition") -> None:
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.number + 1)

    def stays_marked(self, session: "FetchSession", cached: "CachedPartition") -> bool:
        return cached.change_number > session.number and not cached.available_bytes

    def full_answered(self, session: "FetchSession") -> Slices:
        """From now on partitions are ordered by name and index. A repeated response is built from their numbers."""
        session.last_sent = {}
        cached = list(session.partitions.values())
        yield from sort(cached, lambda one: (one.topic, one.index))
        yield from session.rank(cached)
