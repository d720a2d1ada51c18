"""OffsetCommit, OffsetFetch and OffsetDelete, apart from any version of the messages.

Rules: Kafka's OffsetMetadataManager for classic groups; of the metadata epoch M-7 to M-11.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.group_metrics import GroupMetrics
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.groups.offsets.group_record_codec import CLASSIC_VALUE, EPOCH_VALUE
from reference_broker.groups.offsets.group_records import NO_METADATA_EPOCH, CommitOffset, OffsetKey
from reference_broker.groups.offsets.offsets_log import told_as
from reference_broker.groups.offsets.offsets_partition import OffsetsPartition
from reference_broker.groups.offsets.record_fields import MOST_TEXT_BYTES
from reference_broker.groups.offsets.slices import SliceQueue, Slices
from reference_broker.metadata.features import sends_metadata_epoch
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Ports
from reference_broker.wire.errors import Error

_COUNTS_AS_HEARTBEAT = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

OFFSETS_A_SLICE = 250
"""Offsets of one commit that are judged and written in one event, some 3 ms."""

Told: TypeAlias = Callable[[list[Error]], None]


@dataclass(frozen=True, slots=True)
class WantedOffset:
    """One partition of an OffsetCommit. ``metadata_epoch`` None: its version has no such field (M-11)."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    metadata_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """``generation`` -1 and an empty member ID: a consumer that assigns itself, or a tool. ``knows_missing_groups``:
    the client can be told GROUP_ID_NOT_FOUND (version 9 on), else it is ILLEGAL_GENERATION."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[WantedOffset, ...]
    knows_missing_groups: bool = False


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """``commit`` None: nothing is committed."""

    topic: str
    partition: int
    commit: CommitOffset | None


class _Finds(Protocol):
    def find(self, group_id: str) -> OffsetsPartition | Error: ...


