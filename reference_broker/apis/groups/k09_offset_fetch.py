"""OffsetFetch: returns the committed offsets of one group or of several.

* It returns what is replicated, and -1 where nothing is committed. Null for the topics means all of the group.
* An unknown group has no offsets.
* With ``require_stable`` the response waits for pending commits.
* A coordinator that has just loaded waits until all that it loaded is replicated. COORDINATOR_NOT_AVAILABLE where that
  takes longer than ``offsets.commit.timeout.ms``.
* With it, UNSTABLE_OFFSET_COMMIT says that an open transaction has committed the partition. Without it, a transaction
  that has not been committed changes nothing.
* Unlike Kafka: a partition that is named twice is in the response once. An offset's metadata may be a thousand times as
  long as the partition's number in a request.

Version notes:
* v2: an error of the whole group has a place of its own.
* v1000: returns the metadata epoch of each partition, -1 where none was recorded.
* v7: has ``require_stable``.
* v1001: as v1000, with leader epochs and ``require_stable``.

KIPs: 88, 232, 447, 709.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.coordination.partitioner import CHARACTERS_PER_US, KEY_COST_US
from reference_broker.groups.committed_offsets import NO_METADATA_EPOCH
from reference_broker.groups.offset_metadata_manager import FetchedOffset
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.drafts import (
    OffsetFetchRequest1000,
    OffsetFetchRequest1001,
    OffsetFetchResponse1000,
    OffsetFetchResponse1001,
    OffsetFetchResponsePartition1000,
    OffsetFetchResponsePartition1001,
    OffsetFetchResponseTopic1000,
    OffsetFetchResponseTopic1001,
)
from reference_broker.wire.errors import Error, ErrorCode


class _Topic(Protocol):
    """A topic of a request, of Kafka's layout or of the draft's."""

    @property
    def name(self) -> str: ...
    @property
    def partition_indexes(self) -> Sequence[int]: ...


NOTHING = -1
GROUP_ERROR_FROM = 2
"""The version from which an error of the whole group has a place of its own."""


def handle(
    broker: Broker, call: Call, body: OffsetFetchRequest | OffsetFetchRequest1000 | OffsetFetchRequest1001
) -> None:
    """Groups, topics and partitions in the request's order, each once, as it is named first. All topics come in the
    order of their first commit. Respond when the last group is settled, mostly at once."""
    if isinstance(body, OffsetFetchRequest1000 | OffsetFetchRequest1001):
        _draft(broker, call, body)
        return
    by_id: dict[str, OffsetFetchRequestGroup] = {}
    for group in body.groups:
        by_id.setdefault(group.group_id, group)
    requested = tuple(by_id.values())
    by_position: dict[int, OffsetFetchResponseGroup] = {}

    def settled(at: int, error: Error, offsets: list[FetchedOffset]) -> None:
        by_position[at] = _group(requested[at], error, offsets, call.api_version)
        if len(by_position) == len(requested):
            groups = tuple(by_position[number] for number in range(len(requested)))
            call.respond(OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups))

    if not requested:
        call.respond(OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=()))

    def fetch() -> Sliced[None]:
        work = Budget(LOOKUP_US_PER_SLICE)
        for at, group in enumerate(requested):
            if work.spend(KEY_COST_US + len(group.group_id) // CHARACTERS_PER_US):
                yield
            broker.groups.offset_manager.fetch_offsets(
                group.group_id,
                _wanted(group.topics),
                callback(call, partial(settled, at)),
                requires_stable=body.require_stable,
            )

    run_in_slices(broker, call, fetch())


API: Api[OffsetFetchRequest | OffsetFetchRequest1000 | OffsetFetchRequest1001] = Api.of(
    (OffsetFetchRequest, OffsetFetchRequest1000, OffsetFetchRequest1001), handle
)


def _wanted(topics: Iterable[_Topic] | None) -> list[tuple[str, Sequence[int]]] | None:
    """Each partition once. An offset's text may be a thousand times as long as a partition's number in a request."""
    if topics is None:
        return None
    indexes_by_topic: dict[str, dict[int, None]] = {}
    for topic in topics:
        indexes_by_topic.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [(name, tuple(indexes)) for name, indexes in indexes_by_topic.items()]


def _group(
    requested: OffsetFetchRequestGroup, error: Error, offsets: list[FetchedOffset], api_version: int
) -> OffsetFetchResponseGroup:
    if error and api_version < GROUP_ERROR_FROM:
        offsets = [
            FetchedOffset(topic, index, None) for topic, indexes in _wanted(requested.topics) or () for index in indexes
        ]
    code = ErrorCode(error)
    named = () if error and api_version >= GROUP_ERROR_FROM else (topic.name for topic in requested.topics or ())
    topics = tuple(
        OffsetFetchResponseTopics(
            name=TopicName(name), partitions=tuple(_partition(offset, code) for offset in offsets_of_topic)
        )
        for name, offsets_of_topic in _by_topic(offsets, named).items()
    )
    return OffsetFetchResponseGroup(group_id=requested.group_id, topics=topics, error_code=code)


def _partition(offset: FetchedOffset, error: ErrorCode) -> OffsetFetchResponsePartitions:
    commit = offset.commit
    return OffsetFetchResponsePartitions(
        partition_index=i32(offset.partition),
        committed_offset=i64(NOTHING if commit is None else commit.offset),
        committed_leader_epoch=i32(NOTHING if commit is None else commit.leader_epoch),
        metadata="" if commit is None else commit.metadata,
        error_code=ErrorCode.unstable_offset_commit if offset.is_unstable else error,
    )


def _by_topic(offsets: Iterable[FetchedOffset], named: Iterable[str] = ()) -> dict[str, list[FetchedOffset]]:
    """A topic that is ``named`` without partitions is in the response, too."""
    topics: dict[str, list[FetchedOffset]] = {name: [] for name in named}
    for offset in offsets:
        topics.setdefault(offset.topic, []).append(offset)
    return topics


def _draft(broker: Broker, call: Call, body: OffsetFetchRequest1000 | OffsetFetchRequest1001) -> None:
    wanted = _wanted(body.topics)
    with_leader_epochs = isinstance(body, OffsetFetchRequest1001)

    def settled(error: Error, offsets: list[FetchedOffset]) -> None:
        by_topic = {
            name: [_draft_partition(offset) for offset in offsets_of_topic]
            for name, offsets_of_topic in _by_topic(offsets).items()
        }
        call.respond(_with_leader_epochs(by_topic, error) if with_leader_epochs else _as_the_page(by_topic, error))

    requires_stable = isinstance(body, OffsetFetchRequest1001) and body.require_stable
    broker.groups.offset_manager.fetch_offsets(
        body.group_id, wanted, callback(call, settled), requires_stable=requires_stable
    )


def _with_leader_epochs(
    by_topic: Mapping[str, list[OffsetFetchResponsePartition1001]], error: Error
) -> OffsetFetchResponse1001:
    topics = (
        OffsetFetchResponseTopic1001(name=name, partitions=tuple(partitions)) for name, partitions in by_topic.items()
    )
    return OffsetFetchResponse1001(topics=tuple(topics), error_code=int(error))


def _as_the_page(
    by_topic: Mapping[str, list[OffsetFetchResponsePartition1001]], error: Error
) -> OffsetFetchResponse1000:
    """Version 1000 has no leader epochs."""
    topics = tuple(
        OffsetFetchResponseTopic1000(
            name=name,
            partitions=tuple(
                OffsetFetchResponsePartition1000(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    metadata_epoch=partition.metadata_epoch,
                    metadata=partition.metadata,
                )
                for partition in partitions
            ),
        )
        for name, partitions in by_topic.items()
    )
    return OffsetFetchResponse1000(topics=topics, error_code=int(error))


def _draft_partition(offset: FetchedOffset) -> OffsetFetchResponsePartition1001:
    commit = offset.commit
    return OffsetFetchResponsePartition1001(
        partition_index=offset.partition,
        committed_offset=NOTHING if commit is None else commit.offset,
        committed_leader_epoch=NOTHING if commit is None else commit.leader_epoch,
        metadata_epoch=NO_METADATA_EPOCH if commit is None else commit.metadata_epoch,
        metadata="" if commit is None else commit.metadata,
        error_code=int(ErrorCode.unstable_offset_commit if offset.is_unstable else ErrorCode.none),
    )
