"""Lookups at the leader for a follower whose fetch offset is out of range, or in the remote tier only.

``Lookups`` finds where the leader's log ends and begins (ListOffsets as a replica).

``TierStarts`` begins a replica whose leader has only later records locally: those before are in the remote tier
(KIP-405). It looks up where the leader's local records begin, and the leader epoch of the record before them. The tier
then gives the leader epochs and the producers behind the segment of that record, and the log goes on there (P-11;
Kafka's ReplicaFetcherTierStateMachine).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.client.partitions import TopicPartition
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.follower.followed import FollowedPartition
from reference_broker.replication.follower.partition_data_applier import ApplyOutcome, PartitionDataApplier, TierState
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10 import request as list_offsets_request
    from kio.schema.list_offsets.v10 import response as list_offsets_response
    from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
    from kio.schema.offset_for_leader_epoch.v4 import response as epoch_response
else:
    list_offsets_request = LazySchema("list_offsets.v10.request")
    list_offsets_response = LazySchema("list_offsets.v10.response")
    epoch_request = LazySchema("offset_for_leader_epoch.v4.request")
    epoch_response = LazySchema("offset_for_leader_epoch.v4.response")

LATEST = -1
EARLIEST = -2
"""Special timestamps of ListOffsets."""
PARTITIONS_PER_REQUEST = 200

Chunk: TypeAlias = list[tuple[FollowedPartition, int]]
"""Pairs of a partition and its leader epoch at the time of the request."""


class LookupRequest(NamedTuple):
    """A request to the leader, and the handler of its response."""

    body: object
    handle_response: Callable[[object], None]
    api_key: ApiKey = ApiKey.LIST_OFFSETS


@dataclass(slots=True)
class Lookups:
    """Partitions whose fetch offset is outside the leader's log."""

    _node_id: int
    _timeout_ms: int
    _applier: PartitionDataApplier
    _resume_fetching: Callable[[FollowedPartition], None]
    """Gets each partition that can be fetched now."""
    _retry_later: Callable[[FollowedPartition], None]
    """Gets each partition whose lookup failed."""
    _ends: dict[TopicPartition, FollowedPartition] = field(default_factory=dict)
    """Partitions that wait for the end of the leader's log."""
    _starts: dict[TopicPartition, FollowedPartition] = field(default_factory=dict)
    """Partitions that wait for the start of the leader's log."""

    def want_offsets(self, followed: FollowedPartition) -> None:
        self._ends[followed.name] = followed

    def drop(self, followed: FollowedPartition) -> None:
        for waiting in (self._ends, self._starts):
            waiting.pop(followed.name, None)

    def next(self) -> LookupRequest | None:
        """Return the next request to send. It stays the same until its response is handled."""
        for waiting, timestamp, handle in (
            (self._ends, LATEST, self._handle_ends),
            (self._starts, EARLIEST, self._handle_starts),
        ):
            if waiting:
                chunk = _chunk(waiting)
                return LookupRequest(
                    offsets_request(self._node_id, chunk, timestamp, self._timeout_ms), partial(handle, chunk)
                )
        return None

    # Where the leader's log ends and begins

    def _handle_ends(self, chunk: Chunk, response: object) -> None:
        """Truncate if the leader's log ends before the follower's: the leader lost records in an unclean election.

        Otherwise the leader's log has only later records, and the next request looks up its start.
        """
        for followed, end_offset in self._current(self._ends, chunk, _offsets(response)):
            if end_offset >= followed.log.log_end_offset:  # Decision leader-log-shorter
                self._starts[followed.name] = followed
            else:
                self._apply(followed, partial(self._applier.truncate, followed, end_offset))

    def _handle_starts(self, chunk: Chunk, response: object) -> None:
        for followed, start_offset in self._current(self._starts, chunk, _offsets(response)):
            if start_offset > followed.log.log_end_offset:  # Decision leader-log-begins-later
                self._apply(followed, partial(self._applier.restart_at, followed, start_offset))
            else:
                self._retry_later(followed)  # The leader's log grew meanwhile: the next fetch finds where they diverge.

    def _apply(self, followed: FollowedPartition, change: Callable[[], None]) -> None:
        """Change the follower's log as the found offset requires."""
        outcome = self._applier.apply_or_retry(followed, change)
        (self._resume_fetching if outcome is ApplyOutcome.APPLIED else self._retry_later)(followed)

    def _current(
        self, waiting: dict[TopicPartition, FollowedPartition], chunk: Chunk, offsets: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[FollowedPartition, int]]:
        """Yield the partitions that still wait under the same leader epoch. Retry those without a result later."""
        for followed, epoch in chunk:
            if waiting.get(followed.name) is not followed or followed.leader_epoch != epoch:
                continue
            del waiting[followed.name]
            offset = offsets.get(followed.name)
            if offset is None:
                self._retry_later(followed)
            else:
                yield followed, offset


