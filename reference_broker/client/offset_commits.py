"""Commits and fetches of offsets.

There is no I/O. ``CommittedOffsets`` runs one operation at a time, with times of one monotonic clock in microseconds:

    offsets = CommittedOffsets(coordinator)        # the GroupCoordinator that the membership uses, or one of its own
    offsets.commit({TopicPartition("t", 0): OffsetToCommit(17, metadata_epoch=5)}, membership.identity, deadline_us)
    offsets.fetch([TopicPartition("t", 0)], membership.identity, deadline_us)
    loop while offsets.busy:
        request = offsets.next_request(now)        # None: see wake_at_us
        ... send it to request.to on a connection of its own ...
        offsets.responded(now, body)                # or failed(now)
    offsets.take_result()                          # Committed or Fetched

The operation itself retries after a lost response, and while the coordinator has moved or is loading. The driver passes
``Committed.group_error`` or ``Fetched.error`` to ``GroupMembership.apply_error``. INVALID_METADATA_EPOCH (KIP-232, M-7)
means that a commit with a newer metadata epoch exists. It is never retried; it is that partition's result.

The draft of OffsetCommit (``GroupVersions.with_metadata_epoch``) sends the epoch of the last accepted metadata (M-6),
and that of OffsetFetch returns it (M-9). ``may_consume`` delays the first fetch until the metadata has reached every
partition's epoch (M-10).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from reference_broker.client.consumer_protocol import by_topic
from reference_broker.client.group_requests import (
    DRAFT_VERSION,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PAGE_VERSION,
    GroupCoordinator,
    GroupRequest,
    MemberIdentity,
    error_of,
)
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH, NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.drafts import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1000,
    OffsetCommitRequestPartition1001,
    OffsetCommitRequestTopic1000,
    OffsetCommitRequestTopic1001,
    OffsetFetchRequest1000,
    OffsetFetchRequest1001,
    OffsetFetchRequestTopic1000,
)
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.retired_fields import OffsetCommitRequest

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponse, OffsetFetchResponseGroup
    from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse

    from reference_broker.wire.drafts import OffsetFetchResponse1001


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """An offset that is to be committed."""

    offset: int
    """The next one to read."""
    leader_epoch: int = -1
    """The leader epoch of the last record read, or -1 if unknown (KIP-320)."""
    metadata_epoch: int = NO_METADATA_EPOCH
    """The epoch of the last accepted metadata, or -1. Only the draft version has it."""
    metadata: str | None = ""
    """The application's own text."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that is committed."""

    offset: int
    """-1 if none is committed."""
    leader_epoch: int = -1
    metadata_epoch: int = NO_METADATA_EPOCH
    """-1 if none is recorded."""
    metadata: str | None = ""


def commit_request(
    offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity, version: int
) -> OffsetCommitRequest | OffsetCommitRequest1000 | OffsetCommitRequest1001:
    """The body of OffsetCommit in that version."""
    topics = by_topic(offsets)
    if version == PAGE_VERSION:
        return OffsetCommitRequest1000(
            group_id=identity.group_id,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            topics=tuple(
                OffsetCommitRequestTopic1000(
                    name=topic,
                    partitions=tuple(
                        _page_partition(number, offsets[TopicPartition(topic, number)]) for number in numbers
                    ),
                )
                for topic, numbers in topics.items()
            ),
        )
    if version == DRAFT_VERSION:
        return OffsetCommitRequest1001(
            group_id=identity.group_id,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=tuple(
                OffsetCommitRequestTopic1001(
                    name=topic,
                    partitions=tuple(
                        _draft_partition(number, offsets[TopicPartition(topic, number)]) for number in numbers
                    ),
                )
                for topic, numbers in topics.items()
            ),
        )
    return OffsetCommitRequest(
        group_id=GroupId(identity.group_id),
        generation_id_or_member_epoch=i32(identity.generation_id),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(_partition(number, offsets[TopicPartition(topic, number)]) for number in numbers),
            )
            for topic, numbers in topics.items()
        ),
    )


def _draft_partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition1001:
    return OffsetCommitRequestPartition1001(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata_epoch=offset.metadata_epoch,
        committed_metadata=offset.metadata,
    )


def _page_partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition1000:
    draft = _draft_partition(number, offset)
    return OffsetCommitRequestPartition1000(
        partition_index=draft.partition_index,
        committed_offset=draft.committed_offset,
        metadata_epoch=draft.metadata_epoch,
        committed_metadata=draft.committed_metadata,
    )


def _partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=i32(number),
        committed_offset=i64(offset.offset),
        committed_leader_epoch=i32(offset.leader_epoch),
        committed_metadata=offset.metadata,
    )


def commit_errors(body: object) -> dict[TopicPartition, Error | int]:
    """The error of each partition, from a response to OffsetCommit in any version, or to TxnOffsetCommit."""
    return {
        TopicPartition(str(topic.name), int(partition.partition_index)): error_of(partition.error_code)
        for topic in cast("OffsetCommitResponse | TxnOffsetCommitResponse", body).topics
        for partition in topic.partitions
    }


