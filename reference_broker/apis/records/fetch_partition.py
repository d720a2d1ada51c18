"""One partition of a fetch: the checks, its records from the log or the remote tier, and the preferred read replica.

``look_up`` checks a partition and finds how much can be read. It costs the same whatever the partition contains, and
reads no records. The checks, their order and their errors are those of Kafka's ReplicaManager and Partition.readRecords
(KIP-320 for epochs, KIP-516 for topic IDs). ``read`` adds the records.

``RemoteReads`` are the records of one fetch that lie before the local log start (KIP-405). A fetch that meets such an
offset waits for the tier, up to ``remote.fetch.max.wait.ms``, whatever else is available (Kafka's DelayedRemoteFetch).
The result is kept until the response, which may include it or not. A read that has not finished by then is repeated by
the next fetch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from reference_broker.apis.broker import Broker
from reference_broker.apis.records.partition_errors import leader_epoch_error, led_elsewhere
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.reading import FetchIsolation
from reference_broker.log.unified_log import MovedToRemote, OffsetOutOfRange, UnifiedLog
from reference_broker.metadata.image import TopicImage
from reference_broker.ports.disk import DiskError
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.reading.reader import Abandon, RemoteReader, RemoteRecords
from reference_broker.replication.leader.replicas import Followers, Replica, error_without_replica
from reference_broker.replication.partitions import Partition
from reference_broker.sessions.fetch_session import CachedPartition
from reference_broker.wire.apis import FIRST_DRAFT_VERSION
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    LeaderIdAndEpoch,
    PartitionData,
)

FOLLOWERS_FROM = 11
"""The version of Fetch from which consumers may read from followers (KIP-392). Older ones cannot be sent there."""

NO_REPLICA = -1

Offsets: TypeAlias = tuple[int, int, int]
"""High watermark, last stable offset, log start offset."""


class FetchParams(NamedTuple):
    """How a request reads (Kafka's FetchParams)."""

    replica_id: int
    """The node ID of a follower, negative for a consumer."""
    is_follower: bool
    isolation: FetchIsolation
    rack: str | None
    """The rack of a consumer that may read from followers (``rack_of``), None for any other fetcher."""
    min_bytes: int
    max_bytes: int
    """The limits of the response, at most those of this node."""


def params_of(config: BrokerConfig, api_version: int, request: FetchRequest) -> FetchParams:
    """Return how a request reads, within the limits of this node."""
    is_follower = request.replica_id >= 0
    limit = config.fetch_max_bytes
    if is_follower:
        limit = max(limit, config.replica_fetch_response_max_bytes)
    max_bytes = min(max(request.max_bytes, 0), limit)
    return FetchParams(
        request.replica_id,
        is_follower,
        FetchIsolation.of(is_follower, request.isolation_level),
        rack_of(config, api_version, request),
        min(request.min_bytes, max_bytes),
        max_bytes,
    )


def rack_of(config: BrokerConfig, api_version: int, request: FetchRequest) -> str | None:
    """Return the rack of a consumer that may read from followers, and None for any other fetcher.

    The rack is empty if the consumer is never sent to a follower: it names no rack, or this node has no selector.
    """
    if request.replica_id >= 0 or not FOLLOWERS_FROM <= api_version < FIRST_DRAFT_VERSION:
        return None
    return request.rack_id if config.replica_selector_class else ""


class Lookup(NamedTuple):
    """The result of the checks of one partition."""

    result_without_read: PartitionData | None
    """The partition's part of a response, if no records are to be read: it fails, its log diverges from the fetcher's,
    or a preferred read replica has it. Else None."""
    offsets: Offsets = (-1, -1, -1)
    available_bytes: int = 0
    """0 if there is nothing to read, else between 1 and the limit of the partition."""
    end_offset: int = 0
    """How far the fetcher may read."""
    unlimited_bytes: int = 0
    """The bytes to read, without the limit of the partition."""
    remote: RemoteRecords | None = None
    """The result from the remote tier, NOT_READ_YET if the records are there and no read has begun."""


NOT_READ_YET = RemoteRecords(b"", None)


def look_up(broker: Broker, cached: CachedPartition, params: FetchParams) -> Lookup:
    """Check one partition of a fetch."""
    isolation, rack = params.isolation, params.rack
    partition = cached.bind(broker.partitions)
    if partition is None:
        followed = _followed_or_error(broker, cached, rack is not None)
        if isinstance(followed, Lookup):
            return followed
        partition = followed
    error = leader_epoch_error(partition.leader_epoch, _known_epoch(cached))
    if error:  # Decision fetch-leader-epoch
        leader_id = broker.node_id if partition.followed_leader is None else partition.followed_leader
        leader = LeaderIdAndEpoch(leader_id, partition.leader_epoch)
        return failed_lookup(cached.index, error, leader if error == ErrorCode.fenced_leader_epoch else None)
    if isolation is FetchIsolation.LOG_END and not partition.is_followed_by(params.replica_id):
        error = error_without_replica(cached)
        leader = LeaderIdAndEpoch(broker.node_id, partition.leader_epoch)
        return failed_lookup(cached.index, error, leader if error == ErrorCode.not_leader_or_follower else None)
    log = partition.log
    if rack and partition.followers is not None:
        preferred = preferred_replica(broker, partition, partition.followers, cached.fetch_offset, rack)
        if preferred != NO_REPLICA:  # Decision read-replica-preferred
            return Lookup(PartitionData(cached.index, 0, *offsets_of(log), preferred_read_replica=preferred))
    if cached.fetch_offset < log.log_start_offset:  # Decision fetch-below-log-start
        return failed_lookup(cached.index, ErrorCode.offset_out_of_range)
    if cached.last_fetched_epoch >= 0:
        end = log.end_offset_for_epoch(cached.last_fetched_epoch)
        if end.epoch < 0 or end.end_offset < 0:  # Decision fetched-epoch-unknown
            return failed_lookup(cached.index, ErrorCode.offset_out_of_range)
        if end.epoch < cached.last_fetched_epoch or end.end_offset < cached.fetch_offset:  # Decision fetch-diverges
            diverging = EpochEndOffset(end.epoch, end.end_offset)
            return Lookup(PartitionData(cached.index, 0, *offsets_of(log), diverging_epoch=diverging))
    if cached.fetch_offset > log.log_end_offset:  # Decision fetch-beyond-log-end
        return failed_lookup(cached.index, _error_beyond_the_end(partition, cached))
    if cached.fetch_offset < log.local_log_start_offset:  # Decision fetch-in-tier
        return _in_remote_tier(log, cached, isolation)
    try:
        return _readable(log, cached, isolation)
    except (DiskError, InvalidRecords) as failure:
        return failed_lookup(cached.index, read_error(failure))


def _in_remote_tier(log: UnifiedLog, cached: CachedPartition, isolation: FetchIsolation) -> Lookup:
    """Return the lookup for an offset below the local log start. A follower must begin at the local log start, since
    followers never read the remote tier."""
    offsets = offsets_of(log)
    if isolation is FetchIsolation.LOG_END:  # Decision tiered-offset-reader
        return Lookup(PartitionData(cached.index, int(ErrorCode.offset_moved_to_tiered_storage), *offsets))
    end_offset = readable_end(log, isolation)
    if cached.fetch_offset >= end_offset:
        return Lookup(None, offsets)
    return Lookup(None, offsets, end_offset=end_offset, remote=NOT_READ_YET)


def _error_beyond_the_end(partition: Partition, cached: CachedPartition) -> ErrorCode:
    """Return the error for an offset beyond the log end. A fetcher that names no leader epoch may take this follower
    for the leader, and would rewind after OFFSET_OUT_OF_RANGE (M-15)."""
    is_misled = partition.followed_leader is not None and cached.current_leader_epoch < 0  # Decision fetcher-misled
    return ErrorCode.not_leader_or_follower if is_misled else ErrorCode.offset_out_of_range


def offsets_of(log: UnifiedLog) -> Offsets:
    """Return the log's offsets as a response has them."""
    return log.high_watermark, log.last_stable_offset, log.log_start_offset


def _readable(log: UnifiedLog, cached: CachedPartition, isolation: FetchIsolation) -> Lookup:
    """Return how much can be read from the local log."""
    end_offset, offsets = readable_end(log, isolation), offsets_of(log)
    if cached.fetch_offset >= end_offset:  # Decision fetch-at-readable-end
        return Lookup(None, offsets)
    unlimited_bytes = log.bytes_between(cached.fetch_offset, end_offset)
    if unlimited_bytes == 0:  # The records were compacted away, or never existed.
        return Lookup(None, offsets)
    return Lookup(None, offsets, max(min(unlimited_bytes, cached.max_bytes), 1), end_offset, unlimited_bytes)


def readable_end(log: UnifiedLog, isolation: FetchIsolation) -> int:
    """Return the offset at which a fetcher must stop: the log end for followers, and for consumers the high watermark
    or, with read_committed, the last stable offset."""
    if isolation is FetchIsolation.LOG_END:
        return log.log_end_offset
    return log.last_stable_offset if isolation is FetchIsolation.TXN_COMMITTED else log.high_watermark


def _followed_or_error(broker: Broker, cached: CachedPartition, may_follow: bool) -> Partition | Lookup:
    """Return the partition that this node follows, if the fetcher may read from it. Otherwise return the error: the
    partition is unknown, its topic was recreated with another ID, or another node leads it.
    """
    image = broker.controller.image
    if cached.session.uses_topic_ids:
        topic = image.topic_by_id(cached.topic_id)
        if topic is None:
            return failed_lookup(cached.index, _error_of_unknown_id(image.topics.get(cached.topic), cached.index))
        cached.remember_name(topic.name)
    else:
        topic = image.topics.get(cached.topic)
        if topic is not None and not cached.may_be(topic.topic_id):
            return failed_lookup(cached.index, ErrorCode.inconsistent_topic_id)
    if topic is None or not 0 <= cached.index < len(topic.partitions):
        return failed_lookup(cached.index, ErrorCode.unknown_topic_or_partition)
    followed = broker.partitions.followed.get((topic.topic_id, cached.index)) if may_follow else None
    if followed is not None:
        cached.read_from(followed)
        return followed
    state = topic.partitions[cached.index]
    error = led_elsewhere(broker, topic, cached.index, _known_epoch(cached))
    leader = LeaderIdAndEpoch(state.leader, state.leader_epoch)
    return failed_lookup(cached.index, error, None if error == ErrorCode.unknown_leader_epoch else leader)


def _known_epoch(cached: CachedPartition) -> int:
    """Return the leader epoch that the fetcher knows. In a Fetch any negative number means none."""
    return max(cached.current_leader_epoch, -1)


def _error_of_unknown_id(recreated: TopicImage | None, index: int) -> ErrorCode:
    """Return the error for a topic ID that is unknown. ``recreated`` is the topic that has the cached name now."""
    if recreated is None:
        return ErrorCode.unknown_topic_id
    exists = 0 <= index < len(recreated.partitions)
    return ErrorCode.inconsistent_topic_id if exists else ErrorCode.unknown_topic_or_partition


def failed_lookup(index: int, error: Error, leader: LeaderIdAndEpoch | None = None) -> Lookup:
    """Return the lookup of a partition that fails. ``leader`` is the current leader, if the response is to name it."""
    return Lookup(_error_data(index, error, leader))


def _error_data(index: int, error: Error, leader: LeaderIdAndEpoch | None = None) -> PartitionData:
    """Return the part of a response of a partition that fails.

    As in Kafka, a partition that does not exist has an empty list of aborted transactions, and others have none."""
    aborted: list[AbortedTransaction] | None = [] if error in _UNKNOWN else None
    return PartitionData(index, int(error), -1, aborted_transactions=aborted, current_leader=leader)


_UNKNOWN = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


def read(
    cached: CachedPartition, lookup: Lookup, isolation: FetchIsolation, max_bytes: int, at_least_one: bool
) -> PartitionData:
    """Return the partition's part of a response, with its records.

    The records are whole batches of at most ``max_bytes`` together. With ``at_least_one`` the first batch may be
    larger. If the records cannot be read, this partition alone gets the error of ``read_error``.
    """
    if cached.partition is None or not lookup.available_bytes:
        return without_records(cached, lookup, isolation)
    log = cached.partition.log
    if lookup.remote is not None:
        return _read_remote(cached, lookup, lookup.remote, max_bytes, at_least_one)
    try:  # Decision fetch-read-fails
        skips_empty = isolation is not FetchIsolation.LOG_END
        records = log.read(cached.fetch_offset, max_bytes, lookup.end_offset, at_least_one, skips_empty)
        aborted = (
            list(log.aborted_among(cached.fetch_offset, records)) if isolation is FetchIsolation.TXN_COMMITTED else None
        )
    except MovedToRemote:  # That was after the lookup. It has marked the partition, which is looked up again.
        return without_records(cached, lookup, isolation)
    except OffsetOutOfRange:
        return _error_data(cached.index, ErrorCode.offset_out_of_range)
    except (DiskError, InvalidRecords) as failure:
        return _error_data(cached.index, read_error(failure))
    return PartitionData(cached.index, 0, *lookup.offsets, aborted, -1, records)


def _read_remote(
    cached: CachedPartition, lookup: Lookup, remote: RemoteRecords, max_bytes: int, at_least_one: bool
) -> PartitionData:
    """Return the partition's part of a response, with the whole batches from the remote tier that fit and that lie
    before the end offset of the lookup."""
    records = remote.fitting(max_bytes, lookup.end_offset, at_least_one=at_least_one)
    aborted = None if remote.aborted is None else list(remote.aborted)
    return PartitionData(cached.index, 0, *lookup.offsets, aborted, -1, records)


def read_error(failure: DiskError | InvalidRecords) -> ErrorCode:
    """Return the error for a log that cannot be read: CORRUPT_MESSAGE for damage, else KAFKA_STORAGE_ERROR."""
    return ErrorCode.corrupt_message if isinstance(failure, InvalidRecords) else ErrorCode.kafka_storage_error


def without_records(cached: CachedPartition, lookup: Lookup, isolation: FetchIsolation) -> PartitionData:
    """Return the partition's part of a response, without records."""
    if lookup.result_without_read is not None:
        return lookup.result_without_read
    aborted: list[AbortedTransaction] | None = [] if isolation is FetchIsolation.TXN_COMMITTED else None
    return PartitionData(cached.index, 0, *lookup.offsets, aborted, -1, b"")


def preferred_replica(broker: Broker, partition: Partition, followers: Followers, fetch_offset: int, rack: str) -> int:
    """Return the ID of the follower that a consumer is to read from, or NO_REPLICA for this leader (KIP-392).

    This is Kafka's ReplicaManager.findPreferredReadReplica with the RackAwareReplicaSelector. A follower must be in
    sync, be in the consumer's rack and, as far as the leader knows, have the fetch offset. Among several, the follower
    with the longest log is chosen, then the latest to catch up, then the highest ID. No follower is chosen if the
    leader itself is in that rack.
    """
    if _is_in_rack(broker, followers.leader_id, rack):
        return NO_REPLICA
    candidates: list[tuple[int, int, int]] = []
    for state in followers.states.values():
        replica_id = state.replica_id
        if replica_id in followers.isr and _has_offset(state, fetch_offset) and _is_in_rack(broker, replica_id, rack):
            state.count_unnamed_fetches(partition.log.log_end_offset)
            candidates.append((state.log_end_offset, state.last_caught_up_us // 1000, replica_id))
    return max(candidates)[2] if candidates else NO_REPLICA


def _has_offset(state: Replica, offset: int) -> bool:
    """Whether the follower's log, as far as the leader knows, begins at or before the offset and ends at or after
    it."""
    return state.log_start_offset <= offset <= state.log_end_offset


def _is_in_rack(broker: Broker, replica_id: int, rack: str) -> bool:
    """Whether the broker is registered in that rack, and not fenced."""
    registration = broker.controller.image.brokers.get(replica_id)
    return registration is not None and not registration.fenced and registration.rack == rack


@dataclass(slots=True, eq=False)
class _Part:
    """The read of one partition from one offset."""

    log: UnifiedLog
    offset: int
    abandon: Abandon
    result: RemoteRecords | Error | None = None
    """None until the read is finished."""


@dataclass(slots=True, eq=False)
class RemoteReads:
    """The reads in the remote tier of one fetch."""

    reader: RemoteReader
    is_committed: bool
    max_bytes: int
    arrived: Callable[[CachedPartition], None]
    """Is called with each partition whose read is finished."""
    parts: dict[CachedPartition, _Part] = field(default_factory=dict)

    @property
    def is_pending(self) -> bool:
        return any(part.result is None for part in self.parts.values())

    def look_up(self, cached: CachedPartition, lookup: Lookup, log: UnifiedLog) -> Lookup:
        """Return the lookup with the result of the read. Begins to read if the offset is a new one."""
        part = self.parts.get(cached)
        if part is None or part.log is not log or part.offset != cached.fetch_offset:  # Decision remote-read-started
            self.drop(cached)
            self._begin(cached, log)
            return lookup
        if part.result is None:
            return lookup
        if not isinstance(part.result, RemoteRecords):  # Decision remote-read-failed
            return failed_lookup(cached.index, part.result)
        available = len(part.result.records)
        return Lookup(None, lookup.offsets, available, lookup.end_offset, available, part.result)

    def _begin(self, cached: CachedPartition, log: UnifiedLog) -> None:
        def done(result: RemoteRecords | Error) -> None:
            if self.parts.get(cached) is part:  # Decision remote-result-wanted
                part.result = result
                part.abandon = _nothing  # Otherwise the part and its read would refer to each other.
                self.arrived(cached)

        part = self.parts[cached] = _Part(log, cached.fetch_offset, _nothing)
        part.abandon = self.reader.read(
            log,
            cached.index,
            cached.fetch_offset,
            min(max(cached.max_bytes, 1), self.max_bytes),
            done,
            is_committed=self.is_committed,
        )

    def drop(self, cached: CachedPartition) -> None:
        """Abandon the read of one partition."""
        part = self.parts.pop(cached, None)
        if part is not None and part.result is None:
            part.abandon()
            part.abandon = _nothing

    def end(self) -> None:
        """Abandon all reads."""
        for cached in list(self.parts):
            self.drop(cached)


def _nothing() -> None:
    """Replace ``abandon`` before a read begins and after its end."""