def offsets_request(
    node_id: int, chunk: Chunk, timestamp: int, timeout_ms: int
) -> "list_offsets_request.ListOffsetsRequest":
    return list_offsets_request.ListOffsetsRequest(
        replica_id=BrokerId(node_id),
        isolation_level=i8(0),
        topics=tuple(
            list_offsets_request.ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    list_offsets_request.ListOffsetsPartition(
                        partition_index=i32(followed.name.partition),
                        current_leader_epoch=i32(epoch),
                        timestamp=i64(timestamp),
                    )
                    for followed, epoch in partitions
                ),
            )
            for topic, partitions in _by_topic(chunk)
        ),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
    )


def _chunk(waiting: Mapping[TopicPartition, FollowedPartition]) -> Chunk:
    return [(followed, followed.leader_epoch) for followed in list(waiting.values())[:PARTITIONS_PER_REQUEST]]


def _by_topic(chunk: Chunk) -> Iterable[tuple[str, Chunk]]:
    topics: dict[str, Chunk] = {}
    for followed, epoch in chunk:
        topics.setdefault(followed.name.topic, []).append((followed, epoch))
    return topics.items()


def _offsets(response: object) -> Mapping[TopicPartition, int]:
    return {name: int(result.offset) for name, result in offset_results(response).items()}


def offset_results(response: object) -> Mapping[TopicPartition, "list_offsets_response.ListOffsetsPartitionResponse"]:
    """Return the results by partition, without those that are an error or have no offset."""
    assert isinstance(response, list_offsets_response.ListOffsetsResponse), (
        f"the response to ListOffsets is a {type(response).__name__}"
    )
    return {
        TopicPartition(topic.name, int(partition.partition_index)): partition
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code and partition.offset >= 0
    }


EARLIEST_LOCAL = -4


class Tier(Protocol):
    """The remote tier, as a replica uses it."""

    def state_before(
        self,
        log: UnifiedLog,
        partition: int,
        leader_epoch: int,
        offset: int,
        done: Callable[[TierState | Error], None],
    ) -> None:
        """Call ``done`` with the state behind the segment with the record before ``offset``, which has that epoch."""
        ...


class _Local(NamedTuple):
    """The start of a leader's local records, and the leader epoch of the first one."""

    offset: int
    epoch: int


