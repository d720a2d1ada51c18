"""A consumer's requests to the leaders of its partitions. There is no I/O.

``NodeChannel`` sends one request at a time to one node: a ListOffsets that resets positions, or else a Fetch in a
session. Fetches go to a follower if the leader has named one (``ReadReplicas``). After any error of the follower the
next Fetch goes to the leader, since only the leader knows that a position is out of range or that its log was
truncated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.client.consumer import READ_COMMITTED, READ_UNCOMMITTED, TakenBatch
from reference_broker.client.consumer_observer import ConsumerObserver, FetchedPartition, FetchResult
from reference_broker.client.consumer_partitions import AssignedPartition, HeldPartitions, Phase
from reference_broker.client.group_requests import GroupRequest, error_of
from reference_broker.client.metadata_cache import MetadataCache, NodeAddress, PartitionInfo
from reference_broker.client.metadata_refresher import MetadataRefresher
from reference_broker.client.offset_commits import NO_OFFSET
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import FetchPlan, FetchSessionHandler, Handled, SessionHandler, Wanted
from reference_broker.records.batch import InvalidRecords
from reference_broker.wire.apis import FETCH_TOMBSTONE_HORIZON, ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchResponse, PartitionData

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10.response import ListOffsetsResponse


LIST_OFFSETS: Final = int(ApiKey.LIST_OFFSETS)
FETCH: Final = int(ApiKey.FETCH)
EARLIEST: Final = -2
LATEST: Final = -1
_NO_REPLICA: Final = BrokerId(-1)


def list_offsets_request(
    partitions: Mapping[TopicPartition, int], timestamp_ms: int, timeout_us: int, isolation_level: int = 0
) -> ListOffsetsRequest:
    """``partitions`` maps each to its current leader epoch, or -1. ``timestamp_ms`` is EARLIEST, LATEST or a time.
    LATEST is the last stable offset if ``isolation_level`` is read_committed."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, number), leader_epoch in partitions.items():
        topics.setdefault(topic, []).append(
            ListOffsetsPartition(
                partition_index=i32(number), current_leader_epoch=i32(leader_epoch), timestamp=i64(timestamp_ms)
            )
        )
    return ListOffsetsRequest(
        replica_id=_NO_REPLICA,
        isolation_level=i8(isolation_level),
        topics=tuple(ListOffsetsTopic(name=TopicName(name), partitions=tuple(each)) for name, each in topics.items()),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_us // 1000)),
    )


def listed_offsets(body: object) -> dict[TopicPartition, tuple[Error | int, int, int]]:
    """Return error, offset and leader epoch of each partition in the response."""
    return {
        TopicPartition(str(topic.name), int(partition.partition_index)): (
            error_of(partition.error_code),
            int(partition.offset),
            int(partition.leader_epoch),
        )
        for topic in cast("ListOffsetsResponse", body).topics
        for partition in topic.partitions
    }


NO_REPLICA = -1


@dataclass(frozen=True, slots=True)
class _Preferred:
    """A follower from which a partition is read."""

    node_id: int
    """The follower."""
    leader: PartitionInfo
    """The leader that named it."""
    until_us: int


