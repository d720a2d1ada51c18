"""ListOffsets: returns the first offset, the last one, or the first at or after a timestamp.

* Consumers see offsets up to the high watermark or the last stable offset, followers up to the log end.
* A new leader may not know yet that its high watermark reaches the start of its epoch. It returns OFFSET_NOT_AVAILABLE
  for offsets beyond it, since an offset that was returned once may not go back.
* Only the leader serves it, also for consumers that read from followers.
* A response is delayed only by a search in the remote tier. The timeout of version 10 is for that.
* A search for a timestamp holds up no other client. A batch counts as its first offset if its
  records cannot be read, do not reach the time in its header, or take more than 16 MiB.
* A timestamp is searched in the remote tier first, and then among the local records. The largest timestamp is that of
  the local records, as in Kafka.
* Unlike Kafka: an isolation level above 1 is read_uncommitted. Kafka fails on it: UNKNOWN_SERVER_ERROR.

Version notes:
* v5: OFFSET_NOT_AVAILABLE. Older versions get LEADER_NOT_AVAILABLE.
* v7: the special timestamp -3 is for the offset of the largest timestamp.
* v8: the special timestamp -4 is for the earliest local offset.
* v9: the special timestamp -5 is for the last tiered offset.

KIPs: 79, 98, 207, 320, 405, 734.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.records.fetch_partition import read_error, readable_end
from reference_broker.apis.records.partition_errors import led_partition
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.log.reading import FetchIsolation
from reference_broker.log.timestamp_lookup import FoundOffset, Overtaken
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.reading.reader import Abandon, RemoteReader
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

CONSUMER = -1
"""The replica ID of consumers. Followers send their own, and Kafka's tools that query any replica send -2."""

LATEST = -1

EARLIEST = -2

MAX_TIMESTAMP = -3

EARLIEST_LOCAL = -4

LATEST_TIERED = -5

SINCE_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The special timestamps, and the version from which each is served."""

NOT_AVAILABLE_FROM = 5
"""The version from which clients know OFFSET_NOT_AVAILABLE."""

TIMEOUT_FROM = 10
"""The version from which a request has a timeout for the remote tier."""

HAS_RESULT = 0
"""Replaces the number of times that a partition is named, once it has its result."""

UNITS_PER_NAME = 3
"""The cost of one topic or partition in microseconds."""

MAX_SEARCHES = 5
"""Limits how often a search is restarted because the log lost records meanwhile."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The result of one partition. All values are -1 if there is no such record."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


PartitionSearch: TypeAlias = Sliced[ListOffsetsPartitionResponse]


class RemoteOffset(NamedTuple):
    """The result of a search by timestamp in the remote tier."""

    end_offset: int
    """The end of the records that it covers, exclusive."""
    found: FoundOffset | Error | None
    """The first record at or after the timestamp, an error, or None if there is no such record."""


RemoteOffsets: TypeAlias = Mapping[tuple[str, int], RemoteOffset]
"""By topic and partition."""


class RemoteQuery(NamedTuple):
    """One partition whose timestamp is searched in the remote tier."""

    topic: str
    partition: int
    log: UnifiedLog
    timestamp_ms: int


def handle(broker: Broker, call: Call, body: ListOffsetsRequest) -> None:
    """Every partition gets its own error code. A partition that is named twice is an invalid request. Each topic and
    each partition is in the response once, in the order of their first mention."""
    remote_log = broker.remote_log
    queries = [] if remote_log is None else list(_remote_queries(broker, body))
    if remote_log is None or not queries:
        respond_in_slices(broker, call, _build_response(broker, call, body, {}))
        return

    def search_locally(remote: RemoteOffsets) -> None:
        respond_in_slices(broker, call, _build_response(broker, call, body, remote))

    wait_ms = broker.config.remote_list_offsets_request_timeout_ms
    if call.api_version >= TIMEOUT_FROM:
        wait_ms = int(body.timeout.total_seconds() * 1000)
    RemoteSearches(broker, call, search_locally).begin(remote_log.reader, queries, wait_ms)


API = Api.of(ListOffsetsRequest, handle)


