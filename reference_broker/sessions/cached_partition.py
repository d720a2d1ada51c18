"""One partition that a fetch session caches: what its fetcher asked for, and what it was told."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, PartitionData

if TYPE_CHECKING:
    from reference_broker.sessions.fetch_session import FetchSession

PartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic ID, index) in a session by topic ID (Fetch 13 and newer), else (topic name, index)."""

UNSENT = -1
"""No state of the partition was sent since it came into the session, or since its last error."""


@dataclass(slots=True, eq=False)
class CachedPartition:
    """One partition of a session. The request's fields are those of the latest request that named it.

    - ``sent_*`` are the values last sent. Before the first answer they are -1, 0 for the error and None for the
      direction (``direction``).
    - ``order`` is the place in the session's list.
    - ``available_bytes`` were readable from ``fetch_offset`` at the last look, at most ``max_bytes``. It is above 0
      exactly while the partition has data to send, and then the partition is ``queued``. ``there_bytes`` is the same
      without the limit.
    - ``too_small_bytes`` was too small for the next batch at the last read. It is 0 if nothing is known.
    - ``home`` are the partitions of the session that it came to, None once it was forgotten. A session that is over, or
      begins anew, gets other ones, so all that it cached leave it at once.
    """

    session: "FetchSession"
    topic: str
    topic_id: bytes
    index: int
    order: int
    max_bytes: int = 0
    fetch_offset: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = UNSENT
    sent_log_start_offset: int = UNSENT
    sent_error: int = 0
    sent_direction: tuple[int, ...] | None = None
    change_number: int = 0
    named_number: int = -1
    available_bytes: int = 0
    there_bytes: int = 0
    too_small_bytes: int = 0
    queued: bool = False
    home: "dict[PartitionKey, CachedPartition] | None" = field(init=False)
    partition: Partition | None = None
    is_of_partition: bool = True
    """Whether ``fetch_offset`` was told for ``partition``, or with a leader epoch that can prove it.

    False if it may stem from another leadership or from an earlier topic of that name.
    """

    def __post_init__(self) -> None:
        self.home = self.session.partitions

    @property
    def live(self) -> bool:
        """False once it left its session."""
        return self.home is self.session.partitions

    @property
    def named(self) -> bool:
        """Whether the session's latest request named it."""
        return self.named_number == self.session.number

    def remember(self, wanted: FetchPartition, topic_id: bytes) -> None:
        """Overwrites everything that a request says about a partition."""
        if topic_id != self.topic_id:
            self._unbind()  # In a session by name this is another topic of that name.
            self.topic_id = topic_id
        self.max_bytes = max(wanted.partition_max_bytes, 0)
        self.fetch_offset = wanted.fetch_offset
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset
        self.is_of_partition = True

    def remember_sent(self, sent: PartitionData) -> None:
        """Notes what an answer said about the partition. After an error the next state is always sent (F-14), also
        where the error came with offsets, as OFFSET_MOVED_TO_TIERED_STORAGE does."""
        self.sent_high_watermark = UNSENT if sent.error_code else sent.high_watermark
        self.sent_log_start_offset = UNSENT if sent.error_code else sent.log_start_offset
        self.sent_error = sent.error_code
        is_elsewhere = sent.diverging_epoch is not None or sent.preferred_read_replica >= 0
        self.sent_direction = direction(sent) if is_elsewhere else None

    def may_be(self, topic_id: bytes) -> bool:
        """Whether its request named this topic ID, or none."""
        return self.topic_id in (NO_TOPIC_ID, topic_id)

    def _unbind(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = None

    def bind(self, partitions: Partitions) -> Partition | None:
        """Finds the led partition that this one names now, or the followed one that ``read_from`` named, for as long as
        it is followed. A deleted and recreated one is found only by its name."""
        partition = self.partition
        if partition is None or partition.deleted:
            if self.session.uses_topic_ids:
                partition = partitions.by_id.get((self.topic_id, self.index))
                self.topic = partitions.topic_names.get(self.topic_id, self.topic)
            else:
                partition = partitions.by_name.get((self.topic, self.index))
                if partition is not None and not self.may_be(partition.topic_id):
                    partition = None
            self.partition = partition
            self.is_of_partition = self.named or self.current_leader_epoch >= 0
        return partition

    def read_from(self, followed: Partition) -> None:
        """The fetcher reads from a partition that this node follows."""
        self._unbind()
        self.partition = followed

    def read_from_leader(self) -> None:
        """The fetcher may not read from followers any more."""
        if self.partition is not None and self.partition.leader_elsewhere is not None:
            self._unbind()

    def watch(self, partitions: Partitions) -> None:
        """Marks itself at the partition's next change or, if it is not led here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        """Nothing tells it of changes any more."""
        self.home = None
        if self.partition is not None:
            self.partition.unwatch(self)
        self.session.arrivals.forget(self)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        session = self.session
        if self.home is not session.partitions:
            return
        session.mark(self)
        if session.waiter is not None:
            session.waiter.partition_marked(self)


def direction(data: PartitionData) -> tuple[int, ...] | None:
    """Where the fetcher must go on instead, if it must: the diverging epoch as (epoch, end offset), or the preferred
    read replica as (ID,)."""
    diverging = data.diverging_epoch
    if diverging is not None:
        return diverging.epoch, diverging.end_offset
    return None if data.preferred_read_replica < 0 else (data.preferred_read_replica,)
