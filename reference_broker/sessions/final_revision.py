"""Fetch sessions as accepted and shipped: 32-bit IDs and epochs; news is what differs from what was last sent."""

from reference_broker.sessions.cached_partition import CachedPartition
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.sessions.queues import ListQueue
from reference_broker.sessions.revision import DataQueue, Revision, is_lasting
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import PartitionData

MIN_EVICTION_MS = 120_000
"""A constant in this revision."""
FULL_EPOCH = 0
"""In a request, it means a full fetch that asks for a new session."""
FINAL_EPOCH = -1
"""In a request, it means a full fetch without a session."""
LARGEST_EPOCH = 0x7FFFFFFF


def next_epoch(epoch: int) -> int:
    """Epochs of a session are 1 .. 2^31-1, and then 1 again."""
    return 1 if epoch == LARGEST_EPOCH else epoch + 1


class FinalRevision(Revision):
    """An answer holds news, and errors, divergence or a preferred read replica for as long as they last.

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

    def queue(self) -> DataQueue:
        return ListQueue()

    def start(self, session: FetchSession) -> int:  # noqa: ARG002
        return 0

    def place(self, session: FetchSession, cached: CachedPartition) -> int:  # noqa: ARG002
        return cached.order

    def named(self, session: FetchSession, cached: CachedPartition) -> None:
        session.mark(cached)

    def reports(self, session: FetchSession, cached: CachedPartition, data: PartitionData) -> bool:  # noqa: ARG002
        return (
            bool(data.records)
            or data.high_watermark != cached.sent_high_watermark
            or data.log_start_offset != cached.sent_log_start_offset
            or is_lasting(data)
        )

    def sent(self, session: FetchSession, cached: CachedPartition, data: PartitionData, more: bool) -> None:  # noqa: ARG002
        if data.records:
            session.move_to_end(cached)

    def stays_marked(self, session: FetchSession, cached: CachedPartition) -> bool:  # noqa: ARG002
        return False
