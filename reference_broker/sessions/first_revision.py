"""Fetch sessions of the first text of the KIP's page: 64-bit IDs, sequence numbers, dirty numbers for comparison.

``CachedPartition.change_number`` is the partition's last dirty sequence number. Answer N holds the partitions whose
number is N or more. A partition that waits in the queue with data counts as dirty for whatever number is answered next.
Its number is written only when it is looked at, so that an answer whose limit leaves 10,000 partitions out does not
touch them.
"""

from reference_broker.ports.timing import Slices
from reference_broker.sessions.cached_partition import CachedPartition
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.sessions.queues import RingQueue
from reference_broker.sessions.revision import DataQueue, Revision, is_lasting
from reference_broker.sessions.slices import sort
from reference_broker.wire.errors import DraftError
from reference_broker.wire.fetch import PartitionData


class FirstRevision(Revision):
    """Request N+1 proves that answer N was processed. A repeated request N gets at least the partitions that its first
    answer held.

    Partitions are ordered by name and index, and answer N begins at N modulo their count. Errors are told as in the
    final revision, since the page does not say.
    """

    name = "first"
    repeats = True
    largest_id = 0x7FFFFFFFFFFFFFFF
    unknown_id = DraftError.INVALID_FETCH_SESSION
    wrong_number = DraftError.INVALID_FETCH_SESSION

    def is_number(self, number: int) -> bool:
        return number >= 1

    def accepts(self, session: FetchSession, number: int) -> bool:
        return number in (session.number, session.number + 1)

    def advance(self, session: FetchSession, number: int) -> None:
        if number == session.number:
            for cached in session.last_told:
                session.look_at(cached)
            return
        if session.answered_number < session.number:
            # The previous request never got its answer, so what that would have told is told now.
            for cached in session.changed:
                cached.change_number = number
        for cached in session.last_told:
            if cached.available_bytes and cached.change_number <= session.number:
                # The previous request was repeated, and got no second answer. The fetcher has processed the first one.
                session.changed.pop(cached, None)
                self._rest(session, cached, cached.change_number)
        session.number, session.epoch = number, number + 1
        session.last_told = {}

    def queue(self) -> DataQueue:
        return RingQueue()

    def start(self, session: FetchSession) -> int:
        return 0 if session.answers_full or not session.partitions else session.number % len(session.partitions)

    def place(self, session: FetchSession, cached: CachedPartition) -> int:
        """A full answer keeps the request's order. Any other begins at ``start`` and wraps around."""
        if session.answers_full:
            return cached.order
        return (cached.order - self.start(session)) % len(session.partitions)

    def named(self, session: FetchSession, cached: CachedPartition) -> None:
        """Being named is no change. An offset with data behind it is one (``assessed``)."""
        session.look_at(cached)

    def assessed(self, session: FetchSession, cached: CachedPartition, available_bytes: int) -> None:
        """A partition with data that no answer had room for is dirty for the number after the last answer's.

        That last answer may have been the first one to the present number.
        """
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.upcoming_number())
        elif available_bytes and cached.named:
            cached.change_number = max(cached.change_number, session.number)

    def reports(self, session: FetchSession, cached: CachedPartition, data: PartitionData) -> bool:
        """A partition with data comes here only if the answer had no room for it, so it is left for the next answer.

        The exception is an answer that is repeated and that held the partition before.
        """
        if session.answers_full or is_lasting(data) or cached in session.last_told:
            return True
        return cached.change_number >= session.number and not cached.available_bytes

    def sent(self, session: FetchSession, cached: CachedPartition, data: PartitionData, more: bool) -> None:  # noqa: ARG002
        session.last_told[cached] = None
        if more:
            cached.change_number = max(cached.change_number, session.number + 1)
            return
        # What a full answer told is settled, also if its number is repeated.
        dirty = 0 if session.answers_full else max(cached.change_number, session.number)
        self._rest(session, cached, dirty)

    def _rest(self, session: FetchSession, cached: CachedPartition, dirty: int) -> None:
        """The partition is not sent again before something changes."""
        session.assess(cached, 0)
        cached.change_number = dirty

    def left_out(self, session: FetchSession, cached: CachedPartition) -> None:
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.number + 1)

    def stays_marked(self, session: FetchSession, cached: CachedPartition) -> bool:
        return cached.change_number > session.number and not cached.available_bytes

    def full_answered(self, session: FetchSession) -> Slices:
        """From now on partitions are ordered by name and index. A repeated answer is built from their numbers."""
        session.last_told = {}
        cached = list(session.partitions.values())
        yield from sort(cached, lambda one: (one.topic, one.index))
        yield from session.rank(cached)
