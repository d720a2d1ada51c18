"""Which follower a consumer is to read from: the selection of Kafka's RackAwareReplicaSelector (KIP-392).

The rules are those of Kafka's ReplicaManager.findPreferredReadReplica. A follower is chosen among those that are in
sync, stand in the consumer's rack and, as far as the leader knows, hold the offset that the consumer asks for. Nobody
is chosen if the leader stands in that rack itself.

Finds out what there is to say about one partition of a fetch, and reads its records.

A look costs the same whatever the partition holds, and reads no records. The checks, their order and their errors are
those of Kafka's ReplicaManager and Partition.readRecords (KIP-320 for epochs, KIP-516 for topic IDs).

What one fetch reads from the remote tier: records before the place where a log's local ones begin (KIP-405).

A fetch that meets such an offset waits for the tier, up to ``remote.fetch.max.wait.ms``, whatever else it could answer
(Kafka's DelayedRemoteFetch). Each of its partitions is read. What the tier says is kept until the answer, which may
take it or not. What has not come by then is asked for again by the next fetch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from reference_broker.apis.broker import HasController
from reference_broker.apis.records.led_partitions import LooksUpPartitions, leader_epoch_error, led_elsewhere
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.partition_log import MovedToRemote, OffsetOutOfRange, PartitionLog
from reference_broker.metadata.image import TopicImage
from reference_broker.ports.disk import DiskError
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.reading.reader import Abandon, RemoteReader
from reference_broker.remote_log.reading.remote_records import RemoteRecords
from reference_broker.replication.leader.replicas import Followers, FollowerState, error_without_replica
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

NO_REPLICA = -1


def preferred_replica(
    broker: HasController, partition: Partition, followers: Followers, fetch_offset: int, rack: str
) -> int:
    """Returns the ID of the follower, or NO_REPLICA if the consumer is to read from this leader.

    Of several the one with the longest log is chosen, then the one that caught up last, then the highest ID.
    """
    if _stands_in(broker, followers.leader_id, rack):
        return NO_REPLICA
    found: list[tuple[int, int, int]] = []
    for state in followers.states.values():
        replica_id = state.replica_id
        if replica_id in followers.isr and _holds(state, fetch_offset) and _stands_in(broker, replica_id, rack):
            state.settle(partition.log.log_end_offset)
            found.append((state.log_end_offset, state.last_caught_up_us // 1000, replica_id))
    return max(found)[2] if found else NO_REPLICA


def _holds(state: FollowerState, offset: int) -> bool:
    """Whether the follower has told that it has all up to the offset, and that its log does not begin behind it."""
    return state.log_start_offset <= offset <= state.log_end_offset


def _stands_in(broker: HasController, replica_id: int, rack: str) -> bool:
    """Whether the broker is registered in that rack, and not fenced."""
    found = broker.controller.image.brokers.get(replica_id)
    return found is not None and not found.fenced and found.rack == rack


READ_COMMITTED = 1

FOLLOWERS_FROM = 11
"""The version of Fetch from which consumers may read from followers (KIP-392). Older ones cannot be sent there."""

Offsets: TypeAlias = tuple[int, int, int]
"""High watermark, last stable offset, log start offset."""


def rack_of(config: BrokerConfig, api_version: int, request: FetchRequest) -> str | None:
    """Returns the rack of a consumer that may read from followers, and None for any other fetcher.

    The rack is empty if the consumer is not sent to a follower: it names no rack, or this node has no selector.
    """
    if request.replica_id >= 0 or not FOLLOWERS_FROM <= api_version < FIRST_DRAFT_VERSION:
        return None
    return request.rack_id if config.replica_selector_class else ""


class Reader(Enum):
    """Who reads. This decides how far it may read."""

    FOLLOWER = "to the log end"
    UNCOMMITTED = "to the high watermark"
    COMMITTED = "to the last stable offset, with the aborted transactions"


def reader_of(is_replica: bool, isolation_level: int) -> Reader:
    if is_replica:
        return Reader.FOLLOWER
    return Reader.COMMITTED if isolation_level == READ_COMMITTED else Reader.UNCOMMITTED


@dataclass(slots=True)
class Look:
    """What a look found. ``problem`` is what an answer tells of a partition that fails, whose log diverges from the
    fetcher's, or that is to be read elsewhere. Any other partition has ``offsets``: its high watermark, last stable
    offset and log start offset.

    ``available_bytes`` is 0 if there is nothing to read, else between 1 and the limit of the partition. ``end_offset``
    is how far the reader may read. ``there_bytes`` is what there is to read, without that limit.

    ``remote`` is what the remote tier gave, or ASK_THE_TIER if the records are there and nobody has asked for them.
    """

    problem: PartitionData | None
    offsets: Offsets = (-1, -1, -1)
    available_bytes: int = 0
    end_offset: int = 0
    there_bytes: int = 0
    remote: RemoteRecords | None = None


ASK_THE_TIER = RemoteRecords(b"", None)


def look(
    broker: LooksUpPartitions, cached: CachedPartition, reader: Reader, rack: str | None = None, replica_id: int = -1
) -> Look:
    """``rack`` is that of a consumer that may read from followers (``rack_of``). ``replica_id`` is the node ID of a
    follower."""
    partition = cached.bind(broker.partitions)
    if partition is None:
        found = missing(broker, cached, rack is not None)
        if isinstance(found, Look):
            return found
        partition = found
    error = leader_epoch_error(partition.leader_epoch, _known_epoch(cached))
    if error:
        leader_id = broker.node_id if partition.leader_elsewhere is None else partition.leader_elsewhere
        leader = LeaderIdAndEpoch(leader_id, partition.leader_epoch)
        return failed(cached.index, error, leader if error == ErrorCode.fenced_leader_epoch else None)
    if reader is Reader.FOLLOWER and not partition.is_followed_by(replica_id):
        error = error_without_replica(cached)
        leader = LeaderIdAndEpoch(broker.node_id, partition.leader_epoch)
        return failed(cached.index, error, leader if error == ErrorCode.not_leader_or_follower else None)
    log = partition.log
    if rack and partition.followers is not None:
        preferred = preferred_replica(broker, partition, partition.followers, cached.fetch_offset, rack)
        if preferred != NO_REPLICA:
            return Look(PartitionData(cached.index, 0, *offsets_of(log), preferred_read_replica=preferred))
    if cached.fetch_offset < log.log_start_offset:
        return failed(cached.index, ErrorCode.offset_out_of_range)
    if cached.last_fetched_epoch >= 0:
        end = log.end_offset_for_epoch(cached.last_fetched_epoch)
        if end.epoch < 0 or end.end_offset < 0:
            return failed(cached.index, ErrorCode.offset_out_of_range)
        if end.epoch < cached.last_fetched_epoch or end.end_offset < cached.fetch_offset:
            diverging = EpochEndOffset(end.epoch, end.end_offset)
            return Look(PartitionData(cached.index, 0, *offsets_of(log), diverging_epoch=diverging))
    if cached.fetch_offset > log.log_end_offset:
        return failed(cached.index, _error_beyond_the_end(partition, cached))
    if cached.fetch_offset < log.local_log_start_offset:
        return _moved(log, cached, reader)
    try:
        return _readable(log, cached, reader)
    except (DiskError, InvalidRecords) as failure:
        return failed(cached.index, read_error(failure))


def _moved(log: PartitionLog, cached: CachedPartition, reader: Reader) -> Look:
    """A follower begins where the local records begin. It never reads the remote tier."""
    offsets = offsets_of(log)
    if reader is Reader.FOLLOWER:
        return Look(PartitionData(cached.index, int(ErrorCode.offset_moved_to_tiered_storage), *offsets))
    end_offset = readable_end(log, reader)
    if cached.fetch_offset >= end_offset:
        return Look(None, offsets)
    return Look(None, offsets, end_offset=end_offset, remote=ASK_THE_TIER)


def _error_beyond_the_end(partition: Partition, cached: CachedPartition) -> ErrorCode:
    """A fetcher that tells no leader epoch may take this follower for the leader, and would rewind (M-15)."""
    is_misled = partition.leader_elsewhere is not None and cached.current_leader_epoch < 0
    return ErrorCode.not_leader_or_follower if is_misled else ErrorCode.offset_out_of_range


def offsets_of(log: PartitionLog) -> Offsets:
    return log.high_watermark, log.last_stable_offset, log.log_start_offset


def _readable(log: PartitionLog, cached: CachedPartition, reader: Reader) -> Look:
    end_offset, offsets = readable_end(log, reader), offsets_of(log)
    if cached.fetch_offset >= end_offset:
        return Look(None, offsets)
    there_bytes = log.bytes_between(cached.fetch_offset, end_offset)
    if there_bytes == 0:  # only holes: the records were compacted away or were never kept
        return Look(None, offsets)
    return Look(None, offsets, max(min(there_bytes, cached.max_bytes), 1), end_offset, there_bytes)


def readable_end(log: PartitionLog, reader: Reader) -> int:
    if reader is Reader.FOLLOWER:
        return log.log_end_offset
    return log.last_stable_offset if reader is Reader.COMMITTED else log.high_watermark


def missing(broker: LooksUpPartitions, cached: CachedPartition, may_follow: bool) -> Partition | Look:
    """Finds the partition that this node follows, if the fetcher may read from it, or why it is not served here.

    The partition is unknown, its topic has another ID than its name has now, or it is led elsewhere.
    """
    image = broker.controller.image
    if cached.session.uses_topic_ids:
        topic = image.topic_by_id(cached.topic_id)
        if topic is None:
            return failed(cached.index, _error_of_unknown_id(image.topics.get(cached.topic), cached.index))
        cached.topic = topic.name
    else:
        topic = image.topics.get(cached.topic)
        if topic is not None and not cached.may_be(topic.topic_id):
            return failed(cached.index, ErrorCode.inconsistent_topic_id)
    if topic is None or not 0 <= cached.index < len(topic.partitions):
        return failed(cached.index, ErrorCode.unknown_topic_or_partition)
    followed = broker.partitions.followed.get((topic.topic_id, cached.index)) if may_follow else None
    if followed is not None:
        cached.read_from(followed)
        return followed
    there = topic.partitions[cached.index]
    error = led_elsewhere(broker, topic, cached.index, _known_epoch(cached))
    leader = LeaderIdAndEpoch(there.leader, there.leader_epoch)
    return failed(cached.index, error, None if error == ErrorCode.unknown_leader_epoch else leader)


def _known_epoch(cached: CachedPartition) -> int:
    """The leader epoch that the fetcher knows. In a Fetch any negative number says that it knows none."""
    return max(cached.current_leader_epoch, -1)


def _error_of_unknown_id(recreated: TopicImage | None, index: int) -> ErrorCode:
    """``recreated`` is the topic that has the name now that the ID stood for."""
    if recreated is None:
        return ErrorCode.unknown_topic_id
    is_there = 0 <= index < len(recreated.partitions)
    return ErrorCode.inconsistent_topic_id if is_there else ErrorCode.unknown_topic_or_partition


def failed(index: int, error: Error, leader: LeaderIdAndEpoch | None = None) -> Look:
    return Look(_failure(index, error, leader))


def _failure(index: int, error: Error, leader: LeaderIdAndEpoch | None = None) -> PartitionData:
    """As in Kafka, a partition that does not exist has an empty list of aborted transactions, and others have none."""
    aborted: list[AbortedTransaction] | None = [] if error in _UNKNOWN else None
    return PartitionData(index, int(error), -1, aborted_transactions=aborted, current_leader=leader)


_UNKNOWN = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


def read(cached: CachedPartition, found: Look, reader: Reader, max_bytes: int, at_least_one: bool) -> PartitionData:
    """Returns the partition's part of an answer, with its records.

    They are whole batches of at most ``max_bytes`` together. With ``at_least_one`` the first batch may be larger. If
    they cannot be read, only this partition gets an error, that of ``read_error``.
    """
    if cached.partition is None or not found.available_bytes:
        return told_of(cached, found, reader)
    log = cached.partition.log
    if found.remote is not None:
        return _read_remote(cached, found, found.remote, max_bytes, at_least_one)
    try:
        skips_empty = reader is not Reader.FOLLOWER
        records = log.read(cached.fetch_offset, max_bytes, found.end_offset, at_least_one, skips_empty)
        aborted = list(log.aborted_among(cached.fetch_offset, records)) if reader is Reader.COMMITTED else None
    except MovedToRemote:  # Since the look. A change of the partition is told, and it is looked at again.
        return told_of(cached, found, reader)
    except OffsetOutOfRange:
        return _failure(cached.index, ErrorCode.offset_out_of_range)
    except (DiskError, InvalidRecords) as failure:
        return _failure(cached.index, read_error(failure))
    return PartitionData(cached.index, 0, *found.offsets, aborted, -1, records)


def _read_remote(
    cached: CachedPartition, found: Look, remote: RemoteRecords, max_bytes: int, at_least_one: bool
) -> PartitionData:
    """The tier gave whole batches. Those that fit, and lie before the reader's end, are told."""
    records = remote.fitting(max_bytes, found.end_offset, at_least_one=at_least_one)
    aborted = None if remote.aborted is None else list(remote.aborted)
    return PartitionData(cached.index, 0, *found.offsets, aborted, -1, records)