@dataclass(slots=True)
class ReadReplicas:
    """The followers from which a consumer reads, because their leaders named them (KIP-392).

    The rules are those of Apache Kafka's consumer. A leader names a follower in the consumer's rack (``client.rack``)
    and sends no records. The consumer reads from that follower until one of these things happens, and then fetches from
    the leader again:

    - The partition has another leader, or its leader another epoch.
    - The follower returns an error for the partition, does not respond, or is not in the metadata any more.
    - ``max_age_us`` is over, after which metadata is refreshed as well (``metadata.max.age.ms``).

    If the metadata lacks the follower that a leader names, the consumer refreshes it and then fetches from the leader.
    """

    max_age_us: int
    _preferred: dict[TopicPartition, _Preferred] = field(default_factory=dict)

    def prefer(self, partition: TopicPartition, node_id: int, cache: MetadataCache, now_us: int) -> None:
        """The leader has named this follower. Naming it again does not prolong its time."""
        leader, known = cache.partition(partition), self._preferred.get(partition)
        if leader is not None and (known is None or known.node_id != node_id):
            self._preferred[partition] = _Preferred(node_id, leader, now_us + self.max_age_us)

    def node_of(self, partition: TopicPartition, cache: MetadataCache, now_us: int) -> NodeAddress | None:
        """The node to read the partition from. It is the leader if no follower is preferred, and None if none is
        known."""
        preferred = self._preferred.get(partition)
        if preferred is None:
            return cache.leader_of(partition)
        node = cache.nodes.get(preferred.node_id)
        if node is not None and now_us < preferred.until_us and cache.partition(partition) == preferred.leader:
            return node
        del self._preferred[partition]
        return cache.leader_of(partition)

    def forget(self, partitions: Iterable[TopicPartition], node_id: int) -> bool:
        """Return to the leaders of those partitions that were read from this follower. Return whether there are
        any."""
        gone = [
            partition
            for partition in partitions
            if partition in self._preferred and self._preferred[partition].node_id == node_id
        ]
        for each in gone:
            del self._preferred[each]
        return bool(gone)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of all fetches of a consumer."""

    fetch_version: int = 17
    list_offsets_version: int = 10
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 1 << 20
    reset: str = "earliest"
    """The reset policy: earliest, latest or none."""
    leader_epochs: bool = True
    """Whether a fetch sends the epochs of the current leader and of the last record (KIP-320). Without it both are
    -1."""
    request_timeout_us: int = 5_000_000
    rack: str = ""
    """The rack of the consumer (``client.rack``), so that it may read from a follower there (KIP-392)."""
    read_committed: bool = False
    """Whether the consumer gets no record of a transaction that is open or aborted (KIP-98)."""
    tombstone_horizon: bool = False
    """Whether the consumer begins again where it may have missed tombstones (H-3). All nodes must serve the draft and
    name topics by IDs."""

    @property
    def isolation_level(self) -> int:
        """As Fetch and ListOffsets carry it."""
        return READ_COMMITTED if self.read_committed else READ_UNCOMMITTED

    def version(self, plan: FetchPlan) -> int:
        """Return the version of a Fetch."""
        return FETCH_TOMBSTONE_HORIZON if self.tombstone_horizon else plan.version(self.fetch_version)


@dataclass(slots=True)
class NodeChannel:
    """The state of the requests to one node."""

    settings: FetchSettings
    handler: SessionHandler = field(default_factory=FetchSessionHandler)
    in_flight: int | None = None
    """The API key of the request in flight, or None."""
    retry_at_us: int = 0
    """Nothing is sent before this time."""
    fetch_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets in the Fetch in flight. The response for a partition whose position has moved since is not used."""
    has_left: bool = False
    """Whether the session was closed, after which nothing else is sent."""

    def list_offsets(self, node: NodeAddress, partitions: Mapping[TopicPartition, int]) -> GroupRequest:
        """Make ListOffsets. ``partitions`` maps each to its current leader epoch, or to -1 if that is not sent."""
        settings = self.settings
        self.in_flight = LIST_OFFSETS
        timestamp_ms = EARLIEST if settings.reset == "earliest" else LATEST
        body = list_offsets_request(partitions, timestamp_ms, settings.request_timeout_us, settings.isolation_level)
        return GroupRequest(LIST_OFFSETS, settings.list_offsets_version, body, settings.request_timeout_us, node)

    def fetch(self, node: NodeAddress, wanted: Mapping[TopicPartition, Wanted]) -> tuple[GroupRequest, FetchPlan]:
        """Make a Fetch for exactly these partitions."""
        settings = self.settings
        self.in_flight = FETCH
        self.fetch_offsets = {partition: each.fetch_offset for partition, each in wanted.items()}
        plan = self.handler.build(wanted)
        version = settings.version(plan)
        body = plan.request(
            version,
            settings.max_wait_ms,
            settings.min_bytes,
            settings.max_bytes,
            rack=settings.rack,
            isolation_level=settings.isolation_level,
        )
        timeout_us = settings.request_timeout_us + settings.max_wait_ms * 1000
        return GroupRequest(FETCH, version, body, timeout_us, node), plan

    def close_session(self, node: NodeAddress) -> GroupRequest | None:
        """Make the Fetch that closes the session, once. None if there is no session."""
        plan, self.has_left = None if self.has_left else self.handler.close(), True
        if plan is None:
            return None
        self.in_flight, self.fetch_offsets = FETCH, {}
        version = self.settings.version(plan)
        return GroupRequest(FETCH, version, plan.request(version, 0, 0, 0), self.settings.request_timeout_us, node)

    def listed(self, body: object) -> dict[TopicPartition, tuple[Error | int, int, int]]:
        """Apply the response to ListOffsets. Returns error, offset and leader epoch by partition."""
        self.in_flight = None
        return listed_offsets(body)

    def fetched(self, response: FetchResponse) -> Handled:
        """Apply the response to Fetch."""
        self.in_flight = None
        return self.handler.handle_response(response)

    def failed(self, retry_at_us: int) -> None:
        """Record that the request in flight got no response."""
        if self.in_flight == FETCH:
            self.handler.handle_lost()
        self.in_flight = None
        self.retry_at_us = retry_at_us