def fetch_request(
    partitions: Iterable[TopicPartition], identity: MemberIdentity, version: int
) -> OffsetFetchRequest | OffsetFetchRequest1000 | OffsetFetchRequest1001:
    """The body of OffsetFetch in that version, for one group. It requests stable offsets if the version has that
    field."""
    topics = by_topic(partitions)
    if version in (PAGE_VERSION, DRAFT_VERSION):
        wanted = tuple(
            OffsetFetchRequestTopic1000(name=topic, partition_indexes=tuple(numbers))
            for topic, numbers in topics.items()
        )
        if version == PAGE_VERSION:
            return OffsetFetchRequest1000(group_id=identity.group_id, topics=wanted)
        return OffsetFetchRequest1001(group_id=identity.group_id, topics=wanted, require_stable=True)
    group = OffsetFetchRequestGroup(
        group_id=GroupId(identity.group_id),
        topics=tuple(
            OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=tuple(i32(number) for number in numbers))
            for topic, numbers in topics.items()
        ),
    )
    return OffsetFetchRequest(groups=(group,), require_stable=True)


def fetched_offsets(body: object) -> dict[TopicPartition, CommittedOffset] | Error | int:
    """The offsets in a response of any version with one group, or the first error if there is any."""
    group: OffsetFetchResponseGroup | OffsetFetchResponse1001
    if hasattr(body, "groups"):
        groups = cast("OffsetFetchResponse", body).groups
        if not groups:
            return ErrorCode.network_exception  # The response lacks the group.
        group = groups[0]
    else:
        group = cast("OffsetFetchResponse1001", body)
    error = error_of(group.error_code)
    if error:
        return error
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in group.topics:
        for partition in topic.partitions:
            error = error_of(partition.error_code)
            if error:
                return error
            found[TopicPartition(str(topic.name), int(partition.partition_index))] = CommittedOffset(
                int(partition.committed_offset),
                int(getattr(partition, "committed_leader_epoch", -1)),
                int(getattr(partition, "metadata_epoch", NO_METADATA_EPOCH)),
                partition.metadata,
            )
    return found