class Commits:
    """What groups ask of their committed offsets."""

    __slots__ = ("_config", "_finds", "_image", "_membership", "_metrics", "_ports", "_slices")

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        finds: _Finds,
        membership: Membership,
        image: Callable[[], MetadataImage],
        metrics: GroupMetrics,
    ) -> None:
        self._ports = ports
        self._config = config
        self._finds = finds
        self._membership = membership
        self._image = image
        self._metrics = metrics
        self._slices = SliceQueue(ports)

    def commit(self, request: CommitRequest, answer: Told) -> None:
        """Answers with an error for each offset of the request, once the good ones are replicated. More than
        OFFSETS_A_SLICE are written in several events.

        For all: GroupStore.find's, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID,
        REBALANCE_IN_PROGRESS and the log's. For one: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE,
        INVALID_METADATA_EPOCH (M-7).
        """
        target = self._finds.find(request.group_id)
        if isinstance(target, Error):
            answer([target] * len(request.offsets))
        elif len(request.offsets) <= OFFSETS_A_SLICE:
            self._commit(target, request, answer)
        else:
            self._slices.add(self._commit_slices(target, request, answer))

    def _commit_slices(self, target: OffsetsPartition, request: CommitRequest, answer: Told) -> Slices:
        """Each slice is judged and written for itself: the group may be another by then."""
        offsets = request.offsets
        slices = [offsets[at : at + OFFSETS_A_SLICE] for at in range(0, len(offsets), OFFSETS_A_SLICE)]
        answers: dict[int, list[Error]] = {}

        def told(at: int, errors: list[Error]) -> None:
            answers[at] = errors
            if len(answers) == len(slices):
                answer([error for each in range(len(slices)) for error in answers[each]])

        for at, some in enumerate(slices):
            self._commit(target, replace(request, offsets=some), partial(told, at))
            yield

    def _commit(self, target: OffsetsPartition, request: CommitRequest, answer: Told) -> None:
        error = _membership_error(target, request) if target.is_led else Error.NOT_COORDINATOR
        if error is not Error.NONE:
            answer([error] * len(request.offsets))
            return
        group = target.groups.get(request.group_id)
        if group is not None and group.state in _COUNTS_AS_HEARTBEAT:
            self._membership.heard(request.group_id, request.member_id)
        errors, good = self._judged(target, request)
        if not good:
            answer(errors)
            return

        def written(refused: Error) -> None:
            told = told_as(refused)
            answer([told if error is Error.NONE else error for error in errors])

        self._metrics.commits.value += len(good)
        version = EPOCH_VALUE if sends_metadata_epoch(self._image()) else CLASSIC_VALUE
        target.commit(request.group_id, good, version, written)
        if group is None and request.group_id in target.groups:
            self._membership.added(target, target.groups[request.group_id])

    def _judged(self, target: OffsetsPartition, request: CommitRequest) -> tuple[list[Error], list[CommitOffset]]:
        image, now_ms = self._image(), self._ports.now().wall_ms
        is_on = sends_metadata_epoch(image)
        errors: list[Error] = []
        good: dict[OffsetKey, CommitOffset] = {}
        for wanted in request.offsets:
            key = OffsetKey(request.group_id, wanted.topic, wanted.partition)
            error = self._refusal(image, wanted)
            if error is Error.NONE and is_on and wanted.metadata_epoch is not None:
                last = good.get(key) or target.offsets.latest(key)
                error = _epoch_refusal(wanted.metadata_epoch, last)
            errors.append(error)
            if error is Error.NONE:
                epoch = wanted.metadata_epoch if is_on else None
                good[key] = CommitOffset(
                    topic=wanted.topic,
                    partition=wanted.partition,
                    offset=wanted.offset,
                    leader_epoch=wanted.leader_epoch,
                    metadata=wanted.metadata or "",
                    commit_timestamp_ms=now_ms,
                    metadata_epoch=NO_METADATA_EPOCH if epoch is None else epoch,
                )
        return errors, list(good.values())

    def _refusal(self, image: MetadataImage, wanted: WantedOffset) -> Error:
        topic = image.topics.get(wanted.topic)
        if topic is None or not 0 <= wanted.partition < len(topic.partitions):
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if wanted.metadata and self._is_too_large(wanted.metadata):
            return Error.OFFSET_METADATA_TOO_LARGE
        return Error.NONE

    def _is_too_large(self, metadata: str) -> bool:
        """Counted in characters, as Kafka does; and more than a record of version 3 can hold."""
        return len(metadata) > self._config.offset_metadata_max_bytes or len(metadata.encode()) > MOST_TEXT_BYTES

    def fetch(
        self,
        group_id: str,
        wanted: Sequence[tuple[str, Sequence[int]]] | None,
        answer: Callable[[Error, list[FetchedOffset]], None],
        *,
        requires_stable: bool = False,
    ) -> None:
        """What is committed and replicated, for what is ``wanted`` (topic, partitions) in its order, or all if None.

        A coordinator that has just loaded answers when all that it loaded is replicated, and where the client
        ``requires_stable`` offsets when the commits that are on their way are. An error is for the whole group:
        GroupStore.find's, COORDINATOR_NOT_AVAILABLE if that takes longer than ``offsets.commit.timeout.ms``."""
        target = self._finds.find(group_id)
        if isinstance(target, Error):
            answer(target, [])
            return
        target.settled(
            requires_stable,
            lambda error: answer(told_as(error), [] if error else _fetched(target, group_id, wanted)),
        )

    def delete(
        self,
        group_id: str,
        wanted: Sequence[tuple[str, int]],
        answer: Callable[[Error, list[Error]], None],
    ) -> None:
        """OffsetDelete: answers with an error for all (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, find's) and one for each
        partition: GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION. Removing what is not there is no error."""
        target = self._finds.find(group_id) if group_id else Error.INVALID_GROUP_ID
        if isinstance(target, Error):
            answer(target, [])
            return
        group = target.groups.get(group_id)
        error = Error.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
        if group is None or error is not Error.NONE:
            answer(error, [])
            return
        image = self._image()
        errors: list[Error] = []
        doomed: dict[OffsetKey, None] = {}
        for topic, index in wanted:
            key = OffsetKey(group_id, topic, index)
            known = image.topics.get(topic)
            if known is None or not 0 <= index < len(known.partitions):
                errors.append(Error.UNKNOWN_TOPIC_OR_PARTITION)
            elif group.is_subscribed_to(topic):
                errors.append(Error.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(Error.NONE)
                if target.offsets.latest(key) is not None:
                    doomed[key] = None

        def written(refused: Error) -> None:
            answer(told_as(refused), errors)

        self._metrics.deletions.value += len(doomed)
        target.retention.look_at(group_id, self._ports.now().wall_ms)
        target.remove_offsets(list(doomed), written)


def _fetched(
    target: OffsetsPartition, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None
) -> list[FetchedOffset]:
    offsets = target.offsets
    if wanted is None:
        return [
            FetchedOffset(topic, index, stored.commit)
            for topic, partitions in offsets.of(group_id).items()
            for index, stored in partitions.items()
        ]
    return [
        FetchedOffset(topic, index, offsets.find(OffsetKey(group_id, topic, index)))
        for topic, indexes in wanted
        for index in indexes
    ]


def _membership_error(target: OffsetsPartition, request: CommitRequest) -> Error:
    group = target.groups.get(request.group_id)
    if group is None:
        if request.generation < 0:
            return Error.NONE
        return Error.GROUP_ID_NOT_FOUND if request.knows_missing_groups else Error.ILLEGAL_GENERATION
    return group.check_commit(request.member_id, request.group_instance_id, request.generation)


def _epoch_refusal(metadata_epoch: int, last: CommitOffset | None) -> Error:
    """M-7: what the client knows is older than what the offset was committed under."""
    known = NO_METADATA_EPOCH if last is None else last.metadata_epoch
    return Error.INVALID_METADATA_EPOCH if metadata_epoch < known else Error.NONE
