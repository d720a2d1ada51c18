"""What an OffsetCommit or a TxnOffsetCommit may store: whether the member may commit, and which offsets are accepted.

The rules are those of Kafka's OffsetMetadataManager for classic groups, and of the metadata epoch (M-7, M-11).
"""

from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.log import KeyAndValue
from reference_broker.coordination.record_fields import MOST_TEXT_BYTES
from reference_broker.groups.offsets.requests import BROKERS_RETENTION, CommitRequest, WantedOffset
from reference_broker.groups.offsets.values import (
    MAX_TIMESTAMP_MS,
    NO_METADATA_EPOCH,
    NO_TIMESTAMP,
    CommitOffset,
    OffsetKey,
)
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.wire.errors import DraftError, Error, ErrorCode


@dataclass(slots=True)
class Judged:
    """What became of the offsets of one request so far: an error for each, and the accepted ones with their records.
    ``with_epoch`` says whether metadata epochs were checked and are kept. ``image`` is the metadata when it began."""

    target: OffsetsPartition
    request: CommitRequest
    image: MetadataImage
    with_epoch: bool
    errors: list[Error] = field(default_factory=list)
    accepted: dict[OffsetKey, tuple[CommitOffset, KeyAndValue]] = field(default_factory=dict)

    def refused(self, error: Error) -> list[Error]:
        """Returns the errors if all offsets are refused with this one. A transaction is told of unknown partitions
        first, as in Kafka."""
        unknown = ErrorCode.unknown_topic_or_partition
        if self.request.transaction is None:
            return [error] * len(self.request.offsets)
        return [each if each is unknown else error for each in self.errors]

    def look_again(self, image: MetadataImage) -> None:
        """Judges anew what may have changed some events later."""
        if self.image is not image:
            self._refuse_missing(image)
        if self.with_epoch:
            self._refuse_overtaken()

    def _refuse_missing(self, image: MetadataImage) -> None:
        """Refuses the offsets of topics that were deleted since they were judged. What was removed with a topic must
        not come back."""
        for at, wanted in enumerate(self.request.offsets):
            before = self.image.topics.get(wanted.topic)
            is_unchanged = before is not None and image.topics.get(wanted.topic) is before
            if not self.errors[at] and not is_unchanged and not exists(image, wanted.topic, wanted.partition):
                self._refuse(at, ErrorCode.unknown_topic_or_partition)

    def _refuse_overtaken(self) -> None:
        """Refuses the offsets whose metadata epoch is older by now than that of the last commit (M-7)."""
        for at, wanted in enumerate(self.request.offsets):
            if wanted.metadata_epoch is not None and not self.errors[at]:
                key = OffsetKey(self.request.group_id, wanted.topic, wanted.partition)
                error = epoch_refusal(wanted.metadata_epoch, self.target.offsets.latest(key))
                if error:
                    self._refuse(at, error)

    def _refuse(self, at: int, error: Error) -> None:
        wanted = self.request.offsets[at]
        self.errors[at] = error
        self.accepted.pop(OffsetKey(self.request.group_id, wanted.topic, wanted.partition), None)


def membership_error(target: OffsetsPartition, request: CommitRequest) -> Error:
    """Says whether the member may commit now."""
    group = target.groups.get(request.group_id)
    if group is None:
        if request.generation < 0:
            return ErrorCode.none
        return ErrorCode.group_id_not_found if request.knows_missing_groups else ErrorCode.illegal_generation
    if request.transaction is not None:
        return group.check_transactional_commit(request.member_id, request.group_instance_id, request.generation)
    return group.check_commit(request.member_id, request.group_instance_id, request.generation)


def judged(
    target: OffsetsPartition,
    request: CommitRequest,
    image: MetadataImage,
    config: BrokerConfig,
    now_ms: int,
    *,
    with_epoch: bool,
) -> tuple[list[Error], list[CommitOffset]]:
    """Returns an error for each offset, and the commits of those that are accepted. If a partition is named twice its
    last offset counts. ``with_epoch`` says whether metadata epochs are checked and kept."""
    errors: list[Error] = []
    accepted: dict[OffsetKey, CommitOffset] = {}
    for wanted in request.offsets:
        key = OffsetKey(request.group_id, wanted.topic, wanted.partition)
        epoch = wanted.metadata_epoch if with_epoch else None
        error = _refusal(image, config, wanted)
        if not error and epoch is not None:
            error = epoch_refusal(epoch, accepted.get(key) or target.offsets.latest(key))
        errors.append(error)
        if not error:
            accepted[key] = _commit(wanted, epoch, now_ms, request.retention_ms)
    return errors, list(accepted.values())


def _commit(wanted: WantedOffset, epoch: int | None, now_ms: int, retention_ms: int) -> CommitOffset:
    return CommitOffset(
        topic=wanted.topic,
        partition=wanted.partition,
        offset=wanted.offset,
        leader_epoch=wanted.leader_epoch,
        metadata=wanted.metadata or "",
        commit_timestamp_ms=now_ms,
        metadata_epoch=NO_METADATA_EPOCH if epoch is None else epoch,
        expire_timestamp_ms=_expires_ms(now_ms, retention_ms),
    )


def _expires_ms(now_ms: int, retention_ms: int) -> int:
    """Kafka adds the two (OffsetMetadataManager), and a negative sum is over at once, too. Unlike in Kafka, whose sum
    overflows, a retention time without end keeps the offset."""
    if retention_ms == BROKERS_RETENTION:
        return NO_TIMESTAMP
    return min(max(now_ms + retention_ms, 0), MAX_TIMESTAMP_MS)


def _refusal(image: MetadataImage, config: BrokerConfig, wanted: WantedOffset) -> Error:
    if not exists(image, wanted.topic, wanted.partition):
        return ErrorCode.unknown_topic_or_partition
    if wanted.metadata and _is_too_large(config, wanted.metadata):
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def exists(image: MetadataImage, topic: str, partition: int) -> bool:
    """Says whether the topic has this partition."""
    known = image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)


def _is_too_large(config: BrokerConfig, metadata: str) -> bool:
    """Kafka counts characters. A record of version 3 cannot hold more than MOST_TEXT_BYTES."""
    return len(metadata) > config.offset_metadata_max_bytes or len(metadata.encode()) > MOST_TEXT_BYTES


def epoch_refusal(metadata_epoch: int, last: CommitOffset | None) -> Error:
    """M-7: the client knows older metadata than those under which the offset was committed."""
    known = NO_METADATA_EPOCH if last is None else last.metadata_epoch
    return DraftError.INVALID_METADATA_EPOCH if metadata_epoch < known else ErrorCode.none