NO_OFFSET: Final = -1
NOT_SENT: Final = -1
_MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
_AGAIN: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.unstable_offset_commit,
    ErrorCode.network_exception,
)
_OF_THE_GROUP: Final = (
    ErrorCode.rebalance_in_progress,
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_instance_id,
    ErrorCode.invalid_group_id,
    ErrorCode.group_authorization_failed,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit."""

    offsets: Mapping[TopicPartition, OffsetToCommit]
    errors: Mapping[TopicPartition, Error | int]
    """By partition: NONE if it is committed, and REQUEST_TIMED_OUT if no response came before the deadline, so that the
    outcome is unknown."""
    sent_as: MemberIdentity
    group_error: Error | int
    """The first error that concerns the membership, or NONE."""
    version: int = NOT_SENT
    """The version of the last request, or -1 if none was sent."""

    @property
    def refused(self) -> tuple[TopicPartition, ...]:
        """The partitions with INVALID_METADATA_EPOCH."""
        return tuple(each for each, error in self.errors.items() if error is DraftError.INVALID_METADATA_EPOCH)

    @property
    def succeeded(self) -> bool:
        """Whether every partition is committed."""
        return not any(self.errors.values())


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch of offsets."""

    offsets: Mapping[TopicPartition, CommittedOffset]
    """Every requested partition, if ``error`` is NONE."""
    error: Error | int
    sent_as: MemberIdentity
    version: int = NOT_SENT
    """As in ``Committed``."""


Result: TypeAlias = Committed | Fetched


def may_consume(metadata_epoch: int, committed: Iterable[CommittedOffset]) -> bool:
    """Return whether metadata of this epoch is new enough to consume from all of these offsets (spec M-10). An offset
    without a recorded epoch has -1, which is smaller than any epoch (M-11)."""
    return all(metadata_epoch >= each.metadata_epoch for each in committed)


@dataclass(slots=True)
class CommittedOffsets:
    """One operation at a time on a group's committed offsets. The top of the file says how to drive it."""

    coordinator: GroupCoordinator
    _commit: dict[TopicPartition, OffsetToCommit] | None = None
    _fetch: tuple[TopicPartition, ...] | None = None
    _ended: dict[TopicPartition, Error | int] = field(default_factory=dict)
    _left: dict[TopicPartition, OffsetToCommit] = field(default_factory=dict)
    _identity: MemberIdentity = field(default_factory=lambda: MemberIdentity(""))
    _deadline_us: int = 0
    _retry_at_us: int = 0
    _in_flight: bool = False
    _finding: bool = False
    _sent_to: NodeAddress | None = None
    _result: Result | None = None
    _version: int = NOT_SENT

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self._commit is not None or self._fetch is not None

    @property
    def wake_at_us(self) -> int | None:
        """The time at which ``next_request`` will return something, or end the operation, if nothing else happens."""
        if self._in_flight or not self.busy:
            return None
        if self.coordinator.node is None:
            return self._deadline_us if self.coordinator.is_requesting else self.coordinator.retry_at_us
        return self._retry_at_us

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity, deadline_us: int
    ) -> None:
        """Begin a commit. Retries end at ``deadline_us``."""
        assert not self.busy, "two operations on committed offsets at once"
        self._commit, self._left, self._ended = dict(offsets), dict(offsets), {}
        self._identity, self._deadline_us, self._result, self._retry_at_us = identity, deadline_us, None, 0
        self._version = NOT_SENT
        if not offsets:
            self._end_commit()

    def fetch(self, partitions: Iterable[TopicPartition], identity: MemberIdentity, deadline_us: int) -> None:
        """Begin a fetch of committed offsets. Retries end at ``deadline_us``."""
        assert not self.busy, "two operations on committed offsets at once"
        self._fetch = tuple(partitions)
        self._identity, self._deadline_us, self._result, self._retry_at_us = identity, deadline_us, None, 0
        self._version = NOT_SENT
        if not self._fetch:
            self._end_fetch({}, ErrorCode.none)

    def take_result(self) -> Result | None:
        """Return the result of the operation that has ended, once."""
        result, self._result = self._result, None
        return result

    def next_request(self, now_us: int) -> GroupRequest | None:
        """Return what to send now, if anything. Exactly one of ``responded`` and ``failed`` must follow it."""
        if self._in_flight or not self.busy:
            return None
        if now_us >= self._deadline_us or self.coordinator.failure is not None:
            self._give_up(self.coordinator.failure or ErrorCode.request_timed_out)
            return None
        if self.coordinator.node is None:
            request = self.coordinator.next_request(now_us)
            self._finding = self._in_flight = request is not None
            return request
        if now_us < self._retry_at_us:
            return None
        self._in_flight, self._sent_to = True, self.coordinator.node
        return self._request(self.coordinator.node)

    def _request(self, node: NodeAddress) -> GroupRequest:
        versions, timeout_us = self.coordinator.versions, self.coordinator.request_timeout_us
        if self._commit is not None:
            self._version = versions.offset_commit
            body = commit_request(self._left, self._identity, versions.offset_commit)
            return GroupRequest(OFFSET_COMMIT, versions.offset_commit, body, timeout_us, node)
        assert self._fetch is not None, "no operation"
        self._version = versions.offset_fetch
        fetch = fetch_request(self._fetch, self._identity, versions.offset_fetch)
        return GroupRequest(OFFSET_FETCH, versions.offset_fetch, fetch, timeout_us, node)

    def responded(self, now_us: int, body: object) -> None:
        """Apply the response to the request in flight."""
        self._in_flight = False
        if self._finding:
            self._finding = False
            self.coordinator.responded(now_us, body)
        elif self._commit is not None:
            self._commit_responded(now_us, commit_errors(body))
        else:
            self._fetch_responded(now_us, fetched_offsets(body))

    def failed(self, now_us: int) -> None:
        """Record that the request in flight got no response."""
        self._in_flight = False
        if self._finding:
            self._finding = False
            self.coordinator.failed(now_us)
            return
        self.coordinator.lose(now_us, self._sent_to)
        self._retry_at_us = now_us + self.coordinator.backoff_us

    def _commit_responded(self, now_us: int, errors: Mapping[TopicPartition, Error | int]) -> None:
        for partition, error in errors.items():
            if partition not in self._left:
                continue
            if error in _MOVED:
                self.coordinator.lose(now_us, self._sent_to)
            elif error not in _AGAIN:
                self._ended[partition] = error
                del self._left[partition]
        if self._left:
            self._retry_at_us = now_us + self.coordinator.backoff_us
        else:
            self._end_commit()

    def _fetch_responded(self, now_us: int, offsets: dict[TopicPartition, CommittedOffset] | Error | int) -> None:
        if isinstance(offsets, dict):
            assert self._fetch is not None, "a response to no fetch"
            self._end_fetch(
                {each: offsets.get(each, CommittedOffset(NO_OFFSET)) for each in self._fetch}, ErrorCode.none
            )
        elif offsets in _MOVED or offsets in _AGAIN:
            if offsets in _MOVED:
                self.coordinator.lose(now_us, self._sent_to)
            self._retry_at_us = now_us + self.coordinator.backoff_us
        else:
            self._end_fetch({}, offsets)

    def _give_up(self, error: Error | int) -> None:
        if self._commit is not None:
            self._ended.update(dict.fromkeys(self._left, error))
            self._end_commit()
        else:
            self._end_fetch({}, error)

    def _end_commit(self) -> None:
        assert self._commit is not None, "no commit to end"
        of_the_group = next((each for each in self._ended.values() if each in _OF_THE_GROUP), ErrorCode.none)
        self._result = Committed(self._commit, dict(self._ended), self._identity, of_the_group, self._version)
        self._commit = None

    def _end_fetch(self, offsets: Mapping[TopicPartition, CommittedOffset], error: Error | int) -> None:
        self._result = Fetched(offsets, error, self._identity, self._version)
        self._fetch = None
