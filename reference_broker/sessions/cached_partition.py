"""One partition that a fetch session caches (KIP-227): its entry in the latest request that named it, the state last
sent, and the partition of this node that it is read from.

A cached partition is in one of two states. A marked one must be looked up before the session's next response. Any other
watches its ``Partition``, or waits in ``Arrivals`` for one, and is marked at the next change.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from reference_broker.replication.leader.replicas import Contact
from reference_broker.replication.partitions import Partition, Partitions, Watcher
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, PartitionData

PartitionKey: TypeAlias = tuple[str | bytes, int]
"""(topic ID, index) in a session by topic ID (Fetch 13 and newer), else (topic name, index)."""


class CachingSession(Contact, Protocol):
    """The part of a ``FetchSession`` that its partitions use."""

    uses_topic_ids: bool
    accepted_requests: int
    partitions: "dict[PartitionKey, CachedPartition]"
    closed_partitions: "dict[PartitionKey, CachedPartition] | None"
    arrivals: "Arrivals"

    def partition_changed(self, cached: "CachedPartition") -> None: ...


UNSENT = -1
"""No state of the partition was sent since it came into the session, or since its last error."""


@dataclass(slots=True, eq=False)
class CachedPartition:
    """One partition of a session: its entry in the latest request that named it, and the state last sent."""

    session: CachingSession
    topic: str
    topic_id: bytes
    index: int
    order: int
    """Its place in the session's list."""
    max_bytes: int = 0
    fetch_offset: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = UNSENT
    sent_log_start_offset: int = UNSENT
    sent_error: int = 0
    sent_direction: tuple[int, ...] | None = None
    """Where it was last directed (``direction``)."""
    dirty_sequence_number: int = 0
    """The last response that must have its changes. Used in the first revision only."""
    named_by_request: int = -1
    """The session's ``accepted_requests`` when a request last named it, -1 before the first one did."""
    available_bytes: int = 0
    """The bytes that were readable from ``fetch_offset`` at the last lookup, at most ``max_bytes``. Above 0 exactly
    while the partition has data to send, and then it is ``queued``."""
    unlimited_bytes: int = 0
    """The bytes that were readable at the last lookup, whatever the limits. Used in the first revision only."""
    too_small_bytes: int = 0
    """A limit that was too small for the next batch at the last read, or 0."""
    queued: bool = False
    cached_in: "dict[PartitionKey, CachedPartition] | None" = field(init=False)
    """The dictionary of the session to which it was added, None once it was forgotten. A session that is closed or
    replaced gets another dictionary, so all partitions that it cached leave it at once. A closed session's partitions
    keep the one that they had."""
    partition: Partition | None = None
    is_of_partition: bool = True
    """Whether ``fetch_offset`` was requested for ``partition``, or with a leader epoch that can prove it.

    False if it may stem from another leadership or from an earlier topic of that name.
    """

    def __post_init__(self) -> None:
        self.cached_in = self.session.partitions

    @property
    def live(self) -> bool:
        """Whether its session still caches it."""
        return self.cached_in is self.session.partitions

    @property
    def is_fetched_unnamed(self) -> bool:
        """Whether the last request that its session accepted fetched it, named or not. Closing the session takes
        nothing from that."""
        return self.live or (self.cached_in is not None and self.cached_in is self.session.closed_partitions)

    @property
    def is_requested(self) -> bool:
        """Whether the session's latest request named it."""
        return self.named_by_request == self.session.accepted_requests

    def remember(self, wanted: FetchPartition, topic_id: bytes) -> None:
        """Overwrite its entry with that of a request."""
        # Decision cached-topic-replaced (F-13): another topic of that name | the same topic
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
        """Note the partition's part of a response. After an error the next state is always sent (F-14), also where the
        error came with offsets, as OFFSET_MOVED_TO_TIERED_STORAGE does."""
        self.sent_high_watermark = UNSENT if sent.error_code else sent.high_watermark
        self.sent_log_start_offset = UNSENT if sent.error_code else sent.log_start_offset
        self.sent_error = sent.error_code
        is_elsewhere = sent.diverging_epoch is not None or sent.preferred_read_replica >= 0
        self.sent_direction = direction(sent) if is_elsewhere else None

    def remember_readable(self, unlimited_bytes: int) -> None:
        """Note how many bytes a lookup found, whatever the limits."""
        self.unlimited_bytes = unlimited_bytes

    def remember_too_small(self, limit: int) -> None:
        """Note a limit into which the next batch did not fit."""
        self.too_small_bytes = limit

    def remember_named(self) -> None:
        """Note that the request in hand named it."""
        self.named_by_request = self.session.accepted_requests

    def remember_available(self, available_bytes: int) -> None:
        """Note how many bytes a lookup found within ``max_bytes``. The next batch may be another one, which fits."""
        self.available_bytes = available_bytes
        self.too_small_bytes = 0

    def remember_dirty(self, number: int) -> None:
        """Note that the responses up to this number must have its changes, as well as those up to an earlier note."""
        self.dirty_sequence_number = max(self.dirty_sequence_number, number)

    def set_dirty(self, number: int) -> None:
        """Set the last response that must have its changes, 0 for none."""
        self.dirty_sequence_number = number

    def enter_queue(self) -> None:
        self.queued = True

    def leave_queue(self) -> None:
        self.queued = False

    def move_to(self, order: int) -> None:
        """Change its place in the session's list."""
        self.order = order

    def remember_name(self, topic: str) -> None:
        """Note the name of a topic that the request named by its ID."""
        self.topic = topic

    def may_be(self, topic_id: bytes) -> bool:
        """Whether its request named this topic ID, or none."""
        return self.topic_id in (NO_TOPIC_ID, topic_id)

    def _unbind(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = None

    def bind(self, partitions: Partitions) -> Partition | None:
        """Return the led partition that this one names now, or the followed one of ``read_from`` for as long as it is
        followed. A deleted and recreated one is found only by its name."""
        partition = self.partition
        if partition is None or partition.is_removed:
            if self.session.uses_topic_ids:
                partition = partitions.by_id.get((self.topic_id, self.index))
                self.topic = partitions.topic_names.get(self.topic_id, self.topic)
            else:
                partition = partitions.by_name.get((self.topic, self.index))
                # Decision cached-name-recreated (F-13): of another topic | as requested
                if partition is not None and not self.may_be(partition.topic_id):
                    partition = None
            self.partition = partition
            # Decision rebound-offset-proven (F-22): of this leadership | perhaps an older one's
            self.is_of_partition = self.is_requested or self.current_leader_epoch >= 0
        return partition

    def read_from(self, followed: Partition) -> None:
        """Bind it to a partition that this node follows."""
        self._unbind()
        self.partition = followed

    def read_from_leader(self) -> None:
        """Unbind it from a partition that this node follows, since the fetcher may not read from followers any
        more."""
        if self.partition is not None and self.partition.followed_leader is not None:
            self._unbind()

    def watch(self, partitions: Partitions) -> None:
        """Mark itself at the partition's next change or, if it is not led here, at its arrival."""
        if self.partition is not None:
            self.partition.watch(self)
        else:
            self.session.arrivals.expect(partitions, self)

    def leave(self) -> None:
        """Stop watching for changes."""
        if self.cached_in is not self.session.closed_partitions:
            self.cached_in = None
        if self.partition is not None:
            self.partition.unwatch(self)
        self.session.arrivals.forget(self)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002
        if self.cached_in is self.session.partitions:
            self.session.partition_changed(self)


def is_lasting(sent: PartitionData) -> bool:
    """Return whether a partition's state is an error, a divergence or a preferred read replica. These are sent for as
    long as they last."""
    return sent.error_code != 0 or sent.diverging_epoch is not None or sent.preferred_read_replica >= 0


def direction(data: PartitionData) -> tuple[int, ...] | None:
    """Return where the fetcher must go on instead: the diverging epoch as (epoch, end offset), the preferred read
    replica as (ID,), or None."""
    diverging = data.diverging_epoch
    if diverging is not None:
        return diverging.epoch, diverging.end_offset
    return None if data.preferred_read_replica < 0 else (data.preferred_read_replica,)


class Expecting(Watcher, Protocol):
    """Called when a partition with its topic name or ID and with its index is added."""

    topic: str
    topic_id: bytes
    index: int


@dataclass(slots=True, eq=False)
class Arrivals:
    """Cached partitions that this node neither leads nor follows, by the name and the ID under which they may arrive.

    This is one watcher for all of them, so that an arrival costs only the partitions that wait for it.
    """

    expected: dict[tuple[str | bytes, int], dict[Expecting, None]] = field(default_factory=dict)
    keys: dict[Expecting, tuple[tuple[str | bytes, int], ...]] = field(default_factory=dict)
    partitions: Partitions | None = None

    def expect(self, partitions: Partitions, cached: Expecting) -> None:
        """Call ``cached`` once, when its partition is added. Expecting it twice is no error."""
        if cached not in self.keys:
            self.keys[cached] = ((cached.topic_id, cached.index), (cached.topic, cached.index))
            for key in self.keys[cached]:
                self.expected.setdefault(key, {})[cached] = None
        self.partitions = partitions
        partitions.arrivals[self] = None

    def forget(self, cached: Expecting) -> None:
        for key in self.keys.pop(cached, ()):
            waiting = self.expected[key]
            del waiting[cached]
            if not waiting:
                del self.expected[key]

    def partition_changed(self, partition: Partition) -> None:
        arrived: dict[Expecting, None] = {}
        for name in (partition.topic_id, partition.topic):
            arrived.update(self.expected.get((name, partition.index), {}))
        for cached in arrived:
            self.forget(cached)
        if self.keys and self.partitions is not None:
            self.partitions.arrivals[self] = None
        for cached in arrived:
            cached.partition_changed(partition)