def read_error(failure: DiskError | InvalidRecords) -> ErrorCode:
    """What clients are told where a log cannot be read: CORRUPT_MESSAGE for damage, else KAFKA_STORAGE_ERROR."""
    return ErrorCode.corrupt_message if isinstance(failure, InvalidRecords) else ErrorCode.kafka_storage_error


def told_of(cached: CachedPartition, found: Look, reader: Reader) -> PartitionData:
    """Returns the partition's part of an answer, without records."""
    if found.problem is not None:
        return found.problem
    aborted: list[AbortedTransaction] | None = [] if reader is Reader.COMMITTED else None
    return PartitionData(cached.index, 0, *found.offsets, aborted, -1, b"")


@dataclass(slots=True, eq=False)
class _Part:
    """The reading of one partition from one offset. ``found`` is None until it is over."""

    log: PartitionLog
    offset: int
    abandon: Abandon
    found: RemoteRecords | Error | None = None


@dataclass(slots=True, eq=False)
class RemoteReads:
    """``arrived`` is told of each partition of which the tier has said something."""

    reader: RemoteReader
    is_committed: bool
    max_bytes: int
    arrived: Callable[[CachedPartition], None]
    parts: dict[CachedPartition, _Part] = field(default_factory=dict)

    @property
    def is_pending(self) -> bool:
        return any(part.found is None for part in self.parts.values())

    def look(self, cached: CachedPartition, found: Look, log: PartitionLog) -> Look:
        """What a look at a partition found, with what the tier said. Begins to read if the offset is a new one."""
        part = self.parts.get(cached)
        if part is None or part.log is not log or part.offset != cached.fetch_offset:
            self.drop(cached)
            self._begin(cached, log)
            return found
        if part.found is None:
            return found
        if not isinstance(part.found, RemoteRecords):
            return failed(cached.index, part.found)
        available = len(part.found.records)
        return Look(None, found.offsets, available, found.end_offset, available, part.found)

    def _begin(self, cached: CachedPartition, log: PartitionLog) -> None:
        def done(found: RemoteRecords | Error) -> None:
            if self.parts.get(cached) is part:
                part.found = found
                part.abandon = _nothing  # Else the part would hold its reading, which holds the part.
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
        """Nobody waits for this partition any more."""
        part = self.parts.pop(cached, None)
        if part is not None and part.found is None:
            part.abandon()
            part.abandon = _nothing

    def end(self) -> None:
        """Nobody waits any more."""
        for cached in list(self.parts):
            self.drop(cached)


def _nothing() -> None:
    """There is no reading to abandon: it is about to begin, or over."""