@dataclass(slots=True)
class TierStarts:
    """Partitions of one leader whose requested records are in the remote tier only."""

    _node_id: int
    _timeout_ms: int
    _applier: PartitionDataApplier
    _tier: Callable[[], Tier | None]
    """Returns None on a node without a tier."""
    _resume_fetching: Callable[[FollowedPartition], None]
    """Gets each partition that can be fetched now."""
    _retry_later: Callable[[FollowedPartition], None]
    """Gets each partition whose lookup failed."""
    _log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    """The log start offsets of the leader."""
    _wanted: dict[TopicPartition, FollowedPartition] = field(default_factory=dict)
    """First state: the leader is to return where its local records begin."""
    _locals: dict[TopicPartition, tuple[FollowedPartition, _Local]] = field(default_factory=dict)
    """Second state: the leader is to return the epoch before them."""
    _from_tier: dict[TopicPartition, FollowedPartition] = field(default_factory=dict)
    """Third state: the tier is to return its state."""

    def want(self, followed: FollowedPartition, log_start_offset: int) -> None:
        """The leader has moved the requested records. ``log_start_offset`` is the leader's."""
        self._log_starts[followed.name] = log_start_offset
        self._wanted[followed.name] = followed

    def drop(self, followed: FollowedPartition) -> None:
        self._log_starts.pop(followed.name, None)
        self._wanted.pop(followed.name, None)
        self._locals.pop(followed.name, None)
        self._from_tier.pop(followed.name, None)

    def next(self) -> LookupRequest | None:
        """Return the next request to send, about one partition. It stays the same until its response is handled."""
        for followed in self._wanted.values():
            body = offsets_request(self._node_id, [(followed, followed.leader_epoch)], EARLIEST_LOCAL, self._timeout_ms)
            return LookupRequest(body, partial(self._handle_local, followed, followed.leader_epoch))
        for followed, local in self._locals.values():
            handle = partial(self._handle_epoch, followed, followed.leader_epoch, local)
            return LookupRequest(self._epoch_request(followed, local.epoch - 1), handle, ApiKey.OFFSET_FOR_LEADER_EPOCH)
        return None

    def _handle_local(self, followed: FollowedPartition, epoch: int, response: object) -> None:
        if self._wanted.get(followed.name) is not followed or followed.leader_epoch != epoch:
            return
        del self._wanted[followed.name]
        result = offset_results(response).get(followed.name)
        if result is None:
            self._retry_later(followed)
            return
        local = _Local(int(result.offset), int(result.leader_epoch))
        if local.epoch > 0:
            self._locals[followed.name] = followed, local
        else:
            self._read_tier(followed, local.epoch, local.offset)

    def _epoch_request(self, followed: FollowedPartition, epoch: int) -> "epoch_request.OffsetForLeaderEpochRequest":
        return epoch_request.OffsetForLeaderEpochRequest(
            replica_id=BrokerId(self._node_id),
            topics=(
                epoch_request.OffsetForLeaderTopic(
                    topic=TopicName(followed.name.topic),
                    partitions=(
                        epoch_request.OffsetForLeaderPartition(
                            partition=i32(followed.name.partition),
                            current_leader_epoch=i32(followed.leader_epoch),
                            leader_epoch=i32(epoch),
                        ),
                    ),
                ),
            ),
        )

    def _handle_epoch(self, followed: FollowedPartition, epoch: int, local: _Local, response: object) -> None:
        waiting = self._locals.get(followed.name)
        if waiting is None or waiting[0] is not followed or followed.leader_epoch != epoch:
            return
        del self._locals[followed.name]
        assert isinstance(response, epoch_response.OffsetForLeaderEpochResponse), type(response).__name__
        (result,) = (partition for topic in response.topics for partition in topic.partitions)
        if result.error_code:
            self._retry_later(followed)
            return
        is_earlier = result.end_offset > local.offset - 1
        self._read_tier(followed, int(result.leader_epoch) if is_earlier else local.epoch, local.offset)

    def _read_tier(self, followed: FollowedPartition, leader_epoch: int, offset: int) -> None:
        tier = self._tier()
        if tier is None:
            self._retry_later(followed)
            return
        self._from_tier[followed.name] = followed
        done = partial(self._handle_state, followed, followed.leader_epoch)
        tier.state_before(followed.log, followed.name.partition, leader_epoch, offset, done)

    def _handle_state(self, followed: FollowedPartition, epoch: int, state: TierState | Error) -> None:
        if self._from_tier.get(followed.name) is not followed or followed.leader_epoch != epoch:
            return
        del self._from_tier[followed.name]
        log_start_offset = self._log_starts.pop(followed.name)
        if not isinstance(state, TierState):  # Decision tier-state
            self._retry_later(followed)
            return
        outcome = self._applier.apply_or_retry(
            followed, lambda: self._applier.start_in_tier(followed, state, log_start_offset)
        )
        (self._resume_fetching if outcome is ApplyOutcome.APPLIED else self._retry_later)(followed)