def _build_response(
    broker: Broker, call: Call, body: ListOffsetsRequest, remote: RemoteOffsets
) -> Sliced[ListOffsetsResponse]:
    isolation = FetchIsolation.of(body.replica_id != CONSUMER, body.isolation_level)
    work = Budget(LOOKUP_US_PER_SLICE)
    named: Counter[tuple[str, int]] = Counter()
    for topic in body.topics:
        for one in topic.partitions:
            named[topic.name, one.partition_index] += 1
            if work.spend(1):
                yield
    topics: dict[str, list[ListOffsetsPartitionResponse]] = {}
    for topic in body.topics:
        if work.spend(UNITS_PER_NAME):
            yield
        for query in topic.partitions:
            if work.spend(UNITS_PER_NAME):
                yield
            partitions = topics.setdefault(topic.name, [])
            times = named[topic.name, query.partition_index]
            if times > 1:
                named[topic.name, query.partition_index] = HAS_RESULT
                partitions.append(_response(query, ErrorCode.invalid_request))
            elif times == 1:
                there = remote.get((topic.name, query.partition_index))
                partitions.append(
                    (
                        yield from _partition_response(
                            broker, call.api_version, isolation, topic.name, query, work, there
                        )
                    )
                )
    responses: list[ListOffsetsTopicResponse] = []
    for name, partitions in topics.items():
        responses.append(ListOffsetsTopicResponse(name=TopicName(name), partitions=tuple(partitions)))
        if work.spend(UNITS_PER_NAME):
            yield
    return ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(responses))


def _partition_response(
    broker: Broker,
    api_version: int,
    isolation: FetchIsolation,
    topic: str,
    query: ListOffsetsPartition,
    work: Budget,
    remote: RemoteOffset | None = None,
) -> PartitionSearch:
    if query.timestamp < 0 and api_version < SINCE_VERSION.get(query.timestamp, api_version + 1):
        return _response(query, ErrorCode.unsupported_version)
    partition = led_partition(broker, topic, query.partition_index, query.current_leader_epoch)
    if isinstance(partition, Error):
        return _response(query, partition)
    try:
        offset = yield from find(partition, query.timestamp, isolation, work, remote)
    except (DiskError, InvalidRecords) as failure:
        return _response(query, read_error(failure))
    if isinstance(offset, Error) and offset is ErrorCode.offset_not_available and api_version < NOT_AVAILABLE_FROM:
        offset = ErrorCode.leader_not_available
    if isinstance(offset, Error):
        return _response(query, offset)
    return _response(query, ErrorCode.none, offset)


def find(
    partition: Partition, timestamp_ms: int, isolation: FetchIsolation, work: Budget, remote: RemoteOffset | None = None
) -> Sliced[ListedOffset | Error]:
    """Find an offset that the client may read. ``timestamp_ms`` is a time or one of the special values. An open
    transaction holds back the last stable offset of each leader alike, so only the high watermark may lag. ``remote``
    is the result of the search in the remote tier. Where records have moved there since, the client must retry.

    Return OFFSET_NOT_AVAILABLE for offsets that the previous leader may have returned to a consumer already (KIP-207),
    and where the log changes again and again during the search.
    """
    log, followers = partition.log, partition.followers
    end_offset = readable_end(log, isolation)
    reached = end_offset if isolation is FetchIsolation.LOG_END else log.high_watermark
    lags = followers is not None and followers.epoch_start_offset > reached  # Decision new-leader-lags
    if timestamp_ms == LATEST:
        if lags:
            return ErrorCode.offset_not_available
        return ListedOffset(end_offset, leader_epoch=log.latest_epoch)
    if timestamp_ms == EARLIEST:
        return _at(log, log.log_start_offset)
    if timestamp_ms == EARLIEST_LOCAL:
        return _at(log, log.local_log_start_offset)
    if timestamp_ms == LATEST_TIERED:
        return _at(log, log.copied_end_offset - 1) if log.copied_end_offset > log.log_start_offset else ListedOffset()
    if timestamp_ms >= 0 and log.local_log_start_offset > log.log_start_offset:
        if remote is None or remote.end_offset < log.local_log_start_offset:  # Decision tier-search-outdated
            return ErrorCode.offset_not_available
        remote_offset = remote.found
        # Decision time-found-in-tier
        if isinstance(remote_offset, FoundOffset) and log.log_start_offset <= remote_offset.offset < end_offset:
            return ListedOffset(remote_offset.offset, remote_offset.timestamp_ms, remote_offset.leader_epoch)
        if remote_offset is not None:
            return ErrorCode.offset_not_available if isinstance(remote_offset, FoundOffset) else remote_offset
    for _ in range(MAX_SEARCHES):
        try:  # Decision time-search-overtaken
            listed = yield from _search(partition, timestamp_ms, work)
        except Overtaken:
            continue
        if partition.is_removed:
            return ErrorCode.not_leader_or_follower
        if listed is None or listed.offset >= end_offset:  # Decision time-beyond-readable
            return ErrorCode.offset_not_available if lags else ListedOffset()
        if listed.offset < 0:
            return ListedOffset()
        if listed.offset >= log.log_start_offset:
            return ListedOffset(listed.offset, listed.timestamp_ms, listed.leader_epoch)
    return ErrorCode.not_leader_or_follower if partition.is_removed else ErrorCode.offset_not_available


