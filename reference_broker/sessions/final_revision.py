"""The final revision of fetch sessions (KIP-227), which was accepted and shipped: IDs and epochs have 32 bits, and a
response has what differs from what was last sent."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from reference_broker.ports.node_ports import Now
from reference_broker.sessions.cached_partition import CachedPartition, is_lasting
from reference_broker.sessions.fetch_session import AdmitsSessions, DataQueue, FetchSession, Revision
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import PartitionData

MIN_EVICTION_MS = 120_000
"""A constant in this revision."""
FULL_EPOCH = 0
"""In a request: a full fetch that opens a new session."""
CLOSE_SESSION_EPOCH = -1
"""In a request: a full fetch that closes its session, if it names one, and opens none. (Kafka's FINAL_EPOCH.)"""
LARGEST_EPOCH = 0x7FFFFFFF


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    # Decision session-epoch-wraps (F-3): back to 1 | one more
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

    def accepts(self, session: FetchSession, number: int) -> bool:
        return number == session.epoch

    def advance(self, session: FetchSession, number: int) -> None:
        session.epoch = next_epoch(number)
        session.number += 1

    def keep(self, sessions: AdmitsSessions, session: FetchSession, wants_session: bool, now: Now) -> bool:
        return bool(session.session_id) or (wants_session and sessions.admit(session, now))

    def queue(self) -> DataQueue:
        return ListQueue()

    def start(self, session: FetchSession) -> int:  # noqa: ARG002
        return 0

    def place(self, session: FetchSession, cached: CachedPartition) -> int:  # noqa: ARG002
        return cached.order

    def named(self, session: FetchSession, cached: CachedPartition) -> None:
        session.mark(cached)

    def reports(self, session: FetchSession, cached: CachedPartition, data: PartitionData) -> bool:  # noqa: ARG002
        # Decision partition-differs (F-14): sent | omitted
        return (
            bool(data.records)
            or data.high_watermark != cached.sent_high_watermark
            or data.log_start_offset != cached.sent_log_start_offset
            or is_lasting(data)
        )

    def sent(self, session: FetchSession, cached: CachedPartition, data: PartitionData, more: bool) -> None:  # noqa: ARG002
        # Decision sent-partition-place (F-15): moves to the end | keeps its place
        if data.records:
            session.move_to_end(cached)

    def stays_marked(self, session: FetchSession, cached: CachedPartition) -> bool:  # noqa: ARG002
        return False


@dataclass(slots=True)
class ListQueue:
    """A heap by ``order``, lowest first. Stale entries, of partitions that left or moved, are dropped when met."""

    _entries: list[tuple[int, CachedPartition]] = field(default_factory=list)

    def push(self, cached: CachedPartition) -> None:
        heappush(self._entries, (cached.order, cached))
        if len(self._entries) > 2 * len(cached.session.partitions) + 64:  # entries of partitions that left
            self._entries = [entry for entry in self._entries if entry[1].live]
            heapify(self._entries)

    def take(self, start: int) -> CachedPartition | None:  # noqa: ARG002
        return heappop(self._entries)[1] if self._entries else None