_STALE_METADATA: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.replica_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_server_error,
)
"""After one of these errors of a partition the consumer refreshes its metadata and tries again."""


@dataclass(slots=True)
class LeaderFetches:
    """A consumer's requests to the leaders of its partitions."""

    settings: FetchSettings
    partitions: HeldPartitions
    metadata: MetadataRefresher
    backoff_us: int
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    failures: list[Error | int] = field(default_factory=list)
    """Errors that no retry cures."""
    leaves: bool = False
    """Once it is set, only sessions are closed."""
    _channels: dict[int, NodeChannel] = field(default_factory=dict)
    _replicas: ReadReplicas = field(init=False)

    def __post_init__(self) -> None:
        self._replicas = ReadReplicas(self.metadata.max_age_us)

    @property
    def wake_at_us(self) -> int | None:
        """The time at which the first backoff ends, or None if there is none."""
        waiting = [
            channel.retry_at_us
            for channel in self._channels.values()
            if channel.in_flight is None and channel.retry_at_us
        ]
        return min(waiting, default=None)

    def next_requests(self, now_us: int) -> list[tuple[int, GroupRequest]]:
        """Return at most one request for each node, with its ID. ``responded`` or ``failed`` must follow each."""
        for channel in self._channels.values():
            if channel.retry_at_us <= now_us:  # This includes nodes that lead nothing any more: they must wake no one.
                channel.retry_at_us = 0
        if self.leaves:
            return self._closing_requests()
        found = []
        for node_id, partitions in self._by_node(now_us).items():
            request = self._request(now_us, node_id, partitions)
            if request is not None:
                found.append((node_id, request))
        return found

    @property
    def has_left(self) -> bool:
        """Whether all sessions were closed, or abandoned where a node was not reached."""
        return all(channel.has_left and channel.in_flight is None for channel in self._channels.values())

    def _closing_requests(self) -> list[tuple[int, GroupRequest]]:
        """Return the requests that close the sessions of the nodes that have responded to the request before (F-8)."""
        found = []
        for node_id, channel in self._channels.items():
            node = self.metadata.cache.nodes.get(node_id)
            if channel.in_flight is not None or channel.has_left:
                continue
            request = None if node is None else channel.close_session(node)
            channel.has_left = True
            if request is not None:
                found.append((node_id, request))
        return found

    def responded(self, node_id: int, now_us: int, body: object) -> None:
        """Apply the response to that node's request."""
        channel = self._channels[node_id]
        if channel.has_left:
            channel.in_flight = None
        elif channel.in_flight == LIST_OFFSETS:
            self._listed(now_us, channel, body)
        else:
            self._fetched(now_us, node_id, cast(FetchResponse, body))

    def failed(self, node_id: int, now_us: int) -> None:
        """Record that that node's request got no response."""
        self._replicas.forget(self.partitions.held, node_id)
        self._channels[node_id].failed(now_us + self.backoff_us)
        self.metadata.want(now_us)

    def _by_node(self, now_us: int) -> dict[int, list[tuple[TopicPartition, AssignedPartition]]]:
        """Return the partitions by the node that gets the request for them. Only a leader can return a new position."""
        found: dict[int, list[tuple[TopicPartition, AssignedPartition]]] = {}
        cache = self.metadata.cache
        for partition, held in self.partitions.held.items():
            if held.is_fetchable:
                is_read = held.phase is Phase.READING
                node = self._replicas.node_of(partition, cache, now_us) if is_read else cache.leader_of(partition)
                if node is not None:
                    found.setdefault(node.node_id, []).append((partition, held))
        return found

    def _request(
        self, now_us: int, node_id: int, partitions: list[tuple[TopicPartition, AssignedPartition]]
    ) -> GroupRequest | None:
        channel = self._channels.setdefault(node_id, NodeChannel(self.settings))
        if channel.in_flight is not None or now_us < channel.retry_at_us:
            return None
        node = self.metadata.cache.nodes[node_id]
        resetting = {
            partition: self._leader_epoch(partition) for partition, held in partitions if held.phase is Phase.RESETTING
        }
        if resetting and self.settings.reset == "none":
            self.failures.append(ErrorCode.offset_out_of_range)
            channel.retry_at_us = now_us + self.backoff_us
            return None
        if resetting:
            return channel.list_offsets(node, resetting)
        if any(held.buffer for _, held in partitions):
            return None
        wanted = {partition: self._wanted(partition, node_id) for partition, _ in partitions}
        if self.settings.tombstone_horizon and any(each.topic_id == NO_TOPIC_ID for each in wanted.values()):
            self.failures.append(ErrorCode.unknown_topic_id)  # A released version would not show the marker.
            self._back_off(now_us, channel)
            return None
        request, plan = channel.fetch(node, wanted)
        self.observer.fetching(node_id, plan, wanted)
        return request

    def _leader_epoch(self, partition: TopicPartition) -> int:
        info = self.metadata.cache.partition(partition)
        return info.leader_epoch if info is not None and self.settings.leader_epochs else -1

    def _wanted(self, partition: TopicPartition, node_id: int) -> Wanted:
        """A follower does not get the epoch of the last record, since its log may end before that record."""
        position, leader = self.partitions.state.positions[partition], self.metadata.cache.partition(partition)
        is_led = leader is not None and leader.leader_id == node_id
        return Wanted(
            topic_id=self.metadata.cache.topic_id(partition.topic),
            fetch_offset=position.offset,
            max_bytes=self.settings.partition_max_bytes,
            current_leader_epoch=self._leader_epoch(partition),
            last_fetched_epoch=position.leader_epoch if self.settings.leader_epochs and is_led else -1,
        )

    def _listed(self, now_us: int, channel: NodeChannel, body: object) -> None:
        for partition, (error, offset, leader_epoch) in channel.listed(body).items():
            if error:
                self._back_off(now_us, channel)
            else:
                self.partitions.reset(partition, offset, leader_epoch, self.metadata.cache.metadata_epoch)

    def _fetched(self, now_us: int, node_id: int, response: FetchResponse) -> None:
        channel = self._channels[node_id]
        fetch_offsets = channel.fetch_offsets
        handled = channel.fetched(response)
        channel.retry_at_us = 0
        if handled.problem is not None:
            self._back_off(now_us, channel)
            taken = [self._refused(partition, data) for partition, data in handled.partitions]
        else:
            taken = [
                self._handle_partition(now_us, node_id, partition, data)
                for partition, data in handled.partitions
                if self._is_awaited(partition, fetch_offsets)
            ]
        count = len(handled.partitions)
        self.observer.fetched(FetchResult(node_id, response, handled.problem, count, tuple(taken)))

    def _is_awaited(self, partition: TopicPartition, fetch_offsets: Mapping[TopicPartition, int]) -> bool:
        """Return whether the response is still of use for the partition. It is too late if the position has moved
        since, or if the partition has been released."""
        held = self.partitions.held.get(partition)
        if held is None or held.phase is not Phase.READING or held.is_revoked:
            return False
        return self.partitions.state.positions[partition].offset == fetch_offsets.get(partition)

    def _refused(self, partition: TopicPartition, data: PartitionData) -> FetchedPartition:
        """Record a partition of a response that does not fit the request. It moves no position."""
        position = self.partitions.state.positions.get(partition)
        at = position.offset if position is not None else NO_OFFSET
        return FetchedPartition(partition, data, at, at, error_of(data.error_code))

    def _handle_partition(
        self, now_us: int, node_id: int, partition: TopicPartition, data: PartitionData
    ) -> FetchedPartition:
        position = self.partitions.state.positions[partition]
        before, error = position.offset, error_of(data.error_code)
        batches: tuple[TakenBatch, ...] = ()
        diverging = data.diverging_epoch
        if error is ErrorCode.none and diverging is not None and diverging.epoch >= 0:
            metadata_epoch = self.metadata.cache.metadata_epoch
            self.partitions.truncated(partition, diverging.epoch, diverging.end_offset, metadata_epoch)
        elif error is ErrorCode.none and not self._starts_over(partition, data):
            try:
                batches = self.partitions.take(partition, data)
            except InvalidRecords:
                error = ErrorCode.corrupt_message
            if data.preferred_read_replica != NO_REPLICA:
                self._prefer(now_us, node_id, partition, data.preferred_read_replica)
        if error is not ErrorCode.none:
            self._take_error(now_us, node_id, partition, data, error)
        return FetchedPartition(partition, data, before, position.offset, error, batches)

    def _starts_over(self, partition: TopicPartition, data: PartitionData) -> bool:
        horizon, epoch = data.tombstone_horizon, self.metadata.cache.metadata_epoch
        return horizon >= 0 and self.partitions.starts_over(partition, horizon, data.log_start_offset, epoch)

    def _prefer(self, now_us: int, leader_id: int, partition: TopicPartition, replica_id: int) -> None:
        """Take the follower that the leader named. Newer metadata says where it is, if it is not known."""
        if replica_id in self.metadata.cache.nodes:
            self._replicas.prefer(partition, replica_id, self.metadata.cache, now_us)
        else:
            self._back_off(now_us, self._channels[leader_id])

    def _take_error(
        self, now_us: int, node_id: int, partition: TopicPartition, data: PartitionData, error: Error | int
    ) -> None:
        """Only the word of the leader moves a position. A late response may come from a follower that was left
        meanwhile, or from a leader that is none any more."""
        leader = self.metadata.cache.leader_of(partition)
        came_from_follower = self._replicas.forget([partition], node_id)
        if error is ErrorCode.offset_out_of_range:
            if came_from_follower or leader is None or leader.node_id != node_id:
                self._channels[node_id].retry_at_us = now_us + self.backoff_us
            else:
                self.partitions.begin_reset(partition, "out_of_range")
            return
        if error not in _STALE_METADATA:
            self.failures.append(error)
        elif (named := data.current_leader) is not None:
            self.metadata.cache = self.metadata.cache.learn_leader(partition, named.leader_id, named.leader_epoch)
        self._back_off(now_us, self._channels[node_id])

    def _back_off(self, now_us: int, channel: NodeChannel) -> None:
        channel.retry_at_us = now_us + self.backoff_us
        self.metadata.want(now_us)