def _at(log: UnifiedLog, offset: int) -> ListedOffset:
    return ListedOffset(offset, leader_epoch=log.epoch_at(offset))


def _search(partition: Partition, timestamp_ms: int, work: Budget) -> Sliced[FoundOffset | None]:
    log = partition.log
    if timestamp_ms == MAX_TIMESTAMP:
        return (yield from log.search_max_timestamp(work))
    return (yield from log.search_timestamp(timestamp_ms, work))


def _response(
    query: ListOffsetsPartition, error: Error, offset: ListedOffset | None = None
) -> ListOffsetsPartitionResponse:
    offset = offset or ListedOffset()
    return ListOffsetsPartitionResponse(
        partition_index=query.partition_index,
        error_code=ErrorCode(error),
        timestamp=i64(offset.timestamp_ms),
        offset=i64(offset.offset),
        leader_epoch=i32(offset.leader_epoch),
    )


def _remote_queries(broker: Broker, body: ListOffsetsRequest) -> Iterator[RemoteQuery]:
    """Yield the partitions whose timestamps must be searched in the remote tier. One that is named twice is refused
    anyway."""
    queried: set[tuple[str, int]] = set()
    for topic in body.topics:
        for query in topic.partitions:
            where = (str(topic.name), int(query.partition_index))
            partition = broker.partitions.by_name.get(where)
            if query.timestamp < 0 or partition is None or where in queried:
                continue
            if partition.log.local_log_start_offset > partition.log.log_start_offset:
                queried.add(where)
                yield RemoteQuery(*where, partition.log, int(query.timestamp))


@dataclass(slots=True, eq=False)
class RemoteSearches:
    """Searches in the remote tier for one request (Kafka's DelayedRemoteListOffsets). Calls ``done`` once with all
    results.

    The tier is searched for each partition with records there, before the local logs. The request waits for all of
    these searches, at most for its own timeout, or for ``remote.list.offsets.request.timeout.ms`` in older versions.
    """

    broker: Broker
    call: Call
    done: Callable[[RemoteOffsets], None]
    results: dict[tuple[str, int], RemoteOffset] = field(default_factory=dict)
    abandons: list[Abandon] = field(default_factory=list)
    remaining: int = 0
    timer: int | None = None

    def begin(self, reader: RemoteReader, queries: Sequence[RemoteQuery], wait_ms: int) -> None:
        self.remaining = len(queries)
        for one in queries:
            end_offset = one.log.local_log_start_offset
            self.results[one.topic, one.partition] = RemoteOffset(end_offset, ErrorCode.request_timed_out)
            store_result = partial(self._found, (one.topic, one.partition), end_offset)
            self.abandons.append(reader.first_of_time(one.log, one.partition, one.timestamp_ms, store_result))
        self.timer = self.broker.ports.set_timer(self.broker.now.mono_us + wait_ms * 1000, self._time_out)
        self.call.on_closed(self._connection_closed)

    def _found(self, where: tuple[str, int], end_offset: int, offset: FoundOffset | Error | None) -> None:
        self.results[where] = RemoteOffset(end_offset, offset)
        self.remaining -= 1
        if self.remaining == 0 and self.timer is not None:
            self.broker.ports.cancel_timer(self.timer)
            self._finish()

    def _time_out(self) -> None:
        for abandon in self.abandons:
            abandon()
        self._finish()

    def _finish(self) -> None:
        self.timer = None
        self.call.run(lambda: self.done(self.results))

    def _connection_closed(self) -> None:
        if self.timer is not None:
            self.broker.ports.cancel_timer(self.timer)
            self.timer = None
            for abandon in self.abandons:
                abandon()
